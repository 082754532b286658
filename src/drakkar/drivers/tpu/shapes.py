"""Which logical devices a TPU pod offers: pure.

A TPU pod is a grid of hosts; every host brings a small grid of chips. A logical device is an
aligned rectangle of hosts. It consumes the counter of each of its hosts in full, so that two
allocated devices never share a host, and its node selector names its hosts.

Hosts are numbered along a Z-curve: hosts of one aligned square have neighbouring numbers, so
a device draws from at most two counter sets, which is the limit of the API.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from drakkar.api.names import TPU_DRIVER, TPU_HOST_UNREACHABLE
from drakkar.api.resource import v1
from drakkar.driver import Pool, SliceContent, attributes, capacities, consumes, counter_set, hosts, split

#: Limits of the API: counters in a set, sets a device draws from, sets in a slice.
COUNTERS_PER_SET, SETS_PER_DEVICE, SETS_PER_SLICE = 32, 2, 8
#: Binding conditions of a device whose links have to be switched: they are, they cannot be.
LINKED: Final = f"{TPU_DRIVER}/linked"
UNLINKABLE: Final = f"{TPU_DRIVER}/unlinkable"
_NAME = re.compile(r"tpu-([0-9]+)x([0-9]+)-([0-9]+)-([0-9]+)")
#: Every device has attributes for its place, and host taints are at most this many (limit of the API).
TAINTS_PER_DEVICE = 16


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a TPU pod. ``x`` and ``y`` count hosts, ``width`` and ``height`` count its chips."""

    x: int
    y: int
    hostname: str
    width: int = 2
    height: int = 2
    reachable: bool = True

    @property
    def chips(self) -> int:
        """Chips on the host."""
        return self.width * self.height

    @property
    def counter(self) -> str:
        """Name of its counter: by place, since names of hosts may be no DNS labels."""
        return f"host-{self.x}-{self.y}"


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle of chips: size and place of the first, all in chips."""

    width: int
    height: int
    x: int
    y: int

    @property
    def topology(self) -> str:
        """As in the attribute of the device."""
        return f"{self.width}x{self.height}"

    def rows(self, like: Host) -> list[list[tuple[int, int]]]:
        """Places of its hosts, row by row, where all hosts have as many chips as this one."""
        columns = range(self.x // like.width, (self.x + self.width) // like.width)
        return [[(x, y) for x in columns] for y in range(self.y // like.height, (self.y + self.height) // like.height)]

    def number(self, host: Host) -> int | None:
        """Number of a host among those of the rectangle, row by row from 0; None when it is not one of them."""
        places = [place for row in self.rows(host) for place in row]
        return places.index((host.x, host.y)) if (host.x, host.y) in places else None


def area_of(device: str) -> Area | None:
    """The chips of a device, by its name; None when it is not one of ours."""
    found = _NAME.fullmatch(device)
    return Area(*map(int, found.groups())) if found else None


def tpu_pool(pod: str, members: Iterable[Host], *, linked: bool = False) -> Pool:
    """The pool of one TPU pod. All hosts must have chips of one shape, and places must differ.

    ``linked``: pods have to wait until the links of their device are switched.

    Rectangles with a missing place are left out. Small devices come first, so that a request
    without wishes takes a small one.
    """
    grid = {(host.x, host.y): host for host in members}
    ordered = sorted(grid.values(), key=lambda host: _z_order(host.x, host.y))
    sets = {host.counter: f"hosts-{number // COUNTERS_PER_SET}" for number, host in enumerate(ordered)}
    devices = [
        device for width, height in _rectangles(grid) for device in _devices_of_size(pod, grid, sets, width, height)
    ]
    counters = [
        counter_set(
            f"hosts-{start // COUNTERS_PER_SET}",
            {host.counter: host.chips for host in ordered[start : start + COUNTERS_PER_SET]},
        )
        for start in range(0, len(ordered), COUNTERS_PER_SET)
    ]
    contents = [
        SliceContent(shared_counters=tuple(counters[start : start + SETS_PER_SLICE]), per_device_nodes=True)
        for start in range(0, len(counters), SETS_PER_SLICE)
    ]
    if linked:
        waiting = {"bindingConditions": [LINKED], "bindingFailureConditions": [UNLINKABLE]}
        devices = [msgspec.structs.replace(device, **waiting) for device in devices]
    contents += [SliceContent(devices=tuple(run), per_device_nodes=True) for run in split(devices)]
    return Pool(name=pod, slices=tuple(contents))


def hosts_in_slices(slices: Sequence[v1.ResourceSlice]) -> dict[tuple[int, int], Host]:
    """Hosts as the published devices of single hosts remember them, by place.

    That is how the driver, started anew, knows a host whose Node is gone.
    """
    found: dict[tuple[int, int], Host] = {}
    for device in (device for published in slices for device in published.spec.devices or ()):
        values = device.attributes or {}
        if not {"hosts", "x", "y", "topology"} <= values.keys() or values["hosts"].int != 1:
            continue
        names = _selected(device)
        width, _, height = (values["topology"].string or "").partition("x")
        x, y = values["x"].int, values["y"].int
        if len(names) == 1 and width.isdigit() and height.isdigit() and x is not None and y is not None:
            w, h = int(width), int(height)
            found[x // w, y // h] = Host(x // w, y // h, names[0], w, h, reachable=False)
    return found


def _selected(device: v1.Device) -> list[str]:
    terms = device.nodeSelector.nodeSelectorTerms if device.nodeSelector else []
    return [name for term in terms for wanted in term.matchExpressions or () for name in wanted.values or ()]


def _rectangles(grid: Mapping[tuple[int, int], Host]) -> list[tuple[int, int]]:
    """Sizes in hosts, small first: squares whose side is a power of two, and two hosts beside each other."""
    side = 1 + max((max(place) for place in grid), default=-1)
    sizes = [(1, 1), (1, 2)] if side else []
    edge = 2
    while edge <= side and edge * edge <= COUNTERS_PER_SET * SETS_PER_DEVICE:
        sizes.append((edge, edge))
        edge *= 2
    return sizes


def _devices_of_size(
    pod: str, grid: Mapping[tuple[int, int], Host], sets: Mapping[str, str], width: int, height: int
) -> Iterable[v1.Device]:
    places = {(x - x % width, y - y % height) for x, y in grid}
    for left, top in sorted(places, key=lambda place: (place[1], place[0])):
        members = [grid.get((left + dx, top + dy)) for dy in range(height) for dx in range(width)]
        present = [host for host in members if host is not None]
        if len(present) == len(members):
            device = _device(pod, present, sets, width, height)
            if len(device.consumesCounters or ()) <= SETS_PER_DEVICE:
                yield device


def _device(pod: str, members: list[Host], sets: Mapping[str, str], width: int, height: int) -> v1.Device:
    first = members[0]
    x, y = first.x * first.width, first.y * first.height
    area = Area(width * first.width, height * first.height, x, y)
    chips = sum(host.chips for host in members)
    drawn: dict[str, dict[str, int | str]] = {}
    for host in members:
        drawn.setdefault(sets[host.counter], {})[host.counter] = host.chips
    taints = [
        v1.DeviceTaint(key=TPU_HOST_UNREACHABLE, value=_label_value(host.hostname), effect="NoExecute")
        for host in members
        if not host.reachable
    ]
    return v1.Device(
        name=f"tpu-{area.topology}-{x}-{y}",
        attributes=attributes(
            {"topology": area.topology, "chips": chips, "hosts": len(members), "x": x, "y": y, "pod": pod}
        ),
        capacity=capacities({"chips": chips}),
        consumesCounters=[consumes(name, counters) for name, counters in sorted(drawn.items())],
        nodeSelector=hosts([host.hostname for host in members]),
        taints=taints[:TAINTS_PER_DEVICE] or None,
    )


def _label_value(hostname: str) -> str:
    """Taint values are label values: at most 63 characters, ending with a letter or digit."""
    return hostname[:63].rstrip("-_.")


def _z_order(x: int, y: int) -> int:
    """Place on the Z-curve: the bits of both coordinates, interleaved."""
    number = 0
    for bit in range(max(x, y).bit_length()):
        number |= (x >> bit & 1) << 2 * bit | (y >> bit & 1) << 2 * bit + 1
    return number
