"""The server behind uvicorn: one small ASGI application, TLS, and streams that end with their readers.

uvicorn is embedded: it installs no signal handlers, writes no log of its own, and gets a
socket that is already bound, so that a port in use is found before anything starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from drakkar.api.errors import EnvironmentProblem
from drakkar.api.wire import Handler, Request, Response
from drakkar.apiserver import status
from drakkar.apiserver.deadlines import allotted
from drakkar.apiserver.limits import BODY_LIMIT, HEAD_LIMIT, HEAD_SECONDS, STALL_SECONDS, WRITE_BUFFER, Intake, Limits
from drakkar.apiserver.server import ApiServer, failure
from drakkar.apiserver.status import StatusError
from drakkar.apiserver.streaming.agents import Agents
from drakkar.apiserver.streaming.gateway import (
    SPDY_VERSIONS,
    carry_forward,
    carry_streams,
    carry_websocket,
    subprotocol,
)
from drakkar.apiserver.streaming.targets import Target
from drakkar.apiserver.tls import Pki
from drakkar.streaming.channels import LONGEST_MESSAGE, PIECE, TUNNEL

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Peer = tuple[str, tuple[str, ...]]

#: Answers of at least this many bytes are compressed for clients that want it.
GZIP_FROM = 128 << 10
#: Bytes compressed on the event loop; more goes to a thread.
_GZIP_INLINE = 1 << 20
#: Seconds that requests in progress get when the server stops.
GRACE = 3

_SPDY = b"spdy/3.1"
#: Version of port-forward over SPDY.
_FORWARD = "portforward.k8s.io"
_HEAD_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_WITHOUT_BODY = frozenset({"GET", "HEAD"})


def _gzip(body: bytes) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    return packer.compress(body) + packer.flush()


async def _gzipped(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The stream compressed, in a thread."""
    loop = asyncio.get_running_loop()
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    try:
        async for piece in stream:
            if packed := await loop.run_in_executor(None, packer.compress, piece):
                yield packed
    finally:
        await _close(stream)
    yield packer.flush()


async def _close(stream: AsyncIterator[bytes]) -> None:
    """Ends a stream that may not have been read to its end."""
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()


class Application:
    """The ASGI application around a handler."""

    def __init__(self, handler: Handler, agents: Callable[[], Agents | None], limits: Limits):
        self._handler = handler
        self._agents = agents
        self._seconds = limits.seconds
        self._intake = Intake()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers = _headers(scope)
        # A DELETE or a GET may carry a body, but only a length or chunks announce one.
        if scope["method"] in _WITHOUT_BODY or not ("content-length" in headers or "transfer-encoding" in headers):
            await self._answer(scope, headers, b"", receive, send)
            return
        body = _Body(self._intake)
        try:
            refused = await body.read(headers, receive, self._allotted(scope))
            if refused is not None:
                await _send(send, failure(refused), headers, close=True)
            else:
                await self._answer(scope, headers, body.content, receive, send)
        finally:
            body.forget()

    def _allotted(self, scope: MutableMapping[str, Any]) -> float:
        """Seconds that the client gives the request; a text that says nothing is for the handler to refuse."""
        if b"timeout=" not in scope["query_string"]:
            return self._seconds
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        try:
            return allotted(query.get("timeout", ""), self._seconds)
        except StatusError:
            return self._seconds

    async def _answer(
        self, scope: MutableMapping[str, Any], headers: dict[str, str], body: bytes, receive: Receive, send: Send
    ) -> None:
        response = await self._handler(_request(scope, scope["method"], headers, body))
        stream = made = response.stream
        if stream is not None and made is not None and response.whole:
            if "gzip" in headers.get("accept-encoding", ""):
                response.headers |= {"content-encoding": "gzip", "vary": "Accept-Encoding"}
                stream = _gzipped(stream)
            try:
                async with asyncio.timeout(self._allotted(scope)):
                    await _stream(send, receive, response, stream)
            except TimeoutError:
                # Only a cut connection tells a client that the list is not whole.
                scope["state"]["cut"]()
                await asyncio.sleep(0)  # uvicorn takes notice
            finally:
                # Even if it was never begun.
                await _close(made)
        elif stream is not None:
            await _stream(send, receive, response, stream)
        elif response.upgrade is not None:
            # The client asked for an upgrade in words only: its connection is an ordinary one.
            await _send(send, failure(status.bad_request("Upgrade request required")), headers)
        else:
            await _send(send, response, headers)

    async def _websocket(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Joins the client with an agent, or says why not as an ordinary answer."""
        await receive()
        headers = {**_headers(scope), "upgrade": "websocket"}
        response = await self._handler(_request(scope, "GET", headers, b""))
        agents = self._agents()
        if response.upgrade is None or agents is None:
            if response.stream is not None or response.status < 400:
                response = failure(status.bad_request("this path is not served over WebSocket"))
            await _deny(send, response)
            return
        target: Target = response.upgrade
        chosen = subprotocol(target, scope["subprotocols"])
        if chosen is None:
            known = ", ".join(target.protocols)
            await _deny(send, failure(status.bad_request(f"none of the subprotocols is known here, only {known}")))
            return
        try:
            agent = await agents.converse(replace(target, protocols=(chosen,)))
        except StatusError as error:
            await _deny(send, failure(error.status))
            return
        await send({"type": "websocket.accept", "subprotocol": chosen})
        await carry_websocket(agent, receive, send)

    async def spdy(
        self, scope: MutableMapping[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """The same for a client that asked for SPDY/3.1; the connection ends with it."""
        headers = _headers(scope)
        response = await self._handler(_request(scope, scope["method"], headers, b""))
        agents = self._agents()
        # Clients repeat this header.
        lines = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-stream-protocol-version"]
        offered = [part.strip() for part in ",".join(lines).split(",")]
        if response.upgrade is None or agents is None:
            if response.stream is not None or response.status < 400:
                response = failure(status.bad_request("this path is not served over SPDY/3.1"))
            await _refuse(writer, response)
            return
        target: Target = response.upgrade
        forwarding = TUNNEL in target.protocols
        versions = (_FORWARD,) if forwarding else SPDY_VERSIONS
        version = next((name for name in versions if name in offered), None)
        if version is None:
            words = f"none of the versions {', '.join(offered)} is known here, only {', '.join(versions)}"
            await _refuse(writer, failure(status.status_error(403, "Forbidden", words)))
            return

        async def write(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        def read() -> Awaitable[bytes]:
            return reader.read(PIECE)

        try:
            agent = await agents.converse(target) if forwarding else None
        except StatusError as error:
            await _refuse(writer, failure(error.status))
            return
        await write(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
            b"X-Stream-Protocol-Version: " + version.encode() + b"\r\n\r\n"
        )
        if agent is not None:
            await carry_forward(agent, read, write)
        else:
            await carry_streams(agents, target, read, write)


def _headers(scope: MutableMapping[str, Any]) -> dict[str, str]:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    if "impersonate-group" in headers:
        # The one header that clients repeat.
        groups = [value.decode("latin-1") for name, value in scope["headers"] if name == b"impersonate-group"]
        headers["impersonate-group"] = ",".join(groups)
    return headers


def _request(scope: MutableMapping[str, Any], method: str, headers: dict[str, str], body: bytes) -> Request:
    text = scope["query_string"].decode("latin-1")
    return Request(
        method=method,
        path=scope["raw_path"].decode("latin-1"),
        query=tuple(parse_qsl(text, keep_blank_values=True)) if text else (),
        headers=headers,
        body=body,
        peer=scope["state"].get("peer"),
        pieces=True,
    )


class _Body:
    """The body of one request while it comes in."""

    def __init__(self, intake: Intake):
        self._intake = intake
        self._held = 0
        self._parts: list[bytes] = []

    @property
    def content(self) -> bytes:
        """All of it, once it is there."""
        return b"".join(self._parts) if len(self._parts) != 1 else self._parts[0]

    async def read(self, headers: dict[str, str], receive: Receive, seconds: float) -> dict[str, Any] | None:
        """Reads it; the Status that refuses it, where one does. What is refused is not read to its end."""
        length = headers.get("content-length", "")
        announced = int(length) if length.isdigit() else 0
        if announced > BODY_LIMIT:
            return status.entity_too_large(f"Request entity too large: limit is {BODY_LIMIT}")
        if not self._hold(announced):
            return status.too_many_requests("too many large requests, please try again later")
        try:
            async with asyncio.timeout(seconds):
                return await self._receive(announced, receive)
        except TimeoutError:
            return status.timeout(f"the body of the request did not come within {seconds:g} s")

    async def _receive(self, announced: int, receive: Receive) -> dict[str, Any] | None:
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return status.bad_request("the client went away before its request was complete")
            part = message.get("body", b"")
            size += len(part)
            if size > BODY_LIMIT:
                return status.entity_too_large(f"Request entity too large: limit is {BODY_LIMIT}")
            if size > announced and not self._hold(len(part)):
                return status.too_many_requests("too many large requests, please try again later")
            self._parts.append(part)
            if not message.get("more_body", False):
                return None

    def _hold(self, size: int) -> bool:
        if not self._intake.take(size):
            return False
        self._held += size
        return True

    def forget(self) -> None:
        """The request has been answered."""
        self._intake.give_back(self._held)
        self._held = 0


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]


async def _send(send: Send, response: Response, asked: dict[str, str], *, close: bool = False) -> None:
    body = response.body
    headers = _encoded(response.headers)
    if len(body) >= GZIP_FROM and "gzip" in asked.get("accept-encoding", ""):
        if len(body) > _GZIP_INLINE:
            body = await asyncio.get_running_loop().run_in_executor(None, _gzip, body)
        else:
            body = _gzip(body)
        headers += [(b"content-encoding", b"gzip"), (b"vary", b"Accept-Encoding")]
    headers.append((b"content-length", str(len(body)).encode()))
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    # In pieces: of what a slow client does not read, no second copy may lie in its connection.
    for begin in range(0, len(body) - WRITE_BUFFER, WRITE_BUFFER):
        await send({"type": "http.response.body", "body": body[begin : begin + WRITE_BUFFER], "more_body": True})
    rest = max(0, len(body) - 1) // WRITE_BUFFER * WRITE_BUFFER
    await send({"type": "http.response.body", "body": body[rest:] if rest else body})


async def _deny(send: Send, response: Response) -> None:
    """An ordinary answer to a WebSocket's beginning."""
    headers = [*_encoded(response.headers), (b"content-length", str(len(response.body)).encode())]
    await send({"type": "websocket.http.response.start", "status": response.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": response.body})


async def _refuse(writer: asyncio.StreamWriter, response: Response) -> None:
    """An ordinary answer on a connection that uvicorn has let go."""
    headers = {**response.headers, "content-length": str(len(response.body)), "connection": "close"}
    lines = [f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + response.body)
    await writer.drain()


async def _stream(send: Send, receive: Receive, response: Response, stream: AsyncIterator[bytes]) -> None:
    """Sends chunks until the stream ends or the client goes away, whichever comes first."""
    await send({"type": "http.response.start", "status": response.status, "headers": _encoded(response.headers)})

    async def pump() -> None:
        async for chunk in stream:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.create_task(pump(), name="watch"), asyncio.create_task(gone(), name="watch reader")]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await _close(stream)
    for result in results:
        if isinstance(result, Exception):
            raise result
    await send({"type": "http.response.body", "body": b""})


def _subject(transport: asyncio.BaseTransport) -> Peer | None:
    """Common name and organizations of a verified client certificate."""
    found: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    certificate = found.getpeercert() if found is not None else None
    if not certificate:
        return None
    name, groups = "", list[str]()
    for part in certificate.get("subject", ()):
        for pair in part:
            key, value = str(pair[0]), str(pair[1])
            if key == "commonName":
                name = value
            elif key == "organizationName":
                groups.append(value)
    return (name, tuple(groups)) if name else None


class _Raw(asyncio.StreamReaderProtocol):
    """A connection that speaks something else than HTTP now, on uvicorn's list of connections."""

    def __init__(self, reader: asyncio.StreamReader, connections: set[Any]):
        super().__init__(reader)
        self._connections = connections
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.transport = transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """uvicorn stops."""
        if self.transport is not None:
            self.transport.close()


def _protocol(application: Application) -> type[Any]:
    """uvicorn's protocol, with the certificate of the peer in the state of every request, and upgrades to SPDY."""
    base: Any
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

        base = HttpToolsProtocol
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol

        base = H11Protocol

    class Protocol(base):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.set_write_buffer_limits(high=WRITE_BUFFER)
            self.app_state = {**self.app_state, "peer": _subject(transport), "cut": self._cut}
            self._stalled: asyncio.TimerHandle | None = None
            self._head_bytes = 0
            self._overdue: asyncio.TimerHandle | None = self.loop.call_later(HEAD_SECONDS, self._cut)

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._stalled, self._overdue):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def _cut(self) -> None:
            """Ends the connection of a client that keeps us waiting; closing would wait for it once more."""
            if self.transport is not None:
                self.transport.abort()

        def data_received(self, data: bytes) -> None:
            self._head_bytes += len(data)
            super().data_received(data)
            if self.transport.get_protocol() is not self:
                waiting = False  # upgraded
            else:
                waiting = self.cycle is None or self.cycle.response_complete
            if not waiting:
                self._head_bytes = 0
                if self._overdue is not None:
                    self._overdue.cancel()
                    self._overdue = None
            elif not self.transport.is_closing():
                # The head of a request has begun and is not complete.
                if self._head_bytes > HEAD_LIMIT:
                    self.transport.write(_HEAD_TOO_LARGE)
                    self.transport.close()
                elif self._overdue is None:
                    self._overdue = self.loop.call_later(HEAD_SECONDS, self._cut)

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._stalled is None:
                self._stalled = self.loop.call_later(STALL_SECONDS, self._cut)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._stalled is not None:
                self._stalled.cancel()
                self._stalled = None

        def _should_upgrade(self) -> bool:
            return self._get_upgrade() == _SPDY or super()._should_upgrade()

        def handle_websocket_upgrade(self, *event: Any) -> None:
            # The one place where uvicorn lets a connection go.
            if self._get_upgrade() != _SPDY:
                super().handle_websocket_upgrade(*event)
                return
            self.connections.discard(self)
            reader = asyncio.StreamReader(limit=2 * PIECE)
            raw = _Raw(reader, self.connections)
            raw.connection_made(self.transport)
            self.transport.set_protocol(raw)
            writer = asyncio.StreamWriter(self.transport, raw, reader, self.loop)
            path, _, query = self.url.partition(b"?")
            scope = {**self.scope, "raw_path": path, "query_string": query}

            async def serve() -> None:
                try:
                    with contextlib.suppress(ConnectionError):
                        await application.spdy(scope, reader, writer)
                finally:
                    writer.close()

            task = self.loop.create_task(serve(), name="spdy")
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    return Protocol


def _websocket_protocol() -> type[Any]:
    """uvicorn's, whose end of the server must not fail because of a client that broke the protocol before."""
    from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
    from wsproto.utilities import LocalProtocolError

    class Protocol(WSProtocol):
        def shutdown(self) -> None:
            try:
                super().shutdown()
            except LocalProtocolError:
                self.transport.close()

    return Protocol


class Serving:
    """A listening server. ``port`` is the one that was chosen."""

    def __init__(self, uvicorn_server: Any, task: asyncio.Task[None], host: str, port: int, tls: bool, stop: Any):
        self._server = uvicorn_server
        self._task = task
        self._stop = stop
        self.host = host
        self.port = port
        self.url = f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    async def close(self) -> None:
        """Stops listening, lets requests in progress end for a moment, then cuts them off."""
        self._stop()
        self._server.should_exit = True
        # Before uvicorn cancels them, and says so at length.
        cutting = asyncio.get_running_loop().call_later(0.8 * GRACE, self._cut)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        finally:
            cutting.cancel()

    def _cut(self) -> None:
        for connection in list(self._server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises EnvironmentProblem when the port is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Only of sockets that name their protocol does asyncio take Nagle's delay away; without it every answer that is
    # written in two pieces would wait for an acknowledgement, which the other side holds back for 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(1024)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        if port:
            cure = f"choose another one with --port, or stop what listens there ({error.strerror})"
            raise EnvironmentProblem(f"cannot listen on {host} port {port}: {cure}") from None
        raise EnvironmentProblem(f"cannot listen on {host}: {error.strerror}") from None
    return sock


async def serve(
    server: ApiServer, *, host: str = "127.0.0.1", port: int = 0, pki: Pki | None = None, handler: Handler | None = None
) -> Serving:
    """Listens; ``port`` 0 takes any free one, ``pki`` None serves plain HTTP.

    ``handler`` stands in for ``server.handle``. Raises EnvironmentProblem when the port is in use.
    """
    import uvicorn

    class Embedded(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def main_loop(self) -> None:
            # uvicorn's own loop wakes ten times a second to look for signals and to renew dates.
            while not self.should_exit:
                await self.on_tick(0)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await stopping.wait()

    stopping = asyncio.Event()
    sock = listen(host, port)
    application = Application(handler or server.handle, lambda: server.agents, server.limits)
    config = uvicorn.Config(
        application,
        http=_protocol(application),
        ws=_websocket_protocol(),
        ws_max_size=LONGEST_MESSAGE,
        ws_per_message_deflate=False,
        # Clients of long conversations ask by themselves whether the server is there.
        ws_ping_interval=None,
        lifespan="off",
        log_config=None,
        # Its warnings are about clients (broken requests, unsupported upgrades) and advise to install packages.
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        interface="asgi3",
        timeout_keep_alive=120,
        timeout_graceful_shutdown=GRACE,
    )
    config.load()
    if pki is not None:
        config.ssl = pki.server_context()
    embedded = Embedded(config)
    chosen: int = sock.getsockname()[1]
    task = asyncio.create_task(embedded.serve(sockets=[sock]), name="http server")
    while not embedded.started:
        if task.done():
            task.result()
            raise EnvironmentProblem(f"cannot listen on {host} port {chosen}")
        await asyncio.sleep(0)

    def stop() -> None:
        server.end_watches()
        stopping.set()

    return Serving(embedded, task, host, chosen, pki is not None, stop)
