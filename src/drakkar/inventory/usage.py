"""What allocations hold in one pool.

Holdings are kept by name, not by position, because a claim can hold a device that its driver
no longer publishes. A usage that others have seen is never changed: booking copies it first, so a snapshot
keeps the state it was taken with.

Source: spec/allocation.md sections 1 and 12.1.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from drakkar.api.resource.v1 import AllocationResult
from drakkar.inventory.devices import PoolKey, amount
from drakkar.inventory.draws import Remembered, device_key, told_by


class Holding(NamedTuple):
    """One result of an allocation: a whole device, or with ``share`` a part of one."""

    pool: PoolKey
    device: str
    share: str | None
    capacity: tuple[tuple[str, int], ...] = ()
    #: What the allocation itself records of the device's draws.
    told: Remembered | None = None


def holdings_of(allocation: AllocationResult, shares: bool) -> tuple[Holding, ...]:
    """What an allocation takes away; admin access takes nothing, and shares count as whole devices if off."""
    found: list[Holding] = []
    told = told_by(allocation) if allocation.devices.config else None
    for result in allocation.devices.results or ():
        if result.adminAccess:
            continue
        pool = (result.driver, result.pool)
        drawn = told.get(device_key(result)) if told else None
        if shares and result.shareID is not None:
            capacity = tuple([(name, amount(text)) for name, text in (result.consumedCapacity or {}).items()])
            found.append(Holding(pool, result.device, result.shareID, capacity, drawn))
        else:
            found.append(Holding(pool, result.device, None, (), drawn))
    return tuple(found)


class PoolUsage:
    """Who holds what in one pool. Two claims can hold one device (bad data); both are counted."""

    __slots__ = ("cache", "consumed", "dedicated", "ghosts", "shares", "told")

    def __init__(self) -> None:
        #: Device name → number of claims that hold it whole.
        self.dedicated: dict[str, int] = {}
        #: Device name → share → number of claims.
        self.shares: dict[str, dict[str, int]] = {}
        #: Device name → capacity → consumed nano units.
        self.consumed: dict[str, dict[str, int]] = {}
        #: Held devices → what they drew when last seen, where nothing is recorded and it differs from what is there.
        self.ghosts: dict[str, Remembered] = {}
        #: Held devices → what the allocations record of them, one entry per holding.
        self.told: dict[str, tuple[Remembered, ...]] = {}
        #: Derived state per member set of the pool; see :mod:`drakkar.inventory.pools`.
        self.cache: dict[int, object] = {}

    def copy(self) -> PoolUsage:
        """A usage of its own, to be changed with :meth:`book` and :meth:`release` before anybody else sees it."""
        other = PoolUsage.__new__(PoolUsage)
        other.dedicated = self.dedicated.copy()
        other.shares = self.shares
        other.consumed = self.consumed
        other.ghosts = self.ghosts
        other.told = self.told
        other.cache = {}
        return other

    def book(self, holding: Holding) -> None:
        """Adds a holding."""
        name = holding.device
        if holding.told is not None:
            self.told = {**self.told, name: (*self.told.get(name, ()), holding.told)}
        if holding.share is None:
            self.dedicated[name] = self.dedicated.get(name, 0) + 1
            return
        held = dict(self.shares.get(name, {}))
        held[holding.share] = held.get(holding.share, 0) + 1
        self.shares = {**self.shares, name: held}
        if holding.capacity:
            sums = dict(self.consumed.get(name, {}))
            for capacity, nanos in holding.capacity:
                sums[capacity] = sums.get(capacity, 0) + nanos
            self.consumed = {**self.consumed, name: sums}

    def release(self, holding: Holding) -> None:
        """Takes a holding away."""
        name = holding.device
        if holding.share is None:
            left = self.dedicated.pop(name, 0) - 1
            if left > 0:
                self.dedicated[name] = left
        else:
            held = dict(self.shares.get(name, {}))
            count = held.pop(holding.share, 0) - 1
            if count > 0:
                held[holding.share] = count
            sums = dict(self.consumed.get(name, {}))
            for capacity, nanos in holding.capacity:
                sums[capacity] = sums.get(capacity, 0) - nanos
            sums = {key: value for key, value in sums.items() if value}
            self.shares = {key: value for key, value in {**self.shares, name: held}.items() if value}
            self.consumed = {key: value for key, value in {**self.consumed, name: sums}.items() if value}
        if holding.told is not None:
            rest = [*self.told.get(name, ())]
            if holding.told in rest:
                rest.remove(holding.told)
            self.told = {key: value for key, value in {**self.told, name: tuple(rest)}.items() if value}
        if self.ghosts and not self.holds(name):
            self.ghosts = {key: value for key, value in self.ghosts.items() if key != name}

    def with_ghosts(self, ghosts: dict[str, Remembered]) -> PoolUsage:
        """The usage with remembered draws of devices that are no longer published as they were."""
        other = self.copy()
        other.ghosts = ghosts
        return other

    def remembered(self, name: str) -> Remembered | None:
        """What a held device drew, as the allocations record it, or else as this inventory remembers it."""
        told = self.told.get(name)
        if told is None:
            return self.ghosts.get(name)
        found = told[0]
        for other in told[1:]:
            found = found.joined(other)
        return found

    def holds(self, name: str) -> bool:
        """Whether the device is held in any form."""
        return name in self.dedicated or name in self.shares or name in self.consumed

    def held(self) -> set[str]:
        """Names of all devices held in any form."""
        return {*self.dedicated, *self.shares, *self.consumed}


#: Usage of a pool in which nothing is held.
UNUSED: Final = PoolUsage()
