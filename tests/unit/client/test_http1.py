"""Ordinary requests on kept connections, at servers that behave well, oddly and badly."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import httptools
import pytest

from drakkar.client import http1
from drakkar.client.http1 import Broken, Connections

#: What a server does with one request of a connection: number of the connection, of the request, its head and body.
Answer = Callable[[int, int, bytes], bytes | None]


class Server:
    """Answers with bytes; None: closes the connection without a word."""

    def __init__(self, answer: Answer):
        self.answer = answer
        self.connections = 0
        self.requests: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self.connections = self.connections + 1
        count = 0
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")), 0
                )
                self.requests.append(head + await reader.readexactly(length))
                count += 1
                said = self.answer(number, count, self.requests[-1])
                if said is None:
                    return
                writer.write(said)
                await writer.drain()
                if b"until-closed" in said:
                    return
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()


@asynccontextmanager
async def at(answer: Answer, prefix: str = ""):
    server = Server(answer)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    connections = Connections(f"http://127.0.0.1:{port}{prefix}", None, "test")
    try:
        yield server, connections
    finally:
        await connections.close()
        listening.close()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(scenario(), 100)

    asyncio.run(limited())


def ok(body: bytes = b"{}", *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


async def get(connections: Connections, target: str = "/x", timeout: float = 60) -> tuple[int, bytes]:
    response = await connections.request("GET", target, {"accept": "a"}, b"", timeout)
    return response.status, response.body


def test_one_connection_serves_many_requests_and_says_what_it_was_given() -> None:
    async def scenario() -> None:
        async with at(lambda _, count, __: ok(b"%d" % count, b"X-One: 1"), "/k8s/a/") as (server, connections):
            response = await connections.request("PATCH", "/x?a=b", {"authorization": "Bearer t"}, b"body", 5)
            assert (response.status, response.body, response.headers["x-one"]) == (200, b"1", "1")
            assert await get(connections) == (200, b"2")
            await connections.request("POST", "/x", {}, b"", 5)
        assert server.connections == 1
        first = server.requests[0].decode()
        assert first.startswith("PATCH /k8s/a/x?a=b HTTP/1.1\r\nhost: 127.0.0.1:")
        assert "authorization: Bearer t\r\n" in first
        assert first.endswith("content-length: 4\r\n\r\nbody")
        assert b"content-length" not in server.requests[1]
        assert b"content-length: 0\r\n" in server.requests[2]

    run(scenario)


def test_requests_at_the_same_time_have_connections_of_their_own() -> None:
    async def scenario() -> None:
        async with at(lambda number, _, request: ok(request.split()[1])) as (server, connections):
            answers = await asyncio.gather(*(get(connections, f"/{number}") for number in range(20)))
            assert answers == [(200, b"/%d" % number) for number in range(20)]
            assert 1 < server.connections <= 20
            before = server.connections
            await get(connections)
            assert server.connections == before

    run(scenario)


def test_bodies_in_pieces_compressed_and_without_a_length() -> None:
    packed = gzip.compress(b"long" * 1000)
    answers = {
        b"/pieces": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
        b"/packed": ok(packed, b"Content-Encoding: gzip"),
        b"/open": b"HTTP/1.1 200 OK\r\n\r\nuntil-closed",
        b"/none": b"HTTP/1.1 204 No Content\r\n\r\n",
        b"/news": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + ok(b"at last"),
        b"/last": ok(b"bye", b"Connection: close"),
    }

    async def scenario() -> None:
        async with at(lambda _, __, request: answers[request.split()[1]]) as (server, connections):
            assert await get(connections, "/pieces") == (200, b"abcde")
            assert await get(connections, "/packed") == (200, b"long" * 1000)
            assert await get(connections, "/none") == (204, b"")
            assert await get(connections, "/news") == (200, b"at last")
            assert server.connections == 1
            assert await get(connections, "/last") == (200, b"bye")
            assert await get(connections, "/open") == (200, b"until-closed")
            assert server.connections == 2
            assert await get(connections, "/none") == (204, b"")
            assert server.connections == 3

    run(scenario)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (None, Broken),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nuntil-closed", Broken),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n50\r\nuntil-closed", Broken),
        (b"SSH-2.0-OpenSSH_9 until-closed\r\n", httptools.HttpParserError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", httptools.HttpParserError),
    ],
)
def test_half_an_answer_is_none_and_the_next_request_has_another_connection(
    said: bytes | None, error: type[Exception]
) -> None:
    async def scenario() -> None:
        async with at(lambda number, _, __: said if number == 1 else ok()) as (server, connections):
            with pytest.raises(error):
                await get(connections)
            assert await get(connections) == (200, b"{}")
            # Nothing is sent twice.
            assert (server.connections, len(server.requests)) == (2, 2)

    run(scenario)


def test_a_request_that_is_given_up_does_not_leave_its_answer_to_the_next() -> None:
    async def scenario() -> None:
        def answer(number: int, count: int, _: bytes) -> bytes:
            return b"" if (number, count) == (1, 2) else ok(b"mine")

        async with at(answer) as (server, connections):
            # Connected already: the time is that of the request alone.
            assert await get(connections) == (200, b"mine")
            with pytest.raises(TimeoutError):
                await get(connections, "/slow", timeout=0.05)
            waiting = asyncio.create_task(get(connections, "/slow"))
            assert await waiting == (200, b"mine")
            assert server.connections == 2

    run(scenario)


def test_a_connection_that_the_server_has_closed_or_that_is_too_old_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with at(lambda _, __, ___: ok(b"x", b"X-Close: until-closed")) as (server, connections):
            await get(connections)
            (kept,) = connections._idle
            async with asyncio.timeout(60):
                while kept.is_open:
                    await asyncio.sleep(0.01)
            await get(connections)
            assert server.connections == 2
        async with at(lambda _, __, ___: ok()) as (server, connections):
            await get(connections)
            monkeypatch.setattr(http1, "KEPT", 0.0)
            await get(connections)
            assert server.connections == 2

    run(scenario)


def test_what_comes_unasked_closes_the_connection() -> None:
    async def scenario() -> None:
        async with at(lambda number, _, __: ok() + (ok(b"more") if number == 1 else b"")) as (server, connections):
            assert await get(connections) == (200, b"{}")
            assert await get(connections) == (200, b"{}")
            assert await get(connections) == (200, b"{}")
            assert server.connections == 2

    run(scenario)


def test_closing_ends_what_is_under_way() -> None:
    async def scenario() -> None:
        async with at(lambda _, __, ___: b"") as (_server, connections):
            waiting = asyncio.create_task(get(connections))
            await asyncio.sleep(0.05)
            await connections.close()
            with pytest.raises(Broken):
                await waiting

    run(scenario)


def test_the_next_address_is_tried_where_the_first_refuses_or_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "CONNECT_TIMEOUT", 0.6)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        closed, silent = socket.socket(), socket.socket()
        for unused in (closed, silent):
            unused.bind(("127.0.0.1", 0))
        # One that is full: what connects further is not answered.
        silent.listen(0)
        filling = [socket.socket() for _ in range(4)]
        for each in filling:
            each.setblocking(False)
            each.connect_ex(silent.getsockname())
        async with at(lambda _, __, ___: ok()) as (server, connections):
            here = connections.port

            async def addresses(*_: object, **__: object) -> list[object]:
                ports = [closed.getsockname()[1], silent.getsockname()[1], here]
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]

            monkeypatch.setattr(loop, "getaddrinfo", addresses)
            assert await get(connections) == (200, b"{}")
            assert server.connections == 1
        for each in (closed, silent, *filling):
            each.close()

    run(scenario)


def test_nobody_there_and_line_breaks_in_headers() -> None:
    async def scenario() -> None:
        async with at(lambda _, __, ___: ok()) as (server, connections):
            with pytest.raises(ValueError, match="line break"):
                await connections.request("GET", "/x", {"authorization": "a\r\nx: y"}, b"", 5)
            assert server.connections == 0
        with pytest.raises(ConnectionRefusedError):
            await get(connections)

    run(scenario)
