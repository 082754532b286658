"""What the node driver needs of the machine: the daemon of a domain and the device node of its channel.

Real: `Imex`. Fake: `FakeFabric`, whose channel is a folder that all nodes of a domain share on one machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from drakkar.driver import ContainerEdits, DeviceNode, Mount


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
    """NVIDIA's `nvidia-imex` daemon, one per domain and node, in `folder`; not tried on real hardware yet."""

    def __init__(self, folder: Path, *, program: str = "/usr/bin/nvidia-imex", port: int = 50000) -> None:
        self._folder = folder
        self._program = program
        self._port = port
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def join(self, domain: str, channel: int, peers: Sequence[str]) -> None:
        folder = self._folder / domain
        folder.mkdir(parents=True, exist_ok=True)
        nodes = folder / "nodes.cfg"
        listing = "".join(f"{peer}\n" for peer in sorted(peers))
        changed = not nodes.exists() or nodes.read_text() != listing
        nodes.write_text(listing)
        config = folder / "imex.cfg"
        config.write_text(
            f"SERVER_PORT={self._port + channel}\nLOG_FILE_NAME={folder}/log\nIMEX_NODE_CONFIG_FILE={nodes}\n"
            f"IMEX_CMD_ENABLED=1\nIMEX_CMD_PORT={self._port + 1000 + channel}\nDAEMONIZE=0\n"
        )
        if changed:
            self.leave(domain)
            folder.mkdir(parents=True, exist_ok=True)
            nodes.write_text(listing)
        if not self.ready(domain):
            try:
                process = subprocess.Popen([self._program, "-c", str(config)], start_new_session=True)
            except OSError as error:
                raise FabricError(f"{self._program} does not start: {error}") from error
            self._running[domain] = process
            (folder / "pid").write_text(str(process.pid))

    def leave(self, domain: str) -> None:
        process = self._running.pop(domain, None)
        if process is not None:
            process.terminate()
            process.wait()
        else:
            with suppress(OSError, ValueError):
                os.kill(int((self._folder / domain / "pid").read_text()), signal.SIGTERM)
        shutil.rmtree(self._folder / domain, ignore_errors=True)

    def ready(self, domain: str) -> bool:
        process = self._running.get(domain)
        if process is not None:
            return process.poll() is None
        try:  # Started by an earlier instance of this driver.
            os.kill(int((self._folder / domain / "pid").read_text()), 0)
        except (OSError, ValueError):
            return False
        return True

    def edits(self, domain: str, channel: int) -> ContainerEdits:
        path = _channel(channel)
        if not Path(path).exists():
            raise FabricError(f"{path} does not exist; load the nvidia module with NVreg_ImexChannelCount")
        return ContainerEdits(env=[f"COMPUTE_DOMAIN={domain}"], deviceNodes=[DeviceNode(path=path)])


def _channel(number: int) -> str:
    return f"/dev/nvidia-caps-imex-channels/channel{number}"
