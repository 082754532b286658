"""Requests to candidates to a choice of devices, and the reasons where there is none. Pure.

``prepare(snapshot, claims, policy)`` gives a :class:`Problem`; ``feasible()`` asks for all nodes at once,
``solve(node)`` for the exact answer on one.
"""

from drakkar.allocator.api import allocate, snapshot
from drakkar.allocator.outcomes import Failed, Fits, GaveUp, NoFit, Outcome
from drakkar.allocator.problem import DEFAULT_BUDGET, Feasible, Problem, explain, prepare
from drakkar.allocator.reasons import Reason

__all__ = [
    "DEFAULT_BUDGET",
    "Failed",
    "Feasible",
    "Fits",
    "GaveUp",
    "NoFit",
    "Outcome",
    "Problem",
    "Reason",
    "allocate",
    "explain",
    "prepare",
    "snapshot",
]
