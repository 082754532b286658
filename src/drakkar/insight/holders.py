"""Who holds the devices that somebody waits for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from drakkar.allocator import Problem
from drakkar.api.meta import Object, Struct
from drakkar.api.resource import v1 as resource
from drakkar.insight.reasons import decoded

#: Reasons that go away when others release what they hold; the words of corpus/real-world.
_WAITS_FOR_OTHERS = frozenset(
    {"in-use", "not-enough-devices", "capacity-exhausted", "counters-exhausted", "constraint-unsatisfied"}
)
_LISTED = 3


class Holder(Struct, frozen=True, kw_only=True):
    """A claim that has devices which others wait for."""

    #: ``namespace/name``.
    claim: str
    devices: int
    #: Names of who the claim is reserved for, mostly pods of its namespace.
    users: list[str]


def holders(listed: Iterable[Object], problem: Problem, nodes: Iterable[str], reason: str) -> list[Holder]:
    """Claims, most devices first, that hold on these nodes what the claims of the problem select.

    Where counters are the matter, all devices of the same pools count: those draw on the same counters. Empty for
    reasons that no release can help.
    """
    if reason not in _WAITS_FOR_OTHERS:
        return []
    selected = problem.selected(nodes)
    pools = (
        {(driver, pool) for driver, pool, _ in selected} if reason == "counters-exhausted" else set[tuple[str, str]]()
    )
    found: list[Holder] = []
    for obj in listed:
        if obj.get("kind") != "ResourceClaim":
            continue
        claim: resource.ResourceClaim = decoded(obj)
        allocation = claim.status.allocation
        held = [
            result
            for result in (allocation.devices.results or () if allocation is not None else ())
            if not result.adminAccess
            and ((result.driver, result.pool, result.device) in selected or (result.driver, result.pool) in pools)
        ]
        if held:
            users = [entry.name for entry in claim.status.reservedFor or ()]
            name = f"{claim.metadata.namespace}/{claim.metadata.name}"
            found.append(Holder(claim=name, devices=len(held), users=users))
    return sorted(found, key=lambda holder: (-holder.devices, holder.claim))


def told(found: Sequence[Holder], *, full: bool = False) -> str:
    """The holders in a line; the first few unless ``full``."""
    shown = found if full else found[:_LISTED]
    parts = [
        f"{holder.claim} ({holder.devices} device{'s' * (holder.devices != 1)}; "
        f"{'reserved for ' + ', '.join(holder.users) if holder.users else 'reserved for nobody'})"
        for holder in shown
    ]
    more = f" and {len(found) - len(shown)} more claims" if len(found) > len(shown) else ""
    return f"held by: {', '.join(parts)}{more}"
