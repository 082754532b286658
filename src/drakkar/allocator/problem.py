"""One decision: claims against a snapshot, asked for all nodes at once or for one exactly.

What is found out about a node is remembered with the plan of the claim template and stays valid until
something that reaches the node changes, so the next pod of the same kind pays for changes only.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import Final

import msgspec

from drakkar.allocator.bounds import may_fit
from drakkar.allocator.classes import Classes, NodeClass, names_on, place_of, speaks_of_place
from drakkar.allocator.explain import aggregate, cure_of, named, node_reason, request_funnels, selected_devices
from drakkar.allocator.fitness import best_fit, loss_of
from drakkar.allocator.hypothetical import is_hypothetical
from drakkar.allocator.memory import Memory
from drakkar.allocator.needs import NodeTask
from drakkar.allocator.nodes import NodeNames
from drakkar.allocator.outcomes import Failed, Fault, Fits, GaveUp, NoFit, Outcome
from drakkar.allocator.plan import Plan, drivers_of, make_plan, plan_key
from drakkar.allocator.ranking import Loss, Ranking
from drakkar.allocator.reasons import Reason
from drakkar.allocator.results import Solution, allocations, solution, writable
from drakkar.allocator.search import BudgetSpent, Search
from drakkar.allocator.stages import first_solution
from drakkar.allocator.wishes import Granted, Wish, wishes_of, with_wishes
from drakkar.api.errors import UsageError
from drakkar.api.resource.v1 import ResourceClaim
from drakkar.inventory.collector import paused
from drakkar.inventory.pools import Pool
from drakkar.inventory.snapshot import Node, NodeOrder, NodeView, Snapshot, node_view

#: Steps that a search may take on one node, each about 5 to 50 microseconds.
DEFAULT_BUDGET: Final = 20_000
#: What helps when the budget ends before the search.
UNDECIDED_CURE: Final = (
    "ask for fewer devices with unequal constraints in one pod; where the extra drakkar[solver] is missing, install it"
)
#: Steps that a search may take on a node when nodes are only compared.
RANKING_BUDGET: Final = 2_000
#: Steps that a search for what is only preferred may take.
WISH_BUDGET: Final = 2_000
_PLAN_LIMIT: Final = 256
POLICIES: Final = ("drakkar", "upstream")


class Feasible(msgspec.Struct, frozen=True):
    """Nodes that pass every necessary condition, in the order of the inventory.

    ``refusal`` says why when there is none. A node in the list can still turn out not to fit.
    """

    nodes: Sequence[str]
    refusal: Reason | None = None


class Problem:
    """Claims to be allocated together, for one pod. Make one with :func:`prepare`."""

    __slots__ = ("_beside", "_classes", "_share_id", "_tasks", "_wishes", "claims", "plan", "snapshot")

    def __init__(
        self,
        snapshot: Snapshot,
        claims: Sequence[ResourceClaim],
        plan: Plan,
        share_id: Callable[[], str],
    ) -> None:
        self.snapshot = snapshot
        self.claims = tuple(claims)
        self.plan = plan
        self._share_id = share_id
        self._tasks: dict[str, NodeTask | Fault] = {}
        known = plan.known
        self._classes = known if isinstance(known, Classes) else Classes(plan)
        plan.known = self._classes
        self._wishes = self._classes.wishes
        #: What is known for a snapshot beside the one that the plan remembers.
        self._beside: Memory | None = None

    # All nodes.

    def feasible(self) -> Feasible:
        """All nodes that pass the necessary conditions: counts, constraints, counters, nothing searched."""
        memory = self._remember()
        order = self.snapshot.world.order
        if memory.mask:
            return Feasible(NodeNames(memory.mask, order))
        if memory.refusal is None:
            tally = memory.tally
            untold: Iterable[str] = order.names if memory.untold is None else memory.untold
            for name in untold:
                if name in order.places:
                    tally.add(name, self._reason(name))
                else:
                    tally.discard(name)
            memory.untold = {}
            memory.refusal = tally.summary()
        return Feasible(NodeNames(0, order), named(memory.refusal, self.claims))

    def ranked(self) -> Sequence[str]:
        """The nodes of :meth:`feasible`, the best first: where most of what the claims prefer can be kept, then where
        they lose least of what could be given out later. Nodes that do not exist yet come behind those that do.

        In the order of the inventory where nothing is to be lost, and under policy ``upstream``.
        """
        memory = self._remember()
        order = self.snapshot.world.order
        if not self._classes.partial:
            return NodeNames(memory.mask, order)
        if memory.ranking is None:
            memory.ranking = Ranking(order, memory.mask)
        memory.ranking.update(self._score)
        return memory.ranking.names()

    @property
    def ranks(self) -> bool:
        """Whether the order of :meth:`ranked` can change with what is taken; else it is the inventory's."""
        return bool(self._classes.partial)

    def _score(self, name: str) -> tuple[Loss | None, bool]:
        known = self._class_of(name)
        searched = known.solution is None and not known.refuted
        if searched and isinstance(self.solve(name, RANKING_BUDGET), GaveUp | Failed):
            return (False, inf, inf), True
        found = known.solution
        return (is_hypothetical(name), found.unmet, found.lost) if found is not None else None, searched

    def _remember(self) -> Memory:
        snapshot = self.snapshot
        known = self.plan.memory
        memory = known if isinstance(known, Memory) else Memory()
        if snapshot.version is None or memory.version > snapshot.version:
            if self._beside is None:
                self._beside = self._look_beside(memory)
            return self._beside
        self.plan.memory = memory
        if memory.version == snapshot.version:
            return memory
        log, start = snapshot.shared.log, snapshot.shared.log_start
        news = log[memory.version - start : snapshot.version - start] if memory.version >= max(start, 0) else [None]
        if len(news) == 1 and isinstance(news[0], frozenset):
            self._look(memory, news[0])
        elif None in news:
            self._look(memory, None)
        else:
            pools = {entry for entry in news if isinstance(entry, Pool)}
            names = frozenset[str]().union(*[entry for entry in news if isinstance(entry, frozenset)])
            self._look(memory, names, pools)
        memory.version = snapshot.version
        return memory

    def _look_beside(self, memory: Memory) -> Memory:
        """What is to know about a what-if or an old snapshot, from what the plan remembers where that is near."""
        snapshot, origin = self.snapshot, self.snapshot.origin
        if origin is not None and origin.version is not None and memory.version <= origin.version:
            found = Problem(origin, self.claims, self.plan, self._share_id)._remember().copy()
            self._look(found, snapshot.touched, snapshot.spread)
        else:
            found = Memory()
            self._look(found, None)
        return found

    def _look(self, memory: Memory, touched: Iterable[str] | None, pools: Container[Pool] = ()) -> None:
        """Looks at the nodes that were touched, or at all; the holders of ``pools``, for all nodes, have changed."""
        order = self.snapshot.world.order
        if touched is None:
            with paused():
                self._look_at_all(memory, order)
            return
        if order is not memory.order:
            memory.reorder(order)
        self._look_at(touched, memory, order)
        if pools:
            # Behind the others, so that in each group all nodes have changed in the same way.
            self._look_at(memory.shift(partial(self._shifted, pools)), memory, order)

    def _look_at(self, names: Iterable[str], memory: Memory, order: NodeOrder) -> None:
        places = order.places
        for name in names:
            place = places.get(name)
            if place is not None:
                memory.record(name, place, self._find_class(name))

    def _look_at_all(self, memory: Memory, order: NodeOrder) -> None:
        world = self.snapshot.world
        self.snapshot.shared.selectors.enter_all(world.pools.values())
        memory.fill(order, [self._find_class(name) for name in order.names])

    def _shifted(self, pools: Container[Pool], old: NodeClass, nodes: int) -> NodeClass | None:
        """The class in which these nodes are after a change of what is held in pools that all nodes look at."""
        if old.key is None:
            return None
        key = self._classes.after(old.key, pools, self.snapshot)
        found = self._classes.get(key)
        if found is None:
            name = next(iter(NodeNames(nodes, self.snapshot.world.order)))
            node = self.snapshot.world.nodes[name]
            found = self._classes.add(key, self._may_fit(node, self._view(node)))
        return found

    def _class_of(self, name: str) -> NodeClass:
        """The class of a node, from memory where that is of the snapshot's moment."""
        memory = self.plan.memory
        if isinstance(memory, Memory) and memory.version == self.snapshot.version:
            return memory.of(name)
        return self._find_class(name)

    def _view(self, node: Node) -> NodeView:
        view = node_view(self.snapshot.world, node)
        return view if self.plan.policy == "upstream" else view.strict

    def _find_class(self, name: str) -> NodeClass:
        snapshot, classes = self.snapshot, self._classes
        node = snapshot.world.nodes[name]
        view = self._view(node)
        key = classes.key(snapshot, node, view)
        if key is None:
            return NodeClass(None, self._may_fit(node, view), refuted=False)
        return classes.get(key) or classes.add(key, self._may_fit(node, view))

    def _may_fit(self, node: Node, view: NodeView) -> bool:
        if self.plan.countable:
            return may_fit(self.snapshot, self.plan, node, view)
        try:
            task = self.task(node.name)
        except Fault:
            return self.plan.policy == "upstream"
        return task.too_large is None and task.incomplete is None

    def _reason(self, name: str) -> Reason:
        """Why the node does not fit, taken from its class when it is known there."""
        node = self.snapshot.world.nodes[name]
        view = self._view(node)
        known = self._class_of(name).reasons
        names = names_on(view)
        reason = known.get(names)
        if reason is not None:
            return reason if reason.nearest == name else msgspec.structs.replace(reason, nearest=name)
        reason = known.get((place_of(node, view), names))
        if reason is None:
            try:
                reason = node_reason(self.task(name))
            except Fault as fault:
                return fault_reason(fault)
            known[(place_of(node, view), names) if speaks_of_place(reason, node, view) else names] = reason
        return reason

    def drivers(self) -> frozenset[str] | None:
        """The drivers whose devices alone can serve the claims, as the selectors name them; None when anybody's may."""
        found: set[str] = set()
        for claim in self.plan.claims:
            for request in claim.requests:
                for alternative in request.alternatives:
                    named_there = drivers_of(alternative)
                    if not named_there:
                        return None
                    found.update(named_there)
        return frozenset(found)

    def reasons(self, nodes: Iterable[str]) -> list[tuple[str, Reason]]:
        """Node by node why it does not fit; see :func:`explain` for one reason over all."""
        return [(name, named(self._reason(name), self.claims)) for name in nodes]

    def funnels(self, nodes: Iterable[str]) -> list[tuple[str, Reason]]:
        """Node by node how far each request comes by itself, those that could be served too (``reason`` is empty)."""
        found: list[tuple[str, Reason]] = []
        for name in nodes:
            try:
                reasons = request_funnels(self.task(name))
            except Fault as fault:
                reasons = [fault_reason(fault)]
            found.extend((name, named(reason, self.claims)) for reason in reasons)
        return found

    def selected(self, nodes: Iterable[str]) -> set[tuple[str, str, str]]:
        """Driver, pool and name of the devices on these nodes that some request selects, whoever has them."""
        found: set[tuple[str, str, str]] = set()
        for name in nodes:
            # A node that cannot be looked at has nothing to tell.
            with suppress(Fault):
                found.update(selected_devices(self.task(name)))
        return found

    def why(self, nodes: Iterable[str]) -> Reason:
        """One reason for all of these nodes: the one that came furthest."""
        return named(aggregate([(name, self._reason(name)) for name in nodes]), self.claims)

    def fitting(self, limit: int | None = None, budget: int = DEFAULT_BUDGET) -> list[str]:
        """The first nodes, at most ``limit``, on which the claims do fit, in the order of the inventory.

        Exact like :meth:`solve`, but the search is done once for all nodes that are alike, and nothing is written out.
        Nodes on which it fails or gives up are left out.
        """
        found: list[str] = []
        world, switches = self.snapshot.world, self.snapshot.switches
        for name in self.feasible().nodes:
            if limit is not None and len(found) >= limit:
                break
            first = self._class_of(name).solution
            if first is None:
                fits = isinstance(self.solve(name, budget), Fits)
            else:
                node = world.nodes[name]
                fits = writable(first, self.plan, node, self._view(node), switches)
            if fits:
                found.append(name)
        return found

    # One node.

    def task(self, name: str) -> NodeTask:
        """The plan on one node; raises :class:`Fault` where upstream would while preparing."""
        found = self._tasks.get(name)
        if found is None:
            snapshot = self.snapshot
            node = snapshot.world.nodes.get(name)
            if node is None:
                raise UsageError(f"node {name!r} is not in the snapshot")
            found = NodeTask(snapshot, self.plan, node, self._view(node))
            try:
                found.prepare()
            except Fault as fault:
                found = fault
            self._tasks[name] = found
        if isinstance(found, Fault):
            raise found
        return found

    def solve(self, node_name: str, budget: int = DEFAULT_BUDGET) -> Outcome:
        """The exact answer for one node; ``budget`` limits the steps of the search."""
        try:
            return self._solve(node_name, budget)
        except Fault as fault:
            return Failed(fault.error_class, fault.message)

    def _solve(self, node_name: str, budget: int) -> Outcome:
        if not self.claims:
            return Fits(())
        node = self.snapshot.world.nodes.get(node_name)
        if node is None:
            raise UsageError(f"node {node_name!r} is not in the snapshot")
        known = self._class_of(node_name)
        if known.solution is not None:
            return self._fits(known.solution, node)
        if known.refuted:
            return NoFit(named(self._reason(node_name), self.claims))
        task = self.task(node_name)
        if task.too_large is not None or task.incomplete is not None:
            return NoFit(named(self._reason(node_name), self.claims))
        try:
            found = self._search(task, budget)
            unmet = 0
            if found is not None and self._wishes:
                found, unmet = self._grant(task, found)
        except BudgetSpent:
            reason = Reason(
                reason="undecided",
                message=f"node {node_name}: no answer within {budget} search steps",
                claim="0",
                nodes=1,
                cure=UNDECIDED_CURE,
            )
            return GaveUp(named(reason, self.claims))
        if found is not None:
            lost = loss_of(task, found) if self._classes.partial else 0.0
            known.solution = solution(task, found, lost, unmet)
            return self._fits(known.solution, node)
        invalid = next((entry for entry in task.view.broken if entry.view.status == "invalid"), None)
        if invalid is not None and self.plan.policy == "upstream":
            return Failed("pool-invalid", invalid.view.detail, node_only=True)
        known.refuted = True
        return NoFit(named(self._reason(node_name), self.claims))

    def _search(self, task: NodeTask, budget: int) -> Search | None:
        found = best_fit(task) if self._classes.partial else None
        return found if found is not None else first_solution(task, budget)

    def _grant(self, task: NodeTask, found: Search) -> tuple[Search, int]:
        """The solution that keeps most of what is preferred, and the weight of what it does not."""
        try:
            every = self._search(with_wishes(task, self._wishes), WISH_BUDGET)
        except BudgetSpent:
            every = None
        if every is not None:
            return every, 0
        granted: Granted = ()
        for wish in self._wishes:
            try:
                better = self._search(with_wishes(task, (*granted, wish)), WISH_BUDGET)
            except BudgetSpent:
                continue
            if better is not None:
                found, granted = better, (*granted, wish)
        return found, sum(wish.weight for _, wish in self._wishes) - sum(wish.weight for _, wish in granted)

    def _fits(self, found: Solution, node: Node) -> Fits:
        view = self._view(node)
        return Fits(
            allocations(found, self.plan, node, view, self.snapshot.switches, self._share_id), found.lost, found.unmet
        )


def prepare(
    snapshot: Snapshot,
    claims: Sequence[ResourceClaim],
    policy: str = "drakkar",
    share_id: Callable[[], str] | None = None,
) -> Problem:
    """A problem: these claims together against the snapshot.

    ``policy`` is ``drakkar`` or ``upstream``; ``share_id`` makes the identifiers of shares (random UUIDs
    unless given, the only use of randomness).
    """
    if policy not in POLICIES:
        raise UsageError(f"unknown policy {policy!r}: use one of {', '.join(POLICIES)}")
    specs = [claim.spec for claim in claims]
    wishes: tuple[tuple[Wish, ...], ...] = ()
    if policy != "upstream" and any([claim.metadata.annotations for claim in claims]):
        wishes = tuple([wishes_of(claim).wishes for claim in claims])
    key = (*plan_key(specs, policy), wishes if any(wishes) else ())
    plans = snapshot.shared.plans
    plan = plans.pop(key, None)
    if not isinstance(plan, Plan) or not plan.current(snapshot):
        plan = make_plan(specs, snapshot, policy)
        if any(wishes):
            plan.claims = tuple(replace(c, wishes=w) for c, w in zip(plan.claims, wishes, strict=True))
        while len(plans) >= _PLAN_LIMIT:
            del plans[next(iter(plans))]
    plans[key] = plan
    return Problem(snapshot, claims, plan, share_id or _random_share)


def _random_share() -> str:
    return str(uuid.uuid4())


def explain(problem: Problem, nodes: Iterable[str]) -> Reason:
    """Why the claims fit on none of the nodes: the reason that came furthest, over all of them."""
    return problem.why(nodes)


def fault_reason(fault: Fault) -> Reason:
    """An error in the form of a reason."""
    words = {
        "cel-compile": "cel-runtime-error",
        "cel-runtime": "cel-runtime-error",
        "too-many-devices": "claim-too-large",
        "class-missing": "class-missing",
        "feature-off": "feature-off",
        "all-incomplete-pool": "pool-incomplete",
        "all-invalid-pool": "pool-incomplete",
        "pool-invalid": "pool-incomplete",
        "all-constraint": "constraint-unsatisfied",
        "capacity-value": "request-exceeds-device",
    }
    word = words.get(fault.error_class, fault.error_class)
    return Reason(reason=word, message=fault.message, claim="0", nodes=1, cure=cure_of(word))
