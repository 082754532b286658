"""Hollow nodes against a real API server over memory: life, faults, and coming back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from drakkar.api.errors import UsageError
from drakkar.api.kinds import LEASE, NODE, POD, RESOURCECLAIM
from drakkar.api.objects import condition, condition_is
from drakkar.client import Client, Unreachable
from drakkar.node.hollow import HollowFleet
from drakkar.node.hollow_main import select_nodes
from drakkar.node.hollow_nodes import fault_of
from tests.support.eventually import eventually, memory_plane

PERIOD, DURATION, SLOW_DELAY = 0.1, 0.6, 0.5


class Skipping:
    """The real clock, which a test can move: to the rest of the process that is a SIGSTOP."""

    def __init__(self, clock: Any):
        self._clock = clock
        self.offset = 0.0

    def time(self) -> float:
        return self._clock.time() + self.offset

    def monotonic(self) -> float:
        return self._clock.monotonic() + self.offset

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


class Faulty:
    """A transport made of one function."""

    def __init__(self, request: Any):
        self.request = request

    async def close(self) -> None:
        """Nothing to close."""


def manifests(count: int = 2) -> list[dict[str, Any]]:
    return [
        {"metadata": {"name": f"h{i}", "labels": {"rack": "r"}}, "status": {"capacity": {"cpu": "8", "pods": "110"}}}
        for i in range(count)
    ]


@asynccontextmanager
async def fleet(client: Client, clock: Any = None) -> AsyncIterator[HollowFleet]:
    nodes = HollowFleet(
        client, clock or client.clock, manifests(), lease_period=PERIOD, lease_duration=DURATION, slow_delay=SLOW_DELAY
    )
    task = asyncio.create_task(nodes.run())
    try:
        yield nodes
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def story(body: Callable[[Client], Any]) -> None:
    async def run() -> None:
        async with asyncio.timeout(100), memory_plane() as client:
            await body(client)

    asyncio.run(run())


async def all_ready(client: Client) -> None:
    async def read() -> list[Any]:
        return (await client.list(NODE)).items

    await eventually(read, lambda items: len(items) == 2 and all(condition_is(n, "Ready") for n in items))


async def start_pod(client: Client, name: str, node: str = "h0", **annotations: str) -> dict[str, Any]:
    spec = {"containers": [{"name": "main", "image": "i"}], "nodeName": node, "restartPolicy": "Never"}
    metadata = {"name": name, "namespace": "default", "annotations": annotations}
    return await client.create(POD, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


async def phase(client: Client, name: str) -> str:
    found = [p for p in (await client.list(POD)).items if p["metadata"]["name"] == name]
    return found[0].get("status", {}).get("phase", "") if found else "gone"


async def becomes(client: Client, name: str, wanted: str) -> None:
    await eventually(lambda: phase(client, name), lambda now: now == wanted)


async def mark(client: Client, node: str, fault: str | None) -> None:
    await client.patch(NODE, node, None, {"metadata": {"annotations": {"drakkar.dev/hollow": fault}}})


async def renewals(client: Client, node: str) -> str:
    return (await client.get(LEASE, node, "kube-node-lease"))["spec"]["renewTime"]


def test_nodes_register_and_renew():
    async def body(client: Client) -> None:
        async with fleet(client):
            await all_ready(client)
            node = await client.get(NODE, "h0")
            assert (
                node["metadata"]["labels"] | {"rack": "r", "kubernetes.io/hostname": "h0"} == node["metadata"]["labels"]
            )
            assert node["status"]["capacity"] == node["status"]["allocatable"] == {"cpu": "8", "pods": "110"}
            assert node["status"]["declaredFeatures"] == ["DRANodeAllocatableResources", "DRAOptionalNodeOperations"]
            lease = await client.get(LEASE, "h0", "kube-node-lease")
            assert lease["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
            first = await renewals(client, "h0")
            await eventually(lambda: renewals(client, "h0"), lambda now: now != first)

    story(body)


def test_a_pod_runs_and_goes_when_deleted():
    async def body(client: Client) -> None:
        async with fleet(client):
            await all_ready(client)
            await start_pod(client, "p")
            await becomes(client, "p", "Running")
            await client.delete(POD, "p", "default")
            await becomes(client, "p", "gone")
            await start_pod(client, "short", **{"drakkar.dev/run-seconds": "0.1"})
            await becomes(client, "short", "Succeeded")

    story(body)


def test_a_pod_starts_when_its_claim_is_ready():
    async def body(client: Client) -> None:
        async with fleet(client):
            await all_ready(client)
            requests = [{"name": "r", "exactly": {"deviceClassName": "c"}}]
            await client.create(
                RESOURCECLAIM,
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceClaim",
                    "metadata": {"name": "claim", "namespace": "default"},
                    "spec": {"devices": {"requests": requests}},
                },
            )
            spec = {
                "containers": [{"name": "main", "image": "i", "resources": {"claims": [{"name": "c"}]}}],
                "nodeName": "h0",
                "resourceClaims": [{"name": "c", "resourceClaimName": "claim"}],
            }
            pod = await client.create(
                POD,
                {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"}, "spec": spec},
            )

            async def waiting() -> str:
                statuses = (await client.get(POD, "p", "default"))["status"].get("containerStatuses") or [{}]
                return statuses[0].get("state", {}).get("waiting", {}).get("message", "")

            await eventually(waiting, lambda text: "is not allocated" in text)
            result = {"request": "r", "driver": "d.example.com", "pool": "p", "device": "x"}
            status = {
                "allocation": {"devices": {"results": [result]}},
                "reservedFor": [{"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]}],
            }
            await client.patch(RESOURCECLAIM, "claim", "default", {"status": status}, subresource="status")
            await becomes(client, "p", "Running")

    story(body)


def test_a_failed_node_does_nothing_and_kills_before_it_is_ready_again():
    async def body(client: Client) -> None:
        async with fleet(client) as nodes:
            await all_ready(client)
            await start_pod(client, "stays")
            await start_pod(client, "goes")
            await start_pod(client, "forced")
            for name in ("stays", "goes", "forced"):
                await becomes(client, name, "Running")
            await mark(client, "h0", "failed")
            await eventually(lambda: asyncio.sleep(0, nodes.nodes["h0"].beat.live), lambda live: not live)
            # One may have been on its way.
            silent = ""
            while silent != (silent := await renewals(client, "h0")):
                await asyncio.sleep(PERIOD)
            await client.delete(POD, "goes", "default")
            await client.delete(POD, "forced", "default", grace=0)
            await client.patch(
                NODE,
                "h0",
                None,
                {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}},
                type="strategic",
                subresource="status",
            )
            unready = {"type": "Ready", "status": "False", "reason": "NodeUnreachable", "message": "silent"}
            await client.patch(POD, "stays", "default", {"status": {"conditions": [unready]}}, "strategic", "status")
            await asyncio.sleep(3 * PERIOD)
            assert await renewals(client, "h0") == silent
            assert await phase(client, "goes") == "Running"
            assert len(nodes._running) == 3
            gone: list[str] = []

            revision = (await client.list(NODE)).resource_version

            async def observe() -> None:
                async for event in client.watch(NODE, resource_version=revision):
                    is_node = event.type == "MODIFIED" and event.object["metadata"]["name"] == "h0"
                    if is_node and condition_is(event.object, "Ready"):
                        gone.append(await phase(client, "goes"))
                        return

            observer = asyncio.create_task(observe())
            await mark(client, "h0", None)
            await observer
            assert gone == ["gone"]
            assert await phase(client, "stays") == "Running"

            async def told() -> dict[str, Any]:
                return condition(await client.get(POD, "stays", "default"), "Ready") or {}

            # What was said of the pod in the meantime is taken back, with its reason.
            ready = await eventually(told, lambda found: found.get("status") == "True")
            assert not {"reason", "message"} & ready.keys()
            await eventually(lambda: asyncio.sleep(0, len(nodes._running)), lambda count: count == 1)
            await start_pod(client, "later")
            await becomes(client, "later", "Running")

    story(body)


def test_a_slow_node_takes_its_time():
    async def body(client: Client) -> None:
        async with fleet(client) as nodes:
            await all_ready(client)
            await mark(client, "h0", "slow")
            heard = nodes._node_cache
            await eventually(lambda: asyncio.sleep(0, heard.get("", "h0")), lambda node: fault_of(node or {}) == "slow")
            begun = client.clock.monotonic()
            await start_pod(client, "p")
            await becomes(client, "p", "Running")
            assert client.clock.monotonic() - begun >= SLOW_DELAY

    story(body)


def test_after_a_stop_a_node_looks_at_its_pods_before_it_renews():
    async def body(client: Client) -> None:
        clock = Skipping(client.clock)
        async with fleet(client, clock) as nodes:
            await all_ready(client)
            joined: list[str] = []
            join = nodes._beats.join

            async def noted(beat: Any, node: Any) -> None:
                joined.append(beat.name)
                await join(beat, node)

            nodes._beats.join = noted  # type: ignore[method-assign]
            await asyncio.sleep(2 * PERIOD)
            assert joined == []
            clock.offset += 10
            await eventually(lambda: asyncio.sleep(0, sorted(joined)), lambda names: names == ["h0", "h1"])
            # Noted when the join begins; the node lives once it has ended.
            await eventually(lambda: asyncio.sleep(0, [node.beat.live for node in nodes.nodes.values()]), all)

    story(body)


def test_a_server_that_is_away_is_waited_for():
    async def body(client: Client) -> None:
        away = False
        transport = client.transport
        request = transport.request

        async def faulty(wanted: Any) -> Any:
            if away:
                raise Unreachable("away")
            return await request(wanted)

        async with fleet(Client(Faulty(faulty), clock=client.clock)) as nodes:
            await all_ready(client)
            await start_pod(client, "p")
            await becomes(client, "p", "Running")
            away = True
            await eventually(lambda: asyncio.sleep(0, nodes.nodes["h0"].beat.live), lambda live: not live)
            await client.delete(POD, "p", "default")
            away = False
            await becomes(client, "p", "gone")
            first = await renewals(client, "h0")
            await eventually(lambda: renewals(client, "h0"), lambda now: now != first)

    story(body)


def test_a_pod_that_comes_while_its_node_joins_is_started():
    async def body(client: Client) -> None:
        async with fleet(client) as nodes:
            await all_ready(client)
            join = nodes._beats.join
            reached, go_on = asyncio.Event(), asyncio.Event()

            async def held(beat: Any, node: Any) -> None:
                reached.set()
                await go_on.wait()
                await join(beat, node)

            nodes._beats.join = held  # type: ignore[method-assign]
            beat = nodes.nodes["h0"].beat
            beat.live, beat.renewed = False, float("-inf")
            nodes._look_at("h0")
            await reached.wait()
            await start_pod(client, "late")
            await eventually(lambda: asyncio.sleep(0, nodes._pods.get("default", "late")), bool)
            await eventually(lambda: asyncio.sleep(0, len(nodes._queue)), lambda left: left <= 2)
            go_on.set()
            await becomes(client, "late", "Running")

    story(body)


def test_a_new_process_adopts_what_runs():
    async def body(client: Client) -> None:
        async with fleet(client):
            await all_ready(client)
            await start_pod(client, "p")
            await start_pod(client, "q")
            await becomes(client, "p", "Running")
            await becomes(client, "q", "Running")
        before = await client.get(POD, "p", "default")
        await client.delete(POD, "q", "default")
        async with fleet(client) as nodes:
            await eventually(lambda: asyncio.sleep(0, len(nodes._running)), lambda count: count == 1)
            await becomes(client, "q", "gone")
            assert (await client.get(POD, "p", "default"))["status"] == before["status"]

    story(body)


def test_a_removed_node_stays_away():
    async def body(client: Client) -> None:
        async with fleet(client) as nodes:
            await all_ready(client)
            await client.delete(NODE, "h1")
            await eventually(lambda: asyncio.sleep(0, nodes.nodes["h1"].beat.live), lambda live: not live)
            await asyncio.sleep(2 * PERIOD)
            assert [n["metadata"]["name"] for n in (await client.list(NODE)).items] == ["h0"]

    story(body)


def test_names_select_nodes():
    nodes = manifests()
    assert select_nodes(nodes, []) == nodes
    assert select_nodes(nodes, ["h1"]) == nodes[1:]
    with pytest.raises(UsageError, match="no node 'h7'"):
        select_nodes(nodes, ["h7"])
