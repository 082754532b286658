"""A killed test run leaves no programs behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.eventually import until
from tests.support.guard import start_time
from tests.support.shared import ROOT

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")

_RUN = """
import subprocess, sys, threading
from tests.support.guard import guarded

def start():
    child = subprocess.Popen(["sleep", "300"])
    guarded(child.pid)
    print(child.pid, flush=True)

# A child of a thread that ends lives on.
thread = threading.Thread(target=start)
thread.start()
thread.join()
start()
sys.stdin.read()
"""


def test_children_die_with_a_run_that_is_killed() -> None:
    command = [sys.executable, "-c", _RUN]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            children = [int(run.stdout.readline()) for _ in range(2)]
            assert all(start_time(child) for child in children)
        finally:
            run.kill()
    until(lambda: [child for child in children if start_time(child)], lambda alive: not alive)
