"""Evicts pods from devices with a NoExecute taint.

A device's taints are those of its slice and those of every DeviceTaintRule that selects it.
Each pod that holds such a device through a claim goes at the earliest time that any taint
of any of its claims asks for; all pods of a claim therefore go together. The decision is
made anew with every change, and a pod whose reason went away stays.

Only what is tainted is remembered of the slices, per pool and generation, so that an event
costs as much as it changes.

Beside a cluster's own device taint controller it is a second line (``beside``): it lets the other one go first, evicts
what is left after :data:`DEFERENCE`, and leaves the status of rules to the other, which owns it.

Source: spec/controllers.md 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from drakkar.api import names
from drakkar.api.clock import Clock
from drakkar.api.kinds import DEVICETAINTRULE, POD, RESOURCECLAIM, RESOURCESLICE
from drakkar.api.meta import Condition, Object
from drakkar.api.objects import is_deleting, key_of, name_of, namespace_of, pod_is_done, pod_node, split_key, uid_of
from drakkar.api.resource.v1 import (
    DeviceRequestAllocationResult,
    DeviceTaint,
    DeviceTaintRule,
    DeviceTaintSelector,
    ResourceClaim,
    ResourceSlice,
)
from drakkar.api.selectors import tolerates
from drakkar.client.cache import Caches
from drakkar.client.clock import parse_timestamp, timestamp
from drakkar.client.writes import After, Delete, Patch, Record, Write
from drakkar.controllers.common import NO_EXECUTE, Queue, disruption_patch
from drakkar.controllers.podgroups import BY_GROUP, POD_GROUP, group_index
from drakkar.controllers.reach import results_of, selects

BY_DEVICE = "tainteviction/device"
BY_RESERVED = "tainteviction/reserved"

#: A rule's status moves at most this often, in seconds, unless its spec changed.
STATUS_INTERVAL = 10.0
#: How long an eviction waits for the first status of its rule, in seconds; a status that cannot be written is no veto.
ANNOUNCEMENT = 5.0
#: How long a due pod is left to the cluster's own controller, in seconds of our own clock; that one takes well below 1.
DEFERENCE = 2.0

MESSAGE = "Device Taint manager: deleting due to NoExecute taint"
EVENT = "DeviceTaintManagerEviction"

DeviceKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Due:
    """When a pod has to go (Unix seconds) and the UIDs of the rules that ask for it."""

    at: float
    rules: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Pool:
    """Generation and tainted devices of each slice of a pool."""

    slices: dict[str, tuple[int, dict[str, tuple[DeviceTaint, ...]]]] = field(
        default_factory=dict[str, tuple[int, dict[str, tuple[DeviceTaint, ...]]]]
    )

    def tainted(self) -> dict[str, tuple[DeviceTaint, ...]]:
        newest = max((generation for generation, _ in self.slices.values()), default=0)
        merged: dict[str, tuple[DeviceTaint, ...]] = {}
        for generation, devices in self.slices.values():
            if generation == newest:
                merged.update(devices)
        return merged


class TaintEviction:
    """The device taint controller; keys are ``pod:ns/name`` and ``rule:name``.

    ``beside``: the cluster may have one of its own.
    """

    def __init__(self, clock: Clock, *, rules: bool = True, pod_groups: bool = False, beside: bool = False):
        self.name = "eviction" if beside else "device-taint-eviction"
        self._clock = clock
        self._with_rules = rules
        self._pod_groups = pod_groups
        self._beside = beside
        #: UIDs of due pods that are left to the cluster's own controller -> since when (monotonic).
        self._left: dict[str, float] = {}
        self._pools: dict[tuple[str, str], _Pool] = {}
        #: Tainted devices in the newest generation of each pool.
        self._tainted: dict[tuple[str, str], dict[str, tuple[DeviceTaint, ...]]] = {}
        #: Taints without timeAdded: when they were first seen.
        self._first_seen: dict[tuple[DeviceKey | str, str, str], float] = {}
        self._pending: dict[str, Due] = {}
        #: Rule UID -> UIDs of the pods evicted for it; a retry does not count twice.
        self._evicted: dict[str, set[str]] = {}
        self._rule_seen: dict[tuple[str, int], float] = {}
        self._status_written: dict[str, float] = {}

    def setup(self, caches: Caches, queue: Queue) -> None:
        """Subscribes to pods, claims, slices and rules."""
        self._queue = queue
        self._pods = caches.of(POD, indexes={BY_GROUP: group_index})
        self._claims = caches.of(RESOURCECLAIM, indexes={BY_DEVICE: _device_index, BY_RESERVED: _reserved_index})
        self._slices = caches.of(RESOURCESLICE)
        self._rules = caches.of(DEVICETAINTRULE) if self._with_rules else None
        self._pods.subscribe(self._pod_changed)
        self._claims.subscribe(self._claim_changed)
        self._slices.subscribe(self._slice_changed)
        if self._rules is not None:
            self._rules.subscribe(self._rule_changed)

    # events to keys

    def _pod_changed(self, event: str, old: Object | None, new: Object | None) -> None:
        pod = new or old
        assert pod is not None
        uid = uid_of(pod)
        if event == "DELETED":
            self._left.pop(uid, None)
            self._settle(uid, None)
        elif uid in self._pending or (pod_node(pod) and (old is None or not pod_node(old))):
            self._queue.add(f"pod:{key_of(pod)}")

    def _claim_changed(self, event: str, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        for claim in (old, new):
            if claim is None or claim.status.allocation is None:
                continue
            if any(self._is_pending(pod) for pod in self._holders(claim)) or self._due_of_claim(claim) is not None:
                self._wake_holders(claim)

    def _is_pending(self, pod: Object) -> bool:
        return uid_of(pod) in self._pending

    def _slice_changed(self, event: str, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        touched: set[tuple[str, str]] = set()
        for slice_, present in ((old, False), (new, event != "DELETED")):
            if slice_ is None:
                continue
            where = (slice_.spec.driver, slice_.spec.pool.name)
            pool = self._pools.setdefault(where, _Pool())
            pool.slices.pop(name_of(slice_), None)
            if present:
                pool.slices[name_of(slice_)] = (slice_.spec.pool.generation, _tainted_devices(slice_))
            if not pool.slices:
                del self._pools[where]
            touched.add(where)
        for where in touched:
            before = self._tainted.pop(where, {})
            pool = self._pools.get(where)
            after = pool.tainted() if pool is not None else {}
            if after:
                self._tainted[where] = after
            for device in before.keys() | after.keys():
                if before.get(device) != after.get(device):
                    for claim in self._claims.by(BY_DEVICE, (*where, device)):
                        self._wake_holders(claim)

    def _rule_changed(self, event: str, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        for rule in (old, new):
            if rule is not None:
                for claim in self._selected_claims(rule.spec.deviceSelector):
                    self._wake_holders(claim)
        if event == "DELETED" and old is not None:
            self._evicted.pop(uid_of(old), None)
            self._status_written.pop(uid_of(old), None)
        if new is not None and event != "DELETED":
            self._queue_rule(new)

    def _queue_rule(self, rule: DeviceTaintRule) -> None:
        if not self._beside:
            self._queue.add(f"rule:{name_of(rule)}")

    def _wake_holders(self, claim: ResourceClaim) -> None:
        for pod in self._holders(claim):
            self._queue.add(f"pod:{key_of(pod)}")

    # reading

    def _holders(self, claim: ResourceClaim) -> Iterator[Object]:
        """Pods the claim is reserved for, directly or through their group."""
        for ref in claim.status.reservedFor or ():
            if not ref.apiGroup and ref.resource == "pods":
                pod = self._pods.uid(ref.uid)
                if pod is not None:
                    yield pod
            elif self._pod_groups and ref.apiGroup == POD_GROUP.group and ref.resource == POD_GROUP.plural:
                yield from self._pods.by(BY_GROUP, f"{namespace_of(claim)}/{ref.name}")

    def _claims_of(self, pod: Object) -> list[ResourceClaim]:
        found = self._claims.by(BY_RESERVED, uid_of(pod))
        if self._pod_groups:
            for key in group_index(pod):
                found = [*found, *self._claims.by(BY_RESERVED, f"group:{key}")]
        return found

    def _selected_claims(self, selector: DeviceTaintSelector | None) -> list[ResourceClaim]:
        if selector is None:
            return []
        return [claim for claim in self._claims.list() if any(_selects(selector, r) for r in results_of(claim))]

    def _due_of_claim(self, claim: ResourceClaim) -> Due | None:
        earliest: Due | None = None
        for result in results_of(claim):
            for taint, rule, origin in self._taints(result):
                at = self._time_of(taint, result, origin)
                if at is None:
                    continue
                asking = frozenset((rule,)) if rule else frozenset[str]()
                if earliest is None or at < earliest.at:
                    earliest = Due(at, asking | (earliest.rules if earliest else frozenset()))
                elif asking:
                    earliest = Due(earliest.at, earliest.rules | asking)
        return earliest

    def _taints(self, result: DeviceRequestAllocationResult) -> Iterator[tuple[DeviceTaint, str, DeviceKey | str]]:
        """NoExecute taints of an allocated device, the UID of the rule ("" for the slice's), and their origin."""
        where = (result.driver, result.pool)
        for taint in self._tainted.get(where, {}).get(result.device, ()):
            yield taint, "", (*where, result.device)
        if self._rules is not None:
            for rule in self._rules:
                selector = rule.spec.deviceSelector
                if rule.spec.taint.effect == NO_EXECUTE and selector is not None and _selects(selector, result):
                    yield rule.spec.taint, uid_of(rule), uid_of(rule)

    def _time_of(
        self, taint: DeviceTaint, result: DeviceRequestAllocationResult, origin: DeviceKey | str
    ) -> float | None:
        """When the taint evicts the result's holder; None when it is tolerated for good."""
        waits = [
            toleration.tolerationSeconds
            for toleration in result.tolerations or ()
            if toleration.effect == NO_EXECUTE and tolerates(toleration, taint)
        ]
        if None in waits:
            return None
        if taint.timeAdded:
            added = parse_timestamp(taint.timeAdded)
        else:
            added = self._first_seen.setdefault((origin, taint.key, taint.value or ""), self._clock.time())
        return added + min((max(0, wait) for wait in waits if wait is not None), default=0)

    def _due_of_pod(self, pod: Object) -> Due | None:
        if not pod_node(pod) or is_deleting(pod) or pod_is_done(pod):
            return None
        dues = [due for claim in self._claims_of(pod) if (due := self._due_of_claim(claim)) is not None]
        if not dues:
            return None
        return Due(min(due.at for due in dues), frozenset[str]().union(*(due.rules for due in dues)))

    # keys to writes

    def reconcile(self, key: str) -> list[Write]:
        """See the class."""
        what, _, where = key.partition(":")
        if what == "rule":
            return self._reconcile_rule(where)
        return self._reconcile_pod(where)

    def _reconcile_pod(self, key: str) -> list[Write]:
        pod = self._pods.get(*split_key(key))
        if pod is None:
            return []
        due = self._due_of_pod(pod)
        was_waiting = self._settle(uid_of(pod), due)
        if due is None:
            self._left.pop(uid_of(pod), None)
            if was_waiting and not self._beside and not is_deleting(pod) and not pod_is_done(pod):
                return [Record(POD, pod, "Normal", EVENT, "Cancelling deletion")]
            return []
        now = self._clock.time()
        rest = due.at - now
        if not self._beside:
            rest = max(rest, self._unannounced(due.rules))
        elif rest <= 0:
            rest = self._deference(uid_of(pod))
        if rest > 0:
            return [After(rest)]
        for rule in due.rules:
            self._evicted.setdefault(rule, set()).add(uid_of(pod))
        condition = disruption_patch(pod, names.REASON_DEVICE_TAINT, MESSAGE, now)
        return [
            *([condition] if condition else []),
            Delete(POD, namespace_of(pod), name_of(pod), uid=uid_of(pod)),
            Record(POD, pod, "Normal", EVENT, "Marking for deletion"),
        ]

    def _settle(self, uid: str, due: Due | None) -> bool:
        """Remembers what the pod waits for and wakes the rules concerned; whether it waited before."""
        before = self._pending.pop(uid, None)
        if due is not None:
            self._pending[uid] = due
        if self._rules is not None and before != due:
            concerned = (before.rules if before else frozenset[str]()) | (due.rules if due else frozenset[str]())
            for rule_uid in concerned:
                rule = self._rules.uid(rule_uid)
                if rule is not None:
                    self._queue_rule(rule)
        return before is not None

    def _deference(self, uid: str) -> float:
        """Seconds for which the due pod is still left to the cluster's own controller."""
        now = self._clock.monotonic()
        return self._left.setdefault(uid, now) + DEFERENCE - now

    def _unannounced(self, rules: Iterable[str]) -> float:
        """Seconds until the pod may go although a rule's status does not say so yet."""
        rest = 0.0
        for uid in rules:
            rule = self._rules.uid(uid) if self._rules is not None else None
            if rule is None or _eviction_condition(rule, rule.metadata.generation) is not None:
                continue
            since = self._rule_seen.setdefault((uid, rule.metadata.generation), self._clock.monotonic())
            rest = max(rest, since + ANNOUNCEMENT - self._clock.monotonic())
        return rest

    def _reconcile_rule(self, name: str) -> list[Write]:
        rule: DeviceTaintRule | None = self._rules.get("", name) if self._rules is not None else None
        if rule is None:
            return []
        current = _eviction_condition(rule, rule.metadata.generation)
        effect = rule.spec.taint.effect
        if effect == "None" and current is not None and current.reason == "NoEffect":
            return []
        status, reason, message = self._rule_state(rule)
        evicted = len(self._evicted.get(uid_of(rule), ()))
        if evicted:
            message += f" {evicted} {_plural(evicted, 'pod', 'pods')} evicted since starting the controller."
            message = message.strip()
        if current is not None and (current.status, current.reason, current.message) == (status, reason, message):
            return []
        now = self._clock.monotonic()
        last = self._status_written.get(uid_of(rule))
        if current is not None and last is not None and now < last + STATUS_INTERVAL:
            return [After(last + STATUS_INTERVAL - now)]
        self._status_written[uid_of(rule)] = now
        condition: Object = {
            "type": names.EVICTION_IN_PROGRESS,
            "status": status,
            "reason": reason,
            "message": message,
            "observedGeneration": rule.metadata.generation,
            "lastTransitionTime": timestamp(self._clock.time()),
        }
        # A patch by key, not an apply: it needs no managedFields, and nobody else writes this condition.
        body: Object = {"metadata": {"uid": uid_of(rule)}, "status": {"conditions": [condition]}}
        # In Kubernetes 1.34 rules have no status.
        return [Patch(DEVICETAINTRULE, "", name, body, "strategic", "status", where_served=True)]

    def _rule_state(self, rule: DeviceTaintRule) -> tuple[str, str, str]:
        """Status, reason and message of the condition."""
        effect = rule.spec.taint.effect
        if effect == NO_EXECUTE:
            pods = [pod for pod in self._concerned_pods(rule) if not is_deleting(pod)]
            if pods:
                verb = _plural(len(pods), "needs", "need")
                return "True", "PodsPendingEviction", f"{_counted(pods, verb + ' to be evicted')}."
            return "False", "Completed" if self._evicted.get(uid_of(rule)) else "NotStarted", ""
        if effect != "None":
            return "False", "OtherEffect", "Eviction only happens for the NoExecute effect."
        published = sum(
            1
            for slice_ in self._newest_slices()
            for device in slice_.spec.devices or ()
            if selects(rule.spec.deviceSelector, slice_.spec.driver, slice_.spec.pool.name, device.name)
        )
        allocated = {
            (result.driver, result.pool, result.device)
            for claim in self._selected_claims(rule.spec.deviceSelector)
            for result in results_of(claim)
            if selects(rule.spec.deviceSelector, result.driver, result.pool, result.device)
        }
        message = (
            f"{published} published {_plural(published, 'device', 'devices')} selected. "
            f"{len(allocated)} allocated {_plural(len(allocated), 'device', 'devices')} selected. "
            f"{_counted(self._concerned_pods(rule), 'would be evicted')} if the effect was NoExecute. "
            "This information will not be updated again. Recreate the DeviceTaintRule to trigger an update."
        )
        return "False", "NoEffect", message

    def _concerned_pods(self, rule: DeviceTaintRule) -> list[Object]:
        """Pods that the rule's taint evicts, now or later, whatever its effect says."""
        taint = DeviceTaint(
            key=rule.spec.taint.key,
            value=rule.spec.taint.value,
            effect=NO_EXECUTE,
            timeAdded=rule.spec.taint.timeAdded,
        )
        selector = rule.spec.deviceSelector
        pods: dict[str, Object] = {}
        for claim in self._selected_claims(selector):
            assert selector is not None
            if any(
                _selects(selector, result) and self._time_of(taint, result, uid_of(rule)) is not None
                for result in results_of(claim)
            ):
                for pod in self._holders(claim):
                    if pod_node(pod) and not pod_is_done(pod):
                        pods[uid_of(pod)] = pod
        return [*pods.values()]

    def _newest_slices(self) -> Iterator[ResourceSlice]:
        newest: dict[tuple[str, str], int] = {}
        for slice_ in self._slices:
            where = (slice_.spec.driver, slice_.spec.pool.name)
            newest[where] = max(newest.get(where, 0), slice_.spec.pool.generation)
        for slice_ in self._slices:
            if slice_.spec.pool.generation == newest[slice_.spec.driver, slice_.spec.pool.name]:
                yield slice_


def _device_index(claim: ResourceClaim) -> Iterable[DeviceKey]:
    return {(result.driver, result.pool, result.device) for result in results_of(claim)}


def _reserved_index(claim: ResourceClaim) -> Iterable[str]:
    """UIDs of pods, and ``group:ns/name`` for groups."""
    return [
        f"group:{namespace_of(claim)}/{ref.name}" if ref.apiGroup else ref.uid for ref in claim.status.reservedFor or ()
    ]


def _tainted_devices(slice_: ResourceSlice) -> dict[str, tuple[DeviceTaint, ...]]:
    return {
        device.name: taints
        for device in slice_.spec.devices or ()
        if device.taints and (taints := tuple(taint for taint in device.taints if taint.effect == NO_EXECUTE))
    }


def _selects(selector: DeviceTaintSelector, result: DeviceRequestAllocationResult) -> bool:
    return selects(selector, result.driver, result.pool, result.device)


def _eviction_condition(rule: DeviceTaintRule, generation: int) -> Condition | None:
    """The rule's condition, if it speaks about this generation."""
    for condition in rule.status.conditions or ():
        if condition.type == names.EVICTION_IN_PROGRESS and condition.observedGeneration == generation:
            return condition
    return None


def _plural(count: int, one: str, many: str) -> str:
    return one if count == 1 else many


def _counted(pods: list[Any], what: str) -> str:
    spaces = len({namespace_of(pod) for pod in pods})
    pods_word = _plural(len(pods), "pod", "pods")
    if spaces == 1:
        return f"{len(pods)} {pods_word} {what} in 1 namespace"
    return f"{len(pods)} {pods_word} {what} in {spaces} different namespaces"
