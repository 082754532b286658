"""The command line: every command has help, bad arguments exit with 2."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from drakkar.cli import main, observer
from drakkar.cli.parser import build


@pytest.mark.parametrize(
    "command",
    [
        "up",
        "demo",
        "test",
        "allocate",
        "cel",
        "verify",
        "node",
        "node fail",
        "node hollow",
        "scheduler",
        "controllers",
        "driver run",
        "explain",
        "dump",
        "backup",
        "restore",
        "node run",
        "token create",
        "driver new",
        "driver check",
    ],
)
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    assert ended.value.code == 0
    assert "usage: drakkar" in capsys.readouterr().out


@pytest.mark.parametrize("line", ["", "nonsense", "up --port 70000", "up --node-grace -1", "demo", "test", "node fail"])
def test_bad_arguments_exit_with_2(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_defaults_are_those_of_kubernetes() -> None:
    args = build().parse_args(["up"])
    assert (args.lease_duration, args.lease_period, args.node_grace, args.sync) == (40, 10, 40, "full")


def test_demo_is_quick() -> None:
    args = build().parse_args(["demo", "tpu"])
    assert (args.lease_duration, args.node_grace) == (1, 4)


def test_a_story_is_not_told_when_its_file_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "tpu", "--json", "/no-such-folder/figures.json"]) == 2
    assert "--json /no-such-folder/figures.json: cannot be written" in capsys.readouterr().err


def test_a_server_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which server, why, and what to do; that is the environment's fault (2), not a finding (1)."""
    with socket.socket() as taken:  # bound but not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        server = f"http://127.0.0.1:{taken.getsockname()[1]}"
        cluster = {"name": "c", "cluster": {"server": server}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        users = [{"name": "u", "user": {}}]
        config = {"current-context": "x", "clusters": [cluster], "contexts": [context], "users": users}
        path = tmp_path / "config"
        path.write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(path))
        assert main(["explain", "my-pod"]) == 2
    assert f"no answer from {server}: Connection refused; start that server" in capsys.readouterr().err


def test_ctrl_c_reaches_the_observer_without_a_trace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A terminal interrupts the demo and its second process alike."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(observer, "observe", interrupted)
    monkeypatch.setattr("sys.argv", ["drakkar-observer", "--kubeconfig", str(tmp_path / "config")])
    assert observer.main() == 130


def test_ctrl_c_while_a_command_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    assert main(["verify"]) == 130
