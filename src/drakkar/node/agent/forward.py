"""Port-forward: connections that kubectl sends as pairs of SPDY streams through one WebSocket.

For every connection kubectl opens an ``error`` stream, then a ``data`` stream, both with its number (``requestid``)
and the port. What goes wrong is told on the first; the second is the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import WSMsgType, web

from drakkar.node.agent.streams import StreamProblem
from drakkar.streaming.channels import PIECE
from drakkar.streaming.session import SpdySession, Stream
from drakkar.streaming.spdy import SpdyError

Dial = Callable[[int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


async def forward(socket: web.WebSocketResponse, dial: Dial) -> None:
    """Serve one client until it hangs up."""
    waiting: dict[str, Stream] = {}
    tasks: set[asyncio.Task[None]] = set()

    def taken(stream: Stream) -> None:
        number, kind = stream.headers.get("requestid", ""), stream.headers.get("streamtype", "")
        if kind == "error":
            waiting[number] = stream
            return
        error = waiting.pop(number, None)
        task = asyncio.create_task(_carry(stream, error, dial), name=f"port-forward {number}")
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def pieces() -> AsyncIterator[bytes]:
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                yield message.data

    async def write(data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            await socket.send_bytes(data)

    try:
        with contextlib.suppress(SpdyError):
            await SpdySession(write, taken).serve(pieces())
    finally:
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _carry(stream: Stream, error: Stream | None, dial: Dial) -> None:
    """One connection; ``error`` is where its problem is told."""
    if error is None or stream.headers.get("streamtype") != "data":
        await stream.reset()
        return
    try:
        text = stream.headers.get("port", "")
        if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1 << 16:
            raise StreamProblem(400, f"{text!r} is no port")
        reader, writer = await dial(int(text))
    except (StreamProblem, OSError) as problem:
        await error.write(str(problem).encode())
        await error.close()
        await stream.reset()
        return
    try:
        await _both_ways(stream, reader, writer)
    except OSError as problem:
        await error.write(str(problem).encode())
    finally:
        writer.close()
        await error.close()
        await stream.close()


async def _both_ways(stream: Stream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the pod closes the connection; the client's end is passed on to it."""

    async def inward() -> None:
        async for piece in stream.pieces():
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    task = asyncio.create_task(inward(), name="to the pod")
    try:
        while piece := await reader.read(PIECE):
            await stream.write(piece)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await task
