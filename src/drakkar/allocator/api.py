"""The face for other programs: objects in, a decision with its reasons out.

    import drakkar

    snapshot = drakkar.snapshot(objects)             # dicts or structs, as read from an API or a dump
    decision = drakkar.allocate(snapshot, claims)    # dicts or structs, too; Decision(outcome, node)

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
from drakkar.api.resource.conversion import convert
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

    ``objects`` are structs of :mod:`drakkar.api.resource.v1` or JSON dicts with ``kind``, in any served version; a list
    counts as its items, other kinds are ignored. Objects are taken as they are, not validated or defaulted. Raises
    UsageError for what is no object or cannot be read.
    """
    inventory = Inventory(features, cel)
    with paused():
        for item in objects:
            add(inventory, item)
    return inventory.snapshot()


def add(inventory: Inventory, item: Any) -> None:
    """Enters one object of any kind into an inventory. Raises UsageError for what is no object."""
    if isinstance(item, Mapping):
        plain = cast("Mapping[str, Any]", item)
        kind = str(plain.get("kind", ""))
        if kind.endswith("List") or (not kind and "items" in plain):
            for member in plain.get("items") or ():
                add(inventory, _member(plain, member))
            return
        if kind == "Node":
            add_node(inventory, plain)
            return
        if not kind:
            raise UsageError(
                f"object {_part(plain, 'metadata').get('name', '')!r} has no kind; set kind and apiVersion"
            )
        type_ = _TYPES.get(kind)
        if type_ is None:
            return
        item = _read(plain, kind, type_)
    if isinstance(item, ResourceSlice):
        inventory.set_slice(item)
    elif isinstance(item, DeviceClass):
        inventory.set_class(item)
    elif isinstance(item, ResourceClaim):
        inventory.set_claim(item)
    elif isinstance(item, DeviceTaintRule):
        inventory.set_taint_rule(item)
    else:
        raise UsageError(
            f"a {type(item).__name__} is no object of the API; give dicts with kind, as kubectl prints them in JSON, "
            "or structs of drakkar.api.resource.v1"
        )


def _member(listed: Mapping[str, Any], item: Any) -> Any:
    """An item of a list; those of a typed list (``ResourceSliceList``) leave out the kind that the list names."""
    kind = str(listed.get("kind", "")).removesuffix("List")
    if not kind or not isinstance(item, Mapping):
        return item
    return {"apiVersion": listed.get("apiVersion", ""), "kind": kind, **cast("Mapping[str, Any]", item)}


def add_node(inventory: Inventory, node: Mapping[str, Any]) -> None:
    """Enters a Node object."""
    metadata = _part(node, "metadata")
    declared = _part(node, "status").get("declaredFeatures") or ()
    inventory.set_node(metadata["name"], metadata.get("labels") or {}, declared)


def _read(plain: Mapping[str, Any], kind: str, type_: Any) -> Any:
    """The struct of an object in any served version of its kind."""
    version = str(plain.get("apiVersion") or "").rpartition("/")[2]
    try:
        if version not in ("", "v1"):
            plain = convert(dict(plain), kind, version, "v1")
        return msgspec.convert(plain, type=type_)
    except ValueError as error:  # also msgspec.ValidationError
        name = _part(plain, "metadata").get("name", "")
        raise UsageError(f"{kind} {name!r} cannot be read: {error}") from error


def _claims(given: object) -> list[ResourceClaim]:
    """The claims as structs. Raises UsageError for what is no claim."""
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise UsageError("claims: give a list, the claims of one pod together: allocate(snapshot, [claim])")
    found: list[ResourceClaim] = []
    for number, item in enumerate(cast("Iterable[object]", given)):
        if isinstance(item, ResourceClaim):
            found.append(item)
            continue
        what = type(item).__name__
        if isinstance(item, Mapping):
            plain = cast("Mapping[str, Any]", item)
            what = str(plain.get("kind") or "ResourceClaim")
            if what == "ResourceClaim":
                found.append(_read(plain, what, ResourceClaim))
                continue
        raise UsageError(
            f"claims[{number}] is a {what}, not a ResourceClaim; "
            "of a ResourceClaimTemplate give a claim with its spec.spec"
        )
    return found


def _part(item: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", item.get(name) or {})


def allocate(
    snapshot: Snapshot,
    claims: Sequence[ResourceClaim | Mapping[str, Any]],
    node: str | None = None,
    policy: str = "drakkar",
    budget: int = DEFAULT_BUDGET,
    share_id: Callable[[], str] | None = None,
) -> Decision:
    """Allocates claims together, as for one pod: on ``node``, or on the node that fits and loses least.

    ``claims`` are structs or JSON dicts, taken as they are, like the objects of :func:`snapshot`. Nothing is booked;
    pass the outcome's allocations to :meth:`Snapshot.assume` to go on from there. Raises UsageError for what is no
    claim.
    """
    problem = prepare(snapshot, _claims(claims), policy, share_id)
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
