"""Scheduler and claim controller at the real API server: what unit tests show on a small one holds there too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from drakkar.api.kinds import DEVICECLASS, EVENT, NODE, POD, RESOURCECLAIM, RESOURCESLICE
from drakkar.api.objects import condition, pod_node
from drakkar.apiserver import open_server
from drakkar.cli.plane import IDENTITIES
from drakkar.client import Client, MemoryTransport, SystemClock
from drakkar.controllers import Controllers
from drakkar.insight.dump import collect
from drakkar.insight.verify import verify
from drakkar.scheduler import Scheduler
from tests.unit.scheduler.build import allocated, claim, device_class, node, node_slice, pod, requesting

GPU = "example.com/gpu"
PROTECTED = "resource.kubernetes.io/delete-protection"


@asynccontextmanager
async def plane(*, controllers: bool = True, **settings: Any) -> AsyncIterator[tuple[Client, Scheduler]]:
    """An API server with scheduler and claim controller; the client may everything."""
    server = await open_server(None, clock=SystemClock())

    def client(part: str) -> Client:
        user, groups = IDENTITIES[part]
        return Client(MemoryTransport(server.handle, server.token(user, *groups)))

    scheduler = Scheduler(client("scheduler"), SystemClock(), **settings)
    tasks = [asyncio.create_task(scheduler.run())]
    if controllers:
        claims = Controllers(client("controllers"), SystemClock(), only={"claims", "garbage"})
        tasks.append(asyncio.create_task(claims.run()))
    try:
        await asyncio.wait_for(scheduler.ready.wait(), 5)
        yield client("admin"), scheduler
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.close()


def fresh(obj: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in obj["metadata"].items() if key not in ("uid", "resourceVersion")}
    return {**obj, "metadata": metadata}


async def create(client: Client, *objects: dict[str, Any]) -> None:
    kinds = {"Node": NODE, "Pod": POD, "ResourceClaim": RESOURCECLAIM, "ResourceSlice": RESOURCESLICE}
    for obj in objects:
        kind = kinds.get(obj["kind"], DEVICECLASS)
        await client.create(kind, fresh(obj), "default" if kind.namespaced else None)


async def until(holds: Callable[[], Awaitable[Any]], seconds: float = 60) -> Any:
    async with asyncio.timeout(seconds):
        while True:
            found = await holds()
            if found:
                return found
            await asyncio.sleep(0.01)


async def node_of(client: Client, name: str) -> str:
    return pod_node(await client.get(POD, name, "default"))


def ready_when(name: str, devices: int = 1) -> dict[str, Any]:
    """A slice whose devices have to be attached before a pod is bound."""
    made = node_slice(name, devices)
    for device in made["spec"]["devices"]:
        device |= {"bindingConditions": ["attached"], "bindingFailureConditions": ["failed"], "bindsToNode": True}
    return made


async def report(client: Client, name: str, reached: str) -> None:
    """What the controller that attaches devices writes."""
    found = await client.get(RESOURCECLAIM, name, "default")
    [result] = found.status.allocation.devices.results
    state = {
        "type": reached,
        "status": "True",
        "reason": "x",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    entry = {"driver": result.driver, "pool": result.pool, "device": result.device, "conditions": [state]}
    await client.patch(RESOURCECLAIM, name, "default", {"status": {"devices": [entry]}}, subresource="status")


def test_an_idle_claim_that_blocks_is_taken_back() -> None:
    async def scenario() -> None:
        async with plane() as (client, scheduler):
            await create(
                client, *(node(n) for n in "ab"), device_class(), *(node_slice(n, 1) for n in "ab"), claim("c")
            )
            idle = allocated(claim("c"), "a", "gpu-0")
            await client.patch(RESOURCECLAIM, "c", "default", {"metadata": {"finalizers": [PROTECTED]}})
            status = {"status": {"allocation": idle["status"]["allocation"]}}
            await client.patch(RESOURCECLAIM, "c", "default", status, subresource="status")
            await create(client, pod("p", "c", nodeSelector={"kubernetes.io/hostname": "b"}))
            assert await until(lambda: node_of(client, "p")) == "b"
            assert scheduler.metrics["released"] == 1
            assert verify(await collect(client)) == []

    asyncio.run(scenario())


def test_a_pod_waits_for_its_devices_to_be_attached() -> None:
    async def scenario() -> None:
        async with plane() as (client, _):
            await create(client, node("a"), device_class(), ready_when("a"), claim("c"), pod("p", "c"))

            async def nominated() -> str:
                return (await client.get(POD, "p", "default"))["status"].get("nominatedNodeName", "")

            assert await until(nominated) == "a"
            assert await node_of(client, "p") == ""
            found = await client.get(RESOURCECLAIM, "c", "default")
            assert found.status.allocation.allocationTimestamp
            [term] = found.status.allocation.nodeSelector.nodeSelectorTerms
            assert term.matchFields[0].values == ["a"]
            await report(client, "c", "attached")
            await until(lambda: node_of(client, "p"))

            async def told() -> bool:
                reasons = {event["reason"] for event in (await client.list(EVENT, "default")).items}
                return {"BindingConditionsPending", "Scheduled"} <= reasons

            await until(told)

    asyncio.run(scenario())


def test_devices_that_are_never_attached_are_given_back_and_left_alone() -> None:
    async def scenario() -> None:
        async with plane(binding_timeout=0.3) as (client, scheduler):
            await create(client, node("a"), device_class(), ready_when("a", 2), claim("c"), pod("p", "c"))

            async def held() -> str:
                found = await client.get(RESOURCECLAIM, "c", "default")
                return found.status.allocation.devices.results[0].device if found.status.allocation else ""

            first = await until(held)

            async def another() -> str:
                return await held() if await held() not in ("", first) else ""

            second = await until(another)
            assert {first, second} == {"gpu-0", "gpu-1"}
            assert scheduler.metrics["prepare_failed"] >= 1
            told = f"device {first} of claim c waits for attached, for more than 0.3 s"

            async def said() -> bool:
                return any(told in event["message"] for event in (await client.list(EVENT, "default")).items)

            await until(said)

            # The second one is not attached in time either; then there is none to choose for a while.
            async def tainted() -> bool:
                found = condition(await client.get(POD, "p", "default"), "PodScheduled") or {}
                return "drakkar.dev/unbindable=failures-1:NoSchedule" in found.get("message", "")

            await until(tainted)
            # The driver publishes its devices anew: what was known of them is void.
            current = await client.get(RESOURCESLICE, "a-gpus")
            devices = [{"name": "gpu-2"}]
            spec = {"pool": {"name": "a", "generation": 2, "resourceSliceCount": 1}, "devices": devices}
            metadata = {"resourceVersion": current.metadata.resourceVersion}
            await client.patch(RESOURCESLICE, "a-gpus", None, {"metadata": metadata, "spec": spec})
            await until(lambda: node_of(client, "p"))

    asyncio.run(scenario())


def test_extended_resources_from_limits_to_the_end_of_the_pod() -> None:
    async def scenario() -> None:
        async with plane() as (client, _):
            named = device_class()
            named["spec"]["extendedResourceName"] = GPU
            await create(client, node("a"), named, node_slice("a", 1))
            first, second = requesting("first"), requesting("second")
            for made in (first, second):
                made["spec"]["containers"][0]["resources"] = {"limits": {GPU: "1"}}
            await create(client, first)
            await until(lambda: node_of(client, "first"))
            [held] = (await client.list(RESOURCECLAIM, "default")).items
            assert held.metadata.name.startswith("first-extended-resources-")
            assert held.metadata.annotations == {"resource.kubernetes.io/extended-resource-claim": "true"}
            await create(client, second)

            async def told() -> str:
                return (condition(await client.get(POD, "second", "default"), "PodScheduled") or {}).get("message", "")

            assert "in-use" in await until(told)
            done = {"status": {"phase": "Succeeded"}}
            await client.patch(POD, "first", "default", done, subresource="status")
            await until(lambda: node_of(client, "second"))
            [held] = (await client.list(RESOURCECLAIM, "default")).items
            assert held.metadata.name.startswith("second-extended-resources-")
            assert verify(await collect(client)) == []

    asyncio.run(scenario())


def test_what_devices_cost_is_in_the_status_and_kept_by_the_server() -> None:
    async def scenario() -> None:
        async with plane() as (client, scheduler):
            costly = node_slice("a", 1)
            costly["spec"]["devices"][0]["nodeAllocatableResources"] = {
                "cpu": {"mapping": {"deviceMultiplier": "2"}},
                "memory": {"overhead": {"perPod": "1Gi", "perContainer": "256Mi"}},
            }
            user = pod("p", "c")
            user["spec"]["containers"][0]["resources"] = {"claims": [{"name": "c"}], "requests": {"cpu": "500m"}}
            await create(client, node("a", cpu="4", memory="8Gi"), device_class(), costly, claim("c"), user)
            await until(lambda: node_of(client, "p"))
            [entry] = (await client.get(POD, "p", "default"))["status"]["nodeAllocatableResourceClaimStatuses"]
            assert entry == {
                "resourceClaimName": "c",
                "containers": ["main"],
                "mapping": [{"name": "cpu", "quantity": "2"}],
                "overhead": [{"name": "memory", "perPod": "1Gi", "perContainer": "256Mi"}],
            }
            used = scheduler.cluster.nodes["a"].used
            assert (used["cpu"], used["memory"]) == (2500, (1024 + 256) * 2**20)

    asyncio.run(scenario())


def test_the_257th_pod_is_told_why() -> None:
    async def scenario() -> None:
        # Without the claim controller, which would strike consumers that do not exist.
        async with plane(controllers=False) as (client, _):
            await create(client, node("a"), device_class(), node_slice("a", 1), claim("c"))
            consumers = [{"resource": "pods", "name": f"x-{i}", "uid": f"uid-{i}"} for i in range(256)]
            allocation = allocated(claim("c"), "a", "gpu-0")["status"]["allocation"]
            status = {"status": {"allocation": allocation, "reservedFor": consumers}}
            await client.patch(RESOURCECLAIM, "c", "default", {"metadata": {"finalizers": [PROTECTED]}})
            await client.patch(RESOURCECLAIM, "c", "default", status, subresource="status")
            await create(client, pod("p", "c"))

            async def told() -> str:
                return (condition(await client.get(POD, "p", "default"), "PodScheduled") or {}).get("message", "")

            assert "resourceclaim c is reserved for 256 consumers, the most there can be" in await until(told)
            # One of them goes.
            status = {"status": {"reservedFor": consumers[1:]}}
            await client.patch(RESOURCECLAIM, "c", "default", status, subresource="status")
            await until(lambda: node_of(client, "p"))

    asyncio.run(scenario())
