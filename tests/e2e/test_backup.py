"""Backup of a running plane, and a plane on what was restored."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from drakkar.api import kinds
from drakkar.cli.target import connect
from tests.support.plane import Up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def _drakkar(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    return subprocess.run(
        [sys.executable, "-m", "drakkar.cli", *arguments], capture_output=True, text=True, timeout=180, env=env
    )


async def _names(config: Path) -> set[str]:
    async with connect(config) as client:
        return {obj["metadata"]["name"] for obj in (await client.list(kinds.NODE)).items}


async def _write_and_back_up(config: Path, folder: Path) -> set[str]:
    """Writes without pause; the names acknowledged before the backup began."""
    acknowledged: set[str] = set()
    async with connect(config) as client:

        async def write() -> None:
            while True:
                name = f"node-{len(acknowledged)}"
                node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
                await client.create(kinds.NODE, node)
                acknowledged.add(name)

        writer = asyncio.create_task(write())
        while len(acknowledged) < 50:
            await asyncio.sleep(0.01)
        before = set(acknowledged)
        # No --data: the folder of the running plane is found.
        done = await asyncio.to_thread(_drakkar, folder, "backup", "--kubeconfig", str(config), str(folder / "copy"))
        assert done.returncode == 0, done.stderr
        assert len(acknowledged) > len(before), "nothing was written during the backup"
        writer.cancel()
    return before


def test_backup_during_writes(tmp_path: Path) -> None:
    with Up(tmp_path / "data", "--no-scheduler", "--no-controllers") as up:
        before = asyncio.run(_write_and_back_up(up.kubeconfig, tmp_path))
        refused = _drakkar(tmp_path, "restore", str(tmp_path / "copy"), "--data", str(tmp_path / "data"), "--force")
        assert refused.returncode == 2
        assert "in use" in refused.stderr
    done = _drakkar(tmp_path, "restore", str(tmp_path / "copy"), "--data", str(tmp_path / "new"))
    assert done.returncode == 0, done.stderr
    with Up(tmp_path / "new", "--no-scheduler", "--no-controllers") as up:
        assert before <= asyncio.run(_names(up.kubeconfig))
