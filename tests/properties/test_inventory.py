"""Any sequence of events leaves the inventory that the last state makes; overlays leave no trace."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import pytest

from drakkar.allocator import Fits, NoFit, prepare
from drakkar.api.resource.v1 import AllocationResult, DeviceTaintRule, ResourceClaim, ResourceSlice
from drakkar.inventory import Inventory, Snapshot
from tests.support.allocation import (
    DRIVER,
    HOST,
    allocated,
    claim,
    device,
    device_class,
    on_hosts,
    published,
    request,
    taint_rule,
)

NODES = ("n1", "n2", "n3")


def a_slice(rnd: random.Random, number: int) -> ResourceSlice:
    """A version of slice ``number``: pools, generations, reach and devices change from version to version."""
    where = rnd.choice(
        [{"nodeName": rnd.choice(NODES)}, {"allNodes": True}, {"nodeSelector": on_hosts(*rnd.sample(NODES, 2))}]
    )
    devices = [
        device(f"d{number}-{place}", attributes={"kind": rnd.choice("ab"), "root": rnd.randint(0, 1)})
        for place in range(rnd.randint(0, 3))
    ]
    pool = f"p{number % 3}" if rnd.random() < 0.9 else "p9"
    return published(
        f"s{number}", devices, pool=pool, generation=rnd.choice([1, 1, 2]), count=rnd.choice([1, 2]), **where
    )


def a_claim(rnd: random.Random, name: str) -> ResourceClaim:
    """A claim for one or two requests, perhaps on a common root."""
    wishes = [
        request(f"r{place}", rnd.randint(1, 2), f'device.attributes["{DRIVER}"].kind == "{rnd.choice("ab")}"')
        for place in range(rnd.randint(1, 2))
    ]
    more: dict[str, Any] = {"constraints": [{"matchAttribute": f"{DRIVER}/root"}]} if rnd.random() < 0.4 else {}
    return claim(*wishes, name=name, **more)


class State:
    """The last version of every object, and the inventory that saw all of them."""

    def __init__(self) -> None:
        self.books = Inventory()
        self.books.set_class(device_class())
        self.slices: dict[str, ResourceSlice] = {}
        self.nodes: dict[str, dict[str, str]] = {}
        self.rules: dict[str, DeviceTaintRule] = {}
        self.claims: dict[str, ResourceClaim] = {}

    def step(self, rnd: random.Random) -> None:
        """One random event."""
        match rnd.randint(0, 6):
            case 0 | 1:
                made = a_slice(rnd, rnd.randint(0, 5))
                before = self.slices.get(made.metadata.name)
                if before is not None and before.spec.pool.name != made.spec.pool.name:
                    # It comes last in its new pool. Where slices of a pool contradict each other, the first counts.
                    del self.slices[made.metadata.name]
                self.slices[made.metadata.name] = made
                self.books.set_slice(made)
            case 2 if self.slices:
                name = rnd.choice(sorted(self.slices))
                del self.slices[name]
                self.books.remove_slice(name)
            case 3:
                name = rnd.choice(NODES)
                if name in self.nodes and rnd.random() < 0.3:
                    del self.nodes[name]
                    self.books.remove_node(name)
                else:
                    self.nodes[name] = {HOST: name} if rnd.random() < 0.8 else {}
                    self.books.set_node(name, self.nodes[name])
            case 4:
                name = rnd.choice(["t1", "t2"])
                if name in self.rules and rnd.random() < 0.5:
                    del self.rules[name]
                    self.books.remove_taint_rule(name)
                else:
                    self.rules[name] = taint_rule(name, "k", pool=f"p{rnd.randint(0, 2)}")
                    self.books.set_taint_rule(self.rules[name])
            case 5 if self.claims:
                name = rnd.choice(sorted(self.claims))
                del self.claims[name]
                self.books.remove_claim("default", name)
            case _:
                if not self.nodes:
                    return
                wanted = a_claim(rnd, f"held{rnd.randint(0, 5)}")
                if wanted.metadata.name in self.claims:
                    return
                outcome = prepare(self.books.snapshot(), [wanted]).solve(rnd.choice(sorted(self.nodes)))
                if isinstance(outcome, Fits):
                    written = allocated(wanted, outcome)
                    self.claims[wanted.metadata.name] = written
                    self.books.set_claim(written)

    def fresh(self) -> Inventory:
        """An inventory that saw only the last state, nodes in the order of the other one."""
        books = Inventory()
        books.set_class(device_class())
        for name in self.books.snapshot().nodes:
            books.set_node(name, self.nodes[name])
        for made in self.slices.values():
            books.set_slice(made)
        for rule in self.rules.values():
            books.set_taint_rule(rule)
        for written in self.claims.values():
            books.set_claim(written)
        return books


def answers(snapshot: Snapshot, seed: int) -> list[Any]:
    """Everything the allocator says about some claims."""
    rnd = random.Random(seed)
    found: list[Any] = []
    for number in range(6):
        problem = prepare(snapshot, [a_claim(rnd, f"c{number}")], rnd.choice(["drakkar", "upstream"]))
        found.append(problem.feasible())
        found += [problem.solve(name) for name in snapshot.nodes]
    return found


@pytest.mark.parametrize("seed", range(25))
def test_an_inventory_kept_by_events_equals_a_fresh_one(seed: int) -> None:
    rnd = random.Random(seed)
    state = State()
    for number in range(60):
        state.step(rnd)
        if number % 6 == 5:
            assert answers(state.books.snapshot(), number) == answers(state.fresh().snapshot(), number), number


@pytest.mark.parametrize("seed", range(15))
def test_what_if_leaves_no_trace(seed: int) -> None:
    """Assumed and released again, in any order, a snapshot answers as before; the first one never changes."""
    rnd = random.Random(seed)
    state = State()
    for _ in range(40):
        state.step(rnd)
    start = state.books.snapshot()
    before = answers(start, seed)
    overlay, held = start, list[AllocationResult]()
    for number in range(6):
        for name in start.nodes:
            outcome = prepare(overlay, [a_claim(rnd, f"w{number}")]).solve(name)
            if isinstance(outcome, Fits):
                held.append(outcome.allocations[0])
                overlay = overlay.assume(held[-1])
        if number % 3 == 2:
            told = state.fresh()
            for place, allocation in enumerate(held):
                told.assume(f"what-if-{place}", allocation)
            assert answers(overlay, seed) == answers(told.snapshot(), seed)
    rnd.shuffle(held)
    for allocation in held:
        overlay = overlay.release(allocation)
    assert answers(overlay, seed) == before
    assert answers(start, seed) == before
    assert answers(state.books.snapshot(), seed) == before


@pytest.mark.parametrize("seed", range(60))
def test_solutions_are_checked_and_refusals_are_true(seed: int) -> None:
    """One node, partitions that share a counter: all choices are counted out by hand."""
    rnd = random.Random(seed)
    devices = [
        {"kind": rnd.choice("ab"), "root": rnd.randint(0, 2), "draw": rnd.randint(1, 3)}
        for _ in range(rnd.randint(2, 7))
    ]
    total = rnd.randint(2, 8)
    books = Inventory()
    books.set_class(device_class())
    books.set_node("n1", {})
    books.set_slice(published("counters", counters={"c": {"m": str(total)}}, count=2))
    books.set_slice(
        published(
            "parts",
            [
                device(
                    f"d{place}",
                    attributes={"kind": d["kind"], "root": d["root"]},
                    draws={"c": {"m": str(d["draw"])}},
                )
                for place, d in enumerate(devices)
            ],
            count=2,
        )
    )
    wishes = [(rnd.choice("ab"), rnd.randint(1, 2)) for _ in range(rnd.randint(1, 3))]
    rule = rnd.choice([None, "matchAttribute", "distinctAttribute"])
    wanted = claim(
        *[
            request(f"r{n}", count, f'device.attributes["{DRIVER}"].kind == "{kind}"')
            for n, (kind, count) in enumerate(wishes)
        ],
        **({"constraints": [{rule: f"{DRIVER}/root"}]} if rule else {}),
    )

    def allowed(chosen: list[int]) -> bool:
        roots = [devices[place]["root"] for place in chosen]
        return (
            len(set(chosen)) == len(chosen)
            and sum(devices[place]["draw"] for place in chosen) <= total
            and (rule != "matchAttribute" or len(set(roots)) == 1)
            and (rule != "distinctAttribute" or len(set(roots)) == len(roots))
        )

    def possible(number: int, chosen: list[int]) -> bool:
        if number == len(wishes):
            return allowed(chosen)
        kind, count = wishes[number]
        fitting = [place for place, d in enumerate(devices) if d["kind"] == kind]
        return any(possible(number + 1, [*chosen, *group]) for group in combinations(fitting, count))

    problem = prepare(books.snapshot(), [wanted])
    outcome = problem.solve("n1")
    if possible(0, []):
        assert isinstance(outcome, Fits), outcome
        assert problem.feasible().nodes == ("n1",)
        results = outcome.allocations[0].devices.results or ()
        chosen = [int(result.device[1:]) for result in results]
        assert allowed(chosen)
        for number, (kind, count) in enumerate(wishes):
            mine = [int(result.device[1:]) for result in results if result.request == f"r{number}"]
            assert len(mine) == count
            assert all(devices[place]["kind"] == kind for place in mine)
    else:
        assert isinstance(outcome, NoFit), outcome
        assert outcome.proved
