"""A finished search written as allocation results.

Source: spec/allocation.md section 16.
"""

from __future__ import annotations

from collections.abc import Callable

from drakkar.allocator.needs import NodeTask
from drakkar.allocator.outcomes import Fault
from drakkar.allocator.plan import Alternative, ClaimPlan
from drakkar.allocator.search import Search, Taken
from drakkar.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from drakkar.api.resource.v1 import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
)
from drakkar.inventory.devices import DeviceRecord


def allocations(task: NodeTask, search: Search, share_id: Callable[[], str]) -> tuple[AllocationResult, ...]:
    """One AllocationResult per claim; raises :class:`Fault` when a device's node selector cannot be passed on."""
    return tuple(_claim(task, search, number, share_id) for number in range(len(task.claims)))


def _claim(task: NodeTask, search: Search, number: int, share_id: Callable[[], str]) -> AllocationResult:
    taken = search.chosen[number]
    chosen = [
        requests.needs[rank].alternative
        for requests, rank in zip(task.claims[number], search.rank[number], strict=True)
    ]
    results = [_result(task, one, share_id) for one in taken]
    devices = DeviceAllocationResult(config=_config(task.plan.claims[number], chosen) or None, results=results or None)
    return AllocationResult(devices=devices, nodeSelector=_node_selector(task, taken))


def _record(task: NodeTask, one: Taken) -> DeviceRecord:
    number, local = task.view.places[one.position]
    return task.view.pools[number].view.base.devices[local]


def _result(task: NodeTask, one: Taken, share_id: Callable[[], str]) -> DeviceRequestAllocationResult:
    record = _record(task, one)
    alternative = one.need.alternative
    bound = task.switches.DeviceBindingAndStatus
    consumed = one.consumed
    return DeviceRequestAllocationResult(
        adminAccess=True if alternative.admin else None,
        bindingConditions=(record.device.bindingConditions or None) if bound else None,
        bindingFailureConditions=(record.device.bindingFailureConditions or None) if bound else None,
        consumedCapacity=consumed.texts if consumed is not None and consumed.texts else None,
        device=record.name,
        driver=record.slice.driver,
        pool=record.slice.pool[1],
        request=alternative.name,
        shareID=share_id() if one.shared else None,
        skipNodeOperations=(record.slice.slice.spec.skipNodeOperations or None)
        if task.switches.OptionalNodeOperations
        else None,
        tolerations=list(alternative.tolerations) or None,
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


def _node_selector(task: NodeTask, taken: list[Taken]) -> NodeSelector | None:
    fields: list[NodeSelectorRequirement] = []
    expressions: list[NodeSelectorRequirement] = []
    # Upstream's oldest variant does not know bindsToNode.
    binds = task.policy != "upstream" or task.switches.variant != "stable"
    for one in taken:
        record = _record(task, one)
        spec = record.slice.slice.spec
        source = record.device if record.slice.per_device else spec
        if source.nodeName or (binds and record.device.bindsToNode):
            here = NodeSelectorRequirement(key="metadata.name", operator="In", values=[task.node.name])
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
