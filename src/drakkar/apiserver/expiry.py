"""Objects that live for a time only: events are dropped an hour after their last write."""

from __future__ import annotations

import asyncio
from collections import deque

from drakkar.apiserver.registry import Registry
from drakkar.apiserver.ticker import Ticker
from drakkar.apiserver.views import View

#: Seconds between two looks for what has expired.
_PERIOD = 60.0


class Expiry:
    """Removes what the registry wrote with a lifetime."""

    def __init__(self, registry: Registry, ticker: Ticker):
        self._registry = registry
        self._ticker = ticker
        #: (end of life, view, key, revision) in the order of writes; one lifetime for all, so also of ends.
        self._queue: deque[tuple[float, View, str, int]] = deque()
        self._task: asyncio.Task[None] | None = None
        self.due = 0.0
        registry.on_passing = self._written

    def _written(self, view: View, key: str, revision: int) -> None:
        lifetime = view.stored.lifetime
        assert lifetime is not None
        if not self._queue:
            self.due = self._ticker.now() + lifetime
            self._ticker.add(self)
        self._queue.append((self._ticker.now() + lifetime, view, key, revision))

    def wake(self) -> None:
        """Removes what has expired."""
        self.due = self._ticker.now() + _PERIOD
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._sweep(), name="apiserver expiry")

    async def _sweep(self) -> None:
        now = self._ticker.now()
        while self._queue and self._queue[0][0] <= now:
            _, view, key, revision = self._queue.popleft()
            entry = view.table.entries.get(key)
            if entry is None or entry.revision != revision:
                continue  # gone, or written again: a later place in the queue stands for it
            if view.stored.store_key(entry.namespace, entry.name) not in self._registry.committer.busy:
                await self._registry.remove(view, entry, False)
        if not self._queue:
            self._ticker.remove(self)
