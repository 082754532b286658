"""Heartbeats: what the log says while the server is away."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from drakkar.client import SystemClock, Unreachable
from drakkar.node.heartbeat import Beat, Heartbeats


class Server:
    """Takes the first renewal, is away for the next three, and is back then."""

    def __init__(self) -> None:
        self.asked = 0
        self.back = asyncio.Event()

    async def patch(self, *_: Any) -> None:
        self.asked += 1
        if self.asked in (2, 3, 4):
            raise Unreachable("no answer from https://plane: Connection refused")
        if self.asked > 5:
            self.back.set()


def test_a_server_that_is_away_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        server = Server()
        gone: list[Beat] = []
        beats = Heartbeats(server, SystemClock(), period=0.01, duration=60, expired=gone.append)  # type: ignore[arg-type]
        await beats.join(Beat("n"), {})
        task = asyncio.create_task(beats.run())
        async with asyncio.timeout(60):
            await server.back.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert gone == []

    with caplog.at_level(logging.INFO, logger="drakkar.node.heartbeat"):
        asyncio.run(body())
    assert [record.getMessage() for record in caplog.records] == [
        "node n: lease not renewed, tried again until it is: no answer from https://plane: Connection refused",
        "node n: lease renewed again",
    ]


class Away:
    """Takes the first renewal of each node and refuses all others."""

    def __init__(self, nodes: int):
        self.nodes = nodes
        self.asked = 0

    async def patch(self, *_: Any) -> None:
        self.asked += 1
        if self.asked > self.nodes:
            raise Unreachable("away")


def test_many_nodes_ask_a_server_that_is_away_no_oftener_than_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drakkar.node.heartbeat.RETRY", 0.01)

    async def body() -> None:
        server = Away(64)
        beats = Heartbeats(server, SystemClock(), period=0.9, duration=60, expired=lambda beat: None)  # type: ignore[arg-type]
        for number in range(server.nodes):
            await beats.join(Beat(f"n{number}"), {})
        task = asyncio.create_task(beats.run())
        # Spread over half a period to one and a half, each is renewed in vain once, and some once more.
        await asyncio.sleep(1.4)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert server.asked - server.nodes <= 2 * 64

    asyncio.run(body())


class Mute:
    """Takes the first renewal and answers none of the others."""

    def __init__(self) -> None:
        self.asked = 0

    async def patch(self, *_: Any) -> None:
        self.asked += 1
        if self.asked > 1:
            await asyncio.Event().wait()


def test_a_renewal_that_is_not_answered_is_given_up_and_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drakkar.node.heartbeat.SHORTEST_WAIT", 0.02)

    async def body() -> None:
        server = Mute()
        gone: list[Beat] = []
        beats = Heartbeats(server, SystemClock(), period=0.02, duration=0.3, expired=gone.append)  # type: ignore[arg-type]
        beat = Beat("n")
        await beats.join(beat, {})
        renewed = beat.renewed
        task = asyncio.create_task(beats.run())
        async with asyncio.timeout(60):
            while not gone:
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert server.asked > 2
        # It counts from the renewal that was answered, and is over after the duration.
        assert beat.renewed == renewed
        assert not beat.live

    asyncio.run(body())
