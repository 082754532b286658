"""The way from a decided write to the cache: one commit in flight, everything waiting rides in the next.

While a batch is on its way to disk, further writes gather; so a slow disk costs latency but
not throughput. A key with a write in flight is *busy*: whoever wants to write it again waits and
decides anew on what was committed. Readers never see anything that is not durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from drakkar.apiserver.cache import Entry, State, Table
from drakkar.store.base import Backend, Conflict, StoreFailed, Write
from drakkar.store.failpoints import Failpoints

_log = logging.getLogger(__name__)


class Decided(NamedTuple):
    """A write that passed all checks. ``entry`` lacks its revision; for a delete it is the last state."""

    table: Table
    key: str
    write: Write
    entry: Entry
    done: asyncio.Future[Entry | Conflict]
    #: Names under which crash tests count it.
    points: tuple[str, ...]


class Committer:
    """Sends batches to the backend and applies what was committed, in order."""

    def __init__(self, backend: Backend, state: State, failpoints: Failpoints | None = None):
        self.backend = backend
        self.state = state
        self._failpoints = failpoints
        self._queue: list[Decided] = []
        self._running = False
        self.busy: dict[str, asyncio.Future[Entry | Conflict]] = {}
        #: Set when the store failed: nothing may be written any more.
        self.failure: BaseException | None = None
        self.on_failure: Callable[[BaseException], None] | None = None
        #: How many batches were committed.
        self.batches = 0
        #: Whether somebody counts writes by name.
        self.counts = failpoints is not None

    def submit(
        self,
        table: Table,
        key: str,
        write: Write,
        entry: Entry,
        points: tuple[str, ...] = (),
    ) -> asyncio.Future[Entry | Conflict]:
        """Queues a write; the key must not be busy. The future fails when the store does."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Entry | Conflict] = loop.create_future()
        if self.failure is not None:
            done.set_exception(StoreFailed(str(self.failure)))
            return done
        self.busy[write.key] = done
        self._queue.append(Decided(table, key, write, entry, done, points))
        if not self._running:
            self._running = True
            loop.call_soon(self._flush)
        return done

    def _flush(self) -> None:
        batch, self._queue = self._queue, []
        if not batch:
            self._running = False
            return
        hits: list[tuple[str, int]] = []
        if self._failpoints is not None:
            names = [name for decided in batch for name in decided.points]
            hits = self._failpoints.before([*names, "store-commit"])
        future = self.backend.commit([decided.write for decided in batch])
        future.add_done_callback(lambda answered: self._apply(batch, hits, answered))

    def _apply(
        self, batch: Sequence[Decided], hits: list[tuple[str, int]], answered: asyncio.Future[list[int | Conflict]]
    ) -> None:
        error = StoreFailed("the commit was cancelled") if answered.cancelled() else answered.exception()
        if error is not None:
            self._fail(batch, error)
            return
        if self._failpoints is not None:
            self._failpoints.after(hits)
        try:
            self._settle(batch, answered.result())
        except Exception as fault:
            # Committed but not taken over: memory and disk differ now, which only a restart mends.
            _log.exception("a committed write could not be taken over")
            self._fail(batch, fault)
            return
        self.batches += 1
        self.state.wake()
        self._flush()

    def _settle(self, batch: Sequence[Decided], answers: list[int | Conflict]) -> None:
        """Takes committed writes over into the cache and answers their writers."""
        state = self.state
        # In the order of revisions: a store may give those of different keys in any order.
        pairs = sorted(zip(batch, answers, strict=True), key=lambda pair: pair[1] if isinstance(pair[1], int) else 0)
        for decided, answer in pairs:
            self.busy.pop(decided.write.key, None)
            result: Entry | Conflict
            if isinstance(answer, Conflict):
                result = answer
            elif decided.write.value is not None:
                result = decided.entry
                result.revision = answer
                result.tail = decided.table.tail(decided.write.value, answer)
                state.put(decided.table, result)
            else:
                result = state.remove(decided.table, decided.key, answer, decided.entry).entry
            if not decided.done.done():
                decided.done.set_result(result)

    def _fail(self, batch: Sequence[Decided], error: BaseException) -> None:
        self.failure = error
        queue, self._queue = self._queue, []
        for decided in [*batch, *queue]:
            self.busy.pop(decided.write.key, None)
            if not decided.done.done():
                decided.done.set_exception(StoreFailed(str(error)))
                decided.done.exception()  # nobody may be waiting any more
        if self.on_failure is not None:
            self.on_failure(error)

    async def drained(self) -> None:
        """Ends when nothing is queued or in flight."""
        while self.busy:
            await asyncio.wait(list(self.busy.values()))
