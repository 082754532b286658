"""From a pod to its claims, and what stands in the way of using them (spec/scheduling.md 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from drakkar.api.groups import is_controlled_by_group, matching_group_claim
from drakkar.api.kinds import PODGROUP
from drakkar.api.names import PODS_PER_NODE
from drakkar.api.objects import (
    annotations_of,
    controller_of,
    is_deleting,
    name_of,
    pod_claim_names,
    pods_per_node,
    uid_of,
)
from drakkar.api.resource import v1 as resource
from drakkar.api.tree import children
from drakkar.scheduler.cluster import Cluster
from drakkar.scheduler.pods import MOST_CONSUMERS, PodView, consumer

#: In this many seconds a controller makes the claims of a new pod, and they come to be known here.
CLAIMS_MADE_IN = 5.0


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why the pod cannot be placed whatever the node; ``reason`` is a word of the corpus or ours."""

    reason: str
    message: str
    #: Over in moments, by something that is under way already.
    passing: bool = False
    #: Seconds after which it would have to be over if all goes well; until then nobody need be told.
    patience: float = 0.0


def claims_of(cluster: Cluster, pod: PodView) -> list[resource.ResourceClaim] | Obstacle:
    """The claims of the pod in the order of its spec, each once, or what is missing."""
    made = {entry["name"]: entry for entry in children(pod.obj, "status", "resourceClaimStatuses")}
    found: dict[str, resource.ResourceClaim] = {}
    for entry in children(pod.obj, "spec", "resourceClaims"):
        name = entry.get("resourceClaimName")
        template = entry.get("resourceClaimTemplateName")
        if not name and not template:
            return Obstacle("claim-missing", f"pod claim {entry['name']}: none of the supported fields are set")
        if not name:
            if entry["name"] not in made:
                text = f"ResourceClaim not created yet for pod claim {entry['name']} (template {template})"
                return Obstacle("claim-missing", text, patience=CLAIMS_MADE_IN)
            name = made[entry["name"]].get("resourceClaimName")
            if not name:
                continue
        claim = cluster.claim(f"{pod.namespace}/{name}")
        if claim is None:
            text = f"resourceclaim {name} not found in namespace {pod.namespace}"
            # One from a template has been made: the pod's status tells its name.
            return Obstacle("claim-missing", text, patience=CLAIMS_MADE_IN if template else 0.0)
        if is_deleting(claim):
            return Obstacle("claim-missing", f"resourceclaim {name} is being deleted")
        if template and not is_controlled_by_group(claim, pod.group):
            owner = controller_of(claim)
            if owner is None or owner.uid != pod.uid:
                text = f"resourceclaim {name} was not made for this pod but has the name of its claim {entry['name']}"
                return Obstacle("claim-missing", text)
        found[uid_of(claim)] = cluster.with_group_decision(claim, pod)
    return [*found.values()]


def reserved_for(claim: resource.ResourceClaim, pod: PodView) -> bool:
    """Whether the claim is reserved for the pod, or for its group (told by name: pods do not know its uid)."""
    return any(
        entry.uid == pod.uid or (pod.group and _is_group(entry) and entry.name == pod.group)
        for entry in claim.status.reservedFor or ()
    )


def _is_group(entry: resource.ResourceClaimConsumerReference) -> bool:
    return entry.resource == PODGROUP.plural and entry.apiGroup == PODGROUP.group


def consumer_of(cluster: Cluster, claim: resource.ResourceClaim, pod: PodView) -> dict[str, str]:
    """The entry of ``reservedFor`` that stands for the pod: its group's, when the claim is one of the group's."""
    group = cluster.groups.get(pod.group_key) if pod.group else None
    if group is not None:
        made = pod_claim_names(pod.obj)
        for entry in children(pod.obj, "spec", "resourceClaims"):
            if made.get(entry["name"]) == name_of(claim) and matching_group_claim(group, entry) == name_of(claim):
                return {
                    "apiGroup": PODGROUP.group,
                    "resource": PODGROUP.plural,
                    "name": name_of(group),
                    "uid": uid_of(group),
                }
    return consumer(pod)


def obstacle_of(cluster: Cluster, pod: PodView, claims: Sequence[resource.ResourceClaim]) -> Obstacle | None:
    """What keeps the pod from using these claims on any node just now, broken devices apart."""
    for claim in claims:
        owner = cluster.in_flight.get(uid_of(claim))
        if owner is not None and owner != pod.uid and claim.status.allocation is None:
            text = f"resource claim {name_of(claim)} is in the process of being allocated"
            return Obstacle("in-use", text, passing=True)
        if len(claim.status.reservedFor or ()) >= MOST_CONSUMERS and not reserved_for(claim, pod):
            text = f"resourceclaim {name_of(claim)} is reserved for {MOST_CONSUMERS} consumers, the most there can be"
            return Obstacle("reserved-full", text)
        text = annotations_of(claim).get(PODS_PER_NODE)
        if text is not None and pods_per_node(claim) is None:
            text = f"resourceclaim {name_of(claim)}: annotation {PODS_PER_NODE}={text[:40]!r} is not a positive number"
            return Obstacle("node-unfit", text)
    return None


def taint_on(cluster: Cluster, claim: resource.ResourceClaim) -> Obstacle | None:
    """The untolerated taint on a device that the claim holds, if there is one."""
    found = cluster.taints.blocking(claim.status.allocation) if claim.status.allocation else None
    if found is None:
        return None
    device, taint = found
    spelled = f"{taint.key}={taint.value}" if taint.value else taint.key
    return Obstacle(
        "tainted",
        f"resourceclaim {name_of(claim)} holds device {device.device} (driver {device.driver}, pool {device.pool}) "
        f"with the untolerated taint {spelled}:{taint.effect}; it takes no new pods until it is allocated anew",
    )


def releasable(cluster: Cluster, pod: PodView, claim: resource.ResourceClaim) -> bool:
    """Whether nobody loses anything when the claim's allocation is taken back for the sake of ``pod``.

    Nobody uses a claim before a pod of it is bound, so reservations of unbound pods do not count.
    """
    if claim.status.allocation is None or uid_of(claim) in cluster.in_flight:
        return False
    waiting = {member.uid for member in cluster.members(claim) if not member.node} | {pod.uid}
    if any(member.node for member in cluster.members(claim)):
        return False
    return all(
        (entry.resource == "pods" and entry.uid in waiting) or (_is_group(entry) and entry.name == pod.group)
        for entry in claim.status.reservedFor or ()
    )


def used_by_others(cluster: Cluster, pod: PodView, claim: resource.ResourceClaim) -> bool:
    """Whether other pods hold the claim already."""
    if any(entry.uid != pod.uid for entry in claim.status.reservedFor or ()) and not reserved_for(claim, pod):
        return True
    return any(member.node and member.uid != pod.uid for member in cluster.members(claim))


def same_allocation(left: resource.AllocationResult | None, right: resource.AllocationResult | None) -> bool:
    """Whether two allocations are equal; when they were made does not matter."""
    if left is None or right is None:
        return left is right
    return _results(left) == _results(right) and left.nodeSelector == right.nodeSelector


def _results(allocation: resource.AllocationResult) -> list[tuple[Any, ...]]:
    return [
        (result.request, result.driver, result.pool, result.device, result.shareID, result.adminAccess or False)
        for result in allocation.devices.results or ()
    ]
