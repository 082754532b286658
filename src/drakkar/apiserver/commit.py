"""The way from a decided write to the cache.

:class:`Committer` is for a store that only this server writes to: one commit in flight, everything
waiting rides in the next. While a batch is on its way to disk, further writes gather; so a slow disk
costs latency but not throughput. :class:`PeerCommitter` is for a store with several servers: what
comes back from the store, from whichever server, is what counts (`drakkar.apiserver.peers`).

With both a key with a write in flight is *busy*: whoever wants to write it again waits and decides
anew on what was committed. Readers never see anything that is not durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drakkar.apiserver.cache import Change, Entry, State, Table, restamp
from drakkar.store.base import Answer, Backend, Conflict, Progress, Refused, StoreFailed, Write
from drakkar.store.failpoints import Failpoints

_log = logging.getLogger(__name__)

#: What a writer gets: the committed entry (for a delete: the last state), or why there is none.
Outcome = Entry | Conflict | Refused


@dataclass(slots=True, eq=False)
class Decided:
    """A write that passed all checks. ``entry`` lacks its revision; for a delete it is the last state."""

    table: Table
    key: str
    write: Write
    entry: Entry
    done: asyncio.Future[Outcome]
    #: Names under which crash tests count it.
    points: tuple[str, ...]
    #: The newest change of the key that came back from the store since this was submitted.
    seen: Change | None = None
    #: Among those the one that does what was decided.
    ours: Change | None = None
    #: The revision that the store gave it.
    revision: int = 0


class Committer:
    """Sends batches to the backend and applies what was committed, in order."""

    #: Whether other servers write to the same store.
    shared = False

    def __init__(self, backend: Backend, state: State, failpoints: Failpoints | None = None):
        self.backend = backend
        self.state = state
        self._failpoints = failpoints
        self._queue: list[Decided] = []
        self._running = False
        self.busy: dict[str, asyncio.Future[Outcome]] = {}
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
    ) -> asyncio.Future[Outcome]:
        """Queues a write; the key must not be busy. The future fails when the store does."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Outcome] = loop.create_future()
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
        self._send(batch, hits)

    def _send(self, batch: list[Decided], hits: list[tuple[str, int]]) -> None:
        future = self.backend.commit([decided.write for decided in batch])
        future.add_done_callback(lambda answered: self._apply(batch, hits, answered))

    def _apply(
        self, batch: Sequence[Decided], hits: list[tuple[str, int]], answered: asyncio.Future[list[Answer]]
    ) -> None:
        error = StoreFailed("the commit was cancelled") if answered.cancelled() else answered.exception()
        if error is not None:
            self.fail(error, batch)
            return
        if self._failpoints is not None:
            self._failpoints.after(hits)
        try:
            self._settle(batch, answered.result())
        except Exception as fault:
            # Committed but not taken over: memory and disk differ now, which only a restart mends.
            _log.exception("a committed write could not be taken over")
            self.fail(fault, batch)
            return
        self.batches += 1
        self._settled()

    def _settled(self) -> None:
        self.state.wake()
        self._flush()

    def _settle(self, batch: Sequence[Decided], answers: list[Answer]) -> None:
        """Takes committed writes over into the cache and answers their writers."""
        state = self.state
        # In the order of revisions: a store may give those of different keys in any order.
        pairs = sorted(zip(batch, answers, strict=True), key=lambda pair: pair[1] if isinstance(pair[1], int) else 0)
        for decided, answer in pairs:
            result: Outcome
            if not isinstance(answer, int):
                result = answer
            elif decided.write.value is not None:
                result = decided.entry
                result.revision = answer
                result.tail = decided.table.tail(decided.write.value, answer)
                state.put(decided.table, result)
            else:
                result = state.remove(decided.table, decided.key, answer, decided.entry).entry
            self._resolve(decided, result)

    def _resolve(self, decided: Decided, result: Outcome) -> None:
        self.busy.pop(decided.write.key, None)
        if not decided.done.done():
            decided.done.set_result(result)

    def fail(self, error: BaseException, batch: Sequence[Decided] = ()) -> None:
        """Nothing may be written any more; whoever waits for a write is told."""
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


class PeerCommitter(Committer):
    """Hands writes to a store with several servers, and takes over from it what any of them wrote.

    A writer is answered once its write has come back: then the cache has it, in its place between
    the writes of the others.
    """

    shared = True

    def __init__(self, backend: Backend, state: State, failpoints: Failpoints | None = None):
        super().__init__(backend, state, failpoints)
        #: Store key → the write of this server that is under way.
        self._flying: dict[str, Decided] = {}
        #: Decided writes whose outcome waits for the cache to have seen what made them fail.
        self.catch_up: Callable[[], asyncio.Future[None]] | None = None

    def _send(self, batch: list[Decided], hits: list[tuple[str, int]]) -> None:
        for decided in batch:
            self._flying[decided.write.key] = decided
        # The store itself puts together what waits for it.
        self._running = False
        super()._send(batch, hits)

    def _settled(self) -> None:
        pass  # nothing has changed yet, and nothing waits for the end of a batch

    def _settle(self, batch: Sequence[Decided], answers: list[Answer]) -> None:
        losers: list[tuple[Decided, Conflict]] = []
        for decided, answer in zip(batch, answers, strict=True):
            if isinstance(answer, int):
                decided.revision = answer
                if decided.seen is not None and decided.seen.revision >= answer:
                    self._land(decided, self._committed(decided, answer))
            elif isinstance(answer, Conflict):
                losers.append((decided, answer))
            else:
                self._land(decided, answer)
        if losers:
            assert self.catch_up is not None
            self.catch_up().add_done_callback(lambda caught_up: self._explain(losers, caught_up))

    def _explain(self, losers: list[tuple[Decided, Conflict]], caught_up: asyncio.Future[None]) -> None:
        """Answers writes that met another state than expected, now that the cache shows which one."""
        failed = caught_up.cancelled() or caught_up.exception() is not None
        for decided, conflict in losers:
            if failed:
                why = "the store does not answer"
                self._land(decided, Refused(conflict.key, why, unclear=conflict.unclear))
            elif conflict.unclear and decided.ours is not None:
                # The attempt whose answer was lost did it, whatever others have made of it since.
                self._land(decided, self._committed(decided, decided.ours.revision))
            else:
                self._land(decided, conflict)

    @staticmethod
    def _committed(decided: Decided, revision: int) -> Entry:
        return decided.entry if decided.write.value is not None else restamp(decided.entry, revision)

    def _land(self, decided: Decided, result: Outcome) -> None:
        self._flying.pop(decided.write.key, None)
        self._resolve(decided, result)

    def take(self, progress: Progress) -> None:
        """Takes over writes of all servers, in the order of their revisions."""
        state = self.state
        for key, revision, value in progress.records:
            decided = self._flying.get(key)
            # An entry without a revision is not in the cache yet.
            known = decided.entry if decided and not decided.entry.revision and decided.write.value == value else None
            change = state.take(key, revision, value, known)
            if decided is not None and change is not None:
                decided.seen = change
                if known is not None or (value is None and decided.write.value is None and decided.ours is None):
                    decided.ours = change
                if decided.revision == revision:
                    self._land(decided, self._committed(decided, revision))
        state.revision = max(state.revision, progress.reached)
        state.wake()

    def fail(self, error: BaseException, batch: Sequence[Decided] = ()) -> None:
        flying, self._flying = self._flying, {}
        super().fail(error, list({id(decided): decided for decided in [*batch, *flying.values()]}.values()))
