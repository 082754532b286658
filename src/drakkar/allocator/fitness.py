"""Best fit: which of several possible devices spoils least for those who come later (policy ``drakkar``).

Devices that draw on the same counters are partitions of one thing (a GPU, a pod of hosts). Giving one out makes others
impossible. What a choice *loses* is the sum of the weights of the devices that could be given out before it and cannot
after it; the weight of a device is its size, as a share of what the counters hold, by the number of devices of its kind
in the block. Candidates that lose least are taken, on a node and among nodes.

A *block* is a set of devices connected by counters. Blocks of equal geometry (eight GPUs of one model) share what was
worked out for a state, so a decision costs a look at each block.

Source: spec/engine.md section 7.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from drakkar.allocator.needs import Need, NodeTask
from drakkar.allocator.search import Search
from drakkar.allocator.shares import needed
from drakkar.inventory.pools import Base, BaseUsage, Form, Uses, bits

#: States that a geometry remembers.
_KEPT: Final = 4096
#: Elements of the largest comparison that is made in one step.
_AT_ONCE: Final = 200_000
_INT64: Final = 1 << 62

#: What was left of each counter, in its unit, and one bit per device that nothing else stands against.
_State = tuple[tuple[int, ...], int]


class Geometry:
    """What the devices of a block draw, without names; blocks that are alike share one."""

    __slots__ = ("__weakref__", "_cache", "_use", "_weights")

    def __init__(self, uses: tuple[tuple[tuple[int, int], ...], ...], declared: tuple[int, ...]) -> None:
        self._use = np.zeros((len(uses), len(declared)), dtype=np.int64)
        for row, draws in enumerate(uses):
            for counter, units in draws:
                self._use[row, counter] += units
        kinds = Counter(_kind(draws) for draws in uses)
        sizes = [sum(units / max(1, declared[counter]) for counter, units in draws) for draws in uses]
        self._weights = np.array([size / kinds[_kind(draws)] for size, draws in zip(sizes, uses, strict=True)])
        self._cache: dict[Any, Any] = {}

    def losses(self, state: _State) -> tuple[float, ...]:
        """Per device, what taking it alone would lose; only meaningful for devices that can be taken."""
        found = self._cache.get(state)
        if found is None:
            left, open_ = self._read(state)
            before = open_ & (self._use <= left).all(axis=1)
            now = float(self._weights[before].sum())
            count, counters = self._use.shape
            if count * count * counters <= _AT_ONCE:
                after = (self._use[None, :, :] <= (left - self._use)[:, None, :]).all(axis=2) & before[None, :]
                np.fill_diagonal(after, val=False)
                kept = after @ self._weights
            else:
                kept = np.zeros(count)
                for row in np.flatnonzero(before):
                    after_one = before & (self._use <= left - self._use[row]).all(axis=1)
                    after_one[row] = False
                    kept[row] = self._weights[after_one].sum()
            # Sums of other orders differ in the last digits, which must not decide.
            found = tuple(round(now - float(value), 9) for value in kept)
            self._keep(state, found)
        return found

    def value(self, state: _State) -> float:
        """The weight of all that can still be given out."""
        key = ("value", state)
        found = self._cache.get(key)
        if found is None:
            left, open_ = self._read(state)
            found = float(self._weights[open_ & (self._use <= left).all(axis=1)].sum())
            self._keep(key, found)
        return found

    def _read(self, state: _State) -> tuple[Any, Any]:
        left, mask = state
        open_ = np.array([bool(mask >> row & 1) for row in range(len(self._weights))])
        return np.array(left, dtype=np.int64), open_

    def _keep(self, key: Any, found: Any) -> None:
        if len(self._cache) >= _KEPT:
            self._cache.clear()
        self._cache[key] = found


def _kind(draws: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """Equal for devices of one size, wherever on the parent they lie."""
    return tuple(sorted(units for _, units in draws))


@dataclass(slots=True, eq=False)
class Block:
    """One connected set of devices of a pool, by positions."""

    geometry: Geometry
    mask: int
    positions: tuple[int, ...]
    rows: dict[int, int]
    #: Numbers of the counters, and the unit in which the geometry counts each.
    counters: tuple[int, ...]
    units: tuple[int, ...]

    def state(self, left: list[int], open_: int) -> _State:
        """The block with this much left of the pool's counters, and these positions open."""
        amounts = tuple(left[c] // unit for c, unit in zip(self.counters, self.units, strict=True))
        mask = 0
        for row, position in enumerate(self.positions):
            mask |= (open_ >> position & 1) << row
        return amounts, mask


_GEOMETRIES: Final[WeakValueDictionary[Any, Geometry]] = WeakValueDictionary()
_BLOCKS: Final[WeakKeyDictionary[Form, tuple[Block, ...]]] = WeakKeyDictionary()


def blocks_of(form: Form) -> tuple[Block, ...]:
    """The blocks of a pool; none where nothing draws on counters."""
    found = _BLOCKS.get(form)
    if found is None:
        found = _BLOCKS[form] = tuple(_find_blocks(form))
    return found


def _find_blocks(form: Form) -> Iterable[Block]:
    # Devices that several can share are not partitions: what is left of them depends on the shares.
    partitions = form.with_counters & ~(form.multi & ~form.single)
    members = [p for p in bits(partitions) if any(nanos for _, nanos in form.draws[p])]
    block_of: dict[int, list[int]] = {}
    for position in members:
        merged = [position]
        counters = {c for c, nanos in form.draws[position] if nanos}
        for other in {id(block_of[c]): block_of[c] for c in counters if c in block_of}.values():
            merged += other
        for p in merged:
            counters |= {c for c, nanos in form.draws[p] if nanos}
        for counter in counters:
            block_of[counter] = merged
    for positions in {id(found): found for found in block_of.values()}.values():
        yield from _make_block(form, sorted(positions))


def _make_block(form: Form, positions: list[int]) -> Iterable[Block]:
    counters = sorted({c for p in positions for c, nanos in form.draws[p] if nanos})
    units = [gcd(form.declared[c], *(n for p in positions for k, n in form.draws[p] if k == c)) or 1 for c in counters]
    number = {c: index for index, c in enumerate(counters)}
    uses = tuple(
        tuple((number[c], nanos // units[number[c]]) for c, nanos in form.draws[p] if nanos) for p in positions
    )
    declared = tuple(form.declared[c] // unit for c, unit in zip(counters, units, strict=True))
    if max((*declared, *(units_ for draws in uses for _, units_ in draws))) >= _INT64:
        return
    geometry = _GEOMETRIES.get((uses, declared))
    if geometry is None:
        geometry = _GEOMETRIES[uses, declared] = Geometry(uses, declared)
    mask = sum(1 << p for p in positions)
    rows = {p: row for row, p in enumerate(positions)}
    yield Block(geometry, mask, tuple(positions), rows, tuple(counters), tuple(units))


def open_now(base: Base, state: BaseUsage) -> int:
    """Positions that nothing but the counters stands against: not held, not tainted."""
    return ~(state.busy_kept | base.tainted)


class _Greedy:
    """Takes, request by request, the device that loses least."""

    def __init__(self, task: NodeTask) -> None:
        self.task = task
        self.bases = [seen.view.base for seen in task.view.pools]
        self.left = [list(state.residual_kept) for state in task.states]
        self.taken = 0
        self.lost: float = 0.0
        self.drawing = False
        self.choices: list[tuple[int, int, int, tuple[int, ...]]] = []

    def copy(self) -> _Greedy:
        other = _Greedy(self.task)
        other.drawing = self.drawing
        other.left = [list(left) for left in self.left]
        other.taken, other.lost, other.choices = self.taken, self.lost, list(self.choices)
        return other

    def requests(self, claim: int, among: dict[int, int] | None) -> bool:
        """All requests of a claim; ``among`` limits the positions of the requests that a constraint covers."""
        for request, entry in enumerate(self.task.claims[claim]):
            for rank, need in enumerate(entry.needs):
                limit = -1 if among is None else among.get(id(need), -1)
                positions = self._request(need, limit)
                if positions is not None:
                    self.choices.append((claim, request, rank, positions))
                    break
            else:
                return False
        return True

    def _request(self, need: Need, limit: int) -> tuple[int, ...] | None:
        if need.every is not None:
            for position in need.every:
                self._take(need, position, 0.0)
            return need.every
        picked: list[int] = []
        taken, left, lost = self.taken, [list(left) for left in self.left], self.lost
        for _ in range(need.count):
            best = self._best(need, need.candidates & limit & ~self.taken)
            if best is None:
                self.taken, self.left, self.lost = taken, left, lost
                return None
            self._take(need, *best)
            picked.append(best[0])
        return tuple(sorted(picked))

    def _best(self, need: Need, candidates: int) -> tuple[int, float] | None:
        best: tuple[float, int] | None = None
        for number, seen in enumerate(self.task.view.pools):
            base = self.bases[number]
            mine = candidates >> seen.offset & ((1 << len(base.devices)) - 1)
            if not mine:
                continue
            open_ = open_now(base, self.task.states[number]) & ~(self.taken >> seen.offset)
            for block in blocks_of(base.form):
                wanted = mine & block.mask
                if not wanted:
                    continue
                self.drawing = True
                mine &= ~wanted
                losses = block.geometry.losses(block.state(self.left[number], open_ | wanted))
                for local in bits(wanted):
                    if self._fits(need, number, local):
                        found = losses[block.rows[local]], local + seen.offset
                        best = found if best is None else min(best, found)
            if mine:
                found = 0.0, (mine & -mine).bit_length() - 1 + seen.offset
                best = found if best is None else min(best, found)
        return None if best is None else (best[1], best[0])

    def _uses(self, need: Need, number: int, local: int) -> Uses:
        """What the device draws for the request, its share of a parent included."""
        base = self.bases[number]
        uses = base.draws()[local]
        if local in base.drawn():
            uses += needed(base, local, need.alternative.consumption(base, local, self.task.switches))
        return uses

    def _fits(self, need: Need, number: int, local: int) -> bool:
        left = self.left[number]
        return all(left[counter] >= nanos for counter, nanos in self._uses(need, number, local))

    def _take(self, need: Need, position: int, loss: float) -> None:
        number, local = self.task.view.places[position]
        self.taken |= 1 << position
        self.lost += loss
        if self.bases[number].declared:
            for counter, nanos in self._uses(need, number, local):
                self.left[number][counter] -= nanos


def best_fit(task: NodeTask) -> Search | None:
    """A solution of least loss, request by request; None when there is nothing to prefer or the search has to decide.

    Every solution has passed the rules of the search. Alternatives keep their order. A claim may have one
    matchAttribute constraint, of which every value is tried.
    """
    partitions = 0
    for seen in task.view.pools:
        partitions |= (seen.view.base.with_counters & ~seen.view.base.reusable) << seen.offset
    needs = [need for claim in task.claims for request in claim for need in request.needs]
    if not any(need.candidates & partitions for need in needs) or any(need.alternative.admin for need in needs):
        return None
    found = _Greedy(task)
    for claim, planned in enumerate(task.plan.claims):
        if not planned.constraints:
            if not found.requests(claim, None):
                return None
            continue
        constraint = planned.constraints[0]
        if len(planned.constraints) > 1 or constraint.distinct or task.plan.derived or task.switches.ListTypeAttributes:
            return None
        needs = [need for request in task.claims[claim] for need in request.needs]
        covered = [need for need in needs if constraint.covers(need.alternative)]
        if any(need.every is not None for need in covered):
            return None
        best: _Greedy | None = None
        for values in _masks_by_value(task, constraint.attribute):
            attempt = found.copy()
            if attempt.requests(claim, {id(need): values for need in covered}) and (
                best is None or (_ranks(attempt), attempt.lost) < (_ranks(best), best.lost)
            ):
                best = attempt
        if best is None:
            return None
        found = best
    if not found.drawing:
        return None
    search = Search(task, 0, None)
    return search if search.replay(found.choices) else None


def _ranks(found: _Greedy) -> list[int]:
    return [rank for _, _, rank, _ in found.choices]


def _masks_by_value(task: NodeTask, attribute: str) -> list[int]:
    masks: dict[Any, int] = {}
    for seen in task.view.pools:
        for value, mask in seen.view.base.values_of(attribute).items():
            if value[0] != "none":
                masks[value] = masks.get(value, 0) | mask << seen.offset
    return list(masks.values())


def loss_of(task: NodeTask, search: Search) -> float:
    """What a solution loses, over all blocks that it touches."""
    touched: dict[int, int] = {}
    for taken in (one for chosen in search.chosen for one in chosen):
        if not taken.free:
            number, local = task.view.places[taken.position]
            touched[number] = touched.get(number, 0) | 1 << local
    total = 0.0
    for number, mask in touched.items():
        base, state = task.view.pools[number].view.base, task.states[number]
        open_ = open_now(base, state)
        for block in blocks_of(base.form):
            if block.mask & mask:
                before = block.geometry.value(block.state(state.residual_kept, open_))
                after = block.geometry.value(block.state(search.left[number], open_ & ~mask))
                total += before - after
    return round(total, 9)
