"""Many devices asked together get the answers that each would get by itself."""

from __future__ import annotations

import random

import pytest

from drakkar.inventory.collector import paused
from drakkar.inventory.drakkarcel import DrakkarCel
from drakkar.inventory.pools import Base
from drakkar.inventory.selection import ERROR, NO, YES, SelectorTable
from tests.support.allocation import device, inventory, published

ATTRIBUTES = 'device.attributes["gpu.example.com"]'
EXPRESSIONS = (
    'device.driver == "gpu.example.com"',
    'device.driver == "other"',
    f'{ATTRIBUTES}.model == "a" || {ATTRIBUTES}.size > 2',
    f'{ATTRIBUTES}.uuid == "u-17"',
    f'{ATTRIBUTES}.uuid == "nobody"',
    f'!({ATTRIBUTES}.mixed == "1.0.0")',
    f'{ATTRIBUTES}.mixed.isGreaterThan(semver("0.9.0"))',
    f'"model" in {ATTRIBUTES} && {ATTRIBUTES}.model != "b" && device.allowMultipleAllocations',
    'device.capacity["gpu.example.com"].memory.compareTo(quantity("3Gi")) >= 0',
    "true",
)
SIZE = 90


def bases(slices: int) -> list[Base]:
    rnd = random.Random(7)
    found: list[Base] = []
    for number in range(slices):
        devices = []
        for place in range(SIZE):
            attributes = {"uuid": f"u-{number * SIZE + place}", "size": rnd.randint(0, 4)}
            if rnd.random() < 0.8:
                attributes["model"] = rnd.choice("abc")
            if rnd.random() < 0.5:
                attributes["mixed"] = rnd.choice([{"version": "1.0.0"}, {"string": "1.0.0"}, {"version": "1.2"}, {}])
            more = {"allowMultipleAllocations": True} if rnd.random() < 0.3 else {}
            capacity = {"memory": rnd.choice(["1Gi", "3Gi", "4096Mi"])} if rnd.random() < 0.9 else {}
            devices.append(device(f"d{place}", attributes=attributes, capacity=capacity, **more))
        books = inventory(published(f"s{number}", devices, pool=f"p{number}"))
        (pool,) = books.snapshot().world.pools.values()
        found.append(pool.any_base())
    return found


@pytest.mark.parametrize("first", [47, 1])
def test_answers_are_those_of_each_device(first: int) -> None:
    """Also for rows that come when there are some already, and for few more."""
    made = bases(48)
    together, alone = SelectorTable(DrakkarCel()), SelectorTable(DrakkarCel())
    for text in EXPRESSIONS:
        for group in (made[:first], made[first:]):
            for base in group:
                for member in base.members:
                    together.enter(member)
            for base in group:
                yes, error = together.select(text, base)
                for position, record in enumerate(base.devices):
                    answer = alone.selector(text).ask(record, alone)
                    wanted = ERROR if isinstance(answer, Exception) else YES if answer else NO
                    got = ERROR if error >> position & 1 else YES if yes >> position & 1 else NO
                    assert got == wanted, (text, record.device)
                    if isinstance(answer, Exception) and position < 3:
                        assert str(together.selector(text).ask(record, together)) == str(answer)


def test_the_collector_runs_again_after_a_pause() -> None:
    import gc

    with paused():
        assert not gc.isenabled()
    assert gc.isenabled()
