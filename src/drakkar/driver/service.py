"""A driver at work on one node: sockets for the kubelet, slices for the scheduler, health for everybody.

Order of a start: devices are discovered, the sockets open and the kubelet registers the driver, slices are published.
Order of a stop: the registration socket goes first, calls in flight end, slices stay, because another instance may be
taking over and the kubelet removes them when none does (spec/kubelet-protocol.md sections 2 and 7).

Needs grpcio (the extra `node`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError, UsageError
from drakkar.api.kinds import NODE, RESOURCECLAIM, RESOURCESLICE
from drakkar.api.meta import Object, OwnerReference
from drakkar.api.objects import name_of, uid_of
from drakkar.api.resource import v1
from drakkar.client import Caches, Client
from drakkar.client.events import EventRecorder
from drakkar.client.runner import Runner
from drakkar.client.transport import Unreachable
from drakkar.driver.claimstatus import ClaimStatus
from drakkar.driver.driver import Driver, Health
from drakkar.driver.health import HealthReports, health_of, with_taints
from drakkar.driver.pools import Pool, SliceContent
from drakkar.driver.prepare import Preparer
from drakkar.driver.publisher import SlicePublisher
from drakkar.plugin import wire
from drakkar.plugin.checkpoint import Checkpoints, boot_id
from drakkar.plugin.grpc_server import SocketServer, dra_services, health_services, registration_service
from drakkar.plugin.sockets import dra_socket, registration_socket

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Longest wait in seconds for the API server within a call of the kubelet, which itself gives up after 45.
API_TIMEOUT = 30.0
#: Pause in seconds before something that failed is tried again: first, and longest.
PAUSE, LONGEST_PAUSE = 1.0, 60.0
#: Attribute that carries :attr:`Driver.version`.
VERSION_ATTRIBUTE = "driverVersion"
#: Threads of the DRA socket: every health stream keeps one.
THREADS = 24


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Where a driver runs. `instance_uid` (the UID of its pod) makes rolling upgrades without a gap possible."""

    node_name: str
    kubelet_root: Path = Path("/var/lib/kubelet")
    cdi_folder: Path = Path("/var/run/cdi")
    instance_uid: str = ""
    #: Seconds between two looks at the devices' health.
    health_period: float = 5.0
    #: Remove the driver's slices when it stops, because it is not coming back.
    withdraw: bool = False

    @property
    def registry(self) -> Path:
        """The folder in which a kubelet looks for drivers."""
        return self.kubelet_root / "plugins_registry"

    def plugin_folder(self, driver: str) -> Path:
        """The driver's own folder, shared by all its instances."""
        return self.kubelet_root / "plugins" / driver


class DriverService:
    """Runs one driver until it is cancelled."""

    def __init__(self, driver: Driver, client: Client, clock: Clock, settings: NodeSettings) -> None:
        if not driver.name:
            raise UsageError(f"{type(driver).__name__}.name is empty; it must be the DNS name of the driver")
        self.driver = driver
        self.settings = settings
        self._client = client
        self._clock = clock
        self._folder = settings.plugin_folder(driver.name)
        self._pools: dict[str, Pool] = {}
        self._health: Mapping[str, Health] = {}
        self._reports = HealthReports(clock.time)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wanted = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._node: Object | None = None
        self._publisher: SlicePublisher | None = None
        self._recorder = EventRecorder(client, clock, driver.name, host=settings.node_name)
        #: Set once a kubelet has taken the driver, and once its slices stand in the API.
        self.registered = asyncio.Event()
        self.published = asyncio.Event()
        #: Counters for :func:`drakkar.driver.metrics.render`.
        self.counts: Counter[str] = Counter()
        self.preparer: Preparer | None = None

    def refresh(self) -> None:
        """Discover the devices anew, soon; may be called from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wanted.set)

    async def run(self) -> None:
        """Serve until cancelled. Raises OSError when a socket or folder cannot be used."""
        self._loop = asyncio.get_running_loop()
        self._folder.mkdir(parents=True, exist_ok=True)
        await self._discover_until_it_works()
        statuses = ClaimStatus(self.driver.name, self.settings.node_name, self._client, self._clock)
        self.preparer = Preparer(
            self.driver,
            lambda namespace, name: self._wait(self._read_claim(namespace, name)),
            Checkpoints(self._folder / "claims", boot=boot_id()),
            folder=self._folder,
            cdi_folder=self.settings.cdi_folder,
            describe=self._describe,
            report=lambda claim, entries: self._wait(statuses.write(claim, entries)),
        )
        servers = self._servers(self.preparer)
        try:
            for server in servers:
                await asyncio.to_thread(server.start)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._publish(), name=f"{self.driver.name}-slices")
                group.create_task(self._watch_health(statuses), name=f"{self.driver.name}-health")
        finally:
            self._reports.close()
            for server in reversed(servers):
                await asyncio.to_thread(server.stop)
            self.preparer.close()
            if self.settings.withdraw:
                await self._withdraw()

    def _servers(self, preparer: Preparer) -> list[SocketServer]:
        """First the service, then the registration that points at it."""
        name, uid = self.driver.name, self.settings.instance_uid
        endpoint = dra_socket(self._folder, uid)
        services = dra_services(preparer.prepare, preparer.unprepare) + health_services(self._reports.watch)
        offered = [wire.DRA_V1, wire.DRA_V1BETA1, wire.HEALTH_V1, wire.HEALTH_V1ALPHA1]
        info = wire.PluginInfo(wire.DRA_PLUGIN, name, str(endpoint.absolute()), offered)
        registration = registration_service(lambda: info, self._notified)
        return [
            SocketServer(endpoint, services, threads=THREADS),
            SocketServer(registration_socket(self.settings.registry, name, uid), [registration], threads=2),
        ]

    def _notified(self, status: wire.RegistrationStatus) -> None:
        if status.plugin_registered:
            logger.info("the kubelet registered driver %s", self.driver.name)
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self.registered.set)
        else:
            self.counts["registration_failures"] += 1
            logger.error("the kubelet refused driver %s: %s", self.driver.name, status.error)

    # Devices and slices.

    async def _discover_until_it_works(self) -> None:
        pause = PAUSE
        while not await self._discover():
            await self._clock.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _discover(self) -> bool:
        self._wanted.clear()
        try:
            pools = await asyncio.to_thread(self.driver.pools, self.settings.node_name)
        except Exception:
            self.counts["discovery_failures"] += 1
            logger.exception("driver %s cannot discover its devices; what was known stays published", self.driver.name)
            return False
        for pool in pools:
            if pool.node_name != self.settings.node_name:
                raise UsageError(f"pool {pool.name}: a node's driver publishes only pools of its node")
        self._pools = {pool.name: self._versioned(pool) for pool in pools}
        self._reports.set(self._pools.values(), self._health)
        return True

    def _versioned(self, pool: Pool) -> Pool:
        if not self.driver.version:
            return pool
        version = {VERSION_ATTRIBUTE: v1.DeviceAttribute(version=self.driver.version)}

        def stamped(device: v1.Device) -> v1.Device:
            return msgspec.structs.replace(device, attributes={**version, **(device.attributes or {})})

        slices = tuple(
            SliceContent(tuple(stamped(d) for d in content.devices), content.shared_counters, content.per_device_nodes)
            for content in pool.slices
        )
        return replace(pool, slices=slices)

    def _describe(self, pool: str, device: str) -> v1.Device | None:
        found = self._pools.get(pool)
        if found is None:
            return None
        return next((d for content in found.slices for d in content.devices if d.name == device), None)

    async def _publish(self) -> None:
        node = await self._read_node()
        self._node = node
        owner = OwnerReference(apiVersion="v1", kind="Node", name=name_of(node), uid=uid_of(node), controller=True)
        publisher = SlicePublisher(
            self.driver.name,
            self._desired,
            self._clock,
            owner=owner,
            node_name=self.settings.node_name,
            on_problem=self._problem,
        )
        caches = Caches(self._client)
        runner = Runner(
            self._client,
            caches,
            publisher,
            self._clock,
            recorder=self._recorder,
            on_error=lambda pool, error: self._problem(str(pool), f"pool {pool} cannot be published: {error}"),
        )
        self._publisher = publisher
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(runner.run(), name=f"{self.driver.name}-publisher")
                await runner.ready.wait()
                for pool in self._pools:
                    publisher.trigger(pool)
                group.create_task(self._see_published(publisher), name=f"{self.driver.name}-first")
                while True:
                    await self._wanted.wait()
                    before = set(self._pools)
                    if not await self._discover():
                        self._wanted.set()
                        await self._clock.sleep(PAUSE)
                    for pool in before | set(self._pools):
                        publisher.trigger(pool)
        finally:
            await caches.stop()

    async def _see_published(self, publisher: SlicePublisher) -> None:
        while any(len(publisher.slices(name)) < max(1, len(pool.slices)) for name, pool in self._pools.items()):
            await self._clock.sleep(0.02)
        self.published.set()

    def _desired(self, name: str, slices: Sequence[v1.ResourceSlice]) -> Pool | None:
        pool = self._pools.get(name)
        return None if pool is None else with_taints(self.driver.name, pool, self._health, self.driver.unhealthy)

    def _problem(self, pool: str, message: str) -> None:
        self.counts["publication_problems"] += 1
        logger.error("%s", message)
        if self._node is not None:
            said = self._recorder.record(NODE, self._node, "Warning", "ResourceSlicesNotPublished", message)
            task = asyncio.ensure_future(said)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _withdraw(self) -> None:
        selector = f"spec.driver={self.driver.name},spec.nodeName={self.settings.node_name}"
        try:
            for found in (await self._client.list(RESOURCESLICE, field_selector=selector)).items:
                await self._client.delete(RESOURCESLICE, found.metadata.name)
        except (ApiError, Unreachable) as error:
            logger.error("the slices of driver %s stay: %s", self.driver.name, error)

    # Health.

    async def _watch_health(self, statuses: ClaimStatus) -> None:
        assert self.preparer is not None
        while True:
            before = self._health
            try:
                self._health = await asyncio.to_thread(self.driver.health)
            except Exception as error:
                self.counts["health_failures"] += 1
                logger.exception("driver %s cannot say how its devices are", self.driver.name)
                unknown = Health("Unknown", f"the driver could not look: {error}")
                self._health = {
                    f"{pool.name}/{device.name}": unknown
                    for pool in self._pools.values()
                    for content in pool.slices
                    for device in content.devices
                }
            self._reports.set(self._pools.values(), self._health)
            if self._health != before and self._publisher is not None:
                for pool in self._pools:
                    self._publisher.trigger(pool)
            await statuses.tell_holders(self.preparer, lambda pool, device: health_of(self._health, pool, device))
            await self._clock.sleep(self.settings.health_period)

    # The API, from the loop and from the threads that serve the kubelet.

    async def _read_node(self) -> Object:
        pause = PAUSE
        while True:
            try:
                return await self._client.get(NODE, self.settings.node_name)
            except (ApiError, Unreachable) as error:
                logger.warning(
                    "node %s cannot be read, so nothing is published: %s; again in %.0f s",
                    self.settings.node_name, error, pause,
                )  # fmt: skip
                self.counts["publication_problems"] += 1
            await self._clock.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _read_claim(self, namespace: str, name: str) -> v1.ResourceClaim | None:
        try:
            return await self._client.get(RESOURCECLAIM, name, namespace)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(API_TIMEOUT)
