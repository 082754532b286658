"""What slices say about single devices: the newest generation of a pool counts.

Only devices about which something is said are remembered; there are few. But every slice counts for its pool's
generation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

from drakkar.api.resource import v1 as resource

T = TypeVar("T")


class DeviceId(NamedTuple):
    """What a device is called in allocations."""

    driver: str
    pool: str
    device: str


class PublishedDevices(Generic[T]):
    """A value for some devices of each slice, by device."""

    def __init__(self) -> None:
        #: (driver, pool) → slice → (generation, device → value)
        self._pools: dict[tuple[str, str], dict[str, tuple[int, Mapping[str, T]]]] = {}
        self._where: dict[str, tuple[str, str]] = {}
        #: Slices that say something: while there are none, nobody pays for the question.
        self._telling: set[str] = set()

    def __bool__(self) -> bool:
        """Whether anything is known of any device."""
        return bool(self._telling)

    def set_slice(self, item: resource.ResourceSlice, values: Mapping[str, T]) -> None:
        """Takes over a slice, new or changed; ``values`` by name of the device."""
        name, spec = item.metadata.name, item.spec
        self.remove_slice(name)
        where = self._where[name] = (spec.driver, spec.pool.name)
        self._pools.setdefault(where, {})[name] = (spec.pool.generation, values)
        if values:
            self._telling.add(name)

    def remove_slice(self, name: str) -> None:
        """Forgets a slice."""
        where = self._where.pop(name, None)
        self._telling.discard(name)
        if where is not None:
            del self._pools[where][name]
            if not self._pools[where]:
                del self._pools[where]

    def of(self, device: DeviceId) -> Iterator[T]:
        """What is said about a device, by each slice of the newest generation that has it."""
        slices = self._pools.get((device.driver, device.pool)) if self._telling else None
        if slices:
            newest = max(generation for generation, _ in slices.values())
            for generation, values in slices.values():
                if generation == newest and device.device in values:
                    yield values[device.device]
