"""Held devices that come, go and change: what an inventory saw happen, it knows from the objects alone."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from drakkar.allocator import Fits, prepare
from drakkar.api.resource import v1
from drakkar.api.resource.drawn import function_of, port_counters
from drakkar.inventory import Inventory
from drakkar.inventory.draws import recorded
from tests.support.allocation import allocated, claim, device, inventory, published, request

PORT = port_counters("p0", "10", 3)


def slices(rnd: random.Random) -> list[v1.ResourceSlice]:
    """A pool of partitions and a pool of functions, some of them missing or changed from time to time."""
    draws = [
        device(f"d{n}", attributes={"kind": "part"}, draws={"c": {"m": str(rnd.choice([1, 1, 2, 3]))}})
        for n in range(4)
        if rnd.random() < 0.8
    ]
    span = v1.CapacityRequestPolicyRange(min="1")
    amount = v1.DeviceCapacity(value="8", requestPolicy=v1.CapacityRequestPolicy(default="2", validRange=span))
    kind = {"kind": v1.DeviceAttribute(string="function")}
    functions = [msgspec.to_builtins(function_of(PORT, f"f{n}", amount, kind)) for n in range(3) if rnd.random() < 0.8]
    parts: dict[str, Any] = {"pool": "parts", "count": 2}
    nics: dict[str, Any] = {"pool": "nics", "count": 2}
    return [
        published("parts-counters", counters={"c": {"m": "6"}}, **parts),
        published("parts-devices", draws, **parts),
        published("nics-counters", counters={"p0": {k: c.value for k, c in PORT.counters.items()}}, **nics),
        published("nics-devices", functions, **nics),
    ]


def wish(rnd: random.Random, name: str) -> v1.ResourceClaim:
    if rnd.random() < 0.5:
        return claim(request(select='device.attributes["gpu.example.com"].kind == "part"'), name=name)
    select = 'device.attributes["gpu.example.com"].kind == "function"'
    return claim(request(select=select, capacity={"bandwidth": str(rnd.randint(1, 6))}), name=name)


def answers(books: Inventory, seed: int) -> list[Any]:
    snapshot, rnd = books.snapshot(), random.Random(seed)
    problems = [prepare(snapshot, [wish(rnd, f"w{n}")], share_id=lambda: "share") for n in range(5)]
    return [(problem.feasible(), problem.solve("n1")) for problem in problems]


@pytest.mark.parametrize("seed", range(12))
def test_a_restart_changes_no_answer(seed: int) -> None:
    rnd = random.Random(seed)
    now = slices(rnd)
    books = inventory(*now)
    held: dict[str, v1.ResourceClaim] = {}
    for number in range(60):
        match rnd.randrange(4):
            case 0:
                now = slices(rnd)
                for made in now:
                    books.set_slice(made)
            case 1 if held:
                name = rnd.choice(sorted(held))
                del held[name]
                books.remove_claim("default", name)
            case _:
                wanted = wish(rnd, f"c{number}")
                share = f"share-{number}"
                outcome = prepare(books.snapshot(), [wanted], share_id=lambda share=share: share).solve("n1")
                if isinstance(outcome, Fits):
                    allocation = outcome.allocations[0]
                    allocation = recorded(books.snapshot().definitions(allocation), allocation)
                    written = allocated(wanted, Fits((allocation,)))
                    held[wanted.metadata.name] = written
                    books.set_claim(written)
        if number % 5 == 4:
            order: list[Any] = [*now, *held.values()]
            rnd.shuffle(order)
            assert answers(books, number) == answers(inventory(*order), number), number
