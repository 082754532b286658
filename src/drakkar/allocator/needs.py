"""A plan on one node: for every request the devices that could serve it, as bit sets.

Positions are those of the node's view, so the lowest bit is the device upstream tries first. ``failing``
marks positions at which upstream's search would end in an error; they are kept apart, because it must
be raised exactly when the search gets there, and not at all if it never does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from drakkar.allocator.outcomes import Fault
from drakkar.allocator.plan import MAX_RESULTS, Alternative, ClaimPlan, Plan, drivers_of
from drakkar.allocator.shares import short
from drakkar.inventory.pools import BaseUsage, bits
from drakkar.inventory.snapshot import Node, NodeView, Snapshot
from drakkar.inventory.switches import Switches


@dataclass(slots=True, eq=False)
class Need:
    """One alternative on one node."""

    alternative: Alternative
    count: int
    #: Positions that can be taken as long as nothing else is (not used in mode All).
    candidates: int
    #: Positions where looking at the device is an error.
    failing: int
    #: Mode All: the positions to take, in order.
    every: tuple[int, ...] | None = None
    #: Positions refused whatever else is chosen (taints, features); in mode All they fail the request.
    refused: int = 0


@dataclass(slots=True, eq=False)
class RequestNeeds:
    """A request on one node."""

    needs: tuple[Need, ...]
    ranked: bool


class NodeTask:
    """Everything the search needs to know about one node."""

    __slots__ = (
        "claims",
        "incomplete",
        "node",
        "plan",
        "policy",
        "snapshot",
        "states",
        "switches",
        "table",
        "too_large",
        "view",
    )

    def __init__(self, snapshot: Snapshot, plan: Plan, node: Node, view: NodeView) -> None:
        self.snapshot = snapshot
        self.switches: Switches = snapshot.switches
        self.table = snapshot.shared.selectors
        self.plan = plan
        self.policy = plan.policy
        self.node = node
        self.view = view
        self.states: list[BaseUsage] = [snapshot.state(seen) for seen in view.pools]
        #: Name of the first claim number with more than the permitted results (policy ``drakkar``).
        self.too_large: int | None = None
        #: Mode All over a pool that is not whole: claim number, request, text (policy ``drakkar``).
        self.incomplete: tuple[int, str, str] | None = None
        self.claims: list[list[RequestNeeds]] = []

    def prepare(self) -> None:
        """Works out all requests in upstream's order; raises :class:`Fault` where upstream would."""
        if self.view.fatal is not None and self.policy == "upstream":
            raise Fault("node-selector", self.view.fatal)
        for number, claim in enumerate(self.plan.claims):
            self.claims.append(self._claim(number, claim))

    def _claim(self, number: int, claim: ClaimPlan) -> list[RequestNeeds]:
        found: list[RequestNeeds] = []
        total = 0
        for request in claim.requests:
            if request.fault is not None:
                raise Fault(*request.fault)
            needs: list[Need] = []
            for alternative in request.alternatives:
                if alternative.fault is not None:
                    raise Fault(*alternative.fault)
                needs.append(self._all(number, alternative) if alternative.all_devices else self._exact(alternative))
            found.append(RequestNeeds(tuple(needs), request.ranked))
            total += min(need.count for need in needs)
        if total > MAX_RESULTS:
            if self.policy == "upstream":
                raise Fault("too-many-devices", f"the claim needs {total} devices, {MAX_RESULTS} are permitted")
            if self.too_large is None:
                self.too_large = number
        if claim.constraint_fault is not None:
            raise Fault(*claim.constraint_fault)
        return found

    def _exact(self, alternative: Alternative) -> Need:
        candidates = failing = 0
        upstream = self.policy == "upstream"
        for seen, state in zip(self.view.pools, self.states, strict=True):
            base = seen.view.base
            masks = alternative.on_base(base, self.table, self.switches)
            free = masks.open & seen.here
            if self.switches.OptionalNodeOperations and base.skip and not self._may_skip():
                free &= ~base.skip
            error = 0
            if upstream:
                error = (masks.failing & seen.targets) | (masks.uncountable & masks.passing & seen.here)
            if upstream or not alternative.admin:
                free &= state.fitting(upstream)
            if not alternative.admin:
                free &= ~(state.busy if upstream else state.busy_kept)
                error &= ~state.busy
                if not upstream:
                    free &= ~short(alternative, base, state, self.switches)
            candidates |= free << seen.offset
            failing |= error << seen.offset
        return Need(alternative, alternative.count, candidates, failing)

    def _may_skip(self) -> bool:
        return "DRAOptionalNodeOperations" in self.node.features

    def _all(self, claim: int, alternative: Alternative) -> Need:
        found = refused = 0
        upstream = self.policy == "upstream"
        broken = {entry.before: entry for entry in reversed(self.view.broken)} if upstream else {}
        for number, (seen, _) in enumerate(zip(self.view.pools, self.states, strict=True)):
            if number in broken:
                self._raise_broken(broken[number].view.status, broken[number].view.detail)
            base = seen.view.base
            masks = alternative.on_base(base, self.table, self.switches)
            usable = masks.passing & seen.here
            if upstream:
                error = (masks.failing & seen.targets) | (masks.uncountable & usable)
                if error:
                    self.raise_at(alternative, (error << seen.offset))
            else:
                usable &= ~masks.uncountable
            found |= (usable & ~masks.oversize) << seen.offset
            lost = masks.tainted | masks.refused
            if self.switches.OptionalNodeOperations and base.skip and not self._may_skip():
                lost |= base.skip
            refused |= lost << seen.offset
        last = broken.get(len(self.view.pools))
        if last is not None:
            self._raise_broken(last.view.status, last.view.detail)
        if not upstream and self.incomplete is None:
            drivers = drivers_of(alternative)
            for entry in self.view.broken:
                if not drivers or entry.pool.key[0] in drivers:
                    self.incomplete = (claim, alternative.name, entry.view.detail)
                    break
        every = tuple(bits(found))
        return Need(alternative, len(every), found, 0, every, refused)

    def _raise_broken(self, status: str, detail: str) -> None:
        raise Fault("all-incomplete-pool" if status == "incomplete" else "all-invalid-pool", detail)

    def raise_at(self, alternative: Alternative, failing: int) -> NoReturn:
        """Raises the error that looking at the first of these positions ends in."""
        position = (failing & -failing).bit_length() - 1
        number, local = self.view.places[position]
        base = self.view.pools[number].view.base
        record = base.devices[local]
        for owner, index, text in alternative.selectors:
            selector = self.table.selector(text)
            answer = selector.ask(record, self.table)
            if isinstance(answer, Exception):
                owner_name = alternative.class_name if owner == "class" else alternative.request
                what = "class" if owner == "class" else "claim request"
                raise Fault(
                    "cel-compile" if selector.program is None else "cel-runtime",
                    f"{what} {owner_name}: selector #{index} on device {record.slice.driver}/"
                    f"{record.slice.pool[1]}/{record.name}: {answer}",
                )
            if not answer:
                break
        alternative.consumption(base, local, self.switches)
        raise Fault("other", f"device {record.name} cannot be looked at")
