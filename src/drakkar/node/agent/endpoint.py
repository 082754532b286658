"""The HTTPS endpoint of an agent: what a kubelet serves to the API server, for one node or many.

Only the API server is let in, by its client certificate. The paths are a kubelet's: ``/containerLogs``, ``/exec``,
``/attach``, ``/portForward``, ``/pods``, ``/healthz``, ``/metrics``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from drakkar.client.clock import parse_timestamp
from drakkar.node.agent.forward import forward
from drakkar.node.agent.streams import LogOptions, PodHost, Session, StreamProblem, Wanted
from drakkar.streaming import channels

logger = logging.getLogger(__name__)

#: Common name of the API server's certificate towards agents, as kubeadm spells it.
API_SERVER = "kube-apiserver-kubelet-client"
MASTERS = "system:masters"
#: Seconds in which the output of a command that has ended must be read; what it left running may hold it open.
_DRAIN = 2.0

Metrics = Callable[[], str]


class Endpoint:
    """Serves a :class:`PodHost`; ``port`` is the one that was chosen. ``tls`` must demand client certificates."""

    def __init__(
        self,
        host: PodHost,
        tls: ssl.SSLContext,
        *,
        clock: Callable[[], float],
        metrics: Metrics = lambda: "",
    ):
        self._host = host
        self._tls = tls
        self._clock = clock
        self._metrics = metrics
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, address: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 takes any free one. Raises OSError."""
        app = web.Application(middlewares=[self._guard])
        for path, handler in (
            ("/containerLogs/{namespace}/{pod}/{container}", self._logs),
            ("/portForward/{namespace}/{pod}", self._port_forward),
            ("/portForward/{namespace}/{pod}/{uid}", self._port_forward),
            ("/pods", self._pods),
            ("/healthz", self._health),
            ("/metrics", self._show_metrics),
        ):
            app.router.add_get(path, handler)
        for word, run in (("exec", self._exec), ("attach", self._attach)):
            app.router.add_get(f"/{word}/{{namespace}}/{{pod}}/{{container}}", run)
            app.router.add_get(f"/{word}/{{namespace}}/{{pod}}/{{uid}}/{{container}}", run)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, address, port, ssl_context=self._tls)
        try:
            await site.start()
        except OSError:
            await self._runner.cleanup()
            raise
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening and end what is going on."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        name, groups = _subject(request)
        if name != API_SERVER and MASTERS not in groups:
            text = f"{name or 'this client'} may not use the endpoint of a node; only the API server may\n"
            return web.Response(status=403, text=text)
        try:
            return await handler(request)
        except StreamProblem as problem:
            return web.Response(status=problem.code, text=str(problem))

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="ok")

    async def _show_metrics(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=self._metrics(), content_type="text/plain", charset="utf-8")

    async def _pods(self, request: web.Request) -> web.StreamResponse:
        body = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self._host.pods()}
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        options = log_options(request.query, self._clock())
        pieces = await self._host.logs(*_names(request), options)
        response = web.StreamResponse(headers={"content-type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        left = options.limit
        try:
            async for piece in pieces:
                if left is not None:
                    piece, left = piece[:left], left - len(piece)
                await response.write(piece)
                if left is not None and left <= 0:
                    break
            await response.write_eof()
        except ConnectionError:
            pass  # The reader has had enough.
        finally:
            close = getattr(pieces, "aclose", None)
            if close is not None:
                await close()
        return response

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        command = request.query.getall("command", [])
        if not command:
            raise StreamProblem(400, "a command is required")
        wanted = wanted_streams(request.query)

        async def start() -> Session:
            return await self._host.exec(*_names(request), command, wanted)

        return await self._converse(request, wanted, start)

    async def _attach(self, request: web.Request) -> web.StreamResponse:
        wanted = wanted_streams(request.query)

        async def start() -> Session:
            return await self._host.attach(*_names(request), wanted)

        return await self._converse(request, wanted, start)

    async def _converse(
        self, request: web.Request, wanted: Wanted, start: Callable[[], Awaitable[Session]]
    ) -> web.StreamResponse:
        socket = await _upgraded(request, channels.SUBPROTOCOLS)
        try:
            session = await start()
        except StreamProblem as problem:
            await _say(socket, channels.ERROR, channels.failure_status(str(problem)))
            await socket.close()
            return socket
        try:
            await _pump(socket, session, wanted)
        finally:
            await session.close()
        await socket.close()
        return socket

    async def _port_forward(self, request: web.Request) -> web.StreamResponse:
        namespace, pod = request.match_info["namespace"], request.match_info["pod"]
        socket = await _upgraded(request, (channels.TUNNEL,))
        await forward(socket, lambda port: self._host.dial(namespace, pod, port))
        await socket.close()
        return socket


async def _pump(socket: web.WebSocketResponse, session: Session, wanted: Wanted) -> None:
    """Carry streams until the program ends or the client goes away, then say how it ended."""

    async def outward(channel: int) -> None:
        while piece := await session.read(channel):
            await _say(socket, channel, piece)

    async def inward() -> None:
        async for message in socket:
            if message.type is WSMsgType.BINARY and message.data:
                await _take(session, wanted, message.data[0], message.data[1:])

    readers = [asyncio.create_task(outward(channels.STDOUT), name="stdout")]
    if wanted.stderr and not wanted.tty:
        readers.append(asyncio.create_task(outward(channels.STDERR), name="stderr"))
    gone = asyncio.create_task(inward(), name="stdin")
    ended = asyncio.create_task(session.wait(), name="exit")
    try:
        await asyncio.wait({gone, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            return
        await asyncio.wait(readers, timeout=_DRAIN)
        await _say(socket, channels.ERROR, channels.exit_status(ended.result()))
    finally:
        tasks = [*readers, gone, ended]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _take(session: Session, wanted: Wanted, channel: int, content: bytes) -> None:
    if channel == channels.STDIN and wanted.stdin:
        await session.write(content)
    elif channel == channels.RESIZE and wanted.tty:
        size = channels.window_size(content)
        if size is not None:
            session.resize(*size)
    elif channel == channels.CLOSE and content == bytes([channels.STDIN]):
        await session.close_stdin()


async def _say(socket: web.WebSocketResponse, channel: int, content: bytes) -> None:
    # A client that is gone is noticed by whoever reads from it.
    with contextlib.suppress(ConnectionError):
        await socket.send_bytes(bytes([channel]) + content)


async def _upgraded(request: web.Request, protocols: tuple[str, ...]) -> web.WebSocketResponse:
    """The WebSocket. Raises StreamProblem for clients that want none, or none of these protocols."""
    asked = [part.strip() for part in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
    if request.headers.get("Upgrade", "").lower() != "websocket":
        raise StreamProblem(400, "upgrade to WebSocket required")
    if not set(asked) & set(protocols):
        raise StreamProblem(400, f"none of the subprotocols is known here, only {', '.join(protocols)}")
    socket = web.WebSocketResponse(protocols=protocols, compress=False, max_msg_size=channels.LONGEST_MESSAGE)
    await socket.prepare(request)
    return socket


def log_options(query: Mapping[str, str], now: float) -> LogOptions:
    """The options of a log request. Raises StreamProblem 400."""
    since = None
    if query.get("sinceSeconds"):
        since = now - _whole(query, "sinceSeconds")
    elif query.get("sinceTime"):
        try:
            since = parse_timestamp(query["sinceTime"])
        except ValueError:
            raise StreamProblem(400, f"sinceTime: {query['sinceTime']!r} is no time") from None
    stream = query.get("stream", "")
    return LogOptions(
        follow=_true(query, "follow"),
        previous=_true(query, "previous"),
        timestamps=_true(query, "timestamps"),
        tail=_whole(query, "tailLines") if query.get("tailLines") else None,
        since=since,
        limit=_whole(query, "limitBytes") if query.get("limitBytes") else None,
        stream={"Stdout": "stdout", "Stderr": "stderr"}.get(stream, ""),
    )


def wanted_streams(query: Mapping[str, str]) -> Wanted:
    """The streams of an exec or attach request. Raises StreamProblem 400 when there is none."""
    wanted = Wanted(_true(query, "input"), _true(query, "output"), _true(query, "error"), _true(query, "tty"))
    if not (wanted.stdin or wanted.stdout or wanted.stderr):
        raise StreamProblem(400, "you must specify at least 1 of stdin, stdout, stderr")
    return wanted


def _true(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "") in ("1", "true")


def _whole(query: Mapping[str, str], name: str) -> int:
    text = query[name]
    if len(text) > 18 or not text.isascii() or not text.isdigit():
        raise StreamProblem(400, f"{name}: {text!r} is not a whole number")
    return int(text)


def _names(request: web.Request) -> tuple[str, str, str]:
    found = request.match_info
    return found["namespace"], found["pod"], found["container"]


def _subject(request: web.Request) -> tuple[str, tuple[str, ...]]:
    """Common name and organizations of the client's certificate, which TLS has verified."""
    certificate: Any = request.transport.get_extra_info("peercert") if request.transport is not None else None
    pairs = [pair for part in (certificate or {}).get("subject", ()) for pair in part]
    name = next((value for key, value in pairs if key == "commonName"), "")
    return name, tuple(value for key, value in pairs if key == "organizationName")
