"""Audits a cluster: what must never be the case, looked for in a plain set of objects.

Pure: the same function serves a live API, a dump and the tests. It re-derives everything
from the objects and shares no code with the allocator, so that neither can hide the other's faults.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Any

import msgspec

from drakkar.api.meta import Object, Struct
from drakkar.api.names import DELETE_PROTECTION, DOMAIN, DRAWN_FROM, DRAWN_KIND, PODS_PER_NODE
from drakkar.api.objects import (
    is_deleting,
    key_of,
    labels_of,
    name_of,
    namespace_of,
    pod_claim_names,
    pod_is_done,
    pod_node,
    uid_of,
)
from drakkar.api.quantity import Quantity
from drakkar.api.resource import v1
from drakkar.api.selectors import node_selector_matches
from drakkar.api.tree import text
from drakkar.insight.dump import DeviceId, Dump, collect, device_of, results_of

__all__ = ["PASSING", "Finding", "collect", "verify"]

#: Longest ``status.reservedFor`` that the API permits.
MOST_CONSUMERS = 256
#: Rules of findings that pass by themselves: a controller has not got to a pod yet that has ended or is gone.
PASSING = frozenset({"reserved-for-missing-pod", "orphaned-claim"})


class Finding(Struct, frozen=True, kw_only=True):
    """One fault: the rule that is broken, the object (``kind namespace/name``), and one sentence."""

    rule: str
    object: str
    message: str


def verify(objects: Iterable[Object]) -> list[Finding]:
    """All findings, in the order of the rules; empty when the cluster is sound.

    Raises UsageError for objects that cannot be read.
    """
    dump = Dump(objects)
    return [finding for rule in _RULES for finding in rule(dump)]


def _claim(claim: v1.ResourceClaim) -> str:
    return f"ResourceClaim {key_of(claim)}"


def _pod(pod: Object) -> str:
    return f"Pod {key_of(pod)}"


def _slice(found: v1.ResourceSlice) -> str:
    return f"ResourceSlice {found.metadata.name}"


def _text(device: DeviceId) -> str:
    return "/".join(device)


def _holders(dump: Dump) -> dict[DeviceId, list[tuple[v1.ResourceClaim, v1.DeviceRequestAllocationResult]]]:
    """Who holds each device; administrative access holds nothing."""
    holders: dict[DeviceId, list[tuple[v1.ResourceClaim, v1.DeviceRequestAllocationResult]]] = defaultdict(list)
    for claim in dump.claims.values():
        for result in results_of(claim):
            if not result.adminAccess:
                holders[device_of(result)].append((claim, result))
    return holders


def double_allocation(dump: Dump) -> Iterator[Finding]:
    """A device that is not shareable belongs to one result."""
    for device, held in sorted(_holders(dump).items(), key=lambda item: item[0]):
        known = dump.devices.get(device)
        shareable = known is not None and bool(known[1].allowMultipleAllocations)
        exclusive = [entry for entry in held if not shareable or entry[1].shareID is None]
        if len(held) > 1 and exclusive:
            names = ", ".join(key_of(claim) for claim, _ in held)
            yield Finding(
                rule="double-allocation",
                object=_claim(held[-1][0]),
                message=f"device {_text(device)} is allocated {len(held)} times, to {names}",
            )


def overdrawn_counters(dump: Dump) -> Iterator[Finding]:
    """Devices in use take no more than their counters hold; a shared device pays once, its shares what they take."""
    drawn: dict[tuple[str, str, str, str], Fraction] = defaultdict(Fraction)
    for device, held in _holders(dump).items():
        known = dump.devices.get(device)
        if known is None:
            for counter_set, name, amount in _recorded(held):
                drawn[device[0], device[1], counter_set, name] += amount
            continue
        for consumed in known[1].consumesCounters or ():
            for name, counter in consumed.counters.items():
                drawn[device[0], device[1], consumed.counterSet, name] += _exact(counter.value)
        for capacity, counter_set, name in _tied(known[1]):
            for _, result in held:
                amount = (result.consumedCapacity or {}).get(capacity)
                whole = (known[1].capacity or {})[capacity].value
                drawn[device[0], device[1], counter_set, name] += _exact(whole if amount is None else amount)
    limits: dict[tuple[str, str, str, str], Fraction] = {}
    for found in dump.slices.values():
        if dump.is_newest(found):
            for counters in found.spec.sharedCounters or ():
                for name, counter in counters.counters.items():
                    key = (found.spec.driver, found.spec.pool.name, counters.name, name)
                    limits[key] = _exact(counter.value)
    for key, amount in sorted(drawn.items()):
        driver, pool, counter_set, name = key
        limit = limits.get(key)
        if limit is not None and amount > limit:
            yield Finding(
                rule="counters-overdrawn",
                object=f"pool {driver}/{pool}",
                message=f"counter {counter_set}/{name} holds {_number(limit)}; devices in use take {_number(amount)}",
            )


def overdrawn_capacity(dump: Dump) -> Iterator[Finding]:
    """Shares of a shareable device add up to no more than its capacity."""
    used: dict[tuple[DeviceId, str], Fraction] = defaultdict(Fraction)
    for device, held in _holders(dump).items():
        for _, result in held:
            for name, amount in (result.consumedCapacity or {}).items():
                used[device, name] += _exact(amount)
    for (device, name), amount in sorted(used.items()):
        known = dump.devices.get(device)
        capacity = _capacity(known[1], device[0], name) if known else None
        if capacity is not None and amount > capacity:
            yield Finding(
                rule="capacity-overdrawn",
                object=f"device {_text(device)}",
                message=f"capacity {name} is {_number(capacity)} and its shares take {_number(amount)}",
            )


def missing_devices(dump: Dump) -> Iterator[Finding]:
    """An allocated device is published, unless its pool is just being rewritten."""
    pools = set(dump.newest)
    for claim in dump.claims.values():
        for result in results_of(claim):
            device = device_of(result)
            if device in dump.devices:
                continue
            if device[:2] in pools and not dump.is_complete(*device[:2]):
                continue
            yield Finding(
                rule="device-missing",
                object=_claim(claim),
                message=f"device {_text(device)} is allocated and in no slice of the newest generation of its pool",
            )


def claim_state(dump: Dump) -> Iterator[Finding]:
    """Allocation, reservation and finalizer of a claim go together."""
    for claim in dump.claims.values():
        allocated = claim.status.allocation is not None
        if allocated and DELETE_PROTECTION not in (claim.metadata.finalizers or ()):
            yield Finding(
                rule="allocated-without-finalizer",
                object=_claim(claim),
                message=f"the claim is allocated and lacks the finalizer {DELETE_PROTECTION}",
            )
        consumers = claim.status.reservedFor or []
        if consumers and not allocated:
            names = ", ".join(consumer.name for consumer in consumers[:5])
            yield Finding(
                rule="reserved-not-allocated",
                object=_claim(claim),
                message=f"the claim is reserved for {names} and not allocated",
            )
        if len(consumers) > MOST_CONSUMERS:
            yield Finding(
                rule="too-many-consumers",
                object=_claim(claim),
                message=f"the claim is reserved for {len(consumers)} consumers; {MOST_CONSUMERS} are permitted",
            )


def consumers_exist(dump: Dump) -> Iterator[Finding]:
    """Who a claim is reserved for exists, has not ended, and names the claim; a pod's own claim serves nobody else."""
    by_uid = {uid_of(pod): pod for pod in dump.pods.values()}
    for claim in dump.claims.values():
        owner = next((ref for ref in claim.metadata.ownerReferences or () if ref.controller), None)
        for consumer in claim.status.reservedFor or ():
            if consumer.resource != "pods":
                continue
            pod = by_uid.get(consumer.uid)
            if pod is None or pod_is_done(pod):
                state = "does not exist" if pod is None else "has ended"
                yield Finding(
                    rule="reserved-for-missing-pod",
                    object=_claim(claim),
                    message=f"the claim is reserved for pod {consumer.name} (uid {consumer.uid}), which {state}",
                )
                continue
            if owner is not None and owner.kind == "Pod" and owner.uid != consumer.uid:
                yield Finding(
                    rule="claim-of-another-pod",
                    object=_claim(claim),
                    message=f"the claim belongs to pod {owner.name} and is reserved for pod {consumer.name}",
                )
            if claim.metadata.name not in _claims_of(pod):
                yield Finding(
                    rule="consumer-without-claim",
                    object=_claim(claim),
                    message=f"the claim is reserved for pod {consumer.name}, which does not use it",
                )


def orphaned_claims(dump: Dump) -> Iterator[Finding]:
    """A claim that was made for a pod goes with it."""
    by_uid = {uid_of(pod) for pod in dump.pods.values()}
    for claim in dump.claims.values():
        owner = next((ref for ref in claim.metadata.ownerReferences or () if ref.controller), None)
        if owner is not None and owner.kind == "Pod" and owner.uid not in by_uid and not is_deleting(claim):
            yield Finding(
                rule="orphaned-claim",
                object=_claim(claim),
                message=f"the claim was made for pod {owner.name} (uid {owner.uid}), which does not exist",
            )


def bound_pods(dump: Dump) -> Iterator[Finding]:
    """A pod on a node has its claims, allocated, reserved for it, and usable on that node."""
    for pod in dump.live_pods():
        node = dump.nodes.get(pod_node(pod))
        for entry, name in _entries(pod).items():
            if name is None:
                continue
            claim = dump.claims.get(f"{namespace_of(pod) or 'default'}/{name}")
            if claim is None:
                yield _bound(pod, "pod-without-claim", f"claim {name} of entry {entry} does not exist")
                continue
            if claim.status.allocation is None:
                yield _bound(pod, "bound-without-allocation", f"claim {name} is not allocated")
                continue
            if not _reserved(claim, pod):
                yield _bound(pod, "bound-without-reservation", f"claim {name} is not reserved for the pod")
            selector = claim.status.allocation.nodeSelector
            if node is not None and not node_selector_matches(selector, labels_of(node), name_of(node)):
                yield _bound(
                    pod,
                    "outside-node-selector",
                    f"the devices of claim {name} cannot be reached from node {name_of(node)}",
                )


def pods_per_node(dump: Dump) -> Iterator[Finding]:
    """No node runs more pods of a claim than its annotation allows."""
    counts: dict[tuple[str, str], list[str]] = defaultdict(list)
    for pod in dump.live_pods():
        for name in _claims_of(pod):
            counts[f"{namespace_of(pod) or 'default'}/{name}", pod_node(pod)].append(name_of(pod))
    for (key, node), pods in sorted(counts.items()):
        claim = dump.claims.get(key)
        limit = _limit(claim) if claim is not None else None
        if claim is not None and limit is not None and len(pods) > limit:
            yield Finding(
                rule="too-many-pods-on-node",
                object=_claim(claim),
                message=f"node {node} runs {len(pods)} pods of the claim ({', '.join(sorted(pods))}); "
                f"{PODS_PER_NODE} allows {limit}",
            )


def pools(dump: Dump) -> Iterator[Finding]:
    """Pools are complete, without leftovers, and name every device and counter once."""
    reported: set[tuple[str, str]] = set()
    for found in dump.slices.values():
        pool = (found.spec.driver, found.spec.pool.name)
        newest = dump.newest[pool]
        if not dump.is_newest(found):
            yield Finding(
                rule="stale-generation",
                object=_slice(found),
                message=f"generation {found.spec.pool.generation} of pool {'/'.join(pool)} is older than {newest}",
            )
        elif pool not in reported and not dump.is_complete(*pool):
            reported.add(pool)
            yield Finding(
                rule="pool-incomplete",
                object=f"pool {'/'.join(pool)}",
                message=f"not all {found.spec.pool.resourceSliceCount} slices of generation {newest} are published",
            )
    for device in sorted(dump.clashes):
        yield Finding(
            rule="identity-clash",
            object=f"device {_text(device)}",
            message="several slices publish a device of this name",
        )
    yield from _unknown_counters(dump)


def _unknown_counters(dump: Dump) -> Iterator[Finding]:
    known: set[tuple[str, str, str, str]] = set()
    for found in dump.slices.values():
        if dump.is_newest(found):
            for counters in found.spec.sharedCounters or ():
                known |= {(found.spec.driver, found.spec.pool.name, counters.name, c) for c in counters.counters}
    for device, (_, definition) in sorted(dump.devices.items(), key=lambda item: item[0]):
        if not dump.is_complete(*device[:2]):
            continue
        uses = [(consumed.counterSet, c) for consumed in definition.consumesCounters or () for c in consumed.counters]
        tied = [(counter_set, name) for _, counter_set, name in _tied(definition)]
        for counter_set, counter in uses + tied:
            if (*device[:2], counter_set, counter) not in known:
                yield Finding(
                    rule="unknown-counter",
                    object=f"device {_text(device)}",
                    message=f"it consumes {counter_set}/{counter}, which its pool does not define",
                )


def _bound(pod: Object, rule: str, what: str) -> Finding:
    return Finding(rule=rule, object=_pod(pod), message=f"the pod is bound to {pod_node(pod)} and {what}")


def _entries(pod: Object) -> dict[str, str | None]:
    entries = pod_claim_names(pod)
    extended = text(pod, "status", "extendedResourceClaimStatus", "resourceClaimName")
    return {**entries, "extended resources": extended} if extended else entries


def _claims_of(pod: Object) -> set[str]:
    return {name for name in _entries(pod).values() if name}


def _reserved(claim: v1.ResourceClaim, pod: Object) -> bool:
    group = text(pod, "spec", "schedulingGroup", "podGroupName")
    return any(
        ref.uid == uid_of(pod) if ref.resource == "pods" else bool(group) and ref.name == group
        for ref in claim.status.reservedFor or ()
    )


def _limit(claim: v1.ResourceClaim) -> int | None:
    """Pods of the claim that one node may run; None without a bound."""
    match = re.fullmatch(r"(?:<=)?\s*([0-9]+)", (claim.metadata.annotations or {}).get(PODS_PER_NODE, "").strip())
    return int(match[1]) if match else None


def _recorded(
    held: list[tuple[v1.ResourceClaim, v1.DeviceRequestAllocationResult]],
) -> Iterator[tuple[str, str, Fraction]]:
    """What a device that is in no slice drew when it was given out, as the allocations say (kind DrawnCounters)."""
    paid = False
    for claim, result in held:
        allocation = claim.status.allocation
        for config in (allocation.devices.config if allocation is not None else None) or ():
            opaque = config.opaque
            if opaque is None or opaque.driver != DOMAIN or opaque.parameters.get("kind") != DRAWN_KIND:
                continue
            for entry in _entries_of(opaque.parameters):
                if (entry.driver, entry.pool, entry.device) != device_of(result):
                    continue
                for counter_set, counters in ({} if paid else entry.counters).items():
                    for name, value in counters.items():
                        yield counter_set, name, _exact(value)
                paid = True
                for capacity, source in entry.shares.items():
                    counter_set, _, name = source.partition("/")
                    yield counter_set, name, _exact((result.consumedCapacity or {}).get(capacity, "0"))


class _Recorded(Struct, frozen=True, kw_only=True):
    driver: str
    pool: str
    device: str
    counters: dict[str, dict[str, str]] = {}
    shares: dict[str, str] = {}


def _entries_of(parameters: dict[str, Any]) -> list[_Recorded]:
    try:
        return msgspec.convert(parameters.get("devices") or [], type=list[_Recorded])
    except msgspec.ValidationError:
        return []


def _tied(device: v1.Device) -> Iterator[tuple[str, str, str]]:
    """Capacity, counter set and counter of what claims draw from a parent (``drawn-from.drakkar.dev/...``)."""
    for name, attribute in (device.attributes or {}).items():
        domain, _, bare = name.partition("/")
        if domain == DRAWN_FROM:
            counter_set, _, counter = (attribute.string or "").partition("/")
            for capacity in device.capacity or {}:
                if capacity in (bare, f"{capacity.rpartition('/')[0]}/{bare}"):
                    yield capacity, counter_set, counter


def _capacity(device: v1.Device, driver: str, name: str) -> Fraction | None:
    """A capacity by its name with or without the driver's domain."""
    for candidate in (name, name.removeprefix(f"{driver}/"), f"{driver}/{name}"):
        found = (device.capacity or {}).get(candidate)
        if found is not None:
            return _exact(found.value)
    return None


def _exact(quantity: str) -> Fraction:
    return Fraction(Quantity.parse(quantity).nanos, 10**9)


def _number(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else str(float(value))


_RULES: tuple[Callable[[Dump], Iterator[Finding]], ...] = (
    double_allocation,
    overdrawn_counters,
    overdrawn_capacity,
    missing_devices,
    claim_state,
    consumers_exist,
    orphaned_claims,
    bound_pods,
    pods_per_node,
    pools,
)
