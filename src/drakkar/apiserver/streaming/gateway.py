"""Carries bytes between a client whose connection was upgraded and the agent of a node.

WebSocket clients speak what agents speak, so their messages are passed on as they are. Port-forward over SPDY is a
WebSocket tunnel without the WebSocket. Only exec and attach over SPDY are translated: their streams become channels.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from drakkar.apiserver.streaming.agents import Agents
from drakkar.apiserver.streaming.targets import Target
from drakkar.streaming import channels
from drakkar.streaming.session import SpdySession, Stream
from drakkar.streaming.spdy import SpdyError

if TYPE_CHECKING:
    import aiohttp

Message = MutableMapping[str, Any]
Read = Callable[[], Awaitable[bytes]]
Write = Callable[[bytes], Awaitable[None]]

#: Versions of exec and attach over SPDY: v4 tells exit codes as Status, v5 is for WebSockets.
SPDY_VERSIONS = (channels.V4,)
#: Seconds in which a SPDY client must open the streams that it asked for.
_OPENING = 30.0


def subprotocol(target: Target, offered: Sequence[str]) -> str | None:
    """The first of the target's subprotocols that the client offers."""
    return next((name for name in target.protocols if name in offered), None)


async def carry_websocket(
    agent: aiohttp.ClientWebSocketResponse,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    """Both ways between an accepted ASGI WebSocket and the agent's, until one of them ends."""

    async def outward() -> None:
        async for message in agent:
            if isinstance(message.data, bytes):
                await send({"type": "websocket.send", "bytes": message.data})

    async def inward() -> None:
        while (message := await receive())["type"] == "websocket.receive":
            content = message.get("bytes")
            await agent.send_bytes(content if content is not None else message["text"].encode())

    try:
        await _first_of(outward(), inward())
    finally:
        await agent.close()
    # A client that is gone already needs no farewell.
    with contextlib.suppress(Exception):
        await send({"type": "websocket.close", "code": 1000})


async def carry_forward(agent: aiohttp.ClientWebSocketResponse, read: Read, write: Write) -> None:
    """A SPDY connection of ``kubectl port-forward``, byte for byte."""

    async def outward() -> None:
        async for message in agent:
            if isinstance(message.data, bytes):
                await write(message.data)

    async def inward() -> None:
        while piece := await read():
            await agent.send_bytes(piece)

    try:
        await _first_of(outward(), inward())
    finally:
        await agent.close()


async def carry_streams(agents: Agents, target: Target, read: Read, write: Write) -> None:
    """exec or attach over SPDY: one stream per channel. Raises StatusError when the agent cannot be reached."""
    wanted = {"error"} | {name for name in ("stdin", "stdout", "stderr") if getattr(target, name)}
    if target.tty:
        wanted.add("resize")
    streams: dict[str, Stream] = {}
    complete = asyncio.Event()

    def taken(stream: Stream) -> None:
        streams[stream.headers.get("streamtype", "")] = stream
        # Clients with a terminal may leave the stream for its size out.
        if wanted - {"resize"} <= streams.keys():
            complete.set()

    async def pieces() -> AsyncIterator[bytes]:
        while piece := await read():
            yield piece

    session = SpdySession(write, taken)

    async def converse() -> None:
        async with asyncio.timeout(_OPENING):
            await complete.wait()
        agent = await agents.converse(target)
        try:
            await _translate(agent, streams)
        finally:
            await agent.close()
        for stream in list(streams.values()):
            await stream.close()

    with contextlib.suppress(SpdyError, TimeoutError):
        await _first_of(session.serve(pieces()), converse())


async def _translate(agent: aiohttp.ClientWebSocketResponse, streams: dict[str, Stream]) -> None:
    """Until the agent ends the conversation."""
    named = {channels.STDOUT: "stdout", channels.STDERR: "stderr", channels.ERROR: "error"}

    async def inward(name: str, channel: int) -> None:
        while name not in streams:
            await asyncio.sleep(0.05)
        async for piece in streams[name].pieces():
            await agent.send_bytes(bytes([channel]) + piece)
        if channel == channels.STDIN and agent.protocol == channels.V5:
            await agent.send_bytes(bytes([channels.CLOSE, channels.STDIN]))

    readers = [
        asyncio.create_task(inward(name, channel), name=f"spdy {name}")
        for name, channel in (("stdin", channels.STDIN), ("resize", channels.RESIZE))
    ]
    try:
        async for message in agent:
            if isinstance(message.data, bytes) and message.data:
                stream = streams.get(named.get(message.data[0], ""))
                if stream is not None:
                    await stream.write(message.data[1:])
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _first_of(*works: Awaitable[None]) -> None:
    """Until the first ends; the others are ended. What it raised is raised, but for a broken connection."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        with contextlib.suppress(ConnectionError):
            task.result()
