"""The manifests in ``deploy/``: a server takes them, their rights are few, and suffice for parts started as they say.

That they are what the chart gives is tested with helm (`tests/e2e/test_chart.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from drakkar.api.errors import ApiError
from drakkar.api.kinds import LEASE, NODE, POD, PODGROUP, RESOURCECLAIM, RESOURCESLICE
from drakkar.api.objects import pod_node
from drakkar.api.wire import Request, Response
from drakkar.apiserver.claims import NODE_KEY
from drakkar.apiserver.server import ApiServer
from drakkar.cli.components import Part, Replica
from drakkar.cli.parser import build
from drakkar.client import Caches, Client, MemoryTransport, SystemClock
from drakkar.controllers import Controllers
from drakkar.driver import command
from drakkar.drivers.computedomain.command import DomainStatus, control, label_node
from drakkar.drivers.computedomain.names import COMPUTEDOMAIN
from drakkar.drivers.example.driver import ExampleDriver
from drakkar.drivers.tpu.command import OwnNode
from drakkar.drivers.tpu.driver import TpuDriver
from drakkar.scheduler import GateScheduler, Scheduler
from drakkar.store.memory import MemoryBackend
from tests.support.eventually import eventually

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
EXAMPLES = DEPLOY.parent / "examples"
NAMESPACE = "drakkar-system"
DRIVERS = ("tpu", "gpu", "nic", "cpu", "computedomain", "example")


def objects(*names: str) -> Iterator[dict[str, Any]]:
    """The objects of some files of ``deploy/``, or of all; the namespace first."""
    files = [DEPLOY / f"{name}.yaml" for name in names] or sorted(DEPLOY.glob("*.yaml"))
    for file in [DEPLOY / "namespace.yaml", *(file for file in files if file.stem != "namespace")]:
        yield from _read(file)


@cache
def _read(file: Path) -> list[dict[str, Any]]:
    return [obj for obj in yaml.safe_load_all(file.read_text()) if obj]


def workloads(*names: str) -> list[dict[str, Any]]:
    return [obj for obj in objects(*names) if obj["kind"] in ("Deployment", "DaemonSet")]


def container(workload: dict[str, Any]) -> dict[str, Any]:
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    return only


class Site:
    """A server over memory that remembers whom it refused what."""

    def __init__(self, server: ApiServer):
        self._server = server
        self._plurals: dict[str, dict[str, tuple[str, bool]]] = {}
        self.refused: list[str] = []
        self.admin = self.client("admin", "system:masters")

    async def _handle(self, request: Request) -> Response:
        response = await self._server.handle(request)
        if response.status == 403:
            self.refused.append(f"{request.method} {request.path}: {json.loads(response.body)['message']}")
        return response

    def client(self, user: str, *groups: str, node: str = "") -> Client:
        extra = ((NODE_KEY, (node,)),) if node else ()
        token = self._server.authenticator.issue(user, groups, extra=extra)
        return Client(MemoryTransport(self._handle, token))

    def part(self, name: str, node: str = "") -> Client:
        """A client with the service account that a part has in ``deploy/``, on a node where it has one."""
        return self.client(f"system:serviceaccount:{NAMESPACE}:drakkar-{name}", node=node)

    async def _ask(self, method: str, path: str, body: Any = None, **query: str) -> dict[str, Any]:
        token = self._server.authenticator.issue("admin", ("system:masters",))
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        data = json.dumps(body).encode() if body is not None else b""
        response = await self._server.handle(Request(method, path, tuple(query.items()), headers, data))
        answer = json.loads(response.body)
        assert response.status < 300, answer["message"]
        return answer

    async def create(self, obj: dict[str, Any]) -> None:
        """Strictly: a field that does not exist is an error."""
        version = obj["apiVersion"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if base not in self._plurals:
            found = (await self._ask("GET", base))["resources"]
            self._plurals[base] = {r["kind"]: (r["name"], r["namespaced"]) for r in found if "/" not in r["name"]}
        plural, namespaced = self._plurals[base][obj["kind"]]
        where = f"/namespaces/{obj['metadata']['namespace']}" if namespaced else ""
        await self._ask("POST", f"{base}{where}/{plural}", obj, fieldValidation="Strict")


@asynccontextmanager
async def site(applied: Iterable[dict[str, Any]]) -> AsyncIterator[Site]:
    """A server with those objects; strictly, so a field that does not exist is an error."""
    server = ApiServer(MemoryBackend(), clock=SystemClock())
    await server.start()
    try:
        made = Site(server)
        for obj in applied:
            await made.create(obj)
        yield made
    finally:
        await server.close()


@asynccontextmanager
async def at_work(*parts: Awaitable[Any]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_a_server_takes_every_object() -> None:
    async def run() -> None:
        async with asyncio.timeout(110), site(objects()) as made:
            assert not made.refused

    asyncio.run(run())


def test_namespaces_and_accounts_are_those_of_the_bindings() -> None:
    accounts = {(o["metadata"]["namespace"], o["metadata"]["name"]) for o in objects() if o["kind"] == "ServiceAccount"}
    bound = [
        s
        for o in objects()
        if o["kind"].endswith("RoleBinding") or o["kind"] == "ClusterRoleBinding"
        for s in o["subjects"]
    ]
    assert {(s["namespace"], s["name"]) for s in bound} == accounts
    for workload in workloads():
        account = workload["spec"]["template"]["spec"]["serviceAccountName"]
        assert (workload["metadata"]["namespace"], account) in accounts


# rights

#: Writes that let a part change what runs or who may do what; which part has them is said here and nowhere else.
STRONG = {
    ("scheduler", "", "pods/binding", "create"),
    # Gate mode.
    ("scheduler", "", "pods", "patch"),
    ("scheduler", "", "pods", "delete"),
    ("controllers", "", "pods", "delete"),
    ("driver-computedomain", "", "nodes", "patch"),
    ("driver-tpu-host", "", "nodes", "patch"),
}


def rules() -> Iterator[tuple[str, dict[str, Any]]]:
    for obj in objects():
        if obj["kind"] in ("Role", "ClusterRole"):
            for rule in obj["rules"]:
                yield obj["metadata"]["name"].removeprefix("drakkar-"), rule


def test_no_wildcards_no_secrets_no_rights_about_rights() -> None:
    for part, rule in rules():
        assert rule["apiGroups"], part
        words = (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
        assert not any("*" in word for word in words), (part, rule)
        assert not {"secrets", "configmaps", "serviceaccounts/token", "pods/exec", "pods/attach", "nodes/proxy"} & {
            *rule["resources"]
        }
        assert not {"escalate", "bind", "impersonate", "deletecollection"} & {*rule["verbs"]}, (part, rule)
        assert "rbac.authorization.k8s.io" not in rule["apiGroups"]
        if rule["resources"] == ["leases"] and rule["verbs"] != ["create"]:
            assert rule.get("resourceNames"), (part, rule)


def test_what_changes_pods_and_nodes_is_counted() -> None:
    found = {
        (part, group, resource, verb)
        for part, rule in rules()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if resource in ("pods", "nodes", "pods/binding", "pods/eviction", "nodes/status")
        and verb not in ("get", "list", "watch")
    }
    assert found == STRONG


def test_containers_get_no_more_than_they_need() -> None:
    privileged, rooted = set[str](), set[str]()
    for workload in workloads():
        spec, name = workload["spec"]["template"]["spec"], workload["metadata"]["name"].removeprefix("drakkar-")
        security = container(workload)["securityContext"]
        assert security["readOnlyRootFilesystem"], name
        assert container(workload)["resources"]["limits"]["memory"], name
        if security.get("privileged"):
            privileged.add(name)
            continue
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"]["drop"] == ["ALL"]
        if security.get("runAsUser") == 0:
            rooted.add(name)
        else:
            assert security["runAsNonRoot"]
            assert not [volume for volume in spec.get("volumes", []) if "hostPath" in volume], name
        assert spec.get("hostNetwork", False) == (name == "driver-nic")
    assert privileged == {"driver-gpu", "driver-computedomain", "driver-tpu-host"}
    assert rooted == {"driver-nic", "driver-cpu", "driver-example"}


def test_hooks_have_a_python_of_the_node() -> None:
    """The same path within and without, read-only, and nothing of the image in it."""
    own = {w["metadata"]["name"]: container(w) for w in workloads() if "command" in container(w)}
    assert set(own) == {"drakkar-driver-nic", "drakkar-driver-cpu"}
    for it in own.values():
        python = Path(it["command"][0])
        folders = [m for m in it["volumeMounts"] if python.is_relative_to(m["mountPath"])]
        assert [m["readOnly"] for m in folders] == [True]
        assert {"name": "PYTHONPATH", "value": ""} in it["env"]


# flags


@pytest.mark.parametrize("name", DRIVERS)
def test_drivers_understand_their_flags(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(f"drakkar.drivers.{name}.command")
    seen: list[argparse.Namespace] = []

    def parse(parser: argparse.ArgumentParser, work: Any, argv: list[str]) -> int:
        command.add_target_arguments(parser)
        seen.append(parser.parse_args(argv))
        return 0

    monkeypatch.setattr(module, "run_command", parse)
    for workload in workloads(f"driver-{name}"):
        arguments = container(workload)["args"]
        args = build().parse_args(arguments)
        assert (args.name, arguments[:3]) == (name, ["driver", "run", name])
        module.main(args.arguments)
        (port,) = container(workload)["ports"]
        assert seen[-1].metrics_address == f":{port['containerPort']}"
        if workload["kind"] == "DaemonSet":
            folders = {mount["mountPath"] for mount in container(workload)["volumeMounts"]}
            root = seen[-1].kubelet_root
            assert {str(root / "plugins_registry"), str(root / "plugins" / f"{name}.drakkar.dev")} < folders
            assert str(seen[-1].cdi_dir) in folders
    assert seen


# what the rights suffice for


def replica(
    made: Site, part: str, make: Callable[[Client], Part], rendered: Iterable[dict[str, Any]] | None = None
) -> Replica:
    """A part with the flags and the account that it has in ``deploy/``, or in what was rendered otherwise."""
    (workload,) = [
        obj
        for obj in (objects(part) if rendered is None else rendered)
        if obj["kind"] == "Deployment" and obj["metadata"]["name"] == f"drakkar-{part}"
    ]
    args = build().parse_args(container(workload)["args"])
    return Replica(args, made.part(part), "", make)


def node(name: str, x: int) -> dict[str, Any]:
    amounts = {"cpu": "8", "memory": "16Gi", "pods": "20"}
    labels = {"kubernetes.io/hostname": name, "tpu.drakkar.dev/pod": "p", "tpu.drakkar.dev/x": str(x)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**labels, "tpu.drakkar.dev/y": "0"}},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(name: str, template: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "schedulerName": "drakkar",
            "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "d"}]}}],
            "resourceClaims": [{"name": "d", "resourceClaimTemplateName": template}],
        },
    }


TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "tpu", "namespace": "default"},
    "spec": {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "tpu.drakkar.dev"}}]}}},
}


def test_rights_suffice_for_scheduler_controllers_and_a_central_driver() -> None:
    """A slice is published, a claim allocated, its pod bound; the host is lost, the pod evicted."""

    async def run() -> None:
        async with asyncio.timeout(110), site(objects("scheduler", "controllers", "driver-tpu")) as made:
            admin = made.admin
            await made.create(node("a", 0))
            await made.create(TEMPLATE)
            clock = SystemClock()
            scheduler = replica(made, "scheduler", lambda c: GateScheduler(c, clock, scheduler_names={"drakkar"}))
            controllers = replica(made, "controllers", lambda c: Controllers(c, clock, only={"eviction"}))
            tpu = made.part("driver-tpu")
            # What kube-controller-manager does on a cluster.
            upstream = Controllers(admin, clock, only={"claims"})
            async with at_work(
                scheduler.run(),
                controllers.run(),
                upstream.run(),
                command.lead("tpu-driver", tpu, TpuDriver(tpu, clock).run),
            ):
                await made.create(pod("job", "tpu"))

                async def where() -> str:
                    return pod_node(await admin.get(POD, "job", "default")) or ""

                assert await eventually(where, bool) == "a", made.refused
                (claim,) = (await admin.list(RESOURCECLAIM)).items
                assert claim.status.allocation.devices.results[0].driver == "tpu.drakkar.dev"
                lost = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
                await admin.patch(NODE, "a", None, lost, subresource="status")

                async def left() -> list[Any]:
                    return [p for p in (await admin.list(POD)).items if not p["metadata"].get("deletionTimestamp")]

                await eventually(left, lambda pods: not pods)
                leases = {
                    f"{lease['metadata']['namespace']}/{lease['metadata']['name']}"
                    for lease in (await admin.list(LEASE)).items
                }
                assert leases == {
                    f"{NAMESPACE}/drakkar-scheduler-drakkar",
                    f"{NAMESPACE}/drakkar-controllers",
                    "kube-system/tpu-driver",
                }
            assert made.refused == []

    asyncio.run(run())


def test_the_first_job_of_the_how_to_gets_its_device() -> None:
    """With the example driver's class of ``deploy/``; in gate mode, so that it is lifted for another scheduler."""

    async def run() -> None:
        async with asyncio.timeout(110), site(objects("scheduler", "driver-example")) as made:
            await made.create(node("a", 0))
            await made.create(other_slice("a"))
            for obj in yaml.safe_load_all((EXAMPLES / "on-a-cluster" / "first-job.yaml").read_text()):
                await made.create({**obj, "metadata": {**obj["metadata"], "namespace": "default"}})
            clock = SystemClock()
            scheduler = replica(made, "scheduler", lambda c: GateScheduler(c, clock, scheduler_names={"drakkar"}))
            upstream = Controllers(made.admin, clock, only={"claims", "jobs"})

            async def lifted() -> list[str]:
                pods = (await made.admin.list(POD, "default")).items
                return [pod["metadata"].get("annotations", {}).get("drakkar.dev/allocated-node", "") for pod in pods]

            async with at_work(scheduler.run(), upstream.run()):
                await eventually(lifted, lambda found: found == ["a"])
            (claim,) = (await made.admin.list(RESOURCECLAIM, "default")).items
            assert claim.status.allocation.devices.results[0].driver == "example.drakkar.dev"
            assert made.refused == []

    asyncio.run(run())


def test_rights_suffice_for_groups_and_extended_resources() -> None:
    """What the small story does not write: claims of the scheduler's own, conditions of pods and groups."""

    async def run() -> None:
        async with asyncio.timeout(110), site(objects("scheduler", "controllers")) as made:
            admin, clock = made.admin, SystemClock()
            await made.create(node("a", 0))
            sliced = other_slice("a")
            sliced["spec"]["devices"] = [{"name": "d0"}, {"name": "d1"}]
            await made.create(sliced)
            await made.create(
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "DeviceClass",
                    "metadata": {"name": "gpus"},
                    "spec": {
                        "extendedResourceName": "example.com/gpu",
                        "selectors": [{"cel": {"expression": "device.driver == 'example.drakkar.dev'"}}],
                    },
                }
            )
            gang = {"schedulingPolicy": {"gang": {"minCount": 1}}}
            group = {"kind": "PodGroup", "metadata": {"name": "g", "namespace": "default"}, "spec": gang}
            await made.create({"apiVersion": "scheduling.k8s.io/v1beta1", **group})
            scheduler = replica(made, "scheduler", lambda c: GateScheduler(c, clock, scheduler_names={"drakkar"}))
            controllers = replica(made, "controllers", lambda c: Controllers(c, clock, only={"eviction"}))

            def plain(name: str, **fields: Any) -> dict[str, Any]:
                containers = [{"name": "c", "image": "i", "resources": fields.pop("resources", {})}]
                spec = {"schedulerName": "drakkar", "containers": containers, **fields}
                metadata = {"name": name, "namespace": "default"}
                return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

            async def read(name: str) -> Any:
                return await admin.get(POD, name, "default")

            async with at_work(scheduler.run(), controllers.run()):
                await made.create(plain("extended", resources={"limits": {"example.com/gpu": "1"}}))
                await eventually(lambda: read("extended"), pod_node)
                assert (await read("extended"))["status"]["extendedResourceClaimStatus"]
                gated = plain("gated", schedulingGates=[{"name": "drakkar.dev/allocation"}], schedulerName="other")
                gated["metadata"]["ownerReferences"] = [
                    {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
                ]
                await made.create(gated)
                await eventually(lambda: read("gated"), lambda pod: not pod["spec"].get("schedulingGates"))
                await made.create(plain("elsewhere", nodeSelector={"no": "such"}))
                await eventually(lambda: read("elsewhere"), lambda pod: "Unschedulable" in str(pod["status"]))
                await made.create(plain("member", schedulingGroup={"podGroupName": "g"}))
                await eventually(lambda: read("member"), pod_node)

                async def grouped() -> Any:
                    return await admin.get(PODGROUP, "g", "default")

                await eventually(grouped, lambda found: "PodGroupInitiallyScheduled" in str(found.get("status")))
                # The node of the lifted pod goes before its scheduler has bound it: its owner is to make it anew.
                await admin.delete(NODE, "a")

                async def names() -> set[str]:
                    return {item["metadata"]["name"] for item in (await admin.list(POD)).items}

                await eventually(names, lambda left: "gated" not in left)
            assert made.refused == []

    asyncio.run(run())


@pytest.fixture
def folder() -> Iterator[Path]:
    """Sockets need a short path."""
    with tempfile.TemporaryDirectory(prefix="drakkar-") as path:
        yield Path(path)


def test_rights_suffice_for_a_driver_of_a_node_and_for_no_other_node(folder: Path) -> None:
    """Slices, prepare, a sick device told in the claim's status; slices of another node are refused."""
    pytest.importorskip("grpc", reason="needs the extra node")
    from drakkar.driver.service import DriverService
    from drakkar.driver.settings import NodeSettings
    from drakkar.plugin import wire
    from drakkar.plugin.grpc_client import SocketClient
    from drakkar.plugin.sockets import dra_socket

    async def run() -> None:
        async with asyncio.timeout(110), site(objects("driver-example")) as made:
            admin, clock = made.admin, SystemClock()
            await made.create(node("a", 0))
            body = json.loads(json.dumps(TEMPLATE).replace("tpu.drakkar.dev", "example.drakkar.dev"))
            await made.create(body)
            settings = NodeSettings("a", folder, folder / "cdi", health_period=0.05)
            settings.registry.mkdir()
            (folder / "faults").mkdir()
            mine = made.part("driver-example", node="a")
            driver = ExampleDriver("plain", folder / "faults")
            service = DriverService(driver, mine, clock, settings)
            scheduler = Scheduler(admin, clock, scheduler_names={"drakkar"})
            async with at_work(service.run(), scheduler.run(), Controllers(admin, clock, only={"claims"}).run()):
                await made.create(pod("job", "tpu"))

                async def claims() -> list[Any]:
                    return (await admin.list(RESOURCECLAIM)).items

                (claim,) = await eventually(claims, lambda items: items and items[0].status.reservedFor)
                async with SocketClient(dra_socket(settings.plugin_folder(driver.name))) as socket:
                    meta = claim.metadata
                    asked = wire.Claim(meta.namespace, meta.uid, meta.name)
                    answer = (await socket.prepare(wire.DRA_V1, [asked]))[meta.uid]
                    assert not answer.error
                device = claim.status.allocation.devices.results[0].device
                (folder / "faults" / device).write_text("Degraded fan stuck")
                await eventually(claims, lambda items: "fan stuck" in str(items[0].status.devices))
                assert made.refused == []

                (own,) = (await admin.list(RESOURCESLICE)).items
                with pytest.raises(ApiError, match="cannot write slices of node b"):
                    await mine.create(RESOURCESLICE, other_slice("b"))
                with pytest.raises(ApiError, match="cannot write slices of no node"):
                    await mine.create(RESOURCESLICE, other_slice(""))
                with pytest.raises(ApiError, match="on node b cannot write slices of node a"):
                    await made.part("driver-example", node="b").delete(RESOURCESLICE, own.metadata.name)
                with pytest.raises(ApiError, match="names no node"):
                    await made.part("driver-example").delete(RESOURCESLICE, own.metadata.name)
                # Others are not this policy's business.
                await admin.create(RESOURCESLICE, other_slice("b"))

    asyncio.run(run())


def other_slice(where: str) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "other"},
        "spec": {
            "driver": "example.drakkar.dev",
            "pool": {"name": "other", "generation": 1, "resourceSliceCount": 1},
            **({"nodeName": where} if where else {"allNodes": True}),
            "devices": [{"name": "d"}],
        },
    }


def test_rights_suffice_for_a_tpu_host_to_mark_its_node() -> None:
    async def run() -> None:
        async with asyncio.timeout(110), site(objects("driver-tpu")) as made:
            for name in ("a", "b"):
                await made.create(node(name, 0))
            mine, loop = made.part("driver-tpu-host", node="a"), asyncio.get_running_loop()
            caches = Caches(mine)
            own = OwnNode(mine, caches, "a", loop)
            await caches.start()
            await asyncio.to_thread(own.mark, "3 of 4 chips")
            marked = await asyncio.to_thread(own.read)
            assert marked["metadata"]["annotations"]["tpu.drakkar.dev/broken"] == "3 of 4 chips"
            await eventually(lambda: asyncio.sleep(0, own.seen()), lambda seen: seen == marked)
            await asyncio.to_thread(own.mark, "")
            await caches.stop()
            assert made.refused == []
            with pytest.raises(ApiError, match="marks its own node only"):
                await asyncio.to_thread(OwnNode(mine, Caches(mine), "b", loop).mark, "0 of 4 chips")

    asyncio.run(run())


def test_rights_suffice_for_compute_domains_and_labels_of_one_node() -> None:
    async def run() -> None:
        async with asyncio.timeout(110), site(objects("driver-computedomain")) as made:
            admin = made.admin
            for name in ("a", "b"):
                await made.create(node(name, 0))
            mine = made.part("driver-computedomain", node="a")
            await label_node(mine, "a", "rack-1")
            assert (await admin.get(NODE, "a"))["metadata"]["labels"]["computedomain.drakkar.dev/clique"] == "rack-1"
            with pytest.raises(ApiError, match="marks its own node only"):
                await label_node(mine, "b", "rack-1")
            with pytest.raises(ApiError, match="metadata of its node and nothing else"):
                await mine.patch(NODE, "a", None, {"spec": {"unschedulable": True}})
            central = made.part("driver-computedomain-controller")
            made.refused.clear()
            async with at_work(command.lead("computedomain.drakkar.dev", central, lambda: control(central))):
                await made.create(
                    {
                        "apiVersion": "computedomain.drakkar.dev/v1alpha1",
                        "kind": "ComputeDomain",
                        "metadata": {"name": "training", "namespace": "default"},
                        "spec": {"numNodes": 1, "channel": {"resourceClaimName": "channel"}},
                    }
                )

                async def seen() -> tuple[int, int, str]:
                    domain = await admin.get(COMPUTEDOMAIN, "training", "default")
                    claims = len((await admin.list(RESOURCECLAIM)).items)
                    slices = len((await admin.list(RESOURCESLICE)).items)
                    return claims, slices, domain.get("status", {}).get("status", "")

                await eventually(seen, lambda state: state == (1, 1, "NotReady"))
                status = DomainStatus(mine, "a", asyncio.get_running_loop())
                await asyncio.to_thread(status.tell, "default", "training", True)
                domain = await admin.get(COMPUTEDOMAIN, "training", "default")
                assert [entry["name"] for entry in domain["status"]["nodes"]] == ["a"]
            assert made.refused == []

    asyncio.run(run())
