"""The driver under test: its sockets, its process where the kit may start and kill it, and claims to try it with."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import stat
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drakkar.api.errors import ApiError
from drakkar.api.kinds import NAMESPACE, RESOURCECLAIM, RESOURCESLICE
from drakkar.api.meta import Object
from drakkar.api.resource import v1
from drakkar.client import Client
from drakkar.plugin import cdi, wire
from drakkar.plugin.grpc_client import PluginError, SocketClient, choose_dra

#: Longest wait in seconds for a driver to start, to publish or to stop.
PATIENCE = 20.0
#: Characters of a driver's last line in a message.
_LONGEST_WORDS = 300
#: Seconds after which it is known here that a process has ended.
_REAPED = 0.1


class CheckFailed(Exception):
    """A rule is broken; the message says what was expected and what came."""


class Subject:
    """One driver on one node as the kit sees it.

    `socket` is the registration socket of a driver that runs already; without it the kit looks for one in the folder
    `plugins_registry` of `kubelet_root`. With `command` the kit starts the driver itself and may kill it.
    """

    def __init__(
        self,
        *,
        kubelet_root: Path,
        cdi_folder: Path,
        client: Client | None = None,
        node_name: str = "",
        socket: Path | None = None,
        command: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        self.kubelet_root = kubelet_root
        self.cdi_folder = cdi_folder
        self.client = client
        self.node_name = node_name
        self.command = list(command)
        self.registry = socket.parent if socket else kubelet_root / "plugins_registry"
        self.namespace = f"drakkar-check-{secrets.token_hex(4)}"
        self.info = wire.PluginInfo()
        self._socket = socket
        self._environment = dict(environment or {})
        #: What the driver prints is appended here.
        self._log = log
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._clients: list[SocketClient] = []
        self._claims = 0
        self._claims_made: dict[wire.Claim, None] = {}
        self._described: dict[tuple[str, str], v1.Device] = {}

    @property
    def name(self) -> str:
        """The driver's name, once it has said it."""
        return self.info.name

    # Process.

    async def start(self, instance: str = "") -> None:
        """Start the driver and wait for its registration socket. Raises CheckFailed."""
        before = set(self.sockets())
        env = {**os.environ, **self._environment, "POD_UID": instance}
        with open(self._log or os.devnull, "ab") as output:  # noqa: ASYNC230
            process = await asyncio.create_subprocess_exec(
                *self.command, env=env, stdout=output, stderr=output, start_new_session=True
            )
        self._processes[instance] = process
        async with asyncio.timeout(PATIENCE):
            while not set(self.sockets()) - before:
                if process.returncode is not None:
                    code = process.returncode
                    del self._processes[instance]
                    raise CheckFailed(f"the driver ended with code {code} before it registered{self._last_words()}")
                await asyncio.sleep(0.02)

    async def revive(self) -> str:
        """Start the driver again when it does not run. Returns how it ended, in words, when that was by itself."""
        await asyncio.sleep(_REAPED)
        ended = [name for name, process in self._processes.items() if process.returncode is not None]
        codes = [self._processes.pop(name).returncode for name in ended]
        words = f"the driver ended by itself, with code {codes[0]}{self._last_words()}" if codes else ""
        if self.command and not self._processes:
            for path in self.sockets():
                path.unlink(missing_ok=True)
            # When it does not start any more, the next check says so.
            with contextlib.suppress(CheckFailed, TimeoutError):
                await self.start()
        return words

    def _last_words(self) -> str:
        try:
            lines = self._log.read_text(errors="replace").split("\n") if self._log else []
        except OSError:
            return ""
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"; the last it said: {last[:_LONGEST_WORDS]}" if last else ""

    async def end(self, instance: str = "", number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal and wait for the end. Raises CheckFailed when it does not end."""
        process = self._processes.pop(instance, None)
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            async with asyncio.timeout(PATIENCE):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise CheckFailed(f"the driver did not end within {PATIENCE:.0f} s of {number.name}") from None

    async def restart(self) -> None:
        """Kill the driver as a crash does, and start it again."""
        await self.end(number=signal.SIGKILL)
        for path in self.sockets():
            path.unlink(missing_ok=True)  # A kubelet would find the new one by its inode; the kit looks at names.
        await self.start()

    async def close(self) -> None:
        """Stop what was started and remove what was made."""
        for client in self._clients:
            await client.close()
        for instance in [*self._processes]:
            with contextlib.suppress(CheckFailed):
                await self.end(instance)
        if self.client is not None:
            with contextlib.suppress(ApiError):
                await self.client.delete(NAMESPACE, self.namespace)

    # Sockets.

    def sockets(self) -> list[Path]:
        """Registration sockets, newest last."""
        if self._socket is not None:
            return [self._socket] if self._socket.exists() else []
        found: list[tuple[int, Path]] = []
        for path in self.registry.glob("*") if self.registry.is_dir() else ():
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if stat.S_ISSOCK(status.st_mode) and not path.name.startswith("."):
                    found.append((status.st_ctime_ns, path))
        return [path for _, path in sorted(found)]

    async def register(self) -> wire.PluginInfo:
        """Register the newest instance as a kubelet does. Raises CheckFailed, PluginError."""
        sockets = self.sockets()
        if not sockets:
            raise CheckFailed(f"there is no registration socket in {self.registry}")
        async with SocketClient(sockets[-1]) as client:
            self.info = await client.get_info()
            choose_dra(self.info.supported_versions)
            await client.notify(wire.RegistrationStatus(True))
        return self.info

    def connect(self, endpoint: str = "") -> SocketClient:
        """A client of the DRA service; closed with the subject."""
        client = SocketClient(Path(endpoint or self.info.endpoint))
        self._clients.append(client)
        return client

    async def prepare(
        self, claims: Sequence[wire.Claim], version: str = ""
    ) -> dict[str, wire.NodePrepareResourceResponse]:
        """Ask the newest instance; retried while it starts."""
        version = version or choose_dra(self.info.supported_versions)
        return await _patient(lambda: self.connect().prepare(version, [*claims]))

    async def unprepare(
        self, claims: Sequence[wire.Claim], version: str = ""
    ) -> dict[str, wire.NodeUnprepareResourceResponse]:
        """As `prepare`."""
        version = version or choose_dra(self.info.supported_versions)
        return await _patient(lambda: self.connect().unprepare(version, [*claims]))

    def edits(self, devices: Sequence[wire.Device]) -> list[cdi.ContainerEdits]:
        """What a container gets with these devices. Raises CdiError."""
        ids = [name for device in devices for name in device.cdi_device_ids]
        return list(cdi.SpecFolders([self.cdi_folder]).resolve(ids)) if ids else []

    def spec_files(self) -> set[str]:
        """Names of the CDI files that stand in the folder."""
        return {path.name for path in self.cdi_folder.glob("[!.]*")} if self.cdi_folder.is_dir() else set()

    # The API.

    async def slices(self) -> list[v1.ResourceSlice]:
        """The driver's slices of this node."""
        assert self.client is not None
        selector = f"spec.driver={self.name},spec.nodeName={self.node_name}"
        return (await self.client.list(RESOURCESLICE, field_selector=selector)).items

    async def devices(self) -> list[tuple[str, v1.Device]]:
        """Pool and device of everything published."""
        found = [(s.spec.pool.name, device) for s in await self.slices() for device in s.spec.devices or ()]
        self._described = {(pool, device.name): device for pool, device in found}
        return found

    async def claim(
        self, devices: Sequence[tuple[str, str]], *, config: Object | None = None, allocated: bool = True
    ) -> wire.Claim:
        """A claim that holds these devices (pool and name), request by request `r0`, `r1` …"""
        assert self.client is not None
        with contextlib.suppress(ApiError):
            await self.client.create(
                NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
            )
        self._claims += 1
        name = f"claim-{self._claims}"
        requests = [{"name": f"r{i}", "exactly": {"deviceClassName": self.name}} for i in range(max(1, len(devices)))]
        spec: Object = {"devices": {"requests": requests}}
        made = await self.client.create(
            RESOURCECLAIM,
            {
                "apiVersion": v1.API_VERSION,
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": spec,
            },
        )
        if allocated:
            await self.client.patch(
                RESOURCECLAIM, name, self.namespace, {"status": {"allocation": self._allocation(devices, config)}},
                subresource="status",
            )  # fmt: skip
        claim = wire.Claim(self.namespace, made.metadata.uid, name)
        self._claims_made[claim] = None
        return claim

    def _allocation(self, devices: Sequence[tuple[str, str]], config: Object | None) -> Object:
        results: list[Any] = [
            {"request": f"r{i}", "driver": self.name, "pool": pool, "device": name, **self._share(pool, name)}
            for i, (pool, name) in enumerate(devices)
        ]
        allocation: Object = {"devices": {"results": results}}
        if config is not None:
            opaque = {"driver": self.name, "parameters": config}
            allocation["devices"]["config"] = [{"source": "FromClaim", "opaque": opaque}]
        if self.node_name:
            field = {"key": "metadata.name", "operator": "In", "values": [self.node_name]}
            allocation["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [field]}]}
        return allocation

    def _share(self, pool: str, name: str) -> Object:
        """What a result says of a device that several claims may have: as much as who asks for nothing gets."""
        device = self._described.get((pool, name))
        if device is None or not device.allowMultipleAllocations:
            return {}
        consumed = {
            key: (capacity.requestPolicy.default if capacity.requestPolicy else None) or capacity.value
            for key, capacity in (device.capacity or {}).items()
        }
        return {"shareID": str(uuid.uuid4()), "consumedCapacity": consumed}

    async def tidy(self) -> None:
        """Undo what a check has left that failed half-way, so that the next ones fail for reasons of their own."""
        left = [*self._claims_made]
        if left:
            with contextlib.suppress(PluginError, TimeoutError):
                await self.unprepare(left)
        for claim in left:
            await self.forget(claim)

    async def forget(self, claim: wire.Claim) -> None:
        """Delete a claim for good."""
        self._claims_made.pop(claim, None)
        assert self.client is not None
        body = {"status": {"allocation": None}}
        with contextlib.suppress(ApiError):
            await self.client.patch(RESOURCECLAIM, claim.name, claim.namespace, body, subresource="status")
        with contextlib.suppress(ApiError):
            await self.client.delete(RESOURCECLAIM, claim.name, claim.namespace)


async def _patient(call: Any) -> Any:
    """The answer, waiting for a service that has only just started to listen."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE / 4
    while True:
        try:
            return await call()
        except PluginError as error:
            if not error.unreachable or loop.time() > deadline:
                raise
        await asyncio.sleep(0.05)
