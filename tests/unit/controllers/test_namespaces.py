"""The end of namespaces, and what each of them is given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from drakkar.api.kinds import CONFIGMAP, NAMESPACE, POD, SERVICEACCOUNT, Kind
from drakkar.client.client import ListResult
from drakkar.controllers.namespaces import Namespaces, ServiceAccounts
from tests.unit.controllers.objects import pod
from tests.unit.controllers.world import Harness, World, failure

THING = Kind("x.y", "v1", "Thing", "things", True)
VERBS = ["list", "delete"]
SERVED = {
    "/apis": {"groups": [{"preferredVersion": {"groupVersion": version}} for version in ("x.y/v1", "z/v1")]},
    "/api/v1": {
        "resources": [
            {"kind": "Pod", "name": "pods", "namespaced": True, "verbs": VERBS},
            {"kind": "Pod", "name": "pods/status", "namespaced": True, "verbs": ["get"]},
            {"kind": "Node", "name": "nodes", "namespaced": False, "verbs": VERBS},
            {"kind": "Binding", "name": "bindings", "namespaced": True, "verbs": ["create"]},
        ]
    },
    "/apis/x.y/v1": {"resources": [{"kind": "Thing", "name": "things", "namespaced": True, "verbs": VERBS}]},
}  # fmt: skip


class Server:
    def __init__(self, world: World) -> None:
        self.world = world

    async def send(self, method: str, path: str) -> Any:
        if path not in SERVED:
            raise failure(404, "NotFound", path)
        return SimpleNamespace(body=msgspec.json.encode(SERVED[path]))

    async def list(self, kind: Kind, namespace: str) -> ListResult:
        found = [obj for (where, _), obj in self.world.table(kind).items() if where == namespace]
        return ListResult(found, "1")

    async def update(self, kind: Kind, obj: Any, subresource: str) -> None:
        assert (kind, subresource) == (NAMESPACE, "finalize")
        assert obj["spec"] == {"finalizers": []}
        del self.world.table(kind)["", obj["metadata"]["name"]]
        self.world.pending[kind.group, kind.plural].append(("", obj["metadata"]["name"], None))


def namespace(name: str = "default") -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}


def test_content_goes_first() -> None:
    world = World()
    world.create(NAMESPACE, namespace())
    world.create(POD, pod(node="n", phase="Running"))
    world.create(THING, {"metadata": {"name": "thing"}})
    harness = Harness(world, lambda w: [Namespaces(Server(w))])  # type: ignore[arg-type]
    harness.settle()
    assert len(world.all(POD)) == len(world.all(THING)) == 1
    world.update(NAMESPACE, "default", "", lambda n: n["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"))
    harness.settle()
    assert world.all(THING) == []
    assert world.read(POD, "p")["metadata"]["deletionTimestamp"]
    assert world.read(NAMESPACE, "default") is not None
    world.tables["", "pods"].clear()
    world.pending["", "pods"].append(("default", "p", None))
    harness.settle()
    assert world.read(NAMESPACE, "default") is None


def test_account_and_root_certificate() -> None:
    world = World()
    world.create(NAMESPACE, namespace())
    harness = Harness(world, lambda w: [ServiceAccounts(root_ca="PEM")])
    harness.settle()
    assert [obj["metadata"]["name"] for obj in world.all(SERVICEACCOUNT)] == ["default"]
    assert world.read(CONFIGMAP, "kube-root-ca.crt")["data"] == {"ca.crt": "PEM"}
    world.update(CONFIGMAP, "kube-root-ca.crt", "default", lambda c: c.update(data={"ca.crt": "forged"}))
    harness.settle()
    assert world.read(CONFIGMAP, "kube-root-ca.crt")["data"] == {"ca.crt": "PEM"}


def test_no_certificate_no_config_map() -> None:
    world = World()
    world.create(NAMESPACE, namespace())
    Harness(world, lambda w: [ServiceAccounts()]).settle()
    assert world.all(CONFIGMAP) == []
