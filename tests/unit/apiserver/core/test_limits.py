"""Clients that want too much, say too little or do not listen: each costs a bounded amount for a bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from drakkar.api.wire import Request
from drakkar.apiserver import ApiServer, Serving, http, open_pki, serve
from drakkar.apiserver.limits import Intake, Limits, Releasing
from drakkar.client.clock import SystemClock
from drakkar.store import MemoryBackend
from tests.unit.apiserver.core.test_http import Plain
from tests.unit.apiserver.core.test_writes import CONFIGMAPS

Scene = Callable[[ApiServer, Serving, Plain], Awaitable[None]]
#: Seconds, where the real limits are half a minute and more.
SOON = 0.3


def play(scene: Scene, limits: Limits | None = None, pki_folder: Path | None = None) -> None:
    async def run() -> None:
        server = ApiServer(MemoryBackend(), clock=SystemClock(), limits=limits)
        await server.start()
        serving = await serve(server, pki=open_pki(pki_folder) if pki_folder else None)
        try:
            async with asyncio.timeout(100):
                await scene(server, serving, Plain(serving, None, server.token("admin", "system:masters")))
        finally:
            await serving.close()
            await server.close()

    asyncio.run(run())


async def fill(server: ApiServer, count: int = 60, size: int = 50_000) -> None:
    headers = {"authorization": f"Bearer {server.token('admin', 'system:masters')}"}
    for number in range(count):
        body = json.dumps({"metadata": {"name": f"c{number}"}, "data": {"k": "v" * size}}).encode()
        assert (await server.handle(Request("POST", CONFIGMAPS, (), headers, body))).status == 201


async def deaf(client: Plain, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that asks and does not read the answer."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", client.serving.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(client.head("GET", path, b"", {}))
    return reader, writer


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.02)


def test_a_head_that_does_not_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEAD_SECONDS", SOON)

    async def scene(server: ApiServer, serving: Serving, client: Plain) -> None:
        silent, _ = await client.open()
        reader, writer = await client.open()
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n")
        again, second = await client.open()
        second.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200" in await again.readuntil(b"ok")
        second.write(b"GET /heal")  # the next request of a connection that was good
        for one in (silent, reader, again):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await one.readexactly(1)

    play(scene)


def test_a_head_without_measure_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEAD_LIMIT", 50_000)

    async def scene(server: ApiServer, serving: Serving, client: Plain) -> None:
        for endless in (b"x-one: " + b"a" * 200_000, b"".join(b"x-%d: a\r\n" % n for n in range(20_000))):
            reader, writer = await client.open()
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + endless)
            assert (await reader.read(4096)).startswith(b"HTTP/1.1 431 ")
            writer.close()

    play(scene)


def test_a_body_that_does_not_end_is_refused() -> None:
    async def scene(server: ApiServer, serving: Serving, client: Plain) -> None:
        for size in ({"content-length": "1000"}, {"transfer-encoding": "chunked"}):
            reader, writer = await client.open()
            writer.write(client.head("POST", CONFIGMAPS, b"", size))
            answer = await reader.read()
            assert b" 504 " in answer.split(b"\r\n")[0]
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["reason"] == "Timeout"
            writer.close()

    play(scene, Limits(seconds=SOON))


def test_bodies_have_a_common_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "Intake", lambda: Intake(10_000))

    async def scene(server: ApiServer, serving: Serving, client: Plain) -> None:
        _, first = await client.open()
        first.write(client.head("POST", CONFIGMAPS, b"", {"content-length": "8000"}))
        await until(lambda: bool(serving._server.server_state.tasks))
        chunked = b"1000\r\n" + b"a" * 0x1000 + b"\r\n"
        for rest, sent in (({"content-length": "3000"}, b""), ({"transfer-encoding": "chunked"}, chunked)):
            reader, writer = await client.open()
            writer.write(client.head("POST", CONFIGMAPS, b"", rest) + sent)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert b" 429 " in answer.split(b"\r\n")[0]
            assert b"retry-after: 1" in answer
            writer.close()
        first.close()
        body = json.dumps({"metadata": {"name": "c"}, "data": {"k": "v" * 5000}}).encode()
        while (await client.ask("POST", CONFIGMAPS, body))[0] != 201:
            await asyncio.sleep(0.02)
        # What is given back can be taken again.
        for number in range(5):
            assert (await client.ask("PUT", f"{CONFIGMAPS}/c", body.replace(b"v", b"%d" % number)))[0] == 200

    play(scene)


def test_requests_in_progress_have_a_bound() -> None:
    async def scene(server: ApiServer, serving: Serving, client: Plain) -> None:
        code, headers, body = await client.ask("POST", CONFIGMAPS, b'{"metadata":{"name":"a"}}')
        assert (code, headers["retry-after"], json.loads(body)["reason"]) == (429, "1", "TooManyRequests")

    play(scene, Limits(writing=0))


def test_a_list_counts_until_its_end() -> None:
    async def scene(server: ApiServer, serving: Serving, client: Plain) -> None:
        await fill(server)
        headers = {"authorization": f"Bearer {client.token}"}
        first = await server.handle(Request("GET", CONFIGMAPS, (), headers, pieces=True))
        refused = await server.handle(Request("GET", CONFIGMAPS, (), headers, pieces=True))
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        await first.stream.aclose()  # type: ignore[union-attr]  # nobody read any of it
        second = await server.handle(Request("GET", CONFIGMAPS, (), headers, pieces=True))
        assert second.stream is not None
        assert len(json.loads(b"".join([piece async for piece in second.stream]))["items"]) == 60
        assert (await server.handle(Request("GET", CONFIGMAPS, (), headers))).status == 200

    play(scene, Limits(reading=1))


def test_a_compressed_list_ends_with_its_reader() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield os.urandom(100_000)

    async def scene(server: ApiServer, serving: Serving, client: Plain) -> None:
        ended: list[bool] = []
        packed = http._gzipped(Releasing(pieces(), lambda: ended.append(True)))
        assert await anext(aiter(packed))
        await packed.aclose()  # type: ignore[attr-defined]
        assert ended == [True]
        await fill(server)
        for accept in ("gzip", "identity"):
            _, writer = await client.open()
            writer.write(client.head("GET", CONFIGMAPS, b"", {"accept-encoding": accept}))
            # Every turn of the loop: in a short nap the whole list may have gone into the buffers of the network.
            while not serving._server.server_state.tasks:
                await asyncio.sleep(0)
            writer.transport.abort()
            await until(lambda: not serving._server.server_state.tasks)
            assert server.in_flight == (0, 0)

    play(scene)


@pytest.mark.parametrize("path", [CONFIGMAPS, f"{CONFIGMAPS}?watch=1"])
def test_who_does_not_listen_is_cut(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(http, "STALL_SECONDS", SOON)

    async def scene(server: ApiServer, serving: Serving, client: Plain) -> None:
        await fill(server)
        opened = [await deaf(client, path) for _ in range(5)]
        connections = serving._server.server_state.connections
        await until(lambda: len(connections) == 5)
        await until(lambda: not connections)
        await until(lambda: not serving._server.server_state.tasks)
        assert len(server.ticker) == 0
        assert server.in_flight == (0, 0)
        for _, writer in opened:
            writer.close()

    play(scene)


def test_a_list_that_takes_too_long_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    """The client learns from the missing end that something is missing."""

    async def scene(server: ApiServer, serving: Serving, client: Plain) -> None:
        await fill(server)
        reader, writer = await deaf(client, CONFIGMAPS)
        connections = serving._server.server_state.connections
        await until(lambda: bool(connections))
        await until(lambda: not connections)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        answer = b""
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(100_000):
                answer += piece
        assert b" 200 " in answer.split(b"\r\n")[0]
        assert not answer.endswith(b"0\r\n\r\n")  # the end of a whole answer
        assert not caplog.records

    play(scene, Limits(seconds=SOON))


def test_the_end_does_not_wait_for_anybody(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Half a request, a deaf reader and a watch when the server stops: they are cut, without a word in the log."""
    monkeypatch.setattr(http, "GRACE", 1)

    async def scene(server: ApiServer, serving: Serving, client: Plain) -> None:
        await fill(server)
        _, half = await client.open()
        half.write(client.head("POST", CONFIGMAPS, b"", {"content-length": "1000"}))
        _, begun = await client.open()
        begun.write(b"GET /heal")
        reader, watching = await client.open()
        watching.write(client.head("GET", f"{CONFIGMAPS}?watch=1&resourceVersion=1", b"", {}))
        await reader.readuntil(b"\r\n\r\n")
        _, list_ = await deaf(client, CONFIGMAPS)
        _, watch = await deaf(client, f"{CONFIGMAPS}?watch=1")
        await until(lambda: len(serving._server.server_state.tasks) == 4)
        await serving.close()
        for writer in (half, begun, watching, list_, watch):
            writer.close()
        assert not caplog.records

    play(scene)


def test_short_answers_arrive_whole(tmp_path: Path) -> None:
    """Those that are not streamed are cut into pieces for the connection all the same."""

    async def scene(server: ApiServer, serving: Serving, client: Plain) -> None:
        for size in (0, 1, (128 << 10) - 300, 128 << 10, 300_000, 900_000):
            body = json.dumps({"metadata": {"name": f"c{size}"}, "data": {"k": "v" * size}}).encode()
            code, headers, answer = await client.ask("POST", CONFIGMAPS, body)
            assert (code, int(headers["content-length"])) == (201, len(answer))
            assert json.loads(answer)["data"]["k"] == "v" * size

    play(scene)


@pytest.mark.parametrize(
    "form", ["", ";as=Table;v=v1;g=meta.k8s.io", ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"]
)
@pytest.mark.parametrize("media", ["application/json", "application/yaml"])
def test_lists_of_every_form_are_the_same_in_pieces(media: str, form: str) -> None:
    async def scene(server: ApiServer, serving: Serving, client: Plain) -> None:
        await fill(server)
        headers = {
            "authorization": f"Bearer {client.token}",
            "accept": f"{media};as={form};v=v1;g=meta.k8s.io" if form else media,
        }
        for query in ((), (("includeObject", "Object"),), (("labelSelector", "no=thing"),)):
            if query and query[0][0] == "includeObject" and form != "Table":
                continue
            whole = await server.handle(Request("GET", CONFIGMAPS, query, headers))
            taken = await server.handle(Request("GET", CONFIGMAPS, query, headers, pieces=True))
            if taken.stream is not None:
                taken.body = b"".join([piece async for piece in taken.stream])
            else:
                assert query
            assert whole.status == taken.status
            assert _without_ages(taken.body) == _without_ages(whole.body)
            if media == "application/json":
                json.loads(taken.body)

    play(scene)


def _without_ages(body: bytes) -> bytes:
    return re.sub(rb"\d+s", b"", body)
