"""ResourcePoolStatusRequests: somebody asks what is left in a driver's pools, once, and is answered.

The answer is computed from slices, claims and taint rules as they are at that moment and never changes
again. A pool whose slices have not all arrived is waited for; when that takes too long, the answer says
so. Upstream leaves such a request without an answer. Answered requests go after an hour, all others after
a day.

Source: spec/controllers.md section 4, spec/api.md section 5.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from drakkar.api.clock import Clock
from drakkar.api.errors import ParseError
from drakkar.api.kinds import DEVICETAINTRULE, RESOURCECLAIM, RESOURCEPOOLSTATUSREQUEST, RESOURCESLICE
from drakkar.api.meta import Object
from drakkar.api.objects import is_deleting, name_of, uid_of
from drakkar.api.quantity import Quantity
from drakkar.api.resource.v1 import Device, DeviceTaintRule, ResourceClaim, ResourceSlice
from drakkar.api.tree import at, children, text
from drakkar.client.cache import Caches
from drakkar.client.clock import parse_timestamp, timestamp
from drakkar.client.writes import After, Delete, Patch, Write
from drakkar.controllers.common import Queue
from drakkar.controllers.workloads import identity

#: Seconds that missing slices are waited for.
PATIENCE = 5.0
#: Seconds after which requests go: those that were answered, and the others.
ANSWERED_LIFE, LIFE = 3600.0, 86400.0
DEFAULT_LIMIT = 100
#: Most entries of a summary, and bytes of an error.
SUMMARY_LIMIT, ERROR_LIMIT = 32, 256
_BLOCKING = ("NoSchedule", "NoExecute")


class PoolStatus:
    """Answers ResourcePoolStatusRequests; keys are names."""

    name = "resourcepoolstatusrequest-controller"

    def __init__(self, clock: Clock, *, rules: bool = True):
        self._clock = clock
        self._with_rules = rules
        self._waiting: dict[str, float] = {}

    def setup(self, caches: Caches, queue: Queue) -> None:
        """Subscribes to requests, and to slices for those that wait; the rest is only looked up."""
        self._requests = caches.of(RESOURCEPOOLSTATUSREQUEST)
        self._slices = caches.of(RESOURCESLICE)
        self._claims = caches.of(RESOURCECLAIM)
        self._rules = caches.of(DEVICETAINTRULE) if self._with_rules else None

        def request_changed(event: str, old: Object | None, new: Object | None) -> None:
            if new is None or event == "DELETED":
                self._waiting.pop(uid_of(old or new), None)
            else:
                queue.add(name_of(new))

        def slice_changed(event: str, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
            if not self._waiting:
                return
            for request in self._requests:
                if uid_of(request) in self._waiting:
                    queue.add(name_of(request))

        self._requests.subscribe(request_changed)
        self._slices.subscribe(slice_changed)

    def reconcile(self, key: str) -> list[Write]:
        """The answer, or the end of the request's life."""
        request = self._requests.get("", key)
        if request is None or is_deleting(request):
            return []
        now = self._clock.time()
        if request.get("status"):
            self._waiting.pop(uid_of(request), None)
            return self._expire(request, _answered(request), ANSWERED_LIFE, now)
        gone = self._expire(request, text(request, "metadata", "creationTimestamp"), LIFE, now)
        if gone and isinstance(gone[0], Delete):
            return gone
        pools = self._pools(request)
        if any(pool.incomplete for pool in pools):
            since = self._waiting.setdefault(uid_of(request), self._clock.monotonic())
            rest = since + PATIENCE - self._clock.monotonic()
            if rest > 0:
                return [After(rest)]
        body = {"metadata": identity(request), "status": self._answer(request, pools, now)}
        return [Patch(RESOURCEPOOLSTATUSREQUEST, "", key, body, "merge", "status")]

    def _expire(self, request: Object, since: str, life: float, now: float) -> list[Write]:
        rest = parse_timestamp(since) + life - now if since else life
        if rest > 0:
            return [After(rest)]
        return [Delete(RESOURCEPOOLSTATUSREQUEST, "", name_of(request), uid=uid_of(request))]

    def _pools(self, request: Object) -> list[_Pool]:
        driver, name = text(request, "spec", "driver"), at(request, "spec", "poolName")
        found: dict[str, list[ResourceSlice]] = {}
        for slice_ in self._slices:
            if slice_.spec.driver == driver and name in (None, slice_.spec.pool.name):
                found.setdefault(slice_.spec.pool.name, []).append(slice_)
        result: list[_Pool] = []
        for pool, slices in sorted(found.items()):
            newest = max(slice_.spec.pool.generation for slice_ in slices)
            current = sorted((s for s in slices if s.spec.pool.generation == newest), key=name_of)
            result.append(_Pool(driver, pool, newest, current))
        return result

    def _answer(self, request: Object, pools: Sequence[_Pool], now: float) -> Object:
        limit = at(request, "spec", "limit") or DEFAULT_LIMIT
        chosen = pools[:limit]
        for claim in self._claims:
            _book(claim, {pool.name: pool for pool in chosen}, text(request, "spec", "driver"))
        default = at(request, "spec", "defaultPartitionTypeAttribute")
        rules: list[DeviceTaintRule] = [*self._rules] if self._rules is not None else []
        try:
            stated = [pool.status(rules, default) for pool in chosen]
        except ParseError as error:
            condition = _condition("Failed", "CalculationFailed", str(error), now)
            return {"poolCount": 0, "conditions": [condition]}
        incomplete = sum(pool.incomplete for pool in chosen)
        message = f"Calculated status for {len(pools)} pools" + (f" ({incomplete} incomplete)" if incomplete else "")
        return {
            "poolCount": len(pools),
            "pools": stated,
            "conditions": [_condition("Complete", "CalculationComplete", message, now)],
        }


def _answered(request: Object) -> str:
    for entry in children(request, "status", "conditions"):
        if entry["type"] in ("Complete", "Failed") and entry.get("lastTransitionTime"):
            return entry["lastTransitionTime"]
    return text(request, "metadata", "creationTimestamp")


def _condition(type_: str, reason: str, message: str, now: float) -> Object:
    return {
        "type": type_,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": timestamp(now),
    }


def _book(claim: ResourceClaim, pools: dict[str, _Pool], driver: str) -> None:
    """Notes what a claim holds; access for administrators holds nothing."""
    allocation = claim.status.allocation
    for result in (allocation.devices.results if allocation is not None else None) or ():
        pool = pools.get(result.pool)
        if result.driver == driver and pool is not None and not result.adminAccess:
            pool.held.setdefault(result.device, []).append(result.consumedCapacity or {})


@dataclass(slots=True)
class _Pool:
    """The newest generation of one pool."""

    driver: str
    name: str
    generation: int
    slices: list[ResourceSlice]
    #: Device to the capacity that each of its holders consumes.
    held: dict[str, list[dict[str, str]]] = field(default_factory=dict[str, list[dict[str, str]]])

    @property
    def incomplete(self) -> bool:
        return any(len(self.slices) < slice_.spec.pool.resourceSliceCount for slice_ in self.slices)

    def status(self, rules: Iterable[DeviceTaintRule], default: str | None) -> Object:
        """The entry of ``status.pools``; ParseError where an amount cannot be read."""
        result: Object = {"driver": self.driver, "poolName": self.name, "generation": self.generation}
        nodes = {slice_.spec.nodeName for slice_ in self.slices}
        if len(nodes) == 1 and (node := nodes.pop()):
            result["nodeName"] = node
        result["resourceSliceCount"] = len(self.slices)
        if self.incomplete:
            declared = max(slice_.spec.pool.resourceSliceCount for slice_ in self.slices)
            result["validationError"] = (
                f"PoolIncomplete: {len(self.slices)} of {declared} resource slices are published"
            )
            return result
        devices = [device for slice_ in self.slices for device in slice_.spec.devices or ()]
        matching = [rule for rule in rules if rule.spec.taint.effect in _BLOCKING and self._selected(rule)]
        total = len(devices)
        allocated = sum(device.name in self.held for device in devices)
        unavailable = sum(_tainted(device, matching) for device in devices)
        result |= {
            "totalDevices": total,
            "allocatedDevices": allocated,
            "unavailableDevices": unavailable,
            "availableDevices": max(0, total - allocated - unavailable),
        }
        summary, error = self._partitions(default)
        if summary:
            result["partitionSummary"] = summary
        if error:
            result["validationError"] = error.encode()[:ERROR_LIMIT].decode(errors="ignore")
        shared = [device for device in devices if device.allowMultipleAllocations]
        if shared:
            result["shareableSummary"] = self._shareable(shared)
        return result

    def _selected(self, rule: DeviceTaintRule) -> bool:
        selector = rule.spec.deviceSelector
        if selector is None:
            return False
        return selector.driver in (None, self.driver) and selector.pool in (None, self.name)

    # partitions

    def _partitions(self, default: str | None) -> tuple[list[Object], str]:
        """How many devices of each type there are and could still be had, and what is wrong with the pool."""
        groups: dict[tuple[str, str], list[Device]] = {}
        for slice_ in self.slices:
            attribute = slice_.spec.partitionTypeAttribute or default
            if not attribute:
                continue
            for device in slice_.spec.devices or ():
                if device.consumesCounters:
                    kind = self._type(device, attribute)
                    if kind is None:
                        return [], f"PartitionTypeMissing: device {device.name} has no string attribute {attribute}"
                    groups.setdefault((attribute, kind), []).append(device)
        if not groups:
            return [], ""
        free = self._free()
        summary: list[Object] = []
        for (attribute, kind), devices in sorted(groups.items()):
            costs = {_cost(device) for device in devices}
            if len(costs) > 1:
                return [], f"PartitionCostMismatch: devices of type {kind} consume different counters"
            allocatable = self._allocatable(devices, free)
            summary.append({"attribute": attribute, "type": kind, "total": len(devices), "allocatable": allocatable})
        if len(summary) > SUMMARY_LIMIT:
            many = f"PartitionSummaryOverCap: {len(summary)} types, the first {SUMMARY_LIMIT} are listed"
            return summary[:SUMMARY_LIMIT], many
        return summary, ""

    def _type(self, device: Device, attribute: str) -> str | None:
        """The attribute under its full name, or bare where the domain is the driver's."""
        found = (device.attributes or {}).get(attribute)
        domain, _, bare = attribute.partition("/")
        if found is None and domain == self.driver:
            found = (device.attributes or {}).get(bare)
        return found.string if found is not None else None

    def _free(self) -> dict[tuple[str, str], int]:
        """What is left of each counter (set, name), in nanos; a device in use is charged once."""
        left = {
            (counters.name, name): Quantity.parse(counter.value).nanos
            for slice_ in self.slices
            for counters in slice_.spec.sharedCounters or ()
            for name, counter in counters.counters.items()
        }
        for slice_ in self.slices:
            for device in slice_.spec.devices or ():
                if device.name in self.held:
                    for counter, amount in _charges(device).items():
                        left[counter] = left.get(counter, 0) - amount
        return left

    def _allocatable(self, devices: Sequence[Device], free: dict[tuple[str, str], int]) -> int:
        """How many more devices the counters allow, set by set."""
        by_charges: dict[tuple[tuple[tuple[str, str], int], ...], int] = {}
        for device in devices:
            if device.name not in self.held:
                charges = tuple(sorted(_charges(device).items()))
                by_charges[charges] = by_charges.get(charges, 0) + 1
        total = 0
        for charges, idle in by_charges.items():
            fits = [max(0, free.get(counter, 0)) // amount for counter, amount in charges if amount > 0]
            total += min([idle, *fits])
        return total

    # shares

    def _shareable(self, devices: Sequence[Device]) -> Object:
        sums: dict[str, tuple[Quantity, Quantity]] = {}
        nothing = Quantity.from_int(0)
        for device in devices:
            for name, capacity in (device.capacity or {}).items():
                total, consumed = sums.get(name, (None, None))
                value = Quantity.parse(capacity.value)
                taken = nothing
                for holder in self.held.get(device.name, ()):
                    if name in holder:
                        taken = Quantity.parse(holder[name]) if not taken else taken + Quantity.parse(holder[name])
                sums[name] = (
                    value if total is None else total + value,
                    taken if not consumed else consumed + taken,
                )
        partly = sum(device.name in self.held for device in devices)
        result: Object = {"fullyAvailableDevices": len(devices) - partly, "partiallyAvailableDevices": partly}
        entries = [
            {
                "name": name,
                "total": total.canonical(),
                "consumed": consumed.canonical(),
                "available": max(total - consumed, nothing).canonical(),
            }
            for name, (total, consumed) in sorted(sums.items())
        ]
        if entries:
            result["capacity"] = entries[:SUMMARY_LIMIT]
        return result


def _tainted(device: Device, rules: Iterable[DeviceTaintRule]) -> bool:
    if any(taint.effect in _BLOCKING for taint in device.taints or ()):
        return True
    return any(
        selector.device in (None, device.name) for rule in rules if (selector := rule.spec.deviceSelector) is not None
    )


def _charges(device: Device) -> dict[tuple[str, str], int]:
    """Counters (set, name) that the device consumes, in nanos."""
    return {
        (consumption.counterSet, name): Quantity.parse(counter.value).nanos
        for consumption in device.consumesCounters or ()
        for name, counter in consumption.counters.items()
    }


def _cost(device: Device) -> tuple[tuple[str, int], ...]:
    """What the device consumes, whichever sets it draws on."""
    return tuple(sorted((name, amount) for (_, name), amount in _charges(device).items()))
