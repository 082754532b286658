"""Devices that could not be prepared are left alone for a while (spec/groups.md 3.7, spec/scheduling.md 16.3).

Without that memory the same device would be chosen again at once. It is kept as taints that only this
scheduler's inventory knows, so that a refusal names them like any other taint. A device is admitted again
when its time is up, or when its driver has published its pool anew.
"""

from __future__ import annotations

from collections.abc import Iterator

from drakkar.api.meta import ObjectMeta
from drakkar.api.resource import v1 as resource
from drakkar.inventory import Inventory
from drakkar.scheduler.binding import reported
from drakkar.scheduler.publisheddevices import DeviceId

#: Key of the taint.
UNBINDABLE = "drakkar.dev/unbindable"
#: First and longest time in seconds; it doubles with every failure of the device.
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0


class Avoided:
    """The devices that are avoided just now, and how often each has failed."""

    def __init__(self, inventory: Inventory):
        self._inventory = inventory
        self._failures: dict[DeviceId, int] = {}
        self._now: set[DeviceId] = set()

    def add(self, device: DeviceId) -> float:
        """Avoids a device from now on; answers for how many seconds."""
        failures = self._failures[device] = self._failures.get(device, 0) + 1
        self._now.add(device)
        self._inventory.set_taint_rule(
            resource.DeviceTaintRule(
                metadata=ObjectMeta(name=_name(device)),
                spec=resource.DeviceTaintRuleSpec(
                    deviceSelector=resource.DeviceTaintSelector(
                        driver=device.driver, pool=device.pool, device=device.device
                    ),
                    taint=resource.DeviceTaint(key=UNBINDABLE, value=f"failures-{failures}", effect="NoSchedule"),
                ),
            )
        )
        return min(FIRST_PAUSE * 2 ** min(failures - 1, 20), LONGEST_PAUSE)

    def admit(self, device: DeviceId) -> bool:
        """Lets the device be chosen again; False when it could be already."""
        if device not in self._now:
            return False
        self._now.discard(device)
        self._inventory.remove_taint_rule(_name(device))
        return True

    def published(self, driver: str, pool: str) -> None:
        """The driver has written the pool anew: what was known of its devices is void."""
        for device in [known for known in self._failures if known[:2] == (driver, pool)]:
            del self._failures[device]
        for device in [known for known in self._now if known[:2] == (driver, pool)]:
            self.admit(device)


def unprepared(claim: resource.ResourceClaim) -> Iterator[DeviceId]:
    """The devices of a claim whose binding conditions are not all fulfilled."""
    for result, true in reported(claim):
        failed = any(condition in true for condition in result.bindingFailureConditions or ())
        if failed or any(condition not in true for condition in result.bindingConditions or ()):
            yield DeviceId(result.driver, result.pool, result.device)


def _name(device: DeviceId) -> str:
    """Of the taint rule; no rule of the API can have it."""
    return f"unbindable/{device.driver}/{device.pool}/{device.device}"
