"""How much of a device's capacity a request takes.

Source: spec/allocation.md section 11.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from drakkar.allocator.outcomes import Fault
from drakkar.api.quantity import INT64_MAX, INT64_MIN, Quantity
from drakkar.api.resource.v1 import CapacityRequestPolicy, Device, DeviceCapacity

_NANO: Final = 10**9
_MILLI: Final = 10**6


@dataclass(frozen=True, slots=True)
class Consumption:
    """What one allocation takes of a device: capacity → nano units, and as results spell it."""

    nanos: dict[str, int]
    texts: dict[str, str]
    #: Capacity → nano units that the device has.
    whole: dict[str, int]


def consumption(requests: Mapping[str, str], device: Device, fractional: bool) -> Consumption | None:
    """The consumption, or None when the device cannot serve the request even while empty.

    Raises :class:`Fault` when the arithmetic cannot hold the amount.
    """
    capacities = device.capacity or {}
    for name in requests:
        if name not in capacities:
            return None
    nanos: dict[str, int] = {}
    texts: dict[str, str] = {}
    whole: dict[str, int] = {}
    for name, capacity in capacities.items():
        requested = requests.get(name)
        amount = _amount(None if requested is None else Quantity.parse(requested), capacity, fractional)
        if amount.nanos < 0:
            raise Fault("capacity-value", f"capacity {name}: the amount {amount} is negative")
        if not _allowed(amount, capacity.requestPolicy):
            return None
        limit = Quantity.parse(capacity.value).nanos
        if amount.nanos > limit:
            return None
        nanos[name] = amount.nanos
        texts[name] = amount.canonical()
        whole[name] = limit
    return Consumption(nanos, texts, whole)


def _amount(requested: Quantity | None, capacity: DeviceCapacity, fractional: bool) -> Quantity:
    policy = capacity.requestPolicy
    if requested is None:
        if policy is not None and policy.default is not None:
            return Quantity.parse(policy.default)
        return Quantity.parse(capacity.value)
    if policy is None:
        return requested
    if policy.validRange is not None:
        span = policy.validRange
        low = Quantity.parse(span.min)
        if requested < low:
            return low
        if span.step is None:
            return requested
        step = Quantity.parse(span.step)
        top = None if span.max is None else Quantity.parse(span.max)
        return _rounded(requested, low, step, top, fractional)
    if policy.validValues:
        larger = [value for text in policy.validValues if (value := Quantity.parse(text)) >= requested]
        return min(larger) if larger else requested
    return requested


def _rounded(requested: Quantity, low: Quantity, step: Quantity, top: Quantity | None, fractional: bool) -> Quantity:
    milli = fractional and low.has_milli and step.has_milli and step.nanos >= _MILLI and (top is None or top.has_milli)
    unit = _MILLI if milli else _NANO
    if milli and not requested.has_milli:
        raise Fault("capacity-value", f"the requested amount {requested} is finer than thousandths")
    want, start, width = (-(-value.nanos // unit) for value in (requested, low, step))
    if not INT64_MIN <= want <= INT64_MAX:
        raise Fault("capacity-value", f"the requested amount {requested} is too large to count")
    if width <= 0:
        return requested
    result = start + -(-(want - start) // width) * width
    if not INT64_MIN <= result <= INT64_MAX:
        raise Fault("capacity-value", f"the requested amount {requested} is too large once rounded up")
    return Quantity(result * unit, None, step.format)


def _allowed(amount: Quantity, policy: CapacityRequestPolicy | None) -> bool:
    if policy is None:
        return True
    if policy.default is not None and amount == Quantity.parse(policy.default):
        return True
    if policy.validRange is not None:
        span = policy.validRange
        if span.max is not None and amount > Quantity.parse(span.max):
            return False
        if span.step is not None:
            step = Quantity.parse(span.step).nanos
            return step <= 0 or (amount.nanos - Quantity.parse(span.min).nanos) % step == 0
        return True
    if policy.validValues:
        return any(amount == Quantity.parse(text) for text in policy.validValues)
    return True
