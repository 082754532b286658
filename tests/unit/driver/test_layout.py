"""Counters beside the devices that draw on them: nothing is split from its counters, nothing is over the limits."""

from __future__ import annotations

import random

from drakkar.api.resource import v1
from drakkar.driver import Pool, SliceContent, check_pool, consumes, counter_set
from drakkar.driver.layout import DRAWN_COUNTERS, SHARED_COUNTERS, beside_counters
from drakkar.drivers.tpu.shapes import Host, tpu_pool


def counters(prefix: str, number: int, size: int) -> v1.CounterSet:
    return counter_set(f"{prefix}-{number}", {f"c{place}": 8 for place in range(size)})


def drawing(name: str, **draws: int) -> v1.Device:
    """A device that draws on so many counters of these sets."""
    uses = [consumes(of.replace("_", "-"), {f"c{place}": 1 for place in range(count)}) for of, count in draws.items()]
    return v1.Device(name=name, consumesCounters=uses)


def check(pool: Pool) -> None:
    """What Kubernetes 1.34 asks of a slice, and that the pool is one."""
    assert check_pool(pool) == []
    for content in pool.slices:
        here = {found.name for found in content.shared_counters}
        uses = [use for device in content.devices for use in device.consumesCounters or ()]
        assert {use.counterSet for use in uses} == here
        assert len(content.devices) <= 128
        assert sum(len(found.counters) for found in content.shared_counters) <= SHARED_COUNTERS
        assert sum(len(use.counters) for use in uses) <= DRAWN_COUNTERS


def test_cards_with_partitions_share_slices_as_far_as_there_is_room() -> None:
    sets = SliceContent(shared_counters=tuple(counters("card", number, 10) for number in range(5)))
    parts = [drawing(f"part-{number}-{part}", **{f"card_{number}": 3}) for number in range(5) for part in range(4)]
    plain = v1.Device(name="plain")
    pool, left = beside_counters(
        Pool("p", (sets, SliceContent(devices=(*parts[:9], plain, *parts[9:]))), node_name="n")
    )
    check(pool)
    assert left == []
    assert [len(content.devices) for content in pool.slices] == [12, 8, 1]
    assert [device.name for device in pool.devices] == [*(part.name for part in parts), "plain"]
    assert pool.node_name == "n"


def test_the_64_chips_fit_into_one_slice() -> None:
    hosts = [Host(x, y, f"host-{x}-{y}", 2, 2) for x in range(4) for y in range(4)]
    split = tpu_pool("pod", hosts)
    pool, left = beside_counters(split)
    check(pool)
    assert left == []
    (content,) = pool.slices
    assert content.per_device_nodes
    assert [*pool.devices] == [*split.devices]


def test_of_a_larger_pod_the_small_shapes_stay() -> None:
    hosts = [Host(x, y, f"host-{x}-{y}", 2, 2) for x in range(8) for y in range(8)]
    split = tpu_pool("pod", hosts)
    pool, left = beside_counters(split)
    check(pool)
    kept = {device.name for device in pool.devices}
    assert kept.isdisjoint(left)
    assert kept | {*left} == {device.name for device in split.devices}
    single = {device.name for device in split.devices if len(device.consumesCounters[0].counters) == 1}
    assert len(single) == 64
    assert single <= kept


def test_devices_that_say_their_nodes_themselves_are_not_mixed_with_others() -> None:
    sets = SliceContent(shared_counters=(counters("card", 0, 1),))
    here, there = drawing("here", card_0=1), drawing("there", card_0=1)
    split = Pool("p", (sets, SliceContent(devices=(here,)), SliceContent(devices=(there,), per_device_nodes=True)))
    pool, left = beside_counters(split)
    check(pool)
    assert ([*pool.devices], left) == ([here], ["there"])


def test_any_pool() -> None:
    rng = random.Random(7)
    for _ in range(60):
        number = rng.randrange(1, 9)
        sets = [counters("set", each, rng.randrange(1, 40)) for each in range(number)]
        devices: list[v1.Device] = []
        for each in range(rng.randrange(1, 200)):
            of = rng.sample(sets, rng.choice([0, 1, 1, 1, 2]) if number > 1 else 1)
            draws = {found.name.replace("-", "_"): rng.randrange(1, len(found.counters) + 1) for found in of}
            devices.append(drawing(f"d{each}", **draws) if draws else v1.Device(name=f"d{each}"))
        cut = rng.randrange(len(devices))
        contents = (
            SliceContent(shared_counters=tuple(sets)),
            SliceContent(devices=tuple(devices[:cut])),
            SliceContent(devices=tuple(devices[cut:])),
        )
        pool, left = beside_counters(Pool("p", contents))
        check(pool)
        assert sorted([*(device.name for device in pool.devices), *left]) == sorted(device.name for device in devices)
