"""Programs started for a client: with pipes, or with a terminal of their own.

Nothing of ours runs between fork and exec: Python then takes vfork, and nothing of libraries runs there either. What
gRPC does there, which the agent has loaded, now and then ends the child before it has become the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import shutil
import signal
import struct
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

from drakkar.node.agent.streams import Wanted
from drakkar.streaming.channels import PIECE, STDOUT

#: Seconds between asking a program to end and ending it.
_GRACE = 2.0
#: Size of a terminal before the client says its own.
_COLUMNS, _ROWS = 80, 24


class LocalProcess:
    """A program of this machine as a `Session`; :meth:`start` makes one."""

    def __init__(self, process: asyncio.subprocess.Process, master: int | None):
        self._process = process
        self._master = master
        self._reader: asyncio.StreamReader | None = None
        self._transports: list[asyncio.BaseTransport] = []

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        wanted: Wanted,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
    ) -> LocalProcess:
        """Start a program in a session of its own, from the main thread. Raises OSError when it cannot be started."""
        _pass_on_hangups()
        if not wanted.tty:
            pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=pipe if wanted.stdin else null,
                stdout=pipe if wanted.stdout else null,
                stderr=pipe if wanted.stderr else null,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
            return cls(process, None)
        if "/" not in command[0] and shutil.which(command[0], path=(env or os.environ).get("PATH")) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
        master, slave = os.openpty()
        try:
            fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
            process = await asyncio.create_subprocess_exec(
                # Whoever leads a session gets the first terminal that it opens for its own.
                *("/bin/sh", "-c", 'exec "$@" <> "$0"', os.ttyname(slave), *command),
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        except BaseException:
            os.close(master)
            raise
        finally:
            os.close(slave)
        made = cls(process, master)
        await made._open_terminal(master)
        return made

    async def _open_terminal(self, master: int) -> None:
        loop = asyncio.get_running_loop()
        self._reader = asyncio.StreamReader(limit=2 * PIECE)
        reader = self._reader
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(master), "rb", buffering=0)
        )
        self._transports.append(transport)

    async def read(self, channel: int) -> bytes:
        if self._master is not None:
            source = self._reader if channel == STDOUT else None
        else:
            source = self._process.stdout if channel == STDOUT else self._process.stderr
        if source is None:
            return b""
        try:
            return await source.read(PIECE)
        except OSError:
            # A terminal whose last program has closed it answers with an error instead of an end.
            return b""

    async def write(self, data: bytes) -> None:
        if self._master is not None:
            await self._write_terminal(self._master, data)
        elif self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(data)
                await self._process.stdin.drain()

    async def _write_terminal(self, master: int, data: bytes) -> None:
        # The read transport has made the terminal non-blocking; a full one is tried again while the program lives.
        while data and self._process.returncode is None:
            try:
                data = data[os.write(master, data) :]
            except BlockingIOError:
                await asyncio.sleep(0.01)
            except OSError:
                return

    async def close_stdin(self) -> None:
        if self._master is not None:
            await self.write(b"\x04")
        elif self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def resize(self, columns: int, rows: int) -> None:
        if self._master is not None:
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def wait(self) -> int:
        code = await self._process.wait()
        return 128 - code if code < 0 else code

    async def close(self) -> None:
        if self._process.returncode is None:
            for what in (signal.SIGHUP, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, what)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_GRACE):
                        await self._process.wait()
                    break
        for transport in self._transports:
            transport.close()
        if self._master is not None:
            os.close(self._master)
            self._master = None


def _pass_on_hangups() -> None:
    """Let children hear hang-ups, also where the agent itself was started to ignore them (by nohup).

    What is ignored stays so in children; what is handled, even by doing nothing, has its usual effect there.
    """
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
