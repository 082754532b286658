"""The driver's process: what the kit does to it, and what it costs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
#: Puts a file over the kernel's boot id, for the one program that follows.
_SCRIPT = f'mount --bind "$1" {_BOOT_ID} && shift && exec "$@"'


class Cost(NamedTuple):
    """What a process and its children use: memory in KiB, open files."""

    memory: int
    files: int


def signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to the process and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def cost(process: asyncio.subprocess.Process) -> Cost:
    """What the processes of the session use that `process` leads."""
    memory = files = 0
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # It may end meanwhile.
            folder = Path(entry.path)
            # Fields after the name, which stands in brackets: state, parent, group, session.
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) != process.pid:
                continue
            resident = next((line for line in (folder / "status").read_text().split("\n") if "VmRSS:" in line), None)
            memory += int(resident.split()[1]) if resident else 0
            files += len(os.listdir(folder / "fd"))
    return Cost(memory, files)


class Boots:
    """Makes a driver believe that the machine was started anew, where the kit may: a boot id of its own."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._prefix: list[str] | None = None

    async def new(self, environment: Mapping[str, str]) -> bool:
        """Another boot id from now on; False where this user may not make a mount namespace."""
        folder = self._file.parent if self._file else Path(tempfile.mkdtemp(prefix="drakkar-boot-"))
        # A new file: the old one may still lie over the boot id of a driver.
        self._file = folder / uuid.uuid4().hex
        await asyncio.to_thread(self._file.write_text, f"{uuid.uuid4()}\n")
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        self._prefix = ["unshare", "--mount", *user, "sh", "-c", _SCRIPT, "sh", str(self._file)]
        if not await self._works(environment):
            self._prefix = None
        return self._prefix is not None

    def command(self, command: Sequence[str]) -> list[str]:
        """The command as it sees the present boot id."""
        return [*(self._prefix or ()), *command]

    def close(self) -> None:
        """Remove what was made."""
        if self._file is not None:
            shutil.rmtree(self._file.parent, ignore_errors=True)

    async def _works(self, environment: Mapping[str, str]) -> bool:
        assert self._file is not None
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command(["cat", _BOOT_ID]),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={**os.environ, **environment},
            )
        except OSError:
            return False
        told, _ = await process.communicate()
        return told == await asyncio.to_thread(self._file.read_bytes)
