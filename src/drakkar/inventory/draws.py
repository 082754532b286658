"""What held devices draw from counters, whatever has become of the devices since (policy ``drakkar``).

A counter is charged in two ways: by the fixed amounts of ``consumesCounters``, once per device, and by the shares
that claims take of a capacity tied to it (:mod:`drakkar.api.resource.drawn`). A held device that its driver no longer
publishes, or publishes with a smaller draw, goes on drawing what it drew, as long as anybody holds it. That is known
from

1. the slices, for a device that is published,
2. this inventory's memory of what was published before,
3. the allocation itself: our scheduler adds a configuration entry of kind ``DrawnCounters`` for driver ``drakkar.dev``,
   which only schedulers can write, which goes with the allocation, and which device drivers skip as somebody else's,
4. slices of the pool's other generations, while they exist.

After a restart only 3 and 4 are left. A claim that another scheduler allocated says nothing in 3; if its device is in
no slice at all, what it draws cannot be known, and nothing of that pool which draws on counters is given out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from drakkar.api.errors import DrakkarError
from drakkar.api.names import DOMAIN, DRAWN_KIND
from drakkar.api.resource import drawn
from drakkar.api.resource.v1 import (
    AllocationResult,
    Device,
    DeviceAllocationConfiguration,
    DeviceRequestAllocationResult,
    OpaqueDeviceConfiguration,
)
from drakkar.inventory.devices import PoolKey, amount

if TYPE_CHECKING:
    from drakkar.inventory.pools import Base
    from drakkar.inventory.usage import PoolUsage

DeviceKey = tuple[PoolKey, str]
#: (counter set, counter)
CounterName = tuple[str, str]
#: (capacity, number of the counter or -1 where the pool has none such, the whole capacity in nano units)
Draw = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Remembered:
    """What one held device draws: fixed amounts, and the capacities of which shares are drawn."""

    fixed: Mapping[CounterName, int]
    shares: frozenset[tuple[str, str, str]] = frozenset()
    #: Per counter set, the compatibility groups (empty: of a device without groups).
    groups: frozenset[tuple[str, frozenset[str]]] = frozenset()

    def joined(self, other: Remembered) -> Remembered:
        """The larger of both, counter by counter, and the groups of both."""
        fixed = dict(self.fixed)
        for counter, nanos in other.fixed.items():
            fixed[counter] = max(fixed.get(counter, 0), nanos)
        return Remembered(fixed, self.shares | other.shares, self.groups | other.groups)


def of_device(device: Device) -> Remembered:
    """What a device draws according to its definition."""
    fixed: dict[CounterName, int] = {}
    for use in device.consumesCounters or ():
        for counter, value in use.counters.items():
            key = use.counterSet, counter
            fixed[key] = fixed.get(key, 0) + amount(value.value)
    shares = frozenset((d.capacity, d.counter_set, d.counter) for d in drawn.draws_of(device))
    groups = frozenset(
        (use.counterSet, frozenset(use.compatibilityGroups or ())) for use in device.consumesCounters or ()
    )
    return Remembered(fixed, shares, groups)


def of_name(devices: Iterable[Device]) -> Remembered | None:
    """What the devices of one name draw together (nodes of one pool may publish the same name); None without any."""
    found: Remembered | None = None
    for device in devices:
        mine = of_device(device)
        if found is not None:
            fixed = dict(found.fixed)
            for counter, nanos in mine.fixed.items():
                fixed[counter] = fixed.get(counter, 0) + nanos
            mine = Remembered(fixed, found.shares | mine.shares, found.groups | mine.groups)
        found = mine
    return found


def find_draws(base: Base) -> dict[int, tuple[Draw, ...]]:
    """Position → the shares that are drawn there; pools without counters have none."""
    found: dict[int, tuple[Draw, ...]] = {}
    if not base.declared:
        return found
    index = {name: number for number, name in enumerate(base.counter_names)}
    for position, record in enumerate(base.devices):
        draws = drawn.draws_of(record.device) if record.device.attributes else ()
        if draws:
            found[position] = tuple(
                (
                    draw.capacity,
                    index.get((draw.counter_set, draw.counter), -1),
                    drawn.drawn(record.device, draw, None).nanos,
                )
                for draw in draws
            )
    return found


def differs(base: Base, usage: PoolUsage) -> bool:
    """Whether an allocation records other draws than are published now: rarely, though all claims of ours record."""
    for name, told in usage.told.items():
        now = base.draws_of(name)
        for one in told:
            if one != now:
                return True
    return False


def kept(base: Base, usage: PoolUsage) -> tuple[list[int], tuple[str, ...]]:
    """Counters left once all held devices have drawn, and the held devices of which nobody knows what they draw."""
    residual = list(base.declared)
    unknown: list[str] = []
    index = {name: number for number, name in enumerate(base.counter_names)}
    for name in usage.held():
        mine = base.draws_of(name)
        remembered = usage.remembered(name)
        if remembered is not None and remembered != mine:
            mine = remembered if mine is None else mine.joined(remembered)
        if mine is None:
            mine = of_name(base.elsewhere(name))
        if mine is None:
            unknown.append(name)
            continue
        for counter, nanos in mine.fixed.items():
            if counter in index:
                residual[index[counter]] -= nanos
        for capacity, counter_set, counter in mine.shares:
            number = index.get((counter_set, counter))
            if number is not None:
                residual[number] -= _consumed(base, usage, name, capacity)
    return residual, tuple(sorted(unknown))


def _consumed(base: Base, usage: PoolUsage, name: str, capacity: str) -> int:
    """What is taken of a capacity: the shares' sum, or all of it where somebody took the device without saying."""
    consumed = usage.consumed.get(name, {}).get(capacity, 0)
    if consumed and name not in usage.dedicated:
        return consumed
    whole = 0
    for device in base.published(name):
        found = (device.capacity or {}).get(capacity)
        if found is not None:
            whole = max(whole, amount(found.value))
    if name in usage.dedicated:
        return max(whole, consumed)
    # Shares that say nothing at all about a capacity come from a time when the device did not have it.
    said = capacity in usage.consumed.get(name, {})
    return consumed if said else whole


def lost_groups(base: Base, usage: PoolUsage) -> tuple[tuple[str, frozenset[str]], ...]:
    """Compatibility groups of held devices that are no longer published so: they bind newcomers all the same."""
    found: set[tuple[str, frozenset[str]]] = set()
    for name in usage.held():
        now = base.draws_of(name)
        before = usage.remembered(name) or (of_name(base.elsewhere(name)) if now is None else None)
        if before is not None:
            found |= before.groups if now is None else before.groups - now.groups
    return tuple(sorted(found, key=lambda entry: (entry[0], sorted(entry[1]))))


# The allocation's own record.

API_VERSION: Final = f"{DOMAIN}/v1alpha1"
#: Devices per entry: an entry's parameters hold 10 KiB.
_PER_ENTRY: Final = 8
#: Most configuration entries of an allocation, and most bytes of one.
_MOST_ENTRIES: Final = 64
_MOST_BYTES: Final = 10 * 1024


class _Entry(msgspec.Struct, kw_only=True):
    driver: str
    pool: str
    device: str
    #: Counter set → counter → quantity.
    counters: dict[str, dict[str, str]] = {}
    #: Capacity → ``counter set/counter``.
    shares: dict[str, str] = {}
    #: Counter set → compatibility groups.
    groups: dict[str, list[str]] = {}


class _Parameters(msgspec.Struct, kw_only=True):
    apiVersion: str
    kind: str
    devices: list[_Entry]


def recorded(definitions: Mapping[DeviceKey, Device], allocation: AllocationResult) -> AllocationResult:
    """The allocation with a record of what its devices draw; unchanged when none is of a pool with counters.

    ``definitions`` are the devices of pools with counters as they are published at this moment. That a device draws on
    none of them is recorded too.
    """
    entries: dict[DeviceKey, _Entry] = {}
    for result in allocation.devices.results or ():
        key = device_key(result)
        device = definitions.get(key)
        if device is None or result.adminAccess:
            continue
        counters = {
            use.counterSet: {name: value.value for name, value in use.counters.items()}
            for use in device.consumesCounters or ()
        }
        draws = drawn.draws_of(device)
        shares = {draw.capacity: f"{draw.counter_set}/{draw.counter}" for draw in draws if draw.counter}
        groups = {
            use.counterSet: use.compatibilityGroups for use in device.consumesCounters or () if use.compatibilityGroups
        }
        entries[key] = _Entry(
            driver=result.driver,
            pool=result.pool,
            device=result.device,
            counters=counters,
            shares=shares,
            groups=groups,
        )
    if not entries:
        return allocation
    listed = [*entries.values()]
    added: list[DeviceAllocationConfiguration] = []
    for first in range(0, len(listed), _PER_ENTRY):
        parameters = {
            "apiVersion": API_VERSION,
            "kind": DRAWN_KIND,
            "devices": [_plain(entry) for entry in listed[first : first + _PER_ENTRY]],
        }
        opaque = OpaqueDeviceConfiguration(driver=DOMAIN, parameters=parameters)
        added.append(DeviceAllocationConfiguration(source="FromClass", opaque=opaque))
    config = [*(allocation.devices.config or ()), *added]
    if len(config) > _MOST_ENTRIES or any(len(msgspec.json.encode(e.opaque)) > _MOST_BYTES for e in added):
        # No room for the record: after a restart such devices count as unknown once they vanish.
        return allocation
    devices = msgspec.structs.replace(allocation.devices, config=config)
    return msgspec.structs.replace(allocation, devices=devices)


def _plain(entry: _Entry) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(entry).items() if value}


def told_by(allocation: AllocationResult) -> dict[DeviceKey, Remembered]:
    """What the allocation's record says about its devices; nothing where there is none or it cannot be read."""
    told: dict[DeviceKey, Remembered] = {}
    for config in allocation.devices.config or ():
        if (
            config.opaque is None
            or config.opaque.driver != DOMAIN
            or config.opaque.parameters.get("kind") != DRAWN_KIND
        ):
            continue
        try:
            for entry in msgspec.convert(config.opaque.parameters, type=_Parameters).devices:
                told[((entry.driver, entry.pool), entry.device)] = _remembered(entry)
        except (msgspec.ValidationError, DrakkarError):
            continue
    return told


def _remembered(entry: _Entry) -> Remembered:
    fixed = {
        (counter_set, counter): max(0, amount(value))
        for counter_set, counters in entry.counters.items()
        for counter, value in counters.items()
    }
    shares: set[tuple[str, str, str]] = set()
    for capacity, source in entry.shares.items():
        counter_set, _, counter = source.partition("/")
        shares.add((capacity, counter_set, counter))
    groups = frozenset((name, frozenset(entry.groups.get(name, ()))) for name in entry.counters)
    return Remembered(fixed, frozenset(shares), groups)


def device_key(result: DeviceRequestAllocationResult) -> DeviceKey:
    """The device of a result."""
    return (result.driver, result.pool), result.device
