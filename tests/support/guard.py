"""Ends the programs of a test run whose own process was killed and cannot do it any more.

One guard per process, told of each child by a pipe; when the pipe closes, whatever of them still lives is killed. A
death signal of the kernel's would come with the end of the thread that has started the child, which is not the end of
the tests.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

_lock = threading.Lock()


def start_time(pid: int) -> str:
    """When the process was started, as the kernel counts; empty when there is none of this number, or it has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state == "Z" else fields[18]


def guarded(pid: int) -> None:
    """Have this child killed when this process ends without having done it. Does nothing where there is no /proc."""
    if begun := start_time(pid):
        with _lock:
            pipe = _guard()
            pipe.write(f"{pid} {begun}\n")
            pipe.flush()


@functools.cache
def _guard() -> IO[str]:
    """The pipe to the guard of this process, which is in a session of its own: no signal of a terminal's ends it."""
    command = [sys.executable, "-I", "-S", __file__]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdin is not None
    return process.stdin


def main() -> None:
    """The guard: remembers until its standard input closes."""
    known = [line.split() for line in sys.stdin]
    for pid, begun in known:
        if start_time(int(pid)) == begun:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(pid), signal.SIGKILL)


if __name__ == "__main__":
    main()
