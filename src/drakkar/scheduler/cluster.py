"""Everything a decision may look at, kept current object by object.

`Cluster` is fed with API objects, by the scheduler from its caches, by others (explain, plan,
tests) from wherever they have them. It books pods on nodes and allocations on devices,
overlaid with what has been decided but not been seen back on the watch, so that no two
decisions give away the same thing. It does no I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from drakkar.api.claimcosts import CLAIM_COSTS
from drakkar.api.features import Features
from drakkar.api.groups import group_of
from drakkar.api.meta import NodeSelector, Object
from drakkar.api.names import LABEL_HOSTNAME
from drakkar.api.objects import (
    is_deleting,
    key_of,
    labels_of,
    name_of,
    namespace_of,
    pod_is_done,
    pod_node,
    resource_version_of,
    uid_of,
)
from drakkar.api.resource import v1 as resource
from drakkar.api.selectors import listed_nodes
from drakkar.inventory import Inventory
from drakkar.scheduler.binding import BINDING_TIMEOUT
from drakkar.scheduler.charges import Tariffs, charged
from drakkar.scheduler.extended import ExtendedClasses, is_special, owner_uid
from drakkar.scheduler.fence import is_fence, without_fence
from drakkar.scheduler.holders import BaseOf, Holders, Rival, parts_of, rival_of
from drakkar.scheduler.nodes import Node
from drakkar.scheduler.pods import PodView, claim_keys
from drakkar.scheduler.refusal import Cause
from drakkar.scheduler.taints import DeviceTaints
from drakkar.scheduler.volumes import Volumes


@dataclass(slots=True)
class Member:
    """A pod that uses some claim: ``node`` is where it is bound or assumed, empty before that."""

    uid: str
    node: str
    deleting: bool


def version(obj: Any) -> int:
    """The resourceVersion as a number, 0 where there is none."""
    text = resource_version_of(obj)
    return int(text) if text.isdigit() else 0


class Cluster:
    """Nodes, pods, claims and devices, with the decisions in flight laid over them."""

    def __init__(self, inventory: Inventory | None = None):
        self.inventory = inventory or Inventory(Features.drakkar())
        #: Seconds from an allocation until missing binding conditions count as a failure.
        self.binding_timeout = BINDING_TIMEOUT
        self.taints = DeviceTaints()
        self.tariffs = Tariffs()
        #: Taint rules that keep other allocators away, by name.
        self.fences: dict[str, resource.DeviceTaintRule] = {}
        self.volumes = Volumes()
        #: Namespace → labels.
        self.namespaces: dict[str, dict[str, str]] = {}
        self.extended = ExtendedClasses()
        self.nodes: dict[str, Node] = {}
        #: Resource → how many nodes offer some of it themselves.
        self.offers: Counter[str] = Counter()
        self._order: list[str] | None = []
        #: Label kubernetes.io/hostname → names of nodes.
        self._by_hostname: dict[str, dict[str, None]] = {}
        #: Pods that take room on a node, by uid: node and what they take.
        self._placed: dict[str, tuple[str, PodView]] = {}
        #: Pods on nodes that are not known (yet), by node and uid.
        self._strays: dict[str, dict[str, PodView]] = {}
        #: Placed pods that keep others away from where they are, by uid: node and pod.
        self.repelling: dict[str, tuple[str, PodView]] = {}
        #: Pods whose place has been decided but not been seen back.
        self._assumed: set[str] = set()
        self._members: dict[str, dict[str, Member]] = {}
        self._claims_of: dict[str, frozenset[str]] = {}
        self._claims: dict[str, resource.ResourceClaim] = {}
        #: PodGroups by ``namespace/name``, and their pods that have not ended, by uid.
        self.groups: dict[str, Object] = {}
        self._grouped: dict[str, dict[str, Object]] = {}
        self._group_of: dict[str, str] = {}
        #: Pod uid → key of the claim made for its extended resources.
        self._special: dict[str, str] = {}
        #: Claim uid → uid of the pod whose decision allocates it just now.
        self.in_flight: dict[str, str] = {}
        #: Claim uid → the allocation that is in flight.
        self._decided: dict[str, resource.AllocationResult] = {}
        #: Claim uid → revision of our own write, until the watch has it.
        self._written: dict[str, int] = {}
        self._holders = Holders()
        #: What has been decided, here or by others who asked, and is not seen on the watch yet.
        self._pending = Holders()
        #: Called with a claim's uid before a decision about it that nobody is known to have written is taken back.
        self.forgetting: Callable[[str], None] = lambda _: None

    # nodes

    def set_node(self, obj: Object) -> frozenset[Cause]:
        """Takes over a Node; answers what about it may let it take pods that it did not take before."""
        node = Node.of(obj)
        old = self.nodes.get(node.name)
        changes = frozenset((Cause.NODE,))
        if old is None:
            if self._order is not None:
                self._order.append(node.name)
            for view in self._strays.pop(node.name, {}).values():
                node.place(view)
        else:
            changes = old.changes_to(node)
            if not changes:
                return changes
            node.used, node.pods = old.used, old.pods
        if old is not None:
            self.offers.subtract(_offered(old))
            self._unname(old)
        self._by_hostname.setdefault(node.labels.get(LABEL_HOSTNAME, ""), {})[node.name] = None
        self.offers.update(_offered(node))
        self.nodes[node.name] = node
        if old is None or old.labels != node.labels or old.declared_features != node.declared_features:
            self.inventory.set_node(node.name, node.labels, node.declared_features)
        return changes

    def remove_node(self, name: str) -> None:
        """Forgets a Node; pods on it stay known."""
        node = self.nodes.pop(name, None)
        if node is not None:
            self._order = None
            self._unname(node)
            self.offers.subtract(_offered(node))
            if node.pods:
                self._strays[name] = node.pods
            self.inventory.remove_node(name)

    def _unname(self, node: Node) -> None:
        hostname = node.labels.get(LABEL_HOSTNAME, "")
        named = self._by_hostname[hostname]
        del named[node.name]
        if not named:
            del self._by_hostname[hostname]

    def named_by(self, selector: NodeSelector | None) -> list[str] | None:
        """The known nodes that a selector can match, when it lists them by name or hostname; None otherwise."""
        if selector is None:
            return None
        listed = listed_nodes(selector)
        if listed is None:
            return None
        names, hostnames = listed
        found = dict.fromkeys(name for name in names if name in self.nodes)
        for hostname in hostnames:
            found.update(self._by_hostname.get(hostname, {}))
        return [*found]

    def node_names(self) -> list[str]:
        """All node names in order of arrival; do not change the list."""
        if self._order is None:
            self._order = [*self.nodes]
        return self._order

    # pods

    def set_pod(self, pod: Object) -> frozenset[Cause]:
        """Takes over a Pod; answers what for others may have become better by it."""
        uid = uid_of(pod)
        if pod_is_done(pod):
            return self.remove_pod(uid)
        self._group(uid, pod)
        node = pod_node(pod)
        changes: frozenset[Cause] = frozenset()
        if node:
            expected = uid in self._assumed
            self._assumed.discard(uid)
            placed = self._placed.get(uid)
            if placed is None or placed[0] != node or _seen(placed[1].obj) != _seen(pod):
                known = placed is None or (expected and placed[0] == node)
                changes = frozenset((Cause.POD,) if known else (Cause.POD, Cause.ROOM))
                self._displace(uid)
                self._place(node, PodView.of(pod).with_more(charged(pod)))
        elif uid in self._assumed:
            node = self._placed[uid][0]
        self._enlist(uid, claim_keys(pod), node, is_deleting(pod))
        return changes

    def remove_pod(self, uid: str) -> frozenset[Cause]:
        """Forgets a pod; answers what for others may have become better by it."""
        self._assumed.discard(uid)
        self._enlist(uid, frozenset(), "", False)
        self._group(uid, None)
        return frozenset((Cause.ROOM,) if self._displace(uid) else ())

    def _group(self, uid: str, pod: Object | None) -> None:
        """Keeps the pod among those of its group; None: it has ended."""
        name = group_of(pod) if pod is not None else ""
        key = f"{namespace_of(pod)}/{name}" if name else ""
        old = self._group_of.pop(uid, "")
        if old and old != key:
            del self._grouped[old][uid]
            if not self._grouped[old]:
                del self._grouped[old]
        if key and pod is not None:
            self._group_of[uid] = key
            self._grouped.setdefault(key, {})[uid] = pod

    def set_group(self, group: Object) -> None:
        """Takes over a PodGroup."""
        self.groups[key_of(group)] = group

    def remove_group(self, group: Object) -> None:
        """Forgets a PodGroup; its pods stay known."""
        self.groups.pop(key_of(group), None)

    def pods_of_group(self, key: str) -> list[Object]:
        """The pods of a group that have not ended."""
        return [*self._grouped.get(key, {}).values()]

    def with_group_decision(self, claim: resource.ResourceClaim, pod: PodView) -> resource.ResourceClaim:
        """The claim with the allocation that a pod of the same group has been given and nobody has seen yet."""
        uid = uid_of(claim)
        owner = self.in_flight.get(uid)
        if owner is None or owner == pod.uid or claim.status.allocation is not None:
            return claim
        if not pod.group or self._group_of.get(owner) != pod.group_key:
            return claim
        status = msgspec.structs.replace(claim.status, allocation=self._decided[uid])
        return msgspec.structs.replace(claim, status=status)

    def _enlist(self, uid: str, keys: frozenset[str], node: str, deleting: bool) -> None:
        for key in self._claims_of.get(uid, frozenset()) - keys:
            members = self._members[key]
            members.pop(uid, None)
            if not members:
                del self._members[key]
        for key in keys:
            self._members.setdefault(key, {})[uid] = Member(uid, node, deleting)
        if keys:
            self._claims_of[uid] = keys
        else:
            self._claims_of.pop(uid, None)

    def _place(self, node: str, view: PodView) -> None:
        self._placed[view.uid] = (node, view)
        if view.away:
            self.repelling[view.uid] = (node, view)
        if node in self.nodes:
            self.nodes[node].place(view)
        else:
            self._strays.setdefault(node, {})[view.uid] = view

    def _displace(self, uid: str) -> bool:
        placed = self._placed.pop(uid, None)
        self.repelling.pop(uid, None)
        if placed is None:
            return False
        if placed[0] in self.nodes:
            self.nodes[placed[0]].displace(uid)
        else:
            self._strays[placed[0]].pop(uid)
        return True

    def node_of(self, uid: str) -> str:
        """Where the pod is bound or assumed; empty when nowhere."""
        placed = self._placed.get(uid)
        return placed[0] if placed else ""

    def members(self, claim: resource.ResourceClaim) -> Iterable[Member]:
        """The pods that use the claim and have not ended."""
        return self._members.get(key_of(claim), {}).values()

    # what the rules of nodes look at besides

    def set_namespace(self, namespace: Object) -> None:
        """Takes over a Namespace: affinity terms select by its labels."""
        self.namespaces[name_of(namespace)] = labels_of(namespace)

    def remove_namespace(self, name: str) -> None:
        """Forgets a Namespace."""
        self.namespaces.pop(name, None)

    # devices

    def set_slice(self, item: resource.ResourceSlice) -> None:
        """Takes over a ResourceSlice."""
        item = without_fence(item)
        self.inventory.set_slice(item)
        self.taints.set_slice(item)
        self.tariffs.set_slice(item)

    def remove_slice(self, name: str) -> None:
        """Forgets a ResourceSlice."""
        self.inventory.remove_slice(name)
        self.taints.remove_slice(name)
        self.tariffs.remove_slice(name)

    def set_class(self, item: resource.DeviceClass) -> None:
        """Takes over a DeviceClass."""
        self.inventory.set_class(item)
        self.extended.set(item)

    def remove_class(self, name: str) -> None:
        """Forgets a DeviceClass."""
        self.inventory.remove_class(name)
        self.extended.remove(name)

    def set_taint_rule(self, rule: resource.DeviceTaintRule) -> None:
        """Takes over a DeviceTaintRule; one that is a fence keeps others away, not us."""
        if is_fence(rule):
            self.remove_taint_rule(rule.metadata.name)
            self.fences[rule.metadata.name] = rule
            return
        self.fences.pop(rule.metadata.name, None)
        self.inventory.set_taint_rule(rule)
        self.taints.set_rule(rule)

    def remove_taint_rule(self, name: str) -> None:
        """Forgets a DeviceTaintRule."""
        self.fences.pop(name, None)
        self.inventory.remove_taint_rule(name)
        self.taints.remove_rule(name)

    # claims

    def claim(self, key: str) -> resource.ResourceClaim | None:
        """The newest known state of a claim, own writes included."""
        return self._claims.get(key)

    def special_claim(self, pod_uid: str) -> resource.ResourceClaim | None:
        """The claim that was made for the extended resources of a pod, if there is one."""
        key = self._special.get(pod_uid)
        return self._claims.get(key) if key is not None else None

    def set_claim(self, claim: resource.ResourceClaim) -> None:
        """Takes over a claim as the watch shows it."""
        key, uid = key_of(claim), uid_of(claim)
        known = self._claims.get(key)
        if known is not None and uid_of(known) != uid:
            self.remove_claim(known)
            known = None
        if known is None or version(claim) >= version(known):
            self._claims[key] = claim
        if is_special(claim):
            self._special[owner_uid(claim)] = key
        self.inventory.set_claim(claim)
        self._holders.note(uid, claim.status.allocation)
        if claim.status.allocation is not None:
            self._pending.note(uid, None)
        if uid in self._written and version(claim) >= self._written[uid]:
            # The watch has what we wrote: from now on it alone says what is allocated.
            del self._written[uid]
            self._unbook(uid)

    def remove_claim(self, claim: resource.ResourceClaim) -> None:
        """Forgets a claim that is gone."""
        uid = uid_of(claim)
        known = self._claims.get(key_of(claim))
        if known is not None and uid_of(known) == uid:
            del self._claims[key_of(claim)]
            if is_special(claim) and self._special.get(owner_uid(claim)) == key_of(claim):
                del self._special[owner_uid(claim)]
        self.inventory.remove_claim(claim.metadata.namespace, name_of(claim))
        self._unbook(uid)
        self.in_flight.pop(uid, None)
        self._decided.pop(uid, None)
        self._written.pop(uid, None)
        self._holders.note(uid, None)

    def note_written(self, claim: resource.ResourceClaim) -> None:
        """Lays the answer to an own write over what the watch says, until that has caught up."""
        known = self._claims.get(key_of(claim))
        uid = uid_of(claim)
        if known is None or uid_of(known) != uid:
            return
        if claim.status.allocation is None and known.status.allocation is not None:
            # Not before the watch says so are the devices free in the inventory.
            return
        if version(claim) > version(known):
            self._claims[key_of(claim)] = claim
            if claim.status.allocation is not None:
                self._written[uid] = version(claim)
        elif claim.status.allocation is not None:
            # The watch was faster than the answer.
            self._unbook(uid)

    def held_before(self, claim: resource.ResourceClaim) -> Rival | None:
        """Another claim that held one of the claim's devices earlier on the watch, if any."""
        return self._holders.earlier_rival(uid_of(claim), self._bases())

    def _bases(self) -> BaseOf:
        pools = self.inventory.snapshot().world.pools
        return lambda key: pool.any_base() if (pool := pools.get(key)) is not None else None

    # allocations that others are about to write

    def rival(self, claim_uid: str, allocation: resource.AllocationResult) -> Rival | None:
        """Who keeps the claim from being allocated so: by what the watch shows, or by what is decided or admitted."""
        tables = self._holders, self._pending
        found = rival_of(parts_of(allocation), tables, self._bases(), lambda key, _: _uid_in(key) != claim_uid)
        return found._replace(uid=_uid_in(found.uid)) if found is not None else None

    def decided(self, claim_uid: str) -> resource.AllocationResult | None:
        """The allocation that we are about to write, or have written and not confirmed."""
        return self._decided.get(claim_uid)

    def admit(self, claim_uid: str, number: int, allocation: resource.AllocationResult) -> None:
        """Books an allocation that somebody else has been allowed to write, until :meth:`dismiss`."""
        self._book(_admitted(claim_uid, number), allocation)

    def dismiss(self, claim_uid: str, number: int) -> None:
        """What :meth:`admit` booked is seen on the watch, or will never be."""
        self._unbook(_admitted(claim_uid, number))

    def _book(self, key: str, allocation: resource.AllocationResult) -> None:
        self.inventory.assume(key, allocation)
        self._pending.note(key, allocation)

    def _unbook(self, key: str) -> None:
        self.inventory.forget(key)
        self._pending.note(key, None)

    # decisions in flight

    def assume(
        self, pod: PodView, node: str, allocations: Iterable[tuple[resource.ResourceClaim, resource.AllocationResult]]
    ) -> None:
        """Books a decision before it is written."""
        self._displace(pod.uid)
        self._place(node, pod)
        self._assumed.add(pod.uid)
        for key in self._claims_of.get(pod.uid, frozenset()):
            self._members[key][pod.uid].node = node
        for claim, allocation in allocations:
            self.in_flight.setdefault(uid_of(claim), pod.uid)
            self._decided[uid_of(claim)] = allocation
            self._book(uid_of(claim), allocation)

    def adopt(
        self, pod: PodView, draft: str, claim: resource.ResourceClaim, allocation: resource.AllocationResult
    ) -> None:
        """The claim that was assumed under the uid ``draft`` exists now."""
        self._claims.setdefault(key_of(claim), claim)
        self._special[pod.uid] = key_of(claim)
        self._unbook(draft)
        self.in_flight.pop(draft, None)
        self._decided.pop(draft, None)
        self.in_flight[uid_of(claim)] = pod.uid
        self._decided[uid_of(claim)] = allocation
        self._book(uid_of(claim), allocation)

    def settle(self, claim: resource.ResourceClaim) -> bool:
        """The allocation of the claim has been written and is unchallenged; answers whether it was in flight."""
        self._decided.pop(uid_of(claim), None)
        return self.in_flight.pop(uid_of(claim), None) is not None

    def forget(self, pod: PodView) -> None:
        """Takes back what :meth:`assume` booked and nobody wrote."""
        if pod.uid in self._assumed:
            self._assumed.discard(pod.uid)
            self._displace(pod.uid)
            for key in self._claims_of.get(pod.uid, frozenset()):
                self._members[key][pod.uid].node = ""
        for uid in [uid for uid, owner in self.in_flight.items() if owner == pod.uid]:
            del self.in_flight[uid]
            self._decided.pop(uid, None)
            if uid not in self._written:
                self.forgetting(uid)
                self._unbook(uid)


#: Begins the keys under which allocations by others are booked.
_ADMITTED = "admitted/"


def _admitted(claim_uid: str, number: int) -> str:
    return f"{_ADMITTED}{claim_uid}/{number}"


def _uid_in(key: str) -> str:
    """The claim's uid in a key under which one of its allocations is booked."""
    return key[len(_ADMITTED) :].partition("/")[0] if key.startswith(_ADMITTED) else key


def _seen(pod: Object) -> tuple[Any, ...]:
    """The parts of a bound pod that other pods' placement depends on."""
    status = pod.get("status") or {}
    charges = status.get(CLAIM_COSTS)
    return pod.get("spec"), labels_of(pod), is_deleting(pod), charges


def _offered(node: Node) -> dict[str, int]:
    return {name: 1 for name, number in node.allocatable.items() if number}
