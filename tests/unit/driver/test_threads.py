"""From a driver's thread to the event loop."""

from __future__ import annotations

import asyncio

import pytest

from drakkar.driver.threads import on_loop


def test_what_takes_too_long_is_ended_and_said() -> None:
    ended = asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError, match="has not answered"):
            await asyncio.to_thread(on_loop, loop, endless(), 0.01)
        async with asyncio.timeout(60):
            await ended.wait()

    asyncio.run(run())


def test_answers_and_errors_come_as_they_are() -> None:
    async def answer() -> int:
        return 3

    async def fail() -> None:
        raise TimeoutError("its own")

    async def run() -> None:
        loop = asyncio.get_running_loop()
        assert await asyncio.to_thread(on_loop, loop, answer()) == 3
        with pytest.raises(TimeoutError, match="its own"):
            await asyncio.to_thread(on_loop, loop, fail())

    asyncio.run(run())
