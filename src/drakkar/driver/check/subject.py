"""The driver under test: its sockets, its process where the kit may start and kill it, what it has published."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from drakkar.api.kinds import NODE, RESOURCESLICE
from drakkar.api.meta import NodeSelector, Object
from drakkar.api.resource import v1
from drakkar.api.selectors import node_selector_matches
from drakkar.client import Client
from drakkar.driver.check.claims import Claims, Wish, judge_answer
from drakkar.driver.check.history import History
from drakkar.driver.check.process import Boots, Cost, cost, signal_group
from drakkar.plugin import cdi, wire
from drakkar.plugin.grpc_client import CALL_TIMEOUT, PluginError, SocketClient, choose_dra

if TYPE_CHECKING:
    from drakkar.driver.check.published import HealthWatch

T = TypeVar("T")

#: Longest wait in seconds for a driver to register, to publish, and to end after SIGTERM.
START, PUBLISH, STOP = 45.0, 30.0, 20.0
#: Seconds for calls once one has hung, and for waits once one was in vain: the verdict is known, the kit must end.
IMPATIENT = 3.0
#: Seconds for which a driver that has just started may not listen yet.
LISTENS = 5.0
#: Characters of a driver's last line in a message.
_LONGEST_WORDS = 300
#: Seconds after which it is known here that a process has ended.
_REAPED = 0.1


class CheckFailed(Exception):
    """A rule is broken; the message says what was expected and what came. `cure`: what helps, if not the usual."""

    def __init__(self, message: str, cure: str = "") -> None:
        super().__init__(message)
        self.cure = cure


class NotApplicable(Exception):
    """The driver has nothing that the check could be tried on."""


class Subject:
    """One driver on one node as the kit sees it.

    `socket` is the registration socket of a driver that runs already; without it the kit looks for one in the folder
    `plugins_registry` of `kubelet_root`. With `command` the kit starts the driver itself and may kill it.
    `refusals` says which writes of the driver the API server has refused, where that is known.
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
        parameters: Object | None = None,
        refusals: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        self.kubelet_root = kubelet_root
        self.cdi_folder = cdi_folder
        self.client = client
        self.node_name = node_name
        self.command = list(command)
        self.registry = socket.parent if socket else kubelet_root / "plugins_registry"
        self.info = wire.PluginInfo()
        #: Parameters that the driver takes, where the user names some.
        self.parameters = parameters
        self._refusals = refusals
        self.history = History()
        #: What breaks no rule and somebody may be sorry for, and what is merely told; emptied before each check.
        self.remarks: list[str] = []
        self.notes: list[str] = []
        #: Sockets that a crash left are removed before the driver starts again: it cannot do so itself.
        self.sweeps = False
        #: Calls that got no answer.
        self.hung = 0
        #: Somebody listened at the endpoint as soon as the driver had named it.
        self.listened = False
        #: What was wrong with the slices at first, and the devices as they were published then.
        self.first_problems: list[str] = []
        self.first_described: dict[tuple[str, str], v1.Device] = {}
        #: A stream of health that is listened to meanwhile.
        self.watched: HealthWatch | None = None
        #: Nothing was published when it was waited for.
        self.unpublished = False
        self._socket = socket
        self._environment = dict(environment or {})
        #: What the driver prints is appended here.
        self._log = log
        self._boots = Boots()
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._stubborn = False
        self._claims: Claims | None = None
        self._watch: asyncio.Task[None] | None = None
        self._labels: dict[str, str] | None = None

    @property
    def name(self) -> str:
        """The driver's name, once it has said it."""
        return self.info.name

    @property
    def dra_version(self) -> str:
        """The DRA service that a kubelet would call. Raises PluginError."""
        return choose_dra(self.info.supported_versions)

    @property
    def data_folder(self) -> Path:
        """The driver's own folder below that of the kubelet."""
        return self.kubelet_root / "plugins" / self.name

    def refusals(self) -> Sequence[str] | None:
        """Why the API server refused slices; None where that is not known."""
        return self._refusals() if self._refusals is not None else None

    def remark(self, text: str) -> None:
        """Say what breaks no rule, and somebody may be sorry for."""
        self.remarks.append(text)

    def note(self, text: str) -> None:
        """Say something about the check itself."""
        self.notes.append(text)

    # Process.

    async def start(self, instance: str = "") -> None:
        """Start the driver and wait for its registration socket. Raises CheckFailed."""
        before = self.marks()
        env = {**os.environ, **self._environment, "POD_UID": instance}
        with open(self._log or os.devnull, "ab") as output:  # noqa: ASYNC230
            process = await asyncio.create_subprocess_exec(
                *self._boots.command(self.command), env=env, stdout=output, stderr=output, start_new_session=True
            )
        self._processes[instance] = process
        self.history.started()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START
        while not set(self.marks().items()) - set(before.items()):
            if process.returncode is not None:
                code = process.returncode
                del self._processes[instance]
                raise CheckFailed(f"the driver ended with code {code} before it registered{self._last_words()}")
            if loop.time() > deadline:
                raise CheckFailed(f"no registration socket of it appeared in {self.registry} within {START:.0f} s")
            await asyncio.sleep(0.02)

    async def new_boot(self) -> bool:
        """What is started from now on sees another boot id; False where that cannot be arranged."""
        return await self._boots.new(self._environment)

    async def revive(self) -> str:
        """Start the driver again when it does not run, or not alone. Returns how it ended, in words, when by itself."""
        await asyncio.sleep(_REAPED)
        ended = [name for name, process in self._processes.items() if process.returncode is not None]
        codes = [self._processes.pop(name).returncode for name in ended]
        words = f"the driver ended by itself, with code {codes[0]}{self._last_words()}" if codes else ""
        if self.command and set(self._processes) != {""}:
            await self.end_all()
            self._sweep()
            # When it does not start any more, the next check says so.
            with contextlib.suppress(CheckFailed, PluginError):
                await self.start()
                await self.register()
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
        signal_group(process, number)
        patience = IMPATIENT if self._stubborn else STOP
        try:
            async with asyncio.timeout(patience):
                await process.wait()
        except TimeoutError:
            self._stubborn = True
            signal_group(process, signal.SIGKILL)
            await process.wait()
            raise CheckFailed(
                f"the driver did not end within {patience:.0f} s of {number.name}",
                "end the servers and the process on SIGTERM: a kubelet waits for the pod's grace, then kills",
            ) from None
        # Children of a wrapper that went first.
        signal_group(process, signal.SIGKILL)

    async def end_all(self) -> None:
        """Stop every instance, however it takes it."""
        for instance in [*self._processes]:
            with contextlib.suppress(CheckFailed):
                await self.end(instance)

    async def crash(self, instance: str = "") -> None:
        """Kill the driver as a crash does."""
        await self.end(instance, signal.SIGKILL)

    async def restart(self) -> None:
        """Kill the driver as a crash does, start and register it again."""
        await self.crash()
        if self.sweeps:
            self._sweep()
        await self.start()
        await self.register()

    def cost(self, instance: str = "") -> Cost | None:
        """What the process uses; None where the kit has not started it."""
        process = self._processes.get(instance)
        return cost(process) if process is not None else None

    async def close(self) -> None:
        """Stop what was started and remove what was made."""
        if self.watched is not None:
            await self.watched.close()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self.end_all()
        self._boots.close()
        if self._claims is not None:
            await self._claims.close()

    # Sockets.

    def sockets(self) -> list[Path]:
        """Registration sockets, newest last."""
        return [path for path, _ in sorted(self.marks().items(), key=lambda found: found[1])]

    def marks(self) -> dict[Path, tuple[int, int]]:
        """Registration sockets, and what tells one from another at the same place."""
        if self._socket is not None:
            paths = [self._socket]
        else:
            paths = [*self.registry.glob("[!.]*")] if self.registry.is_dir() else []
        found: dict[Path, tuple[int, int]] = {}
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if stat.S_ISSOCK(status.st_mode):
                    found[path] = (status.st_ctime_ns, status.st_ino)
        return found

    def _sweep(self) -> None:
        """Remove the sockets that a killed driver has left."""
        endpoint = Path(self.info.endpoint or "/")
        for path in [*self.sockets(), *([endpoint] if endpoint.is_socket() else [])]:
            path.unlink(missing_ok=True)

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

    def listens(self) -> bool:
        """Whether somebody accepts connections at the endpoint that the driver has named."""
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
            probe.settimeout(1)
            try:
                probe.connect(os.fsencode(self.info.endpoint))
            except (OSError, ValueError):
                return False
        return True

    def endpoint_exists(self, endpoint: str) -> bool:
        """Whether the file of a DRA socket is there."""
        return Path(endpoint).exists()

    @asynccontextmanager
    async def connect(self, endpoint: str = "") -> AsyncIterator[SocketClient]:
        """A client of the DRA service."""
        async with SocketClient(Path(endpoint or self.info.endpoint)) as client:
            yield client

    async def prepare(
        self, claims: Sequence[wire.Claim], version: str = "", endpoint: str = ""
    ) -> dict[str, wire.NodePrepareResourceResponse]:
        """Ask the newest instance (or the one at `endpoint`); retried while it starts. Raises PluginError."""
        version = version or self.dra_version
        return await self._ask(lambda client, limit: client.prepare(version, [*claims], limit), endpoint)

    async def unprepare(
        self, claims: Sequence[wire.Claim], version: str = "", endpoint: str = ""
    ) -> dict[str, wire.NodeUnprepareResourceResponse]:
        """As `prepare`."""
        version = version or self.dra_version
        return await self._ask(lambda client, limit: client.unprepare(version, [*claims], limit), endpoint)

    async def _ask(self, call: Callable[[SocketClient, float], Awaitable[T]], endpoint: str) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LISTENS
        async with self.connect(endpoint) as client:
            while True:
                limit = IMPATIENT if self.hung else CALL_TIMEOUT
                try:
                    return await call(client, limit)
                except PluginError as error:
                    if error.late:
                        self.hung += 1
                        raise PluginError(f"no answer within {limit:.0f} s: {error}", late=True) from None
                    dead = bool(self.command) and not any(p.returncode is None for p in self._processes.values())
                    if not error.unreachable or dead or loop.time() > deadline:
                        raise
                await asyncio.sleep(0.05)

    def edits(self, devices: Sequence[wire.Device]) -> list[cdi.ContainerEdits]:
        """What a container gets with these devices. Raises CheckFailed."""
        ids = [name for device in devices for name in device.cdi_device_ids]
        return self.resolve(ids) if ids else []

    def resolve(self, ids: Sequence[str]) -> list[cdi.ContainerEdits]:
        """What a container gets with these CDI devices. Raises CheckFailed, which says what is wrong with files too."""
        folders = cdi.SpecFolders([self.cdi_folder])
        try:
            return list(folders.resolve(ids))
        except cdi.CdiError as error:
            raise CheckFailed("\n".join(map(str, [error, *folders.errors.values()]))) from None

    def spec_files(self) -> dict[str, bytes]:
        """The CDI files that stand in the folder, unfinished ones too."""
        found: dict[str, bytes] = {}
        for path in self.cdi_folder.iterdir() if self.cdi_folder.is_dir() else ():
            with contextlib.suppress(OSError):
                found[path.name] = path.read_bytes() if path.is_file() else b""
        return found

    def leftovers(self, claim: wire.Claim) -> list[str]:
        """Files that still speak of a claim: in the CDI folder, and those that describe its devices."""
        uid = claim.uid.encode()
        left = [name for name, content in self.spec_files().items() if claim.uid in name or uid in content]
        folder = self.data_folder / "dra-device-metadata" / f"{claim.namespace}_{claim.name}"
        return sorted(left) + ([str(folder)] if folder.exists() else [])

    # The API.

    def follow(self) -> None:
        """Note from now on what the driver does with its slices."""
        if self.client is not None and self._watch is None:
            self._watch = asyncio.ensure_future(self.history.follow(self.client, self.name))

    async def all_slices(self) -> list[v1.ResourceSlice]:
        """The driver's slices, of any node."""
        assert self.client is not None
        return (await self.client.list(RESOURCESLICE, field_selector=f"spec.driver={self.name}")).items

    async def labels(self) -> dict[str, str]:
        """The node's labels; none when there is no such Node."""
        if self._labels is not None:
            return self._labels
        assert self.client is not None
        node = await self.client.get(NODE, self.node_name)
        found = self._labels = dict[str, str](node["metadata"].get("labels") or {})
        return found

    async def slices(self) -> list[v1.ResourceSlice]:
        """The driver's slices with devices that this node reaches, in order."""
        labels = await self.labels()

        def reaches(place: v1.ResourceSliceSpec | v1.Device) -> bool:
            selector: NodeSelector | None = place.nodeSelector
            if place.nodeName is not None:
                return place.nodeName == self.node_name
            return bool(place.allNodes) or (
                selector is not None and node_selector_matches(selector, labels, self.node_name)
            )

        def here(found: v1.ResourceSlice) -> bool:
            spec = found.spec
            if spec.perDeviceNodeSelection:
                return any(map(reaches, spec.devices or ())) or bool(spec.sharedCounters)
            return reaches(spec)

        return sorted(filter(here, await self.all_slices()), key=lambda s: s.metadata.name)

    async def published(self) -> list[v1.ResourceSlice]:
        """The slices, once there are some with devices. Raises NotApplicable when nothing comes."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (0.2 if self.unpublished else PUBLISH)
        found = await self.slices()
        while not any(s.spec.devices for s in found):
            if loop.time() > deadline:
                self.unpublished = True
                raise NotApplicable("nothing to try it on: the driver has published no device for this node")
            await asyncio.sleep(0.1)
            found = await self.slices()
        self._describe(found)
        return found

    async def devices(self) -> list[tuple[str, v1.Device]]:
        """Pool and device of everything published that may be given out. Raises NotApplicable when nothing is."""
        found = [(s.spec.pool.name, device) for s in await self.published() for device in s.spec.devices or ()]
        usable = [(pool, device) for pool, device in found if not _barred(device)]
        if not usable:
            raise NotApplicable("nothing to try it on: every device is tainted")
        return usable

    def _describe(self, found: Sequence[v1.ResourceSlice]) -> None:
        self.claims.described = {
            (s.spec.pool.name, device.name): device for s in found for device in s.spec.devices or ()
        }

    # Claims.

    @property
    def claims(self) -> Claims:
        """Where the kit's claims come from."""
        if self._claims is None:
            assert self.client is not None
            namespace = f"drakkar-check-{secrets.token_hex(4)}"
            self._claims = Claims(self.client, namespace, self.node_name, self.name)
        return self._claims

    async def claim(self, *devices: tuple[str, str], config: Object | None = None) -> wire.Claim:
        """A claim that holds these devices (pool and name)."""
        return await self.claims.make([Wish(pool, name) for pool, name in devices], config=config)

    async def prepared(self, claim: wire.Claim, version: str = "") -> wire.NodePrepareResourceResponse:
        """The answer for a claim that can be prepared. Raises CheckFailed."""
        answer = (await self.prepare([claim], version))[claim.uid]
        if answer.error:
            raise CheckFailed(f"prepare fails: {answer.error}")
        return answer

    async def undone(self, claim: wire.Claim) -> None:
        """Unprepare and forget a claim. Raises CheckFailed."""
        error = (await self.unprepare([claim]))[claim.uid].error
        if error:
            raise CheckFailed(f"unprepare fails: {error}")
        await self.claims.forget(claim)

    def verify(self, claim: wire.Claim, answer: wire.NodePrepareResourceResponse, version: str = "") -> None:
        """The answer names the claim's devices and nothing else, and a runtime can use it. Raises CheckFailed."""
        version = version or self.dra_version
        problems = judge_answer(self.claims.wanted[claim], answer.devices, shares=version == wire.DRA_V1)
        if problems:
            raise CheckFailed("\n".join(problems))
        if len(self.claims.wanted[claim]) > 1 and not all(d.request_names for d in answer.devices):
            self.remark("a device without request names goes to every container of the claim, whatever it asked for")
        self.edits(answer.devices)

    async def tidy(self) -> None:
        """Undo what a check has left that failed half-way, so that the next ones fail for reasons of their own."""
        left = [*self._claims.wanted] if self._claims is not None else []
        for claim in left:
            with contextlib.suppress(PluginError):
                await self.unprepare([claim])
            await self.claims.forget(claim)


def _barred(device: v1.Device) -> bool:
    return any(taint.effect in ("NoSchedule", "NoExecute") for taint in device.taints or ())
