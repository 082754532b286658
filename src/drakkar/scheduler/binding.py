"""Binding conditions: devices that need work before a pod may be bound to them (spec/controllers.md 6.2)."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from drakkar.api.objects import name_of
from drakkar.api.resource import v1 as resource
from drakkar.client import parse_timestamp

#: Seconds from the allocation until missing conditions count as a failure (Kubernetes' default).
BINDING_TIMEOUT = 600.0


class Binding(Enum):
    """Where the devices of a claim stand."""

    READY = "ready"
    WAITING = "waiting"
    FAILED = "failed"


def reported(claim: resource.ResourceClaim) -> Iterator[tuple[resource.DeviceRequestAllocationResult, set[str]]]:
    """Each device of the claim, with the conditions that its driver says are fulfilled."""
    said = {(entry.driver, entry.pool, entry.device): entry.conditions or () for entry in claim.status.devices or ()}
    allocation = claim.status.allocation
    for result in (allocation.devices.results or ()) if allocation is not None else ():
        conditions = said.get((result.driver, result.pool, result.device), ())
        yield result, {condition.type for condition in conditions if condition.status == "True"}


def binding_state(claim: resource.ResourceClaim, now: float, timeout: float = BINDING_TIMEOUT) -> tuple[Binding, str]:
    """The state at Unix time ``now``, and what is missing or went wrong; ``timeout`` counts from the allocation."""
    missing = ""
    for result, true in reported(claim):
        if not result.bindingConditions:
            continue
        for failure in result.bindingFailureConditions or ():
            if failure in true:
                return Binding.FAILED, f"device {result.device} of claim {name_of(claim)} reports {failure}"
        absent = [wanted for wanted in result.bindingConditions if wanted not in true]
        if absent and not missing:
            missing = f"device {result.device} of claim {name_of(claim)} waits for {', '.join(absent)}"
    if not missing:
        return Binding.READY, ""
    if now >= deadline(claim, timeout):
        return Binding.FAILED, f"{missing}, for more than {timeout:g} s"
    return Binding.WAITING, missing


def deadline(claim: resource.ResourceClaim, timeout: float = BINDING_TIMEOUT) -> float:
    """Unix time at which waiting for the claim's conditions ends."""
    allocation = claim.status.allocation
    if allocation is None or not allocation.allocationTimestamp:
        return float("inf")
    return parse_timestamp(allocation.allocationTimestamp) + timeout
