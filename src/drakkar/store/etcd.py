"""The store in etcd v3, for any number of servers as peers.

Writes that wait are sent together, up to 64 in one etcd transaction; each stands in a transaction
of its own inside, with its own condition, so one may fail and the others not. etcd gives one
revision to all of a transaction. Ours have to differ, since clients resume watches behind any of
them: a revision of ours is etcd's times 128 plus the *place* of the write in its transaction.
The place of a value is its first byte. A deletion has no value; deletions come first in their
transaction, and their place is their order, which everybody sees who follows the changes.

Every transaction also writes the key ``ordinal``. Its revision is what :meth:`EtcdBackend.latest` asks for,
and since it comes with the changes, everybody knows when all of a revision has arrived.

Keys, below a prefix (default ``/drakkar``): ``/o<key>`` durable, ``/p<key>`` what lives for a time only,
``/ordinal``, ``/format``, ``/compaction`` (who compacts next, and to where) and ``/shared/<name>``.
A server of format 1 wrote alone, fenced by a token under ``/writer``; opening its data puts another token there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import grpc
import grpc.aio

from drakkar.store import etcdwire as wire
from drakkar.store.base import Answer, Compacted, Conflict, Progress, Record, Refused, StoreFailed, Write
from drakkar.store.problems import StoreProblem

_log = logging.getLogger(__name__)

#: Version of the keys and values; a store of a newer one is refused.
FORMAT = b"2"
_FORMAT_BEFORE = b"1"
#: Largest value: etcd refuses requests of more than 1.5 MiB unless told otherwise.
VALUE_LIMIT = 1_500_000
_RANGE = "/etcdserverpb.KV/Range"
_TXN = "/etcdserverpb.KV/Txn"
_COMPACT = "/etcdserverpb.KV/Compact"
_WATCH = "/etcdserverpb.Watch/Watch"
#: Bits of a revision of ours that tell the writes of one transaction apart.
_BITS = 7
_LAST = (1 << _BITS) - 1
#: Writes of one transaction; etcd takes 128 operations, counted over both levels. Places from here on
#: stand for deletions of what is not there. Below ``{``, with which values of format 1 begin.
_TOGETHER = 60
#: Bytes of values in one transaction, unless a single one is larger.
_TOGETHER_BYTES = 1_000_000
#: Transactions under way at the same time.
_IN_FLIGHT = 4
#: Keys per page of a load.
_PAGE = 500
#: Seconds for one call, and for a write with all its attempts.
_CALL_TIMEOUT = 3.0
_WRITE_TIMEOUT = 15.0
#: Seconds between attempts.
_PAUSE = 0.1
#: Seconds of history that etcd keeps for us at least, and between compactions.
_HISTORY = 300.0
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # The time for a connection to come about, in spite of the name.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
_AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class Address(NamedTuple):
    """Where etcd is: ``host:port`` of its members, the prefix of our keys, and PEM files for TLS."""

    endpoints: tuple[str, ...]
    prefix: str
    ca: str | None
    cert: str | None
    key: str | None

    @staticmethod
    def parse(url: str) -> Address:
        """``etcd://host:port[,host:port…][/prefix][?ca=FILE&cert=FILE&key=FILE]``. Raises StoreProblem."""
        parts = urlsplit(url)
        endpoints = tuple(part for part in parts.netloc.split(",") if part)
        files = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        unknown = sorted(set(files) - {"ca", "cert", "key"})
        if parts.scheme != "etcd" or not endpoints or any(not _has_port(end) for end in endpoints):
            raise StoreProblem(f"{url}: write etcd://host:port[,host:port…][/prefix][?ca=FILE&cert=FILE&key=FILE]")
        if unknown:
            raise StoreProblem(f"{url}: {', '.join(unknown)} is unknown; known are ca, cert and key")
        if ("cert" in files) != ("key" in files):
            raise StoreProblem(f"{url}: cert and key belong together; name both files")
        prefix = parts.path.rstrip("/") or "/drakkar"
        return Address(endpoints, prefix, files.get("ca"), files.get("cert"), files.get("key"))

    def credentials(self) -> grpc.ChannelCredentials | None:
        """What TLS needs, None without TLS. Raises StoreProblem."""
        if self.ca is None and self.cert is None:
            return None
        pem: list[bytes | None] = []
        for path in (self.ca, self.key, self.cert):
            try:
                pem.append(Path(path).expanduser().read_bytes() if path is not None else None)
            except OSError as error:
                raise StoreProblem(f"cannot read {path}: {error.strerror}") from None
        return grpc.ssl_channel_credentials(*pem)


def _has_port(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    return bool(host) and port.isdigit() and "@" not in host


class _Batch:
    """A commit whose writes are answered one by one."""

    def __init__(self, size: int, future: asyncio.Future[list[Answer]]):
        self.answers: list[Answer] = [0] * size
        self.left = size
        self.future = future


class _Pending(NamedTuple):
    """A write that waits or is under way: its key in etcd, and where its answer belongs."""

    key: bytes
    write: Write
    batch: _Batch
    at: int

    def answer(self, answer: Answer) -> None:
        batch = self.batch
        batch.answers[self.at] = answer
        batch.left -= 1
        if not batch.left and not batch.future.done():
            batch.future.set_result(batch.answers)


class EtcdBackend:
    """An open store. Opening and :meth:`load` block, as reading a file would. Raises StoreProblem."""

    value_limit: int | None = VALUE_LIMIT

    def __init__(self, url: str):
        self.address = address = Address.parse(url)
        self._credentials = address.credentials()
        self._prefix = prefix = address.prefix.encode()
        self._durable, self._passing, self._format = prefix + b"/o", prefix + b"/p", prefix + b"/format"
        self._ordinal, self._compaction = prefix + b"/ordinal", prefix + b"/compaction"
        self._known = wire.compare_value(self._format, FORMAT)
        #: Index of the endpoint in use.
        self._at = 0
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._queue: list[_Pending] = []
        #: Keys of writes under way.
        self._flying: set[bytes] = set()
        self._running: set[asyncio.Task[None]] = set()
        self._compactor: asyncio.Task[None] | None = None
        self._watches: set[Any] = set()
        self._failure: str | None = None
        self._closed = False
        #: The newest load: our revision, and etcd's up to which there is nothing else of ours.
        self._loaded = (0, 0)
        self._plain = self._open()
        try:
            self._revision = self._prepare()
        except BaseException:
            self._plain.close()
            raise

    @property
    def revision(self) -> int:
        return self._revision

    # Opening and loading, without a loop.

    def _open(self) -> grpc.Channel:
        """A connection to the first endpoint that answers."""
        why = ""
        for at, endpoint in enumerate(self.address.endpoints):
            if self._credentials is None:
                channel = grpc.insecure_channel(endpoint, options=_OPTIONS)
            else:
                channel = grpc.secure_channel(endpoint, self._credentials, options=_OPTIONS)
            try:
                channel.unary_unary(_RANGE)(wire.range_request(self._format), timeout=_CALL_TIMEOUT)
            except grpc.RpcError as error:
                channel.close()
                why = _details(error)
                continue
            self._at = at
            return channel
        raise StoreProblem(f"cannot reach etcd at {', '.join(self.address.endpoints)}: {why}")

    def _ask(self, method: str, request: bytes) -> bytes:
        try:
            return self._plain.unary_unary(method)(request, timeout=_CALL_TIMEOUT)
        except grpc.RpcError as error:
            raise StoreProblem(f"etcd at {self.address.endpoints[self._at]} refused: {_details(error)}") from None

    def _prepare(self) -> int:
        """Makes what a store of this format has; its revision."""
        new = wire.txn_request(
            [wire.compare_modified(self._format, 0)],
            [wire.put_op(self._format, FORMAT), wire.put_op(self._ordinal, b"")],
            [wire.range_op(self._format)],
        )
        made = wire.txn_answer(self._ask(_TXN, new))
        version = made.found[0].value if made.found else FORMAT
        if version == _FORMAT_BEFORE:
            passing = self._passing + b"/"
            upgrade = [
                wire.put_op(self._format, FORMAT),
                wire.put_op(self._ordinal, b""),
                # Fences off a server of the format before, which may still run.
                wire.put_op(self._prefix + b"/writer", b"format " + FORMAT),
                wire.delete_op(passing, _after(passing)),
            ]
            made = wire.txn_answer(
                self._ask(_TXN, wire.txn_request([wire.compare_value(self._format, version)], upgrade, []))
            )
        elif version != FORMAT:
            raise StoreProblem(
                f"the data under {self.address.prefix} in etcd has format {version.decode(errors='replace')}, this "
                f"Drakkar knows {FORMAT.decode()}; use the Drakkar that wrote it or choose another prefix"
            )
        return made.revision << _BITS | _LAST

    def load(self) -> Iterator[Record]:
        start, end, revision = self._durable + b"/", _after(self._passing + b"/"), 0
        skip, newest = len(self._durable), 0
        while True:
            request = wire.range_request(start, end, limit=_PAGE, revision=revision)
            page = wire.range_answer(self._ask(_RANGE, request))
            revision = revision or page.revision
            for item in page.items:
                if item.key == self._ordinal:
                    newest = item.revision
                else:
                    number, value = _unpacked(item)
                    yield Record(item.key[skip:].decode(), number, value)
            if not page.more:
                break
            start = page.items[-1].key + b"\0"
        # Not etcd's own revision, which others raise as well: all servers are to name the same state alike.
        self._revision = (newest or revision) << _BITS | _LAST
        self._loaded = (self._revision, revision)

    def agree(self, name: str, value: bytes) -> bytes:
        key = self._prefix + b"/shared/" + name.encode()
        request = wire.txn_request(
            [wire.compare_modified(key, 0)], [wire.put_op(key, value), wire.range_op(key)], [wire.range_op(key)]
        )
        return wire.txn_answer(self._ask(_TXN, request)).found[0].value

    # Writing.

    def commit(self, batch: Sequence[Write]) -> asyncio.Future[list[Answer]]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Answer]] = loop.create_future()
        if self._closed or self._failure is not None:
            future.set_exception(StoreFailed(self._failure or "the store is closed"))
        elif not batch:
            future.set_result([])
        else:
            shared = _Batch(len(batch), future)
            self._queue += [_Pending(self._key(write), write, shared, at) for at, write in enumerate(batch)]
            self._pump()
        return future

    def _key(self, write: Write) -> bytes:
        return (self._durable if write.durable else self._passing) + write.key.encode()

    def _pump(self) -> None:
        """Sends what waits, as far as transactions may be under way."""
        while self._queue and len(self._running) < _IN_FLIGHT:
            chosen = self._choose()
            if not chosen:
                return
            task = asyncio.create_task(self._run(chosen), name="etcd transaction")
            self._running.add(task)

    def _choose(self) -> list[_Pending]:
        """The next writes that may go together; further ones of a key under way stay, in their order."""
        chosen: list[_Pending] = []
        kept: list[_Pending] = []
        size = 0
        for number, pending in enumerate(self._queue):
            length = len(pending.write.value or b"") + len(pending.key)
            if len(chosen) == _TOGETHER or (chosen and size + length > _TOGETHER_BYTES):
                kept += self._queue[number:]
                break
            if pending.key in self._flying:
                kept.append(pending)
            else:
                # From here on the key counts as under way for the rest of the queue, too.
                self._flying.add(pending.key)
                chosen.append(pending)
                size += length
        self._queue = kept
        return chosen

    async def _run(self, chosen: list[_Pending]) -> None:
        try:
            await self._transact(chosen)
        except Exception as error:
            if not isinstance(error, StoreFailed):
                _log.exception("a transaction with etcd failed")
            self._fail(str(error) or repr(error), chosen)
        finally:
            self._flying.difference_update(pending.key for pending in chosen)
            task = asyncio.current_task()
            if task is not None:
                self._running.discard(task)
            self._pump()

    def _fail(self, why: str, chosen: list[_Pending]) -> None:
        self._failure = self._failure or why
        waiting, self._queue = [*chosen, *self._queue], []
        for pending in waiting:
            if not pending.batch.future.done():
                pending.batch.future.set_exception(StoreFailed(self._failure))

    async def _transact(self, chosen: list[_Pending]) -> None:
        """One transaction with these writes, until etcd has answered or the time is over."""
        # Deletions first: see the module's docstring. The place of a write stays the same over all attempts.
        placed = list(enumerate(sorted(chosen, key=lambda pending: pending.write.value is not None)))
        deadline = asyncio.get_running_loop().time() + _WRITE_TIMEOUT
        unclear = False
        while placed:
            at = self._at
            try:
                data = await self._call(at, _TXN, self._request(placed))
            except grpc.aio.AioRpcError as error:
                words = _details(error)
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "space" in words:
                    for _, pending in placed:
                        pending.answer(Refused(pending.write.key, f"etcd has no room: {words}", full=True))
                    return
                over = asyncio.get_running_loop().time() > deadline
                again = error.code() in _AGAIN or error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                # The writes may have been done, though nobody said so. Only a condition makes repeating one safe.
                for _, pending in placed:
                    if over or not again or not _repeatable(pending.write):
                        ends = ", ".join(self.address.endpoints)
                        why = f"etcd at {ends} did not answer in time: {words}" if again else f"etcd refused: {words}"
                        pending.answer(Refused(pending.write.key, why, unclear=again or unclear))
                placed = [item for item in placed if not over and again and _repeatable(item[1].write)]
                unclear = True
                if placed:
                    await self._next(at)
                continue
            self._judge(placed, wire.txn_answer(data), unclear)
            return

    def _request(self, placed: list[tuple[int, _Pending]]) -> bytes:
        inner: list[bytes] = []
        for place, (key, (_, expected, value, _), _, _) in placed:
            compares = [] if expected is None else [wire.compare_modified(key, _theirs(expected))]
            act = wire.delete_op(key) if value is None else wire.put_op(key, bytes((place,)) + value)
            inner.append(wire.txn_op(wire.txn_request(compares, [act], [wire.range_op(key)])))
        return wire.txn_request([self._known], [*inner, wire.put_op(self._ordinal, b"")], [])

    def _judge(self, placed: list[tuple[int, _Pending]], answer: wire.TxnAnswer, unclear: bool) -> None:
        """Answers the writes of a transaction that was done."""
        if not answer.succeeded:
            raise StoreFailed(
                f"the data under {self.address.prefix} in etcd was upgraded by a newer Drakkar; upgrade this one"
            )
        base = answer.revision << _BITS
        deletions = 0
        for (place, pending), inner in zip(placed, answer.inner, strict=True):
            write = pending.write
            if inner.succeeded and write.value is not None:
                pending.answer(base | place)
            elif inner.succeeded and inner.deleted:
                pending.answer(base | deletions)
                deletions += 1
            elif inner.succeeded:  # deleting what is not there: a revision, though nobody sees a change
                pending.answer(base | _TOGETHER + place)
            else:
                held = inner.found[0] if inner.found else None
                number = _unpacked(held)[0] if held is not None else 0
                if unclear and held is not None and write.value is not None:
                    mine = held.value == bytes((place,)) + write.value
                else:
                    mine = False
                pending.answer(number if mine else Conflict(write.key, number, unclear))
        self._revision = max(self._revision, base | _LAST)

    async def _call(self, at: int, method: str, request: bytes) -> bytes:
        return await self._channel(at).unary_unary(method)(request, timeout=_CALL_TIMEOUT)

    def _channel(self, at: int) -> grpc.aio.Channel:
        channel = self._channels.get(at)
        if channel is None:
            endpoint = self.address.endpoints[at]
            if self._credentials is None:
                channel = grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
            else:
                channel = grpc.aio.secure_channel(endpoint, self._credentials, options=_OPTIONS)
            self._channels[at] = channel
        return channel

    async def _next(self, failed: int) -> None:
        """Turns to the next endpoint, unless somebody has done so; watches come along."""
        if self._at == failed and len(self.address.endpoints) > 1:
            self._at = (failed + 1) % len(self.address.endpoints)
            for call in list(self._watches):
                call.cancel()
        await asyncio.sleep(_PAUSE)

    async def _reach(self, method: str, request: bytes) -> bytes:
        """A call that changes nothing, at whichever endpoint answers. Raises StoreFailed after a call's time."""
        deadline = asyncio.get_running_loop().time() + _CALL_TIMEOUT
        while True:
            at = self._at
            try:
                return await self._call(at, method, request)
            except grpc.aio.AioRpcError as error:
                if error.code() not in _AGAIN or asyncio.get_running_loop().time() > deadline or self._closed:
                    raise StoreFailed(f"etcd did not answer: {_details(error)}") from None
                await self._next(at)

    # Changes.

    async def latest(self) -> int:
        """Revision of the newest transaction: etcd asks a majority of its members before it answers."""
        found = wire.range_answer(await self._reach(_RANGE, wire.range_request(self._ordinal)))
        return (found.items[0].revision if found.items else found.revision) << _BITS | _LAST

    async def changes(self, after: int) -> AsyncIterator[Record]:
        async with contextlib.aclosing(self.feed(after)) as feed:
            async for progress in feed:
                for record in progress.records:
                    yield record

    async def feed(self, after: int) -> AsyncGenerator[Progress]:
        start, end = self._durable + b"/", _after(self._passing + b"/")
        if self._compactor is None:
            self._compactor = asyncio.create_task(self._compact_often(), name="etcd compaction")
        # Of the transaction that ``after`` is a part of, the rest is still to come.
        at_revision = after >> _BITS if after & _LAST == _LAST else (after >> _BITS) - 1
        if after == self._loaded[0]:
            at_revision = self._loaded[1]
        while not self._closed:
            at = self._at
            try:
                async with contextlib.aclosing(self._watched(start, end, at_revision + 1)) as answers:
                    async for answer in answers:
                        if answer.changes:
                            at_revision = answer.changes[-1][1]
                            records = [record for record in self._records(answer) if record.revision > after]
                            yield Progress(records, at_revision << _BITS | _LAST)
                        elif not answer.created:
                            # A progress notification: nothing of ours up to here is still to come.
                            at_revision = max(at_revision, answer.revision)
            except Compacted:
                # By whom ever: of ours nothing is missing if there was nothing since.
                found = wire.range_answer(await self._reach(_RANGE, wire.range_request(self._ordinal)))
                if not found.items or found.items[0].revision > at_revision:
                    raise
                at_revision = found.revision
                continue
            except grpc.aio.AioRpcError as error:
                if error.code() not in _AGAIN:
                    raise StoreFailed(f"etcd ended a watch: {_details(error)}") from None
            except asyncio.CancelledError:
                # Either whoever reads here was cancelled, or the call was: at the end, or to go to another endpoint.
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
            if not self._closed:
                await self._next(at)

    def _records(self, answer: wire.WatchAnswer) -> list[Record]:
        """The changes of one answer, which holds only whole transactions."""
        skip = len(self._durable)
        records: list[Record] = []
        now = deletions = 0
        for key, revision, value in answer.changes:
            if revision != now:
                now, deletions = revision, 0
            if key == self._ordinal:
                continue
            if value is None:
                records.append(Record(key[skip:].decode(), revision << _BITS | deletions, None))
                deletions += 1
            else:
                number, value = _unpacked(wire.KeyValue(key, revision, value))
                records.append(Record(key[skip:].decode(), number, value))
        records.sort(key=lambda record: record.revision)
        return records

    async def _watched(self, key: bytes, end: bytes, start: int) -> AsyncGenerator[wire.WatchAnswer]:
        # A member that has lost its leader ends the watch instead of falling silent.
        call = self._channel(self._at).stream_stream(_WATCH)(metadata=(("hasleader", "true"),))
        try:
            # Cancelling a call that is not established may leave who waits for it waiting, hence the time limit.
            async with asyncio.timeout(_CALL_TIMEOUT):
                await call.write(wire.watch_request(key, end, start))
                data = await call.read()
            self._watches.add(call)
            while isinstance(data, bytes):  # else: the end
                answer = wire.watch_answer(data)
                if answer.compacted:
                    raise Compacted(
                        f"changes after revision {start - 1} of etcd are gone, it keeps those after {answer.compacted}"
                    )
                if answer.canceled:
                    _log.warning("etcd ended a watch: %s", answer.reason or "no reason given")
                    return
                yield answer
                data = await call.read()
        except TimeoutError:
            return
        finally:
            self._watches.discard(call)
            call.cancel()

    # Compaction: without it etcd's space would run out.

    async def compact(self, revision: int) -> None:
        try:
            await self._call(self._at, _COMPACT, wire.compaction_request(revision >> _BITS))
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.OUT_OF_RANGE:  # not: compacted further already
                raise StoreFailed(f"etcd did not compact: {_details(error)}") from None

    async def _compact_often(self) -> None:
        """Once per period one of the servers drops what is older than that: who is first to move the mark."""
        seen = 0
        while not self._closed:
            with contextlib.suppress(StoreFailed):
                seen = await self._compact_once(seen)
            await asyncio.sleep(_HISTORY)

    async def _compact_once(self, seen: int) -> int:
        """Moves the mark if nobody has since ``seen``, its revision in etcd, and compacts to where it was."""
        latest = str((await self.latest()) >> _BITS).encode()
        move = wire.txn_request(
            [wire.compare_modified(self._compaction, seen)],
            [wire.put_op(self._compaction, latest)],
            [wire.range_op(self._compaction)],
        )
        before = wire.range_answer(await self._reach(_RANGE, wire.range_request(self._compaction)))
        # Not repeated on a lost answer: the next period will do.
        try:
            moved = wire.txn_answer(await self._call(self._at, _TXN, move))
        except grpc.aio.AioRpcError as error:
            raise StoreFailed(_details(error)) from None
        if not moved.succeeded:
            return moved.found[0].revision if moved.found else 0
        if before.items and before.items[0].revision == seen and before.items[0].value.isdigit():
            await self.compact(int(before.items[0].value) << _BITS)
        return moved.revision

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._compactor is not None:
            self._compactor.cancel()
            await asyncio.gather(self._compactor, return_exceptions=True)
        while self._running:
            await asyncio.wait(self._running)
        for call in list(self._watches):
            call.cancel()
        for channel in self._channels.values():
            await channel.close()
        self._plain.close()


def _unpacked(item: wire.KeyValue) -> tuple[int, bytes]:
    """Revision and value; values of format 1 have no place in front of them."""
    place = item.value[0] if item.value else _TOGETHER
    if place < _TOGETHER:
        return item.revision << _BITS | place, item.value[1:]
    return item.revision << _BITS, item.value


def _theirs(expected: int) -> int:
    """etcd's number for a revision of ours; 1, which no key bears, for those that cannot have come from here."""
    return (expected >> _BITS or 1) if expected else 0


def _repeatable(write: Write) -> bool:
    """Whether doing it twice is the same as doing it once."""
    return bool(write.expected) or (write.expected == 0 and write.value is not None)


def _after(prefix: bytes) -> bytes:
    """The first key behind all that begin with ``prefix``."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _details(error: Any) -> str:
    return " ".join(str(error.details() or error.code().name).split())
