"""Watches: a position in a table's log, turned into frames when the reader asks for more.

Nothing is queued for a slow reader; its position stays where it is, and when the log has moved
past it the stream ends (in the middle) or says 410 (at the start), as kube-apiserver does. A
frame is encoded once and shared by all watchers that want the same form.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import msgspec

from drakkar.apiserver import status
from drakkar.apiserver.cache import Change, Entry, Expired, restamp
from drakkar.apiserver.options import ListOptions
from drakkar.apiserver.render import Renderer
from drakkar.apiserver.selection import Selection
from drakkar.apiserver.ticker import Ticker
from drakkar.apiserver.views import View

_encode = msgspec.json.Encoder().encode

#: Seconds between bookmarks of a quiet watch.
BOOKMARK_PERIOD = 60.0
#: Objects of the initial state that go out in one chunk.
_SLICE = 32


def _frame(type_: str, obj: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (type_.encode(), obj)


def error_frame(body: dict[str, object]) -> bytes:
    """An ERROR event with a Status."""
    return _frame("ERROR", _encode(body))


class Watch:
    """One watch; :meth:`stream` yields chunks of whole frames."""

    def __init__(
        self,
        view: View,
        selection: Selection,
        options: ListOptions,
        renderer: Renderer,
        ticker: Ticker,
        revision: Callable[[], int],
        ending: Callable[[], bool],
        *,
        deadline: float,
    ):
        self._view = view
        self._table = view.table
        self._selection = selection
        self._options = options
        self._renderer = renderer
        self._ticker = ticker
        self._revision = revision
        self._ending = ending
        #: Event type → under which name its frames are shared; None where every watch needs its own.
        self._forms: dict[str, str] | None = None
        if renderer.shared:
            form = f"{renderer.shared} {view.served.api_version}"
            self._forms = {type_: f"{type_} {form}" for type_ in ("ADDED", "MODIFIED", "DELETED")}
        self._deadline = deadline
        #: When the ticker has to wake this watch.
        self.due = deadline
        self._waiting: asyncio.Future[None] | None = None
        #: Where in the log the changes begin, and the revision up to which the reader knows everything.
        self._position = self._seen = 0

    async def stream(self, after: int | None) -> AsyncGenerator[bytes, None]:
        """Frames of changes above ``after``; None: the state first, then what follows."""
        table, ticker = self._table, self._ticker
        try:
            async for chunk in self._initial(after):
                yield chunk
        except Expired:
            current = self._revision()
            yield error_frame(status.expired(f"too old resource version: {after} ({current})"))
            return
        position, seen = self._position, self._seen
        bookmarks = self._options.bookmarks
        next_bookmark = ticker.now() + BOOKMARK_PERIOD
        self.due = min(self._deadline, next_bookmark)
        ticker.add(self)
        try:
            while True:
                try:
                    changes = table.changes(position)
                except Expired:
                    return  # the reader is too slow; it will come back from the last revision it saw
                if changes:
                    position += len(changes)
                    frames = [frame for change in changes if change.revision > seen and (frame := self._change(change))]
                    if frames:
                        yield frames[0] if len(frames) == 1 else b"".join(frames)
                        continue
                now = ticker.now()
                if now >= self._deadline or self._ending():
                    if bookmarks:
                        yield self._bookmark(self._revision())
                    return
                if now >= next_bookmark:
                    next_bookmark = now + BOOKMARK_PERIOD
                    self.due = min(self._deadline, next_bookmark)
                    if bookmarks:
                        # All up to this revision has been sent: the log was read to its end without a pause.
                        yield self._bookmark(self._revision())
                        continue
                if position == table.end:
                    self._waiting = table.wait()
                    try:
                        await self._waiting
                    finally:
                        table.forget(self._waiting)
        finally:
            ticker.remove(self)

    def wake(self) -> None:
        """Lets the watch look at the time."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def _initial(self, after: int | None) -> AsyncGenerator[bytes, None]:
        """What comes before the changes; sets where they begin. Raises Expired."""
        table, options = self._table, self._options
        if after is not None:
            self._position, self._seen = table.position(after), after
            return
        self._position, self._seen = table.end, self._revision()
        entries = list(self._selection.entries(table))
        for begin in range(0, len(entries), _SLICE):
            yield b"".join([_frame("ADDED", self._object(entry)) for entry in entries[begin : begin + _SLICE]])
        if options.initial_events and options.bookmarks:
            yield self._bookmark(self._seen, initial=True)

    def _change(self, change: Change) -> bytes | None:
        """The frame for a change; objects that move in or out of the selection are ADDED or DELETED."""
        type_ = change.type
        if not self._selection.everything:
            now = type_ != "DELETED" and self._selection.matches(change.entry)
            before = change.old is not None and self._selection.matches(change.old)
            if type_ == "DELETED" and not before:
                return None
            if type_ != "DELETED":
                if not now and not before:
                    return None
                if not now:
                    # The last state that was selected, at the revision at which it left.
                    return self._left(change)
                type_ = "MODIFIED" if before else "ADDED"
        if self._forms is None:
            return _frame(type_, self._object(change.entry))
        form = self._forms[type_]
        frame = change.frames.get(form)
        if frame is None:
            frame = change.frames[form] = _frame(type_, self._object(change.entry))
        return frame

    def _left(self, change: Change) -> bytes:
        assert change.old is not None
        return _frame("DELETED", self._object(restamp(change.old, change.revision)))

    def _object(self, entry: Entry) -> bytes:
        return self._renderer.one(self._view, entry)

    def _bookmark(self, revision: int, initial: bool = False) -> bytes:
        metadata: dict[str, object] = {"resourceVersion": str(revision), "creationTimestamp": None}
        if initial:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        return _frame("BOOKMARK", self._renderer.bookmark(self._view, metadata))
