"""Who held a device first, as far as the watch has told.

Nothing in the API keeps two claims from holding the same device; one scheduler's memory does,
two schedulers have none in common. The order in which allocations appear on the watch is the
same for everybody, so everybody agrees on who was first and the later one gives way. Devices
that differ but draw on the same counters beyond what these have count as the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from drakkar.api.resource import v1 as resource
from drakkar.inventory.pools import Base, bits
from drakkar.scheduler.taints import DeviceId

#: Finds the devices of a pool (driver, pool name), as they are published now.
BaseOf = Callable[[tuple[str, str]], Base | None]


def device_ids(allocation: resource.AllocationResult | None) -> Iterator[DeviceId]:
    """The devices that an allocation holds for itself: shares and administrator access do not."""
    if allocation is not None:
        for result in allocation.devices.results or ():
            if not result.adminAccess and result.shareID is None:
                yield DeviceId(result.driver, result.pool, result.device)


class Holders:
    """Claims with an allocation, in the order in which the watch showed them."""

    def __init__(self) -> None:
        #: Claim uid → (how manieth allocation it was, its devices).
        self._held: dict[str, tuple[int, frozenset[DeviceId]]] = {}
        self._by_device: dict[DeviceId, set[str]] = {}
        self._by_pool: dict[tuple[str, str], dict[str, None]] = {}
        self._count = 0

    def note(self, uid: str, allocation: resource.AllocationResult | None) -> None:
        """Takes over what the watch says that a claim holds; None for nothing."""
        devices = frozenset(device_ids(allocation))
        known = self._held.get(uid)
        if known is not None:
            if known[1] == devices:
                return
            self._remove(uid, known[1])
        if devices:
            self._count += 1
            self._held[uid] = (self._count, devices)
            for device in devices:
                self._by_device.setdefault(device, set()).add(uid)
                self._by_pool.setdefault(device[:2], {})[uid] = None

    def _remove(self, uid: str, devices: frozenset[DeviceId]) -> None:
        del self._held[uid]
        for device in devices:
            holders = self._by_device[device]
            holders.discard(uid)
            if not holders:
                del self._by_device[device]
        for pool in {device[:2] for device in devices}:
            claims = self._by_pool[pool]
            del claims[uid]
            if not claims:
                del self._by_pool[pool]

    def earlier_rival(self, uid: str, base_of: BaseOf) -> str | None:
        """Uid of a claim that was first to hold what the claim ``uid`` holds too, if there is one."""
        known = self._held.get(uid)
        if known is None:
            return None
        mine, devices = known
        for device in devices:
            for other in self._by_device[device]:
                if self._held[other][0] < mine:
                    return other
        for pool in {device[:2] for device in devices}:
            rival = self._overdrawn(pool, mine, devices, base_of(pool))
            if rival is not None:
                return rival
        return None

    def _overdrawn(
        self, pool: tuple[str, str], mine: int, devices: frozenset[DeviceId], base: Base | None
    ) -> str | None:
        if base is None or not base.declared:
            return None
        left = {counter: base.declared[counter] - drawn for counter, drawn in _draws(base, pool, devices).items()}
        if not left:
            return None
        for other in self._by_pool[pool]:
            sight, held = self._held[other]
            if sight >= mine:
                continue
            for counter, drawn in _draws(base, pool, held).items():
                if counter in left:
                    left[counter] -= drawn
                    if left[counter] < 0:
                        return other
        return None


def _draws(base: Base, pool: tuple[str, str], devices: Iterable[DeviceId]) -> Counter[int]:
    """What the devices of this pool draw, by number of the counter."""
    draws = base.draws()
    found: Counter[int] = Counter()
    for device in devices:
        if device[:2] == pool:
            for position in bits(base.by_name.get(device.device, 0)):
                found.update(dict(draws[position]))
    return found
