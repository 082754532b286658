"""Who may do what: identities, the parts of a plane, RBAC objects, reviews."""

from __future__ import annotations

import asyncio
from typing import Any

from drakkar.api.wire import Request
from tests.unit.apiserver.core.serving import Api, Object
from tests.unit.apiserver.core.test_writes import CLAIMS, CONFIGMAPS, PODS, SLICES, claim, play, pod, refused

RBAC = "/apis/rbac.authorization.k8s.io/v1"
CSINODES = "/apis/storage.k8s.io/v1/csinodes"


async def code(api: Api, method: str, path: str, headers: dict[str, str] | None = None, peer: Any = None) -> int:
    request = Request(method, path, (), headers or {}, b"", peer)
    return (await api.server.handle(request)).status


def test_anonymous_sees_health_and_version_only() -> None:
    async def scene(api: Api) -> None:
        for path in ("/healthz", "/livez", "/readyz", "/version", "/readyz/ping"):
            assert await code(api, "GET", path) == 200
        for path in ("/api", "/apis", "/openapi/v3", "/metrics", CONFIGMAPS):
            assert await code(api, "GET", path) == 401
        assert await code(api, "GET", CONFIGMAPS, {"authorization": "Bearer wrong"}) == 401

    play(scene)


def test_certificates_name_user_and_groups() -> None:
    async def scene(api: Api) -> None:
        assert await code(api, "GET", CONFIGMAPS, peer=("me", ("system:masters",))) == 200
        assert await code(api, "GET", CONFIGMAPS, peer=("me", ())) == 403
        assert await code(api, "GET", "/api", peer=("me", ())) == 200

    play(scene)


def test_denials_have_upstreams_words() -> None:
    async def scene(api: Api) -> None:
        nobody = api.as_user("nobody")
        error = await refused(nobody.get(PODS))
        assert str(error) == (
            'pods is forbidden: User "nobody" cannot list resource "pods" in API group "" in the namespace "default"'
        )
        assert error.status["details"] == {"kind": "pods"}
        error = await refused(nobody.get(f"{SLICES}/x"))
        assert str(error) == (
            'resourceslices.resource.k8s.io "x" is forbidden: User "nobody" cannot get resource "resourceslices" in '
            'API group "resource.k8s.io" at the cluster scope'
        )
        masked = await refused(api.get(PODS, **{"impersonate-user": "nobody"}))
        assert masked.code == 403

    play(scene)


def test_a_node_writes_only_what_is_its_own() -> None:
    async def scene(api: Api) -> None:
        node = api.as_user("system:node:n1", "system:nodes")
        await node.post("/api/v1/nodes", {"metadata": {"name": "n1"}})
        await api.post("/api/v1/nodes", {"metadata": {"name": "n2"}})
        await node.patch("/api/v1/nodes/n1/status", {"status": {"phase": "Running"}})
        assert (await refused(node.patch("/api/v1/nodes/n2/status", {"status": {}}))).code == 403
        for name in ("n1", "n2"):
            body = {"metadata": {"name": name}, "spec": {"drivers": []}}
            assert name == "n1" or (await refused(node.post(CSINODES, body))).code == 403
            await (node if name == "n1" else api).post(CSINODES, body)
        assert (await refused(node.delete(f"{CSINODES}/n2"))).code == 403
        leases = "/apis/coordination.k8s.io/v1/namespaces"
        await node.put(f"{leases}/kube-node-lease/leases/n1", {"metadata": {"name": "n1"}, "spec": {}})
        assert (
            await refused(node.put(f"{leases}/kube-node-lease/leases/n2", {"metadata": {"name": "n2"}}))
        ).code == 403
        for name, where in (("mine", "n1"), ("other", "n2")):
            await api.post(PODS, pod(name))
            await api.post(f"{PODS}/{name}/binding", {"target": {"kind": "Node", "name": where}})
        await node.patch(f"{PODS}/mine/status", {"status": {"phase": "Running"}})
        assert (await refused(node.patch(f"{PODS}/other/status", {"status": {"phase": "Running"}}))).code == 403
        assert (await refused(node.delete(f"{PODS}/other"))).code == 403
        assert (await refused(node.post(CONFIGMAPS, {"metadata": {"name": "a"}}))).code == 403
        assert (await refused(node.get("/api/v1/secrets"))).code == 403
        scheduler = api.as_user("system:kube-scheduler")
        assert (await refused(scheduler.delete(f"{leases}/kube-node-lease/leases/n1"))).code == 403
        assert (await refused(scheduler.get("/api/v1/secrets"))).code == 403

    play(scene)


def test_a_node_reads_the_secrets_of_its_own_pods_only() -> None:
    async def scene(api: Api) -> None:
        node = api.as_user("system:node:n1", "system:nodes")
        secrets = "/api/v1/namespaces/default/secrets"
        for name in ("mounted", "variable", "unrelated"):
            await api.post(secrets, {"metadata": {"name": name}})
        mine = pod("mine")
        mine["spec"]["volumes"] = [{"name": "v", "secret": {"secretName": "mounted"}}]
        source = {"secretKeyRef": {"name": "variable", "key": "k"}}
        mine["spec"]["containers"][0]["env"] = [{"name": "V", "valueFrom": source}]
        await api.post(PODS, mine)
        assert (await refused(node.get(f"{secrets}/mounted"))).code == 403
        await api.post(f"{PODS}/mine/binding", {"target": {"kind": "Node", "name": "n1"}})
        for name in ("mounted", "variable"):
            assert (await node.get(f"{secrets}/{name}"))["metadata"]["name"] == name
        error = await refused(node.get(f"{secrets}/unrelated"))
        assert (error.code, "no relationship found" in str(error)) == (403, True)
        assert (await refused(node.get(secrets))).code == 403
        other = api.as_user("system:node:n2", "system:nodes")
        assert (await refused(other.get(f"{secrets}/mounted"))).code == 403

    play(scene)


def test_roles_grant_and_are_taken_back_at_once() -> None:
    async def scene(api: Api) -> None:
        user = api.as_user("dev", "team")
        role = {"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]}
        await api.post(f"{RBAC}/namespaces/default/roles", role)
        assert (await refused(user.get(PODS))).code == 403
        binding = {
            "metadata": {"name": "b"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
            "subjects": [{"kind": "Group", "name": "team", "apiGroup": "rbac.authorization.k8s.io"}],
        }
        await api.post(f"{RBAC}/namespaces/default/rolebindings", binding)
        assert (await user.get(PODS))["items"] == []
        assert (await refused(user.get("/api/v1/pods"))).code == 403
        assert (await refused(user.post(PODS, pod("p")))).code == 403
        review = {"spec": {"resourceAttributes": {"verb": "list", "resource": "pods", "namespace": "default"}}}
        asked = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        why = 'RBAC: allowed by RoleBinding "b/default" of Role "r" to Group "team"'
        assert (await user.post(asked, review))["status"] == {"allowed": True, "reason": why}
        await api.delete(f"{RBAC}/namespaces/default/rolebindings/b")
        assert (await refused(user.get(PODS))).code == 403
        assert (await user.post(asked, review))["status"] == {"allowed": False}
        who = await user.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
        assert who["status"]["userInfo"]["username"] == "dev"

    play(scene)


def test_nobody_gives_away_rights_he_does_not_have() -> None:
    async def scene(api: Api) -> None:
        binding = {
            "metadata": {"name": "b"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
            "subjects": [{"kind": "User", "name": "dev", "apiGroup": "rbac.authorization.k8s.io"}],
        }
        await api.post(f"{RBAC}/clusterrolebindings", binding)
        user = api.as_user("dev")
        await user.post(CONFIGMAPS, {"metadata": {"name": "a"}})
        role = {"metadata": {"name": "r"}, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}
        assert (await refused(user.post(f"{RBAC}/namespaces/default/roles", role))).code == 403

    play(scene)


def test_rights_that_one_has_may_be_handed_on() -> None:
    async def scene(api: Api) -> None:
        pods = {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["get", "list"]}
        roles = {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["*"], "verbs": ["create", "update", "patch"]}
        await api.post(f"{RBAC}/clusterroles", {"metadata": {"name": "lead"}, "rules": [pods, roles]})
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "lead"}
        subjects = [{"kind": "User", "name": "lead"}]
        await api.post(f"{RBAC}/clusterrolebindings", {"metadata": {"name": "b"}, "roleRef": ref, "subjects": subjects})
        lead = api.as_user("lead")
        path = f"{RBAC}/namespaces/default/roles"
        named = {**pods, "resources": ["pods"], "resourceNames": ["a"], "verbs": ["get"]}
        await lead.post(path, {"metadata": {"name": "same"}, "rules": [pods]})
        await lead.post(path, {"metadata": {"name": "less"}, "rules": [named]})
        for more in (
            {**pods, "verbs": ["get", "delete"]},
            {**pods, "resources": ["*"]},
            {**pods, "resources": ["pods/log"]},
            {**pods, "apiGroups": ["apps"]},
        ):
            error = await refused(lead.post(path, {"metadata": {"name": "more"}, "rules": [more]}))
            assert (error.code, "attempting to grant RBAC permissions not currently held" in str(error)) == (403, True)
        # What is changed counts, not what stood there before.
        await api.post(path, {"metadata": {"name": "wide"}, "rules": [{**pods, "verbs": ["*"]}]})
        await lead.patch(f"{path}/wide", {"metadata": {"labels": {"a": "b"}}})
        assert (await refused(lead.patch(f"{path}/same", {"rules": [{**pods, "verbs": ["*"]}]}))).code == 403
        binding = {"metadata": {"name": "x"}, "roleRef": ref, "subjects": [{"kind": "User", "name": "eve"}]}
        bindings = f"{RBAC}/namespaces/default/rolebindings"
        # A role may be bound by who has all of it, or the verb bind.
        await lead.post(bindings, binding)
        binding["roleRef"] = {**ref, "name": "cluster-admin"}
        binding["metadata"]["name"] = "y"
        assert (await refused(lead.post(bindings, binding))).code == 403
        may = {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "verbs": ["bind"]}
        rules = [pods, roles, {**may, "resourceNames": ["cluster-admin"]}]
        await api.patch(f"{RBAC}/clusterroles/lead", {"rules": rules})
        await lead.post(bindings, binding)

    play(scene)


def test_roles_of_charts_are_added_to_those_for_users() -> None:
    async def scene(api: Api) -> None:
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"}
        subjects = [{"kind": "User", "name": "dev"}]
        binding = {"metadata": {"name": "b"}, "roleRef": ref, "subjects": subjects}
        await api.post(f"{RBAC}/namespaces/default/rolebindings", binding)
        dev = api.as_user("dev")
        capacities = "/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities"
        assert (await refused(dev.get(capacities))).code == 403
        role = {
            "metadata": {"name": "chart-view", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
            "rules": [{"apiGroups": ["storage.k8s.io"], "resources": ["csistoragecapacities"], "verbs": ["list"]}],
        }
        await api.post(f"{RBAC}/clusterroles", role)
        # View is part of edit, edit of admin.
        await dev.get(capacities)
        await dev.post(CONFIGMAPS, {"metadata": {"name": "a"}})
        assert (await refused(dev.post(capacities, {"metadata": {"name": "l"}}))).code == 403

    play(scene)


def test_a_node_gets_tokens_of_its_own_pods_only() -> None:
    async def scene(api: Api) -> None:
        node = api.as_user("system:node:n1", "system:nodes")
        accounts = "/api/v1/namespaces/default/serviceaccounts"
        for name in ("robot", "other"):
            await api.post(accounts, {"metadata": {"name": name}})
        uids = {}
        for name, where in (("mine", "n1"), ("foreign", "n2")):
            made = await api.post(PODS, pod(name, serviceAccountName="robot"))
            await api.post(f"{PODS}/{name}/binding", {"target": {"kind": "Node", "name": where}})
            uids[name] = made["metadata"]["uid"]

        def asked(name: str, **more: str) -> Object:
            bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uids[name], **more}
            return {"spec": {"boundObjectRef": bound}}

        assert (await node.post(f"{accounts}/robot/token", asked("mine")))["status"]["token"]
        for account, body, said in (
            ("robot", {"spec": {}}, "not bound to a pod"),
            ("robot", asked("foreign"), "scheduled on a different node"),
            ("robot", asked("mine", uid="x"), "does not exist"),
            ("other", asked("mine"), "not the pod's"),
        ):
            error = await refused(node.post(f"{accounts}/{account}/token", body))
            assert (error.code, said in str(error)) == (403, True)

    play(scene)


def test_a_node_sets_only_labels_that_are_its_to_set() -> None:
    async def scene(api: Api) -> None:
        node = api.as_user("system:node:n1", "system:nodes")
        own = {"kubernetes.io/hostname": "n1", "node.kubernetes.io/x": "y", "example.com/rack": "r"}
        await node.post("/api/v1/nodes", {"metadata": {"name": "n1", "labels": own}})
        path = "/api/v1/nodes/n1"
        for key in ("node-role.kubernetes.io/control-plane", "a.node-restriction.kubernetes.io/b", "k8s.io/x"):
            error = await refused(node.patch(path, {"metadata": {"labels": {key: ""}}}))
            assert (error.code, key in str(error)) == (403, True)
            await api.patch(path, {"metadata": {"labels": {key: ""}}})
        await node.patch(path, {"metadata": {"labels": {"example.com/rack": "s"}}})
        taints = {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}
        assert (await refused(node.patch(path, taints))).code == 403
        await api.patch(path, taints)

    play(scene)


def test_priorities_of_groups_and_one_default() -> None:
    async def scene(api: Api) -> None:
        classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
        await api.post(classes, {"metadata": {"name": "high"}, "value": 100})
        await api.post(classes, {"metadata": {"name": "usual"}, "value": 5, "globalDefault": True})
        second = {"metadata": {"name": "second"}, "value": 6, "globalDefault": True}
        assert "PriorityClass usual is already marked as default" in str(await refused(api.post(classes, second)))
        assert (await api.post(PODS, pod("p")))["spec"]["priority"] == 5
        groups = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
        group = {
            "metadata": {"name": "g"},
            "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}, "priorityClassName": "high"},
        }
        made = await api.post(groups, group)
        assert made["spec"]["priority"] == 100
        assert made["metadata"]["finalizers"] == ["scheduling.k8s.io/podgroup-protection"]
        group["metadata"]["name"] = "h"
        group["spec"]["priorityClassName"] = "none"
        assert "no PriorityClass with name none was found" in str(await refused(api.post(groups, group)))

    play(scene)


def test_certificates_are_approved_and_signed_by_those_who_may_for_their_signer() -> None:
    async def scene(api: Api) -> None:
        requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
        for name, signer in (("a", "example.com/serving"), ("b", "other.com/x")):
            spec = {"request": "YQ==", "signerName": signer, "usages": ["client auth"]}
            await api.post(requests, {"metadata": {"name": name}, "spec": spec})
        group = "certificates.k8s.io"
        writes = ["certificatesigningrequests/approval", "certificatesigningrequests/status"]
        rules = [
            {"apiGroups": [group], "resources": writes, "verbs": ["update", "patch"]},
            {"apiGroups": [group], "resources": ["signers"], "resourceNames": ["example.com/*"], "verbs": ["approve"]},
        ]
        await api.post(f"{RBAC}/clusterroles", {"metadata": {"name": "r"}, "rules": rules})
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"}
        subjects = [{"kind": "User", "name": "ann"}]
        await api.post(f"{RBAC}/clusterrolebindings", {"metadata": {"name": "b"}, "roleRef": ref, "subjects": subjects})
        ann = api.as_user("ann")
        condition = {"type": "Approved", "status": "True", "reason": "R", "message": ""}
        approval = {"status": {"conditions": [condition]}}
        await ann.patch(f"{requests}/a/approval", approval)
        error = await refused(ann.patch(f"{requests}/b/approval", approval))
        assert 'not permitted to approve requests with signerName "other.com/x"' in str(error)
        error = await refused(ann.patch(f"{requests}/a/status", {"status": {"certificate": "YQ=="}}))
        assert "not permitted to sign" in str(error)
        parts = api.as_user("system:kube-controller-manager")
        await parts.patch(f"{requests}/a/status", {"status": {"certificate": "YQ=="}})

    play(scene)


def test_acting_as_another_one() -> None:
    async def scene(api: Api) -> None:
        who = "/apis/authentication.k8s.io/v1/selfsubjectreviews"

        async def as_other(of: Api, **headers: str) -> Object:
            named = {f"impersonate-{key.replace('_', '-')}": value for key, value in headers.items()}
            return (await of.send("POST", who, {}, named))["status"]["userInfo"]

        info = await as_other(api, user="bob", uid="7", group="dev", extra_scopes="read")
        assert (info["username"], info["uid"], info["extra"]) == ("bob", "7", {"scopes": ["read"]})
        assert info["groups"] == ["dev", "system:authenticated"]
        info = await as_other(api, user="system:serviceaccount:default:robot")
        assert info["groups"] == ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]
        rule = {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["bob"]}
        await api.post(f"{RBAC}/clusterroles", {"metadata": {"name": "r"}, "rules": [rule]})
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"}
        subjects = [{"kind": "User", "name": "eve"}]
        await api.post(f"{RBAC}/clusterrolebindings", {"metadata": {"name": "b"}, "roleRef": ref, "subjects": subjects})
        eve = api.as_user("eve")
        assert (await as_other(eve, user="bob"))["username"] == "bob"
        for more in (
            {"user": "ann"},
            {"user": "bob", "group": "system:masters"},
            {"user": "bob", "uid": "1"},
            {"user": "bob", "extra_scopes": "all"},
            {"user": "system:serviceaccount:default:robot"},
        ):
            assert (await refused(as_other(eve, **more))).code == 403

    play(scene)


def test_parts_of_a_claims_status_have_owners() -> None:
    async def scene(api: Api) -> None:
        scheduler = api.as_user("system:kube-scheduler")
        driver = api.as_user("drakkar:driver:tpu", "drakkar:drivers")
        await api.post(CLAIMS, claim("c"))
        devices = {"results": [{"request": "r", "driver": "d.example.com", "pool": "p", "device": "x"}]}
        allocation = {"status": {"allocation": {"devices": devices}}}
        error = await refused(driver.patch(f"{CLAIMS}/c/status", allocation))
        assert error.code == 422
        assert "resourceclaims/binding" in str(error)
        await scheduler.patch(f"{CLAIMS}/c/status", allocation)
        told = {"status": {"devices": [{"driver": "d.example.com", "pool": "p", "device": "x"}]}}
        await driver.patch(f"{CLAIMS}/c/status", told)

    play(scene)


def test_the_parts_of_a_plane_can_work() -> None:
    async def run() -> None:
        api = await Api.start()
        scheduler = api.as_user("system:kube-scheduler")
        controllers = api.as_user("system:kube-controller-manager")
        hollow = api.as_user("drakkar:hollow-nodes", "drakkar:hollow-nodes")
        driver = api.as_user("drakkar:driver:tpu", "drakkar:drivers")
        await hollow.post("/api/v1/nodes", {"metadata": {"name": "n1"}})
        await controllers.post(PODS, pod("p"))
        await scheduler.post(f"{PODS}/p/binding", {"target": {"kind": "Node", "name": "n1"}})
        await hollow.patch(f"{PODS}/p/status", {"status": {"phase": "Running"}})
        await scheduler.patch(f"{PODS}/p/status", {"status": {"nominatedNodeName": ""}})
        event = {"metadata": {"name": "e"}, "involvedObject": {}, "reason": "x"}
        await scheduler.post("/api/v1/namespaces/default/events", event)
        pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "d.example.com", "allNodes": True, "pool": pool, "devices": [{"name": "x"}]}
        await driver.post(SLICES, {"metadata": {"name": "s"}, "spec": spec})
        await driver.delete(SLICES)
        await controllers.delete(f"{PODS}/p", {"gracePeriodSeconds": 0})
        await api.close()

    asyncio.run(run())


def test_tokens_of_service_accounts_expire() -> None:
    async def scene(api: Api) -> None:
        accounts = "/api/v1/namespaces/default/serviceaccounts"
        await api.post(accounts, {"metadata": {"name": "robot"}})
        short = await refused(api.post(f"{accounts}/robot/token", {"spec": {"expirationSeconds": 5}}))
        assert short.code == 422
        answer = await api.post(f"{accounts}/robot/token", {"spec": {"expirationSeconds": 600}})
        robot = Api(api.server, api.clock, answer["status"]["token"])
        who = await robot.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
        info = who["status"]["userInfo"]
        assert info["username"] == "system:serviceaccount:default:robot"
        assert "system:serviceaccounts:default" in info["groups"]
        review = {"spec": {"token": answer["status"]["token"]}}
        told = await api.post("/apis/authentication.k8s.io/v1/tokenreviews", review)
        assert told["status"]["authenticated"] is True
        await api.clock.pass_(601)
        assert (await refused(robot.get("/api"))).code == 401

    play(scene)


def test_a_node_reads_only_what_its_own_pods_refer_to() -> None:
    async def scene(api: Api) -> None:
        node = api.as_user("system:node:n1", "system:nodes")
        configmaps, secrets = CONFIGMAPS, "/api/v1/namespaces/default/secrets"
        for name in ("mounted", "unrelated"):
            await api.post(configmaps, {"metadata": {"name": name}})
            await api.post(secrets, {"metadata": {"name": name}})
        volumes = [
            {"name": "a", "configMap": {"name": "mounted"}},
            {"name": "b", "secret": {"secretName": "mounted"}},
            {"name": "c", "persistentVolumeClaim": {"claimName": "data"}},
        ]
        claim = {"name": "c", "resourceClaimName": "named"}
        await api.post(PODS, pod("mine", volumes=volumes, resourceClaims=[claim], serviceAccountName="robot"))
        await api.post(f"{PODS}/mine/binding", {"target": {"kind": "Node", "name": "n1"}})
        body = {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}}
        for name in ("named", "foreign"):
            await api.post(CLAIMS, {"metadata": {"name": name}, **body})
        for path in (f"{configmaps}/mounted", f"{secrets}/mounted", f"{CLAIMS}/named", f"{PODS}/mine"):
            collection, _, name = path.rpartition("/")
            assert (await node.get(path))["metadata"]["name"] == name
            if collection != CLAIMS:  # Kubelets watch single objects in this way.
                (found,) = (await node.get(f"{collection}?fieldSelector=metadata.name={name}"))["items"]
                assert found["metadata"]["name"] == name
        for path in (
            f"{configmaps}/unrelated",
            f"{configmaps}?fieldSelector=metadata.name=unrelated",
            f"{configmaps}?fieldSelector=metadata.name!=unrelated",
            configmaps,
            "/api/v1/configmaps?fieldSelector=metadata.name=mounted",
            f"{secrets}?fieldSelector=metadata.name=unrelated",
            f"{CLAIMS}/foreign",
            CLAIMS,
            f"{CLAIMS}?fieldSelector=metadata.name=named",
            "/apis/resource.k8s.io/v1/resourceclaims?watch=true",
            "/api/v1/nodes",
            "/api/v1/nodes/n2",
            "/api/v1/persistentvolumes",
            "/api/v1/namespaces/default/serviceaccounts/default",
        ):
            error = await refused(node.get(path))
            assert (error.code, "n1" in str(error)) == (403, True), path
        reader = {"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": "view"}
        subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "system:node:n1"}
        await api.post(
            f"{RBAC}/clusterrolebindings", {"metadata": {"name": "b"}, "roleRef": reader, "subjects": [subject]}
        )
        assert len((await node.get(configmaps))["items"]) >= 2  # What a role gives comes on top.

    play(scene)


def test_a_node_lists_its_own_pods_and_slices() -> None:
    async def scene(api: Api) -> None:
        node = api.as_user("system:node:n1", "system:nodes")
        for name in ("n1", "n2"):
            await api.post(PODS, pod(name))
            await api.post(f"{PODS}/{name}/binding", {"target": {"kind": "Node", "name": name}})
            pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": "x.y", "nodeName": name, "pool": pool, "devices": [{"name": "d"}]}
            await api.post(SLICES, {"metadata": {"name": name}, "spec": spec})
        for collection in (PODS, "/api/v1/pods", SLICES):
            for chosen in ("", "?fieldSelector=spec.nodeName=n2", "?fieldSelector=spec.nodeName!=n1"):
                assert (await refused(node.get(f"{collection}{chosen}"))).code == 403
            (own,) = (await node.get(f"{collection}?fieldSelector=spec.nodeName=n1"))["items"]
            assert own["metadata"]["name"] == "n1"
        for collection in (PODS, SLICES):
            assert (await node.get(f"{collection}/n1"))["metadata"]["name"] == "n1"
            assert (await refused(node.get(f"{collection}/n2"))).code == 403
        asked = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        attributes = {"verb": "list", "resource": "pods"}
        assert not (await node.post(asked, {"spec": {"resourceAttributes": attributes}}))["status"]["allowed"]
        narrowed = {"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n1"]}]}
        review = {"spec": {"resourceAttributes": {**attributes, "fieldSelector": narrowed}}}
        assert (await node.post(asked, review))["status"]["allowed"]

    play(scene)


def test_a_node_cannot_make_a_pod_of_its_own_that_opens_what_it_may_not_read() -> None:
    async def scene(api: Api) -> None:
        node = api.as_user("system:node:n1", "system:nodes")
        secrets = "/api/v1/namespaces/default/secrets"
        await api.post(secrets, {"metadata": {"name": "s"}})
        volumes = [{"name": "v", "secret": {"secretName": "s"}}]
        plain, greedy = pod("p", nodeName="n1"), pod("g", nodeName="n1", volumes=volumes)
        assert "can only create mirror pods" in str(await refused(node.post(PODS, plain)))
        uid = (await node.post("/api/v1/nodes", {"metadata": {"name": "n1"}}))["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid, "controller": True}
        for body in (plain, greedy):
            body["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
            body["metadata"]["ownerReferences"] = [owner]
        assert "can not create pods that reference secrets" in str(await refused(node.post(PODS, greedy)))
        await node.post(PODS, plain)
        await api.post(PODS, greedy)
        assert (await refused(node.get(f"{secrets}/s"))).code == 403
        await api.post(PODS, pod("q"))
        await api.post(f"{PODS}/q/binding", {"target": {"kind": "Node", "name": "n1"}})
        status = {"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "foreign"}]}
        error = await refused(node.patch(f"{PODS}/q/status", {"status": status}))
        assert (error.code, "cannot update status.resourceClaimStatuses" in str(error)) == (403, True)

    play(scene)
