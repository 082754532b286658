"""Health of devices as drivers report it, until it is too old, and what pods' statuses say about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from drakkar.api.meta import Object
from drakkar.node.agent.claims import DeviceOnNode
from drakkar.plugin import wire

#: Seconds for which a report counts when the driver does not say.
_USUAL_TIMEOUT = 30
#: Longest message in bytes; a longer one is cut to fit with three dots.
_LONGEST_MESSAGE = 1024

_NAMES = {wire.HealthStatus.HEALTHY: "Healthy", wire.HealthStatus.UNHEALTHY: "Unhealthy"}


@dataclass(frozen=True, slots=True)
class _Report:
    health: str
    message: str
    until: float


class DeviceHealths:
    """``now`` tells the time in seconds, counted from anywhere."""

    def __init__(self, now: Callable[[], float]):
        self._now = now
        self._reports: dict[str, dict[tuple[str, str], _Report]] = {}

    def heard(self, driver: str, response: wire.NodeWatchResourcesResponse | None) -> None:
        """A driver's complete list, or None: nothing is known any more."""
        if response is None:
            self._reports.pop(driver, None)
            return
        now = self._now()
        self._reports[driver] = {
            (device.device.pool_name, device.device.device_name): _Report(
                _NAMES.get(wire.HealthStatus(device.health), "Unknown") if device.health in (0, 1, 2) else "Unknown",
                _cut(device.message),
                now
                + (device.health_check_timeout_seconds if device.health_check_timeout_seconds > 0 else _USUAL_TIMEOUT),
            )
            for device in response.devices
        }

    def expiry(self) -> float | None:
        """When the next report becomes too old, None when there is none."""
        now = self._now()
        times = [
            report.until for reports in self._reports.values() for report in reports.values() if report.until > now
        ]
        return min(times, default=None)

    def status(self, devices: Mapping[str, Sequence[DeviceOnNode]]) -> list[Object]:
        """``allocatedResourcesStatus`` of a container with these devices, by their names in it."""
        entries: list[Object] = []
        for name, held in devices.items():
            resources: dict[str, Object] = {}
            for device in held:
                resources.setdefault(device.resource_id, self._resource(device))
            if resources:
                entries.append({"name": name, "resources": list(resources.values())})
        return entries

    def _resource(self, device: DeviceOnNode) -> Object:
        key = (device.device.poolName, device.device.deviceName)
        report = self._reports.get(device.driver, {}).get(key)
        if report is None or report.until <= self._now():
            return {"resourceID": device.resource_id, "health": "Unknown"}
        resource: Object = {"resourceID": device.resource_id, "health": report.health}
        return resource | ({"message": report.message} if report.message else {})


def _cut(message: str) -> str:
    content = message.encode()
    if len(content) <= _LONGEST_MESSAGE:
        return message
    return content[: _LONGEST_MESSAGE - 3].decode("utf-8", "ignore") + "..."
