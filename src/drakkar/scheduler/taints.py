"""Taints on devices that are already allocated.

The allocator looks at taints when it chooses devices. A pod that joins an allocated claim
chooses none, so somebody has to look again: a consumer is not added to a broken device.
"""

from __future__ import annotations

from collections.abc import Iterator

from drakkar.api.resource import v1 as resource
from drakkar.api.selectors import BLOCKING_EFFECTS, tolerates
from drakkar.scheduler.publisheddevices import DeviceId, PublishedDevices


class DeviceTaints:
    """The taints of slices (newest generation of each pool) and of DeviceTaintRules."""

    def __init__(self) -> None:
        self._published = PublishedDevices[list[resource.DeviceTaint]]()
        self._rules: dict[str, resource.DeviceTaintRule] = {}

    def set_slice(self, item: resource.ResourceSlice) -> None:
        """Takes over a slice, new or changed."""
        tainted = {device.name: device.taints for device in item.spec.devices or () if device.taints}
        self._published.set_slice(item, tainted)

    def remove_slice(self, name: str) -> None:
        """Forgets a slice."""
        self._published.remove_slice(name)

    def set_rule(self, rule: resource.DeviceTaintRule) -> None:
        """Takes over a rule, new or changed."""
        self._rules[rule.metadata.name] = rule

    def remove_rule(self, name: str) -> None:
        """Forgets a rule."""
        self._rules.pop(name, None)

    def of(self, device: DeviceId) -> Iterator[resource.DeviceTaint]:
        """The taints of one device."""
        for taints in self._published.of(device):
            yield from taints
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
