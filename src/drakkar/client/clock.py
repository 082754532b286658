"""The real clock; beside it, for those who have one, the API's way of writing a point in time."""

from __future__ import annotations

import asyncio
import time

from drakkar.api.times import parse_timestamp, timestamp

__all__ = ["SystemClock", "parse_timestamp", "timestamp"]


class SystemClock:
    """The machine's clock (implements `drakkar.api.clock.Clock`)."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
