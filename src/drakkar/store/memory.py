"""A store that forgets: for tests, simulations and ``--store memory``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

from drakkar.store.base import Answer, Conflict, History, Record, StoreFailed, Write


class MemoryBackend:
    """A dict with revisions. It outlives the server on top of it: a second server may load it again."""

    value_limit: int | None = None

    def __init__(self) -> None:
        self._data: dict[str, tuple[int, bytes]] = {}
        #: Keys of writes that are not durable, with their revisions.
        self._passing: dict[str, int] = {}
        self._revision = 0
        self._history = History(0)
        self._closed = False

    @property
    def revision(self) -> int:
        return self._revision

    def load(self) -> Iterator[Record]:
        """Everything durable; opens the store again after a close."""
        if self._closed:
            self._history = History(self._revision)
            self._closed = False
        self._passing.clear()
        for key, (revision, value) in self._data.items():
            yield Record(key, revision, value)

    def commit(self, batch: Sequence[Write]) -> asyncio.Future[list[Answer]]:
        future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_exception(StoreFailed("the store is closed"))
            return future
        answers: list[Answer] = []
        records: list[Record] = []
        for key, expected, value, durable in batch:
            held = self._data.get(key)
            actual = held[0] if held is not None else self._passing.get(key, 0)
            if expected is not None and expected != actual:
                answers.append(Conflict(key, actual))
                continue
            self._revision += 1
            if value is None:
                self._data.pop(key, None)
                self._passing.pop(key, None)
            elif durable:
                self._data[key] = (self._revision, value)
            else:
                self._passing[key] = self._revision
            records.append(Record(key, self._revision, value))
            answers.append(self._revision)
        if records:
            self._history.append(records)
        future.set_result(answers)
        return future

    def changes(self, after: int) -> AsyncIterator[Record]:
        return self._history.read(after)

    async def compact(self, revision: int) -> None:
        self._history.compact(revision)

    async def close(self) -> None:
        self._closed = True
        self._history.close()
