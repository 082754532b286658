"""Short ways to describe devices with the structs of the API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from drakkar.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from drakkar.api.names import ATTRIBUTE_NUMA_NODE, ATTRIBUTE_PCI_BUS_ID, ATTRIBUTE_PCIE_ROOT, LABEL_HOSTNAME
from drakkar.api.resource import v1

#: Devices per slice: the limits of the API, without and with taints, counters or list attributes.
DEVICES, DEVICES_WITH_EXTRAS = 128, 64
#: Counter sets per slice.
COUNTER_SETS = 8

T = TypeVar("T")


def device(
    name: str,
    attributes_: Mapping[str, bool | int | str | v1.DeviceAttribute] | None = None,
    capacity: Mapping[str, int | str | v1.DeviceCapacity] | None = None,
    *,
    pcie_root: str = "",
    pci_bus_id: str = "",
    numa_node: int | None = None,
    consumes: Sequence[v1.DeviceCounterConsumption] = (),
    shared: bool = False,
) -> v1.Device:
    """A device with plain values as attributes and capacities, and the standard attributes by their own names.

    `shared`: several claims may have it at once, each a share of its capacities (`allowMultipleAllocations`).
    """
    values: dict[str, bool | int | str | v1.DeviceAttribute] = {**(attributes_ or {})}
    if pcie_root:
        values[ATTRIBUTE_PCIE_ROOT] = pcie_root
    if pci_bus_id:
        values[ATTRIBUTE_PCI_BUS_ID] = pci_bus_id
    if numa_node is not None:
        values[ATTRIBUTE_NUMA_NODE] = numa_node
    plain = {key: value for key, value in values.items() if not isinstance(value, v1.DeviceAttribute)}
    whole = {key: value for key, value in values.items() if isinstance(value, v1.DeviceAttribute)}
    amounts = {
        key: value if isinstance(value, v1.DeviceCapacity) else v1.DeviceCapacity(value=str(value))
        for key, value in (capacity or {}).items()
    }
    return v1.Device(
        name=name,
        attributes={**attributes(plain), **whole} or None,
        capacity=amounts or None,
        consumesCounters=[*consumes] or None,
        allowMultipleAllocations=True if shared else None,
    )


def attributes(values: Mapping[str, bool | int | str]) -> dict[str, v1.DeviceAttribute]:
    """Attributes from plain values; build a ``DeviceAttribute`` yourself for versions and lists."""
    result: dict[str, v1.DeviceAttribute] = {}
    for name, value in values.items():
        if isinstance(value, bool):
            result[name] = v1.DeviceAttribute(bool=value)
        elif isinstance(value, int):
            result[name] = v1.DeviceAttribute(int=value)
        else:
            result[name] = v1.DeviceAttribute(string=value)
    return result


def capacities(values: Mapping[str, int | str]) -> dict[str, v1.DeviceCapacity]:
    """Capacities from whole numbers or quantities as text."""
    return {name: v1.DeviceCapacity(value=str(value)) for name, value in values.items()}


def counter_set(name: str, values: Mapping[str, int | str]) -> v1.CounterSet:
    """A counter set from whole numbers or quantities as text."""
    return v1.CounterSet(name=name, counters=_counters(values))


def consumes(name: str, values: Mapping[str, int | str]) -> v1.DeviceCounterConsumption:
    """What a device takes from the counter set ``name``."""
    return v1.DeviceCounterConsumption(counterSet=name, counters=_counters(values))


def hosts(names: Sequence[str]) -> NodeSelector:
    """The nodes with one of these values of the label ``kubernetes.io/hostname``."""
    requirement = NodeSelectorRequirement(key=LABEL_HOSTNAME, operator="In", values=[*names])
    return NodeSelector(nodeSelectorTerms=[NodeSelectorTerm(matchExpressions=[requirement])])


def chunks(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Runs of at most `size` items."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def split(devices: Iterable[v1.Device], *, room_for_taints: bool = False) -> list[list[v1.Device]]:
    """Runs of devices that fit into one slice each, in order.

    Devices with counters count as tainted ones too, so that a taint never moves them to another slice; with
    `room_for_taints` all do.
    """
    result: list[list[v1.Device]] = []
    limit = DEVICES_WITH_EXTRAS if room_for_taints else DEVICES
    for device in devices:
        if device.taints or device.consumesCounters or _has_list(device):
            limit = DEVICES_WITH_EXTRAS
        if not result or len(result[-1]) >= limit:
            result.append([])
        result[-1].append(device)
    return result


def _counters(values: Mapping[str, int | str]) -> dict[str, v1.Counter]:
    return {name: v1.Counter(value=str(value)) for name, value in values.items()}


def _has_list(device: v1.Device) -> bool:
    return any(
        value.bools is not None or value.ints is not None or value.strings is not None or value.versions is not None
        for value in (device.attributes or {}).values()
    )
