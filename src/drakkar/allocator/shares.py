"""Shares that devices draw from a counter of their pool: what they need, and where too little is left.

Only policy ``drakkar`` counts them. Source: docs/decisions/0004-shares-of-a-parent.md.
"""

from __future__ import annotations

from drakkar.allocator.capacity import Consumption
from drakkar.allocator.outcomes import Fault
from drakkar.allocator.plan import Alternative
from drakkar.inventory.pools import Base, BaseUsage, Uses
from drakkar.inventory.switches import Switches


def needed(base: Base, local: int, consumed: Consumption | None) -> Uses:
    """What one allocation draws by its shares, by number of the counter; -1 for a counter that the pool does not have.

    A device that is not shareable gives all of its capacity to whoever takes it.
    """
    draws = base.drawn().get(local, ())
    if consumed is None or not base.multi >> local & 1:
        return tuple((counter, whole) for _, counter, whole in draws)
    return tuple((counter, consumed.nanos.get(capacity, whole)) for capacity, counter, whole in draws)


def lacking(left: list[int], fixed: Uses, shares: Uses) -> int | None:
    """The first counter that has too little left for both, if there is one."""
    wanted: dict[int, int] = dict(fixed)
    for counter, nanos in shares:
        if counter < 0:
            return counter
        wanted[counter] = wanted.get(counter, 0) + nanos
        if left[counter] < wanted[counter]:
            return counter
    return None


def short(alternative: Alternative, base: Base, state: BaseUsage, switches: Switches) -> int:
    """Positions that the request cannot have now, because of shares that are taken already."""
    draws = base.drawn()
    if not draws and not state.consumed:
        return 0
    key = tuple(sorted(alternative.capacity.items()))
    known = state.short.get(key)
    if known is not None:
        return known
    found = 0
    for position in draws.keys() | state.consumed.keys():
        if _is_short(alternative, base, state, switches, position):
            found |= 1 << position
    state.short[key] = found
    return found


def _is_short(alternative: Alternative, base: Base, state: BaseUsage, switches: Switches, position: int) -> bool:
    try:
        consumed = alternative.consumption(base, position, switches) if switches.ConsumableCapacity else None
    except Fault:
        return False
    held = state.consumed.get(position)
    if held and consumed is not None:
        for name, nanos in consumed.nanos.items():
            if nanos + held.get(name, 0) > consumed.whole[name]:
                return True
    shares = needed(base, position, consumed)
    if not shares:
        return False
    paid = (base.multi & state.shared) >> position & 1
    return lacking(state.residual_kept, () if paid else base.draws()[position], shares) is not None
