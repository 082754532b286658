"""The current state, and the recent past, of every resource: what reads and watches are served from.

Objects are kept as encoded bytes with a thin header beside them (name, labels, indexed
fields, owners), never as decoded trees: memory stays at the size of the JSON and the garbage
collector has nothing to walk. Only committed writes get here, in the order of their revisions.

Each :class:`Table` keeps a log of its newest changes. A watcher is a position in that log; when
the log has moved past the position, the watcher is told that its revision expired.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

Object = dict[str, Any]

encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
decode: Callable[[bytes], Object] = msgspec.json.Decoder(dict[str, Any]).decode

#: What one table's log may hold: changes, and bytes of objects in them.
LOG_CHANGES = 2048
LOG_BYTES = 16 << 20


class Entry(msgspec.Struct, gc=False):
    """One stored object. ``tail`` is its JSON after ``{"kind":…,"apiVersion":…,``."""

    key: str
    namespace: str
    name: str
    uid: str
    revision: int
    tail: bytes
    labels: dict[str, str] | None
    fields: dict[str, str] | None
    owners: tuple[str, ...]


class Change(msgspec.Struct, gc=False):
    """One change of a table. ``old`` is None for ADDED; for DELETED ``entry`` is the last state at the new revision."""

    type: str
    revision: int
    entry: Entry
    old: Entry | None
    #: Encoded watch frames, by the form in which somebody asked for them.
    frames: dict[str, bytes]


class Expired(Exception):
    """The asked revision is older than the history that is kept."""


def entry_key(namespace: str, name: str) -> str:
    """Under which key a table keeps an object; ``namespace`` is empty for kinds that have none."""
    return f"{namespace}/{name}" if namespace else name


def restamp(entry: Entry, revision: int) -> Entry:
    """A copy of an entry that bears another revision."""
    rest = entry.tail[entry.tail.index(b",") :]
    tail = b'"metadata":{"resourceVersion":"%d"' % revision + rest
    return msgspec.structs.replace(entry, revision=revision, tail=tail)


class Table:
    """All objects of one resource, in the version in which they are stored."""

    def __init__(
        self,
        prefix: str,
        api_version: str,
        kind: str,
        *,
        namespaced: bool = True,
        fields: Callable[[Object], dict[str, str] | None] | None = None,
        indexed: Iterable[str] = (),
        log_changes: int = LOG_CHANGES,
    ):
        #: Beginning of the keys in the store, ``/<group or core>/<plural>/``.
        self.prefix = prefix
        self.api_version = api_version
        self.kind = kind
        self.namespaced = namespaced
        #: What stands before every tail.
        self.head = b'{"kind":' + encode(kind) + b',"apiVersion":' + encode(api_version) + b","
        self._metadata = self.head + b'"metadata":{'
        self._fields = fields
        self._log_changes = log_changes
        self.entries: dict[str, Entry] = {}
        self._sorted: list[str] = []
        self.indexes: dict[str, dict[str, set[str]]] = {name: {} for name in indexed}
        self.log: list[Change] = []
        #: Number of changes that were dropped from the front of the log.
        self.dropped = 0
        self._log_bytes = 0
        #: Changes up to this revision are not in the log any more.
        self.floor = 0
        #: Revision of the newest change.
        self.revision = 0
        self._waiting: set[asyncio.Future[None]] = set()
        #: Told of every change, before its writer gets an answer.
        self.listener: Callable[[Change], None] | None = None

    # Encoding.

    def value(self, obj: Object) -> bytes:
        """The stored form: kind, apiVersion and metadata first, no resourceVersion."""
        metadata = obj["metadata"]
        if "resourceVersion" in metadata:
            metadata = {key: value for key, value in metadata.items() if key != "resourceVersion"}
        ordered: Object = {"kind": self.kind, "apiVersion": self.api_version, "metadata": metadata}
        for key, value in obj.items():
            if key not in ordered:
                ordered[key] = value
        return encode(ordered)

    def entry(self, obj: Object, value: bytes, revision: int) -> Entry:
        """The cache's form of an object whose stored form is ``value``."""
        metadata = obj["metadata"]
        namespace = metadata.get("namespace") or ""
        name = metadata["name"]
        owners = metadata.get("ownerReferences")
        return Entry(
            entry_key(namespace, name),
            namespace,
            name,
            metadata.get("uid", ""),
            revision,
            self.tail(value, revision),
            metadata.get("labels") or None,
            self._fields(obj) if self._fields is not None else None,
            tuple(owner["uid"] for owner in owners) if owners else (),
        )

    def tail(self, value: bytes, revision: int) -> bytes:
        """The stored form with its revision spliced in and its head cut off."""
        if not value.startswith(self._metadata):
            value = self.value(decode(value))
        return b'"metadata":{"resourceVersion":"%d",' % revision + value[len(self._metadata) :]

    def unrevised_tail(self, value: bytes) -> bytes:
        """The stored form with its head cut off: an object that was not written (dry run)."""
        return b'"metadata":{' + value[len(self._metadata) :]

    def decode(self, entry: Entry) -> Object:
        """A fresh tree of the object."""
        return decode(self.head + entry.tail)

    # Changing; only for :class:`State`.

    def load(self, entry: Entry) -> None:
        """Takes over an object from the store, without a change in the log."""
        self.entries[entry.key] = entry
        self._index(entry)

    def loaded(self, revision: int) -> None:
        """Ends loading; the history starts at ``revision``."""
        self._sorted = sorted(self.entries)
        self.floor = self.revision = revision

    def put(self, entry: Entry) -> Change:
        """Stores a new or changed object."""
        old = self.entries.get(entry.key)
        if old is None:
            insort(self._sorted, entry.key)
        else:
            self._unindex(old)
        self.entries[entry.key] = entry
        self._index(entry)
        return self._append(Change("MODIFIED" if old else "ADDED", entry.revision, entry, old, {}))

    def remove(self, key: str, revision: int, last: Entry) -> Change:
        """Drops an object; the change carries its last state with the revision of the deletion."""
        old = self.entries.pop(key)
        at = bisect_left(self._sorted, key)
        del self._sorted[at]
        self._unindex(old)
        return self._append(Change("DELETED", revision, restamp(last, revision), old, {}))

    def _index(self, entry: Entry) -> None:
        if self.indexes and entry.fields:
            for name, index in self.indexes.items():
                value = entry.fields.get(name)
                if value:
                    index.setdefault(value, set()).add(entry.key)

    def _unindex(self, entry: Entry) -> None:
        if self.indexes and entry.fields:
            for name, index in self.indexes.items():
                value = entry.fields.get(name)
                if value:
                    keys = index[value]
                    keys.discard(entry.key)
                    if not keys:
                        del index[value]

    def _append(self, change: Change) -> Change:
        self.revision = change.revision
        if self.listener is not None:
            self.listener(change)
        self.log.append(change)
        self._log_bytes += len(change.entry.tail)
        if len(self.log) > self._log_changes or self._log_bytes > LOG_BYTES:
            self._trim()
        return change

    def _trim(self) -> None:
        """Drops the older half, so that trimming costs nothing per change."""
        count = max(1, len(self.log) // 2)
        for change in self.log[:count]:
            self._log_bytes -= len(change.entry.tail)
        self.floor = self.log[count - 1].revision
        del self.log[:count]
        self.dropped += count

    def compact(self, revision: int) -> None:
        """Drops changes up to ``revision`` from the log."""
        count = bisect_right(self.log, revision, key=lambda change: change.revision)
        for change in self.log[:count]:
            self._log_bytes -= len(change.entry.tail)
        del self.log[:count]
        self.dropped += count
        self.floor = max(self.floor, revision)

    # Waiting.

    def wait(self) -> asyncio.Future[None]:
        """A future that ends with the next change; :meth:`forget` it when it is not needed any more."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        return future

    def forget(self, future: asyncio.Future[None]) -> None:
        """Ends a future of :meth:`wait` early."""
        self._waiting.discard(future)
        if not future.done():
            future.set_result(None)

    def wake(self) -> None:
        """Wakes everybody who waits."""
        if self._waiting:
            waiting, self._waiting = self._waiting, set()
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    # Reading.

    def keys(self, namespace: str = "", start: str = "") -> list[str]:
        """A copy of the keys in order, of one namespace or all, those after ``start``."""
        begin = bisect_right(self._sorted, start) if start else 0
        if not namespace:
            return self._sorted[begin:]
        begin = max(begin, bisect_left(self._sorted, namespace + "/"))
        return self._sorted[begin : bisect_left(self._sorted, namespace + "0", begin)]

    def position(self, after: int) -> int:
        """Position in the log of the first change above revision ``after``; raises Expired."""
        if after < self.floor:
            raise Expired
        return self.dropped + bisect_right(self.log, after, key=lambda change: change.revision)

    @property
    def end(self) -> int:
        """Position behind the newest change."""
        return self.dropped + len(self.log)

    def changes(self, position: int) -> list[Change]:
        """Changes from ``position`` on; raises Expired when some are gone."""
        start = position - self.dropped
        if start < 0:
            raise Expired
        return self.log[start:]

    def at(self, revision: int) -> dict[str, Entry]:
        """All objects as of ``revision``, from the current state and the log; raises Expired."""
        if revision >= self.revision:
            return self.entries
        if revision < self.floor:
            raise Expired
        state = dict(self.entries)
        for change in reversed(self.log):
            if change.revision <= revision:
                break
            if change.old is None:
                state.pop(change.entry.key, None)
            else:
                state[change.entry.key] = change.old
        return state


class State:
    """All tables, the revision that readers may see, and who owns whom."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}
        self.revision = 0
        #: UID of an owner → (table, key) of what names it in ownerReferences.
        self.owned: dict[str, set[tuple[str, str]]] = {}
        self._touched: set[Table] = set()
        #: Those who wait for what they have not seen yet.
        self._waiting: set[asyncio.Future[None]] = set()
        #: Store key → revision and value of what other servers wrote and no table is for (yet).
        self._homeless: dict[str, tuple[int, bytes]] = {}

    def add(self, table: Table) -> Table:
        """A new table; what came before it moves in."""
        self.tables[table.prefix] = table
        table.floor = table.revision = self.revision
        arrived = [key for key in self._homeless if key.startswith(table.prefix)]
        for key in arrived:
            revision, value = self._homeless.pop(key)
            entry = table.entry(decode(value), value, revision)
            table.load(entry)
            self._own(table, entry)
        if arrived:
            table.loaded(self.revision)
        return table

    def load(self, records: Iterable[tuple[str, int, bytes | None]]) -> list[tuple[str, int, bytes | None]]:
        """Takes over the content of a store; returns what belongs to no table. Ends with :meth:`loaded`."""
        unknown: list[tuple[str, int, bytes | None]] = []
        for key, written, value in records:
            if value is None:
                continue
            table = self.tables.get(key[: key.index("/", key.index("/", 1) + 1) + 1])
            if table is None:
                unknown.append((key, written, value))
                continue
            entry = table.entry(decode(value), value, written)
            table.load(entry)
            self._own(table, entry)
        return unknown

    def loaded(self, revision: int) -> None:
        """Ends loading; the history of all tables starts at ``revision``."""
        self.revision = revision
        for table in self.tables.values():
            table.loaded(revision)

    def put(self, table: Table, entry: Entry) -> Change:
        """A committed write."""
        change = table.put(entry)
        if change.old is not None and change.old.owners != entry.owners:
            self._disown(table, change.old)
        if entry.owners:
            self._own(table, entry)
        self._advance(table, entry.revision)
        return change

    def remove(self, table: Table, key: str, revision: int, last: Entry) -> Change:
        """A committed delete; ``last`` is the state that watchers get to see."""
        change = table.remove(key, revision, last)
        if change.old is not None:
            self._disown(table, change.old)
        self._advance(table, revision)
        return change

    def take(self, key: str, revision: int, value: bytes | None, entry: Entry | None = None) -> Change | None:
        """A write that came from the store; ``entry`` is the cache's form of ``value`` where that is known.

        A deletion carries the state before it. None for what belongs to no table.
        """
        table = self.tables.get(key[: key.index("/", key.index("/", 1) + 1) + 1])
        if table is None:
            if value is None:
                self._homeless.pop(key, None)
            else:
                self._homeless[key] = (revision, value)
            self.revision = revision
            return None
        if value is None:
            name = key[len(table.prefix) :].removeprefix("/")
            old = table.entries.get(name)
            return self.remove(table, name, revision, old) if old is not None else None
        if entry is None:
            entry = table.entry(decode(value), value, revision)
        else:
            entry.revision = revision
            entry.tail = table.tail(value, revision)
        return self.put(table, entry)

    def _advance(self, table: Table, revision: int) -> None:
        self.revision = revision
        self._touched.add(table)

    def wake(self) -> None:
        """Tells the watchers of everything that was put or removed since the last call."""
        touched, self._touched = self._touched, set()
        for table in touched:
            table.wake()
        if self._waiting:
            waiting, self._waiting = self._waiting, set()
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def reached(self, revision: int) -> None:
        """Ends when readers may see this revision, which may be never."""
        while self.revision < revision:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)

    def _own(self, table: Table, entry: Entry) -> None:
        for uid in entry.owners:
            self.owned.setdefault(uid, set()).add((table.prefix, entry.key))

    def _disown(self, table: Table, entry: Entry) -> None:
        for uid in entry.owners:
            held = self.owned.get(uid)
            if held is not None:
                held.discard((table.prefix, entry.key))
                if not held:
                    del self.owned[uid]
