"""Validation of Nodes, Namespaces and Leases."""

from __future__ import annotations

from drakkar.api import formats
from drakkar.api.core.validation.pods import NODE_EFFECTS, NODE_RESOURCES, amounts, one_of
from drakkar.api.faults import Faults
from drakkar.api.meta import Object
from drakkar.api.names import NAMESPACE_FINALIZER
from drakkar.api.rules import ValidationContext
from drakkar.api.tree import child, children, text, texts


def validate_node(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a node's ``spec``; what makes up its identity cannot change."""
    spec, before = child(obj, "spec"), child(old, "spec")
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(children(spec, "taints")):
        path, key, effect = f"spec.taints[{index}]", text(taint, "key"), text(taint, "effect")
        faults.check(f"{path}.key", key, formats.qualified_name)
        faults.check(f"{path}.value", text(taint, "value"), formats.label_value)
        one_of(faults, f"{path}.effect", effect, NODE_EFFECTS)
        if (key, effect) in seen:
            faults.duplicate(path, taint)
        seen.add((key, effect))
    if old is not None:
        for field in ("providerID", "podCIDR"):
            if before.get(field) and spec.get(field) != before[field]:
                faults.forbidden(f"spec.{field}", 'node updates may not change this field except from "" to valid')


def validate_node_status(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a node's ``status``."""
    status = child(obj, "status")
    amounts(faults, "status.capacity", child(status, "capacity"), NODE_RESOURCES)
    amounts(faults, "status.allocatable", child(status, "allocatable"), NODE_RESOURCES)
    addresses = [(text(item, "type"), text(item, "address")) for item in children(status, "addresses")]
    faults.unique("status.addresses", addresses)


def validate_namespace(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a namespace's finalizers."""
    for finalizer in texts(obj, "spec", "finalizers"):
        if not faults.check("spec.finalizers", finalizer, formats.qualified_name):
            continue
        if "/" not in finalizer and finalizer != NAMESPACE_FINALIZER:
            faults.invalid(
                "spec.finalizers", finalizer, "name is neither a standard finalizer name nor is it fully qualified"
            )


def validate_lease(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a lease."""
    spec = child(obj, "spec")
    duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if duration is not None and duration <= 0:
        faults.invalid("spec.leaseDurationSeconds", duration, "must be greater than 0")
    if transitions is not None and transitions < 0:
        faults.invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0")
    strategy = spec.get("strategy")
    if strategy is None:
        if spec.get("preferredHolder"):
            faults.forbidden("spec.preferredHolder", "may only be specified if `strategy` is defined")
    elif "/" in strategy:
        faults.check("spec.strategy", strategy, formats.qualified_name)
    elif strategy != "OldestEmulationVersion":
        faults.not_supported("spec.strategy", strategy, ("OldestEmulationVersion",))
