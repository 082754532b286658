"""The node agent: one node of a cluster, from registration to the end of its pods.

Order of a start: what stands on disk is read, drivers may register, pods that the API does not know any more are ended
and their claims unprepared, slices of the last life are wiped; only then the node joins and says that it is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import ssl
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError, EnvironmentProblem
from drakkar.api.kinds import NODE, POD
from drakkar.api.meta import Object
from drakkar.api.objects import name_of, namespace_of, pod_is_done, uid_of
from drakkar.client.cache import Caches
from drakkar.client.client import Client
from drakkar.client.events import EventRecorder
from drakkar.client.transport import Unreachable
from drakkar.node.agent import machine, metrics, mounts
from drakkar.node.agent.claims import Claims
from drakkar.node.agent.context import Context, Facts, Paths
from drakkar.node.agent.endpoint import Endpoint
from drakkar.node.agent.health import DeviceHealths
from drakkar.node.agent.host import AgentHost
from drakkar.node.agent.network import HostNetwork, Network
from drakkar.node.agent.nodeobject import NodeDescription, label_patch, registration, status_patch
from drakkar.node.agent.plugins import Plugins
from drakkar.node.agent.podfolder import PodFolder
from drakkar.node.agent.runtime import Runtime, pod_of
from drakkar.node.agent.slices import PATIENCE, Slices
from drakkar.node.agent.worker import Worker
from drakkar.node.heartbeat import Beat, Heartbeats
from drakkar.plugin import wire
from drakkar.plugin.cdi import SpecFolders
from drakkar.plugin.checkpoint import CheckpointError, Checkpoints, boot_id

logger = logging.getLogger(__name__)

#: Seconds between two sweeps for claims whose pods are gone, and between two writes of the node's status.
_SWEEP, _STATUS = 60.0, 300.0
#: Seconds before joining is tried again.
_REJOIN = 1.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How an agent runs. Times are in seconds."""

    node: str
    root: Path
    address: str
    #: Where containers reach the API server.
    api: tuple[str, int]
    cdi_folders: Sequence[Path]
    port: int = 0
    listen: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    lease_duration: float = 40.0
    lease_period: float = 10.0
    slice_patience: float = PATIENCE


class Agent:
    """Runs until it is cancelled; containers go on and are found again by the next agent on the same root folder."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        settings: Settings,
        runtime: Runtime,
        tls: ssl.SSLContext,
        *,
        network: Network | None = None,
    ):
        self._client = client
        self._clock = clock
        self.settings = settings
        self.paths = Paths(settings.root)
        self._slices = Slices(client, clock, settings.node, patience=settings.slice_patience)
        self.healths = DeviceHealths(clock.monotonic)
        self.plugins = Plugins(self.paths.registry, clock, health=self._health_heard, usable=self._usable)
        self._runtime = runtime
        self._tls = tls
        self._network = network or HostNetwork(settings.address, settings.api)
        self._workers: dict[str, Worker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._beats = Heartbeats(
            client,
            clock,
            period=settings.lease_period,
            duration=settings.lease_duration,
            expired=lambda _: self._rejoin.set(),
        )
        self._beat = Beat(settings.node)
        self._rejoin = asyncio.Event()
        self.claims: Claims | None = None
        self._context: Context | None = None
        self._about: NodeDescription | None = None
        #: Set once the node has said that it is ready.
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Raises EnvironmentProblem when the root folder or the port cannot be used."""
        with contextlib.ExitStack() as stack:
            try:
                self.paths.make()
                stack.enter_context(_alone(self.settings.root))
                for unfinished in self.paths.claims.glob(".*.new"):
                    # Written when an agent was killed; what counts is the file under its right name.
                    unfinished.unlink()
                self.claims = Claims(self._client, self.plugins, Checkpoints(self.paths.claims, boot=boot_id()))
                self.claims.released = self._wake_waiting
                self.claims.load()
            except (OSError, CheckpointError) as error:
                raise EnvironmentProblem(f"--root {self.settings.root}: {error}") from None
            await self._run(self.claims)

    async def _run(self, claims: Claims) -> None:
        context = self._context = self._make_context(claims)
        host = AgentHost(self._find, lambda: list(self._workers.values()), self.paths)
        endpoint = Endpoint(host, self._tls, clock=self._clock.time, metrics=lambda: metrics.render(self))
        try:
            await endpoint.start(self.settings.listen or self.settings.address, self.settings.port)
        except OSError as error:
            raise EnvironmentProblem(
                f"the agent cannot listen at port {self.settings.port}: {error.strerror}"
            ) from None
        self._about = NodeDescription(
            name=self.settings.node,
            address=self.settings.address,
            port=endpoint.port,
            labels=self.settings.labels,
            capacity=context.facts.allocatable,
            info=machine.info(self._runtime.name, self._runtime.version),
            architecture=machine.architecture(),
        )
        caches = Caches(self._client)
        try:
            await self._network.open()
            async with asyncio.TaskGroup() as group:
                group.create_task(self.plugins.run(), name="plugins")
                await self._end_unknown(context)
                await self._slices.wipe()
                pods = caches.of(POD, field_selector=f"spec.nodeName={self.settings.node}")
                pods.subscribe(self._pod_changed)
                await caches.start()
                await caches.synced()
                group.create_task(self._stay_joined(), name="join")
                group.create_task(self._beats.run(), name="lease")
                group.create_task(self._sweep(), name="sweep")
                group.create_task(self._expire_health(), name="health")
        finally:
            await caches.stop()
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            await self._slices.close()
            await self._network.close()
            await endpoint.close()

    def _make_context(self, claims: Claims) -> Context:
        settings = self.settings
        return Context(
            host_ip=settings.address,
            client=self._client,
            clock=self._clock,
            recorder=EventRecorder(self._client, self._clock, "kubelet", host=settings.node),
            paths=self.paths,
            facts=Facts(machine.capacity(), settings.api),
            runtime=self._runtime,
            network=self._network,
            claims=claims,
            healths=self.healths,
            specs=SpecFolders(settings.cdi_folders),
        )

    # Pods.

    def pods(self) -> int:
        """How many pods the agent looks after."""
        return len(self._workers)

    def _find(self, namespace: str, name: str) -> Worker | None:
        for worker in self._workers.values():
            if (namespace_of(worker.pod), name_of(worker.pod)) == (namespace, name) and not worker.vanished:
                return worker
        return None

    def _pod_changed(self, event_type: str, old: Object | None, new: Object) -> None:
        uid = uid_of(new)
        worker = self._workers.get(uid)
        if event_type == "DELETED":
            if worker is not None:
                worker.vanish()
            return
        if worker is not None:
            worker.update(new)
        elif not pod_is_done(new) or self.paths.pod(uid).exists():
            self._start(new)

    def _start(self, pod: Object) -> Worker:
        assert self._context is not None
        worker = Worker(self._context, pod, self._gone)
        self._workers[worker.uid] = worker
        task = asyncio.create_task(worker.run(), name=f"pod-{namespace_of(pod)}/{name_of(pod)}")
        self._tasks[worker.uid] = task
        task.add_done_callback(_report)
        return worker

    def _gone(self, worker: Worker) -> None:
        self._workers.pop(worker.uid, None)
        self._tasks.pop(worker.uid, None)

    async def _end_unknown(self, context: Context) -> None:
        """End what the API does not know any more, before anybody may rely on this node again."""
        while True:
            try:
                known = await self._known_pods()
                break
            except (ApiError, Unreachable) as error:
                logger.warning("cannot list the pods of node %s: %s", self.settings.node, error)
                await self._clock.sleep(_REJOIN)
        ending: list[asyncio.Task[bool]] = []
        for folder in context.paths.pods.iterdir():
            if folder.name not in known:
                pod = PodFolder(folder).read_pod()
                if pod is not None:
                    worker = self._start(pod)
                    worker.vanish()
                    ending.append(asyncio.create_task(worker.quiet.wait(), name=f"end-{worker.uid}"))
        # Not until all is unprepared: a driver that has to do it may be a pod of this node, which needs the node.
        await asyncio.gather(*ending)
        await self._remove_nameless(context, known)
        assert self.claims is not None
        for problem in await self.claims.sweep(known):
            logger.warning("left over from an earlier life: %s", problem)

    async def _known_pods(self) -> set[str]:
        """UIDs of the pods that the API has on this node. Raises ApiError, Unreachable."""
        listed = await self._client.list(POD, field_selector=f"spec.nodeName={self.settings.node}")
        return {uid_of(pod) for pod in listed.items}

    async def _remove_nameless(self, context: Context, known: Collection[str]) -> None:
        """Containers and folders of pods of which nothing else is left."""
        for identity in await self._runtime.leftovers():
            uid = pod_of(identity)
            if uid not in known:
                await self._runtime.remove(identity, context.paths.pod(uid))
        for folder in context.paths.pods.iterdir():
            if folder.name not in known and folder.name not in self._workers:
                logger.info("folder %s belongs to no pod any more; removed", folder)
                await self._network.detach(folder.name)
                await asyncio.to_thread(mounts.discard, folder)

    async def _sweep(self) -> None:
        assert self.claims is not None
        while True:
            await self._clock.sleep(_SWEEP)
            for problem in await self.claims.sweep(self._workers.keys()):
                logger.warning("claims of pods that are gone: %s", problem)

    # The node.

    async def _stay_joined(self) -> None:
        """Join, and join again whenever the lease ran out; say from time to time how the node is."""
        joined = False
        while True:
            self._rejoin.clear()
            try:
                if not joined or not self._beats.is_current(self._beat):
                    await self._join()
                    joined = True
                else:
                    await self._write_status()
            except (ApiError, Unreachable) as error:
                logger.warning("node %s cannot join: %s", self.settings.node, error)
                joined = False
                await self._clock.sleep(_REJOIN)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STATUS):
                    await self._rejoin.wait()

    async def _join(self) -> None:
        assert self._about is not None
        await self._end_lost()
        node = await self._node()
        await self._beats.join(self._beat, node)
        patch = label_patch(node, self._about)
        if patch is not None:
            node = await self._client.patch(NODE, self._about.name, None, patch.body)
        await self._write_status(node)
        self.ready.set()

    async def _end_lost(self) -> None:
        """End pods that were given away while this node was not heard of, before anybody relies on it again."""
        known = await self._known_pods()
        lost = [worker for worker in self._workers.values() if worker.uid not in known]
        for worker in lost:
            worker.vanish()
        await asyncio.gather(*(worker.quiet.wait() for worker in lost))

    async def _node(self) -> Object:
        assert self._about is not None
        try:
            return await self._client.get(NODE, self._about.name)
        except ApiError as error:
            if error.code != 404:
                raise
        return await self._client.create(NODE, registration(self._about))

    async def _write_status(self, node: Object | None = None) -> None:
        assert self._about is not None
        node = node or await self._node()
        patch = status_patch(node, self._about, self._clock.time(), ready=True, words="the node agent is at work")
        await self._client.patch(NODE, patch.name, None, patch.body, type="strategic", subresource="status")

    # Devices.

    def _usable(self, driver: str, usable: bool) -> None:
        self._slices.usable(driver, usable)
        if usable:
            self._wake_waiting()

    def _wake_waiting(self) -> None:
        """Pods that could not be prepared, or not be unprepared, need not wait any longer."""
        for worker in list(self._workers.values()):
            if worker.waiting:
                worker.wake()

    def _health_heard(self, driver: str, response: wire.NodeWatchResourcesResponse | None) -> None:
        self.healths.heard(driver, response)
        assert self.claims is not None
        for uid in self.claims.pods_with(driver):
            worker = self._workers.get(uid)
            if worker is not None:
                worker.wake()

    async def _expire_health(self) -> None:
        """Wake pods when a report has become too old, since nobody else would."""
        while True:
            due = self.healths.expiry()
            await self._clock.sleep(_REJOIN if due is None else max(0.1, due - self._clock.monotonic() + 0.01))
            if due is not None and self.healths.expiry() != due:
                for worker in list(self._workers.values()):
                    worker.wake()


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Two agents on one root would each end the other's pods. Raises OSError."""
    with (root / "agent.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError("another agent runs on this folder; stop it, or give this one a --root of its own") from None
        yield


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("%s ended: its pod is not looked after any more", task.get_name(), exc_info=task.exception())
