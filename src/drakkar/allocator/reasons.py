"""Why claims do not fit, as data.

One :class:`Reason` names the stage at which the search ran out of devices, in the words of the
real-world corpus, with the number of devices left after each stage (the *funnel*), for the
scheduler's condition, ``drakkar explain`` and other programs.
"""

from __future__ import annotations

from typing import Final

from drakkar.api.meta import Struct

#: Stages of the search, in order. What a pod is pending for is the stage that it ended at.
STAGES: Final = (
    "no-slice-of-driver",
    "no-device-matches",
    "cel-runtime-error",
    "request-exceeds-device",
    "tainted",
    "in-use",
    "not-enough-devices",
    "counters-exhausted",
    "capacity-exhausted",
    "constraint-unsatisfied",
)

#: Words outside the order of stages.
OTHER_WORDS: Final = (
    "identity-clash",
    "claim-too-large",
    "class-missing",
    "pool-incomplete",
    "feature-off",
    "undecided",
    "no-node",
)


class Reason(Struct, frozen=True, kw_only=True):
    """Why. ``reason`` is the word, ``message`` one sentence for people; counts are devices."""

    reason: str
    message: str
    #: ``namespace/name`` of the claim, or just its name.
    claim: str = ""
    #: Name of the request, ``request/alternative`` for one of several alternatives.
    request: str = ""
    #: Stage → devices left after it, in order of the stages.
    funnel: dict[str, int] = {}
    #: How many nodes ended at this reason.
    nodes: int = 0
    #: The node, device or amount that came closest.
    nearest: str = ""
    #: What would make it fit.
    cure: str = ""
