"""What devices cost their node in cpu and memory (KEP-5517): counted, refused, recorded, taken back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from drakkar.api.kinds import POD
from drakkar.api.wire import Response
from drakkar.scheduler import Cluster, Pending, Placement, decide
from drakkar.scheduler.charges import charged
from drakkar.scheduler.refusal import Cause
from tests.unit.scheduler.build import (
    DRIVER,
    allocated,
    claim,
    cluster,
    device_class,
    node,
    node_slice,
    pod,
    requesting,
    view,
)
from tests.unit.scheduler.test_scheduler import Running, message, node_of, server_with, until

#: A device that stands for four cores, and one that needs memory beside the pod's.
CORES = {"cpu": {"mapping": {"deviceMultiplier": "4"}}}
BUFFERS = {"memory": {"overhead": {"perPod": "1Gi", "perContainer": "512Mi"}}}


def costly(name: str, costs: dict[str, Any], devices: int = 2, **device: Any) -> dict[str, Any]:
    made = node_slice(name, devices)
    for entry in made["spec"]["devices"]:
        entry |= {"nodeAllocatableResources": costs, **device}
    return made


def user(name: str, claim_name: str, containers: int = 1, **requests: str) -> dict[str, Any]:
    """A pod all of whose containers use the claim."""
    made = pod(name, claim_name)
    made["spec"]["containers"] = [
        {"name": f"c{i}", "resources": {"claims": [{"name": claim_name}], "requests": requests}}
        for i in range(containers)
    ]
    return made


def assume(state: Cluster, obj: dict[str, Any]) -> Placement:
    decision = decide(state, view(obj))
    assert isinstance(decision, Placement), decision
    state.set_pod(obj)
    state.assume(decision.footprint(view(obj)), decision.node, decision.allocations)
    return decision


def test_a_mapped_device_takes_its_share_of_the_node() -> None:
    state = cluster(node("a", cpu="6"), device_class(), costly("a", CORES), claim("c"), claim("d"))
    decision = assume(state, user("p", "c", cpu="1"))
    assert state.nodes["a"].used["cpu"] == 5000
    assert decision.charge is not None
    assert decision.charge.status({}) == [
        {"resourceClaimName": "c", "containers": ["c0"], "mapping": [{"name": "cpu", "quantity": "4"}]}
    ]
    refused = decide(state, view(user("q", "d")))
    assert isinstance(refused, Pending)
    assert refused.message == "0/1 nodes are available: 1 Insufficient cpu."
    assert refused.causes == {Cause.NODE, Cause.ROOM, Cause.CAPACITY}
    state.forget(view(user("p", "c")))
    assert isinstance(decide(state, view(user("q", "d"))), Placement)


def test_another_node_with_room_is_found() -> None:
    state = cluster(node("a", cpu="3"), node("b", cpu="4"), device_class(), costly("a", CORES), costly("b", CORES))
    state.set_claim(_struct(claim("c")))
    assert assume(state, user("p", "c")).node == "b"


def _struct(obj: dict[str, Any]) -> Any:
    import msgspec

    from drakkar.api.resource import v1

    return msgspec.convert(obj, v1.ResourceClaim)


def test_overhead_counts_per_pod_and_container() -> None:
    state = cluster(node("a", memory="3Gi"), device_class(), costly("a", BUFFERS), claim("c", 1))
    decision = assume(state, user("p", "c", containers=3))
    assert state.nodes["a"].used["memory"] == (1024 + 3 * 512) * 2**20
    assert decision.charge is not None
    [entry] = decision.charge.status({})
    assert entry["overhead"] == [{"name": "memory", "perPod": "1Gi", "perContainer": "512Mi"}]
    assert entry["containers"] == ["c0", "c1", "c2"]
    assert "mapping" not in entry


@pytest.mark.parametrize(
    ("device", "request_", "cpu"),
    [
        # Shared: what the share consumes. Not shared: the whole capacity.
        ({"allowMultipleAllocations": True, "capacity": {"cores": {"value": "16"}}}, {"cores": "3"}, 6000),
        ({"capacity": {"cores": {"value": "5"}}}, {}, 10000),
        # The name of the driver in front changes nothing.
        ({"capacity": {f"{DRIVER}/cores": {"value": "5"}}}, {}, 10000),
    ],
)
def test_a_capacity_that_is_mapped(device: dict[str, Any], request_: dict[str, str], cpu: int) -> None:
    costs = {"cpu": {"mapping": {"capacityKey": "cores", "capacityMultiplier": "2"}}}
    made = claim("c")
    if request_:
        made["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": request_}
    state = cluster(node("a", cpu="20"), device_class(), costly("a", costs, 1, **device), made)
    assume(state, user("p", "c"))
    assert state.nodes["a"].used["cpu"] == cpu


def test_a_claim_with_a_mapped_device_belongs_to_one_pod() -> None:
    held = allocated(claim("c"), "a", "gpu-0", reserved=("p",))
    state = cluster(node("a"), device_class(), costly("a", CORES), held)
    refused = decide(state, view(user("q", "c")))
    assert isinstance(refused, Pending)
    assert "has a mapped device (gpu-0) and cannot be shared across pods" in refused.message
    assert isinstance(decide(state, view(user("p", "c"))), Placement)
    # Overhead alone may be shared, and counts for every pod.
    state = cluster(node("a", memory="2Gi"), device_class(), costly("a", BUFFERS), held)
    assert isinstance(decide(state, view(user("q", "c"))), Placement)
    assume(state, user("q", "c"))
    refused = decide(state, view(user("r", "c")))
    assert isinstance(refused, Pending)
    assert "Insufficient memory" in refused.message


def test_pod_level_amounts_have_to_cover_the_devices() -> None:
    state = cluster(node("a", cpu="8"), device_class(), costly("a", CORES), claim("c"))
    small = user("p", "c", cpu="1")
    small["spec"]["resources"] = {"requests": {"cpu": "4"}}
    refused = decide(state, view(small))
    assert isinstance(refused, Pending)
    assert "pod-level requests of cpu are too small" in refused.message
    enough = user("p", "c", cpu="1")
    enough["spec"]["resources"] = {"requests": {"cpu": "5"}}
    assume(state, enough)
    assert state.nodes["a"].used["cpu"] == 5000


def test_administrators_pay_nothing() -> None:
    made = claim("c")
    made["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = True
    state = cluster(node("a", cpu="1"), device_class(), costly("a", CORES), made)
    assert assume(state, user("p", "c")).charge is None


def test_the_status_is_written_before_the_binding_and_counts_from_then_on() -> None:
    async def scenario() -> None:
        server = server_with(
            node("a", cpu="6"),
            device_class(),
            costly("a", CORES),
            claim("c"),
            claim("d"),
            user("p", "c"),
            requesting("big", cpu="3"),
        )
        seen: list[Any] = []

        async def handle(request: Any) -> Any:
            if request.path.endswith("/p/binding"):
                seen.append(server.get(POD, "p")["status"].get("nodeAllocatableResourceClaimStatuses"))
            return await server.handle(request)

        server.get(POD, "p")["spec"]["priority"] = 10
        async with Running(server, handle) as scheduler:
            await until(lambda: node_of(server, "p") and message(server, "big"))
            assert "Insufficient cpu" in message(server, "big")
            assert seen[-1][0]["mapping"] == [{"name": "cpu", "quantity": "4"}]
            await until(lambda: scheduler.cluster.nodes["a"].used["cpu"] == 4000)
            # After a restart it is the status that tells.
        async with Running(server) as scheduler:
            assert scheduler.cluster.nodes["a"].used["cpu"] == 4000
            server.put(POD, {**server.get(POD, "p"), "status": {"phase": "Succeeded"}})
            await until(lambda: node_of(server, "big"))
        assert charged(server.get(POD, "big")) == {}

    asyncio.run(scenario())


def test_what_was_written_is_taken_back_when_the_pod_is_not_bound() -> None:
    async def scenario() -> None:
        server = server_with(node("a", cpu="6"), device_class(), costly("a", CORES), claim("c"), user("p", "c"))
        refused = asyncio.Event()

        async def handle(request: Any) -> Any:
            if request.path.endswith("/p/binding") and not refused.is_set():
                refused.set()
                return Response(429, body=b"{}")
            return await server.handle(request)

        async with Running(server, handle) as scheduler:
            await asyncio.wait_for(refused.wait(), 60)
            await until(lambda: node_of(server, "p"))
            assert scheduler.metrics["lost"] == 1
        taken_back = b'"nodeAllocatableResourceClaimStatuses":[]'
        assert [request.path for request in server.requests if taken_back in request.body]
        assert charged(server.get(POD, "p")) == {"cpu": 4000}

    asyncio.run(scenario())
