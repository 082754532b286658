"""The answers of the allocator: fits, does not fit (with the reason), gave up, failed."""

from __future__ import annotations

import msgspec

from drakkar.allocator.reasons import Reason
from drakkar.api.resource.v1 import AllocationResult


class Fits(msgspec.Struct, frozen=True):
    """One allocation per claim, in the order of the claims."""

    allocations: tuple[AllocationResult, ...]
    #: How much of what could be given out on the node before can no longer be (policy ``drakkar``).
    lost: float = 0.0
    #: Weight of the preferred constraints that are not kept.
    unmet: int = 0


class NoFit(msgspec.Struct, frozen=True):
    """No choice of devices satisfies the claims on this node; ``proved`` is always true today."""

    reason: Reason
    proved: bool = True


class GaveUp(msgspec.Struct, frozen=True):
    """The budget ended before the search did; never to be read as "does not fit"."""

    reason: Reason


class Failed(msgspec.Struct, frozen=True):
    """An error: class as in the oracle's README; ``node_only`` leaves other nodes worth trying."""

    error_class: str
    message: str
    node_only: bool = False


Outcome = Fits | NoFit | GaveUp | Failed


class Fault(Exception):
    """Carries an error out of the depth of a search; never leaves the allocator."""

    def __init__(self, error_class: str, message: str) -> None:
        super().__init__(message)
        self.error_class = error_class
        self.message = message
