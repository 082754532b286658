"""Answers are shared between nodes that are equal up to names; no node may notice."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest

from drakkar.allocator import Fits, prepare
from drakkar.api.resource.v1 import AllocationResult, ResourceClaim, ResourceSlice
from drakkar.inventory import Inventory, Switches
from tests.support.allocation import DRIVER, claim, device, device_class, inventory, published, ranked, request

EVERYTHING = Switches(
    CompatibilityGroups=True, DerivedAttributes=True, ListTypeAttributes=True, OptionalNodeOperations=True
)
OF_KIND = f'device.attributes["{DRIVER}"].kind == "{{}}"'


def usual(serial: int) -> list[dict[str, Any]]:
    """What most nodes have: plain devices, partitions, a shareable one; the serial differs everywhere."""
    plain = [
        device(f"g{n}", attributes={"kind": "plain", "root": n // 2, "serial": f"{serial}-{n}"}, capacity={"mem": "8"})
        for n in range(3)
    ]
    parts = [device(f"p{n}", attributes={"kind": "part", "root": n}, draws={"c": {"m": str(n + 1)}}) for n in range(3)]
    shared = device("s0", attributes={"kind": "shared"}, capacity={"bw": "10"}, allowMultipleAllocations=True)
    return [*plain, *parts, shared]


def _devices(change: Callable[[dict[str, Any]], Any]) -> Callable[[random.Random, dict[str, Any]], None]:
    def twist(rnd: random.Random, spec: dict[str, Any]) -> None:
        for found in spec["devices"] if rnd.random() < 0.5 else [spec["devices"][rnd.choice([0, 3, 6])]]:
            change(found)

    return twist


def _attribute(name: str, value: dict[str, Any] | None) -> Callable[[random.Random, dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        found["attributes"].pop(name, None)
        if value is not None:
            found["attributes"][name] = value

    return _devices(change)


#: Ways in which a node differs from the usual one.
TWISTS: list[Callable[[random.Random, dict[str, Any]], None]] = [
    _attribute("kind", {"string": "plain"}),
    _attribute("kind", {"string": "part"}),
    _attribute("kind", None),
    _attribute("root", {"int": 7}),
    _attribute("root", {"string": "0"}),
    _attribute("root", {"ints": [0, 1]}),
    _attribute("root", None),
    _attribute("empty", {}),
    _attribute("drawn-from.drakkar.dev/bw", {"string": "c/m"}),
    _devices(lambda found: found.update(taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}])),
    _devices(lambda found: found.update(taints=[{"key": "k", "value": "v", "effect": "None"}])),
    _devices(lambda found: found.update(capacity={"mem": {"value": "4"}, "bw": {"value": "3"}})),
    _devices(
        lambda found: found.update(
            capacity={"bw": {"value": "10", "requestPolicy": {"default": "6", "validValues": ["6", "8"]}}},
        )
    ),
    _devices(lambda found: found.update(allowMultipleAllocations=True)),
    _devices(lambda found: found.update(bindingConditions=["x"], bindingFailureConditions=["y"])),
    _devices(lambda found: found.update(bindsToNode=True)),
    _devices(lambda found: found.update(consumesCounters=[{"counterSet": "c", "counters": {"m": {"value": "3"}}}])),
    _devices(lambda found: found.update(consumesCounters=[{"counterSet": "none", "counters": {"m": {"value": "3"}}}])),
    _devices(
        lambda found: found.update(
            consumesCounters=[{"counterSet": "c", "counters": {"m": {"value": "1"}}, "compatibilityGroups": ["a"]}]
        )
    ),
    _devices(lambda found: found.update(name="other")),
    _devices(lambda found: found.update(name="g1")),
    lambda rnd, spec: spec["devices"].reverse(),
    lambda rnd, spec: spec["devices"].pop(rnd.randrange(len(spec["devices"]))),
    lambda rnd, spec: spec.update(skipNodeOperations=["NodePrepareResources"]),
    lambda rnd, spec: spec.update(count=3),
    lambda rnd, spec: spec.update(total="4"),
]


#: Three usual nodes, one for each twist, three with two twists.
NODES = tuple(f"n{number}" for number in range(len(TWISTS) + 6))


def slices_of(rnd: random.Random, number: int) -> list[ResourceSlice]:
    """The slices of one node."""
    name = NODES[number]
    spec: dict[str, Any] = {"devices": copy.deepcopy(usual(number)), "total": "5", "count": 2}
    if 3 <= number < len(TWISTS) + 3:
        TWISTS[number - 3](rnd, spec)
    elif number >= 3:
        rnd.choice(TWISTS)(rnd, spec)
        rnd.choice(TWISTS)(rnd, spec)
    pool = {"pool": name, "nodeName": name, "count": spec.pop("count")}
    total = spec.pop("total")
    devices = spec.pop("devices")
    return [
        published(f"a-{name}", counters={"c": {"m": total}}, **pool),
        published(f"b-{name}", devices, **pool, **spec),
    ]


def wish(rnd: random.Random, number: int) -> ResourceClaim:
    """A random claim."""

    def one(name: str) -> dict[str, Any]:
        kind = rnd.choice(["plain", "plain", "part", "shared"])
        more: dict[str, Any] = {}
        if kind != "part" and rnd.random() < 0.4:
            more["capacity"] = {"mem" if kind == "plain" else "bw": str(rnd.randint(1, 8))}
        if rnd.random() < 0.2:
            more["tolerations"] = [{"key": "k", "operator": "Exists"}]
        if rnd.random() < 0.1:
            more["adminAccess"] = True
        select = rnd.choice([OF_KIND.format(kind), OF_KIND.format(kind), "true"])
        return request(name, rnd.choice([0, 1, 1, 1, 2]), select, **more)

    wishes = [one("r")]
    if rnd.random() < 0.2:
        wishes = [ranked("r", request("x", 2, OF_KIND.format("part")), request("y", 1, OF_KIND.format("plain")))]
    if rnd.random() < 0.3:
        wishes.append(one("q"))
    rule = rnd.choice([None, None, "matchAttribute", "distinctAttribute"])
    return claim(*wishes, name=f"c{number}", **({"constraints": [{rule: f"{DRIVER}/root"}]} if rule else {}))


def alone(name: str, slices: list[ResourceSlice], held: dict[str, AllocationResult], switches: Switches) -> Inventory:
    """An inventory that knows one node only."""
    books = inventory(device_class(), *slices, nodes=[name], switches=switches)
    for uid, allocation in held.items():
        books.assume(uid, allocation)
    return books


@pytest.mark.parametrize("policy", ["drakkar", "upstream"])
@pytest.mark.parametrize("seed", range(6))
def test_a_node_answers_in_a_fleet_as_it_does_alone(seed: int, policy: str) -> None:
    rnd = random.Random(seed)
    switches = EVERYTHING if seed % 2 else Switches()
    published_on = {name: slices_of(rnd, number) for number, name in enumerate(NODES)}
    fleet = inventory(*[s for slices in published_on.values() for s in slices], nodes=NODES, switches=switches)
    held: dict[str, dict[str, AllocationResult]] = {name: {} for name in NODES}
    kinds = [wish(rnd, number) for number in range(5)]
    for number in range(10):
        wanted = rnd.choice(kinds)
        problem = prepare(fleet.snapshot(), [wanted], policy, lambda: f"share-{number}")  # noqa: B023
        feasible = problem.feasible()
        fitting = problem.fitting()
        outcomes = [problem.solve(name) for name in NODES]
        assert fitting == [name for name, outcome in zip(NODES, outcomes, strict=True) if isinstance(outcome, Fits)]
        assert problem.fitting(2) == fitting[:2]
        for name, outcome in zip(NODES, outcomes, strict=True):
            books = alone(name, published_on[name], held[name], switches)
            other = prepare(books.snapshot(), [wanted], policy, lambda: f"share-{number}")  # noqa: B023
            assert other.solve(name) == outcome, (number, name)
            assert (name in feasible.nodes) == bool(other.feasible().nodes), (number, name)
            assert problem.reasons([name]) == other.reasons([name])
            # The same is booked on most nodes, so that most stay alike.
            if isinstance(outcome, Fits) and rnd.random() < 0.8:
                held[name][f"uid-{number}-{name}"] = outcome.allocations[0]
                fleet.assume(f"uid-{number}-{name}", outcome.allocations[0])
            elif held[name] and rnd.random() < 0.5:
                uid = min(held[name])
                del held[name][uid]
                fleet.forget(uid)
        changed = rnd.randrange(len(NODES))
        for uid in held[NODES[changed]]:
            fleet.forget(uid)
        held[NODES[changed]].clear()
        published_on[NODES[changed]] = slices_of(rnd, changed)
        for made in published_on[NODES[changed]]:
            fleet.set_slice(made)


@pytest.mark.parametrize("seed", range(8))
def test_what_all_nodes_look_at_changes_like_what_is_their_own(seed: int) -> None:
    """Two equal pools for all nodes, equal pools for single ones; booked and released one by one."""
    rnd = random.Random(seed)
    names = [f"n{number}" for number in range(5)]

    def two(prefix: str) -> list[dict[str, Any]]:
        return [device(f"{prefix}{n}", attributes={"kind": "plain", "root": n}) for n in range(2)]

    slices = [published(name, two("f"), pool=name, allNodes=True) for name in ("fabric-1", "fabric-2")]
    slices += [published(f"own-{name}", two("g"), pool=name, nodeName=name) for name in names[:4]]
    slices.append(published("lonely", two("g"), pool="lonely", nodeName=names[4], count=2))
    fleet = inventory(*slices, nodes=names)
    kinds = [claim(request(count=count, select=OF_KIND.format("plain")), name=f"c{count}") for count in range(1, 7)]
    held: dict[str, AllocationResult] = {}
    for number in range(60):
        wanted = rnd.choice(kinds)
        problem = prepare(fleet.snapshot(), [wanted])
        feasible = problem.feasible()
        fresh = inventory(*slices, nodes=names)
        for uid, allocation in held.items():
            fresh.assume(uid, allocation)
        other = prepare(fresh.snapshot(), [wanted])
        assert feasible == other.feasible(), number
        assert problem.fitting() == other.fitting(), number
        outcome = problem.solve(rnd.choice(names))
        if isinstance(outcome, Fits):
            held[f"uid-{number}"] = outcome.allocations[0]
            fleet.assume(f"uid-{number}", outcome.allocations[0])
        for _ in range(rnd.choice([0, 1, 1])):
            if held:
                uid = rnd.choice(sorted(held))
                del held[uid]
                fleet.forget(uid)
