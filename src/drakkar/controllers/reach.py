"""Which hosts a device stands for: what allocations and slices say about nodes, as far as the loss of one matters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from drakkar.api.meta import NodeSelector, Object
from drakkar.api.names import LABEL_HOSTNAME
from drakkar.api.objects import labels_of, name_of
from drakkar.api.resource.v1 import (
    Device,
    DeviceRequestAllocationResult,
    DeviceTaintSelector,
    ResourceClaim,
    ResourceSlice,
)
from drakkar.api.selectors import listed_nodes, node_selector_matches

#: Stands among the hosts of a claim whose selector lists none: any node may come to match it.
BY_LABELS = "*"


#: A device, and the slice it stands in.
Published = tuple[ResourceSlice, Device]


@dataclass(frozen=True, slots=True)
class Host:
    """A host that a selector means; ``known`` is False for one that is listed and has no Node."""

    name: str
    labels: Mapping[str, str]
    known: bool = True

    def within(self, selector: NodeSelector | None) -> bool:
        """Whether the selector matches the host."""
        return node_selector_matches(selector, self.labels, self.name)


def selector_of(claim: ResourceClaim) -> NodeSelector | None:
    """Where pods of the claim can run; None: it is not allocated, or anywhere."""
    allocation = claim.status.allocation
    return allocation.nodeSelector if allocation is not None else None


def spread_index(claim: ResourceClaim) -> list[str]:
    """Hosts of a claim that is allocated on several, not on all: names and hostnames, or :data:`BY_LABELS`."""
    selector = selector_of(claim)
    if selector is None:
        return []
    listed = listed_nodes(selector)
    if listed is None:
        return [BY_LABELS]
    hosts = [*listed[0], *listed[1]]
    return hosts if len(hosts) > 1 else []


def hosts_of(selector: NodeSelector, nodes: Iterable[Object], get: Callable[[str], Object | None]) -> Iterator[Host]:
    """The hosts that a selector matches; of ``nodes`` all are looked at only where it does not list them by name."""
    listed = listed_nodes(selector)
    if listed is not None and not listed[1]:
        for name in listed[0]:
            node = get(name)
            host = Host(name, labels_of(node)) if node is not None else Host(name, {}, known=False)
            if host.within(selector):
                yield host
        return
    found: set[str] = set()
    for node in nodes:
        host = Host(name_of(node), labels_of(node))
        if host.within(selector):
            found |= {host.name, host.labels.get(LABEL_HOSTNAME, "")}
            yield host
    for name in (*listed[0], *listed[1]) if listed is not None else ():
        # A Node that is gone was named like its host, as far as anybody can tell.
        if name not in found and get(name) is None:
            yield Host(name, {LABEL_HOSTNAME: name}, known=False)


def published(slices: Iterable[ResourceSlice], device: str) -> Published | None:
    """A device in the newest generation of its pool's slices."""
    slices = [*slices]
    newest = max((item.spec.pool.generation for item in slices), default=0)
    for item in slices:
        if item.spec.pool.generation == newest:
            for found in item.spec.devices or ():
                if found.name == device:
                    return item, found
    return None


def selection_of(found: Published) -> NodeSelector | None:
    """The nodes for which a device is published; None where that is one, or all."""
    spec, device = found[0].spec, found[1]
    return device.nodeSelector if spec.perDeviceNodeSelection else spec.nodeSelector


def needs_host(found: Published, host: Host) -> bool:
    """Whether the host is among those for which a device is published."""
    selector = selection_of(found)
    return selector is not None and host.within(selector)


def selects(selector: DeviceTaintSelector | None, driver: str, pool: str, device: str) -> bool:
    """Whether the selector means the device; no selector means none, an empty one all."""
    return selector is not None and (
        selector.driver in (None, driver) and selector.pool in (None, pool) and selector.device in (None, device)
    )


def results_of(claim: ResourceClaim) -> list[DeviceRequestAllocationResult]:
    """The devices of a claim."""
    allocation = claim.status.allocation
    return (allocation.devices.results or []) if allocation is not None else []


def own_results_of(claim: ResourceClaim) -> list[DeviceRequestAllocationResult]:
    """The devices of a claim that are its own; those of administrator access belong to somebody else."""
    return [result for result in results_of(claim) if not result.adminAccess]
