"""Waiting for what parts bring about, and the smallest plane they can run against."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from drakkar.api.features import Features
from drakkar.apiserver.server import ApiServer
from drakkar.client import Client, MemoryTransport, SystemClock
from drakkar.store.memory import MemoryBackend

T = TypeVar("T")


@asynccontextmanager
async def memory_plane(features: Features | None = None) -> AsyncIterator[Client]:
    """An API server over memory, alone, and an administrator's client of it."""
    clock = SystemClock()
    server = ApiServer(MemoryBackend(), clock=clock, features=features)
    await server.start()
    client = Client(MemoryTransport(server.handle, server.token("admin", "system:masters")), clock=clock)
    try:
        yield client
    finally:
        await client.close()
        await server.close()


def until(
    read: Callable[[], T | None], holds: Callable[[T], object] = bool, *, timeout: float = 90.0, pause: float = 0.1
) -> T:
    """:func:`eventually` for tests that wait for programs; None is never what they wait for."""
    deadline = time.monotonic() + timeout
    while (state := read()) is None or not holds(state):
        assert time.monotonic() < deadline, f"still not so after {timeout} s: {str(state)[:6000]}"
        time.sleep(pause)
    return state


async def eventually(
    read: Callable[[], Awaitable[T]], holds: Callable[[T], object], *, timeout: float = 60.0, pause: float = 0.02
) -> T:
    """Reads until ``holds`` is true of what was read; AssertionError with the last state after ``timeout`` seconds.

    Patience costs nothing when all is well: a machine may be busy with other things for many seconds.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        state = await read()
        if holds(state):
            return state
        assert loop.time() < deadline, f"still not so after {timeout} s: {state!r}"
        await asyncio.sleep(pause)
