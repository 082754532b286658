"""What lets the search skip a subtree: counting bounds, failed states, equal siblings.

All of it is sound, so only subtrees without any solution are skipped and the first solution stays upstream's.

*Canonical states.* Devices that share a counter set, or a value of an attribute under constraint, form a
cluster; everything else stands alone. Inside a cluster devices of one *class* (same requests they
can serve, same local attribute values, same draws) differ only by position. Whether a state can be
completed depends only on how many devices of each class are free, before and behind the start
position, on the counters left and on the bound values, per cluster; and on the multiset of clusters.
That multiset is the key under which failures are remembered, which makes eight equal GPUs one case.

*Equal siblings.* All lower candidates of a request have been refuted when one is looked at. If an automorphism of
the state maps it to a lower one, its completions are images of refuted ones; so one candidate per
(cluster state, class) is tried.

Source: spec/engine.md section 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drakkar.allocator.needs import Need, NodeTask
from drakkar.allocator.plan import Plan
from drakkar.allocator.shares import needed, short
from drakkar.inventory.devices import Scalar
from drakkar.inventory.pools import Base, bits
from drakkar.inventory.snapshot import Node, NodeView, Snapshot

if TYPE_CHECKING:
    from drakkar.allocator.search import Search

_Key = tuple[Any, ...]


class _Cluster:
    __slots__ = ("counters", "kind", "masks", "values")

    def __init__(self) -> None:
        #: Interned description; equal for clusters that can be swapped.
        self.kind = 0
        #: Per class, its positions.
        self.masks: list[int] = []
        #: (pool number, counter) in local order.
        self.counters: list[tuple[int, int]] = []
        #: (attribute, value) → local number.
        self.values: dict[tuple[str, Scalar], int] = {}


class Bounds:
    """Static structure of one node's problem, and the failures met so far."""

    def __init__(self, task: NodeTask) -> None:
        self._task = task
        self.failed: dict[_Key, int] = {}
        needs = [(c, r, need) for c, claim in enumerate(task.claims) for r, q in enumerate(claim) for need in q.needs]
        self._needs = needs
        upstream = task.policy == "upstream"
        constrained = [bool(claim.constraints) for claim in task.plan.claims]
        lists = task.switches.ListTypeAttributes
        attributes = sorted({c.attribute for claim in task.plan.claims for c in claim.constraints})
        bases = [seen.view.base for seen in task.view.pools]
        #: True where skipping something could hide an error, or the state has parts that the key leaves out.
        self.errors_possible = (
            task.plan.derived
            or any(need.failing or need.alternative.admin for _, _, need in needs)
            or (upstream and any(need.every is not None and constrained[c] for c, _, need in needs))
            or (task.switches.CompatibilityGroups and any(base.groups for base in bases))
            or (lists and any(len(values) > 1 for base in bases for a in attributes for values in base.sets(a)))
        )
        self._attributes = attributes
        self._clusters: list[_Cluster] = []
        self._where: dict[int, tuple[int, int]] = {}
        self._remaining: dict[tuple[int, int], list[tuple[int, list[Need]]]] = {}
        if not self.errors_possible:
            self._build()

    def _value(self, number: int, local: int, attribute: str) -> Scalar | None:
        base = self._task.view.pools[number].view.base
        if self._task.switches.ListTypeAttributes:
            values = base.sets(attribute)[local]
            return next(iter(values)) if values else None
        return base.scalars(attribute)[local]

    def _build(self) -> None:
        task = self._task
        relevant = 0
        for _, _, need in self._needs:
            relevant |= need.candidates
        parent: dict[Any, Any] = {}

        def find(item: Any) -> Any:
            while parent.setdefault(item, item) != item:
                parent[item] = parent[parent[item]]
                item = parent[item]
            return item

        positions = list(bits(relevant))
        upstream = task.policy == "upstream"
        facts: dict[int, tuple[list[Scalar | None], tuple[tuple[int, Any], ...]]] = {}
        for position in positions:
            number, local = task.view.places[position]
            base = task.view.pools[number].view.base
            uses: tuple[tuple[int, Any], ...] = base.draws()[local] if base.declared else ()
            if not upstream and local in base.drawn():
                uses += self._shares(base, local)
            values = [self._value(number, local, attribute) for attribute in self._attributes]
            facts[position] = values, uses
            for counter, _ in uses:
                parent[find(position)] = find(("c", number, base.counter_names[counter][0]))
            for attribute, value in zip(self._attributes, values, strict=True):
                if value is not None:
                    parent[find(position)] = find(("v", attribute, value))
        groups: dict[Any, list[int]] = {}
        for position in positions:
            groups.setdefault(find(position), []).append(position)
        kinds: dict[Any, int] = {}
        for members in groups.values():
            self._add_cluster(members, facts, kinds)

    def _add_cluster(
        self,
        members: list[int],
        facts: dict[int, tuple[list[Scalar | None], tuple[tuple[int, Any], ...]]],
        kinds: dict[Any, int],
    ) -> None:
        task = self._task
        cluster = _Cluster()
        counters: dict[tuple[int, int], int] = {}
        classes: dict[Any, int] = {}
        for position in members:
            number, local = task.view.places[position]
            base = task.view.pools[number].view.base
            values, uses = facts[position]
            local_values: list[int] = []
            for attribute, value in zip(self._attributes, values, strict=True):
                if value is None:
                    local_values.append(-1)
                else:
                    local_values.append(cluster.values.setdefault((attribute, value), len(cluster.values)))
            local_uses = tuple((counters.setdefault((number, c), len(counters)), nanos) for c, nanos in uses)
            membership = tuple((need.candidates >> position) & 1 for _, _, need in self._needs)
            # Shareable devices are told apart by their position: what is left of them is not counted here.
            reusable = base.multi if task.policy == "upstream" else base.reusable
            own = position if (reusable >> local) & 1 or local in task.states[number].consumed else -1
            description = (membership, tuple(local_values), local_uses, own)
            index = classes.setdefault(description, len(classes))
            if index == len(cluster.masks):
                cluster.masks.append(0)
            cluster.masks[index] |= 1 << position
            self._where[position] = len(self._clusters), index
        cluster.counters = list(counters)
        blocked = tuple(task.policy == "upstream" and task.states[number].negative for number, _ in cluster.counters)
        cluster.kind = kinds.setdefault((tuple(classes), blocked), len(kinds))
        self._clusters.append(cluster)

    def _shares(self, base: Base, local: int) -> tuple[tuple[int, Any], ...]:
        """Per counter that is drawn by shares, what each need would draw."""
        found: dict[int, list[int]] = {}
        for _, _, need in self._needs:
            consumed = None
            if (need.alternative.on_base(base, self._task.table, self._task.switches).open >> local) & 1:
                consumed = need.alternative.consumption(base, local, self._task.switches)
            for counter, nanos in needed(base, local, consumed):
                found.setdefault(counter, []).append(nanos)
        return tuple((counter, tuple(amounts)) for counter, amounts in found.items() if counter >= 0)

    # Keys.

    def _cluster_state(self, search: Search, cluster: _Cluster, free: int, start: int) -> _Key:
        parts: list[Any] = [cluster.kind]
        for mask in cluster.masks:
            open_ = mask & free
            parts.append((open_.bit_count(), (open_ >> start).bit_count()))
        for number, counter in cluster.counters:
            parts.append(search.left[number][counter])
        if cluster.values:
            for claim, states in enumerate(search.constraints):
                for index, state in enumerate(states):
                    if not state.count:
                        continue
                    for value in state.bound():
                        local = cluster.values.get((state.plan.attribute, value))
                        if local is not None:
                            parts.append((claim, index, local))
        return tuple(parts)

    def key(self, search: Search, claim: int, request: int, need: Need, index: int, start: int) -> _Key:
        """Equal for states of which all or none can be completed."""
        free = ~search.taken
        states = sorted((self._cluster_state(search, cluster, free, start) for cluster in self._clusters), key=repr)
        shares = tuple(sorted((p, tuple(sorted(c.items()))) for p, c in search.consumed.items()))
        counts = tuple(state.count > 0 for states_ in search.constraints for state in states_)
        return (
            claim,
            request,
            id(need),
            index,
            len(search.chosen[claim]),
            tuple(states),
            shares,
            tuple(sorted(search.shares.items())),
            counts,
        )

    def twin(self, search: Search, need: Need, position: int, start: int) -> _Key | None:
        """Equal for candidates of which one stands for all."""
        where = self._where.get(position)
        if where is None:
            return None
        cluster = self._clusters[where[0]]
        return (*self._cluster_state(search, cluster, ~search.taken, start), where[1])

    # Counting.

    def refuted(self, search: Search, claim: int, request: int, need: Need, index: int, start: int) -> bool:
        """Whether counting shows that the open requests cannot all be served."""
        free = ~search.taken
        groups: dict[int, int] = {}
        union = total = 0
        demands = self._demands(claim, request)
        multi = search.multi
        first = True
        for number, needs in [(claim, [need]), *demands]:
            best: tuple[int, int] | None = None
            for candidate in needs:
                count = candidate.count - (index if first else 0)
                open_ = candidate.candidates & (free | multi)
                if first:
                    open_ = open_ >> start << start
                for state in search.constraints[number]:
                    if state.plan.covers(candidate.alternative):
                        open_ = search.narrow(state, open_)
                if open_.bit_count() >= count:
                    best = count, open_
                    if len(needs) == 1:
                        break
            first = False
            if best is None:
                return True
            if len(needs) == 1:
                count, open_ = best
                if not open_ & multi:
                    groups[open_] = groups.get(open_, 0) + count
                    union |= open_
                    total += count
        if total > union.bit_count():
            return True
        masks = list(groups.items())
        for mask, _ in masks:
            inside = sum(other for mask_, other in masks if not mask_ & ~mask)
            if inside > mask.bit_count():
                return True
        return self._values_short(search, claim, need, index, start, demands, free)

    def _demands(self, claim: int, request: int) -> list[tuple[int, list[Need]]]:
        known = self._remaining.get((claim, request))
        if known is None:
            known = self._remaining[(claim, request)] = [
                (number, list(needs.needs))
                for number, requests in enumerate(self._task.claims)
                for index, needs in enumerate(requests)
                if (number, index) > (claim, request)
            ]
        return known

    def _values_short(
        self,
        search: Search,
        claim: int,
        need: Need,
        index: int,
        start: int,
        demands: list[tuple[int, list[Need]]],
        free: int,
    ) -> bool:
        """Whether a constraint has no value (or too few values) left for the requests under it."""
        usable = free | search.multi
        for number, states in enumerate(search.constraints):
            for state in states:
                covered: list[tuple[int, int]] = []
                if number == claim and state.plan.covers(need.alternative):
                    covered.append((need.count - index, need.candidates & usable))
                for owner, needs in demands:
                    if owner == number and len(needs) == 1 and state.plan.covers(needs[0].alternative):
                        covered.append((needs[0].count, needs[0].candidates & usable))
                if not covered:
                    continue
                union = 0
                for _, mask in covered:
                    union |= mask
                values = search.values_in(state.plan.attribute, union)
                if state.plan.distinct:
                    if len(values.keys() - state.used) < sum(count for count, _ in covered):
                        return True
                elif state.count == 0 and not any(_enough(covered, mask, search.multi) for mask in values.values()):
                    return True
        return False


def _enough(covered: list[tuple[int, int]], mask: int, multi: int) -> bool:
    """Whether devices with one value can serve all requests that have to share it."""
    total = union = 0
    sums: dict[int, int] = {}
    for count, candidates in covered:
        open_ = candidates & mask
        if open_.bit_count() < count:
            return False
        if not open_ & multi:
            total += count
            union |= open_
            sums[open_] = sums.get(open_, 0) + count
    if total > union.bit_count():
        return False
    return all(count <= open_.bit_count() for open_, count in sums.items())


def may_fit(snapshot: Snapshot, plan: Plan, node: Node, view: NodeView) -> bool:
    """The necessary conditions for a countable plan, without preparing a search.

    False is a proof; True means that only a search can tell (or that an error might surface).
    """
    upstream = plan.policy == "upstream"
    if plan.too_large is not None or (upstream and view.fatal is not None):
        return upstream
    switches, table = snapshot.switches, snapshot.shared.selectors
    skipping = switches.OptionalNodeOperations and "DRAOptionalNodeOperations" not in node.features
    pools = [(seen, snapshot.state(seen)) for seen in view.pools]
    shareable = 0
    for seen in view.pools:
        shareable |= (seen.view.base.multi if upstream else seen.view.base.reusable) << seen.offset
    groups: dict[int, int] = {}
    for claim in plan.claims:
        covered: list[list[tuple[int, int]]] = [[] for _ in claim.constraints]
        for request in claim.requests:
            single = len(request.alternatives) == 1
            enough = False
            for alternative in request.alternatives:
                open_ = 0
                for seen, state in pools:
                    base = seen.view.base
                    masks = alternative.on_base(base, table, switches)
                    if upstream and (masks.failing & seen.targets or masks.uncountable & seen.here):
                        return True
                    free = masks.open & seen.here
                    if skipping:
                        free &= ~base.skip
                    if not alternative.admin:
                        free &= ~(state.busy if upstream else state.busy_kept) & state.fitting(upstream)
                        if not upstream:
                            free &= ~short(alternative, base, state, switches)
                    open_ |= free << seen.offset
                if open_.bit_count() < alternative.count:
                    continue
                enough = True
                if not single:
                    break
                for number, constraint in enumerate(claim.constraints):
                    if constraint.covers(alternative):
                        covered[number].append((alternative.count, open_))
                if not alternative.admin and not open_ & shareable:
                    groups[open_] = groups.get(open_, 0) + alternative.count
            if not enough:
                return False
        if not (switches.ListTypeAttributes or plan.derived) and not all(
            constraint.distinct or _some_value(constraint.attribute, needs, view, shareable)
            for constraint, needs in zip(claim.constraints, covered, strict=True)
            if needs
        ):
            return False
    if len(groups) == 1:
        return all(count <= mask.bit_count() for mask, count in groups.items())
    return all(
        sum(count for other, count in groups.items() if not other & ~mask) <= mask.bit_count() for mask in groups
    )


def _some_value(attribute: str, needs: list[tuple[int, int]], view: NodeView, shareable: int) -> bool:
    """Whether some value of the attribute has enough devices for all requests that must agree on it."""
    values: dict[Scalar, int] = {}
    for seen in view.pools:
        for value, mask in seen.view.base.values_of(attribute).items():
            values[value] = values.get(value, 0) | mask << seen.offset
    return any(_enough(needs, mask, shareable) for mask in values.values())
