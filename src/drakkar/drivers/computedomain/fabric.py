"""What the node driver needs of the machine: the daemon of a domain and the device node of its channel.

Real: `Imex`. Fake: `FakeFabric`, whose channel is a folder that all nodes of a domain share on one machine.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from drakkar.driver import ContainerEdits, DeviceNode, Mount
from drakkar.plugin.files import is_locked

#: Seconds for a daemon to end.
_PATIENCE = 5.0


class FabricError(Exception):
    """The daemon does not start, or the channel does not exist; the message says why."""


class Fabric(Protocol):
    """All calls block and may raise FabricError."""

    def join(self, domain: str, channel: int, peers: Sequence[str]) -> None:
        """Run (or go on running) the domain's daemon on this node, with the addresses of all its nodes."""
        ...

    def leave(self, domain: str) -> None:
        """End it, if it runs."""
        ...

    def ready(self, domain: str) -> bool:
        """Whether the daemon is up."""
        ...

    def edits(self, domain: str, channel: int) -> ContainerEdits:
        """What gives a container access to the channel."""
        ...


#: Where a container finds the memory of its fake fabric.
MEMORY = "/fabric"
#: Character devices "for local/experimental use" (Linux, devices.txt): no driver is behind a fake channel.
FAKE_MAJOR = 121


class FakeFabric(Fabric):
    """`shared` is a folder that stands for the memory of the fabric; nodes of one domain mount the same part of it.

    `gpus` holds a file per fake GPU of this node, its memory. A node that joins a domain links them into the domain's
    part, as the memory of real GPUs can be mapped within their domain; so both must be on one file system.
    """

    def __init__(self, shared: Path, gpus: Path | None = None) -> None:
        self._shared = shared.absolute()
        self._gpus = gpus
        self._up: dict[str, list[str]] = {}
        #: Domains whose daemon does not come up, for tests.
        self.broken: set[str] = set()

    def join(self, domain: str, channel: int, peers: Sequence[str]) -> None:
        if domain in self.broken:
            raise FabricError(f"the daemon of domain {domain} does not start")
        folder = self._shared / domain
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for memory in self._memories():
                with suppress(FileExistsError):
                    (folder / memory.name).hardlink_to(memory)
        except OSError as error:
            raise FabricError(
                f"the GPUs' memory in {self._gpus} cannot be linked into {folder}: {error.strerror}; both must be on "
                "one file system"
            ) from error
        self._up[domain] = [*peers]

    def leave(self, domain: str) -> None:
        self._up.pop(domain, None)
        for memory in self._memories():
            (self._shared / domain / memory.name).unlink(missing_ok=True)

    def ready(self, domain: str) -> bool:
        return domain in self._up

    def edits(self, domain: str, channel: int) -> ContainerEdits:
        path = _channel(channel)
        return ContainerEdits(
            env=[f"COMPUTE_DOMAIN={domain}", f"FABRIC_CHANNEL={channel}"],
            deviceNodes=[DeviceNode(path=path, type="c", major=FAKE_MAJOR, minor=channel, permissions="rw")],
            mounts=[Mount(hostPath=str(self._shared / domain), containerPath=MEMORY, options=["rw", "bind"])],
        )

    def _memories(self) -> Sequence[Path]:
        return sorted(self._gpus.iterdir()) if self._gpus is not None else ()


class Imex(Fabric):
    """NVIDIA's `nvidia-imex` daemon, one per domain and node, in `folder`; not tried on real hardware yet.

    A daemon outlives the driver that started it, and is known to the next one by a file that it keeps locked (not by
    its process id, which means nothing in another container). Where it ended with the driver's container it is started
    anew.
    """

    def __init__(self, folder: Path, *, program: str = "/usr/bin/nvidia-imex", port: int = 50000) -> None:
        self._folder = folder
        self._program = program
        self._port = port
        #: Those of this instance.
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def join(self, domain: str, channel: int, peers: Sequence[str]) -> None:
        folder = self._folder / domain
        nodes = folder / "nodes.cfg"
        listing = "".join(f"{peer}\n" for peer in sorted(peers))
        if self.ready(domain):
            if nodes.exists() and nodes.read_text() == listing:
                return
            self._end(domain)
        folder.mkdir(parents=True, exist_ok=True)
        nodes.write_text(listing)
        config = self._config(domain)
        config.write_text(
            f"SERVER_PORT={self._port + channel}\nLOG_FILE_NAME={folder}/log\nIMEX_NODE_CONFIG_FILE={nodes}\n"
            f"IMEX_CMD_ENABLED=1\nIMEX_CMD_PORT={self._port + 1000 + channel}\nDAEMONIZE=0\n"
        )
        self._start(domain)

    def leave(self, domain: str) -> None:
        self._end(domain)
        shutil.rmtree(self._folder / domain, ignore_errors=True)

    def ready(self, domain: str) -> bool:
        process = self._running.get(domain)
        if process is not None and process.poll() is not None:
            del self._running[domain]
        return is_locked(self._folder / domain / "lock")

    def _start(self, domain: str) -> None:
        folder = self._folder / domain
        with (folder / "lock").open("wb") as lock, (folder / "output").open("ab") as output:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # The other instance of an upgrade was faster.
            try:
                # The lock goes on with the daemon, and its output must not end with this process.
                process = subprocess.Popen(
                    [self._program, "-c", str(self._config(domain))],
                    start_new_session=True,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[lock.fileno()],
                )
            except OSError as error:
                raise FabricError(f"{self._program} does not start: {error}") from error
        self._running[domain] = process
        (folder / "pid").write_text(str(process.pid))

    def _end(self, domain: str) -> None:
        """Raises FabricError when it does not end, or belongs to another instance, in another container."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self.ready(domain):
                return
            pid = self._pid(domain)
            if pid is None:
                raise FabricError(
                    f"the daemon of domain {domain} was started by another instance of this driver, in another "
                    "container; it ends with that one"
                )
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            end = time.monotonic() + _PATIENCE
            while self.ready(domain) and time.monotonic() < end:
                time.sleep(0.02)
        if self.ready(domain):
            raise FabricError(f"the daemon of domain {domain} does not end")

    def _pid(self, domain: str) -> int | None:
        """The daemon's process, if it can be seen from here."""
        with suppress(OSError, ValueError):
            pid = int((self._folder / domain / "pid").read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if os.fsencode(self._config(domain)) in words:
                return pid
        return None

    def _config(self, domain: str) -> Path:
        return self._folder / domain / "imex.cfg"

    def edits(self, domain: str, channel: int) -> ContainerEdits:
        path = _channel(channel)
        if not Path(path).exists():
            raise FabricError(f"{path} does not exist; load the nvidia module with NVreg_ImexChannelCount")
        return ContainerEdits(env=[f"COMPUTE_DOMAIN={domain}"], deviceNodes=[DeviceNode(path=path)])


def _channel(number: int) -> str:
    return f"/dev/nvidia-caps-imex-channels/channel{number}"
