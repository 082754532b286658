from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from drakkar.api.kinds import RESOURCECLAIM
from drakkar.api.resource import v1
from drakkar.client import timestamp
from drakkar.scheduler import Pending, Placement, decide
from drakkar.scheduler.binding import BINDING_TIMEOUT, Binding, binding_state
from tests.unit.scheduler.build import DRIVER, allocated, claim, cluster, device_class, node, node_slice, pod, view
from tests.unit.scheduler.test_scheduler import Running, events, holders, node_of, server_with, until

NOW = 1_800_000_000.0


def preparing(*conditions: str, since: float = NOW) -> dict[str, Any]:
    """An allocated claim whose device has to be attached first; ``conditions`` are True."""
    made = allocated(claim("c"), "a", "gpu-0", reserved=("p",))
    allocation = made["status"]["allocation"]
    allocation["allocationTimestamp"] = timestamp(since)
    allocation["devices"]["results"][0] |= {
        "bindingConditions": ["attached"],
        "bindingFailureConditions": ["attach-failed"],
    }
    listed = [{"type": name, "status": "True", "reason": "x", "message": ""} for name in conditions]
    made["status"]["devices"] = [{"driver": DRIVER, "pool": "a", "device": "gpu-0", "conditions": listed}]
    return made


def state(obj: dict[str, Any], now: float = NOW) -> Binding:
    return binding_state(msgspec.convert(obj, v1.ResourceClaim), now)[0]


def test_states() -> None:
    assert state(allocated(claim("c"), "a", "gpu-0")) is Binding.READY
    assert state(preparing()) is Binding.WAITING
    assert state(preparing("attached")) is Binding.READY
    assert state(preparing("attached", "attach-failed")) is Binding.FAILED
    assert state(preparing(), NOW + BINDING_TIMEOUT) is Binding.FAILED
    assert state(preparing("attached"), NOW + BINDING_TIMEOUT) is Binding.READY


def test_a_failed_device_is_given_up() -> None:
    failed = cluster(node("a"), preparing("attach-failed"), pod("p", "c"))
    decision = decide(failed, view(pod("p", "c")), now=NOW)
    assert isinstance(decision, Pending)
    assert decision.reason == "binding-failed"
    assert "device gpu-0 of claim c reports attach-failed" in decision.message
    assert decision.release is not None
    waiting = cluster(node("a"), preparing(), pod("p", "c"))
    assert isinstance(decide(waiting, view(pod("p", "c")), now=NOW), Placement)


def slice_with_conditions(node_name: str) -> dict[str, Any]:
    made = node_slice(node_name, 1)
    made["spec"]["devices"][0] |= {
        "bindsToNode": True,
        "bindingConditions": ["attached"],
        "bindingFailureConditions": ["attach-failed"],
    }
    return made


def report(server: Any, *conditions: str) -> None:
    """What the controller that attaches devices writes."""
    obj = server.get(RESOURCECLAIM, "c")
    result = obj["status"]["allocation"]["devices"]["results"][0]
    listed = [{"type": name, "status": "True", "reason": "x", "message": ""} for name in conditions]
    entry = {key: result[key] for key in ("driver", "pool", "device")} | {"conditions": listed}
    server.put(RESOURCECLAIM, {**obj, "status": {**obj["status"], "devices": [entry]}})


def test_the_pod_is_bound_when_its_device_is_ready() -> None:
    async def scenario() -> None:
        server = server_with(node("a"), device_class(), slice_with_conditions("a"), claim("c"), pod("p", "c"))
        async with Running(server):
            await until(lambda: events(server, "BindingConditionsPending"))
            assert node_of(server, "p") == ""
            assert server.get(RESOURCECLAIM, "c")["status"]["allocation"]["allocationTimestamp"]
            report(server, "attached")
            await until(lambda: node_of(server, "p"))

    asyncio.run(scenario())


def test_another_device_is_taken_when_preparing_fails() -> None:
    async def scenario() -> None:
        server = server_with(
            *(node(name) for name in "ab"),
            device_class(),
            *(slice_with_conditions(name) for name in "ab"),
            claim("c"),
            pod("p", "c"),
        )
        async with Running(server) as scheduler:
            await until(lambda: events(server, "BindingConditionsPending"))
            [first] = holders(server)
            report(server, "attach-failed")
            await until(lambda: scheduler.metrics["released"])
            await until(lambda: holders(server) and [*holders(server)] != [first])
            report(server, "attached")
            await until(lambda: node_of(server, "p"))
            [second] = holders(server)
            assert {first, second} == {"a/gpu-0", "b/gpu-0"}
            assert node_of(server, "p") == second.split("/")[0]

    asyncio.run(scenario())
