"""One published slice and its devices, prepared for being asked many times.

A record never changes: a new version of a slice, or a taint rule that hits it, makes new
records. So whatever is computed from a record can be kept with it, and snapshots share it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from drakkar.api.names import DRAWN_FROM
from drakkar.api.quantity import Quantity
from drakkar.api.resource.drawn import draws_of
from drakkar.api.resource.v1 import Device, DeviceAttribute, DeviceTaint, DeviceTaintRule, ResourceSlice
from drakkar.inventory.nodeselector import CompiledSelector, compile_node_selector

PoolKey = tuple[str, str]
#: Type and value of an attribute; lists become frozen sets of such values.
Scalar = tuple[str, bool | int | str]

#: Stands for an attribute that is there but has no single value: a list, or nothing at all.
NO_SCALAR: Final[Scalar] = ("none", "")


_encode: Final = msgspec.msgpack.Encoder().encode
_DRAWN_FROM: Final = f"{DRAWN_FROM}/"


@lru_cache(maxsize=16384)
def amount(text: str) -> int:
    """A quantity as an exact count of nano units."""
    return Quantity.parse(text).nanos


def scalar_of(attribute: DeviceAttribute) -> Scalar:
    """Type and value of a scalar attribute; :data:`NO_SCALAR` for lists and for attributes without a value."""
    if attribute.string is not None:
        return ("string", attribute.string)
    if attribute.int is not None:
        return ("int", attribute.int)
    if attribute.bool is not None:
        return ("bool", attribute.bool)
    if attribute.version is not None:
        return ("version", attribute.version)
    return NO_SCALAR


def values_of(attribute: DeviceAttribute) -> frozenset[Scalar]:
    """The attribute as a set: a scalar is a set of one, a missing value the empty set."""
    scalar = scalar_of(attribute)
    if scalar is not NO_SCALAR:
        return frozenset((scalar,))
    found: list[Scalar] = [("string", value) for value in attribute.strings or ()]
    found += [("int", value) for value in attribute.ints or ()]
    found += [("bool", value) for value in attribute.bools or ()]
    found += [("version", value) for value in attribute.versions or ()]
    return frozenset(found)


class DeviceRecord:
    """A device as published, with taints of rules added behind its own."""

    __slots__ = ("binding", "blocking", "device", "multi", "name", "node", "slice", "taints")

    def __init__(self, device: Device, slice_record: SliceRecord, taints: tuple[DeviceTaint, ...]) -> None:
        self.device = device
        self.slice = slice_record
        self.name = device.name
        self.taints = taints
        #: Taints that keep an allocation away unless tolerated.
        self.blocking = tuple(t for t in taints if t.effect in ("NoSchedule", "NoExecute")) if taints else ()
        self.multi = bool(device.allowMultipleAllocations)
        self.binding = bool(device.bindingConditions)
        self.node: CompiledSelector | None = (
            compile_node_selector(device.nodeSelector) if device.nodeSelector is not None else None
        )

    def on_node(self, labels: dict[str, str], name: str) -> bool:
        """Whether the device's own node fields select the node (spec/allocation.md section 4)."""
        device = self.device
        if device.nodeName:
            return device.nodeName == name
        if device.allNodes:
            return True
        return self.node is not None and self.node.matches(labels, name)

    def attribute(self, name: str) -> DeviceAttribute | None:
        """The attribute with the qualified name, or the bare name in the driver's domain."""
        attributes = self.device.attributes
        if not attributes:
            return None
        found = attributes.get(name)
        if found is None:
            domain, slash, bare = name.partition("/")
            if slash and domain == self.slice.driver:
                found = attributes.get(bare)
        return found


class SliceRecord:
    """A ResourceSlice with the records of its devices."""

    __slots__ = (
        "counters",
        "devices",
        "driver",
        "generation",
        "grouped",
        "name",
        "node_name",
        "per_device",
        "pool",
        "selector",
        "slice",
        "want",
    )

    def __init__(self, published: ResourceSlice, rules: tuple[DeviceTaintRule, ...] = ()) -> None:
        spec = published.spec
        self.slice = published
        self.name = published.metadata.name
        self.driver = spec.driver
        self.pool: PoolKey = (spec.driver, spec.pool.name)
        self.generation = spec.pool.generation
        self.want = spec.pool.resourceSliceCount
        self.node_name = spec.nodeName or ""
        self.per_device = bool(spec.perDeviceNodeSelection)
        self.counters = bool(spec.sharedCounters)
        self.selector: CompiledSelector | None = (
            compile_node_selector(spec.nodeSelector) if spec.nodeSelector is not None else None
        )
        hitting = [rule for rule in rules if rule_hits(rule, spec.driver, spec.pool.name)]
        self.devices: list[DeviceRecord] = []
        for device in spec.devices or ():
            taints = tuple(device.taints or ())
            if hitting:
                taints += tuple(r.spec.taint for r in hitting if _names(r, device.name))
            self.devices.append(DeviceRecord(device, self, taints))
        self.grouped = any(
            use.compatibilityGroups for device in spec.devices or () for use in device.consumesCounters or ()
        )

    def likeness(self, drawn: bool) -> tuple[object, ...]:
        """Equal for slices whose devices differ in names, attributes and node selection only.

        With ``drawn`` attributes that tie a capacity to a counter of the pool count too.
        """
        spec = self.slice.spec
        devices = spec.devices or ()
        marks = [(d.capacity, d.consumesCounters, d.allowMultipleAllocations, d.bindingConditions) for d in devices]
        taints: tuple[object, ...] = ()
        if any([record.blocking for record in self.devices]):
            taints = tuple([tuple([(t.key, t.value, t.effect) for t in r.blocking]) for r in self.devices])
        draws: tuple[object, ...] = ()
        if drawn:
            attributes = {name for device in devices for name in device.attributes or ()}
            if any([name.startswith(_DRAWN_FROM) for name in attributes]):
                draws = tuple([draws_of(device) for device in devices])
        return (_encode(marks), taints, draws, self.per_device, bool(spec.skipNodeOperations), self.grouped)

    def likeness_of_counters(self) -> tuple[object, ...]:
        """Equal for slices that declare the same counters."""
        return (_encode(self.slice.spec.sharedCounters),)

    @property
    def shared(self) -> bool:
        """Whether the slice can reach more nodes than one named in it."""
        return not self.node_name

    def selectors(self) -> list[CompiledSelector]:
        """All node selectors in the slice."""
        found = [self.selector] if self.selector is not None else []
        if self.per_device:
            found += [record.node for record in self.devices if record.node is not None]
        return found

    def relevant(self, labels: dict[str, str], name: str) -> tuple[bool, str | None]:
        """Whether the slice reaches the node, and the fault of a node selector met on the way."""
        if self.node_name:
            return self.node_name == name, None
        if self.slice.spec.allNodes:
            return True, None
        if self.selector is not None:
            return self.selector.matches(labels, name), self.selector.fault
        if self.per_device:
            for record in self.devices:
                if record.device.nodeName:
                    if record.device.nodeName == name:
                        return True, None
                elif record.device.allNodes:
                    return True, None
                elif record.node is not None:
                    if record.node.fault is not None:
                        return False, record.node.fault
                    if record.node.matches(labels, name):
                        return True, None
        return False, None


def rule_hits(rule: DeviceTaintRule, driver: str, pool: str) -> bool:
    """Whether a taint rule can touch devices of the pool; a rule without a selector touches nothing."""
    selector = rule.spec.deviceSelector
    if selector is None:
        return False
    return selector.driver in (None, driver) and selector.pool in (None, pool)


def _names(rule: DeviceTaintRule, device: str) -> bool:
    selector = rule.spec.deviceSelector
    return selector is not None and selector.device in (None, device)
