"""What the devices of a claim take of a node's ordinary resources, as a pod's status records it (KEP-5517).

An entry of ``status.nodeAllocatableResourceClaimStatuses`` has a mapping (the devices stand for so much of the node)
and an overhead (beside what the pod asks for), per pod and per container that uses the claim. A scheduler writes the
entries and adds them up for the node; the node adds them to the limits of the containers.

Source: spec/api.md 9.2, spec/scheduling.md 11.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from drakkar.api.meta import Object
from drakkar.api.quantity import Quantity
from drakkar.api.tree import children, texts

#: The field of a pod's status.
CLAIM_COSTS = "nodeAllocatableResourceClaimStatuses"

_ZERO = Quantity.from_int(0)


@dataclass(slots=True)
class ClaimCost:
    """One claim of a pod: per resource the mapping, and the overhead per pod and per container (None: not said)."""

    containers: tuple[str, ...]
    mapping: dict[str, Quantity] = field(default_factory=dict[str, Quantity])
    overhead: dict[str, tuple[Quantity | None, Quantity | None]] = field(
        default_factory=dict[str, "tuple[Quantity | None, Quantity | None]"]
    )

    def of_node(self) -> dict[str, Quantity]:
        """What it takes of the node, by resource."""
        return self._sum(Quantity.from_int(len(self.containers)))

    def of_container(self, name: str) -> dict[str, Quantity]:
        """What a container may use of it, by resource: all that is not some other container's own."""
        return self._sum(Quantity.from_int(1)) if name in self.containers else {}

    def _sum(self, containers: Quantity) -> dict[str, Quantity]:
        total = dict(self.mapping)
        for name, (per_pod, per_container) in self.overhead.items():
            total[name] = total.get(name, _ZERO) + (per_pod or _ZERO) + (per_container or _ZERO) * containers
        return total

    def entry(self, claim: str) -> Object:
        """The entry of the pod's status; ``claim`` is the name of the claim."""
        entry: Object = {"resourceClaimName": claim, "containers": [*self.containers]}
        if self.mapping:
            entry["mapping"] = [{"name": key, "quantity": q.canonical()} for key, q in sorted(self.mapping.items())]
        if self.overhead:
            entry["overhead"] = [
                {"name": key}
                | ({"perPod": per_pod.canonical()} if per_pod is not None else {})
                | ({"perContainer": per_container.canonical()} if per_container is not None else {})
                for key, (per_pod, per_container) in sorted(self.overhead.items())
            ]
        return entry


def claim_costs(pod: Object) -> list[ClaimCost]:
    """The entries of a pod's status."""
    return [
        ClaimCost(
            tuple(texts(entry, "containers")),
            {part["name"]: _amount(part.get("quantity")) or _ZERO for part in children(entry, "mapping")},
            {
                part["name"]: (_amount(part.get("perPod")), _amount(part.get("perContainer")))
                for part in children(entry, "overhead")
            },
        )
        for entry in children(pod, "status", CLAIM_COSTS)
    ]


def summed(amounts: Iterable[Mapping[str, Quantity]]) -> dict[str, Quantity]:
    """Everything together, by resource."""
    total: dict[str, Quantity] = {}
    for each in amounts:
        for name, quantity in each.items():
            total[name] = total.get(name, _ZERO) + quantity
    return total


def _amount(text: object) -> Quantity | None:
    return Quantity.parse(str(text)) if text is not None else None
