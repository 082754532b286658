"""What of a pool a server would keep: it drops fields of feature gates that are off there, without a word.

The server is asked before anything is published, by a dry run of a slice with such fields, so nobody ever sees, say,
partitions without the counters that keep them apart. Devices that would be given out wrongly without their lost
fields are left out, the others are published without them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError
from drakkar.api.kinds import RESOURCESLICE
from drakkar.api.meta import Object, OwnerReference
from drakkar.api.resource import v1
from drakkar.api.resource.strategy import lost_fields
from drakkar.api.tree import children
from drakkar.client.client import Client
from drakkar.client.writes import Create
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


class Gates:
    """Which fields a server keeps, as far as the pools of one driver need to know."""

    def __init__(self, probe: Probe, clock: Clock):
        self._probe = probe
        self._clock = clock
        #: Field -> the gates that it needs where it is dropped, empty where it is kept; and when that was asked.
        self._known: dict[str, tuple[str, float]] = {}

    async def lost(self, driver: str, pool: Pool, owner: OwnerReference | None) -> dict[str, str]:
        """Fields of the pool that the server drops, with the gates that they need. Raises ApiError and Unreachable."""
        now = self._clock.monotonic()
        planned = plan_pool(driver, pool, [], now=self._clock.time(), owner=owner)
        slices = [write.obj for write in planned if isinstance(write, Create)]
        wanted = [lost_fields(obj, {}) for obj in slices]
        for obj, fields in zip(slices, wanted, strict=True):
            if all(now - self._known.get(field, ("", -FRESH))[1] < FRESH for field in fields):
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
            if error.code != 422 or slim == obj:
                raise
            return await self._probe(slim)


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
    text = f"pool {pool.name}: this server drops fields of feature gates that are off: {fields}"
    if left:
        names = ", ".join(left[:3]) + (", …" if len(left) > 3 else "")
        text += f"; {len(left)} devices are not published, since they would be given out wrongly without ({names})"
    return text + "; turn the gates on at kube-apiserver"
