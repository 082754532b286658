"""Short ways to describe devices with the structs of the API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from drakkar.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from drakkar.api.names import LABEL_HOSTNAME
from drakkar.api.resource import v1

#: Devices per slice: the limits of the API, without and with taints, counters or list attributes.
DEVICES, DEVICES_WITH_EXTRAS = 128, 64


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


def split(devices: Iterable[v1.Device]) -> list[list[v1.Device]]:
    """Runs of devices that fit into one slice each, in order.

    Devices with counters count as tainted ones too, so that a taint never moves them to another slice.
    """
    result: list[list[v1.Device]] = []
    limit = DEVICES
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
