"""Bounds on memory and time that costs do not see.

Costs follow the reference, where a list made of two others costs one unit whatever its length. What
grows faster than its cost is stopped here. A :class:`LimitExceeded` is no evaluation error while
it travels, so that no operator absorbs it; programs turn it into the error of the cost limit.
"""

from __future__ import annotations

from typing import Final

#: Characters of a text and elements of a list that a function may yield.
MAX_SIZE: Final = 4_000_000
#: Elements and characters that one evaluation may make by functions, and pairs of them that it may compare.
MAX_WORK: Final = 20_000_000
#: Parts of two values that one comparison may look at.
MAX_COMPARED: Final = 2_000_000


class LimitExceeded(Exception):
    """An evaluation needs more than it may."""


def check_size(size: int) -> None:
    """Refuses values that are too large."""
    if size > MAX_SIZE:
        raise LimitExceeded


class Work:
    """Counts what comparisons look at; one for the process, because only differences are read."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = 0


WORK: Final = Work()
