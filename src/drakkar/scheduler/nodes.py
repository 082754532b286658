"""Nodes, what runs on them, and whether a pod may.

The texts are those of Kubernetes' scheduler, because people and tools search for them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from drakkar.api.meta import Object
from drakkar.api.names import NODE_READY, TAINT_UNSCHEDULABLE
from drakkar.api.objects import condition, labels_of, name_of
from drakkar.api.quantity import Quantity
from drakkar.api.selectors import node_selector_matches, node_toleration_matches, untolerated_node_taint
from drakkar.api.tree import at, child, children
from drakkar.scheduler.pods import PodView, amount, ports_clash
from drakkar.scheduler.refusal import Cause, Refusal, refusal

#: Resources that do not limit a node which does not name them; every other resource is then absent.
UNLIMITED_UNLESS_NAMED = frozenset({"cpu", "memory", "ephemeral-storage", "pods"})
#: Added up in node scores: weights run from 1 to 100 as in preferred affinity.
SOFT_TAINT_COST = 100


@dataclass(slots=True)
class Node:
    """One node: what it offers, and what the pods on it (assumed ones too) take."""

    name: str
    labels: dict[str, str]
    taints: tuple[Object, ...]
    allocatable: dict[str, int]
    ready: bool
    declared_features: tuple[str, ...]
    used: Counter[str] = field(default_factory=Counter[str])
    pods: dict[str, PodView] = field(default_factory=dict[str, PodView])

    @staticmethod
    def of(obj: Object) -> Node:
        """Reads a Node object."""
        spec = child(obj, "spec")
        taints = [*children(spec, "taints")]
        if spec.get("unschedulable") and all(taint.get("key") != TAINT_UNSCHEDULABLE for taint in taints):
            taints.append({"key": TAINT_UNSCHEDULABLE, "effect": "NoSchedule"})
        ready = condition(obj, NODE_READY)
        offered = child(obj, "status", "allocatable") or child(obj, "status", "capacity")
        return Node(
            name=name_of(obj),
            labels=labels_of(obj),
            taints=tuple(taints),
            allocatable={name: amount(name, Quantity.parse(str(text))) for name, text in offered.items()},
            ready=ready is None or ready.get("status") == "True",
            declared_features=tuple(at(obj, "status", "declaredFeatures") or ()),
        )

    def changes_to(self, new: Node) -> frozenset[Cause]:
        """What of this node that pods depend on is different in its new state."""
        changes: set[Cause] = set()
        if (self.labels, self.ready, self.declared_features) != (new.labels, new.ready, new.declared_features):
            changes.add(Cause.NODE)
        if self.taints != new.taints:
            changes.add(Cause.TAINT)
        if self.allocatable != new.allocatable:
            changes.add(Cause.CAPACITY)
        return frozenset(changes)

    def place(self, pod: PodView) -> None:
        """Books the pod's requests."""
        self.pods[pod.uid] = pod
        self.used.update(pod.requests)

    def displace(self, uid: str) -> None:
        """Gives the pod's requests back."""
        pod = self.pods.pop(uid, None)
        if pod is not None:
            self.used.subtract(pod.requests)

    def lacks(self, pod: PodView, ignored: frozenset[str] = frozenset()) -> Refusal | None:
        """The first resource of which too little is left; ``ignored`` come from devices here."""
        room = self.allocatable.get("pods")
        if room is not None and len(self.pods) + 1 > room:
            return refusal("Too many pods", Cause.ROOM, Cause.CAPACITY)
        for resource, wanted in pod.requests.items():
            limit = self.allocatable.get(resource)
            if limit is None:
                if resource in UNLIMITED_UNLESS_NAMED or resource in ignored:
                    continue
                limit = 0
            if self.used[resource] + wanted > limit:
                return refusal(f"Insufficient {resource}", Cause.ROOM, Cause.CAPACITY)
        return None


def unfit(pod: PodView, node: Node, ignored: frozenset[str] = frozenset()) -> Refusal | None:
    """Why ``pod`` may not run on ``node``, devices and other nodes apart; None when it may."""
    taint = untolerated_node_taint(node.taints, pod.tolerations)
    if taint is not None:
        if taint.get("key") == TAINT_UNSCHEDULABLE:
            return refusal("node(s) were unschedulable", Cause.TAINT)
        text = f"node(s) had untolerated taint {{{taint.get('key')}: {taint.get('value') or ''}}}"
        return refusal(text, Cause.TAINT)
    if not selected(pod, node):
        return refusal("node(s) didn't match Pod's node affinity/selector")
    if not set(pod.features) <= set(node.declared_features):
        return refusal("node(s) didn't match Pod's required features")
    if pod.ports and any(ports_clash(pod.ports, other.ports) for other in node.pods.values() if other.ports):
        return refusal("node(s) didn't have free ports for the requested pod ports", Cause.ROOM)
    return node.lacks(pod, ignored)


def selected(pod: PodView, node: Node) -> bool:
    """Whether node selector and required node affinity of the pod allow the node."""
    labels = node.labels
    if any(labels.get(key) != value for key, value in pod.node_selector.items()):
        return False
    return pod.required_affinity is None or node_selector_matches(pod.required_affinity, labels, node.name)


def preference(pod: PodView, node: Node) -> int:
    """What the pod wishes for: weights of matching preferred affinity, less the node's soft taints."""
    score = 0
    for wish in pod.preferred_affinity:
        selector: Any = {"nodeSelectorTerms": [wish.get("preference") or {}]}
        if node_selector_matches(selector, node.labels, node.name):
            score += int(wish.get("weight") or 0)
    for taint in node.taints:
        if taint.get("effect") == "PreferNoSchedule" and not _tolerated(pod, taint):
            score -= SOFT_TAINT_COST
    return score


def free_share(pod: PodView, node: Node) -> float:
    """How much of cpu and memory stays free, from 0 to 1: least allocated first. Pod counts break ties."""
    shares = [
        1 - (node.used[resource] + pod.requests.get(resource, 0)) / limit
        for resource in ("cpu", "memory")
        if (limit := node.allocatable.get(resource))
    ]
    return (sum(shares) / len(shares) if shares else 0.5) - len(node.pods) * 1e-6


def _tolerated(pod: PodView, taint: Object) -> bool:
    return any(node_toleration_matches(toleration, taint) for toleration in pod.tolerations)
