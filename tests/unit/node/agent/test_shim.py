"""The monitor of a container: logs with long and unfinished lines, rotation, exit codes, standard input, attaching."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from drakkar.node.agent import logs, shims
from drakkar.node.agent.processes import LocalProcess
from drakkar.node.agent.runtime import ContainerProblem, Made
from drakkar.node.agent.streams import LogOptions, Wanted
from drakkar.streaming.channels import STDOUT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


async def start(folder: Path, *argv: str, **settings: Any) -> shims.Attempt:
    attempt = folder / "attempt"
    attempt.mkdir()
    given: dict[str, Any] = {"tty": False, "stdin": False, "stdin_once": False, "longest_log": 1 << 20, "keep_logs": 3}
    made = Made([*argv], {"PATH": os.environ["PATH"]}, "/")
    return await shims.start("id", attempt, folder / "log" / "0.log", made, folder, **{**given, **settings})


async def text(folder: Path, **options: Any) -> bytes:
    path = folder / "log" / "0.log"
    return b"".join([piece async for piece in logs.read(path, LogOptions(**options), lambda: True)])


def play(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scene(), 100))  # type: ignore[arg-type]


def test_a_log_holds_what_was_written(tmp_path: Path) -> None:
    async def scene() -> None:
        script = "import sys; sys.stdout.write('x' * 40000 + '\\nlast'); sys.stderr.write('e\\n'); sys.exit(7)"
        attempt = await start(tmp_path, sys.executable, "-c", script)
        ended = await attempt.ended
        assert (ended.exitCode, ended.signal) == (7, 0)
        assert await text(tmp_path, stream="stdout") == b"x" * 40000 + b"\nlast"
        assert await text(tmp_path, stream="stderr") == b"e\n"
        entries = (tmp_path / "log" / "0.log").read_bytes().splitlines()
        assert [entry.split(b" ")[2] for entry in entries if b"stdout" in entry] == [b"P", b"P", b"F", b"P"]
        assert not (tmp_path / "log" / "0.log.1").exists()

    play(scene)


def test_a_long_log_is_moved_aside(tmp_path: Path) -> None:
    async def scene() -> None:
        script = "for n in range(300): print('line', n)"
        attempt = await start(tmp_path, sys.executable, "-c", script, longest_log=4000, keep_logs=3)
        await attempt.ended
        names = sorted(path.name for path in (tmp_path / "log").iterdir())
        assert names == ["0.log", "0.log.1", "0.log.2"]
        assert all(path.stat().st_size <= 4000 for path in (tmp_path / "log").iterdir())
        kept = (await text(tmp_path)).split(b"\n")
        assert kept[-2] == b"line 299"
        numbers = [int(line.split()[1]) for line in kept if line]
        assert numbers == list(range(numbers[0], 300))
        assert await text(tmp_path, tail=2) == b"line 298\nline 299\n"

    play(scene)


def test_a_signal_and_a_program_that_is_not_there(tmp_path: Path) -> None:
    async def scene() -> None:
        attempt = await start(tmp_path, "sh", "-c", "kill -9 $$")
        ended = await attempt.ended
        assert (ended.exitCode, ended.signal) == (137, 9)
        (tmp_path / "two").mkdir()
        with pytest.raises(ContainerProblem, match="No such file"):
            await start(tmp_path / "two", "/no/such/program")
        assert isinstance(await shims.find(tmp_path / "two" / "attempt"), shims.Exit)

    play(scene)


def test_clients_attach_and_standard_input_ends(tmp_path: Path) -> None:
    async def scene() -> None:
        attempt = await start(tmp_path, "cat", stdin=True, stdin_once=True)
        one, two = await attempt.attach(), await attempt.attach()
        await one.write(b"hello\n")
        assert await one.read(STDOUT) == b"hello\n"
        assert await two.read(STDOUT) == b"hello\n"
        await two.close()
        await one.write(b"y" * 300_000)
        await one.close_stdin()
        seen = b""
        while piece := await one.read(STDOUT):
            seen += piece
        assert seen == b"y" * 300_000
        assert await one.wait() == 0
        await one.close()

    play(scene)


def test_an_attempt_is_found_again(tmp_path: Path) -> None:
    async def scene() -> None:
        attempt = await start(tmp_path, "sh", "-c", "sleep 0.5; exit 4")
        attempt.release()
        found = await shims.find(attempt.folder)
        assert isinstance(found, shims.Attempt)
        assert (await found.ended).exitCode == 4
        # The process id means somebody else some day.
        again = await shims.find(attempt.folder)
        assert isinstance(again, shims.Attempt)
        assert (await again.ended).exitCode == 4

    play(scene)


def test_a_program_has_its_terminal_and_hears_hangups(tmp_path: Path) -> None:
    """Also where this process ignores hang-ups; and nothing runs at the fork, where gRPC would kill some children."""
    forks: list[str] = []
    os.register_at_fork(before=lambda: forks.append("fork"))
    look = "import os, signal; print(os.tcgetpgrp(0) == os.getpid(), signal.getsignal(signal.SIGHUP).name)"

    async def scene() -> None:
        for tty in (True, False):
            command = [sys.executable, "-c", look if tty else look.replace("os.tcgetpgrp(0)", "os.getsid(0)")]
            process = await LocalProcess.start(command, Wanted(tty=tty))
            said = b""
            while piece := await process.read(STDOUT):
                said += piece
            assert (said.split(), await process.wait()) == ([b"True", b"SIG_DFL"], 0)
            await process.close()
        with pytest.raises(FileNotFoundError, match="no-such-program"):
            await LocalProcess.start(["no-such-program"], Wanted(tty=True))

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        play(scene)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert forks == []


def test_a_terminal_ends_with_its_client(tmp_path: Path) -> None:
    async def scene() -> None:
        for tty in (True, False):
            process = await LocalProcess.start(["sleep", "1000"], Wanted(stdin=True, tty=tty))
            process.resize(100, 40)
            await process.close()
            assert await process.wait() == 129

    play(scene)
