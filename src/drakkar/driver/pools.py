"""What has to be written so that the API shows a pool as its driver describes it.

The state is read from the slices alone, so a driver may die between any two writes: the next
plan starts from what is there. The rules (generations, names that keep the order, which
writes come first) are those of spec/controllers.md section 5.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from drakkar.api.kinds import RESOURCESLICE
from drakkar.api.meta import NodeSelector, Object, OwnerReference
from drakkar.api.quantity import Quantity
from drakkar.api.resource import v1
from drakkar.client.clock import timestamp
from drakkar.client.writes import Create, Delete, Patch, Write
from drakkar.driver.devices import COUNTER_SETS, chunks, split

S = TypeVar("S", bound=msgspec.Struct)

#: Times of taints that differ by less are taken for equal: the API keeps whole seconds.
_SAME_TIME = 1.0


@dataclass(frozen=True, slots=True)
class SliceContent:
    """One slice of a pool: devices or counter sets, never both."""

    devices: tuple[v1.Device, ...] = ()
    shared_counters: tuple[v1.CounterSet, ...] = ()
    #: The devices say themselves which nodes reach them.
    per_device_nodes: bool = False
    #: `partitionTypeAttribute` and `skipNodeOperations` of the slice.
    partition_type_attribute: str | None = None
    skip_node_operations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool as it should be; one of ``node_name``, ``node_selector``, ``all_nodes`` unless slices say it per device.

    A pool without devices still has one slice, an empty one, so that consumers know it is complete.
    """

    name: str
    slices: tuple[SliceContent, ...]
    generation: int = 0
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool = False

    @property
    def devices(self) -> Iterator[v1.Device]:
        """All devices, in the order in which they are handed out."""
        return (device for content in self.slices for device in content.devices)

    def with_devices(self, change: Callable[[v1.Device], v1.Device]) -> Pool:
        """The pool with every device changed."""
        slices = tuple(replace(content, devices=tuple(map(change, content.devices))) for content in self.slices)
        return replace(self, slices=slices)


def node_pool(
    node: str, found: Sequence[v1.Device | v1.CounterSet], *, room_for_taints: bool = True, name: str = ""
) -> Pool:
    """A pool of one node, named after it unless `name` is given: counter sets in slices of their own, then devices.

    With `room_for_taints` slices are as small as those with taints must be, so that a taint never moves a device.
    """
    sets = [item for item in found if isinstance(item, v1.CounterSet)]
    devices = [item for item in found if isinstance(item, v1.Device)]
    slices = [SliceContent(shared_counters=tuple(group)) for group in chunks(sets, COUNTER_SETS)]
    slices += [SliceContent(devices=tuple(group)) for group in split(devices, room_for_taints=room_for_taints)]
    return Pool(name=name or node, slices=tuple(slices), node_name=node)


def check_pool(pool: Pool) -> list[str]:
    """What makes a pool unusable for its consumers, in words; the server does not look across slices."""
    problems: list[str] = []
    sets: dict[str, v1.CounterSet] = {}
    for content in pool.slices:
        for counters in content.shared_counters:
            if counters.name in sets:
                problems.append(f"pool {pool.name}: counter set {counters.name!r} is defined twice")
            sets[counters.name] = counters
    seen: set[str] = set()
    for device in pool.devices:
        if device.name in seen:
            problems.append(f"pool {pool.name}: device {device.name!r} exists twice")
        seen.add(device.name)
        for consumed in device.consumesCounters or ():
            known = sets.get(consumed.counterSet)
            if known is None:
                problems.append(f"pool {pool.name}: device {device.name!r} uses unknown set {consumed.counterSet!r}")
                continue
            problems += [
                f"pool {pool.name}: device {device.name!r} uses unknown counter {consumed.counterSet}/{counter}"
                for counter in consumed.counters
                if counter not in known.counters
            ]
    return problems


def plan_pool(
    driver: str,
    pool: Pool | None,
    existing: Sequence[v1.ResourceSlice],
    *,
    now: float,
    owner: OwnerReference | None = None,
) -> list[Write]:
    """Writes that turn ``existing`` (all slices of the pool in the API) into ``pool``; None removes the pool.

    ``now`` is the Unix time that new taints get; a taint that stays keeps its time.
    """
    desired = [] if pool is None else list(pool.slices) or [SliceContent()]
    kept, obsolete = _sort(driver, existing, len(desired), owner)
    current = max((found.spec.pool.generation for found in existing), default=0)
    writes: list[Write] = [
        Delete(RESOURCESLICE, "", s.metadata.name, uid=s.metadata.uid, resource_version=s.metadata.resourceVersion)
        for s in obsolete
    ]
    if pool is None:
        return writes
    specs = [_spec(driver, pool, content, len(desired), current, kept.get(i), now) for i, content in enumerate(desired)]
    changed = [
        i
        for i, spec in enumerate(specs)
        if i in kept and (kept[i].spec.pool.generation != current or not same_spec(kept[i].spec, spec))
    ]
    missing = [i for i in range(len(specs)) if i not in kept]
    generation = current
    if missing or len(changed) > 1:
        generation += 1
    generation = max(generation, pool.generation)
    if generation != current:
        changed = sorted(kept)
    for i in changed:
        writes.append(_update(kept[i], _with_generation(specs[i], generation)))
    prefix = _prefix(driver, owner)
    digits = max(5, len(f"{len(desired) - 1:x}"))
    for i in missing:
        metadata: Object = {"generateName": f"{i:0{digits}x}-{prefix}"}
        if owner is not None:
            metadata["ownerReferences"] = [msgspec.to_builtins(owner)]
        spec = msgspec.to_builtins(_with_generation(specs[i], generation))
        obj = {"apiVersion": v1.API_VERSION, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
        writes.append(Create(RESOURCESLICE, obj))
    return writes


def same_spec(stored: v1.ResourceSliceSpec, wanted: v1.ResourceSliceSpec) -> bool:
    """Whether two specs say the same, apart from the generation and times of taints that the server filled in."""
    left, right = _without_times(stored), _without_times(wanted)
    return _with_generation(left, 0) == _with_generation(right, 0) and _same_times(stored, wanted)


def _sort(
    driver: str, existing: Sequence[v1.ResourceSlice], count: int, owner: OwnerReference | None
) -> tuple[dict[int, v1.ResourceSlice], list[v1.ResourceSlice]]:
    """Slices to keep by their index, and those that have to go."""
    pattern = re.compile(rf"([0-9a-f]{{5,}})-{re.escape(_prefix(driver, owner))}")
    digits = max(5, len(f"{max(count - 1, 0):x}"))
    kept: dict[int, v1.ResourceSlice] = {}
    obsolete: list[v1.ResourceSlice] = []
    for found in sorted(existing, key=lambda s: (-s.spec.pool.generation, s.metadata.name)):
        match = pattern.match(found.metadata.name)
        index = int(match[1], 16) if match and len(match[1]) == digits else count
        # An older generation at its place is what a crash in the middle of an update leaves; it can be updated.
        if index < count and index not in kept:
            kept[index] = found
        else:
            obsolete.append(found)
    return kept, obsolete


def _prefix(driver: str, owner: OwnerReference | None) -> str:
    return f"{driver}-{owner.name}-" if owner is not None else f"{driver}-"


def _spec(
    driver: str,
    pool: Pool,
    content: SliceContent,
    count: int,
    generation: int,
    stored: v1.ResourceSlice | None,
    now: float,
) -> v1.ResourceSliceSpec:
    devices = [_timed(_canonical(device), stored, now) for device in content.devices]
    per_device = content.per_device_nodes
    return v1.ResourceSliceSpec(
        driver=driver,
        pool=v1.ResourcePool(name=pool.name, generation=generation, resourceSliceCount=count),
        nodeName=None if per_device else pool.node_name,
        nodeSelector=None if per_device else pool.node_selector,
        allNodes=True if pool.all_nodes and not per_device else None,
        perDeviceNodeSelection=True if per_device else None,
        devices=devices or None,
        sharedCounters=[_canonical_set(counters) for counters in content.shared_counters] or None,
        partitionTypeAttribute=content.partition_type_attribute,
        skipNodeOperations=[*content.skip_node_operations] or None,
    )


def _canonical(device: v1.Device) -> v1.Device:
    """The device with quantities as the server writes them: 4096Mi comes back as 4Gi."""
    if not device.capacity and not device.consumesCounters and not device.nodeAllocatableResources:
        return device
    consumed = [
        msgspec.structs.replace(draw, counters=_canonical_counters(draw.counters))
        for draw in device.consumesCounters or ()
    ]
    return msgspec.structs.replace(
        device,
        capacity={name: _canonical_capacity(value) for name, value in (device.capacity or {}).items()} or None,
        consumesCounters=consumed or None,
        nodeAllocatableResources={
            name: v1.NodeAllocatableResource(
                mapping=_with_quantities(value.mapping, "capacityMultiplier", "deviceMultiplier"),
                overhead=_with_quantities(value.overhead, "perPod", "perContainer"),
            )
            for name, value in (device.nodeAllocatableResources or {}).items()
        }
        or None,
    )


def _canonical_capacity(capacity: v1.DeviceCapacity) -> v1.DeviceCapacity:
    policy = _with_quantities(capacity.requestPolicy, "default")
    if policy is not None:
        policy = msgspec.structs.replace(
            policy,
            validRange=_with_quantities(policy.validRange, "min", "max", "step"),
            validValues=[_quantity(value) for value in policy.validValues or ()] or None,
        )
    return v1.DeviceCapacity(value=_quantity(capacity.value), requestPolicy=policy)


def _with_quantities(struct: S | None, *fields: str) -> S | None:
    if struct is None:
        return None
    given = {name: _quantity(value) for name in fields if (value := getattr(struct, name)) is not None}
    return msgspec.structs.replace(struct, **given)


def _canonical_set(counters: v1.CounterSet) -> v1.CounterSet:
    return msgspec.structs.replace(counters, counters=_canonical_counters(counters.counters))


def _canonical_counters(counters: Mapping[str, v1.Counter]) -> dict[str, v1.Counter]:
    return {name: v1.Counter(value=_quantity(counter.value)) for name, counter in counters.items()}


def _quantity(text: str) -> str:
    """The canonical form; what is no quantity is left for the server to refuse, which names the field."""
    try:
        return Quantity.parse(text).canonical()
    except ValueError:
        return text


def _timed(device: v1.Device, stored: v1.ResourceSlice | None, now: float) -> v1.Device:
    """The device with a time on every taint: the one that an equal taint has already, else ``now``."""
    if not device.taints or all(taint.timeAdded for taint in device.taints):
        return device
    before = next((d for d in (stored.spec.devices if stored else None) or () if d.name == device.name), None)
    known = {(t.key, t.value, t.effect): t.timeAdded for t in (before.taints if before else None) or ()}
    taints = [
        taint
        if taint.timeAdded
        else msgspec.structs.replace(
            taint, timeAdded=known.get((taint.key, taint.value, taint.effect)) or timestamp(now)
        )
        for taint in device.taints
    ]
    return msgspec.structs.replace(device, taints=taints)


def _with_generation(spec: v1.ResourceSliceSpec, generation: int) -> v1.ResourceSliceSpec:
    return msgspec.structs.replace(spec, pool=msgspec.structs.replace(spec.pool, generation=generation))


def _update(stored: v1.ResourceSlice, spec: v1.ResourceSliceSpec) -> Patch:
    body: dict[str, Any] = msgspec.to_builtins(spec)
    # A merge patch keeps what it does not name: fields that vanish have to be named.
    for name in msgspec.to_builtins(stored.spec):
        body.setdefault(name, None)
    metadata = {"resourceVersion": stored.metadata.resourceVersion, "uid": stored.metadata.uid}
    return Patch(RESOURCESLICE, "", stored.metadata.name, {"metadata": metadata, "spec": body})


def _without_times(spec: v1.ResourceSliceSpec) -> v1.ResourceSliceSpec:
    if not any(device.taints for device in spec.devices or ()):
        return msgspec.structs.replace(spec, devices=spec.devices or None, sharedCounters=spec.sharedCounters or None)
    devices = [
        msgspec.structs.replace(d, taints=[msgspec.structs.replace(t, timeAdded=None) for t in d.taints])
        if d.taints
        else d
        for d in spec.devices or ()
    ]
    return msgspec.structs.replace(spec, devices=devices, sharedCounters=spec.sharedCounters or None)


def _same_times(stored: v1.ResourceSliceSpec, wanted: v1.ResourceSliceSpec) -> bool:
    """Whether taints that stand at the same place have the same time; call it on specs that agree otherwise."""
    for left, right in zip(stored.devices or (), wanted.devices or (), strict=False):
        for a, b in zip(left.taints or (), right.taints or (), strict=False):
            if a.timeAdded and b.timeAdded and abs(_seconds(a.timeAdded) - _seconds(b.timeAdded)) > _SAME_TIME:
                return False
    return True


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
