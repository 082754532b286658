"""Devices that draw a share of their parent: a virtual function with a bandwidth out of its port's.

Upstream can charge a counter of the parent once and by a fixed amount (``consumesCounters``), or share the capacity
of one device among claims (``consumedCapacity``), but not both for one parent. Here the two are joined with fields that
every API server of 1.37 keeps:

- The parent has a counter set with one counter per budget, say ``bandwidth`` and ``functions``.
- The device can be allocated several times (only then do results record ``consumedCapacity``), has a capacity
  ``bandwidth`` with a request policy, and the attribute ``drawn-from.drakkar.dev/bandwidth`` with the value
  ``<counter set>/<counter>``: what claims consume of this capacity is drawn from that counter.
- A second capacity of which every claim takes all keeps the device with one claim, for every scheduler.

Policy ``drakkar`` keeps the sum of what is drawn within the counter. Another scheduler does not read the attribute, so
a driver asks :func:`overdrawn` before it prepares. Source: docs/decisions/0004-shares-of-a-parent.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from drakkar.api.errors import UsageError
from drakkar.api.names import DRAWN_FROM
from drakkar.api.quantity import Quantity
from drakkar.api.resource import v1

#: Capacity that keeps a device with one claim: there is one, and whoever gets a share takes it.
WHOLE: Final = "function"
#: Longest value of a string attribute.
MOST_CHARACTERS: Final = 64
_PREFIX: Final = f"{DRAWN_FROM}/"


@dataclass(frozen=True, slots=True)
class Draw:
    """What is consumed of ``capacity`` is drawn from this counter of the device's pool.

    ``counter`` is empty for a declaration that cannot be read; such a device draws on nothing that exists.
    """

    capacity: str
    counter_set: str
    counter: str


def draws_of(device: v1.Device) -> tuple[Draw, ...]:
    """The draws that a device declares, in the order of its attributes; none for nearly all devices."""
    found: list[Draw] = []
    for name, attribute in (device.attributes or {}).items():
        if not name.startswith(_PREFIX):
            continue
        bare = name[len(_PREFIX) :]
        text = attribute.string or ""
        counter_set, slash, counter = text.partition("/")
        capacities = [key for key in device.capacity or {} if key.rpartition("/")[2] == bare]
        if not slash or not counter_set or not counter or not capacities:
            found.append(Draw(bare, text, ""))
        found += [Draw(capacity, counter_set, counter) for capacity in capacities if slash and counter_set and counter]
    return tuple(found)


def drawn(device: v1.Device, draw: Draw, consumed: Mapping[str, str] | None) -> Quantity:
    """How much one result draws; all of the capacity where the result does not say what it consumes."""
    text = (consumed or {}).get(draw.capacity)
    if text is None:
        capacity = (device.capacity or {}).get(draw.capacity)
        return Quantity.from_int(0) if capacity is None else Quantity.parse(capacity.value)
    return Quantity.parse(text)


# For drivers.


def port_counters(port: str, bandwidth: str, functions: int) -> v1.CounterSet:
    """The counter set of a port: ``bandwidth``, in the unit of the devices' capacity, and ``functions``."""
    counters = {"bandwidth": v1.Counter(value=bandwidth), "functions": v1.Counter(value=str(functions))}
    return v1.CounterSet(name=port, counters=counters)


def function_of(
    port: v1.CounterSet,
    name: str,
    bandwidth: v1.DeviceCapacity,
    attributes: Mapping[str, v1.DeviceAttribute] | None = None,
) -> v1.Device:
    """A virtual function of a port of :func:`port_counters`.

    ``bandwidth`` is the most that one function can have, with the policy for what claims may ask; without a default
    a claim that asks for nothing takes all of it.
    """
    source = f"{port.name}/bandwidth"
    if len(source) > MOST_CHARACTERS:
        raise UsageError(
            f"counter set {port.name}: {source!r} has {len(source)} characters, an attribute holds {MOST_CHARACTERS}; "
            "give the counter set a shorter name"
        )
    if Quantity.parse(bandwidth.value) > Quantity.parse(port.counters["bandwidth"].value):
        raise UsageError(
            f"device {name}: bandwidth {bandwidth.value} is more than the port's {port.counters['bandwidth'].value}"
        )
    only = v1.CapacityRequestPolicy(default="1", validValues=["1"])
    use = v1.DeviceCounterConsumption(counterSet=port.name, counters={"functions": v1.Counter(value="1")})
    return v1.Device(
        name=name,
        allowMultipleAllocations=True,
        attributes={**(attributes or {}), f"{_PREFIX}bandwidth": v1.DeviceAttribute(string=source)},
        capacity={"bandwidth": bandwidth, WHOLE: v1.DeviceCapacity(value="1", requestPolicy=only)},
        consumesCounters=[use],
    )


def whole_port(port: v1.CounterSet, name: str, attributes: Mapping[str, v1.DeviceAttribute] | None = None) -> v1.Device:
    """The port itself as one device: it goes to one claim, and not while one of its functions is in use."""
    bandwidth = port.counters["bandwidth"].value
    use = v1.DeviceCounterConsumption(counterSet=port.name, counters=dict(port.counters))
    return v1.Device(
        name=name,
        attributes=dict(attributes) if attributes else None,
        capacity={"bandwidth": v1.DeviceCapacity(value=bandwidth)},
        consumesCounters=[use],
    )


@dataclass(frozen=True, slots=True)
class Use:
    """One result that a driver has prepared, or is about to."""

    device: str
    consumed: Mapping[str, str] | None = None


def uses_of(results: Iterable[v1.DeviceRequestAllocationResult]) -> list[Use]:
    """The uses that results make of their devices; administrator access makes none."""
    return [Use(result.device, result.consumedCapacity) for result in results if not result.adminAccess]


def overdrawn(
    counters: Iterable[v1.CounterSet],
    devices: Mapping[str, v1.Device],
    prepared: Iterable[Use],
    wanted: Iterable[Use],
) -> str | None:
    """Why ``wanted`` must not be prepared beside ``prepared`` in one pool, as a sentence; None when it may.

    ``devices`` are the pool's by name, those of ``prepared`` included even where they are no longer published.
    Counts fixed draws (once per device) and shares alike; counters on which ``wanted`` does not draw do not matter.
    """
    limits = {
        (found.name, name): Quantity.parse(c.value).nanos for found in counters for name, c in found.counters.items()
    }
    before = _totals(devices, prepared := [*prepared])
    after = _totals(devices, [*prepared, *wanted])
    for (counter_set, counter), total in after.items():
        more = total - before.get((counter_set, counter), 0)
        limit = limits.get((counter_set, counter))
        if more <= 0:
            continue
        if limit is None:
            return f"counter {counter} of set {counter_set} is drawn on and not declared by the pool"
        if total > limit:
            return (
                f"{counter} of {counter_set} is {_spelled(limit)}; {_spelled(total - more)} is in use and the claim "
                f"takes {_spelled(more)}: it was allocated by a scheduler that does not count shares"
            )
    return None


def _totals(devices: Mapping[str, v1.Device], uses: Iterable[Use]) -> dict[tuple[str, str], int]:
    totals: dict[tuple[str, str], int] = {}
    charged: set[str] = set()
    for use in uses:
        device = devices.get(use.device)
        if device is None:
            raise UsageError(f"device {use.device} is in use and its definition was not given")
        if use.device not in charged:
            charged.add(use.device)
            for consumption in device.consumesCounters or ():
                for counter, value in consumption.counters.items():
                    key = consumption.counterSet, counter
                    totals[key] = totals.get(key, 0) + Quantity.parse(value.value).nanos
        for draw in draws_of(device):
            key = draw.counter_set, draw.counter
            totals[key] = totals.get(key, 0) + drawn(device, draw, use.consumed).nanos
    return totals


def _spelled(nanos: int) -> str:
    return Quantity(nanos).canonical()
