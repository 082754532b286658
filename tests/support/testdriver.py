"""Upstream's own DRA test driver (k8s.io/kubernetes/test/e2e/dra/test-driver 1.37), built once by the Go tool.

Building it takes minutes, so it is only taken from the cache, unless ``DRAKKAR_BUILD_PEERS=1`` asks for the build.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.kubectl import cache_folder
from tests.support.shared import ROOT

_SOURCE = ROOT / "tests" / "peers" / "dra-test-driver"


def test_driver_binary() -> Path:
    """Path of the driver; skips where it is not built and nobody asks for that."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(_SOURCE.iterdir()))).hexdigest()[:16]
    binary = cache_folder() / f"dra-test-driver-{digest}"
    if binary.exists():
        return binary
    if os.environ.get("DRAKKAR_BUILD_PEERS") != "1" or shutil.which("go") is None:
        pytest.skip("upstream's test driver is not built; DRAKKAR_BUILD_PEERS=1 builds it (minutes, needs Go)")
    binary.parent.mkdir(parents=True, exist_ok=True)
    fresh = binary.with_suffix(".new")
    command = ["go", "build", "-trimpath", "-ldflags=-s -w", "-o", str(fresh), "."]
    subprocess.run(command, cwd=_SOURCE, env={**os.environ, "CGO_ENABLED": "0"}, check=True, stdin=subprocess.DEVNULL)
    fresh.rename(binary)
    return binary
