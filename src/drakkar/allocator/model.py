"""The choice of devices on one node as linear rows over yes-or-no variables, for a solver.

One variable says that a position serves an alternative, one that an alternative of ``firstAvailable`` is taken, one
that the devices of a matchAttribute constraint have a value. A solution of the rows is a choice of devices and the
other way round; where the rules of the search cannot be said exactly in rows, there is no model.

Source: spec/engine.md section 4, stage 3.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import gcd
from typing import Final

from drakkar.allocator.needs import Need, NodeTask
from drakkar.allocator.outcomes import Fault
from drakkar.allocator.plan import MAX_RESULTS
from drakkar.allocator.shares import needed
from drakkar.inventory.devices import Scalar
from drakkar.inventory.pools import bits

#: Largest number in a row. Solvers allow each variable an error of 1e-6; below this it cannot add up to one half.
LARGEST: Final = 10_000
#: Largest number of variables; a node with more is not worth the time it takes to write the model down.
MOST_VARIABLES: Final = 20_000


@dataclass(frozen=True, slots=True)
class Row:
    """``low`` ≤ sum of coefficient times variable ≤ ``high``; None for no limit."""

    terms: tuple[tuple[int, int], ...]
    low: int | None
    high: int | None


@dataclass(slots=True, eq=False)
class Slot:
    """One alternative of one request."""

    claim: int
    request: int
    rank: int
    need: Need
    #: Position → variable, ascending.
    picks: dict[int, int]
    #: Variable that is true when the alternative is taken; None for the only one.
    taken: int | None


@dataclass(slots=True, eq=False)
class Model:
    """Variables are numbered from 0; ``slots`` are in the order of the search."""

    size: int
    rows: list[Row]
    slots: list[Slot]


class Inexact(Exception):
    """The problem has parts that rows cannot say."""


def build(task: NodeTask) -> Model | None:
    """The model of a prepared node; None where it would not say the same as the search."""
    try:
        return _Builder(task).build()
    except (Inexact, Fault):
        return None


class _Builder:
    def __init__(self, task: NodeTask) -> None:
        self.task = task
        self.upstream = task.policy == "upstream"
        self.size = 0
        self.rows: list[Row] = []
        self.slots: list[Slot] = []

    def build(self) -> Model:
        task = self.task
        switches = task.switches
        bases = [seen.view.base for seen in task.view.pools]
        if (
            task.plan.derived
            or switches.ListTypeAttributes
            or (switches.CompatibilityGroups and any(base.groups for base in bases))
            or any(not base.simple_names for base in bases)
        ):
            raise Inexact
        for claim, requests in enumerate(task.claims):
            for request, entry in enumerate(requests):
                self._request(claim, request, entry.needs)
        self._once()
        self._constraints()
        self._amounts()
        return Model(self.size, self.rows, self.slots)

    def _variable(self) -> int:
        if self.size == MOST_VARIABLES:
            raise Inexact
        self.size += 1
        return self.size - 1

    def _request(self, claim: int, request: int, needs: tuple[Need, ...]) -> None:
        chosen: list[int] = []
        for rank, need in enumerate(needs):
            if need.alternative.admin or need.failing:
                raise Inexact
            if need.every is None:
                positions = list(bits(need.candidates))
            else:
                if self.upstream and self.task.plan.claims[claim].constraints:
                    raise Inexact
                positions = [p for p in need.every if self._usable(need, p)]
            picks = {position: self._variable() for position in positions}
            taken = None if len(needs) == 1 else self._variable()
            self.slots.append(Slot(claim, request, rank, need, picks, taken))
            # An empty list of mode All is no solution.
            count = need.count if need.every is None else max(1, len(need.every))
            terms = [(variable, 1) for variable in picks.values()]
            if taken is None:
                self._row(terms, count, count)
            else:
                chosen.append(taken)
                self._row([*terms, (taken, -count)], 0, 0)
        if chosen:
            self._row([(variable, 1) for variable in chosen], 1, 1)

    def _usable(self, need: Need, position: int) -> bool:
        number, local = self.task.view.places[position]
        state = self.task.states[number]
        busy = state.busy if self.upstream else state.busy_kept
        return not (need.refused >> position & 1 or busy >> local & 1)

    def _row(self, terms: list[tuple[int, int]], low: int | None, high: int | None) -> None:
        largest = max((abs(c) for _, c in terms), default=0)
        if max(largest, abs(low or 0), abs(high or 0)) > LARGEST:
            raise Inexact
        self.rows.append(Row(tuple(terms), low, high))

    def _once(self) -> None:
        """A device goes to one request, unless it can be shared; a claim has a limited number of results."""
        users: dict[int, list[int]] = defaultdict(list)
        results: dict[int, list[int]] = defaultdict(list)
        for slot in self.slots:
            for position, variable in slot.picks.items():
                results[slot.claim].append(variable)
                if not self._multi(position):
                    users[position].append(variable)
        for variables in users.values():
            if len(variables) > 1:
                self._row([(variable, 1) for variable in variables], None, 1)
        for variables in results.values():
            if len(variables) > MAX_RESULTS:
                self._row([(variable, 1) for variable in variables], None, MAX_RESULTS)

    def _multi(self, position: int) -> bool:
        number, local = self.task.view.places[position]
        base = self.task.view.pools[number].view.base
        return bool((base.multi if self.upstream else base.reusable) >> local & 1)

    def _constraints(self) -> None:
        for claim, planned in enumerate(self.task.plan.claims):
            for constraint in planned.constraints:
                values: dict[Scalar, list[tuple[int, list[int]]]] = defaultdict(list)
                for slot in self.slots:
                    if slot.claim != claim or not constraint.covers(slot.need.alternative):
                        continue
                    mine: dict[Scalar, list[int]] = defaultdict(list)
                    for position, variable in slot.picks.items():
                        value = self._value(position, constraint.attribute)
                        if value is None or value[0] == "none":
                            # A list has no value to compare: only a lone one could pass.
                            if value is not None:
                                raise Inexact
                            self._row([(variable, 1)], 0, 0)
                        else:
                            mine[value].append(variable)
                    for value, variables in mine.items():
                        values[value].append((slot.need.count, variables))
                if constraint.distinct:
                    for groups in values.values():
                        self._row([(v, 1) for _, variables in groups for v in variables], None, 1)
                    continue
                chosen: list[int] = []
                for groups in values.values():
                    value_taken = self._variable()
                    chosen.append(value_taken)
                    for count, variables in groups:
                        self._row([*((v, 1) for v in variables), (value_taken, -count)], None, 0)
                self._row([(v, 1) for v in chosen], None, 1)

    def _value(self, position: int, attribute: str) -> Scalar | None:
        number, local = self.task.view.places[position]
        return self.task.view.pools[number].view.base.scalars(attribute)[local]

    def _amounts(self) -> None:
        """Counters and capacities."""
        counters: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        capacities: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
        left: dict[tuple[int, str], int] = {}
        fixed: dict[int, list[int]] = defaultdict(list)
        for slot in self.slots:
            for position, variable in slot.picks.items():
                fixed[position].append(variable)
                self._shares(slot, position, variable, counters, capacities, left)
        for position, variables in fixed.items():
            number, local = self.task.view.places[position]
            base, state = self.task.view.pools[number].view.base, self.task.states[number]
            uses = base.draws()[local] if base.declared else ()
            if not uses or (base.multi & state.shared) >> local & 1:
                continue
            if self.upstream and state.negative:
                raise Inexact
            paying = variables
            if self._multi(position):
                # Its counters are paid once, whoever shares it.
                once = self._variable()
                for variable in variables:
                    self._row([(variable, 1), (once, -1)], None, 0)
                paying = [once]
            for counter, nanos in uses:
                counters[number, counter] += [(variable, nanos) for variable in paying]
        for (number, counter), terms in counters.items():
            state = self.task.states[number]
            residual = state.residual if self.upstream else state.residual_kept
            self._at_most(terms, residual[counter])
        for key, terms in capacities.items():
            self._at_most(terms, left[key])

    def _shares(
        self,
        slot: Slot,
        position: int,
        variable: int,
        counters: dict[tuple[int, int], list[tuple[int, int]]],
        capacities: dict[tuple[int, str], list[tuple[int, int]]],
        left: dict[tuple[int, str], int],
    ) -> None:
        number, local = self.task.view.places[position]
        base, state = self.task.view.pools[number].view.base, self.task.states[number]
        multi = base.multi >> local & 1
        held = state.consumed.get(local, {})
        consumed = None
        if multi or held:
            consumed = slot.need.alternative.consumption(base, local, self.task.switches)
            if consumed is None:
                self._row([(variable, 1)], 0, 0)
                return
            for name, nanos in consumed.nanos.items():
                key = position, name
                left[key] = consumed.whole[name] - held.get(name, 0)
                if self._multi(position):
                    capacities[key].append((variable, nanos))
                elif nanos > left[key]:
                    self._row([(variable, 1)], 0, 0)
        if not self.upstream:
            for counter, nanos in needed(base, local, consumed):
                if counter < 0:
                    self._row([(variable, 1)], 0, 0)
                else:
                    counters[number, counter].append((variable, nanos))

    def _at_most(self, terms: list[tuple[int, int]], limit: int) -> None:
        """A row in the largest unit that keeps it exact."""
        terms = [(variable, nanos) for variable, nanos in terms if nanos]
        if sum(nanos for _, nanos in terms) <= limit:
            return
        unit = gcd(*(nanos for _, nanos in terms))
        self._row([(variable, nanos // unit) for variable, nanos in terms], None, limit // unit)
