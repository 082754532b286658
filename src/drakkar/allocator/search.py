"""The search for the first solution in upstream's order.

Requests and claims stay in their order, devices in the order of the node's view, and the first complete
choice wins; so the choice is upstream's whenever a choice is reached. What differs is the work:
candidates are bit sets, so refused devices are never stepped on, and a subtree is not entered when
:mod:`drakkar.allocator.bounds` refutes it or an equal state has failed before.

Source: spec/allocation.md section 8 and 10, spec/engine.md section 4.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from drakkar.allocator.bounds import Bounds
from drakkar.allocator.capacity import Consumption
from drakkar.allocator.needs import Need, NodeTask
from drakkar.allocator.outcomes import Fault
from drakkar.allocator.plan import MAX_RESULTS, ConstraintPlan
from drakkar.allocator.shares import lacking, needed
from drakkar.inventory.devices import NO_SCALAR, DeviceRecord, Scalar, scalar_of, values_of
from drakkar.inventory.pools import Base, Uses, bits

FAIL: Final = 0
DONE: Final = 1
TOO_MANY: Final = 2

#: Dead ends after which the pruning search takes over from the optimistic one.
OPTIMISTIC_DEAD_ENDS: Final = 4


class BudgetSpent(Exception):
    """The search took more steps than it may."""


class SwitchToPruning(Exception):
    """The optimistic search met too many dead ends."""


@dataclass(slots=True, eq=False)
class Taken:
    """One device chosen for a request."""

    need: Need
    position: int
    #: What the choice consumes; only of devices that several can share.
    consumed: Consumption | None
    shared: bool
    #: Positions that are taken with it (one, unless several nodes publish the same name).
    mask: int
    uses: Uses
    grouped: bool
    #: Took nothing away (administrator access under policy ``drakkar``).
    free: bool


#: (pool number, counter set) → the groups open to newcomers, newest last; None = devices without groups only.
_Groups = dict[tuple[int, str], list[frozenset[str] | None]]
_NOTHING: Final[frozenset[Scalar]] = frozenset()


class ConstraintState:
    """The values that the devices chosen so far give a constraint."""

    __slots__ = ("_lists", "_plan", "count", "history", "used", "value", "values")

    def __init__(self, plan: ConstraintPlan, lists: bool) -> None:
        self._plan = plan
        self._lists = lists
        self.count = 0
        #: matchAttribute: the value all share (with lists: the values all have).
        self.value: Scalar | None = None
        self.values: frozenset[Scalar] = frozenset()
        self.history: list[frozenset[Scalar]] = []
        #: distinctAttribute: values that are taken.
        self.used: set[Scalar] = set()

    @property
    def plan(self) -> ConstraintPlan:
        """The constraint itself."""
        return self._plan

    def add(self, scalar: Scalar | None, values: frozenset[Scalar]) -> bool:
        """Counts a device in, or says no and changes nothing."""
        if self._lists:
            return self._add_set(values)
        if scalar is None:
            return False
        if self._plan.distinct:
            # Upstream compares the newcomer with the earlier ones, and a list compares with nothing.
            if scalar in self.used or (scalar is NO_SCALAR and self.count):
                return False
            self.used.add(scalar)
        elif self.count == 0:
            self.value = scalar
        elif scalar != self.value or scalar is NO_SCALAR:
            return False
        self.count += 1
        return True

    def _add_set(self, values: frozenset[Scalar]) -> bool:
        if not values:
            return False
        if self._plan.distinct:
            if not self.used.isdisjoint(values):
                return False
            self.used |= values
        else:
            joint = values if self.count == 0 else self.values & values
            if not joint:
                return False
            self.history.append(self.values)
            self.values = joint
        self.count += 1
        return True

    def bound(self) -> Iterable[Scalar]:
        """The values that matter for what may come next."""
        if self._plan.distinct:
            return self.used
        if self._lists:
            return self.values
        return () if self.value is None else (self.value,)

    def remove(self, scalar: Scalar | None, values: frozenset[Scalar]) -> None:
        """Takes back the device counted in last."""
        self.count -= 1
        if self._plan.distinct:
            if self._lists:
                self.used -= values
            elif scalar is not None:
                self.used.discard(scalar)
        elif self._lists:
            self.values = self.history.pop()
        elif self.count == 0:
            self.value = None


class Search:
    """One run over one node. Create a new one for each attempt."""

    def __init__(
        self,
        task: NodeTask,
        budget: int,
        bounds: Bounds | None,
        lifted: frozenset[str] = frozenset(),
        patient: bool = False,
    ) -> None:
        self.task = task
        #: Limits that are ignored, by the reason they would give; for finding out which one is to blame.
        self._no_counters = "counters-exhausted" in lifted
        self._no_capacity = "capacity-exhausted" in lifted
        self._no_constraints = "constraint-unsatisfied" in lifted
        #: Whether to go on without bounds however many dead ends there are.
        self._patient = patient
        self.steps = 0
        self.budget = budget
        #: None in the optimistic stage.
        self.bounds = bounds
        self._dead_ends = 0
        self._upstream = task.policy == "upstream"
        view = task.view
        self._places = view.places
        self.bases = [seen.view.base for seen in view.pools]
        self.offsets = [seen.offset for seen in view.pools]
        #: Positions that can be taken several times.
        self.multi = 0
        for seen in view.pools:
            base = seen.view.base
            self.multi |= (base.multi if self._upstream else base.reusable) << seen.offset
        #: Positions taken whole, by any claim, and per claim.
        self.taken = 0
        self._taken_in = [0] * len(task.claims)
        self._admin = any(
            need.alternative.admin for claim in task.claims for request in claim for need in request.needs
        )
        self.left = [list(state.residual if self._upstream else state.residual_kept) for state in task.states]
        self._blocked = [state.negative if self._upstream else bool(state.unknown) for state in task.states]
        #: Position → capacity → taken in this call, and how many shares were.
        self.consumed: dict[int, dict[str, int]] = {}
        self.shares: dict[int, int] = {}
        lists = task.switches.ListTypeAttributes
        self.constraints: list[list[ConstraintState]] = [
            [] if self._no_constraints else [ConstraintState(c, lists) for c in claim.constraints]
            for claim in task.plan.claims
        ]
        self._lists = lists
        self._derivations: dict[tuple[str, DeviceRecord], tuple[Scalar | None, frozenset[Scalar]]] = {}
        self._groups: _Groups | None = None
        if task.switches.CompatibilityGroups and any(base.groups for base in self.bases):
            self._groups = self._held_groups()
        self.chosen: list[list[Taken]] = [[] for _ in task.claims]
        #: Per claim and request, the number of the alternative in use.
        self.rank: list[list[int]] = [[0] * len(claim) for claim in task.claims]

    def run(self) -> bool:
        """Whether there is a solution; ``chosen`` and ``rank`` then hold the first."""
        return self._claim(0) == DONE

    def replay(self, choices: Iterable[tuple[int, int, int, tuple[int, ...]]]) -> bool:
        """Takes these positions (claim, request, rank, positions); whether all rules allow it."""
        for claim, request, rank, positions in choices:
            self.rank[claim][request] = rank
            need = self.task.claims[claim][request].needs[rank]
            wanted = len(need.every) if need.every is not None else need.count
            if len(positions) != wanted or not all(self._take(claim, need, p, must=False) for p in positions):
                return False
        return all(len(chosen) <= MAX_RESULTS for chosen in self.chosen)

    # The recursion.

    def _claim(self, claim: int) -> int:
        if claim == len(self.task.claims):
            return DONE
        return self._request(claim, 0)

    def _request(self, claim: int, request: int) -> int:
        self.steps += 1
        if self.steps > self.budget:
            raise BudgetSpent
        requests = self.task.claims[claim]
        if request == len(requests):
            return DONE if self._claim(claim + 1) == DONE else self._dead_end()
        needs = requests[request].needs
        if len(needs) == 1:
            return self._alternative(claim, request, 0)
        result = TOO_MANY
        for rank in range(len(needs)):
            self.rank[claim][request] = rank
            found = self._alternative(claim, request, rank)
            if found == DONE:
                return DONE
            if found == FAIL:
                result = FAIL
        return result

    def _alternative(self, claim: int, request: int, rank: int) -> int:
        need = self.task.claims[claim][request].needs[rank]
        if need.every is not None:
            if not need.every:
                return self._dead_end()
            return self._take_all(claim, request, need, 0)
        return self._pick(claim, request, need, 0, 0)

    def _take_all(self, claim: int, request: int, need: Need, index: int) -> int:
        every = need.every or ()
        if index == len(every):
            return self._request(claim, request + 1)
        if len(every) - index > MAX_RESULTS - len(self.chosen[claim]):
            return TOO_MANY
        position = every[index]
        if not self._take(claim, need, position, must=True):
            return self._dead_end()
        found = self._take_all(claim, request, need, index + 1)
        if found != DONE:
            self._undo(claim)
        return found

    def _pick(self, claim: int, request: int, need: Need, index: int, start: int) -> int:
        if index == need.count:
            return self._request(claim, request + 1)
        self.steps += 1
        if self.steps > self.budget:
            raise BudgetSpent
        missing = need.count - index
        if missing > MAX_RESULTS - len(self.chosen[claim]):
            return TOO_MANY
        if need.alternative.admin:
            open_ = need.candidates & ~self._taken_in[claim]
            failing = need.failing
        else:
            open_ = need.candidates & ~self.taken
            failing = need.failing & ~self.taken
        open_ = open_ >> start << start
        failing = failing >> start << start
        if not failing:
            for state in self.constraints[claim]:
                if state.plan.covers(need.alternative):
                    open_ = self.narrow(state, open_)
            if open_.bit_count() < missing:
                return self._dead_end()
        key = None
        bounds = self.bounds
        if bounds is not None and not bounds.errors_possible:
            key = bounds.key(self, claim, request, need, index, start)
            if key in bounds.failed:
                return bounds.failed[key]
            if bounds.refuted(self, claim, request, need, index, start):
                bounds.failed[key] = FAIL
                return FAIL
        tried: set[object] | None = set() if key is not None else None
        result = FAIL
        while open_ or failing:
            low = (open_ | failing) & -(open_ | failing)
            if failing & low:
                self.task.raise_at(need.alternative, failing & low)
            if not failing and open_.bit_count() < missing:
                break
            open_ ^= low
            position = low.bit_length() - 1
            if tried is not None and bounds is not None:
                twin = bounds.twin(self, need, position, start)
                if twin is not None:
                    if twin in tried:
                        continue
                    tried.add(twin)
            if not self._take(claim, need, position, must=False):
                continue
            result = self._pick(claim, request, need, index + 1, position + 1)
            if result == DONE:
                return DONE
            self._undo(claim)
            if result == TOO_MANY:
                break
        if key is not None and bounds is not None:
            bounds.failed[key] = result
        return result if result == TOO_MANY else self._dead_end()

    def _dead_end(self) -> int:
        if self.bounds is None and not self._patient:
            self._dead_ends += 1
            if self._dead_ends > OPTIMISTIC_DEAD_ENDS:
                raise SwitchToPruning
        return FAIL

    def narrow(self, state: ConstraintState, open_: int) -> int:
        """Candidates that the constraint would accept next."""
        attribute = state.plan.attribute
        if self._lists or self.task.plan.derived:
            return open_
        if state.plan.distinct:
            for value in state.used:
                open_ &= ~self.having(attribute, value)
            return open_
        if state.value is None:
            return open_
        return 0 if state.value is NO_SCALAR else open_ & self.having(attribute, state.value)

    def having(self, attribute: str, value: Scalar) -> int:
        mask = 0
        for base, offset in zip(self.bases, self.offsets, strict=True):
            mask |= base.having(attribute, value) << offset
        return mask

    def values_in(self, attribute: str, positions: int) -> dict[Scalar, int]:
        """Values of an attribute at the positions → where."""
        found: dict[Scalar, int] = {}
        for position in bits(positions):
            number, local = self._places[position]
            base = self.bases[number]
            for value in base.sets(attribute)[local] if self._lists else (base.scalars(attribute)[local],):
                if value is not None:
                    found[value] = found.get(value, 0) | 1 << position
        return found

    # Taking and giving back.

    def _take(self, claim: int, need: Need, position: int, must: bool) -> bool:
        number, local = self._places[position]
        base = self.bases[number]
        state = self.task.states[number]
        bit = 1 << position
        multi = bool((base.multi >> local) & 1)
        admin = need.alternative.admin
        if admin:
            if not multi and self._taken_in[claim] & bit:
                return False
        elif ((state.busy if self._upstream else state.busy_kept) >> local) & 1 or self.taken & bit:
            return False
        if need.refused & bit:
            return False
        # Under policy drakkar administrator access takes nothing, so it needs nothing to be left.
        free = admin and not self._upstream
        uses: Uses = ()
        shares: Uses = ()
        grouped = False
        already = multi and ((state.shared >> local) & 1 or position in self.shares)
        if not free and not already:
            if base.declared and not self._no_counters:
                uses = base.draws()[local]
                if uses and not self._counters_fit(number, uses):
                    return False
            grouped = self._groups is not None and bool(base.devices[local].device.consumesCounters)
            if grouped and not self._groups_fit(number, local):
                return False
        # Constraints come before capacity: in mode All a refusal by a constraint is an error that shows.
        if not self._constrain(claim, need, base, local, must):
            return False
        consumed: Consumption | None = None
        if not free and (multi or local in state.consumed):
            wanted = need.alternative.consumption(base, local, self.task.switches)
            if wanted is None or not self._capacity_fits(state.consumed.get(local), position, wanted):
                self._unconstrain(claim, need, base, local)
                return False
            consumed = wanted if multi else None
        if not free and not self._upstream and local in base.drawn() and not self._no_capacity:
            shares = needed(base, local, consumed)
            if lacking(self.left[number], uses, shares) is not None:
                self._unconstrain(claim, need, base, local)
                return False
            uses += shares
        mask = 0
        if not multi:
            mask = bit if base.simple_names else base.by_name[base.devices[local].name] << self.offsets[number]
            self._taken_in[claim] |= mask
            if self._upstream or not admin:
                self.taken |= mask
        elif not free:
            if not self.multi & bit:
                # Nobody can have a second share of it.
                mask = bit
                self.taken |= bit
            self.shares[position] = self.shares.get(position, 0) + 1
            if consumed is not None:
                sums = self.consumed.setdefault(position, {})
                for name, nanos in consumed.nanos.items():
                    sums[name] = sums.get(name, 0) + nanos
        left = self.left[number]
        for counter, nanos in uses:
            left[counter] -= nanos
        if grouped and self._groups is not None:
            self._join_groups(self._groups, number, local)
        self.chosen[claim].append(Taken(need, position, consumed, multi, mask, uses, grouped, free))
        return True

    def _undo(self, claim: int) -> None:
        taken = self.chosen[claim].pop()
        number, local = self._places[taken.position]
        base = self.bases[number]
        if taken.mask:
            self._taken_in[claim] &= ~taken.mask
            if not taken.free:
                self.taken &= ~taken.mask
                if self._admin:
                    # Administrator access shares a device with an earlier claim, which still holds it.
                    for claim_ in self.chosen:
                        for other in claim_:
                            if not other.free:
                                self.taken |= other.mask
        if taken.shared and not taken.free:
            count = self.shares[taken.position] - 1
            if count:
                self.shares[taken.position] = count
            else:
                del self.shares[taken.position]
            if taken.consumed is not None:
                sums = self.consumed[taken.position]
                for name, nanos in taken.consumed.nanos.items():
                    sums[name] -= nanos
        left = self.left[number]
        for counter, nanos in taken.uses:
            left[counter] += nanos
        if taken.grouped and self._groups is not None:
            for use in base.devices[local].device.consumesCounters or ():
                self._groups[(number, use.counterSet)].pop()
        self._unconstrain(claim, taken.need, base, local)

    def _unconstrain(self, claim: int, need: Need, base: Base, local: int) -> None:
        for state in self.constraints[claim]:
            if state.plan.covers(need.alternative):
                state.remove(*self._values(need, base, local, state))

    def _values(
        self, need: Need, base: Base, local: int, state: ConstraintState
    ) -> tuple[Scalar | None, frozenset[Scalar]]:
        attribute = state.plan.attribute
        if attribute in need.alternative.derived:
            return self._derived(need, base, local, attribute)
        if self._lists:
            return None, base.sets(attribute)[local]
        return base.scalars(attribute)[local], _NOTHING

    def _derived(self, need: Need, base: Base, local: int, attribute: str) -> tuple[Scalar | None, frozenset[Scalar]]:
        record = base.devices[local]
        text = need.alternative.derived[attribute]
        key = (text, record)
        found = self._derivations.get(key)
        if found is None:
            value = self.task.table.derive(text, record)
            if isinstance(value, Exception):
                if self._upstream:
                    kind = "cel-compile" if self.task.table.uncompilable(text) else "cel-runtime"
                    raise Fault(kind, f"derived attribute {attribute} on device {record.name}: {value}")
                found = (None, _NOTHING)
            else:
                found = (None, values_of(value)) if self._lists else (scalar_of(value), _NOTHING)
            self._derivations[key] = found
        return found

    def _constrain(self, claim: int, need: Need, base: Base, local: int, must: bool) -> bool:
        states = self.constraints[claim]
        for number, state in enumerate(states):
            if not state.plan.covers(need.alternative):
                continue
            if state.add(*self._values(need, base, local, state)):
                continue
            for earlier in states[:number]:
                if earlier.plan.covers(need.alternative):
                    earlier.remove(*self._values(need, base, local, earlier))
            if must and self._upstream:
                kind = "distinctAttribute" if state.plan.distinct else "matchAttribute"
                raise Fault(
                    "all-constraint",
                    f"request {need.alternative.name} takes all devices, but {kind} {state.plan.attribute} "
                    f"refuses device {base.devices[local].name}",
                )
            return False
        return True

    def _counters_fit(self, number: int, uses: Uses) -> bool:
        if self._blocked[number]:
            return False
        left = self.left[number]
        return all(left[counter] >= nanos for counter, nanos in uses)

    def short_counters(self, number: int, local: int, position: int) -> list[str]:
        """Counter sets that have too little left for the device (nothing else taken)."""
        base = self.bases[number]
        state = self.task.states[number]
        if not base.declared or ((base.multi & state.shared) >> local) & 1:
            return []
        uses = base.draws()[local]
        if uses and self._blocked[number]:
            if not self._upstream:
                return [f"all of pool {base.key[1]}, because nothing says what held device {state.unknown[0]} draws"]
            return [base.counter_names[c][0] for c, left in enumerate(self.left[number]) if left < 0]
        return [base.counter_names[counter][0] for counter, nanos in uses if self.left[number][counter] < nanos]

    def lacking_capacity(self, need: Need, number: int, local: int, position: int) -> list[tuple[str, int]]:
        """Capacities that have too little left for the request (nothing else taken), described, with what is left."""
        base, state = self.bases[number], self.task.states[number]
        if need.alternative.admin and not self._upstream:
            return []
        found: list[tuple[str, int]] = []
        wanted = None
        if (base.multi >> local) & 1:
            wanted = need.alternative.consumption(base, local, self.task.switches)
            if wanted is None:
                return []
            held = state.consumed.get(local, {})
            for name, nanos in wanted.nanos.items():
                if nanos + held.get(name, 0) > wanted.whole[name]:
                    found.append((f"{name} of {base.devices[local].name}", wanted.whole[name] - held.get(name, 0)))
        if not self._upstream and not found and local in base.drawn():
            paid = (base.multi & state.shared) >> local & 1
            uses = () if paid else base.draws()[local]
            counter = lacking(self.left[number], uses, needed(base, local, wanted))
            if counter is not None and counter < 0:
                found.append(
                    (f"{base.devices[local].name}, which draws on a counter that its pool does not declare", 0)
                )
            elif counter is not None:
                counter_set, name = base.counter_names[counter]
                found.append((f"{name} of {counter_set}", self.left[number][counter]))
        return found

    def _capacity_fits(self, held: dict[str, int] | None, position: int, wanted: Consumption) -> bool:
        if self._no_capacity:
            return True
        taken = self.consumed.get(position)
        for name, nanos in wanted.nanos.items():
            total = nanos + (held.get(name, 0) if held else 0) + (taken.get(name, 0) if taken else 0)
            if total > wanted.whole[name]:
                return False
        return True

    # Compatibility groups.

    def _held_groups(self) -> _Groups:
        groups: _Groups = {}
        for number, state in enumerate(self.task.states):
            for local in bits(state.held_groups):
                self._join_groups(groups, number, local)
            if not self._upstream:
                for counter_set, mine in state.lost_groups:
                    self._join(groups.setdefault((number, counter_set), []), mine)
        return groups

    def _join_groups(self, groups: _Groups, number: int, local: int) -> None:
        for use in self.bases[number].devices[local].device.consumesCounters or ():
            self._join(groups.setdefault((number, use.counterSet), []), frozenset(use.compatibilityGroups or ()))

    @staticmethod
    def _join(stack: list[frozenset[str] | None], mine: frozenset[str]) -> None:
        # The first member decides whether the set is for devices with groups or for those without.
        open_ = stack[-1] if stack else mine or None
        stack.append(open_ & mine if open_ is not None and mine else open_)

    def _groups_fit(self, number: int, local: int) -> bool:
        groups = self._groups or {}
        for use in self.bases[number].devices[local].device.consumesCounters or ():
            stack = groups.get((number, use.counterSet))
            if not stack:
                continue
            mine = frozenset(use.compatibilityGroups or ())
            open_ = stack[-1]
            if bool(mine) if open_ is None else mine.isdisjoint(open_):
                return False
        return True
