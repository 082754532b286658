from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from drakkar.api.errors import ApiError
from drakkar.api.kinds import POD, RESOURCECLAIM
from drakkar.api.objects import name_of
from drakkar.api.resource import v1
from drakkar.client import Caches, Client, MemoryTransport, SystemClock
from drakkar.scheduler import Cluster, Placement, decide
from drakkar.scheduler.commit import Committer, Lost, Result
from tests.unit.client.fakeserver import FakeServer
from tests.unit.scheduler.build import allocated, claim, device_class, node, node_slice, pod, view
from tests.unit.scheduler.test_holders import typed
from tests.unit.scheduler.test_scheduler import KINDS, node_of, until


@asynccontextmanager
async def committing(server: FakeServer) -> AsyncIterator[tuple[Cluster, Committer]]:
    """A committer and its cluster, fed from the server; nobody decides by itself."""
    client = Client(MemoryTransport(server.handle))
    caches, cluster = Caches(client), Cluster()
    claims = caches.of(RESOURCECLAIM)
    claims.subscribe(
        lambda event, old, new: cluster.set_claim(new) if event != "DELETED" else cluster.remove_claim(new)
    )
    caches.of(POD).subscribe(lambda event, old, new: cluster.set_pod(new))
    await caches.start()
    await caches.synced()
    try:
        yield (
            cluster,
            Committer(
                client, cluster, claims, SystemClock(), settled=lambda claim: None, metrics={"conflict_foreign": 0}
            ),
        )
    finally:
        await caches.stop()


def small(server: FakeServer, cluster: Cluster) -> Placement:
    """A decision for pod p and claim c on the only node."""
    for obj in (node("a"), device_class(), node_slice("a", 2)):
        match obj["kind"]:
            case "Node":
                cluster.set_node(obj)
            case "DeviceClass":
                cluster.set_class(msgspec.convert(obj, v1.DeviceClass))
            case _:
                cluster.set_slice(msgspec.convert(obj, v1.ResourceSlice))
    decision = decide(cluster, view(server.get(POD, "p")))
    assert isinstance(decision, Placement)
    return decision


def started(*objects: dict[str, object]) -> FakeServer:
    server = FakeServer()
    for obj in objects:
        server.put(KINDS[str(obj["kind"])], obj)
    return server


def test_an_equal_allocation_is_accepted() -> None:
    async def scenario() -> None:
        server = started(claim("c"), pod("p", "c"))
        async with committing(server) as (cluster, committer):
            placement = small(server, cluster)
            # A twin of ours writes the same for another pod of the claim, and this one hears of it late.
            server.put(RESOURCECLAIM, allocated(server.get(RESOURCECLAIM, "c"), "a", "gpu-0", reserved=("twin",)))
            bindable, _ = await committer.write_claims(view(server.get(POD, "p")), placement)
            assert await committer.bind(bindable, placement.node) is Result.BOUND
        names = [entry["name"] for entry in server.get(RESOURCECLAIM, "c")["status"]["reservedFor"]]
        assert names == ["twin", "p"]
        assert node_of(server, "p") == "a"

    asyncio.run(scenario())


def test_another_allocation_is_not() -> None:
    async def scenario() -> None:
        server = started(claim("c"), pod("p", "c"))
        async with committing(server) as (cluster, committer):
            placement = small(server, cluster)
            server.put(RESOURCECLAIM, allocated(server.get(RESOURCECLAIM, "c"), "a", "gpu-1", reserved=("twin",)))
            with pytest.raises(Lost, match="got allocated elsewhere"):
                await committer.write_claims(view(server.get(POD, "p")), placement)

    asyncio.run(scenario())


def test_a_deleted_claim_is_lost() -> None:
    async def scenario() -> None:
        server = started(claim("c"), pod("p", "c"))
        async with committing(server) as (cluster, committer):
            placement = small(server, cluster)
            going = server.get(RESOURCECLAIM, "c")
            meta = {**going["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["other"]}
            server.put(RESOURCECLAIM, {**going, "metadata": meta})
            with pytest.raises(Lost, match="deleted or replaced"):
                await committer.write_claims(view(server.get(POD, "p")), placement)

    asyncio.run(scenario())


def test_a_pod_that_is_gone_or_bound_needs_nothing() -> None:
    async def scenario() -> None:
        server = started(pod("gone"), pod("bound"), pod("gated"))
        views = {name: view(server.get(POD, name)) for name in ("gone", "bound", "gated")}
        async with committing(server) as (_, committer):
            server.remove(POD, "gone")
            server.put(POD, {**server.get(POD, "bound"), "spec": {"nodeName": "b"}})
            gated = server.get(POD, "gated")
            server.put(POD, {**gated, "spec": {**gated["spec"], "schedulingGates": [{"name": "x"}]}})
            assert await committer.bind(views["gone"], "a") is Result.GONE
            assert await committer.bind(views["bound"], "a") is Result.GONE
            with pytest.raises(Lost):
                await committer.bind(views["gated"], "a")

    asyncio.run(scenario())


def test_who_goes_on_with_an_allocation_makes_older_writes_void() -> None:
    """An earlier leader, paused while it takes the claim back, finds that the claim has changed."""

    async def scenario() -> None:
        mine = allocated(claim("c"), "a", "gpu-0", reserved=("p",))
        server = started(mine, pod("p", "c"))
        async with committing(server) as (cluster, committer):
            placement = small(server, cluster)
            assert [name_of(held) for held in placement.held] == ["c"]
            older = placement.held[0]
            bindable, _ = await committer.write_claims(view(server.get(POD, "p")), placement)
            with pytest.raises(ApiError) as refused:
                await committer.release(older)
            assert refused.value.code == 409
            assert await committer.bind(bindable, placement.node) is Result.BOUND
            # The other way round the one that goes on finds it out.
            server.put(POD, pod("q", "d"))
            server.put(RESOURCECLAIM, allocated(claim("d"), "a", "gpu-1", reserved=("q",)))
            await until(lambda: cluster.claim("default/d"))
            decision = decide(cluster, view(server.get(POD, "q")))
            assert isinstance(decision, Placement)
            server.put(RESOURCECLAIM, claim("d"))
            with pytest.raises(Lost):
                await committer.write_claims(view(server.get(POD, "q")), decision)

    asyncio.run(scenario())


def test_who_takes_an_allocation_back_makes_older_bindings_void() -> None:
    async def scenario() -> None:
        server = started(claim("c"), pod("p", "c"))
        async with committing(server) as (cluster, committer):
            placement = small(server, cluster)
            bindable, claims = await committer.write_claims(view(server.get(POD, "p")), placement)
            before = server.get(POD, "p")["metadata"]["resourceVersion"]
            assert await committer.void(view(server.get(POD, "p")))
            once = server.get(POD, "p")["metadata"]["resourceVersion"]
            # Also within one second, the unit of time in a condition.
            assert await committer.void(view(server.get(POD, "p")))
            assert len({before, once, server.get(POD, "p")["metadata"]["resourceVersion"]}) == 3
            # Only its status has changed, so the Binding is tried anew, and the one that wanted to take the claim back
            # comes too late; or has not, and then it is this one that does.
            older = typed(server.get(RESOURCECLAIM, "c"))
            await committer.stand(bindable, claims)
            with pytest.raises(ApiError):
                await committer.release(older)
            await committer.release(typed(server.get(RESOURCECLAIM, "c")))
            with pytest.raises(Lost):
                await committer.bind(bindable, placement.node, claims)
            assert node_of(server, "p") == ""
            server.put(POD, pod("p", "c", node="a"))
            assert not await committer.void(bindable)
            server.remove(POD, "p")
            assert not await committer.void(bindable)

    asyncio.run(scenario())


def test_an_allocation_counts_when_it_has_come_back_itself_whatever_was_taken_back_before() -> None:
    async def scenario() -> None:
        server = started(claim("c"), pod("p", "c"))
        async with committing(server) as (cluster, committer):
            placement = small(server, cluster)
            await committer.write_claims(view(server.get(POD, "p")), placement)
            held = typed(server.get(RESOURCECLAIM, "c"))
            await committer.release(held)
            # Decided on what is not so any more: the watch tells late.
            server.deliver.clear()
            stale = dataclasses.replace(placement, allocations=(), held=(held,))
            with pytest.raises(Lost):
                await committer.write_claims(view(server.get(POD, "p")), stale)
            server.deliver.set()
            await until(lambda: (found := cluster.claim("default/c")) and found.status.allocation is None)
            again = decide(cluster, view(server.get(POD, "p")))
            assert isinstance(again, Placement)
            server.deliver.clear()
            writing = asyncio.create_task(committer.write_claims(view(server.get(POD, "p")), again))
            await until(lambda: server.get(RESOURCECLAIM, "c")["status"].get("allocation"))
            await asyncio.sleep(0.05)
            assert not writing.done()
            server.deliver.set()
            _, (seen,) = await writing
            assert seen.status.allocation is not None

    asyncio.run(scenario())
