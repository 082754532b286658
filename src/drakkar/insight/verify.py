"""Auditing a cluster: what must never be true, looked for in a set of objects.

:func:`verify` is pure: objects in (any served version, structs or JSON), findings out. It judges
one moment; a dump taken while objects change may show what a moment later is gone, so a
live audit that finds something is worth repeating.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from drakkar.api import kinds, names, objects
from drakkar.api.errors import UsageError
from drakkar.api.meta import Object, Struct
from drakkar.api.quantity import Quantity
from drakkar.api.resource import v1 as resource
from drakkar.api.resource.conversion import convert
from drakkar.api.selectors import node_selector_matches

if TYPE_CHECKING:
    from drakkar.client import Client

DeviceID = tuple[str, str, str]


class Finding(Struct, frozen=True, kw_only=True):
    """One violated rule: ``rule`` is a stable word, ``object`` is ``kind namespace/name``."""

    rule: str
    object: str
    message: str


#: What an audit reads from a live cluster.
COLLECTED = (
    kinds.NODE,
    kinds.POD,
    kinds.RESOURCECLAIM,
    kinds.RESOURCESLICE,
)


async def collect(client: Client) -> list[Object]:
    """The objects that :func:`verify` needs, from a live API server."""
    found: list[Object] = []
    for kind in COLLECTED:
        for obj in (await client.list(kind)).items:
            plain: Object = obj if isinstance(obj, dict) else msgspec.to_builtins(obj)
            found.append({**plain, "apiVersion": kind.api_version, "kind": kind.kind})
    return found


class _Audit:
    """The objects by kind, and what several rules need to know about them."""

    def __init__(self, found: Iterable[Object]):
        self.nodes: dict[str, Object] = {}
        self.pods: dict[str, Object] = {}
        self.claims: dict[str, resource.ResourceClaim] = {}
        slices: list[resource.ResourceSlice] = []
        for obj in found:
            kind = obj.get("kind")
            if kind == "Node":
                self.nodes[objects.name_of(obj)] = obj
            elif kind == "Pod":
                self.pods[_key(obj)] = obj
            elif kind == "ResourceClaim":
                claim = _typed(obj, resource.ResourceClaim)
                self.claims[_key(claim)] = claim
            elif kind == "ResourceSlice":
                slices.append(_typed(obj, resource.ResourceSlice))
        self.pools: dict[tuple[str, str], list[resource.ResourceSlice]] = defaultdict(list)
        for item in slices:
            self.pools[(item.spec.driver, item.spec.pool.name)].append(item)
        self.newest = {pool: max(item.spec.pool.generation for item in held) for pool, held in self.pools.items()}
        self.devices: dict[DeviceID, resource.Device] = {}
        for (driver, pool), held in self.pools.items():
            for item in held:
                if item.spec.pool.generation == self.newest[(driver, pool)]:
                    for device in item.spec.devices or ():
                        self.devices[(driver, pool, device.name)] = device

    def results(self) -> Iterator[tuple[str, resource.DeviceRequestAllocationResult]]:
        """Allocation results that hold something, with the key of their claim."""
        for key, claim in self.claims.items():
            for result in _results(claim):
                if not result.adminAccess:
                    yield key, result

    def claims_of(self, pod: Object) -> Iterator[resource.ResourceClaim]:
        """The existing claims that a pod names, directly or by template."""
        namespace = objects.namespace_of(pod) or "default"
        for name in objects.pod_claim_names(pod).values():
            claim = self.claims.get(f"{namespace}/{name}") if name else None
            if claim is not None:
                yield claim


def verify(found: Iterable[Object]) -> list[Finding]:
    """All violations, in the order of the rules. Raises UsageError for an object that cannot be read."""
    audit = _Audit(found)
    return [finding for rule in _RULES for finding in rule(audit)]


def _double_allocation(audit: _Audit) -> Iterator[Finding]:
    holders: dict[DeviceID, list[tuple[str, str | None]]] = defaultdict(list)
    for key, result in audit.results():
        holders[_id(result)].append((key, result.shareID))
    for device, held in holders.items():
        dedicated = [key for key, share in held if share is None]
        shares = [share for _, share in held if share is not None]
        if len(dedicated) > 1 or (dedicated and shares) or len(set(shares)) < len(shares):
            owners = ", ".join(sorted({key for key, _ in held}))
            yield Finding(
                rule="double-allocation",
                object=f"device {'/'.join(device)}",
                message=f"held {len(held)} times, by {owners}",
            )


def _overdrawn_counters(audit: _Audit) -> Iterator[Finding]:
    held = {_id(result) for _, result in audit.results()}
    drawn: dict[tuple[str, str, str, str], Quantity] = {}
    for driver, pool, name in held:
        device = audit.devices.get((driver, pool, name))
        for consumption in (device.consumesCounters or ()) if device else ():
            for counter, amount in consumption.counters.items():
                key = (driver, pool, consumption.counterSet, counter)
                quantity = Quantity.parse(amount.value)
                drawn[key] = drawn[key] + quantity if key in drawn else quantity
    declared = {
        (driver, pool, group.name, name): Quantity.parse(counter.value)
        for (driver, pool), slices in audit.pools.items()
        for item in slices
        if item.spec.pool.generation == audit.newest[(driver, pool)]
        for group in item.spec.sharedCounters or ()
        for name, counter in group.counters.items()
    }
    for (driver, pool, group, counter), amount in sorted(drawn.items(), key=lambda entry: entry[0]):
        limit = declared.get((driver, pool, group, counter))
        if limit is None or amount > limit:
            have = "is not declared" if limit is None else f"has {limit.canonical()}"
            yield Finding(
                rule="overdrawn-counter",
                object=f"pool {driver}/{pool}",
                message=f"counter {group}/{counter} {have}, allocated devices draw {amount.canonical()}",
            )


def _overdrawn_capacity(audit: _Audit) -> Iterator[Finding]:
    consumed: dict[tuple[DeviceID, str], Quantity] = {}
    for _, result in audit.results():
        for name, amount in (result.consumedCapacity or {}).items():
            key = (_id(result), name)
            quantity = Quantity.parse(amount)
            consumed[key] = consumed[key] + quantity if key in consumed else quantity
    for (device, name), amount in sorted(consumed.items(), key=lambda entry: entry[0]):
        capacity = (audit.devices[device].capacity or {}).get(name) if device in audit.devices else None
        if capacity is not None and amount > Quantity.parse(capacity.value):
            yield Finding(
                rule="overdrawn-capacity",
                object=f"device {'/'.join(device)}",
                message=f"capacity {name} is {capacity.value}, consumed are {amount.canonical()}",
            )


def _missing_devices(audit: _Audit) -> Iterator[Finding]:
    for key, result in audit.results():
        if _id(result) not in audit.devices:
            yield Finding(
                rule="device-not-published",
                object=f"claim {key}",
                message=f"holds {'/'.join(_id(result))}, which no slice of the pool's newest generation lists",
            )


def _pods_off_their_devices(audit: _Audit) -> Iterator[Finding]:
    for key, pod in audit.pods.items():
        node = objects.pod_node(pod)
        if not node or objects.pod_is_done(pod) or node not in audit.nodes:
            continue
        for claim in audit.claims_of(pod):
            allocation = claim.status.allocation
            if allocation is None or allocation.nodeSelector is None:
                continue
            if not node_selector_matches(allocation.nodeSelector, objects.labels_of(audit.nodes[node]), node):
                yield Finding(
                    rule="pod-off-its-devices",
                    object=f"pod {key}",
                    message=f"runs on {node}, where the devices of claim {_key(claim)} cannot be reached",
                )


def _pods_without_reservation(audit: _Audit) -> Iterator[Finding]:
    for key, pod in audit.pods.items():
        if not objects.pod_node(pod) or objects.pod_is_done(pod) or objects.is_deleting(pod):
            continue
        for claim in audit.claims_of(pod):
            consumers = {entry.uid for entry in claim.status.reservedFor or () if entry.resource == "pods"}
            groups = [entry for entry in claim.status.reservedFor or () if entry.resource != "pods"]
            if not groups and objects.uid_of(pod) not in consumers:
                yield Finding(
                    rule="pod-without-reservation",
                    object=f"pod {key}",
                    message=f"is bound to {objects.pod_node(pod)}, but claim {_key(claim)} is not reserved for it",
                )


def _too_many_pods_per_node(audit: _Audit) -> Iterator[Finding]:
    users: dict[tuple[str, str], list[str]] = defaultdict(list)
    for key, pod in audit.pods.items():
        if objects.pod_node(pod) and not objects.pod_is_done(pod):
            for claim in audit.claims_of(pod):
                users[(_key(claim), objects.pod_node(pod))].append(key)
    for (claim, node), pods in sorted(users.items()):
        limit = objects.annotations_of(audit.claims[claim]).get(names.PODS_PER_NODE, "")
        if limit.isdigit() and len(pods) > int(limit):
            yield Finding(
                rule="too-many-pods-per-node",
                object=f"claim {claim}",
                message=f"allows {limit} per node; on {node} are {', '.join(sorted(pods))}",
            )


def _orphan_consumers(audit: _Audit) -> Iterator[Finding]:
    uids = {objects.uid_of(pod): key for key, pod in audit.pods.items()}
    for key, claim in audit.claims.items():
        for entry in claim.status.reservedFor or ():
            if entry.resource == "pods" and not entry.apiGroup and entry.uid not in uids:
                yield Finding(
                    rule="orphan-consumer",
                    object=f"claim {key}",
                    message=f"is reserved for pod {entry.name} (uid {entry.uid}), which does not exist",
                )


def _claim_states(audit: _Audit) -> Iterator[Finding]:
    for key, claim in audit.claims.items():
        if claim.status.reservedFor and claim.status.allocation is None:
            yield Finding(
                rule="reserved-not-allocated", object=f"claim {key}", message="has consumers but no allocation"
            )
        if claim.status.allocation is not None and names.DELETE_PROTECTION not in objects.finalizers_of(claim):
            yield Finding(
                rule="allocation-unprotected",
                object=f"claim {key}",
                message=f"is allocated without the finalizer {names.DELETE_PROTECTION}",
            )


def _pool_states(audit: _Audit) -> Iterator[Finding]:
    for (driver, pool), slices in sorted(audit.pools.items()):
        newest = audit.newest[(driver, pool)]
        current = [item for item in slices if item.spec.pool.generation == newest]
        if len(current) < len(slices):
            stale = ", ".join(sorted(item.metadata.name for item in slices if item not in current))
            yield Finding(
                rule="stale-slice", object=f"pool {driver}/{pool}", message=f"generation is {newest}; older: {stale}"
            )
        counts = {item.spec.pool.resourceSliceCount for item in current}
        if counts != {len(current)}:
            said = " and ".join(str(count) for count in sorted(counts))
            yield Finding(
                rule="incomplete-pool",
                object=f"pool {driver}/{pool}",
                message=f"{len(current)} slices, announced are {said}",
            )
        seen: dict[str, str] = {}
        for item in current:
            for device in item.spec.devices or ():
                if device.name in seen:
                    yield Finding(
                        rule="identity-clash",
                        object=f"device {driver}/{pool}/{device.name}",
                        message=f"published by {seen[device.name]} and {item.metadata.name}",
                    )
                seen[device.name] = item.metadata.name


_RULES: tuple[Callable[[_Audit], Iterator[Finding]], ...] = (
    _double_allocation,
    _overdrawn_counters,
    _overdrawn_capacity,
    _missing_devices,
    _pods_off_their_devices,
    _pods_without_reservation,
    _too_many_pods_per_node,
    _orphan_consumers,
    _claim_states,
    _pool_states,
)


def _typed(obj: Object, kind: Any) -> Any:
    version = str(obj.get("apiVersion", "")).rpartition("/")[2]
    try:
        hub = obj if version == "v1" else convert(obj, kind.__name__, version, "v1")
        return msgspec.convert(hub, kind)
    except (msgspec.ValidationError, ValueError) as error:
        raise UsageError(f"{kind.__name__} {objects.name_of(obj)}: cannot be read: {error}") from error


def _key(obj: Any) -> str:
    return f"{objects.namespace_of(obj) or 'default'}/{objects.name_of(obj)}"


def _results(claim: resource.ResourceClaim) -> Iterable[resource.DeviceRequestAllocationResult]:
    allocation = claim.status.allocation
    return (allocation.devices.results or ()) if allocation is not None else ()


def _id(result: resource.DeviceRequestAllocationResult) -> DeviceID:
    return result.driver, result.pool, result.device
