"""Recounts what allocations hold, from the objects alone; shares no code with the engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from drakkar.api.quantity import Quantity
from drakkar.api.resource.v1 import AllocationResult, Device, ResourceSlice

Counter = tuple[str, str, str, str]


def exact(text: str) -> Fraction:
    """A quantity as a fraction."""
    return Fraction(Quantity.parse(text).nanos, 10**9)


def faults(
    slices: Iterable[ResourceSlice], held: Mapping[str, AllocationResult], gone: Mapping[tuple[str, str], Device] = {}
) -> list[str]:
    """What is held twice, overdrawn or unknown; ``gone`` are devices (pool, name) that no slice publishes any more."""
    slices = list(slices)
    devices = {(s.spec.pool.name, d.name): d for s in slices for d in s.spec.devices or ()} | dict(gone)
    left: dict[tuple[str, str, str], Fraction] = {
        (s.spec.pool.name, c.name, name): exact(value.value)
        for s in slices
        for c in s.spec.sharedCounters or ()
        for name, value in c.counters.items()
    }
    found: list[str] = []
    owners: dict[tuple[str, str], str] = {}
    consumed: dict[tuple[str, str, str], Fraction] = {}
    charged: set[tuple[str, str]] = set()
    for uid, allocation in held.items():
        for result in allocation.devices.results or ():
            place = (result.pool, result.device)
            device = devices.get(place)
            if result.adminAccess:
                continue
            if device is None:
                found.append(f"{place} does not exist")
                continue
            if result.shareID is None:
                if place in owners:
                    found.append(f"{place} belongs to {owners[place]} and {uid}")
                owners[place] = uid
            shares = result.consumedCapacity or {}
            for name, text in shares.items():
                consumed[(*place, name)] = consumed.get((*place, name), Fraction(0)) + exact(text)
            if place not in charged:
                charged.add(place)
                for use in device.consumesCounters or ():
                    for name, value in use.counters.items():
                        left[(result.pool, use.counterSet, name)] -= exact(value.value)
            for key, attribute in (device.attributes or {}).items():
                domain, _, capacity = key.partition("/")
                if domain == "drawn-from.drakkar.dev":
                    counter_set, _, counter = (attribute.string or "").partition("/")
                    amount = shares.get(capacity, (device.capacity or {})[capacity].value)
                    left[(result.pool, counter_set, counter)] -= exact(amount)
    found += [f"counter {key} is overdrawn by {-amount}" for key, amount in left.items() if amount < 0]
    for (pool, name, capacity), amount in consumed.items():
        if amount > exact((devices[(pool, name)].capacity or {})[capacity].value):
            found.append(f"capacity {capacity} of {(pool, name)} is overdrawn")
    return found
