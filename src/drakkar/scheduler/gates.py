"""Pods that another scheduler binds: their scheduling gate, what lifting it narrows, and what can be lost after it.

Pure rules of gate mode (design.md 6, spec/groups.md 3.6); `drakkar.scheduler.gating` carries them out.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

from drakkar.api.meta import Object
from drakkar.api.names import (
    ALLOCATED_NODE,
    DISRUPTION_TARGET,
    POD_SCHEDULED,
    REASON_UNSCHEDULABLE,
    SCHEDULING_GATE,
)
from drakkar.api.objects import (
    annotations_of,
    condition,
    is_deleting,
    name_of,
    pod_is_done,
    pod_node,
    resource_version_of,
    uid_of,
)
from drakkar.api.selectors import node_selector_matches
from drakkar.api.tree import child, children
from drakkar.scheduler.claims import Obstacle, claims_of, taint_on
from drakkar.scheduler.cluster import Cluster
from drakkar.scheduler.decide import Decision, Pending, Placement
from drakkar.scheduler.nodes import unfit
from drakkar.scheduler.pods import PodView, is_waiting
from drakkar.scheduler.refusal import Cause
from drakkar.scheduler.terms import REQUIRED

#: Seconds for which what may pass by itself (a taint, a lack of room) has to last before a pod counts as lost
#: (spec/groups.md 3.6).
PATIENCE = 30.0
#: The longest such time, in seconds; it doubles with every repair of pods of the same owner.
LONGEST_PATIENCE = 600.0

#: What pods of one owner lose within this many seconds is one loss.
TOGETHER = 1.0

#: The end of what is said of a pod with an owner whose loss is repaired.
REPLACED = "; deleted so that its owner creates it anew, gated"


def is_gated(pod: Object) -> bool:
    """Whether the pod carries our gate, alone or among others."""
    return any(gate.get("name") == SCHEDULING_GATE for gate in children(pod, "spec", "schedulingGates"))


def is_decidable(pod: Object) -> bool:
    """Whether our gate is the only thing that keeps the pod: others may still change what the pod needs."""
    gates = children(pod, "spec", "schedulingGates")
    return len(gates) == 1 and is_gated(pod) and not (pod_node(pod) or is_deleting(pod) or pod_is_done(pod))


def is_due(pod: Object) -> bool:
    """Whether gate mode can decide about the pod now: it waits, and for no gate but ours."""
    return is_decidable(pod) if is_gated(pod) else is_waiting(pod)


def lifted_node(pod: Object) -> str:
    """The node for which we lifted the gate of a pod that nobody has bound yet; empty for every other pod.

    The annotation alone is not believed: it may have been copied into a template.
    """
    node = annotations_of(pod).get(ALLOCATED_NODE, "")
    if not node or pod_node(pod) or is_deleting(pod) or pod_is_done(pod) or children(pod, "spec", "schedulingGates"):
        return ""
    terms = [term for term in _terms(pod) if not _matches_nothing(term)]
    return node if terms and all(_here(node) in (term.get("matchFields") or []) for term in terms) else ""


def is_marked(pod: Object) -> bool:
    """Whether we have said of the pod that it has failed and is deleted for that, which has not been done yet."""
    told = condition(pod, DISRUPTION_TARGET) or {}
    if child(pod, "status").get("phase") != "Failed" or not str(told.get("message")).endswith(REPLACED):
        return False
    return ALLOCATED_NODE in annotations_of(pod) and not (pod_node(pod) or is_deleting(pod))


def _terms(pod: Object) -> list[Object]:
    return children(pod, "spec", "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms")


def _here(node: str) -> Object:
    return {"key": "metadata.name", "operator": "In", "values": [node]}


def _matches_nothing(term: Object) -> bool:
    """A term without requirements matches no node, and would match one if it was narrowed."""
    return not (term.get("matchExpressions") or term.get("matchFields"))


def lifting(pod: Object, node: str) -> Object:
    """The merge patch of exactly this state of the pod that narrows it to ``node`` and lifts our gate.

    A server allows no more for gated pods than additions to the terms of the required node affinity.
    """
    here = _here(node)
    terms = copy.deepcopy(_terms(pod))
    for term in terms:
        if not _matches_nothing(term) and here not in (term.get("matchFields") or []):
            term["matchFields"] = [*(term.get("matchFields") or []), here]
    required = {"nodeSelectorTerms": terms or [{"matchFields": [here]}]}
    gates = [gate for gate in children(pod, "spec", "schedulingGates") if gate.get("name") != SCHEDULING_GATE]
    return {
        "metadata": {
            "uid": uid_of(pod),
            "resourceVersion": resource_version_of(pod),
            "annotations": {ALLOCATED_NODE: node},
        },
        "spec": {"schedulingGates": gates or None, "affinity": {"nodeAffinity": {REQUIRED: required}}},
    }


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a pod cannot run where its gate was lifted for: a word for conditions, and a sentence."""

    reason: str
    message: str
    #: Whether it may pass by itself, so that it counts only once it has lasted.
    passing: bool = False


def loss_of(cluster: Cluster, pod: PodView, node_name: str) -> Loss | None:
    """What the pod has lost since its gate was lifted for the node, if anything."""
    node = cluster.nodes.get(node_name)
    if node is None:
        return Loss("NodeGone", f"node {node_name}, for which its devices were allocated, is gone")
    found = claims_of(cluster, pod)
    if isinstance(found, Obstacle):
        return Loss("ClaimLost", found.message)
    for claim in found:
        allocation = claim.status.allocation
        if allocation is None:
            return Loss("ClaimDeallocated", f"the devices of resourceclaim {name_of(claim)} were given back")
        if not node_selector_matches(allocation.nodeSelector, node.labels, node_name):
            text = f"resourceclaim {name_of(claim)} was allocated anew, and its devices do not reach node {node_name}"
            return Loss("ClaimDeallocated", text)
        tainted = taint_on(cluster, claim)
        if tainted is not None:
            return Loss("DeviceTainted", tainted.message)
    # What the node has for others says nothing as long as it counts the pod itself.
    booked = node.pods.get(pod.uid)
    node.displace(pod.uid)
    try:
        why = unfit(booked or pod, node)
    finally:
        if booked is not None:
            node.place(booked)
    if why is not None:
        return Loss("NodeUnfit", f"node {node_name} does not take it any more: {why.text}", passing=True)
    told = condition(pod.obj, POD_SCHEDULED) or {}
    if told.get("status") == "False" and told.get("reason") == REASON_UNSCHEDULABLE:
        text = f"its scheduler finds no way to bind it to node {node_name}: {told.get('message') or 'no reason given'}"
        return Loss("Unschedulable", text, passing=True)
    return None


@dataclass(slots=True)
class _Strike:
    level: int
    since: float


class Strikes:
    """How patient to be with the pods of an owner: what was repaired and is lost again is not repaired at once.

    ``patience`` and all times are in seconds, on a monotonic clock.
    """

    def __init__(self, patience: float = PATIENCE):
        self._patience = patience
        self._strikes: dict[str, _Strike] = {}

    def wait(self, owner: str, loss: Loss, now: float) -> float:
        """How long a loss that is seen now has to last before it is repaired."""
        strike = self._strikes.get(owner)
        level = 0 if strike is None else strike.level - (now - strike.since < TOGETHER)
        # The first sudden loss needs no patience, the second as much as the first passing one.
        doublings = level if loss.passing else level - 1
        return 0.0 if doublings < 0 else min(self._patience * 2**doublings, LONGEST_PATIENCE)

    def repaired(self, owner: str, now: float) -> None:
        """A pod of the owner was lost and has been deleted; what is lost together counts once."""
        for known in [known for known, strike in self._strikes.items() if now - strike.since > 2 * LONGEST_PATIENCE]:
            del self._strikes[known]
        strike = self._strikes.setdefault(owner, _Strike(0, float("-inf")))
        if now - strike.since >= self._patience:
            strike.level, strike.since = min(strike.level + 1, 16), now

    def succeeded(self, owner: str) -> None:
        """A pod of the owner got bound."""
        self._strikes.pop(owner, None)


def cure(loss: Loss, pod: Object) -> str:
    """What the condition of a pod without owner says: what was lost, why it stays so, and what to do."""
    return (
        f"{loss.message}. A lifted gate cannot be put back nor the node affinity widened: delete the pod and create it "
        f"anew with the scheduling gate {SCHEDULING_GATE} (kubectl delete pod {name_of(pod)} "
        f"-n {child(pod, 'metadata').get('namespace')}); pods of a Job or ReplicaSet are replaced by themselves."
    )


def without_special_claim(cluster: Cluster, pod: PodView, decision: Decision) -> Decision:
    """The decision about a gated pod: none that needs a claim made for its extended resources."""
    if not isinstance(decision, Placement) or decision.extended is None:
        return decision
    named = cluster.extended.serving(pod.requests)
    return Pending("extended-resources", extended_obstacle(named), causes=frozenset({Cause.NODE}))


def extended_obstacle(resources: Iterable[str]) -> str:
    """Why a gated pod waits whose extended resources would need a claim (spec/scheduling.md 10.3)."""
    names = ", ".join(sorted(resources))
    return (
        f"extended resources {names} are served by devices, which the scheduler that binds the pod allocates itself: "
        f"remove the scheduling gate {SCHEDULING_GATE}, or ask for the devices by a ResourceClaim"
    )
