"""Taints on devices that are already allocated.

The allocator looks at taints when it chooses devices. A pod that joins an allocated claim
chooses none, so somebody has to look again: a consumer is not added to a broken device.
Only tainted devices are remembered; there are few.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from drakkar.api.resource import v1 as resource
from drakkar.api.selectors import BLOCKING_EFFECTS, tolerates


class DeviceId(NamedTuple):
    """What a device is called in allocations."""

    driver: str
    pool: str
    device: str


class DeviceTaints:
    """The taints of slices (newest generation of each pool) and of DeviceTaintRules."""

    def __init__(self) -> None:
        #: (driver, pool) → slice → (generation, device → taints)
        self._pools: dict[tuple[str, str], dict[str, tuple[int, dict[str, list[resource.DeviceTaint]]]]] = {}
        self._where: dict[str, tuple[str, str]] = {}
        self._rules: dict[str, resource.DeviceTaintRule] = {}

    def set_slice(self, item: resource.ResourceSlice) -> None:
        """Takes over a slice, new or changed."""
        self.remove_slice(item.metadata.name)
        spec = item.spec
        where = self._where[item.metadata.name] = (spec.driver, spec.pool.name)
        tainted = {device.name: device.taints for device in spec.devices or () if device.taints}
        self._pools.setdefault(where, {})[item.metadata.name] = (spec.pool.generation, tainted)

    def remove_slice(self, name: str) -> None:
        """Forgets a slice."""
        where = self._where.pop(name, None)
        if where is not None:
            del self._pools[where][name]
            if not self._pools[where]:
                del self._pools[where]

    def set_rule(self, rule: resource.DeviceTaintRule) -> None:
        """Takes over a rule, new or changed."""
        self._rules[rule.metadata.name] = rule

    def remove_rule(self, name: str) -> None:
        """Forgets a rule."""
        self._rules.pop(name, None)

    def of(self, device: DeviceId) -> Iterator[resource.DeviceTaint]:
        """The taints of one device."""
        slices = self._pools.get((device.driver, device.pool))
        if slices:
            newest = max(generation for generation, _ in slices.values())
            for generation, tainted in slices.values():
                if generation == newest:
                    yield from tainted.get(device.device, ())
        for rule in self._rules.values():
            if _selects(rule.spec.deviceSelector, device):
                yield rule.spec.taint

    def blocking(self, allocation: resource.AllocationResult) -> tuple[DeviceId, resource.DeviceTaint] | None:
        """The first device of the allocation that keeps new consumers away, and its taint."""
        for result in allocation.devices.results or ():
            device = DeviceId(result.driver, result.pool, result.device)
            for taint in self.of(device):
                if taint.effect in BLOCKING_EFFECTS and not any(tolerates(t, taint) for t in result.tolerations or ()):
                    return device, taint
        return None


def _selects(selector: resource.DeviceTaintSelector | None, device: DeviceId) -> bool:
    """Absent fields select everything, an absent selector nothing."""
    return selector is not None and (
        selector.driver in (None, device.driver)
        and selector.pool in (None, device.pool)
        and selector.device in (None, device.device)
    )
