"""Pod groups: together or not at all, claims of the group, and what the members are told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from drakkar.api.kinds import DEVICECLASS, NODE, POD, PODGROUP, RESOURCECLAIM, RESOURCECLAIMTEMPLATE, RESOURCESLICE
from drakkar.api.objects import condition, pod_node
from drakkar.api.wire import Request, Response
from drakkar.apiserver import open_server
from drakkar.cli.plane import IDENTITIES
from drakkar.client import Client, MemoryTransport, SystemClock
from drakkar.controllers import Controllers, ControllerSettings
from drakkar.scheduler import Pending, Scheduler, decide
from tests.unit.client.fakeserver import FakeServer, failure
from tests.unit.scheduler.build import claim, cluster, device_class, node, node_slice, pod, requesting, view
from tests.unit.scheduler.test_scheduler import Running, holders, message, node_of, until


def gang(minimum: int | None, **spec: Any) -> dict[str, Any]:
    policy: dict[str, Any] = {"basic": {}} if minimum is None else {"gang": {"minCount": minimum}}
    metadata = {"name": "g", "namespace": "default", "uid": "group-g"}
    return {"metadata": metadata, "spec": {"schedulingPolicy": policy, **spec}}


def member(name: str, *claims: str, **requests: str) -> dict[str, Any]:
    made = requesting(name, *claims, **requests)
    made["spec"]["schedulingGroup"] = {"podGroupName": "g"}
    return made


def server_with(*entries: Any) -> FakeServer:
    server = FakeServer()
    for kind, obj in entries:
        server.put(kind, obj)
    return server


def state_of(server: FakeServer) -> tuple[str, str]:
    found = condition(server.get(PODGROUP, "g"), "PodGroupInitiallyScheduled") or {}
    return str(found.get("status")), str(found.get("message"))


def test_all_or_none() -> None:
    async def scenario() -> None:
        pods = [(POD, member(f"p-{i}", cpu="2")) for i in range(3)]
        server = server_with(
            (NODE, node("a", cpu="5")), (PODGROUP, gang(3)), *pods, (POD, requesting("alone", cpu="1"))
        )
        async with Running(server) as scheduler:
            await until(lambda: all(message(server, f"p-{i}") for i in range(3)))
            together = "(podgroup g starts with 3 more pods or not at all; 2 fit)"
            assert f"Insufficient cpu. {together}" in message(server, "p-2")
            assert message(server, "p-0").startswith("pod p-2: 0/1 nodes are available: 1 Insufficient cpu")
            # What was tried is given back: others get the room.
            await until(lambda: node_of(server, "alone"))
            assert scheduler.cluster.nodes["a"].used["cpu"] == 1000
            await until(lambda: state_of(server)[0] == "False")
            server.put(NODE, node("b", cpu="4"))
            await until(lambda: all(node_of(server, f"p-{i}") for i in range(3)))
            await until(lambda: state_of(server) == ("True", ""))

    asyncio.run(scenario())


def test_the_state_of_a_group_that_starts_is_told_again_where_somebody_else_wrote() -> None:
    """It is decided about only once: nothing else would correct what was said before."""

    async def scenario() -> None:
        server = server_with((NODE, node("a")), (PODGROUP, gang(2)), *((POD, member(f"p-{i}")) for i in range(2)))
        refused: list[str] = []

        async def handler(request: Request) -> Response:
            if "podgroups/g/status" in request.path and len(refused) < 2:
                refused.append(request.method)
                return failure(409, "Conflict", "the object has been modified")
            return await server.handle(request)

        async with Running(server, handler):
            await until(lambda: state_of(server) == ("True", ""))
        assert refused == ["PATCH", "PATCH"]

    asyncio.run(scenario())


def test_a_group_waits_for_itself_and_for_its_pods() -> None:
    state = cluster(node("a"))
    first = member("p-0")
    state.set_pod(first)
    refused = decide(state, view(first))
    assert isinstance(refused, Pending)
    assert (refused.reason, "podgroup g not found" in refused.message) == ("waiting-for-group", True)
    state.set_group(gang(2))
    refused = decide(state, view(first))
    assert isinstance(refused, Pending)
    assert "podgroup g has 1 pods, and starts with 2 or more only" in refused.message

    async def scenario() -> None:
        server = server_with((NODE, node("a")), (POD, member("p-0")))
        async with Running(server) as scheduler:
            await until(lambda: "not found" in message(server, "p-0"))
            server.put(PODGROUP, gang(2))
            await until(lambda: "has 1 pods" in message(server, "p-0"))
            server.put(POD, pod("stranger"))
            await until(lambda: node_of(server, "stranger"))
            assert scheduler.queue.sizes()["unschedulable"] == 1
            server.put(POD, member("p-1"))
            await until(lambda: node_of(server, "p-0") and node_of(server, "p-1"))

    asyncio.run(scenario())


def test_more_than_the_minimum_may_wait() -> None:
    async def scenario() -> None:
        pods = [(POD, member(f"p-{i}", cpu="2")) for i in range(4)]
        server = server_with((NODE, node("a", cpu="5")), (PODGROUP, gang(2)), *pods)
        async with Running(server) as scheduler:
            await until(lambda: sum(bool(node_of(server, f"p-{i}")) for i in range(4)) == 2)
            await until(lambda: scheduler.queue.sizes()["unschedulable"] == 2)
            waiting = [f"p-{i}" for i in range(4) if not node_of(server, f"p-{i}")]
            await until(lambda: all(message(server, name) for name in waiting))
            # From now on they are pods like others.
            server.put(NODE, node("b", cpu="2"))
            await until(lambda: sum(bool(node_of(server, f"p-{i}")) for i in range(4)) == 3)

    asyncio.run(scenario())


def test_without_a_gang_every_pod_starts_by_itself() -> None:
    async def scenario() -> None:
        pods = [(POD, member(f"p-{i}", cpu="2")) for i in range(2)]
        server = server_with((NODE, node("a", cpu="2")), (PODGROUP, gang(None)), *pods)
        async with Running(server):
            await until(lambda: node_of(server, "p-0") and "Insufficient" in message(server, "p-1"))

    asyncio.run(scenario())


def test_devices_of_a_group_that_does_not_start_are_free() -> None:
    async def scenario() -> None:
        world = [(NODE, node("a")), (DEVICECLASS, device_class()), (RESOURCESLICE, node_slice("a", 2))]
        claims = [(RESOURCECLAIM, claim(f"c-{i}")) for i in range(4)]
        pods = [(POD, member(f"p-{i}", f"c-{i}")) for i in range(3)]
        server = server_with(*world, *claims, (PODGROUP, gang(3)), *pods)
        async with Running(server):
            await until(lambda: all(message(server, f"p-{i}") for i in range(3)))
            assert holders(server) == {}
            assert "in-use" in message(server, "p-2")
            server.put(POD, pod("other", "c-3"))
            await until(lambda: node_of(server, "other"))
            await until(lambda: len(holders(server)) == 1)

    asyncio.run(scenario())


def test_pods_share_a_claim_that_is_decided_in_their_own_cycle() -> None:
    async def scenario() -> None:
        world = [(NODE, node(n)) for n in "ab"]
        fabric = node_slice("a", 1)
        del fabric["spec"]["nodeName"]
        fabric["spec"]["allNodes"] = True
        server = server_with(
            *world,
            (DEVICECLASS, device_class()),
            (RESOURCESLICE, fabric),
            (RESOURCECLAIM, claim("shared")),
            (PODGROUP, gang(4)),
            *((POD, member(f"p-{i}", "shared")) for i in range(4)),
        )
        async with Running(server) as scheduler:
            await until(lambda: all(node_of(server, f"p-{i}") for i in range(4)))
            assert scheduler.metrics["lost"] == 0
            assert scheduler.cluster.in_flight == {}
        assert holders(server) == {"a/gpu-0": ["shared"]}
        reserved = {entry["name"] for entry in server.get(RESOURCECLAIM, "shared")["status"]["reservedFor"]}
        assert reserved == {f"p-{i}" for i in range(4)}

    asyncio.run(scenario())


def test_a_claim_of_the_group_is_reserved_for_the_group() -> None:
    """End to end: claim controller and scheduler at the real API server."""

    async def scenario() -> None:
        server = await open_server(None, clock=SystemClock())

        def client(part: str) -> Client:
            user, groups = IDENTITIES[part]
            return Client(MemoryTransport(server.handle, server.token(user, *groups)))

        settings = ControllerSettings(pod_groups=True)
        parts = [
            Controllers(client("controllers"), SystemClock(), only={"claims", "podgroups"}, settings=settings).run(),
            Scheduler(client("scheduler"), SystemClock()).run(),
        ]
        tasks = [asyncio.ensure_future(part) for part in parts]
        admin = client("admin")
        try:
            for name in "ab":
                await admin.create(NODE, _fresh(node(name, cpu="4")))
                await admin.create(RESOURCESLICE, _fresh(node_slice(name, 1)))
            await admin.create(DEVICECLASS, _fresh(device_class()))
            template = {"metadata": {"name": "t"}, "spec": {"spec": claim("x")["spec"]}}
            await admin.create(RESOURCECLAIMTEMPLATE, template, "default")
            entry = {"name": "gpu", "resourceClaimTemplateName": "t"}
            await admin.create(PODGROUP, _fresh(gang(3, resourceClaims=[entry])), "default")
            for number in range(3):
                made = _fresh(member(f"p-{number}"))
                made["spec"]["resourceClaims"] = [entry]
                made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
                await admin.create(POD, made, "default")

            async def nodes() -> list[str]:
                return [pod_node(found) for found in (await admin.list(POD, "default")).items]

            async with asyncio.timeout(60):
                while not all(await nodes()):
                    await asyncio.sleep(0.01)
            # The devices of one node, therefore all pods there.
            assert len(set(await nodes())) == 1
            [made] = (await admin.list(RESOURCECLAIM, "default")).items
            [consumer] = made.status.reservedFor
            assert (consumer.apiGroup, consumer.resource, consumer.name) == ("scheduling.k8s.io", "podgroups", "g")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.close()

    asyncio.run(scenario())


def _fresh(obj: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in obj["metadata"].items() if key not in ("uid", "resourceVersion")}
    return {**obj, "metadata": metadata}


@pytest.mark.parametrize("writes", range(10))
def test_a_gang_survives_the_death_of_its_scheduler(writes: int) -> None:
    """Own claims and a shared one, three pods; the process dies after ``writes`` writes, the next run ends it."""

    async def scenario() -> None:
        fabric = node_slice("fabric", 1)
        del fabric["spec"]["nodeName"]
        fabric["spec"]["allNodes"] = True
        server = server_with(
            *((NODE, node(n)) for n in "ab"),
            (DEVICECLASS, device_class()),
            *((RESOURCESLICE, node_slice(n, 4)) for n in "ab"),
            (RESOURCESLICE, fabric),
            (RESOURCECLAIM, claim("shared")),
            *((RESOURCECLAIM, claim(f"c-{i}")) for i in range(3)),
            (PODGROUP, gang(3)),
            *((POD, member(f"p-{i}", "shared", f"c-{i}")) for i in range(3)),
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
            await asyncio.wait_for(dead.wait(), 60)
        before = holders(server)
        async with Running(server):
            await until(lambda: all(node_of(server, f"p-{i}") for i in range(3)))
        after = holders(server)
        assert sorted(name for names in after.values() for name in names) == ["c-0", "c-1", "c-2", "shared"]
        assert all(len(names) == 1 for names in after.values())
        # What was written before the death still stands.
        assert before.items() <= after.items()

    asyncio.run(scenario())
