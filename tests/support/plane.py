"""A real ``drakkar up`` as a child process, for end-to-end tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.guard import guarded

#: Settings of the demo: heartbeat 0.25 s, lease 1 s, NotReady after 4 s.
FAST = ("--lease-duration", "1", "--lease-period", "0.25", "--node-grace", "4")


class Up:
    """``drakkar up`` on a data folder; started on entering the block, stopped at the end."""

    def __init__(self, data: Path, *arguments: str, home: Path | None = None, env: dict[str, str] | None = None):
        self.data = data
        self.command = [sys.executable, "-m", "drakkar.cli", "up", "--data", str(data), *arguments]
        self.env = {
            **os.environ,
            "HOME": str(home or data.parent),
            "XDG_STATE_HOME": str(data.parent / "state"),
            **(env or {}),
        }
        self.lines: list[str] = []
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Up:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def output(self) -> str:
        return "".join(self.lines)

    @property
    def kubeconfig(self) -> Path:
        match = re.search(r"KUBECONFIG=(\S+)", self.output)
        assert match, self.output
        return Path(match.group(1))

    def start(self, timeout: float = 90) -> None:
        """Start and wait until it says how to reach it."""
        self.spawn()
        deadline = time.monotonic() + timeout
        while "Ctrl-C" not in self.output:
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise AssertionError(f"drakkar up did not come up (exit {self.process.returncode}):\n{self.output}")
            time.sleep(0.02)

    def spawn(self) -> None:
        """Start without waiting."""
        self.lines.clear()
        self.process = subprocess.Popen(
            self.command,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        guarded(self.process.pid)
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.lines.extend(process.stdout)

    def wait_dead(self, timeout: float) -> int | None:
        """Exit status once the process has ended by itself, None if it is still alive after ``timeout`` seconds."""
        assert self.process is not None
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """SIGKILL, as a power cut would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, timeout: float = 60) -> int:
        """Ctrl-C, then wait; the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"drakkar up did not stop on Ctrl-C:\n{self.output}") from None
        return self.process.returncode


class Part:
    """One ``drakkar`` command as a child process; killed at the end of the block, unless it has ended.

    ``program``: how else to start Python, for example with a file.
    """

    def __init__(self, *arguments: str, program: Sequence[str] = ("-m", "drakkar.cli")):
        command = [sys.executable, *program, *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        guarded(self.process.pid)
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)
