"""What of a pool a server would keep: it drops fields of feature gates that are off there, without a word.

The server is asked before anything is published, by a dry run of a slice with such fields, so nobody ever sees, say,
partitions without the counters that keep them apart. Devices that would be given out wrongly without their lost
fields are left out, the others are published without them.

A server may also want things in another form than the newest one does. It says so by refusing the dry run, and the
pool is asked about, and published, in the form that it takes: see :data:`_FORMS`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError
from drakkar.api.kinds import RESOURCESLICE
from drakkar.api.meta import Object, OwnerReference
from drakkar.api.resource import v1
from drakkar.api.resource.strategy import lost_fields
from drakkar.api.tree import children, text
from drakkar.client.client import Client
from drakkar.client.writes import Create
from drakkar.driver.layout import beside_counters
from drakkar.driver.pools import Pool, SliceContent, plan_pool

#: Seconds for which an answer counts: gates change with a restart of the server.
FRESH = 600.0
#: Creates a slice without creating it; what the server would have stored.
Probe = Callable[[Object], Awaitable[v1.ResourceSlice]]

_BINDING = {"bindingConditions", "bindingFailureConditions"}
_COUNTERS = {"consumesCounters", "sharedCounters"}
_NODES = {"perDeviceNodeSelection", "nodeName", "nodeSelector", "allNodes"}
_LISTS = {"bools", "ints", "strings", "versions"}
_BARRED = ("NoSchedule", "NoExecute")


def probe_of(client: Client) -> Probe:
    """A dry run at the server of ``client``."""

    async def probe(obj: Object) -> v1.ResourceSlice:
        return await client.create(RESOURCESLICE, obj, dry_run=True)

    return probe


#: What an older server wants to have otherwise -> how the field is called that it refuses.
_FORMS = {
    # Kubernetes 1.34 knows no counters of other slices.
    "counters": re.compile(r"spec\.devices\[\d+\]\.consumesCounters\[\d+\]\.counterSet"),
    # Nor does it know taints that only tell something.
    "taints": re.compile(r"spec\.devices\[\d+\]\.taints\[\d+\]\.effect"),
}


@dataclass(frozen=True, slots=True)
class Fitted:
    """A pool as a server can hold it, and one sentence for people if it is less than was wanted; else empty."""

    pool: Pool
    problem: str = ""


class Gates:
    """Which fields a server keeps, and in which form it takes them, as far as the pools of one driver need to know."""

    def __init__(self, probe: Probe, clock: Clock):
        self._probe = probe
        self._clock = clock
        #: Field -> the gates that it needs where it is dropped, empty where it is kept; and when that was asked.
        self._known: dict[str, tuple[str, float]] = {}
        #: Names of :data:`_FORMS` in which the server differs; what is known holds for these.
        self._forms: frozenset[str] = frozenset()

    async def fitted(self, driver: str, pool: Pool, owner: OwnerReference | None) -> Fitted:
        """The pool for this server. Raises ApiError when it is refused in all forms, and Unreachable."""
        now = self._clock.monotonic()
        if any(now - asked >= FRESH for _, asked in self._known.values()):
            # Another server may answer by now; all is asked together, since one answer depends on the other.
            self._known, self._forms = {}, frozenset()
        while True:
            formed, crowded = _formed(pool, self._forms)
            try:
                lost = await self._lost(driver, formed, owner, now)
            except ApiError as error:
                wanted = self._forms | _other_forms(error)
                if wanted == self._forms:
                    raise
                self._known, self._forms = {}, wanted
                continue
            kept, left = publishable(formed, lost) if lost else (formed, [])
            said = [report(pool, lost, left)] if lost else []
            if crowded and not lost.keys() & _COUNTERS:
                said.append(_report_crowded(pool, crowded))
            return Fitted(kept, "; ".join(said))

    async def _lost(self, driver: str, pool: Pool, owner: OwnerReference | None, now: float) -> dict[str, str]:
        """Fields of the pool that the server drops, with the gates that they need."""
        planned = plan_pool(driver, pool, [], now=self._clock.time(), owner=owner)
        slices = [write.obj for write in planned if isinstance(write, Create)]
        wanted = [_questions(obj) for obj in slices]
        for obj, fields in zip(slices, wanted, strict=True):
            if fields <= self._known.keys():
                continue
            dropped = lost_fields(obj, msgspec.to_builtins(await self._stored(obj)))
            self._known |= {field: (dropped.get(field, ""), now) for field in fields}
        fields = {field for each in wanted for field in each}
        return {field: gates for field in sorted(fields) if (gates := self._known[field][0])}

    async def _stored(self, obj: Object) -> v1.ResourceSlice:
        """What the server would store; an attribute whose list it drops is nothing to it, and makes a slice invalid."""
        try:
            return await self._probe(obj)
        except ApiError as error:
            slim = _without_lists(obj)
            if error.code != 422 or slim == obj or _other_forms(error):
                raise
            return await self._probe(slim)


def _questions(obj: Object) -> set[str]:
    """What a server has to be asked about a slice: fields that it may drop, and what not every server takes."""
    effects = {
        taint.get("effect") for device in children(obj, "spec", "devices") for taint in children(device, "taints")
    }
    return {*lost_fields(obj, {}), *(("taints with effect None",) if "None" in effects else ())}


def _other_forms(error: ApiError) -> frozenset[str]:
    """Forms that the server wants to have otherwise, by what it refused."""
    if error.code != 422:
        return frozenset()
    fields = [text(cause, "field") for cause in children(error.status, "details", "causes")]
    return frozenset(name for name, pattern in _FORMS.items() if any(pattern.fullmatch(field) for field in fields))


def _formed(pool: Pool, forms: frozenset[str]) -> tuple[Pool, list[str]]:
    """The pool in these forms, and the names of devices for which there is no room in them."""
    if "taints" in forms:
        pool = pool.with_devices(_without_told)
    return beside_counters(pool) if "counters" in forms else (pool, [])


def _without_told(device: v1.Device) -> v1.Device:
    """The device without taints that keep nobody away."""
    if not device.taints:
        return device
    return msgspec.structs.replace(device, taints=[taint for taint in device.taints if taint.effect != "None"] or None)


def publishable(pool: Pool, lost: Mapping[str, str]) -> tuple[Pool, list[str]]:
    """The pool as a server can hold it that drops these fields, and the names of the devices that are left out."""
    left: list[str] = []
    contents: list[SliceContent] = []
    for content in pool.slices:
        if content.shared_counters and lost.keys() & _COUNTERS:
            continue
        kept: list[v1.Device] = []
        for device in content.devices:
            if _needs(device, lost) or (content.per_device_nodes and lost.keys() & _NODES):
                left.append(device.name)
            else:
                kept.append(_without(device, lost))
        contents.append(replace(content, devices=tuple(kept)))
    if not any(content.devices or content.shared_counters for content in contents):
        # One empty slice says that the pool has no devices.
        contents = []
    return replace(pool, slices=tuple(contents)), left


def _needs(device: v1.Device, lost: Mapping[str, str]) -> bool:
    """Whether the device would be given to somebody who must not have it, or not yet, without the lost fields."""
    draws = device.consumesCounters or ()
    return (
        (bool(draws) and bool(lost.keys() & _COUNTERS))
        or ("compatibilityGroups" in lost and any(draw.compatibilityGroups for draw in draws))
        or ("taints" in lost and any(taint.effect in _BARRED for taint in device.taints or ()))
        or (bool(lost.keys() & _BINDING) and bool(device.bindingConditions))
    )


def _without(device: v1.Device, lost: Mapping[str, str]) -> v1.Device:
    """The device without lost fields that only do more than a device without them: sharing, lists, dry-run taints."""
    plain: dict[str, Any] = {name: None for name in lost if name in v1.Device.__struct_fields__}
    if "requestPolicy" in lost and device.capacity:
        plain["capacity"] = {name: v1.DeviceCapacity(value=each.value) for name, each in device.capacity.items()}
    lists = lost.keys() & _LISTS
    if lists and device.attributes:
        plain["attributes"] = {
            name: each for name, each in device.attributes.items() if all(getattr(each, key) is None for key in lists)
        }
    return msgspec.structs.replace(device, **plain) if plain else device


def _without_lists(obj: Object) -> Object:
    """The slice without attributes that are lists."""
    devices = [
        {
            **device,
            "attributes": {name: each for name, each in device["attributes"].items() if not each.keys() & _LISTS},
        }
        if device.get("attributes")
        else device
        for device in children(obj, "spec", "devices")
    ]
    return {**obj, "spec": {**obj["spec"], **({"devices": devices} if devices else {})}}


def report(pool: Pool, lost: Mapping[str, str], left: list[str]) -> str:
    """One sentence for people: what the server drops, what comes of it, and the cure."""
    fields = ", ".join(f"{field} ({gates})" for field, gates in lost.items())
    said = f"pool {pool.name}: this server drops fields of feature gates that are off: {fields}"
    if left:
        said += (
            f"; {len(left)} devices are not published, since they would be given out wrongly without ({_some(left)})"
        )
    return said + "; turn the gates on at kube-apiserver"


def _report_crowded(pool: Pool, crowded: list[str]) -> str:
    """One sentence for people: that the server takes counters only in the slice of their devices, and what of it."""
    return (
        f"pool {pool.name}: this server takes counters only beside their devices (Kubernetes 1.34), and a slice has no "
        f"room for {len(crowded)} devices, which are not published ({_some(crowded)}); "
        "Kubernetes 1.35 and newer take them all"
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
