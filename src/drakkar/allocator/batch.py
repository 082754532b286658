"""Scenarios of the reference oracle answered in its format: ``drakkar allocate`` and the conformance tests.

Source: oracle/README.md.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, cast

import msgspec

from drakkar.allocator.api import add_node
from drakkar.allocator.outcomes import Failed, Fits, GaveUp
from drakkar.allocator.problem import DEFAULT_BUDGET, Problem, prepare
from drakkar.api.errors import UsageError
from drakkar.api.resource.v1 import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from drakkar.inventory import Inventory, Switches
from drakkar.inventory.collector import paused
from drakkar.inventory.selection import Cel


class _Metadata(msgspec.Struct):
    name: str
    labels: dict[str, str] | None = None


class _NodeStatus(msgspec.Struct):
    declaredFeatures: list[str] | None = None


class _Node(msgspec.Struct):
    metadata: _Metadata
    status: _NodeStatus | None = None


class _Scenario(msgspec.Struct):
    """The form of a scenario, for :func:`check` alone."""

    features: dict[str, bool] | None = None
    deviceClasses: list[DeviceClass] | None = None
    deviceTaintRules: list[DeviceTaintRule] | None = None
    resourceSlices: list[ResourceSlice] | None = None
    allocatedClaims: list[ResourceClaim] | None = None
    claims: list[ResourceClaim] | None = None
    nodes: list[_Node] | None = None
    try_: str = msgspec.field(default="all", name="try")


def check(scenario: object) -> dict[str, Any]:
    """The scenario, if it has the form of one; UsageError naming the field that has not."""
    if not isinstance(scenario, dict):
        raise UsageError("a scenario is a JSON object")
    try:
        form = msgspec.convert(scenario, type=_Scenario)
    except msgspec.ValidationError as error:
        raise UsageError(f"not a scenario: {error}") from error
    if form.try_ not in ("all", "any") and form.try_ not in [node.metadata.name for node in form.nodes or ()]:
        raise UsageError(f"not a scenario: try names the node {form.try_!r}, which is not among its nodes")
    return cast("dict[str, Any]", scenario)


def load(scenario: dict[str, Any], cel: Cel | None = None) -> Inventory:
    """The cluster of a scenario with what is allocated in it."""
    inventory = Inventory(Switches.from_names(scenario.get("features")), cel)
    with paused():
        _enter(inventory, scenario)
    return inventory


def _enter(inventory: Inventory, scenario: dict[str, Any]) -> None:
    for item in scenario.get("deviceClasses") or ():
        inventory.set_class(msgspec.convert(item, type=DeviceClass))
    for item in scenario.get("deviceTaintRules") or ():
        inventory.set_taint_rule(msgspec.convert(item, type=DeviceTaintRule))
    for item in scenario.get("resourceSlices") or ():
        inventory.set_slice(msgspec.convert(item, type=ResourceSlice))
    for number, item in enumerate(scenario.get("allocatedClaims") or ()):
        claim = msgspec.convert(item, type=ResourceClaim)
        if not claim.metadata.uid:
            metadata = msgspec.structs.replace(claim.metadata, uid=f"allocated-{number}")
            claim = msgspec.structs.replace(claim, metadata=metadata)
        inventory.set_claim(claim)
    for item in scenario.get("nodes") or ():
        add_node(inventory, item)


def claims_of(scenario: dict[str, Any]) -> list[ResourceClaim]:
    """The claims to be allocated together."""
    return [msgspec.convert(item, type=ResourceClaim) for item in scenario.get("claims") or ()]


def numbered_shares() -> Callable[[], str]:
    """Share ids numbered in order of appearance, as the oracle prints them."""
    numbers = count(1)
    return lambda: f"00000000-0000-4000-8000-{next(numbers):012d}"


def answer(
    scenario: dict[str, Any], policy: str = "drakkar", cel: Cel | None = None, budget: int = DEFAULT_BUDGET
) -> dict[str, Any]:
    """The answer to a scenario in the oracle's form (``steps`` aside); ``try`` decides for which nodes."""
    inventory = load(scenario, cel)
    snapshot = inventory.snapshot()
    claims = claims_of(scenario)
    wanted = scenario.get("try", "all")
    names = list(snapshot.nodes) if wanted in ("all", "any") else [wanted]
    nodes: list[dict[str, Any]] = []
    for name in names:
        problem = prepare(snapshot, claims, policy, numbered_shares())
        nodes.append(answer_node(problem, name, budget))
        if wanted == "any" and nodes[-1]["fits"]:
            break
    found: dict[str, Any] = {key: scenario[key] for key in ("id", "family") if key in scenario}
    found["channel"] = inventory.switches.variant
    found["nodes"] = nodes
    return found


def answer_node(problem: Problem, name: str, budget: int = DEFAULT_BUDGET) -> dict[str, Any]:
    """One entry of an answer's ``nodes``."""
    outcome = problem.solve(name, budget)
    entry: dict[str, Any] = {"node": name, "fits": False}
    if isinstance(outcome, Fits):
        entry["fits"] = True
        entry["class"] = "fits"
        entry["allocations"] = [msgspec.to_builtins(allocation) for allocation in outcome.allocations]
    elif isinstance(outcome, Failed):
        entry["class"] = outcome.error_class
    elif isinstance(outcome, GaveUp):
        entry["class"] = "timeout"
    else:
        entry["class"] = "nofit"
    return entry
