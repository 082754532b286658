"""What held devices draw from counters when they are no longer published, before and after a restart."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from drakkar.allocator import Fits, NoFit
from drakkar.api.resource import v1
from drakkar.api.resource.validation import validate_update
from drakkar.inventory import Inventory, Switches
from drakkar.inventory.draws import recorded
from tests.support.allocation import DRIVER, allocated, chosen, claim, device, inventory, published, request, solve

POOL: dict[str, Any] = {"pool": "p", "count": 2}
COUNTERS = published("counters", counters={"c": {"m": "4"}}, **POOL)


def parts(*draws: int, **fields: Any) -> v1.ResourceSlice:
    """Devices ``d0``, ``d1``, … that draw this much."""
    devices = [
        device(f"d{n}", attributes={"kind": "part", "n": n}, draws={"c": {"m": str(draw)}})
        for n, draw in enumerate(draws)
        if draw
    ]
    return published("parts", devices, **{**POOL, **fields})


def held(books: Inventory, *, record: bool) -> v1.ResourceClaim:
    """A claim for the first device, as our scheduler writes it or as another one does."""
    pick = f'!("n" in device.attributes["{DRIVER}"]) || device.attributes["{DRIVER}"].n == 0'
    wanted = claim(request(select=pick), name="held")
    outcome = solve(books, wanted, policy="drakkar")
    assert isinstance(outcome, Fits)
    written = allocated(wanted, outcome)
    assert written.status.allocation is not None
    if record:
        allocation = recorded(books.snapshot().definitions(written.status.allocation), written.status.allocation)
        written = msgspec.structs.replace(
            written, status=msgspec.structs.replace(written.status, allocation=allocation)
        )
    return written


def devices_left(books: Inventory) -> int:
    """How many more devices can be had, one claim each; nothing is booked."""
    snapshot, number = books.snapshot(), 0
    while isinstance(outcome := solve(snapshot, claim(request()), policy="drakkar"), Fits):
        snapshot = snapshot.assume(outcome.allocations[0])
        number += 1
    assert isinstance(outcome, NoFit)
    return number


@pytest.mark.parametrize("after", ["claim-first", "slices-first"])
def test_a_restart_knows_from_the_allocation(after: str) -> None:
    written = held(inventory(COUNTERS, parts(3, 1, 1, 1)), record=True)
    now = [COUNTERS, parts(0, 1, 1, 1)]
    books = inventory(*([written, *now] if after == "claim-first" else [*now, written]))
    assert devices_left(books) == 1
    books.remove_claim("default", "held")
    assert devices_left(books) == 3


def test_a_smaller_draw_is_noticed_after_a_restart_too() -> None:
    written = held(inventory(COUNTERS, parts(3, 1, 1, 1)), record=True)
    assert devices_left(inventory(COUNTERS, parts(1, 1, 1, 1), written)) == 1
    # A larger one counts as it is now.
    assert devices_left(inventory(COUNTERS, parts(4, 1, 1, 1), written)) == 0


def test_older_slices_know_while_they_exist() -> None:
    written = held(inventory(COUNTERS, parts(3, 1, 1, 1)), record=False)
    old = msgspec.structs.replace(parts(3, 1), metadata=msgspec.structs.replace(COUNTERS.metadata, name="old"))
    newer = [
        msgspec.structs.replace(
            s, spec=msgspec.structs.replace(s.spec, pool=msgspec.structs.replace(s.spec.pool, generation=2))
        )
        for s in (COUNTERS, parts(0, 1, 1, 1))
    ]
    books = inventory(*newer, old, written)
    assert devices_left(books) == 1
    # What this inventory has seen it remembers, also when the old slice goes.
    books = inventory(*newer, old, written)
    books.remove_slice("old")
    assert devices_left(books) == 1


def test_what_nobody_knows_blocks_what_draws() -> None:
    written = held(inventory(COUNTERS, parts(3, 1, 1, 1)), record=False)
    plain = published("plain", [device("x")], pool="p", count=3)
    books = inventory(
        *(
            msgspec.structs.replace(
                s, spec=msgspec.structs.replace(s.spec, pool=msgspec.structs.replace(s.spec.pool, resourceSliceCount=3))
            )
            for s in (COUNTERS, parts(0, 1, 1, 1))
        ),
        plain,
        written,
    )
    assert devices_left(books) == 1, "the device that draws on nothing"
    drawing = 'device.attributes["gpu.example.com"].kind == "part"'
    refused = solve(books, claim(request(select=drawing)), policy="drakkar")
    assert isinstance(refused, NoFit)
    assert refused.reason.reason == "counters-exhausted"
    assert "nothing says what held device d0 draws" in refused.reason.message
    books.remove_claim("default", "held")
    assert devices_left(books) == 4


@pytest.mark.parametrize("restarted", [False, True])
def test_compatibility_groups_of_a_vanished_device_bind_newcomers(restarted: bool) -> None:
    def grouped(*groups: str | None) -> v1.ResourceSlice:
        devices = [
            device(
                f"d{n}",
                attributes={"kind": "part", "n": n},
                consumesCounters=[
                    {"counterSet": "c", "counters": {"m": {"value": "1"}}, "compatibilityGroups": [group]}
                ],
            )
            for n, group in enumerate(groups)
            if group is not None
        ]
        return published("parts", devices, **POOL)

    switches = Switches(CompatibilityGroups=True)
    books = inventory(COUNTERS, grouped("mig", "vgpu", "mig"), switches=switches)
    written = held(books, record=True)
    books.set_claim(written)
    if restarted:
        books = inventory(COUNTERS, grouped(None, "vgpu", "mig"), written, switches=switches)
    else:
        books.set_slice(grouped(None, "vgpu", "mig"))
    assert chosen(solve(books, claim(request()), policy="drakkar")) == ["d2"]
    assert chosen(solve(books, claim(request()))) == ["d1"]


def test_a_pool_without_counters_does_not_mind() -> None:
    written = held(inventory(published("s", [device("d0"), device("d1")])), record=False)
    assert devices_left(inventory(published("s", [device("d1")]), written)) == 1


def test_the_record_is_short_valid_and_only_where_counters_are() -> None:
    books = inventory(COUNTERS, parts(3, 1), published("plain", [device("x", attributes={"n": 7})], pool="q"))
    written = held(books, record=True)
    assert written.status.allocation is not None
    (entry,) = written.status.allocation.devices.config or ()
    assert entry.source == "FromClass"
    assert entry.opaque is not None
    assert (entry.opaque.driver, entry.opaque.parameters) == (
        "drakkar.dev",
        {
            "apiVersion": "drakkar.dev/v1alpha1",
            "kind": "DrawnCounters",
            "devices": [{"driver": "gpu.example.com", "pool": "p", "device": "d0", "counters": {"c": {"m": "3"}}}],
        },
    )
    before = msgspec.to_builtins(msgspec.structs.replace(written, status=v1.ResourceClaimStatus()))
    after = msgspec.to_builtins(written)
    for item in (before, after):
        item["metadata"] |= {"resourceVersion": "1", "finalizers": ["resource.kubernetes.io/delete-protection"]}
    errors = validate_update("ResourceClaim", after, before, "status")
    assert errors == []
    plain = claim(request(select='device.attributes["gpu.example.com"].n == 7'), name="plain")
    outcome = solve(books, plain, policy="drakkar")
    assert isinstance(outcome, Fits)
    allocation = outcome.allocations[0]
    assert recorded(books.snapshot().definitions(allocation), allocation) is allocation


@pytest.mark.parametrize(
    "parameters",
    [
        {"kind": "DrawnCounters", "devices": 3},
        {"apiVersion": "drakkar.dev/v1alpha1", "kind": "DrawnCounters", "devices": [{"driver": "x"}]},
        {"kind": "Other"},
    ],
)
def test_a_record_that_cannot_be_read_says_nothing(parameters: dict[str, Any]) -> None:
    written = held(inventory(COUNTERS, parts(3, 1, 1, 1)), record=True)
    assert written.status.allocation is not None
    opaque = v1.OpaqueDeviceConfiguration(driver="drakkar.dev", parameters=parameters)
    config = [v1.DeviceAllocationConfiguration(source="FromClass", opaque=opaque)]
    devices = msgspec.structs.replace(written.status.allocation.devices, config=config)
    allocation = msgspec.structs.replace(written.status.allocation, devices=devices)
    written = msgspec.structs.replace(written, status=msgspec.structs.replace(written.status, allocation=allocation))
    assert devices_left(inventory(COUNTERS, parts(0, 1, 1, 1), written)) == 0
    assert devices_left(inventory(COUNTERS, parts(3, 1, 1, 1), written)) == 1
