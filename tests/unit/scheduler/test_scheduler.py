"""The whole loop against a small server: races, restarts in the middle, causes that wake pods."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from drakkar.api.kinds import DEVICECLASS, EVENT, NODE, POD, RESOURCECLAIM, RESOURCESLICE
from drakkar.api.wire import Request, Response
from drakkar.client import Client, MemoryTransport, SystemClock
from drakkar.scheduler import Scheduler, claims
from tests.unit.client.fakeserver import FakeServer
from tests.unit.scheduler.build import (
    allocated,
    claim,
    device_class,
    node,
    node_slice,
    pod,
    requesting,
    shape_slices,
)

KINDS = {
    "Node": NODE,
    "Pod": POD,
    "ResourceClaim": RESOURCECLAIM,
    "ResourceSlice": RESOURCESLICE,
    "DeviceClass": DEVICECLASS,
}


def server_with(*objects: dict[str, Any]) -> FakeServer:
    server = FakeServer()
    for obj in objects:
        server.put(KINDS[obj["kind"]], obj)
    return server


async def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


Handler = Callable[[Request], Awaitable[Response]]


class Running:
    """A scheduler at work for the length of the block."""

    def __init__(self, server: FakeServer, handler: Handler | None = None):
        client = Client(MemoryTransport(handler or server.handle))
        self.scheduler = Scheduler(client, SystemClock())

    async def __aenter__(self) -> Scheduler:
        self.task = asyncio.create_task(self.scheduler.run())
        await asyncio.wait_for(self.scheduler.ready.wait(), 5)
        return self.scheduler

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def node_of(server: FakeServer, name: str) -> str:
    return server.get(POD, name)["spec"].get("nodeName", "")


def holders(server: FakeServer) -> dict[str, list[str]]:
    """Device → claims that hold it."""
    found: dict[str, list[str]] = {}
    for key, obj in server.objects.items():
        if key[0] == RESOURCECLAIM.path():
            allocation = obj.get("status", {}).get("allocation") or {}
            for result in allocation.get("devices", {}).get("results", ()):
                found.setdefault(f"{result['pool']}/{result['device']}", []).append(key[2])
    return found


def message(server: FakeServer, name: str) -> str:
    conditions = server.get(POD, name).get("status", {}).get("conditions", [])
    return next((c["message"] for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), "")


def events(server: FakeServer, reason: str) -> list[str]:
    return [o["message"] for key, o in server.objects.items() if key[0] == EVENT.path() and o["reason"] == reason]


def test_allocates_reserves_and_binds() -> None:
    async def scenario() -> None:
        server = server_with(node("a"), device_class(), node_slice("a", 2), claim("c"), pod("p", "c"))
        async with Running(server) as scheduler:
            await until(lambda: node_of(server, "p"))
            await until(lambda: events(server, "Scheduled"))
        made = server.get(RESOURCECLAIM, "c")
        assert made["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
        assert made["status"]["reservedFor"] == [{"resource": "pods", "name": "p", "uid": "pod-p"}]
        assert events(server, "Scheduled") == ["Successfully assigned default/p to a"]
        assert scheduler.metrics["scheduled"] == 1
        # The claim before the pod, and one status update only.
        writes = [(r.method, r.path.rsplit("/", 1)[1]) for r in server.requests if r.method in ("PATCH", "POST")]
        assert writes[:3] == [("PATCH", "c"), ("PATCH", "status"), ("POST", "binding")]

    asyncio.run(scenario())


def templated(name: str) -> dict[str, Any]:
    """A pod whose claim comes from a template, by a controller that is not here."""
    made = pod(name)
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    return made


def test_a_pod_whose_claim_is_about_to_be_made_is_told_nothing() -> None:
    async def scenario() -> None:
        server = server_with(node("a"), device_class(), node_slice("a", 2), templated("p"))
        async with Running(server) as scheduler:
            await until(lambda: scheduler.queue.sizes()["unschedulable"])
            owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod-p", "controller": True}
            made = claim("p-gpu")
            made["metadata"]["ownerReferences"] = [owner]
            server.put(RESOURCECLAIM, made)
            status = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "p-gpu"}]}
            server.put(POD, {**server.get(POD, "p"), "status": status})
            await until(lambda: node_of(server, "p"))
            await until(lambda: events(server, "Scheduled"))
        assert scheduler.metrics["unschedulable"] == 0
        assert not events(server, "FailedScheduling")
        assert not message(server, "p")

    asyncio.run(scenario())


def test_a_pod_whose_claim_is_not_made_is_told_so_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "CLAIMS_MADE_IN", 0.2)

    async def scenario() -> None:
        server = server_with(node("a"), device_class(), node_slice("a", 2), templated("p"))
        async with Running(server) as scheduler:
            await until(lambda: scheduler.queue.sizes()["unschedulable"])
            assert not message(server, "p")
            await until(lambda: events(server, "FailedScheduling"))
        assert "ResourceClaim not created yet for pod claim gpu (template t)" in message(server, "p")

    asyncio.run(scenario())


def test_two_claims_race_for_one_device() -> None:
    async def scenario() -> None:
        server = server_with(
            node("a"), device_class(), node_slice("a", 1), claim("c"), claim("d"), pod("p", "c"), pod("q", "d")
        )
        async with Running(server):
            await until(lambda: node_of(server, "p") and message(server, "q"))
            assert holders(server) == {"a/gpu-0": ["c"]}
            assert "in-use" in message(server, "q")
            await until(lambda: events(server, "FailedScheduling"))
            # Freed, as the claim controller frees it: the other pod is woken.
            freed = server.get(RESOURCECLAIM, "c")
            server.remove(POD, "p")
            server.put(RESOURCECLAIM, {**freed, "status": {}})
            await until(lambda: node_of(server, "q"))
            assert holders(server) == {"a/gpu-0": ["d"]}

    asyncio.run(scenario())


def test_many_pods_share_a_claim_over_several_hosts() -> None:
    async def scenario() -> None:
        hosts = [f"h{i}" for i in range(8)]
        shapes = {"s0": hosts[:4], "s1": hosts[4:]}
        server = server_with(
            *(node(host) for host in hosts),
            device_class(),
            *shape_slices(shapes),
            claim("c", annotations={"drakkar.dev/pods-per-node": "1"}),
            *(pod(f"p{i}", "c") for i in range(4)),
        )
        async with Running(server) as scheduler:
            await until(lambda: all(node_of(server, f"p{i}") for i in range(4)))
            # Those that waited for the first one's allocation are no case for anybody.
            assert events(server, "FailedScheduling") == []
            server.put(POD, pod("p4", "c"))
            await until(lambda: "allows 1 per node" in message(server, "p4"))
            assert scheduler.cluster.in_flight == {}
        nodes = [node_of(server, f"p{i}") for i in range(5)]
        bound = sorted(name for name in nodes if name)
        assert bound in (hosts[:4], hosts[4:])
        assert len(server.get(RESOURCECLAIM, "c")["status"]["reservedFor"]) == 4

    asyncio.run(scenario())


def test_a_foreign_allocation_that_came_first_wins() -> None:
    async def scenario() -> None:
        server = server_with(node("a"), device_class(), node_slice("a", 1), claim("c"), claim("foreign"), pod("p", "c"))
        raced = False

        async def handle(request: Request) -> Response:
            nonlocal raced
            if request.method == "PATCH" and request.path.endswith("/c/status") and not raced:
                raced = True
                # Another scheduler is a moment faster.
                mine = server.get(RESOURCECLAIM, "foreign")
                server.put(RESOURCECLAIM, allocated(mine, "a", "gpu-0", reserved=("stranger",)))
            return await server.handle(request)

        async with Running(server, handle) as scheduler:
            await until(lambda: message(server, "p"))
            assert holders(server) == {"a/gpu-0": ["foreign"]}
            assert node_of(server, "p") == ""
            assert scheduler.metrics["lost"] >= 1

    asyncio.run(scenario())


def test_a_conflict_leads_to_a_second_try_on_fresh_state() -> None:
    async def scenario() -> None:
        server = server_with(node("a"), device_class(), node_slice("a", 1), claim("c"), pod("p", "c"))
        touched = False

        async def handle(request: Request) -> Response:
            nonlocal touched
            if request.method == "PATCH" and request.path.endswith("/c/status") and not touched:
                touched = True
                obj = server.get(RESOURCECLAIM, "c")
                server.put(RESOURCECLAIM, {**obj, "metadata": {**obj["metadata"], "labels": {"x": "y"}}})
            return await server.handle(request)

        async with Running(server, handle):
            await until(lambda: node_of(server, "p"))
        assert server.get(RESOURCECLAIM, "c")["metadata"]["labels"] == {"x": "y"}

    asyncio.run(scenario())


def test_a_pod_changed_before_its_binding_is_bound_on_its_new_state() -> None:
    async def scenario() -> None:
        server = server_with(node("a"), pod("p"))
        touched = False

        async def handle(request: Request) -> Response:
            nonlocal touched
            if request.path.endswith("/binding") and not touched:
                touched = True
                obj = server.get(POD, "p")
                server.put(POD, {**obj, "metadata": {**obj["metadata"], "labels": {"x": "y"}}})
            return await server.handle(request)

        async with Running(server, handle):
            await until(lambda: node_of(server, "p"))

    asyncio.run(scenario())


@pytest.mark.parametrize("writes", range(4))
def test_killed_after_any_write_the_next_run_finishes(writes: int) -> None:
    """Three writes are needed (finalizer, status, binding); the process dies after ``writes`` of them."""

    async def scenario() -> None:
        server = server_with(
            node("a"), node("b"), device_class(), node_slice("a", 1), node_slice("b", 1), claim("c"), pod("p", "c")
        )
        done = 0
        dead = asyncio.Event()

        async def handle(request: Request) -> Response:
            nonlocal done
            if request.method in ("PATCH", "POST"):
                if done == writes:
                    dead.set()
                    await asyncio.Event().wait()
                done += 1
            return await server.handle(request)

        async with Running(server, handle):
            await asyncio.wait_for(dead.wait(), 5)
        before = holders(server)
        async with Running(server):
            await until(lambda: node_of(server, "p"))
        after = holders(server)
        assert [*after.values()] == [["c"]]
        assert not before or before == after
        assert next(iter(after)).split("/")[0] == node_of(server, "p")
        assert len(server.get(RESOURCECLAIM, "c")["status"]["reservedFor"]) == 1

    asyncio.run(scenario())


def test_gated_foreign_and_done_pods_are_left_alone() -> None:
    async def scenario() -> None:
        gated = pod("gated", schedulingGates=[{"name": "drakkar.dev/allocation"}])
        server = server_with(node("a"), gated, pod("last"))
        async with Running(server) as scheduler:
            await until(lambda: node_of(server, "last"))
            assert node_of(server, "gated") == ""
            assert scheduler.metrics["decisions"] == 1
            lifted = server.get(POD, "gated")
            server.put(POD, {**lifted, "spec": {"containers": lifted["spec"]["containers"]}})
            await until(lambda: node_of(server, "gated"))

    asyncio.run(scenario())


def test_only_named_pods_are_ours() -> None:
    async def scenario() -> None:
        server = server_with(node("a"), pod("theirs"), pod("ours", schedulerName="drakkar"))
        scheduler = Scheduler(Client(MemoryTransport(server.handle)), SystemClock(), scheduler_names={"drakkar"})
        task = asyncio.create_task(scheduler.run())
        await until(lambda: node_of(server, "ours"))
        await asyncio.sleep(0.05)
        assert node_of(server, "theirs") == ""
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())


def test_room_given_back_wakes_pods() -> None:
    async def scenario() -> None:
        big = requesting("big", cpu="3")
        big["spec"]["nodeName"] = "a"
        server = server_with(node("a", cpu="4"), big, requesting("p", cpu="2"))
        async with Running(server):
            await until(lambda: message(server, "p"))
            assert message(server, "p") == "0/1 nodes are available: 1 Insufficient cpu."
            server.remove(POD, "big")
            await until(lambda: node_of(server, "p"))

    asyncio.run(scenario())


def test_a_new_node_and_new_devices_wake_pods() -> None:
    async def scenario() -> None:
        server = server_with(node("a"), device_class(), claim("c"), pod("p", "c"))
        async with Running(server):
            await until(lambda: message(server, "p"))
            assert "no-slice-of-driver" in message(server, "p")
            server.put(NODE, node("b"))
            server.put(RESOURCESLICE, node_slice("b", 1))
            await until(lambda: node_of(server, "p") == "b")

    asyncio.run(scenario())


def test_a_broken_idle_claim_is_freed_and_allocated_anew() -> None:
    async def scenario() -> None:
        taint = {"key": "unhealthy", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
        server = server_with(
            node("a"),
            node("b"),
            device_class(),
            node_slice("a", 1, taints=(taint,)),
            node_slice("b", 1),
            allocated(claim("c"), "a", "gpu-0"),
            pod("p", "c"),
        )
        async with Running(server) as scheduler:
            await until(lambda: node_of(server, "p") == "b")
            assert scheduler.metrics["released"] == 1
        assert holders(server) == {"b/gpu-0": ["c"]}

    asyncio.run(scenario())


def test_an_allocation_whose_fields_the_server_drops_is_taken_back_and_told() -> None:
    """Without its binding conditions the pod would be bound before its device is there."""

    async def scenario() -> None:
        attached = node_slice("a", 1)
        attached["spec"]["devices"][0] |= {
            "bindingConditions": ["example.com/ready"],
            "bindingFailureConditions": ["example.com/failed"],
        }
        server = server_with(node("a"), attached, device_class(), claim("c"), pod("p", "c"))
        written: list[str] = []

        async def without_gates(request: Request) -> Response:
            if request.method == "PATCH" and request.path.endswith("/c/status"):
                body = json.loads(request.body)
                for result in (body["status"].get("allocation") or {}).get("devices", {}).get("results", ()):
                    written.append("allocated")
                    del result["bindingConditions"], result["bindingFailureConditions"]
                request = replace(request, body=json.dumps(body).encode())
            return await server.handle(request)

        async with Running(server, without_gates):
            await until(lambda: events(server, "FailedScheduling"))
            (told,) = events(server, "FailedScheduling")
            assert "bindingConditions (DRADeviceBindingConditions and" in told
            assert "turn them on at kube-apiserver" in told
            await asyncio.sleep(0.3)
        assert node_of(server, "p") == ""
        assert not server.get(RESOURCECLAIM, "c")["status"].get("allocation")
        # Tried again, but not for ever at full speed.
        assert len(written) < 5

    asyncio.run(scenario())
