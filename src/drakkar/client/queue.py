"""A queue of keys: each waits at most once, none is handed out twice at a time."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Hashable

from drakkar.api.clock import Clock

#: First and longest pause after a failure, in seconds; it doubles with every failure.
FIRST_BACKOFF, LONGEST_BACKOFF = 0.1, 30.0


class KeyQueue:
    """Keys to work on. A key that is added while it is worked on comes back when it is done."""

    def __init__(self, clock: Clock, rng: random.Random | None = None):
        self._clock = clock
        self._rng = rng or random.Random()
        self._ready: deque[Hashable] = deque()
        self._waiting: set[Hashable] = set()
        self._busy: set[Hashable] = set()
        self._again: set[Hashable] = set()
        self._later: list[tuple[float, int, Hashable]] = []
        #: When each delayed key is due. What else is in the heap for it is void: a key with many timers, each of which
        #: leads to another, would never come to rest.
        self._due: dict[Hashable, float] = {}
        self._count = 0
        self._failures: dict[Hashable, int] = {}
        self._some = asyncio.Event()
        self._new_timer = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready) + len(self._busy) + len(self._due)

    def add(self, key: Hashable) -> None:
        """Wants ``key`` worked on as soon as possible."""
        if key in self._busy:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.append(key)
            self._some.set()

    def add_after(self, key: Hashable, seconds: float) -> None:
        """Wants ``key`` worked on in ``seconds``, or earlier where that is wanted already."""
        if seconds <= 0:
            self.add(key)
            return
        due = self._clock.monotonic() + seconds
        if self._due.get(key, due + 1) <= due:
            return
        self._count += 1
        self._due[key] = due
        heapq.heappush(self._later, (due, self._count, key))
        self._new_timer.set()

    def fail(self, key: Hashable, first: float = FIRST_BACKOFF) -> float:
        """Brings ``key`` back after a pause that starts at ``first`` and doubles with every failure; answers it."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause = min(first * 2 ** min(failures - 1, 20), LONGEST_BACKOFF) * (0.75 + self._rng.random() / 2)
        self.add_after(key, pause)
        return pause

    def forget(self, key: Hashable) -> None:
        """The key went well: the next failure starts with the first pause again."""
        self._failures.pop(key, None)

    def failures(self, key: Hashable) -> int:
        """Failures of ``key`` since it last went well."""
        return self._failures.get(key, 0)

    async def take(self) -> Hashable:
        """The next key, now busy; ends with :meth:`done`."""
        while not self._ready:
            self._some.clear()
            await self._some.wait()
        key = self._ready.popleft()
        self._waiting.discard(key)
        self._busy.add(key)
        return key

    def done(self, key: Hashable) -> None:
        """The work on ``key`` ended."""
        self._busy.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    async def run_timers(self) -> None:
        """Moves delayed keys when their time comes, until cancelled."""
        while True:
            self._new_timer.clear()
            now = self._clock.monotonic()
            while self._later and self._later[0][0] <= now:
                due, _, key = heapq.heappop(self._later)
                if self._due.get(key) == due:
                    del self._due[key]
                    self.add(key)
            if not self._later:
                await self._new_timer.wait()
                continue
            sleep = asyncio.create_task(self._clock.sleep(self._later[0][0] - now), name="queue-timer")
            changed = asyncio.create_task(self._new_timer.wait(), name="queue-changed")
            try:
                await asyncio.wait((sleep, changed), return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleep.cancel()
                changed.cancel()
