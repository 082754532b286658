"""A node that was taken over gets no further than its own pods: what it may not read, write, or become."""

from __future__ import annotations

import json
from typing import Any

from drakkar.api.wire import Request
from tests.unit.apiserver.core.serving import Api, Object
from tests.unit.apiserver.core.test_writes import CLAIMS, CONFIGMAPS, PODS, SLICES, claim, play, pod, refused

NODES, SECRETS = "/api/v1/nodes", "/api/v1/namespaces/default/secrets"
STORAGE, LEASES = "/apis/storage.k8s.io/v1", "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
MIRROR = {"kubernetes.io/config.mirror": "x"}


def node_of(api: Api, name: str = "n1") -> Api:
    return api.as_user(f"system:node:{name}", "system:nodes")


async def bound(api: Api, name: str, node: str = "n1", **spec: Any) -> Object:
    """A pod on a node."""
    made = await api.post(PODS, pod(name, **spec))
    await api.post(f"{PODS}/{name}/binding", {"target": {"kind": "Node", "name": node}})
    return made


async def slice_of(api: Api, node: str) -> None:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "x.y", "nodeName": node, "pool": pool, "devices": [{"name": "d"}]}
    await api.post(SLICES, {"metadata": {"name": node}, "spec": spec})


async def allocated(api: Api, name: str, node: str) -> None:
    """A claim with a device of a node."""
    await api.post(CLAIMS, claim(name))
    results = [{"request": "r", "driver": "x.y", "pool": node, "device": "d"}]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    await api.patch(f"{CLAIMS}/{name}/status", {"status": {"allocation": allocation}})


def test_a_node_says_nothing_about_devices_in_claims() -> None:
    async def scene(api: Api) -> None:
        await allocated(api, "c", "n1")
        await bound(api, "p", resourceClaims=[{"name": "c", "resourceClaimName": "c"}])
        node = node_of(api)
        assert (await node.get(f"{CLAIMS}/c"))["metadata"]["name"] == "c"
        for body in (
            {"status": {"devices": [{"driver": "x.y", "pool": "n1", "device": "d"}]}},
            {"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}},
            {"status": {"allocation": None}},
        ):
            assert (await refused(node.patch(f"{CLAIMS}/c/status", body))).code == 403
        assert (await refused(node.patch(f"{CLAIMS}/c", {"metadata": {"labels": {"a": "b"}}}))).code == 403
        for verb in ("arbitrary-node:patch", "associated-node:patch"):
            attributes = {"verb": verb, "group": "resource.k8s.io", "resource": "resourceclaims", "name": "x.y"}
            review = {"spec": {"resourceAttributes": {**attributes, "subresource": "driver", "namespace": "default"}}}
            answer = await node.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
            assert not answer["status"]["allowed"]

    play(scene)


def test_a_driver_with_a_token_of_its_node_tells_of_claims_of_this_node_only() -> None:
    async def scene(api: Api) -> None:
        account = "/api/v1/namespaces/default/serviceaccounts"
        await api.post(account, {"metadata": {"name": "driver"}})
        for name in ("n1", "n2"):
            await api.post(NODES, {"metadata": {"name": name}})
            await allocated(api, f"of-{name}", name)
        group = "resource.k8s.io"
        rules = [
            {"apiGroups": [group], "resources": ["resourceclaims/status"], "verbs": ["patch"]},
            {
                "apiGroups": [group],
                "resources": ["resourceclaims/driver"],
                "resourceNames": ["x.y"],
                "verbs": ["associated-node:patch"],
            },
        ]
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        await api.post(f"{rbac}/clusterroles", {"metadata": {"name": "driver"}, "rules": rules})
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "driver"}
        subjects = [{"kind": "ServiceAccount", "name": "driver", "namespace": "default"}]
        binding = {"metadata": {"name": "driver"}, "roleRef": ref, "subjects": subjects}
        await api.post(f"{rbac}/clusterrolebindings", binding)
        reference = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
        asked = await api.post(f"{account}/driver/token", {"spec": {"boundObjectRef": reference}})
        driver = Api(api.server, api.clock, asked["status"]["token"])

        def told(node: str, by: str = "x.y") -> Object:
            return {"status": {"devices": [{"driver": by, "pool": node, "device": "d"}]}}

        await driver.patch(f"{CLAIMS}/of-n1/status", told("n1"))
        error = await refused(driver.patch(f"{CLAIMS}/of-n2/status", told("n2")))
        assert (error.code, "arbitrary-node:patch" in str(error)) == (422, True)
        assert (await refused(driver.patch(f"{CLAIMS}/of-n1/status", told("n1", "z.y")))).code == 422
        # The token lasts as long as the Node, and not for another one of the same name.
        await api.delete(f"{NODES}/n1")
        assert (await refused(driver.patch(f"{CLAIMS}/of-n1/status", told("n1")))).code == 401
        await api.post(NODES, {"metadata": {"name": "n1"}})
        assert (await refused(driver.patch(f"{CLAIMS}/of-n1/status", told("n1")))).code == 401

    play(scene)


UNREADABLE = (
    "/apis/resource.k8s.io/v1/resourceclaimtemplates",
    "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates/t",
    "/apis/resource.k8s.io/v1/deviceclasses",
    "/apis/resource.k8s.io/v1/devicetaintrules",
    "/apis/resource.k8s.io/v1/resourceslices",
    "/apis/resource.k8s.io/v1/resourceslices/n2",
    "/apis/resource.k8s.io/v1/resourceslices/n2?watch=true",
    "/apis/resource.k8s.io/v1/watch/resourceslices",
    "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/of-n2",
    "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/of-n2/status",
    LEASES.format("kube-node-lease"),
    LEASES.format("kube-node-lease") + "/n2",
    LEASES.format("kube-system") + "/n1",
    "/apis/coordination.k8s.io/v1/leases?fieldSelector=metadata.name=n1",
    "/api/v1/namespaces",
    "/api/v1/namespaces/default/endpoints",
    "/api/v1/events",
    "/api/v1/persistentvolumeclaims",
    "/api/v1/nodes/n2",
    "/api/v1/nodes?watch=true",
    "/api/v1/watch/pods",
    f"{PODS}/other/log",
    f"{PODS}/other",
    f"{SECRETS}/other?watch=true",
    "/api/v1/watch/namespaces/default/secrets/other",
    "/api/v1/secrets?fieldSelector=metadata.name=mine",
    f"{STORAGE}/csinodes",
    f"{STORAGE}/csinodes/n2",
    f"{STORAGE}/volumeattachments",
    f"{STORAGE}/volumeattachments/of-n2",
    f"{STORAGE}/storageclasses",
    "/apis/apps/v1/daemonsets",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
)


def test_what_a_node_may_not_read() -> None:
    async def scene(api: Api) -> None:
        for name in ("n1", "n2"):
            await slice_of(api, name)
            await allocated(api, f"of-{name}", name)
            spec = {"attacher": "a.b", "nodeName": name, "source": {"persistentVolumeName": "v"}}
            await api.post(f"{STORAGE}/volumeattachments", {"metadata": {"name": f"of-{name}"}, "spec": spec})
        for name in ("mine", "other"):
            await api.post(SECRETS, {"metadata": {"name": name}})
            volumes = [{"name": "v", "secret": {"secretName": name}}]
            claims = [{"name": "c", "resourceClaimName": "of-n1" if name == "mine" else "of-n2"}]
            await bound(api, name, "n1" if name == "mine" else "n2", volumes=volumes, resourceClaims=claims)
        for path in UNREADABLE:
            error = await refused(node_of(api).get(path))
            # 404: the server has no such endpoint for anybody.
            assert error.code == 403 or (error.code == 404 and (await refused(api.get(path))).code == 404), path

    play(scene)


def test_a_node_reads_its_own_lease_attachments_and_slices() -> None:
    async def scene(api: Api) -> None:
        node = node_of(api)
        mine = LEASES.format("kube-node-lease")
        # A path that is one's own does not open another name.
        for name in ("n2", "n9"):
            error = await refused(node.put(f"{mine}/n1", {"metadata": {"name": name}, "spec": {}}))
            assert (error.code, "does not match the name on the URL" in str(error)) == (400, True)
        assert (await api.get(mine))["items"] == []
        await node.post(mine, {"metadata": {"name": "n1"}, "spec": {}})
        assert (await node.get(f"{mine}/n1"))["metadata"]["name"] == "n1"
        spec = {"attacher": "a.b", "nodeName": "n1", "source": {"persistentVolumeName": "v"}}
        await api.post(f"{STORAGE}/volumeattachments", {"metadata": {"name": "a"}, "spec": spec})
        assert (await node.get(f"{STORAGE}/volumeattachments/a"))["spec"]["nodeName"] == "n1"
        await api.post(SECRETS, {"metadata": {"name": "other"}})
        await api.post(SECRETS, {"metadata": {"name": "mine"}})
        await bound(api, "p", volumes=[{"name": "v", "secret": {"secretName": "mine"}}])
        # Both have to hold, so nothing is found.
        for chosen in ("metadata.name=mine,metadata.name=other", "metadata.name=other,metadata.name=mine"):
            answer = await node.ask(Request("GET", SECRETS, (("fieldSelector", chosen),), {}, b""))
            assert answer.status == 403 or json.loads(answer.body)["items"] == []
        await slice_of(node, "n1")
        (found,) = (await node.get(f"{SLICES}?fieldSelector=spec.nodeName=n1"))["items"]
        assert found["metadata"]["name"] == "n1"

    play(scene)


def test_who_is_no_certain_node_has_none_of_its_rights() -> None:
    async def scene(api: Api) -> None:
        await api.post(SECRETS, {"metadata": {"name": "s"}})
        for name in ("somebody", "system:node:", "system:nodes"):
            nobody = api.as_user(name, "system:nodes")
            for path in (SECRETS, f"{SECRETS}/s", PODS, NODES):
                assert (await refused(nobody.get(path))).code == 403, (name, path)
        assert (await refused(api.as_user("system:node:n1").get(f"{PODS}?fieldSelector=spec.nodeName=n1"))).code == 403

    play(scene)


def test_secrets_of_persistent_volumes() -> None:
    async def scene(api: Api) -> None:
        node = node_of(api)
        elsewhere = "/api/v1/namespaces/storage/secrets"
        await api.post("/api/v1/namespaces", {"metadata": {"name": "storage"}})
        for name in ("publish", "provision", "other"):
            await api.post(elsewhere, {"metadata": {"name": name}})
        for name in ("rbd", "foreign"):
            await api.post(SECRETS, {"metadata": {"name": name}})

        def volume(name: str, holder: str, **source: Any) -> Object:
            spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], **source}
            reference = {"namespace": "default", "name": holder}
            return {"metadata": {"name": name}, "spec": {**spec, "claimRef": reference}}

        references = {
            "nodePublishSecretRef": {"namespace": "storage", "name": "publish"},
            "controllerPublishSecretRef": {"namespace": "storage", "name": "provision"},
        }
        csi = {"driver": "d.e", "volumeHandle": "h", **references}
        rbd = {"monitors": ["m"], "image": "i", "secretRef": {"name": "rbd"}}
        foreign = {**csi, "nodePublishSecretRef": {"namespace": "default", "name": "foreign"}}
        for made in (
            volume("v1", "data", csi=csi),
            volume("v2", "more", rbd=rbd),
            # Bound to the claim of somebody else, whatever a claim says.
            volume("v3", "theirs", csi=foreign),
        ):
            await api.post("/api/v1/persistentvolumes", made)
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        for name, of in (("data", "v1"), ("more", "v2"), ("greedy", "v3")):
            body = {"metadata": {"name": name}, "spec": {**spec, "volumeName": of}}
            await api.post("/api/v1/namespaces/default/persistentvolumeclaims", body)
        assert (await refused(node.get(f"{elsewhere}/publish"))).code == 403
        claims = [{"name": n, "persistentVolumeClaim": {"claimName": n}} for n in ("data", "more", "greedy")]
        await bound(api, "p", volumes=claims)
        for path in (f"{elsewhere}/publish", f"{SECRETS}/rbd", "/api/v1/persistentvolumes/v1"):
            assert (await node.get(path))["metadata"]["name"] == path.rpartition("/")[2]
        for path in (
            f"{elsewhere}/provision",
            f"{elsewhere}/other",
            f"{SECRETS}/foreign",
            f"{SECRETS}/publish",
            "/api/v1/persistentvolumes/v3",
        ):
            assert (await refused(node.get(path))).code == 403, path
        assert (await refused(node_of(api, "n2").get(f"{elsewhere}/publish"))).code == 403

    play(scene)


def test_a_node_does_not_come_back_without_its_taints() -> None:
    async def scene(api: Api) -> None:
        node = node_of(api)
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "u"}
        error = await refused(node.post(NODES, {"metadata": {"name": "n1", "ownerReferences": [owner]}}))
        assert "modify ownerReferences" in str(error)
        await node.post(NODES, {"metadata": {"name": "n1"}})
        path = f"{NODES}/n1"
        await api.patch(path, {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}})
        for body in (
            {"metadata": {"ownerReferences": [owner]}},
            {"spec": {"taints": None}},
            {"metadata": {"labels": {"node-restriction.kubernetes.io/tenant": "a"}}},
        ):
            assert (await refused(node.patch(path, body))).code == 403
        label = {"metadata": {"labels": {"node-restriction.kubernetes.io/tenant": "a"}}}
        assert (await refused(node.patch(f"{path}/status", label))).code == 403
        assert "ownerReferences" not in (await node.patch(f"{path}/status", {"status": {}}))["metadata"]
        assert (await refused(node.delete(path))).code == 403
        assert (await refused(node.delete(f"{NODES}?fieldSelector=metadata.name=n1"))).code == 403

        # However it is written.
        apply = {"content-type": "application/apply-patch+yaml"}
        whole = {"apiVersion": "v1", "kind": "Node", **await api.get(path)}
        for change in ({"labels": {"k8s.io/x": "y"}}, {"ownerReferences": [owner]}):
            applied = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", **change}}
            sent = node.send("PATCH", f"{path}?fieldManager=x&force=true", applied, apply)
            assert (await refused(sent)).code == 403
            assert (await refused(node.put(path, {**whole, "metadata": {**whole["metadata"], **change}}))).code == 403
        assert (await refused(node.put(path, {**whole, "spec": {}}))).code == 403

    play(scene)


def test_a_mirror_pod_is_the_nodes_alone() -> None:
    async def scene(api: Api) -> None:
        node = node_of(api)
        uid = (await node.post(NODES, {"metadata": {"name": "n1"}}))["metadata"]["uid"]
        own = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid, "controller": True}

        def mirror(*owners: Object, **spec: Any) -> Object:
            body = pod("m", nodeName="n1", **spec)
            body["metadata"] |= {"annotations": MIRROR, "ownerReferences": [*owners]}
            return body

        controller = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}
        projected: list[Object] = [
            {"serviceAccountToken": {"path": "t"}},
            {"clusterTrustBundle": {"name": "b", "path": "t"}},
        ]
        greedy = [[{"name": "v", "projected": {"sources": [source]}}] for source in projected]
        for body, said in (
            (mirror(), "single owner"),
            (mirror(own, controller), "single owner"),
            (mirror(controller), "owner reference set to itself"),
            (mirror({**own, "controller": False}), "controller owner"),
            (mirror({**own, "uid": "other"}), "UID mismatch"),
            (mirror({**own, "blockOwnerDeletion": True}), "blockOwnerDeletion"),
            (mirror(own, volumes=greedy[0]), "reference serviceaccounts"),
            (mirror(own, volumes=greedy[1]), "reference clustertrustbundles"),
            (mirror(own, serviceAccountName="robot"), "reference serviceaccounts"),
        ):
            error = await refused(node.post(PODS, body))
            assert (error.code, said in str(error)) == (403, True), error
        made = await node.post(PODS, mirror(own))
        # No token of whatever account the server gave it.
        account = "/api/v1/namespaces/default/serviceaccounts"
        await api.post(account, {"metadata": {"name": "default"}})
        asked = {"spec": {"boundObjectRef": {"kind": "Pod", "name": "m", "uid": made["metadata"]["uid"]}}}
        error = await refused(node.post(f"{account}/default/token", asked))
        assert (error.code, "mirror pod" in str(error)) == (403, True)
        unmasked = {"metadata": {"annotations": {"kubernetes.io/config.mirror": None}}}
        assert (await refused(node.patch(f"{PODS}/m/status", unmasked))).code == 403
        assert (await refused(node.patch(f"{PODS}/m", unmasked))).code == 403

    play(scene)


def test_a_node_hides_no_pod_and_attracts_nobody_by_labels() -> None:
    async def scene(api: Api) -> None:
        node = node_of(api)
        await bound(api, "p")
        for meta in ({"labels": {"app": "bank"}}, {"annotations": MIRROR}):
            error = await refused(node.patch(f"{PODS}/p/status", {"metadata": meta}))
            assert error.code == 403
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}
        told = await node.patch(f"{PODS}/p/status", {"metadata": {"ownerReferences": [owner]}, "status": {}})
        assert "ownerReferences" not in told["metadata"]

    play(scene)


def test_a_node_leaves_pods_of_others_alone() -> None:
    async def scene(api: Api) -> None:
        node = node_of(api)
        await bound(api, "other", "n2")
        await api.post(PODS, pod("waiting"))
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction"}
        for name in ("other", "waiting"):
            body = {**eviction, "metadata": {"name": name, "namespace": "default"}}
            assert (await refused(node.post(f"{PODS}/{name}/eviction", body))).code == 403
            assert (await refused(node.delete(f"{PODS}/{name}"))).code == 403
            assert (await refused(node.patch(f"{PODS}/{name}/status", {"status": {"phase": "Failed"}}))).code == 403
            target = {"target": {"kind": "Node", "name": "n1"}}
            assert (await refused(node.post(f"{PODS}/{name}/binding", target))).code == 403
        assert (await refused(node.delete(f"{PODS}?fieldSelector=spec.nodeName=n1"))).code == 403
        await bound(api, "mine")
        body = {**eviction, "metadata": {"name": "mine", "namespace": "default"}}
        await node.post(f"{PODS}/mine/eviction", body)

    play(scene)


def test_a_node_keeps_its_slices_to_itself() -> None:
    async def scene(api: Api) -> None:
        node = node_of(api)
        for name in ("n1", "n2"):
            await slice_of(api, name)
        for body in ({"spec": {"nodeName": "n2"}}, {"spec": {"nodeName": None, "allNodes": True}}):
            assert (await refused(node.patch(f"{SLICES}/n1", body))).code in (403, 422)
        assert (await refused(node.patch(f"{SLICES}/n2", {"metadata": {"labels": {"a": "b"}}}))).code == 403
        assert (await refused(node.delete(f"{SLICES}/n2"))).code == 403
        foreign = await api.get(f"{SLICES}/n2")
        foreign["metadata"] = {"name": "new"}
        assert (await refused(node.put(f"{SLICES}/new", foreign))).code in (403, 404)
        applied = {**foreign, "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
        headers = {"content-type": "application/apply-patch+yaml"}
        path = f"{SLICES}/new"
        assert (await refused(node.send("PATCH", f"{path}?fieldManager=x", applied, headers))).code == 403
        assert [item["metadata"]["name"] for item in (await api.get(SLICES))["items"]] == ["n1", "n2"]

    play(scene)


def test_tokens_are_for_those_whom_the_pod_speaks_to() -> None:
    async def scene(api: Api) -> None:
        node = node_of(api)
        accounts = "/api/v1/namespaces/default/serviceaccounts"
        await api.post(accounts, {"metadata": {"name": "default"}})
        drivers = {"metadata": {"name": "d.e"}, "spec": {"tokenRequests": [{"audience": "store"}]}}
        await api.post(f"{STORAGE}/csidrivers", drivers)
        source = {"serviceAccountToken": {"path": "t", "audience": "vault", "expirationSeconds": 600}}
        vault = {"name": "v", "projected": {"sources": [source]}}
        plain = (await bound(api, "plain"))["metadata"]["uid"]
        with_vault = (await bound(api, "vault", volumes=[vault]))["metadata"]["uid"]
        closed = (await bound(api, "closed", automountServiceAccountToken=False))["metadata"]["uid"]
        await api.post(accounts, {"metadata": {"name": "still"}, "automountServiceAccountToken": False})
        still = (await bound(api, "still", serviceAccountName="still"))["metadata"]["uid"]
        stored = (await bound(api, "stored", volumes=[{"name": "v", "csi": {"driver": "d.e"}}]))["metadata"]["uid"]
        for name, uid, audiences, given in (
            ("plain", plain, [], True),
            ("plain", plain, ["vault"], False),
            ("vault", with_vault, ["vault"], True),
            ("vault", with_vault, [], True),
            ("vault", with_vault, ["vault", "store"], False),
            ("closed", closed, [], False),
            ("still", still, [], False),
            ("stored", stored, ["store"], True),
        ):
            spec = {"audiences": audiences, "boundObjectRef": {"kind": "Pod", "name": name, "uid": uid}}
            account = "still" if name == "still" else "default"
            asked = node.post(f"{accounts}/{account}/token", {"spec": spec})
            if given:
                assert (await asked)["status"]["token"], name
            else:
                error = await refused(asked)
                assert (error.code, "audience" in str(error)) == (403, True), (name, audiences)

    play(scene)


def test_a_node_makes_nothing_that_gives_rights() -> None:
    async def scene(api: Api) -> None:
        node = node_of(api)
        rbac, signing = "/apis/rbac.authorization.k8s.io/v1", "/apis/certificates.k8s.io"
        subject = {"kind": "User", "name": "system:node:n1", "apiGroup": "rbac.authorization.k8s.io"}
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
        role = {"metadata": {"name": "x"}, "roleRef": ref, "subjects": [subject]}
        token = {"metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token"}
        bundle = {"metadata": {"name": "x"}, "spec": {"trustBundle": "x"}}
        for path, body in (
            (f"{rbac}/clusterrolebindings", role),
            ("/api/v1/namespaces/kube-system/secrets", token),
            (CONFIGMAPS, {"metadata": {"name": "x"}}),
            (f"{signing}/v1/clustertrustbundles", bundle),
            ("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", {"metadata": {"name": "x"}}),
        ):
            assert (await refused(node.post(path, body))).code in (403, 404), path
        spec = {"request": "YQ==", "signerName": "kubernetes.io/kube-apiserver-client-kubelet"}
        body = {"metadata": {"name": "c"}, "spec": {**spec, "usages": ["client auth"], "groups": ["system:masters"]}}
        made = await node.post(f"{signing}/v1/certificatesigningrequests", body)
        assert made["spec"]["username"] == "system:node:n1"
        approved = {"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "r", "message": ""}]}}
        path = f"{signing}/v1/certificatesigningrequests/c"
        assert (await refused(node.patch(f"{path}/approval", approved))).code == 403
        assert (await refused(node.patch(f"{path}/status", {"status": {"certificate": "YQ=="}}))).code == 403
        masked = Request("GET", SECRETS, (), {"impersonate-user": "system:kube-controller-manager"}, b"")
        assert (await node.ask(masked)).status == 403

    play(scene)
