"""The face for other programs: objects in, a decision with its reasons out.

    import drakkar

    snapshot = drakkar.snapshot(objects)             # dicts or structs, as read from an API or a dump
    decision = drakkar.allocate(snapshot, claims)    # Decision(outcome, node)

Both are pure. The result is a :class:`Decision`: the outcome, and the node it is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from drakkar.allocator.outcomes import Failed, Fits, GaveUp, NoFit, Outcome
from drakkar.allocator.problem import DEFAULT_BUDGET, explain, prepare
from drakkar.api.errors import UsageError
from drakkar.api.features import Features
from drakkar.api.resource.v1 import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from drakkar.inventory import Inventory, Snapshot, Switches
from drakkar.inventory.collector import paused
from drakkar.inventory.selection import Cel

_TYPES: Mapping[str, Any] = {
    "DeviceClass": DeviceClass,
    "DeviceTaintRule": DeviceTaintRule,
    "ResourceClaim": ResourceClaim,
    "ResourceSlice": ResourceSlice,
}


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome, and the node it is for (None when no node fits)."""

    outcome: Outcome
    node: str | None = None


def snapshot(objects: Iterable[Any], features: Features | Switches | None = None, cel: Cel | None = None) -> Snapshot:
    """A snapshot of Nodes, DeviceClasses, ResourceSlices, DeviceTaintRules and ResourceClaims.

    ``objects`` are structs of :mod:`drakkar.api.resource.v1` or JSON dicts with ``kind``; a ``List`` counts as its
    items, other kinds are ignored. Objects are taken as they are, not validated or defaulted.
    """
    inventory = Inventory(features, cel)
    with paused():
        for item in objects:
            add(inventory, item)
    return inventory.snapshot()


def add(inventory: Inventory, item: Any) -> None:
    """Enters one object of any kind into an inventory."""
    if isinstance(item, Mapping):
        plain = cast("Mapping[str, Any]", item)
        kind = str(plain.get("kind", ""))
        if kind.endswith("List") or (not kind and "items" in plain):
            for member in plain.get("items") or ():
                add(inventory, member)
            return
        if kind == "Node":
            add_node(inventory, plain)
            return
        type_ = _TYPES.get(kind)
        if type_ is None:
            return
        try:
            item = msgspec.convert(plain, type=type_)
        except msgspec.ValidationError as error:
            name = _part(plain, "metadata").get("name", "")
            raise UsageError(f"{kind} {name!r} cannot be read: {error}") from error
    if isinstance(item, ResourceSlice):
        inventory.set_slice(item)
    elif isinstance(item, DeviceClass):
        inventory.set_class(item)
    elif isinstance(item, ResourceClaim):
        inventory.set_claim(item)
    elif isinstance(item, DeviceTaintRule):
        inventory.set_taint_rule(item)


def add_node(inventory: Inventory, node: Mapping[str, Any]) -> None:
    """Enters a Node object."""
    metadata = _part(node, "metadata")
    declared = _part(node, "status").get("declaredFeatures") or ()
    inventory.set_node(metadata["name"], metadata.get("labels") or {}, declared)


def _part(item: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", item.get(name) or {})


def allocate(
    snapshot: Snapshot,
    claims: Sequence[ResourceClaim],
    node: str | None = None,
    policy: str = "drakkar",
    budget: int = DEFAULT_BUDGET,
    share_id: Callable[[], str] | None = None,
) -> Decision:
    """Allocates claims together, as for one pod: on ``node``, or on the node that fits and loses least.

    Nothing is booked; pass the outcome's allocations to :meth:`Snapshot.assume` to go on from there.
    """
    problem = prepare(snapshot, claims, policy, share_id)
    if node is not None:
        outcome = problem.solve(node, budget)
        return Decision(outcome, node if isinstance(outcome, Fits) else None)
    undecided: GaveUp | None = None
    failed: Failed | None = None
    for name in problem.ranked():
        outcome = problem.solve(name, budget)
        if isinstance(outcome, Fits):
            return Decision(outcome, name)
        if isinstance(outcome, Failed):
            if not outcome.node_only:
                return Decision(outcome)
            failed = outcome
        elif isinstance(outcome, GaveUp):
            undecided = outcome
    if undecided is not None:
        return Decision(undecided)
    if failed is not None:
        return Decision(failed)
    return Decision(NoFit(problem.feasible().refusal or explain(problem, snapshot.nodes)))
