"""Who held a device first, as far as the watch has told.

Nothing in the API keeps two claims from holding the same device; one scheduler's memory does,
two schedulers have none in common. The order in which allocations appear on the watch is the
same for everybody, so everybody agrees on who was first and the later one gives way. Devices
that differ but draw on the same counters beyond what these have count as the same, and so do
shares of one device beyond its capacity. The same question is asked of allocations that nobody has
written yet: what would they be rivals to (:func:`rival_of`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from drakkar.api.resource import v1 as resource
from drakkar.inventory.devices import amount
from drakkar.inventory.pools import Base, bits
from drakkar.scheduler.publisheddevices import DeviceId

#: Finds the devices of a pool (driver, pool name), as they are published now.
BaseOf = Callable[[tuple[str, str]], Base | None]


@dataclass(frozen=True, slots=True)
class Part:
    """One result of a claim: a device for itself, or with ``share`` a part of one. Administrators hold nothing."""

    device: DeviceId
    share: str | None = None
    #: Capacity → nano units, of a part.
    consumed: tuple[tuple[str, int], ...] = ()


def parts_of(allocation: resource.AllocationResult | None) -> frozenset[Part]:
    """What an allocation holds."""
    found: set[Part] = set()
    for result in (allocation.devices.results if allocation is not None else None) or ():
        if not result.adminAccess:
            shared = result.shareID is not None
            consumed = tuple((name, amount(text)) for name, text in (result.consumedCapacity or {}).items())
            device = DeviceId(result.driver, result.pool, result.device)
            found.add(Part(device, result.shareID, consumed if shared else ()))
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Held:
    """What one claim holds."""

    #: The how manieth allocation it was.
    sight: int
    parts: frozenset[Part]

    @property
    def devices(self) -> frozenset[DeviceId]:
        return frozenset(part.device for part in self.parts)


_NOBODY: Final = Held(0, frozenset())


class Holders:
    """Claims with an allocation, in the order in which the watch showed them."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._by_device: dict[DeviceId, set[str]] = {}
        self._by_pool: dict[tuple[str, str], dict[str, None]] = {}
        self._count = 0

    def note(self, uid: str, allocation: resource.AllocationResult | None) -> None:
        """Takes over what the watch says that a claim holds; None for nothing."""
        parts = parts_of(allocation)
        known = self._held.get(uid, _NOBODY)
        if known.parts == parts:
            return
        if known.parts:
            self._remove(uid, known)
        if parts:
            self._count += 1
            held = self._held[uid] = Held(self._count, parts)
            for device in held.devices:
                self._by_device.setdefault(device, set()).add(uid)
                self._by_pool.setdefault(device[:2], {})[uid] = None

    def _remove(self, uid: str, held: Held) -> None:
        del self._held[uid]
        for device in held.devices:
            holders = self._by_device[device]
            holders.discard(uid)
            if not holders:
                del self._by_device[device]
        for pool in {device[:2] for device in held.devices}:
            claims = self._by_pool[pool]
            del claims[uid]
            if not claims:
                del self._by_pool[pool]

    def of_device(self, device: DeviceId) -> Iterator[tuple[str, Held]]:
        """Who holds the device, or a share of it."""
        for uid in self._by_device.get(device, ()):
            yield uid, self._held[uid]

    def of_pool(self, pool: tuple[str, str]) -> Iterator[tuple[str, Held]]:
        """Who holds something of the pool, the first one first."""
        for uid in self._by_pool.get(pool, ()):
            yield uid, self._held[uid]

    def earlier_rival(self, uid: str, base_of: BaseOf) -> Rival | None:
        """A claim that was first to hold what the claim ``uid`` holds too, if there is one."""
        known = self._held.get(uid)
        if known is None:
            return None
        return rival_of(known.parts, (self,), base_of, lambda _, other: other.sight < known.sight)


class Rival(NamedTuple):
    """Who keeps a device from being given to somebody else."""

    #: Of the claim.
    uid: str
    #: The device that both want, or the one that draws on what the claim leaves too little of.
    device: DeviceId
    #: ``capacity NAME`` or ``counter SET/NAME`` of which too little is left; empty where the device itself is taken.
    short: str = ""


def rival_of(
    parts: frozenset[Part], tables: Sequence[Holders], base_of: BaseOf, counts: Callable[[str, Held], bool]
) -> Rival | None:
    """Somebody in the tables with whom nobody else can hold these parts.

    Who stands in several tables is taken from the first; ``counts`` says of whom to take notice at all.
    """
    devices = sorted({part.device for part in parts})
    for device in devices:
        for uid, other in _merged((table.of_device(device) for table in tables), counts):
            if any(_exclude(part, other) for part in parts if part.device == device):
                return Rival(uid, device)
    for pool in dict.fromkeys(device[:2] for device in devices):
        base = base_of(pool)
        if base is not None:
            others = _merged((table.of_pool(pool) for table in tables), counts)
            found = _beyond_capacity(pool, parts, base, others) or _overdrawn(pool, parts, base, others)
            if found is not None:
                return found
    return None


def _merged(found: Iterable[Iterator[tuple[str, Held]]], counts: Callable[[str, Held], bool]) -> list[tuple[str, Held]]:
    merged: dict[str, Held] = {}
    for table in found:
        for uid, held in table:
            merged.setdefault(uid, held)
    return [(uid, held) for uid, held in merged.items() if counts(uid, held)]


def _exclude(part: Part, other: Held) -> bool:
    """Whether one of the two has the device for itself."""
    return any(
        theirs.device == part.device and (part.share is None or theirs.share is None or theirs.share == part.share)
        for theirs in other.parts
    )


def _beyond_capacity(
    pool: tuple[str, str], parts: frozenset[Part], base: Base, others: Iterable[tuple[str, Held]]
) -> Rival | None:
    """The one with whom the shares of one of the devices exceed a capacity of it."""
    left: dict[tuple[DeviceId, str], int] = {}
    for part in parts:
        if part.device[:2] != pool:
            continue
        for device in base.published(part.device.device)[:1]:
            capacities = device.capacity or {}
            for name, nanos in part.consumed:
                if name in capacities:
                    key = part.device, name
                    left[key] = left.get(key, amount(capacities[name].value)) - nanos
    if not left:
        return None
    for uid, other in others:
        for part in other.parts:
            for name, nanos in part.consumed:
                key = part.device, name
                if key in left:
                    left[key] -= nanos
                    if left[key] < 0:
                        return Rival(uid, part.device, f"capacity {name}")
    return None


def _overdrawn(
    pool: tuple[str, str], parts: frozenset[Part], base: Base, others: Iterable[tuple[str, Held]]
) -> Rival | None:
    """The one with whom the counters of the pool that both draw on do not suffice."""
    if not base.declared:
        return None
    charged: set[DeviceId] = set()
    mine = _draws(base, pool, parts, charged)
    left = {counter: base.declared[counter] - drawn for counter, drawn in mine.items()}
    if not left:
        return None
    for uid, other in others:
        for counter, drawn in _draws(base, pool, other.parts, charged).items():
            if counter in left:
                left[counter] -= drawn
                if left[counter] < 0:
                    device = next(p.device for p in parts if counter in _draws(base, pool, (p,), set()))
                    return Rival(uid, device, f"counter {'/'.join(base.counter_names[counter])}")
    return None


def _draws(base: Base, pool: tuple[str, str], parts: Iterable[Part], charged: set[DeviceId]) -> Counter[int]:
    """What these draw, by number of the counter; fixed amounts of devices in ``charged`` are paid already."""
    draws, shares = base.draws(), base.drawn()
    found: Counter[int] = Counter()
    for part in parts:
        if part.device[:2] != pool:
            continue
        paid = part.device in charged
        charged.add(part.device)
        consumed = dict(part.consumed)
        for position in bits(base.by_name.get(part.device.device, 0)):
            if not paid:
                found.update(dict(draws[position]))
            for capacity, counter, whole in shares.get(position, ()):
                if counter >= 0:
                    found[counter] += consumed.get(capacity, whole)
    return found
