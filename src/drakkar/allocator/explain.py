"""From a node on which claims do not fit to the reason, and from many nodes to one.

For each alternative of each request the devices of the node go through the stages of
:data:`~drakkar.allocator.reasons.STAGES`; the stage that leaves too few is where the node ended. When every
request could be served alone, the search is repeated with constraints, capacities and counters lifted
one after the other; the first lift that helps names the stage.

Source: corpus/real-world/README.md ("Which word").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from drakkar.allocator.bounds import Bounds
from drakkar.allocator.needs import Need, NodeTask
from drakkar.allocator.outcomes import Fault
from drakkar.allocator.plan import MAX_RESULTS, Alternative, drivers_of
from drakkar.allocator.reasons import STAGES, Reason
from drakkar.allocator.search import BudgetSpent, Search
from drakkar.api.quantity import Quantity
from drakkar.api.resource.v1 import ResourceClaim
from drakkar.inventory.pools import bits

_RELAXED_BUDGET: Final = 2000
_LISTED: Final = 4
#: A pool that cannot be used because of a clash is as good as none.
_RANK: Final = {"identity-clash": 0, **{word: number for number, word in enumerate(STAGES)}}

_CURES: Final = {
    "class-missing": "create the DeviceClass, or name one of those that `kubectl get deviceclasses` lists",
    "no-slice-of-driver": "install the driver, or wait until it has published its devices",
    "identity-clash": "correct the driver: a device name may occur once in a pool",
    "no-device-matches": "change the selectors or add devices that they accept",
    "cel-runtime-error": 'guard the expression, for example with has() or "name" in device.attributes[domain]',
    "request-exceeds-device": "ask for less capacity per device",
    "tainted": "tolerate the taint in the request, or repair the device and remove the taint",
    "in-use": "wait until a device is released, or add devices",
    "not-enough-devices": "ask for fewer devices, or add devices",
    "counters-exhausted": "wait until devices that draw on the same counters are released, or ask for a smaller one",
    "capacity-exhausted": "ask for less capacity, or wait until a share is released",
    "constraint-unsatisfied": "drop the constraint, or ask for fewer devices under it",
    "pool-incomplete": "wait until the driver has published all slices of the pool",
    "claim-too-large": f"split the claim: at most {MAX_RESULTS} devices are possible in one",
}


def cure_of(word: str) -> str:
    """What helps against this reason; empty where it says so itself."""
    return _CURES.get(word, "")


def node_reason(task: NodeTask) -> Reason:
    """Why the claims do not fit on the node of the task.

    The claim is left open (its number stands in ``claim``), because the answer is kept for all claims of the
    same template; :func:`named` fills it in.
    """
    return _Explainer(task).reason()


def request_funnels(task: NodeTask) -> list[Reason]:
    """How far each alternative of each request comes by itself on the node; without a word where it could be served.

    Claims are left open as in :func:`node_reason`.
    """
    return list(_Explainer(task).funnels())


def selected_devices(task: NodeTask) -> Iterator[tuple[str, str, str]]:
    """Driver, pool and name of the devices on the node that some alternative selects, whoever has them."""
    for requests in task.claims:
        for need in (need for request in requests for need in request.needs):
            for seen in task.view.pools:
                base = seen.view.base
                masks = need.alternative.on_base(base, task.table, task.switches)
                for position in bits(masks.passing & seen.here):
                    yield (*base.key, base.devices[position].name)


def named(reason: Reason, claims: Sequence[ResourceClaim]) -> Reason:
    """A kept reason with the names of these claims."""
    numbers = [int(number) for number in reason.claim.split(",") if number]
    names = ", ".join(claim_name(claims[number]) for number in numbers if number < len(claims))
    place = f"claim {names}" if names else "claims"
    if reason.request:
        place += f", request {reason.request}"
    return msgspec.structs.replace(reason, claim=names, message=f"{place}: {reason.message}")


def claim_name(claim: ResourceClaim) -> str:
    """``namespace/name``, or what there is of it."""
    name = claim.metadata.name or claim.metadata.generateName
    return f"{claim.metadata.namespace}/{name}" if claim.metadata.namespace else name


class _Explainer:
    def __init__(self, task: NodeTask) -> None:
        self.task = task
        self.claim = ""
        self.funnel: dict[str, int] = {}

    def reason(self) -> Reason:
        task = self.task
        alone: list[Reason] = []
        for number, requests in enumerate(task.claims):
            self.claim = str(number)
            if task.too_large == number:
                total = sum(min(need.count for need in request.needs) for request in requests)
                return self._make(
                    "claim-too-large", "", f"needs {total} devices, {MAX_RESULTS} are possible in one claim"
                )
            if task.incomplete is not None and task.incomplete[0] == number:
                return self._make("pool-incomplete", task.incomplete[1], task.incomplete[2])
            for request in requests:
                found = [self._alternative(need) for need in request.needs]
                ended = [reason for reason in found if reason is not None]
                if ended and len(ended) == len(found):
                    alone.append(max(ended, key=_rank))
        if alone:
            return max(alone, key=_rank)
        return self._together()

    def funnels(self) -> Iterable[Reason]:
        """One reason per claim, request and alternative; without a word where nothing is in the way of it alone."""
        for number, requests in enumerate(self.task.claims):
            self.claim = str(number)
            for request in requests:
                for need in request.needs:
                    ended = self._alternative(need)
                    yield ended or self._make("", need.alternative.name, "could be served by itself")

    def _make(self, word: str, request: str, detail: str, nearest: str = "") -> Reason:
        return Reason(
            reason=word,
            message=detail,
            claim=self.claim,
            request=request,
            funnel=self.funnel,
            nodes=1,
            nearest=nearest or self.task.node.name,
            cure=cure_of(word),
        )

    def _alternative(self, need: Need) -> Reason | None:
        """The stage at which the alternative ends by itself, or None if it could be served alone."""
        task, alternative = self.task, need.alternative
        funnel = self.funnel = {}
        name = alternative.name
        published = passing = failing = sized = untainted = idle_tainted = free = 0
        taints: dict[str, None] = {}
        oversize = busy = 0
        drivers = drivers_of(alternative)
        for seen, state in zip(task.view.pools, task.states, strict=True):
            base = seen.view.base
            held = state.busy if task.policy == "upstream" else state.busy_kept
            masks = alternative.on_base(base, task.table, task.switches)
            if not drivers or base.key[0] in drivers:
                published += (seen.here | seen.targets).bit_count()
            usable = masks.passing & seen.here & ~masks.refused
            passing += usable.bit_count()
            failing |= (masks.failing & seen.targets) << seen.offset
            fitting = usable & ~(masks.oversize | masks.uncountable)
            oversize |= (usable & ~fitting) << seen.offset
            sized += fitting.bit_count()
            clean = fitting & ~masks.tainted
            for position in bits(fitting & masks.tainted):
                for taint in base.devices[position].blocking:
                    if not alternative.accepts(taint):
                        taints[
                            f"{taint.key}={taint.value}:{taint.effect}"
                            if taint.value
                            else f"{taint.key}:{taint.effect}"
                        ] = None
            untainted += clean.bit_count()
            idle = clean if alternative.admin else clean & ~held
            idle_tainted += (fitting & masks.tainted & ~held).bit_count()
            busy |= (0 if alternative.admin else fitting & held) << seen.offset
            free |= idle << seen.offset
        count = len(need.every) if need.every is not None else need.count
        funnel.update(
            {
                "published": published,
                "matching": passing,
                "large-enough": sized,
                "untainted": untainted,
                "free": free.bit_count(),
            }
        )
        wanted = "every matching device" if need.every is not None else f"{count} device{'s' * (count != 1)}"
        if drivers and not published:
            text = f"driver {' or '.join(drivers)} has published no device here"
            doubts = [entry.view.detail for entry in task.view.broken if entry.pool.key[0] in drivers]
            word = "identity-clash" if any("occurs twice" in doubt for doubt in doubts) else "no-slice-of-driver"
            return self._make(word, name, f"{text} ({'; '.join(doubts[:_LISTED])})" if doubts else text)
        if not passing:
            if failing:
                return self._make("cel-runtime-error", name, self._cel_text(alternative, failing))
            texts = "; ".join(text for _, _, text in alternative.selectors)
            return self._make("no-device-matches", name, f"none of {published} devices passes the selectors: {texts}")
        if not sized:
            asked = ", ".join(f"{key}={value}" for key, value in alternative.capacity.items())
            return self._make(
                "request-exceeds-device",
                name,
                f"{asked or 'the capacity'} is more than any of {passing} matching devices can give even when empty "
                f"({self._devices(oversize)})",
            )
        tainted_all = need.every is not None and untainted < sized
        if tainted_all or (not free and idle_tainted):
            return self._make(
                "tainted",
                name,
                f"wants {wanted}, but of {sized} matching devices {sized - untainted} carry the taint "
                f"{', '.join(taints)}, which is not tolerated",
            )
        if (not free and count == 1) or (need.every is not None and busy):
            return self._make(
                "in-use", name, f"wants {wanted}, but matching devices are in exclusive use: {self._devices(busy)}"
            )
        if free.bit_count() < count:
            used = f", in use: {self._devices(busy)}" if busy else ""
            return self._make(
                "not-enough-devices", name, f"wants {wanted}, {free.bit_count()} of {passing} matching are free{used}"
            )
        return self._limits(need, free, count, wanted)

    def _limits(self, need: Need, free: int, count: int, wanted: str) -> Reason | None:
        """Counters and capacities, device by device."""
        task, alternative = self.task, need.alternative
        search = Search(task, 1, None)
        fitting = holding = 0
        sets: dict[str, None] = {}
        capacities: dict[str, None] = {}
        for position in bits(free):
            number, local = task.view.places[position]
            short = search.short_counters(number, local, position)
            if short and not (alternative.admin and task.policy == "drakkar"):
                sets.update(dict.fromkeys(short))
                continue
            fitting += 1
            lacking = search.lacking_capacity(need, number, local, position)
            if lacking:
                for capacity, left in lacking:
                    capacities[f"{capacity} (left {Quantity(left).canonical()})"] = None
                continue
            holding += 1
        self.funnel["counters-fit"] = fitting
        if fitting < count:
            where = ", ".join(list(sets)[:_LISTED])
            return self._make(
                "counters-exhausted", alternative.name, f"wants {wanted}, but too little is left of counters: {where}"
            )
        self.funnel["capacity-left"] = holding
        if holding < count:
            asked = ", ".join(f"{key}={value}" for key, value in alternative.capacity.items()) or "a share"
            where = ", ".join(list(capacities)[:_LISTED])
            return self._make("capacity-exhausted", alternative.name, f"wants {asked}, but too little is left: {where}")
        return None

    def _together(self) -> Reason:
        """Each request could be served alone; find what keeps them from being served together."""
        self.claim = ",".join(str(number) for number in range(len(self.task.claims)))
        self.funnel = {}
        attributes = [c.attribute for claim in self.task.plan.claims for c in claim.constraints]
        lifts: list[tuple[str, str]] = []
        if attributes:
            lifts.append(
                (
                    "constraint-unsatisfied",
                    f"no combination of devices satisfies the constraint on {', '.join(dict.fromkeys(attributes))}",
                )
            )
        # A limit that the node's devices do not have need not be lifted.
        bases = [seen.view.base for seen in self.task.view.pools]
        if any(base.multi or base.drawn() for base in bases) or any(state.consumed for state in self.task.states):
            text = "the shareable devices have too little capacity for all requests together"
            lifts.append(("capacity-exhausted", text))
        if any(base.declared for base in bases):
            text = f"the shared counters do not suffice for all requests together: {self._sets()}"
            lifts.append(("counters-exhausted", text))
        lifted: set[str] = set()
        for word, text in lifts:
            lifted.add(word)
            if self._fits_without(lifted):
                return self._make(word, "", text)
        return self._make("not-enough-devices", "", "the requests compete for the same devices")

    def _fits_without(self, lifted: set[str]) -> bool:
        bounds = Bounds(self.task) if not lifted else None
        search = Search(self.task, _RELAXED_BUDGET, bounds, frozenset(lifted), patient=True)
        try:
            return search.run()
        except (BudgetSpent, Fault):
            return False

    def _sets(self) -> str:
        sets: dict[str, None] = {}
        for seen in self.task.view.pools:
            for set_name, _ in seen.view.base.counter_names:
                sets[set_name] = None
        return ", ".join(list(sets)[:_LISTED])

    def _cel_text(self, alternative: Alternative, failing: int) -> str:
        try:
            self.task.raise_at(alternative, failing)
        except Fault as fault:
            return f"the expression failed on {failing.bit_count()} devices and passed none; {fault.message}"

    def _devices(self, mask: int) -> str:
        names: list[str] = []
        for position in bits(mask):
            number, local = self.task.view.places[position]
            names.append(self.task.view.pools[number].view.base.devices[local].name)
            if len(names) > _LISTED:
                names[-1] = f"{mask.bit_count() - _LISTED} more"
                break
        return ", ".join(names)


def _rank(reason: Reason) -> int:
    """How far the search came before it ended with this reason."""
    return _RANK.get(reason.reason, len(STAGES))


_Group = tuple[str, str, str]


class Tally:
    """Reasons of many nodes, kept so that one more or one less costs little."""

    def __init__(self) -> None:
        self._reasons: dict[str, Reason] = {}
        self._groups: dict[_Group, dict[str, Reason]] = {}
        self._sums: dict[_Group, dict[str, int]] = {}
        #: Per group the node that came closest, once somebody asked.
        self._nearest: dict[_Group, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._reasons

    def add(self, name: str, reason: Reason) -> None:
        """Counts a node in, in place of what was known about it."""
        self.discard(name)
        group = (reason.reason, reason.claim, reason.request)
        self._reasons[name] = reason
        self._groups.setdefault(group, {})[name] = reason
        sums = self._sums.setdefault(group, {})
        for stage, count in reason.funnel.items():
            sums[stage] = sums.get(stage, 0) + count
        nearest = self._nearest.get(group)
        if nearest is not None and _closeness(name, reason) > _closeness(nearest, self._reasons[nearest]):
            self._nearest[group] = name

    def discard(self, name: str) -> None:
        """Forgets a node."""
        reason = self._reasons.pop(name, None)
        if reason is None:
            return
        group = (reason.reason, reason.claim, reason.request)
        members = self._groups[group]
        del members[name]
        sums = self._sums[group]
        for stage, count in reason.funnel.items():
            sums[stage] -= count
        if self._nearest.get(group) == name:
            del self._nearest[group]
        if not members:
            del self._groups[group], self._sums[group]

    def summary(self) -> Reason:
        """What came furthest, then what most nodes ended at; the claim is not yet named."""
        if not self._groups:
            return Reason(reason="no-node", message="there is no node to try", claim="0")
        group = max(self._groups, key=lambda key: (_RANK.get(key[0], len(STAGES)), len(self._groups[key]), key[1:]))
        members = self._groups[group]
        name = self._nearest.get(group)
        if name is None:
            name = self._nearest[group] = max(members, key=lambda node: _closeness(node, members[node]))
        best, total = members[name], len(self._reasons)
        where = f" (node {name}; so on {len(members)} of {total} nodes)"
        return Reason(
            reason=group[0],
            message=best.message if total == 1 else best.message + where,
            claim=group[1],
            request=group[2],
            funnel=dict(self._sums[group]),
            nodes=len(members),
            nearest=best.nearest,
            cure=best.cure,
        )


def _closeness(name: str, reason: Reason) -> tuple[int, list[int]]:
    """Greater for the node that kept more devices; the lower name of two equal ones."""
    return sum(reason.funnel.values()), [-byte for byte in name.encode()]


def aggregate(reasons: Iterable[tuple[str, Reason]]) -> Reason:
    """One reason for many nodes, see :class:`Tally`."""
    tally = Tally()
    for name, reason in reasons:
        tally.add(name, reason)
    return tally.summary()
