"""The roles of a new cluster, who holds them, and the reasons that reviews give."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from drakkar.apiserver.bootstrap import completed
from drakkar.apiserver.roles import AUTO_UPDATE, initial
from drakkar.store import MemoryBackend
from drakkar.store.base import Answer, Refused, Write
from drakkar.store.sqlite import SqliteBackend
from tests.unit.apiserver.core.serving import Api, Object
from tests.unit.apiserver.core.test_writes import play, refused

RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


async def review(api: Api, user: str, *groups: str, **asked: str) -> Object:
    attributes = {"nonResourceAttributes" if "path" in asked else "resourceAttributes": asked}
    answer = await api.post(REVIEWS, {"spec": {"user": user, "groups": list(groups), **attributes}})
    return answer["status"]


async def may(api: Api, user: str, *groups: str, **asked: str) -> bool:
    return (await review(api, user, *groups, **asked))["allowed"]


def test_every_binding_has_its_role_and_no_rule_names_a_resource_that_is_not_served() -> None:
    async def scene(api: Api) -> None:
        roles = {(plural, obj["metadata"].get("namespace", ""), obj["metadata"]["name"]) for plural, obj in initial()}
        assert len(roles) == len(list(initial()))
        served = {(one.group, one.plural) for one in api.server.catalog.served.values()}
        # Those of other servers, of kubelets, and verbs on things that are no objects.
        foreign = {"deployments", "daemonsets", "replicasets", "pods", "signers", "events"}
        for plural, obj in initial():
            where = obj["metadata"].get("namespace", "")
            name = obj["metadata"]["name"]
            stored = await api.get(f"{RBAC}/{f'namespaces/{where}/' if where else ''}{plural}/{name}")
            if "roleRef" in obj:
                ref = stored["roleRef"]
                kind = "clusterroles" if ref["kind"] == "ClusterRole" else "roles"
                assert (kind, "" if kind == "clusterroles" else where, ref["name"]) in roles
            for rule in obj.get("rules", ()):
                for resource in rule.get("resources", ()):
                    word = resource.partition("/")[0]
                    known = any((group, word) in served for group in rule["apiGroups"])
                    assert known or word == "*" or word in foreign, (name, resource)

    play(scene)


@pytest.mark.parametrize(
    ("user", "groups", "asked", "allowed"),
    [
        ("anybody", ["system:authenticated"], {"verb": "get", "path": "/apis/apps"}, True),
        ("anybody", ["system:authenticated"], {"verb": "get", "path": "/metrics"}, False),
        ("anybody", [], {"verb": "get", "path": "/apis/apps"}, False),
        ("prometheus", ["system:monitoring"], {"verb": "get", "path": "/metrics"}, True),
        ("system:kube-proxy", [], {"verb": "watch", "resource": "endpointslices", "group": "discovery.k8s.io"}, True),
        ("system:kube-proxy", [], {"verb": "update", "resource": "services"}, False),
        ("system:kube-scheduler", [], {"verb": "create", "resource": "pods", "subresource": "binding"}, True),
        (
            "system:serviceaccount:kube-system:deployment-controller",
            [],
            {"verb": "create", "resource": "replicasets", "group": "apps", "namespace": "x"},
            True,
        ),
        (
            "system:serviceaccount:kube-system:deployment-controller",
            [],
            {"verb": "create", "resource": "pods", "namespace": "x"},
            False,
        ),
        (
            "system:serviceaccount:default:deployment-controller",
            [],
            {"verb": "create", "resource": "replicasets", "group": "apps", "namespace": "x"},
            False,
        ),
        (
            "system:serviceaccount:kube-system:resource-claim-controller",
            [],
            {"verb": "patch", "resource": "resourceclaims", "subresource": "binding", "group": "resource.k8s.io"},
            True,
        ),
        (
            "system:serviceaccount:kube-system:token-cleaner",
            [],
            {"verb": "delete", "resource": "secrets", "namespace": "kube-system"},
            True,
        ),
        (
            "system:serviceaccount:kube-system:token-cleaner",
            [],
            {"verb": "delete", "resource": "secrets", "namespace": "default"},
            False,
        ),
    ],
)
def test_who_may_what(user: str, groups: list[str], asked: Object, allowed: bool) -> None:
    async def scene(api: Api) -> None:
        assert await may(api, user, *groups, **asked) is allowed

    play(scene)


def test_the_roles_for_users_hold_each_other() -> None:
    async def scene(api: Api) -> None:
        for name in ("view", "edit", "admin"):
            ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
            subjects = [{"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}]
            body = {"metadata": {"name": name}, "roleRef": ref, "subjects": subjects}
            await api.post(f"{RBAC}/namespaces/default/rolebindings", body)
        rows = [
            ("get", "", "pods", "log", "view edit admin"),
            ("list", "resource.k8s.io", "resourceclaims", "", "view edit admin"),
            ("get", "", "secrets", "", "edit admin"),
            ("create", "", "pods", "exec", "edit admin"),
            ("create", "resource.k8s.io", "resourceclaimtemplates", "", "edit admin"),
            ("create", "rbac.authorization.k8s.io", "roles", "", "admin"),
            ("update", "", "resourcequotas", "", ""),
            ("create", "resource.k8s.io", "deviceclasses", "", ""),
        ]
        for verb, group, resource, sub, who in rows:
            asked = {"verb": verb, "group": group, "resource": resource, "subresource": sub, "namespace": "default"}
            found = [name for name in ("view", "edit", "admin") if await may(api, name, **asked)]
            assert found == who.split(), asked
            assert not await may(api, "admin", **{**asked, "namespace": "kube-system"})

    play(scene)


def test_reasons() -> None:
    async def scene(api: Api) -> None:
        pods = {"verb": "list", "resource": "pods", "namespace": "default"}
        assert await review(api, "root", "system:masters", **pods) == {"allowed": True}
        assert await review(api, "eve", **pods) == {"allowed": False}
        subjects = [
            {"kind": "User", "name": "eve", "apiGroup": "rbac.authorization.k8s.io"},
            {"kind": "ServiceAccount", "name": "robot"},
        ]
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "viewer"}
        body = {"metadata": {"name": "b"}, "roleRef": ref, "subjects": subjects}
        await api.post(f"{RBAC}/namespaces/default/rolebindings", body)
        missing = 'RBAC: clusterrole.rbac.authorization.k8s.io "viewer" not found'
        assert await review(api, "eve", **pods) == {"allowed": False, "reason": missing}
        error = await refused(api.as_user("eve").get("/api/v1/namespaces/default/pods"))
        assert error.status["message"] == (
            'pods is forbidden: User "eve" cannot list resource "pods" in API group "" in the namespace "default": '
            + missing
        )
        await api.post(
            f"{RBAC}/clusterroles",
            {"metadata": {"name": "viewer"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]},
        )
        for user, who in (
            ("eve", 'User "eve"'),
            ("system:serviceaccount:default:robot", 'ServiceAccount "robot/default"'),
        ):
            why = f'RBAC: allowed by RoleBinding "b/default" of ClusterRole "viewer" to {who}'
            assert await review(api, user, **pods) == {"allowed": True, "reason": why}
        healthy = await review(api, "eve", "system:authenticated", verb="get", path="/healthz")
        assert healthy["reason"].startswith('RBAC: allowed by ClusterRoleBinding "system:')
        # What a node may beyond its rules is said as well.
        node = {"verb": "update", "resource": "nodes", "name": "b"}
        assert await review(api, "system:node:a", "system:nodes", **node) == {
            "allowed": False,
            "reason": 'node "a" is not allowed to modify node "b"',
        }

    play(scene)


def test_old_clusters_get_what_they_lack_unless_somebody_says_no(tmp_path: Path) -> None:
    async def run() -> None:
        api = await Api.start(SqliteBackend(tmp_path / "db"))
        edit = f"{RBAC}/clusterroles/system:aggregate-to-edit"
        bound = f"{RBAC}/clusterrolebindings/system:basic-user"
        own = {"apiGroups": ["example.com"], "resources": ["cars"], "verbs": ["drive"]}
        await api.patch(edit, {"rules": [own]})
        await api.patch(bound, {"metadata": {"annotations": {AUTO_UPDATE: "false"}}, "subjects": None})
        await api.delete(f"{RBAC}/clusterroles/system:monitoring")
        await api.close()
        api = await Api.start(SqliteBackend(tmp_path / "db"))
        wanted = next(obj for _, obj in initial() if obj["metadata"]["name"] == "system:aggregate-to-edit")
        assert (await api.get(edit))["rules"] == [own, *wanted["rules"]]
        assert "subjects" not in await api.get(bound)
        await api.get(f"{RBAC}/clusterroles/system:monitoring")
        settled = api.server.state.revision
        await api.close()
        api = await Api.start(SqliteBackend(tmp_path / "db"))
        for plural in ("clusterroles", "clusterrolebindings", "roles", "rolebindings"):
            for item in (await api.get(f"{RBAC}/{plural}"))["items"]:
                assert int(item["metadata"]["resourceVersion"]) <= settled  # nothing to do, nothing written
        await api.close()

    asyncio.run(run())


class Full(MemoryBackend):
    """A store without room for another role."""

    def commit(self, batch: Sequence[Write]) -> asyncio.Future[list[Answer]]:
        if not any("clusterroles" in write.key for write in batch):
            return super().commit(batch)
        done: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        done.set_result([Refused(write.key, "the disk is full", full=True) for write in batch])
        return done


def test_a_server_without_room_for_new_roles_starts_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        api = await Api.start(Full())
        assert len((await api.get("/api/v1/namespaces"))["items"]) == 4
        assert (await api.get(f"{RBAC}/clusterroles"))["items"] == []
        await api.close()

    asyncio.run(run())
    assert "could not be written: nothing was written: the disk is full" in caplog.text


def test_rules_are_the_same_in_any_order() -> None:
    role: dict[str, Any] = {
        "metadata": {"name": "r", "labels": {"a": "b"}, "annotations": {}},
        "rules": [{"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list"]}],
    }
    turned = {**role, "rules": [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list", "get"]}]}
    assert completed(turned, role) == turned
