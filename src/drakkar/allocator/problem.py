"""One decision: claims against a snapshot, asked for all nodes at once or for one exactly.

What is found out about a node is remembered with the plan of the claim template and stays valid until
something that reaches the node changes, so the next pod of the same kind pays for changes only.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from drakkar.allocator.bounds import Bounds, may_fit
from drakkar.allocator.explain import Tally, aggregate, named, node_reason, request_funnels
from drakkar.allocator.needs import NodeTask
from drakkar.allocator.outcomes import Failed, Fault, Fits, GaveUp, NoFit, Outcome
from drakkar.allocator.plan import Plan, drivers_of, make_plan, plan_key
from drakkar.allocator.reasons import Reason
from drakkar.allocator.results import allocations
from drakkar.allocator.search import BudgetSpent, Search, SwitchToPruning
from drakkar.api.errors import UsageError
from drakkar.api.resource.v1 import ResourceClaim
from drakkar.inventory.collector import paused
from drakkar.inventory.snapshot import Node, NodeView, Snapshot
from drakkar.inventory.usage import PoolUsage

#: Steps that a search may take on one node, each about 5 to 50 microseconds.
DEFAULT_BUDGET: Final = 20_000
_PLAN_LIMIT: Final = 256
POLICIES: Final = ("drakkar", "upstream")


@dataclass(frozen=True, slots=True)
class Feasible:
    """Nodes that pass every necessary condition, in the order of the inventory.

    ``refusal`` says why when there is none. A node in the list can still turn out not to fit.
    """

    nodes: tuple[str, ...]
    refusal: Reason | None = None


@dataclass(slots=True, eq=False)
class _Memory:
    """What a plan knows about the nodes of one inventory, as of ``version``."""

    version: int = -1
    verdicts: dict[str, _Verdict] = field(default_factory=dict[str, "_Verdict"])
    nodes: tuple[str, ...] | None = None
    refusal: Reason | None = None
    #: Why the nodes do not pass, as far as it was asked for, and the nodes that are missing there.
    tally: Tally = field(default_factory=Tally)
    untold: dict[str, None] = field(default_factory=dict[str, None])
    world_nodes: object = None
    #: Place of each node in the order of the inventory, and of those that pass, ascending.
    places: dict[str, int] = field(default_factory=dict[str, int])
    passing: list[int] = field(default_factory=list[int])
    names: list[str] = field(default_factory=list[str])

    def reorder(self, nodes: dict[str, Node]) -> None:
        """Takes over the nodes of a world."""
        self.nodes = self.refusal = None
        for gone in [name for name in self.verdicts if name not in nodes]:
            del self.verdicts[gone]
            self.untold[gone] = None
        self.world_nodes = nodes
        self.places = {name: number for number, name in enumerate(nodes)}
        self.names = [name for name in nodes if name in self.verdicts and self.verdicts[name].passes]
        self.passing = [self.places[name] for name in self.names]

    def record(self, name: str, verdict: _Verdict) -> None:
        """Enters what was found out about a node."""
        old = self.verdicts.get(name)
        self.verdicts[name] = verdict
        self.refusal = None
        self.untold[name] = None
        if verdict.passes == (old is not None and old.passes):
            return
        self.nodes = None
        place = self.places[name]
        index = bisect_left(self.passing, place)
        if verdict.passes:
            self.passing.insert(index, place)
            self.names.insert(index, name)
        else:
            del self.passing[index]
            del self.names[index]


@dataclass(slots=True, eq=False)
class _Verdict:
    """Whether a node passes, and what that was worked out from."""

    passes: bool
    view: NodeView
    usages: tuple[PoolUsage, ...]
    #: Why not, once somebody asked.
    reason: Reason | None = None


class Problem:
    """Claims to be allocated together, for one pod. Make one with :func:`prepare`."""

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

    # All nodes.

    def feasible(self) -> Feasible:
        """All nodes that pass the necessary conditions: counts, constraints, counters, nothing searched."""
        memory = self._remember()
        nodes = memory.nodes
        if nodes is None:
            nodes = memory.nodes = tuple(memory.names)
        if nodes:
            return Feasible(nodes)
        if memory.refusal is None:
            tally = memory.tally
            for name in memory.untold:
                if name in self.snapshot.world.nodes:
                    tally.add(name, self._reason(name))
                else:
                    tally.discard(name)
            memory.untold.clear()
            memory.refusal = tally.summary()
        return Feasible(nodes, named(memory.refusal, self.claims))

    def _remember(self) -> _Memory:
        snapshot = self.snapshot
        known = self.plan.memory.get("nodes")
        memory = known if isinstance(known, _Memory) else _Memory()
        if snapshot.version is None or memory.version > snapshot.version:
            # A what-if or an old snapshot: beside the memory, but starting from what still holds.
            memory = _Memory(verdicts=dict(memory.verdicts), untold=dict.fromkeys(snapshot.world.nodes))
            self._update(memory, None)
            return memory
        self.plan.memory["nodes"] = memory
        if memory.version == snapshot.version:
            return memory
        log, start = snapshot.shared.log, snapshot.shared.log_start
        touched: set[str] | None = None
        if memory.version >= start and memory.version >= 0:
            touched = set()
            for entry in log[memory.version - start : snapshot.version - start]:
                if entry is None:
                    touched = None
                    break
                touched |= entry
        self._update(memory, touched)
        memory.version = snapshot.version
        return memory

    def _update(self, memory: _Memory, touched: set[str] | None) -> None:
        if touched is None:
            with paused():
                self._look(memory, None)
        else:
            self._look(memory, touched)

    def _look(self, memory: _Memory, touched: set[str] | None) -> None:
        nodes = self.snapshot.world.nodes
        verdicts = memory.verdicts
        if touched is None:
            self.snapshot.shared.selectors.enter_all(self.snapshot.world.pools.values())
        if touched is None or nodes is not memory.world_nodes:
            memory.reorder(nodes)
        for name in nodes if touched is None else touched:
            if name not in nodes:
                continue
            old = verdicts.get(name)
            new = self._verdict(name, old)
            if new is old:
                continue
            memory.record(name, new)

    def _verdict(self, name: str, old: _Verdict | None) -> _Verdict:
        snapshot = self.snapshot
        view = snapshot.view(name)
        usages = tuple([snapshot.usage(seen.pool) for seen in view.pools])
        if old is not None and old.view is view and len(usages) == len(old.usages):
            for new, known in zip(usages, old.usages, strict=True):
                if new is not known:
                    break
            else:
                return old
        return _Verdict(self._may_fit(name, view), view, usages)

    def _may_fit(self, name: str, view: NodeView) -> bool:
        if self.plan.countable:
            return may_fit(self.snapshot, self.plan, self.snapshot.world.nodes[name], view)
        try:
            task = self.task(name)
        except Fault:
            return self.plan.policy == "upstream"
        return task.too_large is None and task.incomplete is None

    def _reason(self, name: str) -> Reason:
        """Why the node does not fit, taken from memory when it is there."""
        memory = self.plan.memory.get("nodes")
        verdict = None
        if self.snapshot.version is not None and isinstance(memory, _Memory):
            verdict = memory.verdicts.get(name) if memory.version == self.snapshot.version else None
        if verdict is not None and verdict.reason is not None:
            return verdict.reason
        try:
            reason = node_reason(self.task(name))
        except Fault as fault:
            reason = fault_reason(fault)
        if verdict is not None:
            verdict.reason = reason
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

    def why(self, nodes: Iterable[str]) -> Reason:
        """One reason for all of these nodes: the one that came furthest."""
        return named(aggregate([(name, self._reason(name)) for name in nodes]), self.claims)

    # One node.

    def task(self, name: str) -> NodeTask:
        """The plan on one node; raises :class:`Fault` where upstream would while preparing."""
        found = self._tasks.get(name)
        if found is None:
            snapshot = self.snapshot
            node = snapshot.world.nodes.get(name)
            if node is None:
                raise UsageError(f"node {name!r} is not in the snapshot")
            found = NodeTask(snapshot, self.plan, node, snapshot.view(name))
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
        task = self.task(node_name)
        if task.too_large is not None or task.incomplete is not None:
            return NoFit(named(self._reason(node_name), self.claims))
        try:
            search = Search(task, budget, None)
            try:
                found = search.run()
            except SwitchToPruning:
                bounds = Bounds(task)
                search = Search(task, budget, bounds)
                found = search.run()
        except BudgetSpent:
            reason = Reason(
                reason="undecided",
                message=f"node {node_name}: no answer within {budget} search steps",
                claim="0",
                nodes=1,
                cure="raise the search budget, or ask for fewer devices with unequal constraints in one pod",
            )
            return GaveUp(named(reason, self.claims))
        if found:
            return Fits(allocations(task, search, self._share_id))
        invalid = next((entry for entry in task.view.broken if entry.view.status == "invalid"), None)
        if invalid is not None and self.plan.policy == "upstream":
            return Failed("pool-invalid", invalid.view.detail, node_only=True)
        return NoFit(named(self._reason(node_name), self.claims))


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
    key = plan_key(specs, policy)
    plans = snapshot.shared.plans
    plan = plans.pop(key, None)
    if not isinstance(plan, Plan) or not plan.current(snapshot):
        plan = make_plan(specs, snapshot, policy)
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
    return Reason(reason=words.get(fault.error_class, fault.error_class), message=fault.message, claim="0", nodes=1)
