"""A group that starts together or not at all (``schedulingPolicy.gang``).

Its waiting pods are decided one after the other on one state, each on what the ones before it have
been given. Fewer than ``minCount`` in the end: everything is taken back, and nobody was told.

Source: spec/scheduling.md 12.3. Choices are not revised for the sake of later pods, as in Kubernetes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from drakkar.api.groups import minimum_of
from drakkar.api.meta import Object
from drakkar.api.objects import pod_priority
from drakkar.api.tree import text
from drakkar.scheduler.cluster import Cluster
from drakkar.scheduler.decide import Decision, Pending, Placement, decide
from drakkar.scheduler.groups import queue_key
from drakkar.scheduler.pods import PodView
from drakkar.scheduler.refusal import Cause


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang of which some pods have yet to start: ``waiting`` in the order in which they are decided."""

    key: str
    group: Object
    waiting: tuple[PodView, ...]
    #: Pods that have a node already.
    placed: int

    @property
    def lacking(self) -> int:
        """How many pods have to start together now; none where enough run already."""
        return max(0, minimum_of(self.group) - self.placed)


@dataclass(frozen=True, slots=True)
class GangDecision:
    """For each pod its decision; placements only if enough pods have one, and then they are assumed already."""

    decisions: list[tuple[PodView, Decision]] = field(default_factory=list[tuple[PodView, Decision]])
    #: Whether the group starts.
    starts: bool = False


def gang_of(cluster: Cluster, pod: PodView, waiting: Sequence[Object]) -> Gang | None:
    """The gang that the pod has to start with; ``waiting`` are the pods of its group that may be decided now."""
    key = pod.group_key
    group = cluster.groups.get(key) if pod.group else None
    if group is None or not minimum_of(group):
        return None
    views = sorted(
        (PodView.of(obj) for obj in waiting),
        key=lambda view: (-pod_priority(view.obj), text(view.obj, "metadata", "creationTimestamp"), view.name),
    )
    placed = sum(1 for obj in cluster.pods_of_group(key) if cluster.node_of(obj["metadata"]["uid"]))
    gang = Gang(key, group, tuple(views), placed)
    return gang if gang.lacking else None


def decide_gang(
    cluster: Cluster, gang: Gang, *, policy: str = "drakkar", start: int = 0, now: float = 0.0
) -> GangDecision:
    """Decides about all waiting pods together."""
    placements: dict[str, Placement] = {}
    refused: dict[str, Pending] = {}
    for number, pod in enumerate(gang.waiting):
        if len(placements) + len(gang.waiting) - number < gang.lacking:
            break
        decision = decide(cluster, pod, policy=policy, start=start + number, now=now)
        if isinstance(decision, Placement):
            cluster.assume(decision.footprint(pod), decision.node, decision.allocations)
            placements[pod.uid] = decision
        else:
            refused[pod.uid] = decision
            if decision.error or decision.release is not None or decision.discard is not None:
                break
    if len(placements) >= gang.lacking:
        found = [(pod, placements.get(pod.uid) or refused[pod.uid]) for pod in gang.waiting]
        return GangDecision(list(found), starts=True)
    for pod in gang.waiting:
        if pod.uid in placements:
            cluster.forget(pod)
    return GangDecision([(pod, _waits(gang, pod, len(placements), refused)) for pod in gang.waiting])


def _waits(gang: Gang, pod: PodView, fitting: int, refused: dict[str, Pending]) -> Pending:
    """What a pod of a group that does not start is told: the first refusal, its own if it has one."""
    name = gang.key.partition("/")[2]
    wanted = f"podgroup {name} starts with {gang.lacking} more pods or not at all"
    own = refused.get(pod.uid)
    first_uid, first = next(iter(refused.items()), ("", None))
    if first is None:
        message = f"{wanted}; {fitting} fit"
        return Pending("waiting-for-group", message, causes=frozenset(Cause), claims=frozenset({queue_key(gang.key)}))
    reason = own if own is not None else first
    first_name = next(member.name for member in gang.waiting if member.uid == first_uid)
    told = reason.message if own is not None else f"pod {first_name}: {first.message}"
    return replace(
        reason,
        reason=own.reason if own is not None else "waiting-for-group",
        message=f"{told} ({wanted}; {fitting} fit)",
        causes=first.causes | reason.causes | {Cause.GROUP},
        claims=first.claims | reason.claims | {queue_key(gang.key)},
        drivers=None if first.drivers is None or reason.drivers is None else first.drivers | reason.drivers,
        release=own.release if own is not None else None,
        discard=own.discard if own is not None else None,
        passing=reason.passing,
    )
