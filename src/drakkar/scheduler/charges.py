"""What devices cost a node in ordinary resources (field ``nodeAllocatableResources``, KEP-5517).

A device may stand for cpu, memory, ephemeral storage or huge pages of its node (``mapping``), or
need some beside what the pod asks for (``overhead``). Both count against what the node can allocate,
once the pod runs there, and are written into the pod's status for the node.

Amounts of one claim are summed over its results. A mapping counts once per claim, so a claim with a
mapped device belongs to one pod; an overhead counts per pod, and per container that uses the claim.

Source: spec/scheduling.md 11, spec/controllers.md 9, spec/api.md 3.5 and 9.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drakkar.api.claimcosts import ClaimCost, claim_costs, summed
from drakkar.api.meta import Object
from drakkar.api.objects import name_of, pod_claim_names
from drakkar.api.quantity import Quantity
from drakkar.api.resource import v1 as resource
from drakkar.api.tree import child, children
from drakkar.scheduler.pods import PodView, amount
from drakkar.scheduler.publisheddevices import DeviceId, PublishedDevices

#: A claim and the devices it has, or is to get.
Held = tuple[resource.ResourceClaim, resource.AllocationResult]

_ZERO = Quantity.from_int(0)


class Tariffs:
    """Devices with the field, by identity; all others cost nothing. The newest generation of a pool counts."""

    def __init__(self) -> None:
        self._published = PublishedDevices[resource.Device]()

    def set_slice(self, item: resource.ResourceSlice) -> None:
        """Takes over a slice, new or changed."""
        priced = {device.name: device for device in item.spec.devices or () if device.nodeAllocatableResources}
        self._published.set_slice(item, priced)

    def remove_slice(self, name: str) -> None:
        """Forgets a slice."""
        self._published.remove_slice(name)

    def __bool__(self) -> bool:
        """Whether any device costs anything."""
        return bool(self._published)

    def of(self, device: DeviceId) -> resource.Device | None:
        """The device, if it costs anything."""
        return next(self._published.of(device), None)

    def mapped(self, claim: resource.ResourceClaim) -> str | None:
        """Name of a mapped device that the claim holds, if it holds one."""
        allocation = claim.status.allocation if self._published else None
        for result in (allocation.devices.results or ()) if allocation else ():
            device = self.of(DeviceId(result.driver, result.pool, result.device))
            if device is not None and any(entry.mapping for entry in (device.nodeAllocatableResources or {}).values()):
                return device.name
        return None

    def charge(self, pod: PodView, held: Iterable[Held], containers: Mapping[str, Sequence[str]] = {}) -> Charge | None:
        """What the devices of these claims cost a node for the pod; None when nothing.

        ``containers`` adds users of a claim that are not named in the pod's spec: claim → names.
        """
        costs: list[tuple[resource.ResourceClaim, ClaimCost]] = []
        for claim, allocation in held if self._published else ():
            cost = ClaimCost(tuple(containers.get(name_of(claim)) or users_of(pod.obj, name_of(claim))))
            for result in allocation.devices.results or ():
                if result.adminAccess:
                    continue
                device = self.of(DeviceId(result.driver, result.pool, result.device))
                if device is not None:
                    _count(cost, device, result)
            if cost.mapping or cost.overhead:
                costs.append((claim, cost))
        return Charge(tuple(costs)) if costs else None


@dataclass(frozen=True, slots=True)
class Charge:
    """What all devices of a pod cost its node."""

    #: Per claim.
    costs: tuple[tuple[resource.ResourceClaim, ClaimCost], ...]

    def amounts(self) -> dict[str, int]:
        """Resource → amount, as `drakkar.scheduler.pods.amount` counts."""
        total = summed(cost.of_node() for _, cost in self.costs)
        return {name: amount(name, quantity) for name, quantity in total.items()}

    def on(self, pod: PodView) -> PodView:
        """The pod with this on top of its requests; what it asks for as a whole pod covers it already."""
        covered = pod_level(pod.obj, "requests")
        return pod.with_more({name: value for name, value in self.amounts().items() if name not in covered})

    def uncovered(self, pod: PodView) -> str | None:
        """A resource for which the pod-level requests or limits are too small for containers and devices together."""
        mine = self.amounts()
        for which in ("requests", "limits"):
            for name, budget in pod_level(pod.obj, which).items():
                if name not in mine:
                    continue
                need = sum(
                    amount(name, Quantity.parse(str(child(container, "resources", which).get(name, "0"))))
                    for container in children(pod.obj, "spec", "containers")
                )
                if need + mine[name] > amount(name, budget):
                    return (
                        f"node(s) have devices for which the pod-level {which} of {name} are too small: "
                        "they have to cover the containers and the devices"
                    )
        return None

    def status(self, names: Mapping[str, str]) -> list[Object]:
        """The pod's ``nodeAllocatableResourceClaimStatuses``; ``names`` has claims that were named only now, by uid."""
        return [cost.entry(names.get(claim.metadata.uid or "", name_of(claim))) for claim, cost in self.costs]


def charged(pod: Object) -> dict[str, int]:
    """What the status of a bound pod says that its devices cost, beyond what the pod asks for as a whole."""
    covered = pod_level(pod, "requests")
    total = summed(cost.of_node() for cost in claim_costs(pod))
    return {name: amount(name, quantity) for name, quantity in total.items() if name not in covered}


def pod_level(pod: Object, which: str) -> dict[str, Quantity]:
    """Pod-level ``requests`` or ``limits``."""
    return {name: Quantity.parse(str(text)) for name, text in child(pod, "spec", "resources", which).items()}


def users_of(pod: Object, claim: str) -> list[str]:
    """Containers of the pod that use the claim, init containers among them."""
    entries = {entry for entry, name in pod_claim_names(pod).items() if name == claim}
    spec = child(pod, "spec")
    return [
        container["name"]
        for container in (*children(spec, "initContainers"), *children(spec, "containers"))
        if any(used.get("name") in entries for used in children(container, "resources", "claims"))
    ]


def _count(cost: ClaimCost, device: resource.Device, result: resource.DeviceRequestAllocationResult) -> None:
    """Counts one result of the claim in."""
    for name, priced in (device.nodeAllocatableResources or {}).items():
        if priced.mapping is not None:
            mapped = _mapped(priced.mapping, device, result)
            cost.mapping[name] = cost.mapping.get(name, _ZERO) + mapped
        if priced.overhead is not None:
            per_pod, per_container = cost.overhead.get(name, (None, None))
            cost.overhead[name] = (
                _more(per_pod, priced.overhead.perPod),
                _more(per_container, priced.overhead.perContainer),
            )


def _mapped(
    mapping: resource.NodeAllocatableMapping, device: resource.Device, result: resource.DeviceRequestAllocationResult
) -> Quantity:
    if mapping.capacityKey is None:
        return Quantity.parse(mapping.deviceMultiplier or "0")
    taken = _by_name(result.consumedCapacity or {}, mapping.capacityKey, result.driver)
    if taken is None:
        # A device that is not shared is taken whole.
        whole: Any = _by_name(device.capacity or {}, mapping.capacityKey, result.driver)
        taken = whole.value if whole is not None else "0"
    return Quantity.parse(taken) * Quantity.parse(mapping.capacityMultiplier or "0")


def _by_name(amounts: Mapping[str, Any], name: str, driver: str) -> Any:
    """A capacity by its name; a name without a domain is in the driver's."""
    bare = name.removeprefix(f"{driver}/")
    for candidate in (name, bare, f"{driver}/{bare}"):
        if candidate in amounts:
            return amounts[candidate]
    return None


def _more(sum_: Quantity | None, text: str | None) -> Quantity | None:
    if text is None:
        return sum_
    return Quantity.parse(text) if sum_ is None else sum_ + Quantity.parse(text)
