"""``drakkar demo tpu`` in all its variants; it decides by itself, its exit code is the verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize("fault", ["annotation", "sigstop", "flap"])
def test_the_story_is_told(fault: str, tmp_path: Path) -> None:
    result = tmp_path / "demo.json"
    command = [
        sys.executable,
        "-m",
        "drakkar.cli",
        "demo",
        "tpu",
        "--fault",
        fault,
        "--patience",
        "200",
        "--json",
        str(result),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "HOME": str(tmp_path)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every step was seen through the API" in done.stdout
    document = json.loads(result.read_text())
    assert document["verdict"] == []
    assert len(document["first"]) == len(document["now"]) == 4
    if fault != "flap":
        assert document["lost"] not in document["now"]
    assert not [*Path(tmp_path).glob("drakkar-*")]


def test_a_story_that_cannot_be_told_fails_and_says_where(tmp_path: Path) -> None:
    """With a grace longer than the observer's patience the dead host is never noticed."""
    command = [sys.executable, "-m", "drakkar.cli", "demo", "tpu", "--node-grace", "300", "--patience", "15"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "HOME": str(tmp_path)}
    )
    assert done.returncode == 1
    assert "not seen: the dead host's node is NotReady" in done.stdout
