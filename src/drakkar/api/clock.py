"""The interface of a clock; no clock itself.

Everything that needs time gets a :class:`Clock` passed in, so that any part runs under a
virtual one. The real one is `drakkar.client.clock.SystemClock`.
"""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Seconds as floats; ``time`` counts from the Unix epoch, ``monotonic`` from anywhere."""

    def time(self) -> float: ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...
