"""The command line: every command has help, bad arguments exit with 2."""

from __future__ import annotations

import pytest

from drakkar.cli import main
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
