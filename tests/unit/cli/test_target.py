"""Which cluster a command addresses."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from pathlib import Path

import pytest

from drakkar.api.errors import UsageError
from drakkar.api.kinds import NODE
from drakkar.cli.running import announced, newest_kubeconfig, state_folder
from drakkar.cli.target import kubeconfig_of, targeted
from drakkar.client import Unreachable, kubeconfig

NOTHING = argparse.Namespace(kubeconfig=None, context=None)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


def _file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    return path


def test_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="drakkar up"):
        kubeconfig_of(NOTHING)
    home = _file(tmp_path / ".kube" / "config")
    assert kubeconfig_of(NOTHING) == home
    mine = _file(tmp_path / "plane" / "kubeconfig")
    with announced(mine):
        assert kubeconfig_of(NOTHING) == mine
        env = _file(tmp_path / "env")
        monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'missing'}{os.pathsep}{env}")
        assert kubeconfig_of(NOTHING) == env
        given = _file(tmp_path / "given")
        assert kubeconfig_of(argparse.Namespace(kubeconfig=str(given), context=None)) == given
    monkeypatch.delenv("KUBECONFIG")
    assert kubeconfig_of(NOTHING) == home


def test_missing_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no such file"):
        kubeconfig_of(argparse.Namespace(kubeconfig=str(tmp_path / "x"), context=None))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "y"))
    with pytest.raises(UsageError, match="KUBECONFIG"):
        kubeconfig_of(NOTHING)


def test_several_files_of_the_environment_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}]}
    context = {"contexts": [{"name": "x", "context": {"cluster": "c"}}], "current-context": "x"}
    for name, content in (("a", cluster), ("b", context)):
        (tmp_path / name).write_text(json.dumps(content))
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(str(tmp_path / name) for name in ("a", "none", "b")))

    async def ask() -> None:
        async with targeted(NOTHING) as client:
            await client.delete(NODE, "any")

    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        asyncio.run(ask())


def test_dead_planes_are_swept(tmp_path: Path) -> None:
    mine = _file(tmp_path / "kubeconfig")
    folder = state_folder() / "running"
    folder.mkdir(parents=True)
    dead = folder / "1.json"
    dead.write_text(json.dumps({"pid": 2**22 + 1, "kubeconfig": str(mine)}))
    broken = folder / "2.json"
    broken.write_text("{")
    assert newest_kubeconfig() is None
    assert not dead.exists()
    assert not broken.exists()


def test_a_pod_addresses_its_own_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> str:
        async with targeted(NOTHING) as client:
            with pytest.raises(Unreachable) as raised:
                await client.get(NODE, "any")
        return str(raised.value)

    _file(tmp_path / ".kube" / "config")
    (tmp_path / "token").write_text("secret")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    for name in ("runs_in_pod", "in_cluster"):
        monkeypatch.setattr(getattr(kubeconfig, name), "__defaults__", (tmp_path,))
    assert "127.0.0.1:1" in asyncio.run(ask())
    # What somebody names goes first.
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "mine"))
    with pytest.raises(UsageError, match="names no existing file"):
        asyncio.run(ask())
