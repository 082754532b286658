"""``drakkar up`` and its environment: what is wrong is said in one sentence, and data stays untouched."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.eventually import until
from tests.support.guard import start_time
from tests.support.plane import FAST, Up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def _refused(data: Path, *arguments: str) -> str:
    """Start ``up`` where it must not start; its one sentence."""
    command = [sys.executable, "-m", "drakkar.cli", "up", "--data", str(data), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, "HOME": str(data.parent)}
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("drakkar: ")
    return lines[0]


def _digest(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*")) if path.is_file()
    }


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A data folder that a plane has used and left."""
    with Up(tmp_path / "data", "--fleet", "tpu-16", *FAST):
        pass
    return tmp_path / "data"


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port}" in _refused(tmp_path / "data", "--port", str(port))


def test_a_folder_that_cannot_be_made_or_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot create the folder" in _refused(tmp_path / "file" / "data")
    if sys.platform == "linux":
        assert "/proc/drakkar" in _refused(Path("/proc/drakkar"))


def test_an_unknown_fleet_and_a_broken_one(tmp_path: Path) -> None:
    assert "tpu-16" in _refused(tmp_path / "data", "--fleet", "tpu-17")
    broken = tmp_path / "fleet.yaml"
    broken.write_text(
        "apiVersion: drakkar.dev/v1alpha1\nkind: Fleet\nmetadata: {name: x}\n"
        "spec: {nodeGroups: [{name: a, count: -1}]}\n"
    )
    assert "spec.nodeGroups[0].count" in _refused(tmp_path / "data", "--fleet", str(broken))


def test_corrupted_foreign_and_newer_databases_stay_untouched(used: Path, tmp_path: Path) -> None:
    database = used / "drakkar.db"
    good = database.read_bytes()

    newer = sqlite3.connect(database)
    newer.execute("UPDATE meta SET value = '99' WHERE key = 'schemaVersion'")
    newer.commit()
    newer.close()
    before = _digest(used)
    assert "99" in _refused(used)
    assert _digest(used) == before

    database.write_bytes(good[:4096] + bytes(len(good) - 4096))
    before = _digest(used)
    assert "drakkar.db" in _refused(used)
    assert _digest(used) == before

    database.write_bytes(b"this is no database at all, but somebody's notes " * 100)
    before = _digest(used)
    assert "drakkar.db" in _refused(used)
    assert _digest(used) == before

    database.unlink()
    foreign = sqlite3.connect(database)
    foreign.execute("CREATE TABLE notes (text)")
    foreign.commit()
    foreign.close()
    before = _digest(used)
    assert "drakkar.db" in _refused(used)
    assert _digest(used) == before


def test_a_second_instance_on_the_same_data(tmp_path: Path) -> None:
    with Up(tmp_path / "data", *FAST) as first:
        assert "in use by another server" in _refused(tmp_path / "data", "--fleet", "tpu-16")
        assert not (tmp_path / "data" / "fleet.yaml").exists()
        assert first.stop() == 0


def test_ctrl_c_and_sigterm_end_cleanly(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", *FAST)
    up.start()
    kubeconfig = up.kubeconfig
    assert kubeconfig.stat().st_mode & 0o777 == 0o600
    assert up.stop() == 0
    assert "Traceback" not in up.output
    up.start()
    assert up.kubeconfig == kubeconfig
    assert up.process is not None
    up.process.send_signal(signal.SIGTERM)
    assert up.wait_dead(60) == 0


def test_own_processes_end_with_the_plane_even_after_kill_9(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", "--fleet", "tpu-16", "--own-process", "host-3", *FAST)
    up.start()
    match = re.search(r"hollow node host-3: process (\d+)", up.output)
    assert match is not None
    child = int(match.group(1))
    assert start_time(child)
    up.kill()
    until(lambda: start_time(child), lambda begun: not begun)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/net/tcp")
def test_nothing_listens_beyond_loopback(tmp_path: Path) -> None:
    with Up(tmp_path / "data", *FAST) as up:
        match = re.search(r"https://([\d.]+):(\d+)", up.output)
        assert match is not None
        assert match.group(1) == "127.0.0.1"
        port = f":{int(match.group(2)):04X}"
        listening = [
            line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if line.split()[3] == "0A"
        ]
        assert [address for address in listening if address.endswith(port)] == [f"0100007F{port}"]
