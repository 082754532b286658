"""Pod groups: what a pod and a PodGroup of scheduling.k8s.io say of each other.

Source: spec/api.md 10, spec/controllers.md 1.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from drakkar.api.kinds import PODGROUP
from drakkar.api.meta import Object
from drakkar.api.objects import controller_of, namespace_of
from drakkar.api.tree import at, children, text


def group_of(pod: Object) -> str:
    """Name of the pod's group, empty without one."""
    return text(pod, "spec", "schedulingGroup", "podGroupName")


def group_index(pod: Object) -> Iterable[str]:
    """``namespace/name`` of the pod's group."""
    name = group_of(pod)
    return (f"{namespace_of(pod)}/{name}",) if name else ()


def matching_group_claim(group: Object, entry: Object) -> str | None:
    """Claim of the group that stands for a pod's entry: None when none matches, empty when not made yet.

    A claim that the group names itself stands for an equal entry of a pod at once.
    """
    fields = ("name", "resourceClaimName", "resourceClaimTemplateName")
    for candidate in children(group, "spec", "resourceClaims"):
        if all((candidate.get(field) or "") == (entry.get(field) or "") for field in fields):
            if candidate.get("resourceClaimName"):
                return str(candidate["resourceClaimName"])
            for status in children(group, "status", "resourceClaimStatuses"):
                if status["name"] == entry["name"]:
                    return status.get("resourceClaimName") or ""
            return ""
    return None


def minimum_of(group: Object) -> int:
    """How many pods of the group have to start together; 0 for a group without such a demand."""
    return int(at(group, "spec", "schedulingPolicy", "gang", "minCount") or 0)


def is_controlled_by_group(claim: Any, name: str) -> bool:
    """Whether the claim was made for the PodGroup of that name; its version does not matter."""
    owner = controller_of(claim)
    return (
        owner is not None
        and bool(name)
        and owner.name == name
        and owner.kind == PODGROUP.kind
        and owner.apiVersion.partition("/")[0] == PODGROUP.group
    )
