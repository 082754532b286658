"""How `drakkar node run` ends."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal

import pytest

from drakkar.api.errors import EnvironmentProblem
from drakkar.cli import agent


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_the_agent_in_order(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    async def work(_: argparse.Namespace) -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(30)
        finally:
            closed.append("closed")

    monkeypatch.setattr(agent, "_run", work)
    monkeypatch.setattr(agent, "configure", lambda level: None)
    assert agent.run(argparse.Namespace()) == 0
    assert closed == ["closed"]


def test_what_goes_wrong_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(_: argparse.Namespace) -> None:
        raise EnvironmentProblem("port in use")

    monkeypatch.setattr(agent, "_run", work)
    monkeypatch.setattr(agent, "configure", lambda level: None)
    with pytest.raises(EnvironmentProblem, match="port in use"):
        agent.run(argparse.Namespace())
