"""Killing oneself at a chosen write, to prove that a restart finds everything in order.

``DRAKKAR_FAILPOINTS="binding:3:before,store-commit:10:after"`` makes the process send itself
SIGKILL before (or after) the third write that counts as ``binding`` becomes durable, or at the
tenth commit of the store. Names of writes come from a function that the owner of the store
hands in, ``store-commit`` counts whole commits. Without the variable nothing is made at all.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

VARIABLE = "DRAKKAR_FAILPOINTS"
Phase = Literal["before", "after"]


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Failpoints:
    """Counts hits of named points and calls ``die`` at the chosen one."""

    def __init__(self, chosen: Mapping[str, Iterable[tuple[int, Phase]]], die: Callable[[], None] = _die):
        self._chosen = {name: set(points) for name, points in chosen.items()}
        self._hits: dict[str, int] = dict.fromkeys(self._chosen, 0)
        self._die = die

    @classmethod
    def parse(cls, text: str, die: Callable[[], None] = _die) -> Failpoints | None:
        """Reads the form ``name:nth:before|after``, separated by commas; None when empty, ValueError when wrong."""
        chosen: dict[str, list[tuple[int, Phase]]] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, nth, phase = [*part.split(":"), "", ""][:3]
            if not name or not nth.isdigit() or int(nth) < 1 or phase not in ("before", "after"):
                raise ValueError(f"{VARIABLE}: {part!r} is not of the form name:nth:before or name:nth:after")
            chosen.setdefault(name, []).append((int(nth), "before" if phase == "before" else "after"))
        return cls(chosen, die) if chosen else None

    @classmethod
    def from_environment(cls) -> Failpoints | None:
        """What the environment asks for; None, so that the caller pays nothing, when it asks for nothing."""
        return cls.parse(os.environ.get(VARIABLE, ""))

    def before(self, names: Iterable[str]) -> list[tuple[str, int]]:
        """Counts a hit of every name in order; hand the result to :meth:`after` once it is durable."""
        hits: list[tuple[str, int]] = []
        for name in names:
            if name in self._hits:
                self._hits[name] += 1
                hits.append((name, self._hits[name]))
        for name, nth in hits:
            if (nth, "before") in self._chosen[name]:
                self._die()
        return hits

    def after(self, hits: Iterable[tuple[str, int]]) -> None:
        """The second half of :meth:`before`."""
        for name, nth in hits:
            if (nth, "after") in self._chosen[name]:
                self._die()
