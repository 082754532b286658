"""Equal pods in one pass over the nodes: what each gets is what it would get by itself."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from drakkar.api.kinds import DEVICECLASS, NODE, POD, RESOURCECLAIM, RESOURCESLICE
from drakkar.scheduler import Cluster, Placement, decide
from drakkar.scheduler.decide import Trail
from drakkar.scheduler.equal import follow, in_line, kind_of
from tests.unit.client.fakeserver import FakeServer
from tests.unit.scheduler.build import claim, cluster, device_class, node, node_slice, requesting, view
from tests.unit.scheduler.test_scheduler import Running, holders, message, node_of, until


def world(seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Nodes of different sizes, some tainted, and more equal pods than they can take."""
    rng = random.Random(seed)
    objects: list[dict[str, Any]] = [device_class()]
    for number in range(12):
        hard = ({"key": "x", "effect": "NoSchedule"},) if rng.random() < 0.2 else ()
        soft = ({"key": "y", "effect": "PreferNoSchedule"},) if rng.random() < 0.2 else ()
        objects.append(node(f"n{number}", taints=(*hard, *soft), cpu=str(rng.randrange(0, 5))))
        if rng.random() < 0.8:
            objects.append(node_slice(f"n{number}", rng.randrange(0, 4)))
    count = rng.choice((1, 1, 2))
    pods = [requesting(f"p-{number}", f"c-{number}", cpu="1") for number in range(25)]
    return [*objects, *(claim(f"c-{number}", count) for number in range(25)), *pods], pods


def one_by_one(state: Cluster, pods: list[dict[str, Any]]) -> list[str]:
    found: list[str] = []
    for obj in pods:
        decision = decide(state, view(obj))
        found.append(decision.node if isinstance(decision, Placement) else "")
        if isinstance(decision, Placement):
            state.assume(view(obj), decision.node, decision.allocations)
    return found


def in_one_pass(state: Cluster, pods: list[dict[str, Any]]) -> tuple[list[str], int]:
    """Like the scheduler: as long as the trail leads on; and how many were placed by it."""
    found: list[str] = []
    followed = 0
    trail = Trail()
    for obj in pods:
        pod = view(obj)
        decision: Any = follow(state, pod, trail, "drakkar") if trail.names and in_line(pod, state) else None
        followed += decision is not None
        if decision is None:
            trail = Trail()
            decision = decide(state, pod, trail=trail)
        found.append(decision.node if isinstance(decision, Placement) else "")
        if isinstance(decision, Placement):
            state.assume(pod, decision.node, decision.allocations)
    return found, followed


@pytest.mark.parametrize("seed", range(20))
def test_a_pass_gives_what_single_decisions_give(seed: int) -> None:
    objects, pods = world(seed)
    alone = one_by_one(cluster(*objects), pods)
    together, followed = in_one_pass(cluster(*objects), pods)
    assert together == alone
    placed = sum(bool(name) for name in alone)
    assert followed > 0 or placed < 2


def test_what_makes_pods_different() -> None:
    objects, _ = world(1)
    state = cluster(*objects)

    def key(obj: dict[str, Any]) -> bytes | None:
        kind = kind_of(state, view(obj))
        return kind.key if kind is not None else None

    first = requesting("p-0", "c-0", cpu="1")
    assert key(first) == key(requesting("p-1", "c-1", cpu="1"))
    assert key(first) != key(requesting("p-1", "c-1", cpu="2"))
    assert key(first) != key(requesting("p-1", cpu="1"))
    tolerant = requesting("p-1", "c-1", cpu="1")
    tolerant["spec"]["tolerations"] = [{"operator": "Exists"}]
    assert key(first) != key(tolerant)
    relying = requesting("p-1", "c-1", cpu="1")
    relying["spec"] |= {"hostNetwork": True, "hostUsers": False}
    assert key(first) != key(relying)
    # Labels do not matter until somebody looks at them.
    labelled = requesting("p-1", "c-1", cpu="1")
    labelled["metadata"]["labels"] = {"index": "1"}
    assert key(first) == key(labelled)
    # A claim that another pod uses too is nobody's own.
    state.set_pod(requesting("q", "c-0", cpu="1"))
    assert key(first) is None
    grouped = requesting("p-1", "c-1", cpu="1")
    grouped["spec"]["schedulingGroup"] = {"podGroupName": "g"}
    assert key(grouped) is None


def test_a_backlog_of_equal_pods_is_placed_in_passes() -> None:
    async def scenario() -> None:
        server = FakeServer()
        server.put(DEVICECLASS, device_class())
        for number in range(10):
            server.put(NODE, node(f"n{number}"))
            server.put(RESOURCESLICE, node_slice(f"n{number}", 3))
        for number in range(32):
            server.put(RESOURCECLAIM, claim(f"c-{number}"))
            server.put(POD, requesting(f"p-{number}", f"c-{number}"))
        async with Running(server) as scheduler:
            await until(lambda: sum(bool(node_of(server, f"p-{n}")) for n in range(32)) == 30)
            await until(lambda: sum(bool(message(server, f"p-{n}")) for n in range(32)) == 2)
            # Two decisions, one that a place is found by and one that none is, would do; watches may come in between.
            assert scheduler.metrics["decisions"] <= 6
            assert scheduler.metrics["answered_alike"] >= 26
        held = holders(server)
        assert len(held) == 30
        assert all(len(names) == 1 for names in held.values())

    asyncio.run(scenario())
