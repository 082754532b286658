"""What a driver process does not load: it is there on every node, once per kind of device."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("grpc", reason="needs the extra node")

#: Not for a process that only describes devices and prepares claims.
HEAVY = (
    *("cryptography", "yaml", "numpy", "rich", "uvicorn", "highspy", "pynvml", "pyroute2"),
    *(
        f"drakkar.{room}"
        for room in ("allocator", "apiserver", "cel", "controllers", "inventory", "scheduler", "store")
    ),
)
DRIVERS = ("computedomain", "cpu", "example", "gpu", "nic", "tpu")

SCRIPT = """
import contextlib, io, sys
import drakkar.client.http, drakkar.driver.service
from drakkar.cli import main
for driver in sys.argv[1:]:
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main(["driver", "run", driver, "--help"])
    assert f"drakkar.drivers.{driver}.driver" in sys.modules
print(*sys.modules)
"""


def test_drivers_load_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, *DRIVERS], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "drakkar.driver.service" in loaded
    assert [name for name in loaded if name.startswith(HEAVY)] == []
