"""Create, update, patch and delete: the checklist of spec/apiserver.md section 5."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from drakkar.apiserver import ApiServer
from drakkar.store import MemoryBackend
from tests.unit.apiserver.core.serving import Api, Object, Refused

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def play(scene: Callable[[Api], Awaitable[None]]) -> None:
    """Runs a scene on a new server."""

    async def run() -> None:
        api = await Api.start()
        await scene(api)
        await api.close()

    asyncio.run(run())


def pod(name: str, **spec: object) -> Object:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "x"}], **spec}}


def claim(name: str) -> Object:
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu.example.com"}}]
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}}


async def refused(work: Awaitable[Object]) -> Refused:
    with pytest.raises(Refused) as caught:
        await work
    return caught.value


def test_revisions_grow_and_no_op_writes_keep_them() -> None:
    async def scene(api: Api) -> None:
        one = await api.post(CONFIGMAPS, {"metadata": {"name": "a"}, "data": {"k": "1"}})
        two = await api.patch(f"{CONFIGMAPS}/a", {"data": {"k": "2"}})
        assert int(two["metadata"]["resourceVersion"]) > int(one["metadata"]["resourceVersion"])
        same = await api.patch(f"{CONFIGMAPS}/a", {"data": {"k": "2"}})
        assert same == two
        assert await api.put(f"{CONFIGMAPS}/a", two) == two
        assert (await api.get(CONFIGMAPS))["metadata"]["resourceVersion"] == two["metadata"]["resourceVersion"]

    play(scene)


def test_a_stale_put_conflicts_and_an_unconditional_one_does_not() -> None:
    async def scene(api: Api) -> None:
        old = await api.post(CONFIGMAPS, {"metadata": {"name": "a"}})
        await api.patch(f"{CONFIGMAPS}/a", {"data": {"k": "1"}})
        error = await refused(api.put(f"{CONFIGMAPS}/a", {**old, "data": {"k": "2"}}))
        assert (error.code, error.reason) == (409, "Conflict")
        assert "the object has been modified" in str(error)
        error = await refused(api.patch(f"{CONFIGMAPS}/a", {"metadata": {"resourceVersion": "1"}, "data": None}))
        assert error.code == 409
        del old["metadata"]["resourceVersion"]
        assert (await api.put(f"{CONFIGMAPS}/a", {**old, "data": {"k": "2"}}))["data"] == {"k": "2"}

    play(scene)


def test_leases_need_a_revision_and_are_created_by_put() -> None:
    async def scene(api: Api) -> None:
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1"
        lease = {"metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1", "leaseDurationSeconds": 40}}
        made = await api.put(path, lease)
        assert made["spec"]["holderIdentity"] == "n1"
        error = await refused(api.put(path, {**lease, "spec": {"holderIdentity": "n2"}}))
        assert error.code == 422
        assert "metadata.resourceVersion" in str(error)

    play(scene)


def test_one_key_written_by_many_at_once() -> None:
    async def scene(api: Api) -> None:
        await api.post(CONFIGMAPS, {"metadata": {"name": "a"}, "data": {}})
        await asyncio.gather(*(api.patch(f"{CONFIGMAPS}/a", {"data": {f"k{n}": "v"}}) for n in range(50)))
        assert len((await api.get(f"{CONFIGMAPS}/a"))["data"]) == 50
        answers = await asyncio.gather(
            *(api.post(CONFIGMAPS, {"metadata": {"name": "b"}}) for _ in range(10)), return_exceptions=True
        )
        assert sum(isinstance(answer, dict) for answer in answers) == 1
        made = await asyncio.gather(*(api.post(CONFIGMAPS, {"metadata": {"generateName": "g-"}}) for _ in range(100)))
        assert len({obj["metadata"]["name"] for obj in made}) == 100

    play(scene)


def test_what_the_server_sets_cannot_be_chosen() -> None:
    async def scene(api: Api) -> None:
        wished = {"name": "a", "uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z", "generation": 7}
        obj = await api.post(CONFIGMAPS, {"metadata": wished})
        assert obj["metadata"]["uid"] != "mine"
        assert obj["metadata"]["creationTimestamp"] == "2027-01-15T08:00:00Z"
        assert "generation" not in obj["metadata"]
        changed = await api.patch(f"{CONFIGMAPS}/a", {"metadata": {"creationTimestamp": None, "labels": {"a": "b"}}})
        assert changed["metadata"]["creationTimestamp"] == obj["metadata"]["creationTimestamp"]

    play(scene)


def test_the_namespaces_of_every_cluster_cannot_be_deleted() -> None:
    async def scene(api: Api) -> None:
        for name in ("default", "kube-system", "kube-public"):
            error = await refused(api.delete(f"/api/v1/namespaces/{name}"))
            text = f'namespaces "{name}" is forbidden: this namespace may not be deleted'
            assert (error.code, error.reason, str(error)) == (403, "Forbidden", text)
            assert "deletionTimestamp" not in (await api.get(f"/api/v1/namespaces/{name}"))["metadata"]

    play(scene)


def test_conversations_with_a_node_agent_are_refused_with_the_reason() -> None:
    async def scene(api: Api) -> None:
        await api.post(PODS, pod("p"))
        for name in ("exec", "attach", "portforward"):
            error = await refused(api.post(f"{PODS}/p/{name}", {}))
            assert (error.code, error.reason) == (501, "NotImplemented")
            assert "needs a node agent" in str(error)
        assert (await refused(api.post(f"{PODS}/absent/exec", {}))).code == 404

    play(scene)


def test_namespaces_must_exist_and_not_be_going() -> None:
    async def scene(api: Api) -> None:
        error = await refused(api.post("/api/v1/namespaces/none/configmaps", {"metadata": {"name": "a"}}))
        assert (error.code, str(error)) == (404, 'namespaces "none" not found')
        await api.post("/api/v1/namespaces", {"metadata": {"name": "n"}})
        going = await api.delete("/api/v1/namespaces/n")
        assert going["status"]["phase"] == "Terminating"
        error = await refused(api.post("/api/v1/namespaces/n/configmaps", {"metadata": {"name": "a"}}))
        assert error.code == 403
        assert error.status["details"]["causes"][0]["reason"] == "NamespaceTerminating"
        final = await api.get("/api/v1/namespaces/n")
        final["spec"]["finalizers"] = []
        await api.put("/api/v1/namespaces/n/finalize", final)
        assert (await refused(api.get("/api/v1/namespaces/n"))).code == 404

    play(scene)


def test_finalizers_hold_an_object_and_the_last_one_lets_it_go() -> None:
    async def scene(api: Api) -> None:
        await api.post(CONFIGMAPS, {"metadata": {"name": "a", "finalizers": ["example.com/hold"]}})
        watch = await api.watch(CONFIGMAPS)
        await watch.take(1)
        marked = await api.delete(f"{CONFIGMAPS}/a")
        assert marked["metadata"]["deletionGracePeriodSeconds"] == 0
        error = await refused(api.patch(f"{CONFIGMAPS}/a", {"metadata": {"finalizers": ["example.com/hold", "b/c"]}}))
        assert error.code == 422
        gone = await api.patch(f"{CONFIGMAPS}/a", {"metadata": {"finalizers": None}})
        assert "finalizers" not in gone["metadata"]
        assert await watch.take(2) == [("MODIFIED", "a"), ("DELETED", "a")]
        assert (await refused(api.get(f"{CONFIGMAPS}/a"))).code == 404

    play(scene)


def test_pods_go_with_grace() -> None:
    async def scene(api: Api) -> None:
        await api.post(PODS, pod("unbound"))
        await api.delete(f"{PODS}/unbound")
        assert (await refused(api.get(f"{PODS}/unbound"))).code == 404
        await api.post(PODS, pod("bound"))
        target = {"kind": "Node", "name": "n1"}
        await api.post(f"{PODS}/bound/binding", {"metadata": {"name": "bound"}, "target": target})
        going = await api.delete(f"{PODS}/bound")
        assert going["metadata"]["deletionGracePeriodSeconds"] == 30
        assert going["metadata"]["deletionTimestamp"] == "2027-01-15T08:00:30Z"
        sooner = await api.delete(f"{PODS}/bound", {"gracePeriodSeconds": 5})
        assert sooner["metadata"]["deletionGracePeriodSeconds"] == 5
        later = await api.delete(f"{PODS}/bound", {"gracePeriodSeconds": 60})
        assert later["metadata"]["deletionGracePeriodSeconds"] == 5
        await api.delete(f"{PODS}/bound", {"gracePeriodSeconds": 0})
        assert (await refused(api.get(f"{PODS}/bound"))).code == 404

    play(scene)


def test_binding_honours_revision_and_uid() -> None:
    async def scene(api: Api) -> None:
        made = await api.post(PODS, pod("p"))
        target = {"kind": "Node", "name": "n1"}
        for wrong in ({"resourceVersion": "1"}, {"uid": "other"}):
            error = await refused(api.post(f"{PODS}/p/binding", {"metadata": {"name": "p", **wrong}, "target": target}))
            assert error.code == 409
        meta = {"name": "p", "uid": made["metadata"]["uid"], "resourceVersion": made["metadata"]["resourceVersion"]}
        answer = await api.post(f"{PODS}/p/binding", {"metadata": meta, "target": target})
        assert (answer["status"], answer["code"]) == ("Success", 201)
        bound = await api.get(f"{PODS}/p")
        assert bound["spec"]["nodeName"] == "n1"
        (condition,) = bound["status"]["conditions"]
        assert (condition["type"], condition["status"]) == ("PodScheduled", "True")
        gated = pod("g", schedulingGates=[{"name": "example.com/wait"}])
        await api.post(PODS, gated)
        assert (await refused(api.post(f"{PODS}/g/binding", {"target": target}))).code == 409

    play(scene)


def test_eviction_deletes() -> None:
    async def scene(api: Api) -> None:
        await api.post(PODS, pod("p"))
        dry = await api.post(f"{PODS}/p/eviction?dryRun=All", {"metadata": {"name": "p"}})
        assert dry["status"] == "Success"
        await api.get(f"{PODS}/p")
        await api.post(f"{PODS}/p/eviction", {"metadata": {"name": "p"}})
        assert (await refused(api.get(f"{PODS}/p"))).code == 404

    play(scene)


def test_eviction_marks_a_pod_as_disrupted() -> None:
    async def scene(api: Api) -> None:
        await api.post(PODS, pod("p", nodeName="n1"))
        path, body = f"{PODS}/p/eviction", {"metadata": {"name": "p"}}
        stale = {**body, "deleteOptions": {"preconditions": {"uid": "another"}}}
        assert (await refused(api.post(path, stale))).code == 409
        assert "conditions" not in (await api.get(f"{PODS}/p"))["status"]
        await api.post(path, body)
        going = await api.get(f"{PODS}/p")
        (condition,) = going["status"]["conditions"]
        assert (condition["type"], condition["status"]) == ("DisruptionTarget", "True")
        assert condition["reason"] == "EvictionByEvictionAPI"
        assert going["metadata"]["deletionGracePeriodSeconds"] == 30

    play(scene)


def test_eviction_asks_the_disruption_budget() -> None:
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"

    async def scene(api: Api) -> None:
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        for name in ("p", "q"):
            made = await api.post(PODS, {**pod(name, nodeName="n1"), "status": ready})
            made["metadata"]["labels"] = {"app": "web"}
            made = await api.put(f"{PODS}/{name}", made)
            await api.put(f"{PODS}/{name}/status", {**made, "status": {**made["status"], **ready}})
        selector = {"matchLabels": {"app": "web"}}
        budget = await api.post(budgets, {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": selector}})
        error = await refused(api.post(f"{PODS}/p/eviction", {"metadata": {"name": "p"}}))
        assert (error.code, error.reason) == (429, "TooManyRequests")
        assert "still being processed" in error.status["details"]["causes"][0]["message"]
        counted = {"observedGeneration": 1, "disruptionsAllowed": 1, "desiredHealthy": 1, "currentHealthy": 2}
        await api.put(f"{budgets}/b/status", {**budget, "status": {**counted, "expectedPods": 2}})
        await api.post(f"{PODS}/p/eviction?dryRun=All", {"metadata": {"name": "p"}})
        await api.post(f"{PODS}/p/eviction", {"metadata": {"name": "p"}})
        spent = await api.get(f"{budgets}/b")
        assert spent["status"]["disruptionsAllowed"] == 0
        assert [*spent["status"]["disruptedPods"]] == ["p"]
        error = await refused(api.post(f"{PODS}/q/eviction", {"metadata": {"name": "q"}}))
        (cause,) = error.status["details"]["causes"]
        assert cause["message"] == "The disruption budget b needs 1 healthy pods and has 2 currently"
        assert "deletionTimestamp" not in (await api.get(f"{PODS}/q"))["metadata"]

    play(scene)


def test_propagation_sets_the_collectors_finalizers() -> None:
    async def scene(api: Api) -> None:
        jobs = "/apis/batch/v1/namespaces/default/jobs"
        template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}
        await api.post(jobs, {"metadata": {"name": "j"}, "spec": {"template": template}})
        going = await api.delete(f"{jobs}/j?propagationPolicy=Foreground")
        assert going["metadata"]["finalizers"] == ["foregroundDeletion"]
        assert going["metadata"]["generation"] == 2
        other = await api.delete(f"{jobs}/j?propagationPolicy=Orphan")
        assert other["metadata"]["finalizers"] == ["orphan"]

    play(scene)


def test_deletecollection_answers_when_all_is_done() -> None:
    async def scene(api: Api) -> None:
        for n in range(5):
            await api.post(CONFIGMAPS, {"metadata": {"name": f"c{n}", "labels": {"odd": str(n % 2)}}})
        answer = await api.delete(f"{CONFIGMAPS}?labelSelector=odd=1")
        assert [item["metadata"]["name"] for item in answer["items"]] == ["c1", "c3"]
        assert len((await api.get(CONFIGMAPS))["items"]) == 3

    play(scene)


def test_dry_run_changes_nothing() -> None:
    async def scene(api: Api) -> None:
        await api.post(f"{CONFIGMAPS}?dryRun=All", {"metadata": {"name": "a"}})
        assert (await refused(api.get(f"{CONFIGMAPS}/a"))).code == 404
        made = await api.post(CONFIGMAPS, {"metadata": {"name": "a"}, "data": {"k": "1"}})
        assert (await api.patch(f"{CONFIGMAPS}/a?dryRun=All", {"data": {"k": "2"}}))["data"] == {"k": "2"}
        assert (await api.delete(f"{CONFIGMAPS}/a?dryRun=All"))["status"] == "Success"
        assert await api.get(f"{CONFIGMAPS}/a") == made

    play(scene)


def test_claims_have_a_status_of_their_own() -> None:
    async def scene(api: Api) -> None:
        made = await api.post(CLAIMS, {**claim("c"), "status": {"reservedFor": [{"resource": "pods"}]}})
        assert made["status"] == {}
        assert "generation" not in made["metadata"]
        consumer = {"resource": "pods", "name": "p", "uid": "u"}
        devices = {"results": [{"request": "r", "driver": "d.example.com", "pool": "p", "device": "x"}]}
        status = {"allocation": {"devices": devices}, "reservedFor": [consumer]}
        told = await api.patch(f"{CLAIMS}/c/status", {"metadata": {"labels": {"a": "b"}}, "status": status})
        assert told["status"]["reservedFor"] == [consumer]
        assert "labels" not in told["metadata"]
        error = await refused(api.patch(f"{CLAIMS}/c", {"spec": {"devices": {"requests": []}}}))
        assert error.code == 422
        kept = await api.patch(f"{CLAIMS}/c", {"status": None, "metadata": {"labels": {"a": "b"}}})
        assert kept["status"] == told["status"]

    play(scene)


def test_some_status_subresources_write_metadata() -> None:
    """The deployment controller of upstream keeps the revision of a rollout by a PUT of the status."""

    async def scene(api: Api) -> None:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "u"}
        patch = {"metadata": {"annotations": {"n": "1"}, "labels": {"l": "2"}, "ownerReferences": [owner]}}
        container = {"name": "c", "image": "i"}
        template = {"metadata": {"labels": {"l": "1"}}, "spec": {"containers": [container]}}
        spec = {"selector": {"matchLabels": {"l": "1"}}, "template": template}
        meta = {"name": "one", "labels": {"l": "1"}}
        for plural, changed in (
            ("apps/v1/namespaces/default/deployments", {"annotations", "ownerReferences"}),
            ("apps/v1/namespaces/default/replicasets", {"annotations", "labels", "ownerReferences"}),
        ):
            url = f"/apis/{plural}"
            made = await api.post(url, {"metadata": meta, "spec": spec})
            told = await api.patch(f"{url}/one/status", {**patch, "spec": {"replicas": 9}})
            assert {
                key for key in patch["metadata"] if told["metadata"].get(key) != made["metadata"].get(key)
            } == changed
            assert (told["spec"], told["metadata"]["uid"]) == (made["spec"], made["metadata"]["uid"])
        pods = "/api/v1/namespaces/default/pods"
        await api.post(pods, {"metadata": meta, "spec": template["spec"]})
        told = await api.patch(f"{pods}/one/status", patch)
        assert (told["metadata"]["annotations"], told["metadata"]["labels"]) == ({"n": "1"}, {"l": "2"})
        assert "ownerReferences" not in told["metadata"]

    play(scene)


def test_metadata_that_a_patch_empties_is_absent() -> None:
    async def scene(api: Api) -> None:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "u"}
        await api.post(CONFIGMAPS, {"metadata": {"name": "a", "ownerReferences": [owner], "labels": {"l": "1"}}})
        told = await api.patch(f"{CONFIGMAPS}/a", {"metadata": {"ownerReferences": [], "labels": {"l": None}}})
        assert not {"ownerReferences", "labels"} & told["metadata"].keys()

    play(scene)


def test_names_of_trust_bundles_begin_with_the_signer() -> None:
    async def scene(api: Api) -> None:
        url = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles"
        spec = {"signerName": "example.com/s", "trustBundle": "x"}
        assert (await api.post(url, {"metadata": {"name": "example.com:s:a"}, "spec": spec}))["spec"] == spec
        for name in ("a", "example.com:s:A", "example.com:t:a"):
            assert (await refused(api.post(url, {"metadata": {"name": name}, "spec": spec}))).code == 422
        assert (await refused(api.post(url, {"metadata": {"name": "x:a"}, "spec": {"trustBundle": "x"}}))).code == 422

    play(scene)


def test_a_bad_selector_is_refused_on_create() -> None:
    async def scene(api: Api) -> None:
        made = claim("c")
        made["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": "device.nope =="}}]
        error = await refused(api.post(CLAIMS, made))
        assert error.code == 422
        assert "compilation failed" in str(error)
        assert error.status["details"]["causes"][0]["field"].endswith("selectors[0].cel.expression")

    play(scene)


def test_older_versions_of_claims_are_converted() -> None:
    async def scene(api: Api) -> None:
        old = "/apis/resource.k8s.io/v1beta1/namespaces/default/resourceclaims"
        spec = {"devices": {"requests": [{"name": "r", "deviceClassName": "gpu.example.com"}]}}
        watch = await api.watch(old)
        made = await api.post(old, {"metadata": {"name": "c"}, "spec": spec})
        assert made["apiVersion"] == "resource.k8s.io/v1beta1"
        assert made["spec"]["devices"]["requests"][0]["deviceClassName"] == "gpu.example.com"
        hub = await api.get(f"{CLAIMS}/c")
        assert hub["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == "gpu.example.com"
        assert hub["metadata"] == made["metadata"]
        frame = await watch.next()
        assert frame is not None
        assert frame["object"] == made
        middle = await api.get(f"{CLAIMS}/c".replace("v1/n", "v1beta2/n"))
        assert middle["apiVersion"] == "resource.k8s.io/v1beta2"
        assert middle["spec"] == hub["spec"]
        patched = await api.patch(f"{old}/c", {"metadata": {"labels": {"a": "b"}}})
        assert patched["metadata"]["labels"] == {"a": "b"}

    play(scene)


def test_generation_counts_specs_only() -> None:
    async def scene(api: Api) -> None:
        body = {
            "metadata": {"name": "s"},
            "spec": {
                "driver": "d.example.com",
                "nodeName": "n",
                "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "x"}],
            },
        }
        assert (await api.post(SLICES, body))["metadata"]["generation"] == 1
        labelled = await api.patch(f"{SLICES}/s", {"metadata": {"labels": {"a": "b"}}})
        assert labelled["metadata"]["generation"] == 1
        changed = await api.patch(f"{SLICES}/s", {"spec": {"devices": [{"name": "y"}]}})
        assert changed["metadata"]["generation"] == 2
        deployments = "/apis/apps/v1/namespaces/default/deployments"
        labels = {"app": "x"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
        spec = {"selector": {"matchLabels": labels}, "template": template, "replicas": 1}
        await api.post(deployments, {"metadata": {"name": "d"}, "spec": spec, "status": {"replicas": 9}})
        assert "replicas" not in (await api.get(f"{deployments}/d")).get("status", {})
        told = await api.patch(f"{deployments}/d/status", {"status": {"replicas": 1}, "spec": {"replicas": 5}})
        assert (told["metadata"]["generation"], told["spec"]["replicas"]) == (1, 1)
        scale = await api.patch(f"{deployments}/d/scale", {"spec": {"replicas": 3}})
        assert (scale["kind"], scale["spec"], scale["status"]["replicas"]) == ("Scale", {"replicas": 3}, 1)
        assert (await api.get(f"{deployments}/d"))["metadata"]["generation"] == 2

    play(scene)


def test_server_side_apply_creates_owns_and_conflicts() -> None:
    async def scene(api: Api) -> None:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "1", "m": "1"}}
        made = await api.patch(f"{CONFIGMAPS}/a?fieldManager=one", body, "apply")
        assert made["metadata"]["managedFields"][0]["manager"] == "one"
        same = await api.patch(f"{CONFIGMAPS}/a?fieldManager=one", body, "apply")
        assert same == made
        other = {**body, "data": {"k": "2"}}
        error = await refused(api.patch(f"{CONFIGMAPS}/a?fieldManager=two", other, "apply"))
        assert error.status["details"]["causes"][0]["field"] == ".data.k"
        forced = await api.patch(f"{CONFIGMAPS}/a?fieldManager=two&force=true", other, "apply")
        assert forced["data"] == {"k": "2", "m": "1"}
        plain = await api.patch(f"{CONFIGMAPS}/a?fieldManager=three", {"data": {"m": "3"}})
        assert {entry["manager"] for entry in plain["metadata"]["managedFields"]} >= {"two", "three"}

    play(scene)


def test_pods_get_priority_and_patience() -> None:
    async def scene(api: Api) -> None:
        classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
        await api.post(classes, {"metadata": {"name": "high"}, "value": 1000})
        made = await api.post(PODS, pod("p", priorityClassName="high"))
        assert made["spec"]["priority"] == 1000
        keys = [toleration["key"] for toleration in made["spec"]["tolerations"]]
        assert keys == ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]
        error = await refused(api.post(PODS, pod("q", priorityClassName="none")))
        assert error.code == 403

    play(scene)


def test_everything_is_there_after_a_restart() -> None:
    async def run() -> None:
        backend = MemoryBackend()
        api = await Api.start(backend)
        made = await api.post(PODS, pod("p"))
        await api.post("/api/v1/namespaces/default/events", {"metadata": {"name": "e"}, "involvedObject": {}})
        await api.close()
        again = await Api.start(backend)
        assert await again.get(f"{PODS}/p") == made
        assert (await again.get("/api/v1/namespaces/default/events"))["items"] == []
        later = await again.post(CONFIGMAPS, {"metadata": {"name": "a"}})
        assert int(later["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
        await again.close()

    asyncio.run(run())


def test_a_failed_store_ends_writing_but_not_reading() -> None:
    async def run() -> None:
        failures: list[BaseException] = []
        backend = MemoryBackend()
        api = await Api.start(backend)
        api.server.committer.on_failure = failures.append
        await api.post(CONFIGMAPS, {"metadata": {"name": "a"}})
        await backend.close()
        error = await refused(api.post(CONFIGMAPS, {"metadata": {"name": "b"}}))
        assert error.code == 500
        assert len(failures) == 1
        assert (await refused(api.post(CONFIGMAPS, {"metadata": {"name": "c"}}))).code == 500
        assert [item["metadata"]["name"] for item in (await api.get(CONFIGMAPS))["items"]] == ["a"]

    asyncio.run(run())


def test_events_are_dropped_after_an_hour() -> None:
    async def scene(api: Api) -> None:
        events = "/api/v1/namespaces/default/events"
        await api.post(events, {"metadata": {"name": "e"}, "involvedObject": {"name": "x"}, "reason": "Because"})
        newer = await api.get("/apis/events.k8s.io/v1/namespaces/default/events/e")
        assert newer["regarding"] == {"name": "x"}
        assert len((await api.get(f"{events}?fieldSelector=involvedObject.name=x"))["items"]) == 1
        await api.clock.pass_(3000)
        await api.patch(f"{events}/e", {"count": 2})
        await api.clock.pass_(3000)
        assert len((await api.get(events))["items"]) == 1
        await api.clock.pass_(700)
        assert (await api.get(events))["items"] == []

    play(scene)


def test_requests_before_the_start_are_put_off() -> None:
    async def run() -> None:
        api = await Api.start()
        server = ApiServer(MemoryBackend(), clock=api.clock)
        early = Api(server, api.clock, server.token("admin", "system:masters"))
        error = await refused(early.get(CONFIGMAPS))
        assert (error.code, error.reason) == (503, "ServiceUnavailable")
        await api.close()

    asyncio.run(run())


def test_autoscalers_speak_both_versions() -> None:
    async def scene(api: Api) -> None:
        old = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers"
        new = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}
        spec = {"scaleTargetRef": target, "maxReplicas": 5, "targetCPUUtilizationPercentage": 80}
        made = await api.post(old, {"metadata": {"name": "h"}, "spec": spec})
        assert made["spec"]["targetCPUUtilizationPercentage"] == 80
        seen = await api.get(f"{new}/h")
        assert seen["spec"]["metrics"][0]["resource"]["target"] == {"type": "Utilization", "averageUtilization": 80}
        memory = {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 50}}
        metrics = [*seen["spec"]["metrics"], {"type": "Resource", "resource": memory}]
        await api.patch(f"{new}/h", {"spec": {"metrics": metrics}})
        await api.patch(f"{old}/h", {"spec": {"targetCPUUtilizationPercentage": 70}})
        kept = (await api.get(f"{new}/h"))["spec"]["metrics"]
        assert [metric["resource"]["target"]["averageUtilization"] for metric in kept] == [70, 50]

    play(scene)


def test_a_client_that_goes_away_blocks_nobody() -> None:
    async def scene(api: Api) -> None:
        await api.post(CONFIGMAPS, {"metadata": {"name": "a"}})
        for n in range(5):
            gone = asyncio.ensure_future(api.patch(f"{CONFIGMAPS}/a", {"data": {"gone": str(n)}}))
            for _ in range(n):
                await asyncio.sleep(0)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            told = await asyncio.wait_for(api.patch(f"{CONFIGMAPS}/a", {"data": {"here": str(n)}}), 60)
            assert told["data"]["here"] == str(n)

    play(scene)


def test_creates_by_put_and_apply_that_meet_become_updates() -> None:
    services = "/api/v1/namespaces/default/services"
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"

    def service(port: int) -> Object:
        return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"port": port}]}}

    async def scene(api: Api) -> None:
        first, second = await asyncio.gather(*(api.put(f"{services}/s", service(port)) for port in (80, 81)))
        assert first["metadata"]["uid"] == second["metadata"]["uid"]
        assert int(first["metadata"]["resourceVersion"]) < int(second["metadata"]["resourceVersion"])
        assert second["spec"]["clusterIP"] == first["spec"]["clusterIP"]
        assert (await api.get(f"{services}/s"))["spec"]["ports"][0]["port"] == 81
        # Where an update has to name a revision, whoever comes second has none to name.
        lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}}
        outcomes = await asyncio.gather(
            *(api.put(f"{leases}/l", lease | {"spec": {"holderIdentity": who}}) for who in "ab"), return_exceptions=True
        )
        refusal = outcomes[1]
        assert isinstance(refusal, Refused)
        assert refusal.code == 422
        assert "metadata.resourceVersion" in str(refusal)
        # Two managers apply what is not there: both are in.
        one, two = (
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {key: key}} for key in "ab"
        )
        await asyncio.gather(
            *(
                api.patch(f"{CONFIGMAPS}/m?fieldManager={who}", body, "apply")
                for who, body in (("one", one), ("two", two))
            )
        )
        both = await api.get(f"{CONFIGMAPS}/m")
        assert both["data"] == {"a": "a", "b": "b"}
        assert [entry["manager"] for entry in both["metadata"]["managedFields"]] == ["one", "two"]

    play(scene)


def test_slices_may_come_before_what_their_nodes_declare() -> None:
    """kube-apiserver refuses costs on nodes that do not declare that they count them; here they are counted anyway."""

    async def scene(api: Api) -> None:
        device = {"name": "d", "nodeAllocatableResources": {"cpu": {"overhead": {"perPod": "1"}}}}
        pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "d.example.com", "nodeName": "absent", "pool": pool, "devices": [device]}
        made = await api.post(SLICES, {"metadata": {"name": "s"}, "spec": spec})
        assert made["spec"]["devices"] == [device]

    play(scene)
