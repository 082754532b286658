"""Objects that live for a time only: events are dropped an hour after their last write.

Every server follows all writes of such objects and drops what has expired; of several servers the first does it.
"""

from __future__ import annotations

import asyncio
from collections import deque

from drakkar.apiserver.cache import Change, Entry
from drakkar.apiserver.registry import Registry
from drakkar.apiserver.status import StatusError
from drakkar.apiserver.ticker import Ticker
from drakkar.apiserver.views import View

#: Seconds between two looks for what has expired.
_PERIOD = 60.0


class Expiry:
    """Removes objects of kinds with a lifetime."""

    def __init__(self, registry: Registry, ticker: Ticker):
        self._registry = registry
        self._ticker = ticker
        #: (end of life, view, key, revision) in the order of writes; one lifetime for all, so also of ends.
        self._queue: deque[tuple[float, View, str, int]] = deque()
        self._task: asyncio.Task[None] | None = None
        self.due = 0.0

    def start(self) -> None:
        """Follows the tables; what they hold already lives its whole time from now on."""
        for served in self._registry.catalog.served.values():
            stored = served.stored
            if stored is None or stored.lifetime is None:
                continue
            view = self._registry.view(served)
            if view.hub and view.table.listener is None:
                for entry in view.table.entries.values():
                    self._written(view, entry)
                view.table.listener = lambda change, view=view: self._changed(view, change)

    def _changed(self, view: View, change: Change) -> None:
        if change.type != "DELETED":
            self._written(view, change.entry)

    def _written(self, view: View, entry: Entry) -> None:
        lifetime = view.stored.lifetime
        assert lifetime is not None
        if not self._queue:
            self.due = self._ticker.now() + lifetime
            self._ticker.add(self)
        self._queue.append((self._ticker.now() + lifetime, view, entry.key, entry.revision))

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
                try:
                    await self._registry.remove(view, entry, False)
                except StatusError:
                    continue  # another server was quicker, or the store has no room just now
        if not self._queue:
            self._ticker.remove(self)
