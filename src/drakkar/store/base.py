"""What a store is: bytes under string keys with one growing revision.

Every accepted write gets a revision of its own, above all earlier ones, whichever key it is for.
A write may demand the revision at which its key was last written. Writes of one batch are judged
one by one; those of one key in order, different keys in any. They are answered together, when
all are durable. A store knows nothing of what the bytes mean.

A write that the store could not do is answered with :class:`Refused`, and the store goes on. A commit
that raises leaves it unusable (:class:`StoreFailed` from then on): what is on disk is unknown to the
caller, who has to start again from :meth:`Backend.load`.

A :class:`SharedBackend` is one that several servers write to at the same time. Each of them
learns of all writes, its own among them, from :meth:`SharedBackend.feed`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable


class StoreFailed(Exception):
    """A commit failed, or the store failed earlier; only a restart from disk helps."""


class Compacted(Exception):
    """The changes asked for are older than the history that is kept."""


class Write(NamedTuple):
    """One write of a batch.

    ``expected`` is the revision the key must have: 0 means that it must not exist, None that it does
    not matter. ``value`` None deletes. With ``durable`` false the write only has to take a revision and
    may be forgotten by a restart (short-lived data such as events).
    """

    key: str
    expected: int | None
    value: bytes | None
    durable: bool = True


class Conflict(NamedTuple):
    """Answer to a write whose ``expected`` did not hold; ``actual`` is 0 for an absent key.

    ``unclear``: the write was tried more than once, and an attempt whose answer was lost may be
    what made the key differ.
    """

    key: str
    actual: int
    unclear: bool = False


class Refused(NamedTuple):
    """Answer to a write that could not be done, for the reason ``why``; the store itself goes on.

    ``full``: there is no room. ``unclear``: it may have been done all the same.
    """

    key: str
    why: str
    full: bool = False
    unclear: bool = False


#: What became of a write: its revision, or why it has none.
Answer = int | Conflict | Refused


class Record(NamedTuple):
    """A key with its value as of ``revision``; ``value`` is None in changes that delete."""

    key: str
    revision: int
    value: bytes | None


class Backend(Protocol):
    """A store that is open. One process writes to it at a time, unless it is a :class:`SharedBackend`."""

    #: Most bytes of a value, None without a limit; a commit of more fails, so look before.
    value_limit: int | None

    @property
    def revision(self) -> int:
        """Revision of the newest write, or a higher one that no write will get."""
        ...

    def load(self) -> Iterator[Record]:
        """All keys with their values, in no order; to be read before the first commit."""
        ...

    def commit(self, batch: Sequence[Write]) -> asyncio.Future[list[Answer]]:
        """Apply the batch; the future holds one answer per write once it is durable.

        Writes of one key take effect in the order of the calls. The future fails with StoreFailed.
        """
        ...

    def changes(self, after: int) -> AsyncIterator[Record]:
        """Writes with a revision above ``after``, in order, without end; raises Compacted."""
        ...

    async def compact(self, revision: int) -> None:
        """Forget changes up to ``revision``."""
        ...

    async def close(self) -> None:
        """Finish what was committed and let go of the data; a second call does nothing."""
        ...


class Progress(NamedTuple):
    """Writes that came after all earlier ones; nothing up to ``reached`` is still to come."""

    records: list[Record]
    reached: int


@runtime_checkable
class SharedBackend(Backend, Protocol):
    """A store that several servers use as peers."""

    def agree(self, name: str, value: bytes) -> bytes:
        """What all servers of this data have in common under this name: ``value`` if nobody was quicker. Blocks."""
        ...

    async def latest(self) -> int:
        """A revision that no write acknowledged to anybody before the call lies above. Raises StoreFailed."""
        ...

    def feed(self, after: int) -> AsyncGenerator[Progress]:
        """All writes of all servers above ``after``, in order, without end; raises Compacted or StoreFailed."""
        ...


class History:
    """The newest changes, for :meth:`Backend.changes`; bounded, so that memory stays flat."""

    def __init__(self, floor: int, size: int = 256):
        self._records: deque[Record] = deque()
        self._floor = floor
        self._size = size
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = False

    def append(self, records: Sequence[Record]) -> None:
        """Adds committed changes and wakes the readers."""
        self._records.extend(records)
        while len(self._records) > self._size:
            self._floor = self._records.popleft().revision
        self._wake()

    def compact(self, revision: int) -> None:
        """Drops changes up to ``revision``."""
        while self._records and self._records[0].revision <= revision:
            self._records.popleft()
        self._floor = max(self._floor, revision)

    def close(self) -> None:
        """Ends all readers."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def read(self, after: int) -> AsyncIterator[Record]:
        """Changes above ``after`` as they come."""
        while True:
            if after < self._floor:
                raise Compacted(f"changes after revision {after} are gone, the oldest kept follow {self._floor}")
            news = [record for record in self._records if record.revision > after]
            for record in news:
                yield record
                after = record.revision
            if not news:
                if self._closed:
                    return
                future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.add(future)
                try:
                    await future
                finally:
                    self._waiting.discard(future)
