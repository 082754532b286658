"""The store in etcd v3.

etcd gives the revisions: that of a key is its ``mod_revision``. Everything written in one
etcd transaction bears one revision, and a watch that is resumed between two changes of one
revision would lose the second; so every write is a transaction of its own, and the
writes of a batch are under way at the same time instead.

One server writes at a time. Who opens the store puts its token under ``writer``, and every
transaction demands that token: an older server, alive or hanging, can no longer write
(its commits fail with StoreFailed). So nobody waits for a lock after a crash.

Keys, below a prefix (default ``/drakkar``): ``/o<key>`` durable, ``/p<key>`` what a restart
forgets, ``/format``, ``/writer``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import grpc
import grpc.aio

from drakkar.store import etcdwire as wire
from drakkar.store.base import Compacted, Conflict, Record, StoreFailed, Write
from drakkar.store.problems import StoreProblem

_log = logging.getLogger(__name__)

#: Version of the keys; a store of another one is refused.
FORMAT = b"1"
#: Largest value: etcd refuses requests of more than 1.5 MiB unless told otherwise.
VALUE_LIMIT = 1_500_000
_RANGE = "/etcdserverpb.KV/Range"
_TXN = "/etcdserverpb.KV/Txn"
_COMPACT = "/etcdserverpb.KV/Compact"
_WATCH = "/etcdserverpb.Watch/Watch"
#: Keys per page of a load.
_PAGE = 500
#: Transactions under way at the same time.
_IN_FLIGHT = 64
#: Seconds for one call, and for a write with all its attempts.
_CALL_TIMEOUT = 5.0
_WRITE_TIMEOUT = 15.0
#: Seconds between attempts.
_PAUSE = 0.1
#: Seconds of history that etcd keeps for us, and between compactions.
_HISTORY = 300.0
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
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


class EtcdBackend:
    """An open store. Making one takes the store over from whoever wrote to it before.

    Opening and :meth:`load` block, as reading a file would. Raises StoreProblem.
    """

    value_limit: int | None = VALUE_LIMIT

    def __init__(self, url: str):
        self.address = address = Address.parse(url)
        self._credentials = address.credentials()
        prefix = address.prefix.encode()
        self._durable, self._passing, self._format = prefix + b"/o", prefix + b"/p", prefix + b"/format"
        self._writer_key, self._writer = prefix + b"/writer", uuid.uuid4().hex.encode()
        self._mine = wire.compare_value(self._writer_key, self._writer)
        #: Index of the endpoint in use.
        self._at = 0
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._queue: deque[tuple[Sequence[Write], asyncio.Future[list[int | Conflict]]]] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._watches: set[Any] = set()
        self._failure: str | None = None
        self._closed = False
        #: Time and revision to which the next compaction goes.
        self._mark: tuple[float, int] | None = None
        self._plain = self._open()
        try:
            self._revision = self._take_over()
        except BaseException:
            self._plain.close()
            raise

    @property
    def revision(self) -> int:
        return self._revision

    # Opening and loading, without a loop.

    def _open(self) -> grpc.Channel:
        """A channel to the first member that answers."""
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

    def _take_over(self) -> int:
        """Makes this the only writer and forgets what is not durable; the revision of that."""
        new = wire.txn_request(
            [wire.compare_modified(self._format, 0)],
            [wire.put_op(self._format, FORMAT)],
            [wire.range_op(self._format)],
        )
        made = wire.txn_answer(self._ask(_TXN, new))
        for item in made.found:
            if item.value != FORMAT:
                version = item.value.decode(errors="replace")
                raise StoreProblem(
                    f"the data under {self.address.prefix} in etcd has format {version}, this Drakkar knows "
                    f"{FORMAT.decode()}; use the Drakkar that wrote it or choose another prefix"
                )
        passing = self._passing + b"/"
        mine = [wire.put_op(self._writer_key, self._writer), wire.delete_op(passing, _after(passing))]
        return wire.txn_answer(self._ask(_TXN, wire.txn_request([], mine, []))).revision

    def load(self) -> Iterator[Record]:
        start, end, revision = self._durable + b"/", _after(self._durable + b"/"), 0
        skip = len(self._durable)
        while True:
            request = wire.range_request(start, end, limit=_PAGE, revision=revision)
            page = wire.range_answer(self._ask(_RANGE, request))
            revision = revision or page.revision
            for item in page.items:
                yield Record(item.key[skip:].decode(), item.revision, item.value)
            if not page.more:
                break
            start = page.items[-1].key + b"\0"
        self._revision = max(self._revision, revision)

    # Writing.

    def commit(self, batch: Sequence[Write]) -> asyncio.Future[list[int | Conflict]]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[int | Conflict]] = loop.create_future()
        if self._closed or self._failure is not None:
            future.set_exception(StoreFailed(self._failure or "the store is closed"))
            return future
        self._queue.append((batch, future))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work(), name="etcd commit")
        return future

    async def _work(self) -> None:
        """One batch after the other, until none is left."""
        while self._queue:
            batch, future = self._queue.popleft()
            try:
                if self._failure is not None:
                    raise StoreFailed(self._failure)
                answers = await self._apply(batch)
            except Exception as error:
                self._failure = str(error) or repr(error)
                if not future.done():
                    future.set_exception(error if isinstance(error, StoreFailed) else StoreFailed(self._failure))
            else:
                if not future.done():
                    future.set_result(answers)
            if not self._queue and self._failure is None:
                await self._forget_old()
        self._worker = None

    async def _apply(self, batch: Sequence[Write]) -> list[int | Conflict]:
        """The writes of a batch, those of one key in order, others at the same time."""
        answers: list[int | Conflict] = [0] * len(batch)
        chains: dict[bytes, list[int]] = {}
        for at, write in enumerate(batch):
            chains.setdefault(self._key(write), []).append(at)
        gate = asyncio.Semaphore(_IN_FLIGHT)

        async def run(key: bytes, chain: list[int]) -> None:
            async with gate:
                for at in chain:
                    answers[at] = await self._write(key, batch[at])

        outcomes = await asyncio.gather(*(run(*item) for item in chains.items()), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
        self._revision = max([self._revision, *(answer for answer in answers if isinstance(answer, int))])
        return answers

    def _key(self, write: Write) -> bytes:
        return (self._durable if write.durable else self._passing) + write.key.encode()

    async def _write(self, key: bytes, write: Write) -> int | Conflict:
        expected, value = write.expected, write.value
        compares = [self._mine]
        if expected is not None:
            compares.append(wire.compare_modified(key, expected))
        success = [wire.delete_op(key) if value is None else wire.put_op(key, value)]
        if value is None and not expected:
            # Deleting what is not there would take no revision.
            success.append(wire.put_op(self._writer_key, self._writer))
        request = wire.txn_request(compares, success, [wire.range_op(key), wire.range_op(self._writer_key)])
        deadline = asyncio.get_running_loop().time() + _WRITE_TIMEOUT
        unclear = False
        while True:
            at = self._at
            try:
                answer = wire.txn_answer(await self._call(at, _TXN, request))
                break
            except grpc.aio.AioRpcError as error:
                # The write may have been done, though nobody said so. Only a condition makes repeating it safe.
                if error.code() not in _AGAIN or (not expected and (expected is None or value is None)):
                    raise StoreFailed(f"etcd did not write {write.key}: {_details(error)}") from None
                if asyncio.get_running_loop().time() > deadline:
                    raise StoreFailed(
                        f"etcd at {', '.join(self.address.endpoints)} cannot be reached: {_details(error)}"
                    ) from None
                unclear = True
                await self._next(at)
        if answer.succeeded:
            return answer.revision
        found = {item.key: item for item in answer.found}
        writer = found.get(self._writer_key)
        if writer is None or writer.value != self._writer:
            raise StoreFailed(
                f"another server has taken over the data under {self.address.prefix} in etcd; "
                "one server at a time may use it"
            )
        held = found.get(key)
        if unclear:
            if held is not None and held.value == value:
                return held.revision
            if held is None and value is None:
                return await self._deleted_at(key, expected or 0)
        return Conflict(write.key, held.revision if held is not None else 0)

    async def _deleted_at(self, key: bytes, after: int) -> int:
        """Revision of the deletion of a key that was there at revision ``after``."""
        async with asyncio.timeout(_CALL_TIMEOUT):
            async with contextlib.aclosing(self._watched(key, b"", after + 1)) as answers:
                async for answer in answers:
                    for _, revision, value in answer.changes:
                        if value is None:
                            return revision
        raise StoreFailed("etcd ended a watch")

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
        """Turns to the next endpoint, unless somebody has done so."""
        if self._at == failed:
            self._at = (failed + 1) % len(self.address.endpoints)
        await asyncio.sleep(_PAUSE)

    # Changes.

    async def changes(self, after: int) -> AsyncIterator[Record]:
        start, end = self._durable + b"/", _after(self._passing + b"/")
        skip = len(self._durable)
        while not self._closed:
            at = self._at
            try:
                async with contextlib.aclosing(self._watched(start, end, after + 1)) as answers:
                    async for answer in answers:
                        for key, revision, value in answer.changes:
                            yield Record(key[skip:].decode(), revision, value)
                            after = revision
                        if not answer.changes and not answer.created:
                            # A progress notification: nothing of ours up to here is still to come.
                            after = max(after, answer.revision)
            except grpc.aio.AioRpcError as error:
                if error.code() not in _AGAIN:
                    raise StoreFailed(f"etcd ended a watch: {_details(error)}") from None
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not self._closed or (task is not None and task.cancelling()):
                    raise
                return
            await self._next(at)

    async def _watched(self, key: bytes, end: bytes, start: int) -> AsyncGenerator[wire.WatchAnswer]:
        # A member that has lost its leader ends the watch instead of falling silent.
        call = self._channel(self._at).stream_stream(_WATCH)(metadata=(("hasleader", "true"),))
        self._watches.add(call)
        try:
            await call.write(wire.watch_request(key, end, start))
            while True:
                data = await call.read()
                if not isinstance(data, bytes):  # the end
                    return
                answer = wire.watch_answer(data)
                if answer.compacted:
                    raise Compacted(
                        f"changes after revision {start - 1} are gone, etcd keeps those after {answer.compacted}"
                    )
                if answer.canceled:
                    _log.warning("etcd ended a watch: %s", answer.reason or "no reason given")
                    return
                yield answer
        finally:
            self._watches.discard(call)
            call.cancel()

    async def compact(self, revision: int) -> None:
        try:
            await self._call(self._at, _COMPACT, wire.compaction_request(revision))
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.OUT_OF_RANGE:  # not: compacted further already
                raise StoreFailed(f"etcd did not compact: {_details(error)}") from None

    async def _forget_old(self) -> None:
        """Lets etcd drop old history now and then; otherwise its space would run out."""
        now = asyncio.get_running_loop().time()
        if self._mark is not None and now - self._mark[0] < _HISTORY:
            return
        if self._mark is not None:
            try:
                await self.compact(self._mark[1])
            except StoreFailed as error:
                _log.warning("%s; trying again in %d s", error, _HISTORY)
        self._mark = (now, self._revision)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._worker is not None:
            await self._worker
        for call in list(self._watches):
            call.cancel()
        for channel in self._channels.values():
            await channel.close()
        self._plain.close()


def _after(prefix: bytes) -> bytes:
    """The first key behind all that begin with ``prefix``."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _details(error: Any) -> str:
    return " ".join(str(error.details() or error.code().name).split())
