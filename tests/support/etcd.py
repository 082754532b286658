"""An etcd for tests: one member on free ports, its data in a temporary folder."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.guard import guarded

#: Lowest port that is handed out; below are those of well-known services.
_LOWEST = 15000


def _first_ephemeral() -> int:
    """Where the ports begin that the kernel gives to whoever asks for any."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 32768


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens at just now.

    They are bound later, and anew after every restart. So they are none of those that the kernel gives away meanwhile
    (to connections, to servers at port 0), and drawn by chance, since other tests draw at the same time.
    """
    draw, found = random.SystemRandom(), list[int]()
    end = _first_ephemeral()
    while len(found) < count:
        port = draw.randrange(_LOWEST, end) if end > _LOWEST + 1000 else 0
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            port = probe.getsockname()[1]
        if port not in found:
            found.append(port)
    return found


class Etcd:
    """A member that can be killed and started again on the same data and ports."""

    def __init__(
        self, binary: str, folder: Path, *flags: str, name: str = "test", ports: tuple[int, int] | None = None
    ):
        self.folder = folder
        self.port, self._peer = ports or tuple(free_ports(2))
        scheme = "https" if "--cert-file" in flags else "http"
        client, peer = f"{scheme}://127.0.0.1:{self.port}", f"http://127.0.0.1:{self._peer}"
        self._command = [binary, "--name", name, "--data-dir", str(folder / "etcd"), "--log-level", "error"]
        self._command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        self._command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        self._command += [*flags] if "--initial-cluster" in flags else ["--initial-cluster", f"{name}={peer}", *flags]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For ``--store``."""
        return f"etcd://127.0.0.1:{self.port}"

    def start(self, timeout: float = 90) -> None:
        """Start and wait until it accepts connections."""
        with (self.folder / "etcd.log").open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        guarded(self.process.pid)
        deadline = time.monotonic() + timeout
        while True:
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            alive = self.process.poll() is None and time.monotonic() < deadline
            assert alive, f"etcd did not start:\n{(self.folder / 'etcd.log').read_text()}"
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL, as a power cut would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def _binary() -> str:
    """Where etcd is; skips the calling test where it is not installed, fails it where CI=true."""
    binary = os.environ.get("DRAKKAR_ETCD") or shutil.which("etcd")
    if binary is None:
        message = "etcd not found; install it (Debian: etcd-server) or name it in DRAKKAR_ETCD"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return binary


@contextmanager
def running_etcd(folder: Path, *flags: str) -> Iterator[Etcd]:
    """A started member; skips the calling test where etcd is not installed, fails it where CI=true."""
    binary = _binary()
    folder.mkdir(parents=True, exist_ok=True)
    member = Etcd(binary, folder, *flags)
    member.start()
    try:
        yield member
    finally:
        member.kill()


@contextmanager
def running_cluster(folder: Path, size: int = 3) -> Iterator[list[Etcd]]:
    """Members of one cluster."""
    binary = _binary()
    free = free_ports(2 * size)
    ports = [(free[2 * at], free[2 * at + 1]) for at in range(size)]
    initial = ",".join(f"m{at}=http://127.0.0.1:{peer}" for at, (_, peer) in enumerate(ports))
    members: list[Etcd] = []
    try:
        for at, pair in enumerate(ports):
            (folder / f"m{at}").mkdir(parents=True)
            members.append(Etcd(binary, folder / f"m{at}", "--initial-cluster", initial, name=f"m{at}", ports=pair))
        for member in members:
            member.start()
        yield members
    finally:
        for member in members:
            member.kill()
