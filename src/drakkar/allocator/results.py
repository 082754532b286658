"""A finished search written as allocation results.

Source: spec/allocation.md section 16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from drakkar.allocator.capacity import Consumption
from drakkar.allocator.needs import NodeTask
from drakkar.allocator.outcomes import Fault
from drakkar.allocator.plan import Alternative, ClaimPlan, Plan
from drakkar.allocator.search import Search
from drakkar.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from drakkar.api.resource.v1 import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
)
from drakkar.inventory.devices import DeviceRecord
from drakkar.inventory.snapshot import Node, NodeView
from drakkar.inventory.switches import Switches


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """One device of a solution, by its place in the view of a node."""

    alternative: Alternative
    #: Number of the pool in the view, and position in the pool.
    pool: int
    local: int
    consumed: Consumption | None
    shared: bool


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """What a search chose, without names: good for every node that is equal to the one it was found on."""

    #: Per claim, its devices and the configuration that goes with the alternatives.
    claims: tuple[tuple[tuple[Choice, ...], list[DeviceAllocationConfiguration]], ...]
    #: What cannot be given out any more on the node, see :mod:`drakkar.allocator.fitness`.
    lost: float = 0.0
    #: Weight of the preferred constraints that it does not keep.
    unmet: int = 0


def solution(task: NodeTask, search: Search, lost: float = 0.0, unmet: int = 0) -> Solution:
    """The finished search's choice."""
    places = task.view.places
    claims: list[tuple[tuple[Choice, ...], list[DeviceAllocationConfiguration]]] = []
    for number, taken in enumerate(search.chosen):
        chosen = [
            requests.needs[rank].alternative
            for requests, rank in zip(task.claims[number], search.rank[number], strict=True)
        ]
        choices = tuple(Choice(one.need.alternative, *places[one.position], one.consumed, one.shared) for one in taken)
        claims.append((choices, _config(task.plan.claims[number], chosen)))
    return Solution(tuple(claims), lost, unmet)


def allocations(
    found: Solution, plan: Plan, node: Node, view: NodeView, switches: Switches, share_id: Callable[[], str]
) -> tuple[AllocationResult, ...]:
    """One AllocationResult per claim; raises :class:`Fault` when a device's node selector cannot be passed on."""
    made: list[AllocationResult] = []
    binds = _binds(plan, switches)
    pools = view.pools
    for choices, config in found.claims:
        records: list[DeviceRecord] = []
        results: list[DeviceRequestAllocationResult] = []
        for choice in choices:
            record = pools[choice.pool].view.base.devices[choice.local]
            records.append(record)
            results.append(_result(choice, record, switches, share_id))
        devices = DeviceAllocationResult(config=[*config] or None, results=results or None)
        made.append(AllocationResult(devices=devices, nodeSelector=_node_selector(node, records, binds)))
    return tuple(made)


def writable(found: Solution, plan: Plan, node: Node, view: NodeView, switches: Switches) -> bool:
    """Whether :func:`allocations` can write the solution for the node."""
    for choices, _ in found.claims:
        records = [view.pools[choice.pool].view.base.devices[choice.local] for choice in choices]
        try:
            _node_selector(node, records, _binds(plan, switches))
        except Fault:
            return False
    return True


def _binds(plan: Plan, switches: Switches) -> bool:
    """Whether ``bindsToNode`` counts: upstream's oldest variant does not know it."""
    return plan.policy != "upstream" or switches.variant != "stable"


def _result(
    choice: Choice, record: DeviceRecord, switches: Switches, share_id: Callable[[], str]
) -> DeviceRequestAllocationResult:
    alternative = choice.alternative
    device, owner = record.device, record.slice
    bound = switches.DeviceBindingAndStatus
    consumed = choice.consumed
    return DeviceRequestAllocationResult(
        adminAccess=True if alternative.admin else None,
        bindingConditions=(device.bindingConditions or None) if bound else None,
        bindingFailureConditions=(device.bindingFailureConditions or None) if bound else None,
        consumedCapacity=consumed.texts if consumed is not None and consumed.texts else None,
        device=record.name,
        driver=owner.driver,
        pool=owner.pool[1],
        request=alternative.name,
        shareID=share_id() if choice.shared else None,
        skipNodeOperations=(owner.slice.spec.skipNodeOperations or None) if switches.OptionalNodeOperations else None,
        tolerations=[*alternative.tolerations] or None,
    )


def _config(plan: ClaimPlan, chosen: list[Alternative]) -> list[DeviceAllocationConfiguration]:
    total = len(plan.requests)
    entries: list[DeviceAllocationConfiguration] = []
    by_class: dict[str, list[Alternative]] = {}
    for alternative in chosen:
        by_class.setdefault(alternative.class_name, []).append(alternative)
    for users in by_class.values():
        device_class = users[0].device_class
        names = [alternative.name for alternative in users]
        requests = None if len(users) == total else names
        entries += [
            DeviceAllocationConfiguration(source="FromClass", requests=requests, opaque=config.opaque)
            for config in (device_class.spec.config if device_class else None) or ()
        ]
    for config in plan.spec.devices.config or ():
        names = config.requests or []
        covered = [a for a in chosen if a.name in names or a.request in names]
        if names and not covered:
            continue
        requests = None if not names or len(covered) == total else names
        entries.append(DeviceAllocationConfiguration(source="FromClaim", requests=requests, opaque=config.opaque))
    return entries


def _node_selector(node: Node, records: list[DeviceRecord], binds: bool) -> NodeSelector | None:
    fields: list[NodeSelectorRequirement] = []
    expressions: list[NodeSelectorRequirement] = []
    for record in records:
        source = record.device if record.slice.per_device else record.slice.slice.spec
        if source.nodeName or (binds and record.device.bindsToNode):
            here = NodeSelectorRequirement(key="metadata.name", operator="In", values=[node.name])
            return NodeSelector(nodeSelectorTerms=[NodeSelectorTerm(matchFields=[here])])
        terms = source.nodeSelector.nodeSelectorTerms if source.nodeSelector is not None else []
        if len(terms) > 1:
            raise Fault(
                "node-selector",
                f"device {record.name} of ResourceSlice {record.slice.name}: a node selector with {len(terms)} terms "
                "cannot be passed on, one is permitted",
            )
        for term in terms:
            _merge(fields, term.matchFields)
            _merge(expressions, term.matchExpressions)
    if not fields and not expressions:
        return None
    term = NodeSelectorTerm(matchExpressions=expressions or None, matchFields=fields or None)
    return NodeSelector(nodeSelectorTerms=[term])


def _merge(into: list[NodeSelectorRequirement], found: list[NodeSelectorRequirement] | None) -> None:
    for requirement in found or ():
        if not any(
            known.key == requirement.key
            and known.operator == requirement.operator
            and set(known.values or ()) == set(requirement.values or ())
            for known in into
        ):
            into.append(requirement)
