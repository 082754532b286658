"""The composition root: which parts make up a plane, and how they are wired.

All parts of one process talk to the API server over the in-memory transport, with tokens
of their own, so authentication and authorization are the same as over TLS.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from drakkar.api.errors import ApiError, DrakkarError, EnvironmentProblem, UsageError
from drakkar.api.features import Features
from drakkar.api.kinds import NODE
from drakkar.apiserver import ApiServer, Pki, Serving, open_pki, open_server, serve, write_kubeconfig
from drakkar.apiserver.audit import AuditLog, Policy
from drakkar.apiserver.auth import static_tokens
from drakkar.apiserver.authority import open_shared_pki
from drakkar.apiserver.limits import Limits
from drakkar.apiserver.streaming.agents import Agents
from drakkar.apiserver.tokens import signing_key
from drakkar.cli.backup import ETCD_NOTE
from drakkar.cli.process import settle
from drakkar.client import Client, MemoryTransport
from drakkar.client.clock import SystemClock
from drakkar.store import SharedBackend

if TYPE_CHECKING:
    from drakkar.node.hollow import HollowFleet
    from drakkar.sim.fleets import Fleet

#: Longest time in seconds that a plane waits for the nodes of its fleet before it says that it is up.
NODES_REGISTERED_IN = 5.0
#: Part → (user, groups): what each part may do is decided by these names.
IDENTITIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "scheduler": ("system:kube-scheduler", ()),
    "controllers": ("system:kube-controller-manager", ()),
    "hollow": ("drakkar:hollow-nodes", ("drakkar:hollow-nodes",)),
    "driver": ("drakkar:driver:tpu", ("drakkar:drivers",)),
    "admin": ("drakkar:admin", ("system:masters",)),
}


@dataclass(frozen=True, kw_only=True)
class PlaneOptions:
    """What a plane is made of. Times are in seconds."""

    data: Path
    fleet: str | None = None
    store: str = "sqlite"
    sync: str = "full"
    port: int = 0
    listen: str = "127.0.0.1"
    scheduler: bool = True
    controllers: bool = True
    driver: bool = True
    own_process: tuple[str, ...] = ()
    lease_duration: float = 40
    lease_period: float = 10
    node_grace: float = 40
    #: None: everything on.
    features: Features | None = None
    token_file: str | None = None
    #: Requests in progress and their time.
    limits: Limits = field(default_factory=Limits)
    audit_log: str | None = None
    audit_policy: str | None = None
    #: Size in MiB of one audit log, and how many are kept beside the current one.
    audit_size: int = 100
    audit_backups: int = 10

    @property
    def etcd(self) -> bool:
        """Whether other planes may work on the same store."""
        return self.store.startswith("etcd://")

    @staticmethod
    def of(args: argparse.Namespace, data: Path, fleet: str | None, own_process: tuple[str, ...] = ()) -> PlaneOptions:
        """Options from a command line; ``demo`` has only some of the arguments of ``up``."""
        return PlaneOptions(
            data=data,
            fleet=fleet,
            store=getattr(args, "store", "sqlite"),
            sync=args.sync,
            port=args.port,
            listen=getattr(args, "listen", "127.0.0.1"),
            scheduler=not getattr(args, "no_scheduler", False),
            controllers=not getattr(args, "no_controllers", False),
            driver=not getattr(args, "no_driver", False),
            own_process=own_process or tuple(getattr(args, "own_process", ())),
            lease_duration=args.lease_duration,
            lease_period=args.lease_period,
            node_grace=args.node_grace,
            features=_features(args),
            token_file=getattr(args, "token_auth_file", None),
            limits=_limits(args),
            audit_log=getattr(args, "audit_log", None),
            audit_policy=getattr(args, "audit_policy", None),
            audit_size=getattr(args, "audit_log_maxsize", 100),
            audit_backups=getattr(args, "audit_log_maxbackup", 10),
        )


def _features(args: argparse.Namespace) -> Features | None:
    """The gates that the command line asks for; None where it says nothing."""
    profile, gates = getattr(args, "feature_profile", "drakkar"), getattr(args, "feature_gates", "")
    if profile == "drakkar" and not gates:
        return None
    base = Features.drakkar() if profile == "drakkar" else Features.profile(profile)
    try:
        return Features.from_flag(gates, base)
    except UsageError as error:
        raise UsageError(f"--feature-gates {gates}: {error}") from None


def _audit(options: PlaneOptions) -> AuditLog | None:
    """The audit log that the options ask for. Raises UsageError or EnvironmentProblem."""
    if options.audit_log is None:
        if options.audit_policy is not None:
            raise UsageError("--audit-policy needs --audit-log FILE, which says where to write")
        return None
    policy = Policy() if options.audit_policy is None else Policy.read(options.audit_policy)
    return AuditLog(
        options.audit_log,
        policy,
        SystemClock().time,
        max_size=options.audit_size,
        max_backups=options.audit_backups,
    )


def _limits(args: argparse.Namespace) -> Limits:
    """Those of ``up``; ``demo`` has the usual ones."""
    usual = Limits()
    return Limits(
        reading=getattr(args, "max_requests_inflight", usual.reading),
        writing=getattr(args, "max_mutating_requests_inflight", usual.writing),
        seconds=getattr(args, "request_timeout", usual.seconds),
    )


@contextlib.contextmanager
def data_folder(given: str | None) -> Iterator[Path]:
    """The given data folder, made when missing, or a temporary one that is removed at the end."""
    if given is None:
        folder = Path(tempfile.mkdtemp(prefix="drakkar-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    folder = Path(given).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise EnvironmentProblem(f"--data {given}: cannot create the folder: {error.strerror}") from error
    yield folder


class Plane:
    """An embedded control plane; runs as long as the ``async with`` block."""

    def __init__(self, options: PlaneOptions):
        self.options = options
        self.kubeconfig = options.data / "kubeconfig"
        #: Hollow nodes that run in processes of their own, by name: process id.
        self.own_processes: dict[str, int] = {}
        self.url = ""
        self._stack = contextlib.AsyncExitStack()
        self._failed: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Plane:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        settle()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def own_process(self, node: str) -> int:
        """Process id of a hollow node that runs in a process of its own. Raises DrakkarError."""
        if node not in self.own_processes:
            raise DrakkarError(f"node {node} does not run in a process of its own")
        return self.own_processes[node]

    async def until(self, stop: asyncio.Event) -> None:
        """Until ``stop`` is set. Raises DrakkarError when a part of the plane ended before."""
        assert self._failed is not None
        waiting = asyncio.create_task(stop.wait(), name="until-stopped")
        try:
            await asyncio.wait({waiting, self._failed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._failed.done():
            self._failed.result()

    async def _start(self) -> None:
        options = self.options
        self._failed = asyncio.get_running_loop().create_future()
        fleet = _fleet(options)
        if options.store not in ("sqlite", "memory") and not options.etcd:
            raise UsageError(f"--store {options.store}: not supported; use sqlite, memory or etcd://host:port")
        server = await open_server(
            None if options.store == "memory" else options.data,
            clock=SystemClock(),
            store=options.store if options.etcd else None,
            synchronous=options.sync.upper(),
            features=options.features,
            on_failure=lambda error: self._fail("the store", error),
            limits=options.limits,
        )
        self._stack.push_async_callback(server.close)
        server.audit = _audit(options)
        # Only now is the folder known to be ours alone.
        _keep_fleet(options)
        _keep_store(options)
        pki = self._pki(server)
        server.accounts.key = signing_key(pki.folder / "ca.key")
        if options.token_file is not None:
            server.authenticator.sources.append(static_tokens(options.token_file))
        server.agents = Agents(pki.agents_context())
        await self._listen(server, pki)
        clients = {
            part: Client(MemoryTransport(server.handle, server.token(user, *groups)))
            for part, (user, groups) in IDENTITIES.items()
        }
        for name, part in _parts(options, clients, fleet, pki):
            self._run(name, part)
        for name in options.own_process:
            await self._spawn_hollow(name)
        if fleet is not None:
            await self._registered(clients["admin"], len(fleet.nodes()))

    async def _registered(self, client: Client, nodes: int) -> None:
        """Until so many nodes are there, or that takes long: whoever reads that the plane is up looks for them."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + NODES_REGISTERED_IN
        while loop.time() < deadline and len((await client.list(NODE)).items) < nodes:
            await asyncio.sleep(0.05)

    def _pki(self, server: ApiServer) -> Pki:
        folder, hosts = self.options.data / "pki", (self.options.listen,)
        if isinstance(server.backend, SharedBackend):
            return open_shared_pki(folder, server.backend, hosts)
        return open_pki(folder, hosts)

    async def _listen(self, server: ApiServer, pki: Pki) -> None:
        host = self.options.listen
        wished = self.options.port or _remembered_port(self.options.data)
        try:
            serving: Serving = await serve(server, host=host, port=wished, pki=pki)
        except EnvironmentProblem:
            if self.options.port or not wished:
                raise
            # The port of the last run is taken; nobody asked for it by name.
            serving = await serve(server, host=host, port=0, pki=pki)
        self._stack.push_async_callback(serving.close)
        (self.options.data / "port").write_text(str(serving.port))
        self.url = serving.url
        await server.publish(host, serving.port)
        write_kubeconfig(self.kubeconfig, self.url, pki, user="drakkar:admin", groups=("system:masters",))

    def _run(self, name: str, part: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(part, name=name)

        def ended(done: asyncio.Task[None]) -> None:
            if not done.cancelled():
                self._fail(name, done.exception())

        async def stop() -> None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

        task.add_done_callback(ended)
        self._stack.push_async_callback(stop)

    def _fail(self, name: str, error: BaseException | None) -> None:
        assert self._failed is not None
        if not self._failed.done():
            self._failed.set_exception(DrakkarError(f"{name} ended: {error!r}"))

    async def _spawn_hollow(self, name: str) -> None:
        options = self.options
        command = [
            sys.executable,
            "-m",
            "drakkar.cli",
            "node",
            "hollow",
            name,
            "--fleet",
            str(options.data / "fleet.yaml"),
        ]
        command += ["--lease-duration", str(options.lease_duration), "--lease-period", str(options.lease_period)]
        command += ["--kubeconfig", str(self.kubeconfig), "--end-with-parent"]
        # The pipe is never written to: it closes when this process is gone, even after kill -9.
        process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
        self.own_processes[name] = process.pid

        async def stop() -> None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

        self._stack.push_async_callback(stop)


def _parts(
    options: PlaneOptions, clients: dict[str, Client], fleet: Fleet | None, pki: Pki
) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
    """The parts to run beside the API server; imported here, since most need time to load."""
    clock = SystemClock()
    if fleet is not None:
        from drakkar.node.hollow import HollowFleet

        nodes = [node for node in fleet.nodes() if node["metadata"]["name"] not in options.own_process]
        hollow = HollowFleet(
            clients["hollow"], clock, nodes, lease_period=options.lease_period, lease_duration=options.lease_duration
        )
        yield "hollow nodes", _hollow(hollow, pki)
    if options.controllers:
        from drakkar.controllers import Controllers, ControllerSettings

        settings = ControllerSettings(
            node_grace=options.node_grace,
            lease_period=options.lease_period,
            loss_by_silence=True,
            pod_groups=True,
            root_ca=(options.data / "pki" / "ca.crt").read_text(),
        )

        # Several servers may do this: whoever comes second meets a conflict, or a certificate.
        yield "certificates", _certificates(clients["controllers"], pki)

        def controllers() -> Coroutine[Any, Any, None]:
            return Controllers(clients["controllers"], clock, settings=settings).run()

        yield "controllers", _alone(options, clients["controllers"], "kube-controller-manager", controllers)
    if fleet is not None and options.driver and "tpu" in fleet.profiles():
        from drakkar.drivers.tpu import TpuDriver

        yield "tpu driver", TpuDriver(clients["driver"], clock).run()
    if fleet is not None and fleet.resource_slices():
        yield "recorded slices", _publish_recorded(clients["admin"], fleet)
    if options.scheduler:
        from drakkar.scheduler import Scheduler

        def scheduler() -> Coroutine[Any, Any, None]:
            return Scheduler(clients["scheduler"], clock).run()

        yield "scheduler", _alone(options, clients["scheduler"], "kube-scheduler", scheduler)


async def _alone(
    options: PlaneOptions, client: Client, lease: str, work: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Does what only one of the planes on a store may do; each time it comes to lead, with a new state."""
    if options.etcd:
        from drakkar.client import Election

        await Election(client, SystemClock(), lease, f"{options.listen}_{uuid.uuid4()}").run(work)
    else:
        await work()


async def _certificates(client: Client, pki: Pki) -> None:
    """Signs what nodes ask for; here and not among the controllers, since it needs the key of the authority."""
    from drakkar.client import Caches, Runner
    from drakkar.controllers.certificates import Certificates

    clock = SystemClock()
    caches = Caches(client)

    async def is_there(node: str) -> bool:
        try:
            await client.get(NODE, node)
        except ApiError as error:
            if error.code != 404:
                raise
            return False
        return True

    try:
        await Runner(client, caches, Certificates(clock, pki.sign, is_there, pki.hosts()), clock).run()
    finally:
        await caches.stop()


async def _hollow(fleet: HollowFleet, pki: Pki) -> None:
    """Hollow nodes and the endpoint that they share, for logs and the truth about exec."""
    from drakkar.node.agent.endpoint import Endpoint
    from drakkar.node.hollow_nodes import NodeEndpoint

    tls = pki.agent_context("drakkar:hollow-nodes", ("localhost", "127.0.0.1", "::1"))
    endpoint = Endpoint(fleet.host(), tls, clock=SystemClock().time)
    await endpoint.start()
    fleet.endpoint = NodeEndpoint("localhost", endpoint.port)
    try:
        await fleet.run()
    finally:
        await endpoint.close()


async def _publish_recorded(client: Client, fleet: Fleet) -> None:
    """Create the slices that a fleet file holds, then idle: parts of a plane do not end by themselves."""
    from drakkar.cli.manifests import apply

    for item in fleet.resource_slices():
        await apply(client, item)
    await asyncio.Event().wait()


def _fleet(options: PlaneOptions) -> Fleet | None:
    """The fleet asked for, else the one this data folder was started with before."""
    from drakkar.sim.fleets import load_fleet

    kept = options.data / "fleet.yaml"
    if options.fleet is not None:
        fleet = load_fleet(options.fleet)
    elif kept.exists():
        fleet = load_fleet(kept)
    else:
        fleet = None
    unknown = set(options.own_process) - set(fleet.node_names() if fleet else ())
    if unknown:
        raise UsageError(f"--own-process {', '.join(sorted(unknown))}: no such node in the fleet")
    return fleet


def _keep_fleet(options: PlaneOptions) -> None:
    """Remember the fleet, so that a restart on the same data needs no ``--fleet``."""
    from drakkar.sim.fleets import fleet_file

    if options.fleet is not None:
        (options.data / "fleet.yaml").write_bytes(fleet_file(options.fleet).read_bytes())


def _keep_store(options: PlaneOptions) -> None:
    """Leave word for ``drakkar backup`` that the objects of this folder are in etcd."""
    note = options.data / ETCD_NOTE
    if options.etcd:
        note.write_text(options.store)
    else:
        note.unlink(missing_ok=True)


def _remembered_port(data: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int((data / "port").read_text())
    return 0


@contextlib.asynccontextmanager
async def case_plane() -> AsyncIterator[Client]:
    """A plane in memory without nodes of its own, for cases: API server, claim controllers, scheduler."""
    from drakkar.controllers import Controllers, ControllerSettings
    from drakkar.scheduler import Scheduler

    clock = SystemClock()
    server = await open_server(None, clock=clock)

    def client(part: str) -> Client:
        user, groups = IDENTITIES[part]
        return Client(MemoryTransport(server.handle, server.token(user, *groups)))

    # The controllers that make and clear what pods and their claims need.
    only, settings = {"claims", "tainteviction", "podgroups"}, ControllerSettings(pod_groups=True)
    parts = [
        asyncio.create_task(Controllers(client("controllers"), clock, only=only, settings=settings).run()),
        asyncio.create_task(Scheduler(client("scheduler"), clock).run()),
    ]
    try:
        yield client("admin")
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        await server.close()
