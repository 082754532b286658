"""Which alternative of a request an allocation took (``firstAvailable``, spec/scheduling.md 7).

Every node takes the first alternative that fits there. Across nodes the sum of what was taken
decides, so that a node with second-best devices does not win because it was tried first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from drakkar.api.resource import v1 as resource

#: What the first alternative of a request counts; every further one counts one less.
FIRST = 8


def highest(claims: Iterable[resource.ResourceClaim]) -> int:
    """The sum if every request got its first alternative; 0 when no request has alternatives."""
    return sum(FIRST for claim in claims for request in claim.spec.devices.requests or () if request.firstAvailable)


def taken(allocations: Iterable[tuple[resource.ResourceClaim, resource.AllocationResult]]) -> int:
    """The sum over the requests with alternatives."""
    total = 0
    for claim, allocation in allocations:
        chosen = {result.request for result in allocation.devices.results or ()}
        for request in claim.spec.devices.requests or ():
            for number, alternative in enumerate(request.firstAvailable or ()):
                if f"{request.name}/{alternative.name}" in chosen:
                    total += FIRST - number
                    break
    return total


def first_choices(claims: Sequence[resource.ResourceClaim]) -> list[resource.ResourceClaim]:
    """The claims as if there were first alternatives only."""
    return [msgspec.structs.replace(claim, spec=_first_only(claim.spec)) for claim in claims]


def _first_only(spec: resource.ResourceClaimSpec) -> resource.ResourceClaimSpec:
    requests = [
        msgspec.structs.replace(request, firstAvailable=request.firstAvailable[:1])
        if request.firstAvailable
        else request
        for request in spec.devices.requests or ()
    ]
    return msgspec.structs.replace(spec, devices=msgspec.structs.replace(spec.devices, requests=requests))
