"""How `drakkar node run` ends."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import signal
from pathlib import Path

import pytest

from drakkar.api.errors import EnvironmentProblem
from drakkar.cli import agent, main


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


def test_a_token_is_not_made_for_what_is_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A joining machine could only fail with it; nothing is written before."""
    authority = base64.b64encode(b"pem").decode()
    cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:1", "certificate-authority-data": authority}}
    config = {"current-context": "x", "clusters": [cluster], "users": [{"name": "u", "user": {}}]}
    config["contexts"] = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    for server in ("foo", "10.0.0.1:6443", "http://10.0.0.1:6443"):
        assert main(["token", "create", "--server", server, "--kubeconfig", str(path)]) == 2
        assert f"--server {server}: write it as https://ADDRESS:PORT" in capsys.readouterr().err
