"""Counter sets beside the devices that draw on them: the only form in which Kubernetes 1.34 takes partitions.

From 1.35 on counter sets stand in slices of their own and serve the whole pool. Kubernetes 1.34 looks for the counters
of a device in the device's own slice, and a slice of it holds few of them. What draws on the same set, directly or by
way of other devices, therefore has to share a slice there; devices for which there is no room stay out, those that
draw on most counters first, so that small partitions stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from drakkar.api.resource import v1
from drakkar.driver.devices import DEVICES
from drakkar.driver.pools import Pool, SliceContent

#: What a slice of 1.34 holds besides 128 devices: shared counters, and counters that its devices draw on.
SHARED_COUNTERS, DRAWN_COUNTERS = 32, 1024


@dataclass(frozen=True)
class _Group:
    """What has to share a slice: positions of devices and names of counter sets, and how many counters both need."""

    #: The slice without devices: what holds for all of them alike.
    frame: SliceContent
    devices: tuple[int, ...]
    sets: frozenset[str]
    shared: int
    drawn: int

    def with_(self, other: _Group) -> _Group | None:
        """Both in one slice; None where it would not hold them."""
        merged = replace(
            self,
            devices=(*self.devices, *other.devices),
            sets=self.sets | other.sets,
            shared=self.shared + other.shared,
            drawn=self.drawn + other.drawn,
        )
        return merged if merged.fits and self.frame == other.frame else None

    @property
    def fits(self) -> bool:
        return len(self.devices) <= DEVICES and self.shared <= SHARED_COUNTERS and self.drawn <= DRAWN_COUNTERS


def beside_counters(pool: Pool) -> tuple[Pool, list[str]]:
    """The pool with counters beside their devices, and the names of devices for which there is no room.

    The counter sets that they use must be defined in the pool. Devices that draw on nothing come after those that do;
    apart from that the order of devices in a slice is kept.
    """
    sets = {counters.name: counters for content in pool.slices for counters in content.shared_counters}
    drawing: list[v1.Device] = []
    frames: list[SliceContent] = []
    rest: list[SliceContent] = []
    for content in pool.slices:
        found = [device for device in content.devices if device.consumesCounters]
        drawing += found
        frames += [replace(content, devices=(), shared_counters=())] * len(found)
        plain = tuple(device for device in content.devices if not device.consumesCounters)
        if plain:
            rest.append(replace(content, devices=plain, shared_counters=()))
    groups, left = _grouped(drawing, frames, sets)
    made = [
        replace(
            group.frame,
            devices=tuple(drawing[position] for position in sorted(group.devices)),
            shared_counters=tuple(found for name, found in sets.items() if name in group.sets),
        )
        for group in groups
    ]
    return replace(pool, slices=(*made, *rest)), [drawing[position].name for position in left]


def _grouped(
    devices: Sequence[v1.Device], frames: Sequence[SliceContent], sets: Mapping[str, v1.CounterSet]
) -> tuple[list[_Group], list[int]]:
    """As few slices as are easily found, in the order of devices, and the positions of devices that fit into none."""
    group_of: dict[str, _Group] = {}
    left: list[int] = []
    draws = [sum(len(use.counters) for use in device.consumesCounters or ()) for device in devices]
    for position in sorted(range(len(devices)), key=lambda position: (draws[position], position)):
        names = {use.counterSet for use in devices[position].consumesCounters or ()}
        fresh = frozenset(names - group_of.keys())
        shared = sum(len(sets[name].counters) for name in fresh)
        merged: _Group | None = _Group(frames[position], (position,), fresh, shared, draws[position])
        if not merged.fits:
            merged = None
        for group in _unique(group_of[name] for name in sorted(names - fresh)):
            merged = merged and merged.with_(group)
        if merged is None:
            left.append(position)
        else:
            group_of |= dict.fromkeys(merged.sets, merged)
    packed: list[_Group] = []
    for group in sorted(_unique(group_of.values()), key=lambda group: min(group.devices)):
        both = packed[-1].with_(group) if packed else None
        packed[-1:] = [both] if both else [*packed[-1:], group]
    return packed, sorted(left)


def _unique(groups: Iterable[_Group]) -> list[_Group]:
    return [*{group.devices: group for group in groups}.values()]
