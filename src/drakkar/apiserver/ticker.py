"""One timer for all watches: once a second it wakes those whose time has come.

Ten thousand watches would otherwise mean ten thousand sleeping tasks. Precision is a second,
which is what ``timeoutSeconds`` and bookmarks need.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from drakkar.api.clock import Clock

PERIOD = 1.0


class Sleeper(Protocol):
    """Somebody who wants to be woken at ``due`` (seconds on the monotonic clock)."""

    due: float

    def wake(self) -> None: ...


class Ticker:
    """Wakes sleepers, on the clock it is given; runs while there are any."""

    def __init__(self, clock: Clock):
        self._clock = clock
        self._sleepers: set[Sleeper] = set()
        self._task: asyncio.Task[None] | None = None

    def now(self) -> float:
        """Seconds on the monotonic clock."""
        return self._clock.monotonic()

    def add(self, sleeper: Sleeper) -> None:
        """Wakes ``sleeper`` at every tick at which it is due, until it is removed."""
        self._sleepers.add(sleeper)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="apiserver ticker")

    def __len__(self) -> int:
        """How many sleepers there are."""
        return len(self._sleepers)

    def remove(self, sleeper: Sleeper) -> None:
        """Forgets a sleeper."""
        self._sleepers.discard(sleeper)

    async def _run(self) -> None:
        while self._sleepers:
            await self._clock.sleep(PERIOD)
            now = self._clock.monotonic()
            for sleeper in [sleeper for sleeper in self._sleepers if sleeper.due <= now]:
                sleeper.wake()

    async def close(self) -> None:
        """Stops ticking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
