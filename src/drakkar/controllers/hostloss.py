"""Devices over several hosts that have lost one: all holders are drained, so that the claim is allocated anew.

A pod of a lost host is replaced, but the claim stays allocated as long as the other pods hold it, and the new pod waits
for a host that does not come. A driver that taints such a device brings the others to leave. Most drivers do not, and
some die with the host. So a DeviceTaintRule is written here, and whoever evicts from tainted devices does the rest.

The need is seen in what waits, not in what died: a pod of the claim has no host, one host of the claim's devices is
lost, and the hosts that are left are taken. That can be read from the API at any moment, whatever crashed before.
Nobody goes before a pod of the lost host has gone by its own tolerations and has been replaced.

- Devices of one node, and devices for all nodes, are not concerned.
- A device with a NoExecute taint is its driver's, or somebody's, own business.
- What pods share freely is no slice: without ``drakkar.dev/pods-per-node`` two pods of a claim on one host end it.
- Where most nodes of a zone are not ready nothing is drained: the network is more likely than the nodes.
- The rule goes when the host has been Ready for ``settle`` seconds, or is none of the device's hosts any more.

Servers without DeviceTaintRules: the holders are evicted from here, once per lost host. Nothing marks the device then.

Source: design.md, node loss; spec/controllers.md 3.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass

from drakkar.api import names
from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError
from drakkar.api.kinds import DEVICETAINTRULE, NODE, POD, RESOURCECLAIM, RESOURCESLICE
from drakkar.api.meta import NodeSelector, Object, ObjectMeta
from drakkar.api.objects import (
    annotations_of,
    condition_is,
    is_deleting,
    key_of,
    labels_of,
    name_of,
    namespace_of,
    pod_is_done,
    pod_node,
    pods_per_node,
    split_key,
    uid_of,
)
from drakkar.api.resource.v1 import (
    DeviceRequestAllocationResult,
    DeviceTaint,
    DeviceTaintRule,
    DeviceTaintRuleSpec,
    DeviceTaintSelector,
    ResourceClaim,
    ResourceSlice,
)
from drakkar.api.selectors import tolerates
from drakkar.api.tree import children
from drakkar.client.cache import Caches
from drakkar.client.writes import After, Create, Delete, Record, Write
from drakkar.controllers.common import BY_CLAIM, NO_EXECUTE, Queue, Reader, claim_index, disruption_patch, suffix
from drakkar.controllers.reach import (
    BY_LABELS,
    Host,
    Published,
    hosts_of,
    needs_host,
    own_results_of,
    published,
    selection_of,
    selector_of,
    selects,
    spread_index,
)

logger = logging.getLogger(__name__)

BY_HOST = "hostloss/host"
BY_POOL = "hostloss/pool"
BY_DEVICE = "hostloss/device"

#: How long a need has to last, in seconds: time for the driver to taint the device, and for a scheduler to find room.
PATIENCE = 5.0
#: Share of not ready nodes of a zone from which on nothing is drained, and how many there have to be; as upstream's
#: node life cycle controller has it (``--unhealthy-zone-threshold``).
SICK_SHARE, SICK_NUMBER = 0.55, 3
#: Seconds after which it is looked again at what no event tells.
PAUSE = 30.0

EVENT = "HostLost"
EVICTED = "a host of the pod's devices is lost"

#: Seconds until a node counts as lost, 0 or less: it does; None: nothing says so.
Loss = Callable[[str], Awaitable[float | None]]


_Broken = tuple[DeviceRequestAllocationResult, Host]
_Mark = tuple[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class _Stuck:
    """A claim that cannot give a waiting pod a host: its lost hosts, and the pods that would have to go."""

    lost: list[Host]
    holders: list[Object]


class HostLoss:
    """A part of `drakkar.controllers.nodeloss`, with keys ``claim:ns/name`` and ``rule:name``.

    Args:
        settle: seconds for which a host has to be Ready until its devices are trusted again.
    """

    def __init__(self, reader: Reader, clock: Clock, loss: Loss, *, settle: float, rules: bool = True):
        self._reader = reader
        self._clock = clock
        self._loss = loss
        self._settle = settle
        self._with_rules = rules
        #: Key of a claim in need -> since when.
        self._since: dict[str, float] = {}
        #: Name of a rule whose host is back -> since when.
        self._back: dict[str, float] = {}
        #: UID of a claim and its lost hosts -> UIDs of the holders that go for it, where there are no rules.
        self._drained: dict[_Mark, frozenset[str]] = {}
        #: UIDs of claims that were told that their zone is sick.
        self._told: set[str] = set()

    def setup(self, caches: Caches, queue: Queue) -> None:
        """Subscribes to pods, claims, slices and rules; :meth:`node_changed` is called by the owner."""
        self._queue = queue
        self._nodes = caches.of(NODE)
        self._pods = caches.of(POD, indexes={BY_CLAIM: claim_index})
        self._claims = caches.of(RESOURCECLAIM, indexes={BY_HOST: spread_index, BY_DEVICE: _device_index})
        self._slices = caches.of(RESOURCESLICE, indexes={BY_POOL: _pool_index})
        rule_indexes = {BY_HOST: _rule_host_index, BY_POOL: _rule_pool_index}
        self._rules = caches.of(DEVICETAINTRULE, indexes=rule_indexes) if self._with_rules else None
        self._pods.subscribe(self._pod_changed)
        self._claims.subscribe(self._claim_changed)
        self._slices.subscribe(self._slice_changed)
        if self._rules is not None:
            self._rules.subscribe(self._rule_changed)

    # events to keys

    def _pod_changed(self, event: str, old: Object | None, new: Object | None) -> None:
        pod = new or old
        assert pod is not None
        if event != "DELETED" and old is not None and pod_node(pod) and _use(old) == _use(pod):
            return
        # One that waits, or that takes or leaves a host.
        for key in claim_index(pod):
            claim = self._claims.get(*split_key(key))
            if claim is not None and spread_index(claim):
                self._queue.add(f"claim:{key}")

    def _claim_changed(self, event: str, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        if event == "DELETED" or new is None:
            if old is not None:
                self._since.pop(key_of(old), None)
                self._told.discard(uid_of(old))
                self._forget(lambda mark: mark[0] == uid_of(old))
        elif spread_index(new) or key_of(new) in self._since:
            self._queue.add(f"claim:{key_of(new)}")

    def _slice_changed(self, event: str, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        for pool in {where for item in (old, new) if item is not None for where in _pool_index(item)}:
            self._wake_rules(BY_POOL, pool)

    def _rule_changed(self, event: str, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        if new is not None and event != "DELETED":
            if _is_ours(new):
                self._queue.add(f"rule:{name_of(new)}")
        elif old is not None:
            self._back.pop(name_of(old), None)

    def _forget(self, of: Callable[[_Mark], bool]) -> None:
        for mark in [mark for mark in self._drained if of(mark)]:
            del self._drained[mark]

    def node_changed(self, node: Object) -> None:
        """A node has become lost, or is gone, Ready or not, or in or out of service."""
        name, labels = name_of(node), labels_of(node)
        if condition_is(node, names.NODE_READY):
            self._forget(lambda mark: name in mark[1])
        for key in {name, labels.get(names.LABEL_HOSTNAME, name)}:
            for claim in self._claims.by(BY_HOST, key):
                self._queue.add(f"claim:{key_of(claim)}")
            self._wake_rules(BY_HOST, key)
        host = Host(name, labels)
        for claim in self._claims.by(BY_HOST, BY_LABELS):
            if host.within(selector_of(claim)):
                self._queue.add(f"claim:{key_of(claim)}")

    def _wake_rules(self, index: str, value: object) -> None:
        for rule in self._rules.by(index, value) if self._rules is not None else ():
            self._queue.add(f"rule:{name_of(rule)}")

    # claims

    async def reconcile_claim(self, key: str) -> list[Write]:
        """Drains the claim where that is the only way on; raises ApiError when a live check fails."""
        claim: ResourceClaim | None = self._claims.get(*split_key(key))
        found = await self._stuck(claim, key) if claim is not None else None
        if claim is None or not isinstance(found, _Stuck) or not (broken := self._broken(claim, found.lost)):
            self._since.pop(key, None)
            return [After(found)] if isinstance(found, float) else []
        sick = next((host for host in found.lost if self._zone_is_sick(host)), None)
        if sick is not None:
            self._since.pop(key, None)
            return [*self._hold(claim, sick), After(PAUSE)]
        self._told.discard(uid_of(claim))
        now = self._clock.monotonic()
        rest = self._since.setdefault(key, now) + PATIENCE - now
        if rest > 0:
            return [After(rest)]
        if await self._serves_rules(_rule_name(*broken[0])):
            return self._taint(claim, broken)
        return self._evict(claim, found, broken)

    async def _stuck(self, claim: ResourceClaim, key: str) -> _Stuck | float | None:
        """What is stuck; or the seconds until a host of the claim is lost; or None."""
        selector = selector_of(claim)
        if not spread_index(claim) or not claim.status.reservedFor:
            return None
        pods = [pod for pod in self._pods.by(BY_CLAIM, key) if not pod_is_done(pod)]
        waiting = sum(map(_waits, pods))
        bound = [pod for pod in pods if pod_node(pod)]
        staying = [pod for pod in bound if not is_deleting(pod)]
        if not waiting or not staying:
            return None
        limit = pods_per_node(claim)
        if limit is None:
            if max(Counter(map(pod_node, bound)).values()) > 1:
                return None
            limit = 1
        taken = Counter(map(pod_node, staying))
        lost: list[Host] = []
        room, soon, hosts = 0, float("inf"), 0
        for host in self._hosts(selector):
            hosts += 1
            rest = await self._loss(host.name)
            if rest is not None and rest <= 0:
                lost.append(host)
                continue
            soon = min(soon, rest) if rest is not None else soon
            room += max(0, limit - taken[host.name])
        gone = {host.name for host in lost}
        if hosts > 1 and lost and waiting > room and any(pod_node(pod) not in gone for pod in staying):
            return _Stuck(lost, staying)
        return soon if soon != float("inf") else None

    def _broken(self, claim: ResourceClaim, lost: list[Host]) -> list[_Broken]:
        """The claim's devices that have lost a host, and which; none where a taint says more, or cannot help."""
        devices = [(result, self._published(result)) for result in own_results_of(claim)]
        if any(taint.effect == NO_EXECUTE for result, found in devices for taint in self._taints(result, found)):
            return []
        broken = [
            (result, host) for result, found in devices if found is not None for host in lost if needs_host(found, host)
        ]
        if not broken:
            # Published otherwise by now, or not at all: the allocation alone tells where they were.
            broken = [
                (result, host) for result, found in devices if found is None or selection_of(found) for host in lost
            ]
        return [(result, host) for result, host in broken if not _stays(result, host)]

    def _published(self, result: DeviceRequestAllocationResult) -> Published | None:
        return published(self._slices.by(BY_POOL, (result.driver, result.pool)), result.device)

    def _taints(self, result: DeviceRequestAllocationResult, found: Published | None) -> Iterator[DeviceTaint]:
        if found is not None:
            yield from found[1].taints or ()
        for rule in self._rules or ():
            if selects(rule.spec.deviceSelector, result.driver, result.pool, result.device):
                yield rule.spec.taint

    def _zone_is_sick(self, host: Host) -> bool:
        zone = host.labels.get(names.LABEL_ZONE)
        ready = [
            condition_is(node, names.NODE_READY)
            for node in self._nodes
            if zone is None or labels_of(node).get(names.LABEL_ZONE) == zone
        ]
        failed = len(ready) - sum(ready)
        return failed >= SICK_NUMBER and failed >= SICK_SHARE * len(ready)

    def _hold(self, claim: ResourceClaim, host: Host) -> list[Write]:
        """Says once that the claim is left as it is."""
        if uid_of(claim) in self._told:
            return []
        self._told.add(uid_of(claim))
        zone = host.labels.get(names.LABEL_ZONE)
        text = (
            f"host {host.name} of the claim's devices is lost and a pod waits for it, but most nodes "
            f"{f'of zone {zone}' if zone else 'of the cluster'} are not ready: nobody is evicted until more are"
        )
        return [Record(RESOURCECLAIM, claim, "Warning", EVENT, text)]

    async def _serves_rules(self, name: str) -> bool:
        """Whether the server has DeviceTaintRules at all."""
        if self._rules is None:
            return False
        try:
            await self._reader.get(DEVICETAINTRULE, name)
        except ApiError as error:
            if error.code != 404:
                raise
            return not error.is_unknown_kind
        return True

    def _taint(self, claim: ResourceClaim, broken: list[_Broken]) -> list[Write]:
        assert self._rules is not None
        # A rule that somebody has changed into one that evicts nobody stays as it is.
        missing = [entry for entry in broken if self._rules.get("", _rule_name(*entry)) is None]
        if not missing:
            return []
        rules = _listed(_rule_name(*entry) for entry in missing)
        text = f"{_lost(missing)}; all pods of the claim are evicted by {rules}, to be placed together elsewhere"
        return [
            *(Create(DEVICETAINTRULE, _rule(*entry)) for entry in missing),
            Record(RESOURCECLAIM, claim, "Warning", EVENT, text),
        ]

    def _evict(self, claim: ResourceClaim, found: _Stuck, broken: list[_Broken]) -> list[Write]:
        """Without rules: those go that held the claim when the loss was seen, nobody who comes to hold it later."""
        mark = (uid_of(claim), frozenset(host.name for _, host in broken))
        if mark not in self._drained:
            logger.warning("resourceclaim %s: %s; this server has no DeviceTaintRules", key_of(claim), _lost(broken))
        those = self._drained.setdefault(mark, frozenset(map(uid_of, found.holders)))
        holders = [pod for pod in found.holders if uid_of(pod) in those]
        if not holders:
            return []
        now = self._clock.time()
        conditions = [disruption_patch(pod, names.REASON_DEVICE_TAINT, EVICTED, now) for pod in holders]
        text = f"{_lost(broken)}; all pods of the claim are evicted, since the server has no DeviceTaintRules for that"
        return [
            *(patch for patch in conditions if patch is not None),
            *(Delete(POD, namespace_of(pod), name_of(pod), uid=uid_of(pod)) for pod in holders),
            Record(RESOURCECLAIM, claim, "Warning", EVENT, text),
        ]

    # rules

    async def reconcile_rule(self, name: str) -> list[Write]:
        """Takes a rule of ours away when it has no more reason; raises ApiError when a live check fails."""
        rule: DeviceTaintRule | None = self._rules.get("", name) if self._rules is not None else None
        selector = rule.spec.deviceSelector if rule is not None else None
        if rule is None or selector is None or not _is_ours(rule):
            return []
        node_name = annotations_of(rule)[names.LOST_HOST]
        node: Object | None = self._nodes.get("", node_name)
        end: list[Write] = [Delete(DEVICETAINTRULE, "", name, uid=uid_of(rule))]
        if node is not None and condition_is(node, names.NODE_READY) and await self._loss(node_name) is None:
            now = self._clock.monotonic()
            rest = self._back.setdefault(name, now) + self._settle - now
            return [After(rest)] if rest > 0 else end
        self._back.pop(name, None)
        device = (selector.driver or "", selector.pool or "", selector.device or "")
        found = published(self._slices.by(BY_POOL, device[:2]), device[2])
        if node is not None:
            needed = found is None or needs_host(found, Host(node_name, labels_of(node)))
        else:
            # Its labels are gone with it: any host that is published and has no Node may be it.
            needed = found is not None and any(not host.known for host in self._hosts(selection_of(found)))
        return [After(PAUSE)] if needed or self._claims.by(BY_DEVICE, device) else end

    def _hosts(self, selector: NodeSelector | None) -> Iterator[Host]:
        """The hosts that a selector means; none where there is no selector."""
        if selector is not None:
            yield from hosts_of(selector, self._nodes, lambda name: self._nodes.get("", name))


def _waits(pod: Object) -> bool:
    """Whether a scheduler has to find the pod a node now."""
    gates = {gate.get("name") for gate in children(pod, "spec", "schedulingGates")}
    return not pod_node(pod) and not is_deleting(pod) and gates <= {names.SCHEDULING_GATE}


def _use(pod: Object) -> tuple[str, bool, bool]:
    """What of a pod decides whether it holds a host."""
    return pod_node(pod), is_deleting(pod), pod_is_done(pod)


def _stays(result: DeviceRequestAllocationResult, host: Host) -> bool:
    """Whether the request tolerates the loss for good: then nobody would go, and that is what its author wants."""
    taint = _taint(host)
    return any(
        toleration.effect == NO_EXECUTE and toleration.tolerationSeconds is None and tolerates(toleration, taint)
        for toleration in result.tolerations or ()
    )


def _taint(host: Host) -> DeviceTaint:
    # The value of a taint is a label value: a longer name stands in the annotation alone.
    return DeviceTaint(key=names.TAINT_HOST_LOST, value=host.name if len(host.name) <= 63 else None, effect=NO_EXECUTE)


def _rule_name(result: DeviceRequestAllocationResult, host: Host) -> str:
    """Follows from device and host, so that nobody writes a second one."""
    device = (result.driver, result.pool, result.device)
    return f"drakkar-host-lost-{host.name[:200].rstrip('-.')}-{suffix(*device, host.name)}{suffix(host.name, *device)}"


def _rule(result: DeviceRequestAllocationResult, host: Host) -> DeviceTaintRule:
    return DeviceTaintRule(
        metadata=ObjectMeta(
            name=_rule_name(result, host),
            labels={names.TAINT_HOST_LOST: "true"},
            annotations={names.LOST_HOST: host.name},
        ),
        spec=DeviceTaintRuleSpec(
            deviceSelector=DeviceTaintSelector(driver=result.driver, pool=result.pool, device=result.device),
            taint=_taint(host),
        ),
    )


def _is_ours(rule: DeviceTaintRule) -> bool:
    return names.TAINT_HOST_LOST in labels_of(rule) and names.LOST_HOST in annotations_of(rule)


def _lost(broken: list[_Broken]) -> str:
    """``host h of device d (driver x, pool p) is lost and a pod waits for it``."""
    hosts = dict.fromkeys(host.name for _, host in broken)
    devices = dict.fromkeys(f"{r.device} (driver {r.driver}, pool {r.pool})" for r, _ in broken)
    return f"lost host {_listed(hosts)} of device {_listed(devices)}, for which a pod waits"


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(texts)


def _pool_index(item: ResourceSlice) -> Iterable[tuple[str, str]]:
    return ((item.spec.driver, item.spec.pool.name),)


def _rule_host_index(rule: DeviceTaintRule) -> Iterable[str]:
    return (annotations_of(rule)[names.LOST_HOST],) if _is_ours(rule) else ()


def _rule_pool_index(rule: DeviceTaintRule) -> Iterable[tuple[str | None, str | None]]:
    selector = rule.spec.deviceSelector
    return ((selector.driver, selector.pool),) if selector is not None and _is_ours(rule) else ()


def _device_index(claim: ResourceClaim) -> Iterable[tuple[str, str, str]]:
    return {(result.driver, result.pool, result.device) for result in own_results_of(claim)}
