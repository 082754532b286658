"""One timer for all watches: futures that end at a time, checked once a second while there are any.

Ten thousand watches would otherwise mean ten thousand sleeping tasks. Precision is a second,
which is what ``timeoutSeconds`` and bookmarks need.
"""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

from drakkar.api.clock import Clock

PERIOD = 1.0


class Ticker:
    """Ends futures when their time has come, on the clock it is given."""

    def __init__(self, clock: Clock):
        self._clock = clock
        self._heap: list[tuple[float, int, asyncio.Future[None]]] = []
        self._cancelled = 0
        self._order = count()
        self._task: asyncio.Task[None] | None = None

    def now(self) -> float:
        """Seconds on the monotonic clock."""
        return self._clock.monotonic()

    def at(self, when: float, future: asyncio.Future[None]) -> None:
        """Ends ``future`` at ``when`` unless it has ended by then."""
        heapq.heappush(self._heap, (when, next(self._order), future))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="apiserver ticker")

    def cancel(self, future: asyncio.Future[None]) -> None:
        """Says that ``future`` is of no interest any more; the heap is cleaned when half of it is stale."""
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled * 2 > len(self._heap):
            self._cancelled = 0
            self._heap = [item for item in self._heap if not item[2].done() and item[2] is not future]
            heapq.heapify(self._heap)

    async def _run(self) -> None:
        while self._heap:
            await self._clock.sleep(PERIOD)
            now = self._clock.monotonic()
            while self._heap and self._heap[0][0] <= now:
                future = heapq.heappop(self._heap)[2]
                if not future.done():
                    future.set_result(None)

    async def close(self) -> None:
        """Ends everybody's wait."""
        if self._task is not None:
            self._task.cancel()
        for _, _, future in self._heap:
            if not future.done():
                future.set_result(None)
        self._heap.clear()
