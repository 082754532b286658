"""A Go program on client-go 0.37 finds what it finds at kube-apiserver (``tests/clientgo``)."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.kubectl import absent, cache_folder
from tests.support.plane import Up
from tests.support.shared import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

SOURCE = ROOT / "tests" / "clientgo"
STEPS = 11


def program() -> Path:
    """The program, built once for its sources into the cache; skips where there is no Go, fails where CI=true."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SOURCE.iterdir()))).hexdigest()[:16]
    binary = cache_folder() / f"clientgo-{digest}"
    if not binary.exists():
        if shutil.which("go") is None:
            return absent("no go on the PATH")
        binary.parent.mkdir(parents=True, exist_ok=True)
        fresh = binary.with_suffix(f".{os.getpid()}")
        done = subprocess.run(
            ["go", "build", "-o", str(fresh), "."], cwd=SOURCE, capture_output=True, text=True, check=False
        )
        if done.returncode:
            return absent(f"go build failed: {done.stderr[-2000:]}")
        fresh.replace(binary)
    return binary


def test_every_step_of_the_program(tmp_path: Path) -> None:
    binary = program()
    with Up(tmp_path / "data", "--sync", "normal") as up:
        done = subprocess.run(
            [str(binary)],
            env={**os.environ, "KUBECONFIG": str(up.kubeconfig)},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["ok"] * STEPS
