"""From what a driver says about its devices to what others see: taints, the kubelet's health stream, claims in use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Condition

import msgspec

from drakkar.api.resource import v1
from drakkar.driver.driver import Effect, Health
from drakkar.driver.pools import Pool
from drakkar.plugin import wire

#: Key of the taint of an unhealthy device, after the driver's name.
TAINT = "unhealthy"
#: Seconds after which a kubelet takes a device without news for Unknown, and between two unchanged reports.
TIMEOUT, REPEAT = 30, 10.0

_HEALTHY = Health("Healthy")
_STATUS = {
    "Healthy": wire.HealthStatus.HEALTHY,
    "Degraded": wire.HealthStatus.HEALTHY,
    "Unhealthy": wire.HealthStatus.UNHEALTHY,
    "Unknown": wire.HealthStatus.UNKNOWN,
}


def health_of(found: Mapping[str, Health], pool: str, device: str) -> Health:
    """What a driver said about a device, by `pool/name` or by name."""
    return found.get(f"{pool}/{device}") or found.get(device) or _HEALTHY


def taint_of(driver: str, health: Health, policy: Effect) -> v1.DeviceTaint | None:
    """The taint for a device in this state; Unknown and Degraded devices get none."""
    effect = health.effect or policy
    if health.state != "Unhealthy" or effect == "None":
        return None
    return v1.DeviceTaint(key=f"{driver}/{TAINT}", effect=effect)


def with_taints(driver: str, pool: Pool, found: Mapping[str, Health], policy: Effect) -> Pool:
    """The pool with a taint on every device that needs one, beside those that the driver gave it itself."""
    if not found:
        return pool

    def marked(device: v1.Device) -> v1.Device:
        taint = taint_of(driver, health_of(found, pool.name, device.name), policy)
        return device if taint is None else msgspec.structs.replace(device, taints=[*(device.taints or ()), taint])

    return pool.with_devices(marked)


class HealthReports:
    """The complete list of devices for every kubelet that watches; `set` is called by whoever asks the driver."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._changed = Condition()
        self._version = 0
        self._devices: list[wire.DeviceHealth] = []
        self._closed = False

    def set(self, pools: Iterable[Pool], found: Mapping[str, Health]) -> None:
        """Report these devices from now on."""
        now = int(self._now())
        devices = [
            _on_wire(pool.name, device.name, health_of(found, pool.name, device.name), now)
            for pool in pools
            for device in pool.devices
        ]
        with self._changed:
            if _content(devices) != _content(self._devices):
                self._version += 1
                self._changed.notify_all()
            self._devices = devices

    def close(self) -> None:
        """End all streams."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def watch(self, active: Callable[[], bool]) -> Iterator[wire.NodeWatchResourcesResponse]:
        """A report now, on every change, and again before the kubelet grows uneasy."""
        seen = -1
        while active():
            with self._changed:
                if seen == self._version:
                    self._changed.wait_for(lambda: self._closed or seen != self._version, REPEAT)  # noqa: B023
                if self._closed:
                    return
                seen, devices = self._version, self._devices
            yield wire.NodeWatchResourcesResponse(devices)


def _on_wire(pool: str, device: str, health: Health, now: int) -> wire.DeviceHealth:
    return wire.DeviceHealth(wire.DeviceIdentifier(pool, device), _STATUS[health.state], now, TIMEOUT, health.message)


def _content(devices: Sequence[wire.DeviceHealth]) -> list[tuple[object, ...]]:
    return [(device.device, device.health, device.message) for device in devices]
