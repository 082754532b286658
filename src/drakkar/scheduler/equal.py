"""One decision for many equal pods: what kept one out keeps out the others, and where one fits the next is tried.

Two pods are equal when nothing that a decision looks at tells them apart but the names of pods and
claims. A refusal then holds for all of them as long as none of its causes has occurred; placing
a pod takes room away and cannot help an equal one, unless the refusal waits for other pods. For the same
reason the nodes that one pod was refused on need not be asked again for the next: equal pods are
placed in one pass over the nodes, and each gets what it would get by itself.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from drakkar import allocator
from drakkar.allocator import Fits, NoFit
from drakkar.api.objects import annotations_of, key_of, uid_of
from drakkar.api.resource import v1 as resource
from drakkar.scheduler.claims import Obstacle, claims_of
from drakkar.scheduler.cluster import Cluster
from drakkar.scheduler.decide import Pending, Placement, Trail
from drakkar.scheduler.nodes import preference, unfit
from drakkar.scheduler.pods import PodView, claim_keys
from drakkar.scheduler.refusal import Cause

#: Kinds of pods whose refusals are kept.
REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class _Verdict:
    pending: Pending
    #: Keys of the claims that the message names, in the pod's order.
    claims: tuple[str, ...]
    #: How often each cause of the refusal had occurred.
    seen: tuple[tuple[Cause, int], ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """What a pod has in common with its equals, and the keys of its own claims."""

    key: bytes
    claims: tuple[str, ...]


class Verdicts:
    """Refusals by kind of pod. ``count`` says how often a cause has occurred so far."""

    def __init__(self, count: Callable[[Cause], int]):
        self._count = count
        self._known: OrderedDict[bytes, _Verdict] = OrderedDict()

    def recall(self, kind: Kind, pod: PodView) -> Pending | None:
        """The refusal of an equal pod, told of this one; None when it has to be decided."""
        known = self._known.get(kind.key)
        if known is None:
            return None
        if any(self._count(cause) != seen for cause, seen in known.seen):
            del self._known[kind.key]
            return None
        self._known.move_to_end(kind.key)
        names = dict(zip(known.claims, kind.claims, strict=True))
        pending = known.pending
        details = pending.details
        if details is not None:
            details = msgspec.structs.replace(
                details, message=_renamed(details.message, names), claim=_renamed(details.claim, names)
            )
        message = _renamed(pending.message, names)
        return replace(pending, message=message, details=details, claims=claim_keys(pod.obj))

    def remember(self, kind: Kind, pending: Pending) -> None:
        """Keeps a refusal, unless it is one of this pod alone."""
        ours = pending.release is not None or pending.discard is not None or Cause.CLAIM in pending.causes
        if ours or pending.error or pending.passing or pending.reason == "undecided":
            return
        seen = tuple((cause, self._count(cause)) for cause in pending.causes)
        self._known[kind.key] = _Verdict(pending, kind.claims, seen)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)


def kind_of(cluster: Cluster, pod: PodView) -> Kind | None:
    """The kind of a pod; None where other things count too: a group, claims that others use or that have devices,
    volumes, extended resources, costs of devices.
    """
    spec = pod.obj["spec"]
    if cluster.tariffs or pod.group or any(map(_binds, spec.get("volumes") or ())):
        return None
    if cluster.extended.serving(pod.requests):
        return None
    claims = claims_of(cluster, pod)
    if isinstance(claims, Obstacle) or not all(_lone(cluster, claim, pod) for claim in claims):
        return None
    others = bool(pod.near or pod.away or pod.drawn or pod.spread or cluster.repelling)
    parts = (
        pod.namespace,
        dict(pod.requests),
        sorted(pod.ports),
        pod.features,
        spec.get("nodeSelector"),
        spec.get("affinity"),
        spec.get("tolerations"),
        spec.get("topologySpreadConstraints"),
        pod.labels if others else None,
        [claim.spec for claim in claims],
    )
    return Kind(msgspec.msgpack.encode(parts), tuple(key_of(claim) for claim in claims))


def follow(cluster: Cluster, pod: PodView, trail: Trail, policy: str) -> Placement | None:
    """The place of a pod that is equal to the one which left the trail, with nothing but placements in between.

    None: it has to be decided by itself.
    """
    claims = claims_of(cluster, pod)
    if isinstance(claims, Obstacle) or not claims:
        return None
    problem = allocator.prepare(cluster.inventory.snapshot(), claims, policy=policy)
    while trail.position < len(trail.names):
        node = cluster.nodes.get(trail.names[trail.position])
        if node is not None and preference(pod, node) == 0 and unfit(pod, node) is None:
            outcome = problem.solve(node.name)
            if isinstance(outcome, Fits):
                return Placement(node.name, tuple(zip(claims, outcome.allocations, strict=True)))
            if not isinstance(outcome, NoFit):
                return None
        trail.position += 1
    return None


def in_line(pod: PodView, cluster: Cluster) -> bool:
    """Whether equal pods may be placed in one pass: none of them says anything about others, or prefers a node."""
    others = pod.near or pod.away or pod.drawn or pod.spread or cluster.repelling
    return not (others or pod.preferred_affinity)


def _binds(volume: dict[str, object]) -> bool:
    harmless = ("emptyDir", "configMap", "secret", "projected", "downwardAPI", "hostPath")
    return not any(kind in volume for kind in harmless)


def _lone(cluster: Cluster, claim: resource.ResourceClaim, pod: PodView) -> bool:
    if claim.status.allocation is not None or uid_of(claim) in cluster.in_flight:
        return False
    return all(member.uid == pod.uid for member in cluster.members(claim)) and not _own_rules(claim)


def _own_rules(claim: resource.ResourceClaim) -> bool:
    # Alignment, pods per node: these are read by whoever decides.
    return any(name.partition("/")[0].endswith("drakkar.dev") for name in annotations_of(claim))


def _renamed(text: str, names: dict[str, str]) -> str:
    if not names:
        return text
    pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.sub(rf"(?<![\w./-])(?:{pattern})(?![\w-])", lambda match: names[match[0]], text)
