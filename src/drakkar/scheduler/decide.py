"""The decision about one pod: pure, from the cluster as it is known to a placement or a reason.

Nodes that the claims allow come from the allocator, in the order in which it prefers them;
the other rules of a node are tried on these, and devices are chosen on the first node that
passes. A pod of a claim that spans hosts is only placed where the claim's other waiting pods
find room too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

from drakkar import allocator
from drakkar.allocator import Failed, Fits, GaveUp, Problem, Reason
from drakkar.allocator.reasons import STAGES
from drakkar.api.objects import is_deleting, key_of, name_of, pods_per_node, uid_of
from drakkar.api.resource import v1 as resource
from drakkar.api.selectors import node_selector_matches
from drakkar.scheduler.alternatives import first_choices, highest, taken
from drakkar.scheduler.binding import Binding, binding_state
from drakkar.scheduler.charges import Charge
from drakkar.scheduler.claims import (
    Obstacle,
    claims_of,
    obstacle_of,
    releasable,
    reserved_for,
    taint_on,
    used_by_others,
)
from drakkar.scheduler.cluster import Cluster
from drakkar.scheduler.extended import Extended, make_extended
from drakkar.scheduler.groups import group_obstacle, queue_key
from drakkar.scheduler.nodes import Node, free_share, preference, unfit
from drakkar.scheduler.pods import PodView, claim_keys
from drakkar.scheduler.refusal import Cause, Refusal, refusal
from drakkar.scheduler.surroundings import Surroundings

#: How many nodes that would do are compared before the best is taken.
COMPARED = 32
#: On how many of them devices are searched for, at most, before giving up for this time.
SEARCHED = 512
#: How many of the nodes that the allocator left out are looked at for the reason.
EXPLAINED = 256
#: How many of them are asked whether the pod could run there at all.
SCANNED = 4096
#: How many different refusals a message tells; those by the fewest nodes are left out.
LISTED = 16

_DEVICES = (Cause.DEVICE,)
_ANYTHING = tuple(Cause)


@dataclass(frozen=True, slots=True)
class Placement:
    """The pod can run on ``node``, once ``allocations`` are written and the claims reserved for it."""

    node: str
    #: Claims that get their devices by this decision.
    allocations: tuple[tuple[resource.ResourceClaim, resource.AllocationResult], ...] = ()
    #: The claim to be made for extended resources; the last of ``allocations`` is its own.
    extended: Extended | None = None
    #: Claims that are allocated and not yet reserved for the pod.
    joined: tuple[resource.ResourceClaim, ...] = ()
    #: Claims that are allocated and reserved already.
    held: tuple[resource.ResourceClaim, ...] = ()
    #: What the devices cost the node beside what the pod asks for.
    charge: Charge | None = None

    def footprint(self, pod: PodView) -> PodView:
        """The pod as its node has to count it."""
        return self.charge.on(pod) if self.charge is not None else pod


@dataclass(frozen=True, slots=True)
class Pending:
    """The pod cannot run now. ``message`` is what its condition says, ``reason`` the word for it."""

    reason: str
    message: str
    #: The engine's reason, where devices were the matter.
    details: Reason | None = None
    #: What could change it.
    causes: frozenset[Cause] = frozenset(Cause)
    #: Keys of the claims that the pod waits for.
    claims: frozenset[str] = frozenset()
    #: Drivers whose devices could help; None when any driver's could.
    drivers: frozenset[str] | None = None
    #: A claim whose useless allocation is in the way and may be taken back.
    release: resource.ResourceClaim | None = None
    #: A claim of an earlier attempt that serves nothing and is to be deleted.
    discard: resource.ResourceClaim | None = None
    #: Over in moments: not worth telling anybody, nor counting as an attempt.
    passing: bool = False
    #: Seconds after which it is worth telling; until then the same as ``passing``.
    patience: float = 0.0
    #: Not the cluster is too full, but something is wrong (a claim, a class, an expression).
    error: bool = False
    #: Node by node what was in the way, where it was looked at; the rest ended at ``details``.
    nodes: Mapping[str, str] = field(default_factory=dict[str, str])


Decision = Placement | Pending


@dataclass(slots=True)
class Trail:
    """The nodes in the order tried, from the one taken on: where an equal pod goes on (`drakkar.scheduler.equal`).

    Empty where the next pod could belong somewhere else.
    """

    names: Sequence[str] = ()
    position: int = 0


def decide(
    cluster: Cluster,
    pod: PodView,
    *,
    policy: str = "drakkar",
    start: int = 0,
    now: float = 0.0,
    trail: Trail | None = None,
) -> Decision:
    """Finds a place for ``pod``.

    ``start`` rotates the order in which pods without devices try nodes; ``now`` (Unix time) decides
    whether devices have been preparing for too long; ``trail`` is filled in for a placement.
    """
    keys = claim_keys(pod.obj)
    missing = group_obstacle(cluster, pod)
    if missing is not None:
        return _blocked(cluster, missing, keys | {queue_key(pod.group_key)}, frozenset({Cause.GROUP}))
    found = claims_of(cluster, pod)
    if isinstance(found, Obstacle):
        return _blocked(cluster, found, keys, frozenset({Cause.CLAIM}))
    obstacle = obstacle_of(cluster, pod, found)
    if obstacle is not None:
        return _blocked(cluster, obstacle, keys, frozenset({Cause.CLAIM}))
    around = Surroundings(cluster, pod)
    if around.obstacle is not None:
        return _blocked(cluster, Obstacle("node-unfit", around.obstacle.text), keys, around.obstacle.causes)
    attempt = _Attempt(cluster, pod, found, keys, policy, start, around)
    attempt.trail = trail
    return attempt.useless_claim(now) or attempt.decide()


def _blocked(cluster: Cluster, obstacle: Obstacle, keys: frozenset[str], causes: frozenset[Cause]) -> Pending:
    total = len(cluster.nodes)
    message = f"0/{total} nodes are available: {obstacle.message}."
    return Pending(
        obstacle.reason, message, causes=causes, claims=keys, passing=obstacle.passing, patience=obstacle.patience
    )


class _Attempt:
    """One run of `decide` after the pod's claims have been found."""

    def __init__(
        self,
        cluster: Cluster,
        pod: PodView,
        claims: Sequence[resource.ResourceClaim],
        keys: frozenset[str],
        policy: str,
        start: int,
        around: Surroundings,
    ):
        self.cluster = cluster
        self.pod = pod
        self.around = around
        self.trail: Trail | None = None
        #: How many nodes of the order have been looked at.
        self.looked = 0
        self.keys = keys
        self.policy = policy
        self.start = start
        self.settled = [claim for claim in claims if claim.status.allocation is not None]
        self.wanted = [claim for claim in claims if claim.status.allocation is None]
        self.limited = [(claim, limit) for claim in claims if (limit := pods_per_node(claim)) is not None]
        #: Extended resources that a class stands behind, and those of them that become a claim on the nodes just tried.
        self.classes = cluster.extended.serving(pod.requests)
        self.missing: frozenset[str] = frozenset()
        #: A claim for extended resources that an earlier attempt made and that still serves.
        self.kept: resource.ResourceClaim | None = None
        #: The pod with what the devices cost that its allocated claims hold.
        self.footprint = pod
        #: Text → how many nodes it keeps from the pod.
        self.refusals: Counter[str] = Counter()
        self.causes: set[Cause] = set()
        #: Drivers whose devices could help, once an attempt has asked for some; None in it stands for any.
        self.drivers: set[str | None] = set()
        self.by_node: dict[str, str] = {}
        #: Allocated claims that kept a node out which was fit otherwise.
        self.unavailable: dict[str, resource.ResourceClaim] = {}
        self.details: Reason | None = None

    def useless_claim(self, now: float) -> Pending | None:
        """A claim of the pod whose allocation serves nobody any more, or not this pod."""
        left_over = self.take_up()
        if left_over is not None:
            return left_over
        for claim in self.settled:
            broken = taint_on(self.cluster, claim)
            if broken is None:
                state, text = binding_state(claim, now, self.cluster.binding_timeout)
                broken = Obstacle("binding-failed", text) if state is Binding.FAILED else None
            if broken is not None:
                release = claim if releasable(self.cluster, self.pod, claim) else None
                pending = _blocked(self.cluster, broken, self.keys, frozenset({Cause.CLAIM, Cause.DEVICE}))
                return replace(pending, release=release)
            mapped = self.cluster.tariffs.mapped(claim)
            if mapped is not None and used_by_others(self.cluster, self.pod, claim):
                text = (
                    f"resourceclaim {name_of(claim)} has a mapped device ({mapped}) and cannot be shared across pods; "
                    "give each pod a claim of its own by a ResourceClaimTemplate"
                )
                return _blocked(self.cluster, Obstacle("in-use", text), self.keys, frozenset({Cause.CLAIM}))
        return None

    def decide(self) -> Decision:
        charge = self.cluster.tariffs.charge(self.pod, self._held_now())
        if charge is not None:
            self.footprint = charge.on(self.pod)
        for missing, among in self._variants():
            self.missing = missing
            decision = self._try(among)
            if decision is not None:
                return decision
        return self._pending()

    def take_up(self) -> Pending | None:
        """Goes on with the claim for extended resources that an earlier attempt left, or has it deleted."""
        left = self.cluster.special_claim(self.pod.uid)
        if left is None:
            return None
        self.keys |= {key_of(left)}
        if not is_deleting(left) and any(self._serves(left, missing) for missing, _ in self._variants()):
            self.kept = left
            (self.settled if left.status.allocation is not None else self.wanted).append(left)
            return None
        text = f"resourceclaim {name_of(left)} is left over from an earlier attempt"
        pending = _blocked(self.cluster, Obstacle("claim-missing", text), self.keys, frozenset({Cause.CLAIM}))
        return replace(pending, discard=left)

    def _serves(self, left: resource.ResourceClaim, missing: frozenset[str]) -> bool:
        made = self._extended(missing)
        return made is not None and made.claim.spec.devices.requests == left.spec.devices.requests

    def _extended(self, missing: frozenset[str]) -> Extended | None:
        served = {name: self.classes[name] for name in missing}
        return make_extended(self.pod, served) if served else None

    def _held_now(self) -> Iterator[tuple[resource.ResourceClaim, resource.AllocationResult]]:
        for claim in self.settled:
            if claim.status.allocation is not None:
                yield claim, claim.status.allocation

    def _variants(self) -> Iterator[tuple[frozenset[str], frozenset[str] | None]]:
        """Which extended resources have to come from devices, and on which nodes (None: all) that is so."""
        if not any(self.cluster.offers[name] for name in self.classes):
            yield frozenset(self.classes), None
            return
        groups: dict[frozenset[str], list[str]] = {}
        for name, node in self.cluster.nodes.items():
            lacking = frozenset(wanted for wanted in self.classes if not node.allocatable.get(wanted))
            groups.setdefault(lacking, []).append(name)
        for lacking, names in groups.items():
            yield lacking, frozenset(names)

    def _try(self, among: frozenset[str] | None) -> Decision | None:
        extended = self._extended(self.missing)
        wanted = self.wanted
        if self.kept is not None:
            if extended is None or not self._serves(self.kept, self.missing):
                self._refuse(refusal("node(s) need other devices than the pod's extended resources have", Cause.CLAIM))
                return None
            extended = replace(extended, claim=self.kept)
        elif extended is not None:
            wanted = [*wanted, extended.claim]
        if not wanted:
            return self._without_search(among, extended)
        problem = allocator.prepare(self.cluster.inventory.snapshot(), wanted, policy=self.policy)
        self.drivers.update(problem.drivers() or (None,))
        feasible = problem.feasible()
        names = problem.ranked() if among is None else [name for name in problem.ranked() if name in among]
        if not names:
            others = self.cluster.node_names() if among is None else [*among]
            self._lack_devices(problem, others, [], feasible.refusal)
            return None
        return self._search(problem, wanted, extended, names, among)

    # pods that need no new devices

    def _without_search(self, among: frozenset[str] | None, extended: Extended | None) -> Decision | None:
        names: Iterable[str] | None = self._hosts_of_claims()
        if names is None:
            order = self.cluster.node_names()
            start = self.start % len(order) if order else 0
            names = chain(islice(order, start, None), islice(order, start))
        if among is not None:
            names = (name for name in names if name in among)
        charge = self.cluster.tariffs.charge(self.pod, self._held_now())
        uncovered = charge.uncovered(self.pod) if charge is not None else None
        if uncovered is not None:
            self._refuse(refusal(uncovered, *_DEVICES), len(self.cluster.nodes) if among is None else len(among))
            return None
        fits = [*islice(self._fit(names), SEARCHED if self.around.wishing else COMPARED)]
        if not fits:
            return None
        best = max(fits, key=lambda node: (self._wish(node), free_share(self.footprint, node)))
        return self._placement(best.name, (), extended, charge)

    def _wish(self, node: Node) -> int:
        return preference(self.pod, node) + self.around.wish(node)

    def _hosts_of_claims(self) -> list[str] | None:
        """The few nodes that an allocated claim names; None when none names any."""
        for claim in self.settled:
            allocation = claim.status.allocation
            named = self.cluster.named_by(allocation.nodeSelector) if allocation else None
            if named is not None:
                others = len(self.cluster.nodes) - sum(name in self.cluster.nodes for name in named)
                if others:
                    self._note_unavailable(claim, others)
                return named
        return None

    # pods that need devices

    def _search(
        self,
        problem: Problem,
        wanted: Sequence[resource.ResourceClaim],
        extended: Extended | None,
        names: Sequence[str],
        among: frozenset[str] | None,
    ) -> Decision | None:
        refused: list[str] = []
        self.looked = 0
        most = highest(wanted)
        # How good a placement is: first alternatives taken, and whether all hosts of its devices are fit.
        best: tuple[tuple[int, bool], Placement] | None = None
        found = 0
        if most:
            names = self._first_choices_first(wanted, names)
        for number, node in enumerate(self._by_preference(self._fit(names))):
            if found == COMPARED:
                break
            if number == SEARCHED:
                self._refuse(Refusal("node(s) were not searched in this attempt", frozenset(_ANYTHING)))
                break
            outcome = problem.solve(node.name)
            if isinstance(outcome, Fits):
                allocations = tuple(zip(wanted, outcome.allocations, strict=True))
                cramped, whole = self._reach(allocations)
                charge = self._charge(allocations, extended)
                refused_by = cramped or self._too_costly(node, charge)
                if refused_by is not None:
                    self._refuse(refused_by, on=node.name)
                    continue
                got = (taken(allocations) if most else 0, whole)
                if got == (most, True):
                    if self.trail is not None and not (most or self.limited or problem.ranks):
                        self.trail.names, self.trail.position = names, self.looked - 1
                    return self._placement(node.name, allocations, extended, charge)
                found += 1
                if best is None or got > best[0]:
                    best = (got, self._placement(node.name, allocations, extended, charge))
            elif isinstance(outcome, Failed):
                if not outcome.node_only:
                    message = f"0/{len(self.cluster.nodes)} nodes are available: {outcome.message}."
                    return Pending(outcome.error_class, message, claims=self.keys, error=True)
                self._refuse(refusal(outcome.message, *_DEVICES), on=node.name)
            elif isinstance(outcome, GaveUp):
                self._note_details(outcome.reason)
                self._refuse(Refusal(self._device_text(outcome.reason), frozenset(_ANYTHING)), on=node.name)
            else:
                refused.append(node.name)
                self._note_details(outcome.reason)
        if best is not None:
            return best[1]
        inside = frozenset(names)
        others = [name for name in self.cluster.node_names() if name not in inside and (among is None or name in among)]
        self._lack_devices(problem, others, refused, None)
        return None

    def _lack_devices(
        self, problem: Problem, others: Sequence[str], refused: Sequence[str], known: Reason | None
    ) -> None:
        """Tells of nodes where devices are the matter: ``refused`` were searched, ``others`` left out by the allocator.

        Nodes where the pod may not run anyway are told of by that, so that the reason is one of nodes that it
        could use. ``known`` is the reason over all of ``others``, if there is one.
        """
        allowed = [node.name for node in self._fit(others[:SCANNED], aside=True)]
        usable = [*refused, *allowed, *others[SCANNED:]]
        if not usable:
            return
        if known is None or len(usable) < len(others):
            known = allocator.explain(problem, usable[:EXPLAINED])
        self._note_details(known)
        self._refuse(refusal(self._device_text(known), *_DEVICES), len(usable))

    def _note_details(self, reason: Reason) -> None:
        """Keeps the reason that came furthest; what was not decided is further than all that was."""
        if self.details is None or _distance(reason) > _distance(self.details):
            self.details = reason

    def _charge(
        self, allocations: Sequence[tuple[resource.ResourceClaim, resource.AllocationResult]], extended: Extended | None
    ) -> Charge | None:
        """What all devices of the pod cost a node, with these allocations."""
        users: dict[str, list[str]] = {}
        if extended is not None:
            named = dict.fromkeys(mapping["containerName"] for mapping in extended.mappings)
            users[name_of(extended.claim)] = [*named]
        return self.cluster.tariffs.charge(self.pod, [*self._held_now(), *allocations], users)

    def _too_costly(self, node: Node, charge: Charge | None) -> Refusal | None:
        if charge is None:
            return None
        uncovered = charge.uncovered(self.pod)
        if uncovered is not None:
            return refusal(uncovered, *_DEVICES)
        return node.lacks(charge.on(self.pod), self.missing)

    def _refuse(self, why: Refusal, nodes: int = 1, *, on: str = "") -> None:
        self.refusals[why.text] += nodes
        self.causes |= why.causes
        if on and len(self.by_node) < EXPLAINED:
            self.by_node[on] = why.text

    def _first_choices_first(self, wanted: Sequence[resource.ResourceClaim], names: Sequence[str]) -> list[str]:
        """The nodes on which all first alternatives may fit, then the others."""
        snapshot = self.cluster.inventory.snapshot()
        first = frozenset(allocator.prepare(snapshot, first_choices(wanted), policy=self.policy).feasible().nodes)
        return [name for name in names if name in first] + [name for name in names if name not in first]

    def _by_preference(self, nodes: Iterator[Node]) -> Iterator[Node]:
        """Nodes that the pod could not wish for more come as they are, the others in sorted groups behind them."""
        if self.around.wishing:
            yield from sorted(islice(nodes, SEARCHED), key=lambda node: -self._wish(node))
            yield from nodes
            return
        highest = sum(int(wish.get("weight") or 0) for wish in self.pod.preferred_affinity)
        others: list[tuple[int, Node]] = []
        for node in nodes:
            wish = preference(self.pod, node)
            if wish == highest:
                yield node
                continue
            others.append((wish, node))
            if len(others) == COMPARED:
                break
        # Stable: among equally wished for nodes the allocator's order stands.
        yield from (node for _, node in sorted(others, key=lambda other: -other[0]))
        if len(others) == COMPARED:
            yield from nodes

    def _device_text(self, reason: Reason) -> str:
        served = f" for {', '.join(sorted(self.missing))}" if self.missing else ""
        return f"cannot allocate all claims{served} ({reason.reason}: {reason.message.rstrip('.')})"

    def _reach(
        self, allocations: Sequence[tuple[resource.ResourceClaim, resource.AllocationResult]]
    ) -> tuple[Refusal | None, bool]:
        """Why the claim's other waiting pods would not all find room next to these devices, and whether every
        host of the devices could take a pod: more pods of the claim may come than wait now.
        """
        limits = {uid_of(claim): limit for claim, limit in self.limited}
        whole = True
        for claim, allocation in allocations:
            limit = limits.get(uid_of(claim))
            if limit is None or allocation.nodeSelector is None:
                continue
            waiting = sum(1 for member in self.cluster.members(claim) if not member.node and not member.deleting)
            named = self.cluster.named_by(allocation.nodeSelector)
            room = 0
            for name in self.cluster.node_names() if named is None else named:
                node = self.cluster.nodes.get(name)
                if node is not None and not node_selector_matches(allocation.nodeSelector, node.labels, name):
                    continue
                if node is not None and node.ready and unfit(self.footprint, node, self.missing) is None:
                    room += limit
                else:
                    whole = False
                if room >= waiting and (named is None or not whole):
                    break
            if room < waiting:
                text = f"room for only {room} of the {waiting} pods of claim {name_of(claim)}"
                causes = (Cause.ROOM, Cause.TAINT, Cause.CAPACITY, Cause.CLAIM, Cause.DEVICE)
                return refusal(f"node(s) whose devices reach hosts with {text}", *causes), whole
        return None, whole

    # nodes

    def _fit(self, names: Iterable[str], *, aside: bool = False) -> Iterator[Node]:
        """The nodes that pass everything but devices; the others are counted. ``aside``: devices lack there in any
        case, so that no claim can be blamed.
        """
        for name in names:
            self.looked += 1
            node = self.cluster.nodes.get(name)
            if node is None:
                continue
            why = unfit(self.footprint, node, self.missing) or self._crowded(node) or self.around.unfit(node)
            if why is not None:
                self._refuse(why, on=name)
                continue
            blocking = self._claim_elsewhere(node)
            if blocking is not None:
                if aside:
                    self._refuse(_not_available(blocking))
                else:
                    self._note_unavailable(blocking, 1)
                continue
            yield node

    def _claim_elsewhere(self, node: Node) -> resource.ResourceClaim | None:
        for claim in self.settled:
            allocation = claim.status.allocation
            if allocation is not None and not node_selector_matches(allocation.nodeSelector, node.labels, node.name):
                return claim
        return None

    def _note_unavailable(self, claim: resource.ResourceClaim, nodes: int) -> None:
        self.unavailable[uid_of(claim)] = claim
        self._refuse(_not_available(claim), nodes)

    def _crowded(self, node: Node) -> Refusal | None:
        """The limit of pods per node of one of the pod's claims, where the node has reached it."""
        for claim, limit in self.limited:
            here = sum(
                1 for member in self.cluster.members(claim) if member.node == node.name and member.uid != self.pod.uid
            )
            if here >= limit:
                text = f"node(s) already had {here} pod(s) of claim {name_of(claim)}, which allows {limit} per node"
                return refusal(text, Cause.CLAIM)
        return None

    # results

    def _placement(
        self,
        node: str,
        allocations: tuple[tuple[resource.ResourceClaim, resource.AllocationResult], ...],
        extended: Extended | None = None,
        charge: Charge | None = None,
    ) -> Placement:
        in_flight = [claim for claim in self.settled if uid_of(claim) in self.cluster.in_flight]
        # What another pod of the group has been given has yet to be written, by whichever of them comes first.
        for claim in in_flight:
            known = self.cluster.claim(key_of(claim))
            if known is not None and known.status.allocation is None and claim.status.allocation is not None:
                allocations = (*allocations, (known, claim.status.allocation))
        written = {uid_of(claim) for claim, _ in allocations}
        seen = [claim for claim in self.settled if uid_of(claim) not in written]
        held = tuple(claim for claim in seen if reserved_for(claim, self.pod))
        joined = tuple(claim for claim in seen if not reserved_for(claim, self.pod))
        return Placement(node, allocations, extended, joined, held, charge)

    def _pending(self) -> Pending:
        details = self.details
        total = len(self.cluster.nodes)
        if total == 0:
            text = "no nodes available to schedule pods"
            return Pending("node-unfit", text, causes=frozenset((Cause.NODE,)), claims=self.keys)
        told = self.refusals.most_common(LISTED)
        parts = sorted(f"{count} {text}" for text, count in told)
        untold = self.refusals.total() - sum(count for _, count in told)
        parts += [f"{untold} for other reasons"] if untold else []
        # Where an allocated claim alone is in the way, everything else was all right: no node came further.
        if self.unavailable:
            word, details = "claim-on-other-node", None
        elif details is not None:
            word = details.reason
        else:
            word = "node-unfit"
        release = next((c for c in self.unavailable.values() if releasable(self.cluster, self.pod, c)), None)
        message = f"0/{total} nodes are available: {', '.join(parts)}."
        return Pending(
            word,
            message,
            details,
            causes=frozenset(self.causes),
            claims=self.keys,
            drivers=None if None in self.drivers else frozenset(name for name in self.drivers if name is not None),
            release=release,
            discard=self.kept if release is None else None,
            nodes=self.by_node,
        )


def _distance(reason: Reason) -> int:
    if reason.reason == "identity-clash":
        return 0
    return STAGES.index(reason.reason) if reason.reason in STAGES else len(STAGES)


def _not_available(claim: resource.ResourceClaim) -> Refusal:
    return refusal(f"resourceclaim {name_of(claim)} not available on the node", Cause.CLAIM)
