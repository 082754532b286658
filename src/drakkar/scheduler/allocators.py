"""Who else allocates: told by the field managers of the allocations that there are.

Beside another allocator on the same devices a fence or the webhook is needed; that there is one shows here.
"""

from __future__ import annotations

from collections import Counter

from drakkar.api.objects import uid_of
from drakkar.api.resource import v1 as resource

#: Our own field manager: servers take it from the user agent.
OURS = "drakkar"


class Allocators:
    """Field managers of the allocations of all claims, as the watch shows them."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}
        self._claims: Counter[str] = Counter()

    def note(self, claim: resource.ResourceClaim, allocation: resource.AllocationResult | None) -> None:
        """Takes over who has allocated a claim; None for nobody, or a claim that is gone."""
        uid = uid_of(claim)
        manager = allocator_of(claim) if allocation is not None else ""
        old = self._of.get(uid, "")
        if manager == old:
            return
        if old:
            del self._of[uid]
            self._claims[old] -= 1
        if manager:
            self._of[uid] = manager
            self._claims[manager] += 1

    def foreign(self) -> int:
        """How many others hold allocations just now."""
        return sum(1 for manager, claims in self._claims.items() if claims and manager != OURS)


def allocator_of(claim: resource.ResourceClaim) -> str:
    """The field manager that wrote the allocation; empty where the server does not tell."""
    for entry in claim.metadata.managedFields or ():
        status = (entry.get("fieldsV1") or {}).get("f:status")
        if isinstance(status, dict) and "f:allocation" in status:
            return str(entry.get("manager") or "")
    return ""
