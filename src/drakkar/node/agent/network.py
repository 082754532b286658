"""A network for pods: a namespace for each, joined by a bridge of the node; the API server is reached through a relay.

Pods of one node reach each other and the node. There is no way out of the node but by routes of others to a subnet that
it was given, no Services and no cluster DNS. The API server's name ``kubernetes.default.svc``, for which its
certificate is good, leads to the relay by ``/etc/hosts``.
What a crash leaves is found by names: namespaces, the bridge, and a file per address in ``folder``.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import ipaddress
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from drakkar.api.errors import EnvironmentProblem
from drakkar.api.meta import Object
from drakkar.api.objects import uid_of
from drakkar.api.tree import at
from drakkar.node.agent.runtime import ContainerProblem

_NAMESPACES = Path("/run/netns")
#: Held while an agent chooses a subnet.
_LOCK = Path("/run/drakkar-network.lock")
_API_NAME = "kubernetes.default.svc"
#: Subnets of nodes are cut out of this one; a node takes the first that is free on its machine.
_SPACE = ipaddress.IPv4Network("10.88.0.0/16")
_PIECE = 64 << 10


@dataclass(frozen=True, slots=True)
class Attachment:
    """A pod's network: its namespace (None: the host's), its address, where it finds the API server."""

    namespace: Path | None
    address: str
    api: tuple[str, int]
    #: Further lines for ``/etc/hosts``.
    hosts: tuple[str, ...] = ()


class Network(Protocol):
    """Gives pods a network."""

    async def open(self) -> None:
        """Make what all pods share. Raises EnvironmentProblem."""
        ...

    async def attach(self, pod: Object) -> Attachment:
        """The pod's network; may be called again. Raises ContainerProblem."""
        ...

    async def detach(self, uid: str) -> None:
        """Nothing of it is left; may be called again."""
        ...

    async def close(self) -> None:
        """The agent ends; pods keep their network."""
        ...


class HostNetwork:
    """Every pod shares the network of the host (implements `Network`)."""

    def __init__(self, address: str, api: tuple[str, int]):
        self._attachment = Attachment(None, address, api)

    async def open(self) -> None:
        return

    async def attach(self, pod: Object) -> Attachment:
        return self._attachment

    async def detach(self, uid: str) -> None:
        return

    async def close(self) -> None:
        return


class BridgeNetwork:
    """Needs root and iproute2. ``address`` is that of the node, ``api`` where the node finds the API server.

    ``subnet`` is where pods get their addresses, with the bridge at its first one; None: a part of `_SPACE`.
    """

    def __init__(
        self, folder: Path, address: str, api: tuple[str, int], *, subnet: ipaddress.IPv4Network | None = None
    ):
        self._folder = folder
        self._address = address
        self._api = api
        #: Name of the bridge.
        self.bridge = "dk" + hashlib.sha256(str(folder).encode()).hexdigest()[:10]
        self._wanted = subnet
        self._subnet = subnet or _SPACE
        self._gateway = ""
        self._relay: asyncio.Server | None = None
        self._port = 0
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        if shutil.which("ip") is None:
            raise EnvironmentProblem(
                "pods get networks by the program ip; apt-get install iproute2, or use --network host"
            )
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread(self._make_bridge)
        except (ContainerProblem, OSError) as error:
            raise EnvironmentProblem(f"cannot make the bridge {self.bridge}: {error}; or use --network host") from None
        kept = self._folder / "port"
        wished = int(kept.read_text()) if kept.exists() else 0
        try:
            self._relay = await asyncio.start_server(self._serve, self._gateway, wished)
        except OSError:
            # Running pods lose the server's address; they are told the new one when they start again.
            self._relay = await asyncio.start_server(self._serve, self._gateway, 0)
        self._port = self._relay.sockets[0].getsockname()[1]
        kept.write_text(str(self._port))

    def _make_bridge(self) -> None:
        with free_subnets(self._wanted or _SPACE, self._wanted.prefixlen if self._wanted else 24) as free:
            links = {link["ifname"]: link for link in json.loads(_ip("-j", "address", "show"))}
            known = links.get(self.bridge)
            if known is None:
                found = next(free, None)
                if found is None:
                    raise EnvironmentProblem(f"--pod-cidr: this machine is in {self._wanted or _SPACE} already")
                self._subnet = found
                self._gateway = str(self._subnet[1])
                _ip("link", "add", self.bridge, "type", "bridge")
                _ip("address", "add", f"{self._gateway}/{self._subnet.prefixlen}", "dev", self.bridge)
            else:
                # That of an earlier agent, with pods on it.
                info = next(info for info in known["addr_info"] if info["family"] == "inet")
                self._gateway = info["local"]
                self._subnet = ipaddress.IPv4Network(f"{self._gateway}/{info['prefixlen']}", strict=False)
                if self._wanted not in (None, self._subnet):
                    raise EnvironmentProblem(
                        f"--pod-cidr {self._wanted}: pods of this root have addresses in {self._subnet} from before; "
                        f"end them and remove their bridge: ip link delete {self.bridge}"
                    )
            _ip("link", "set", self.bridge, "up")

    async def attach(self, pod: Object) -> Attachment:
        if at(pod, "spec", "hostNetwork"):
            return Attachment(None, self._address, self._api)
        uid = uid_of(pod)
        async with self._lock:
            address = await asyncio.to_thread(self._join, uid)
        line = f"{self._gateway}\t{_API_NAME} kubernetes kubernetes.default"
        return Attachment(_NAMESPACES / _name(uid), address, (_API_NAME, self._port), (line,))

    def _join(self, uid: str) -> str:
        address = self._lease(uid)
        name, veth = _name(uid), f"dk{uid.replace('-', '')[:13]}"
        if (_NAMESPACES / name).exists():
            return address
        try:
            _ip("netns", "add", name)
            _ip("link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", veth, "master", self.bridge, "up")
            _ip("-n", name, "address", "add", f"{address}/{self._subnet.prefixlen}", "dev", "eth0")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "route", "add", "default", "via", self._gateway)
        except ContainerProblem:
            # Half a network must not be taken for one the next time.
            self._leave(uid)
            raise
        return address

    def _lease(self, uid: str) -> str:
        held = {path.name: path.read_text() for path in self._folder.glob("*.*.*.*")}
        for address, owner in held.items():
            if owner == uid and ipaddress.IPv4Address(address) in self._subnet:
                return address
        for host in self._subnet.hosts():
            if str(host) not in held and str(host) != self._gateway:
                (self._folder / str(host)).write_text(uid)
                return str(host)
        raise ContainerProblem("FailedCreatePodSandBox", f"no address is free in {self._subnet}")

    async def detach(self, uid: str) -> None:
        async with self._lock:
            await asyncio.to_thread(self._leave, uid)

    def _leave(self, uid: str) -> None:
        name = _name(uid)
        if (_NAMESPACES / name).exists():
            with contextlib.suppress(ContainerProblem):
                _ip("netns", "delete", name)
        for path in self._folder.glob("*.*.*.*"):
            if path.read_text() == uid:
                path.unlink()

    async def close(self) -> None:
        if self._relay is not None:
            self._relay.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A pod's connection to the API server."""
        try:
            there, back = await asyncio.open_connection(*self._api)
        except OSError:
            writer.close()
            return
        try:
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
        finally:
            writer.close()
            back.close()


@contextlib.contextmanager
def free_subnets(space: ipaddress.IPv4Network, prefix: int) -> Iterator[Iterator[ipaddress.IPv4Network]]:
    """Parts of a space in which this machine has no address; nobody else chooses one as long as the block runs.

    Raises ContainerProblem, OSError.
    """
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        taken = [
            ipaddress.IPv4Address(info["local"])
            for link in json.loads(_ip("-j", "address", "show"))
            for info in link.get("addr_info", ())
            if info.get("family") == "inet"
        ]
        yield (part for part in space.subnets(new_prefix=prefix) if not any(address in part for address in taken))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


def _name(uid: str) -> str:
    return f"drakkar-{uid}"


def _ip(*words: str) -> str:
    """Raises ContainerProblem with the program's words."""
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise ContainerProblem("FailedCreatePodSandBox", f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
