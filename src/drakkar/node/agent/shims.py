"""The agent's side of shims: start one for a container, find it again after a crash, attach to it.

A shim and its container are found by the files in the folder of the attempt: ``shim.json`` (what it was asked to do),
``state.json`` (who they are), ``exit.json`` (how it ended).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from drakkar.node.agent import shim
from drakkar.node.agent.runtime import ContainerProblem, Made
from drakkar.node.agent.shim import start_time
from drakkar.node.agent.streams import StreamProblem
from drakkar.plugin.files import is_locked
from drakkar.streaming.channels import CLOSE, LONGEST_MESSAGE, RESIZE, STDIN

#: Seconds for a shim to say that its container exists.
_START = 60.0
#: Seconds between two looks at a shim that is starting.
_LOOK = 0.02


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What a shim is asked to do; the names are its own (`drakkar.node.agent.shim`)."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    identity: str
    log: str
    state: str
    exit: str
    socket: str
    longestLog: int
    keepLogs: int
    tty: bool
    stdin: bool
    stdinOnce: bool
    create: list[str] | None
    console: str
    pidFile: str
    runtimeLog: str


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Who runs: process ids with the times of their start, since ids are used again."""

    identity: str
    shim: int
    shimStart: int
    pid: int
    pidStart: int
    startedAt: float
    socket: str


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a container ended. ``error``: it never began."""

    exitCode: int
    startedAt: float
    finishedAt: float
    signal: int = 0
    error: str = ""
    #: The kernel ended it because it wanted more memory than its limit.
    outOfMemory: bool = False


class Attempt:
    """One attempt of a container, from its folder. ``ended`` is done when the container has ended."""

    def __init__(self, folder: Path, state: State, process: subprocess.Popen[bytes] | None = None):
        self.folder = folder
        self.state = state
        #: The shim, when it is a child of this process.
        self._process = process
        self.ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._watching: int | None = None
        self._watch()

    @property
    def running(self) -> bool:
        """Whether it has not been seen to end."""
        return not self.ended.done()

    def _watch(self) -> None:
        try:
            descriptor = os.pidfd_open(self.state.shim)
        except ProcessLookupError:
            self._gone()
            return
        if start_time(self.state.shim) != self.state.shimStart:
            os.close(descriptor)
            self._gone()
            return
        self._watching = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._gone)

    def _gone(self) -> None:
        self.release()
        if self._process is not None:
            self._process.poll()
        if not self.ended.done():
            self.ended.set_result(read_exit(self.folder) or self._lost())

    def _lost(self) -> Exit:
        """The shim died before its container; the container must not outlive it unseen."""
        return Exit(
            exitCode=137,
            startedAt=self.state.startedAt,
            finishedAt=time.time(),
            error="the monitor of the container died; its exit status is lost",
        )

    def release(self) -> None:
        """Stop watching; the container goes on."""
        if self._watching is not None:
            asyncio.get_running_loop().remove_reader(self._watching)
            os.close(self._watching)
            self._watching = None

    def orphaned(self) -> bool:
        """Whether the container's process is there although its shim is gone."""
        return start_time(self.state.pid) == self.state.pidStart

    async def attach(self) -> AttachedSession:
        """Raises StreamProblem when nothing runs any more."""
        try:
            reader, writer = await asyncio.open_unix_connection(self.state.socket)
        except OSError as error:
            raise StreamProblem(400, f"cannot attach: {error.strerror or error}") from None
        return AttachedSession(reader, writer, self.ended)


class AttachedSession:
    """Streams of a running container (implements `drakkar.node.agent.streams.Session`)."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ended: asyncio.Future[Exit]):
        self._writer = writer
        self._ended = ended
        self._queues: dict[int, asyncio.Queue[bytes]] = {1: asyncio.Queue(64), 2: asyncio.Queue(64)}
        self._pump = asyncio.create_task(self._read(reader), name="attach")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                channel, length = struct.unpack(">BI", await reader.readexactly(5))
                if length > LONGEST_MESSAGE:
                    break
                await self._queues[channel].put(await reader.readexactly(length))
        for queue in self._queues.values():
            await queue.put(b"")

    async def read(self, channel: int) -> bytes:
        return await self._queues[channel].get()

    async def write(self, data: bytes) -> None:
        await self._send(STDIN, data)

    async def close_stdin(self) -> None:
        await self._send(CLOSE, b"")

    def resize(self, columns: int, rows: int) -> None:
        self._writer.write(struct.pack(">BI", RESIZE, 4) + struct.pack(">HH", columns, rows))

    async def wait(self) -> int:
        return (await asyncio.shield(self._ended)).exitCode

    async def close(self) -> None:
        self._pump.cancel()
        self._writer.close()

    async def _send(self, channel: int, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._writer.write(struct.pack(">BI", channel, len(data)) + data)
            await self._writer.drain()


async def start(
    identity: str,
    folder: Path,
    log: Path,
    made: Made,
    sockets: Path,
    *,
    tty: bool,
    stdin: bool,
    stdin_once: bool,
    longest_log: int,
    keep_logs: int,
) -> Attempt:
    """Start a shim for what a runtime has laid out in ``folder``. Raises ContainerProblem with the shim's words."""
    log.parent.mkdir(parents=True, exist_ok=True)
    short = _short(folder, sockets)
    config = Config(
        argv=made.argv,
        env=made.env,
        cwd=made.cwd,
        log=str(log),
        identity=identity,
        state=str(folder / "state.json"),
        exit=str(folder / "exit.json"),
        socket=f"{short}.sock",
        longestLog=longest_log,
        keepLogs=keep_logs,
        tty=tty,
        stdin=stdin,
        stdinOnce=stdin_once,
        create=made.create,
        console=f"{short}.tty",
        pidFile=str(folder / "pid"),
        runtimeLog=str(folder / "runtime.log"),
    )
    (folder / "shim.json").write_bytes(msgspec.json.encode(config))
    os.chmod(folder / "shim.json", 0o600)
    process = await asyncio.to_thread(_spawn, folder)
    try:
        async with asyncio.timeout(_START):
            line = await asyncio.to_thread(_first_line, process)
    except TimeoutError:
        process.kill()
        process.wait()
        raise ContainerProblem("CreateContainerError", f"the container did not exist after {_START:g} s") from None
    words: dict[str, Any] = msgspec.json.decode(line) if line else {"error": _tail(folder / "shim.log")}
    if "error" in words:
        await asyncio.to_thread(process.wait)
        raise ContainerProblem("CreateContainerError", words["error"])
    return Attempt(folder, msgspec.json.decode((folder / "state.json").read_bytes(), type=State), process)


def forget(folder: Path, sockets: Path) -> None:
    """Remove the sockets of an attempt, which a shim that was killed leaves; once nothing of it runs any more."""
    for suffix in (".sock", ".tty"):
        _short(folder, sockets).with_suffix(suffix).unlink(missing_ok=True)


def _short(folder: Path, sockets: Path) -> Path:
    """Sockets of an attempt, without suffix: their paths are short by nature, those of attempts are not."""
    return sockets / hashlib.sha256(str(folder).encode()).hexdigest()[:16]


def _spawn(folder: Path) -> subprocess.Popen[bytes]:
    # The lock lasts as long as the shim: while it is held, a state may still be written.
    with (folder / "shim.log").open("ab") as complaints, (folder / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Not by asyncio, which keeps a thread for every process that it waits for.
        return subprocess.Popen(
            [sys.executable, "-I", "-S", shim.__file__, str(folder / "shim.json")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            start_new_session=True,
            cwd="/",
            pass_fds=[lock.fileno()],
        )


def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    with process.stdout:
        return process.stdout.readline()


async def find(folder: Path) -> Attempt | Exit | None:
    """What became of the attempt in a folder: it runs or has just ended, it has ended, or it never began.

    An agent that died in the middle of a start leaves a shim that goes on by itself; its word is waited for.
    """
    while not (folder / "state.json").exists() and is_locked(folder / "lock"):
        await asyncio.sleep(_LOOK)
    try:
        state = msgspec.json.decode((folder / "state.json").read_bytes(), type=State)
    except (FileNotFoundError, msgspec.DecodeError):
        return read_exit(folder)
    return Attempt(folder, state)


def read_exit(folder: Path) -> Exit | None:
    """How the attempt ended; None when nobody wrote it down."""
    try:
        return msgspec.json.decode((folder / "exit.json").read_bytes(), type=Exit)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _tail(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1] if lines else "the monitor of the container ended without a word"
