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
from functools import partial
from typing import Any, Protocol, TypeVar

from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError
from drakkar.api.kinds import RESOURCECLAIM
from drakkar.api.resource import v1
from drakkar.client import Client
from drakkar.driver.claimstatus import ClaimStatus
from drakkar.driver.driver import Driver, Health
from drakkar.driver.health import HealthReports, health_of
from drakkar.driver.podnetwork import PodNetwork, attaches, hook_edits
from drakkar.driver.prepare import Preparer
from drakkar.driver.publication import Publication
from drakkar.driver.settings import NodeSettings
from drakkar.driver.threads import on_loop
from drakkar.plugin import wire
from drakkar.plugin.cdi import ContainerEdits
from drakkar.plugin.checkpoint import Checkpoints, PreparedDevice, boot_id
from drakkar.plugin.failpoints import hit
from drakkar.plugin.grpc_server import SocketServer, dra_services, health_services, registration_service
from drakkar.plugin.sockets import dra_socket, registration_socket, remove_dead

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds after which a driver that does not say how its devices are knows nothing of them.
HEALTH_TIMEOUT = 30.0
#: Threads of the DRA socket: every health stream keeps one.
THREADS = 24


class _Server(Protocol):
    def start(self) -> None: ...

    def stop(self) -> None: ...


class DriverService:
    """Runs one driver on one node until it is cancelled."""

    def __init__(self, driver: Driver, client: Client, clock: Clock, settings: NodeSettings) -> None:
        self.driver = driver
        self.settings = settings
        #: `discovery_failures`, `publication_problems`, `health_failures`, `registration_failures`.
        self.counts: Counter[str] = Counter()
        self.publication = Publication(
            driver, client, clock, node_name=settings.node_name, counts=self.counts, changed=self._report
        )
        #: Set once a kubelet has taken the driver.
        self.registered = asyncio.Event()
        self._client = client
        self._clock = clock
        self._folder = settings.plugin_folder(driver.name)
        self._reports = HealthReports(clock.time)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.preparer: Preparer | None = None
        self._network: PodNetwork | None = None

    def refresh(self) -> None:
        """Discover the devices anew, soon; may be called from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.publication.refresh)

    async def run(self) -> None:
        """Serve until cancelled. Raises OSError when a socket or folder cannot be used."""
        self._loop = asyncio.get_running_loop()
        registry = self.settings.registry
        if not await asyncio.to_thread(registry.is_dir):
            raise FileNotFoundError(
                f"there is no folder {registry}: --kubelet-root must be that of the kubelet or node agent"
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        await self.publication.discover_until_it_works()
        hit("devices-discovered")
        statuses = ClaimStatus(self.driver.name, self.settings.node_name, self._client, self._clock)
        self.preparer = Preparer(
            self.driver,
            lambda namespace, name: self._wait(self._read_claim(namespace, name)),
            Checkpoints(self._folder / "claims", boot=boot_id()),
            folder=self._folder,
            cdi_folder=self.settings.cdi_folder,
            describe=self.publication.device,
            report=lambda claim, entries: self._wait(statuses.write(claim, entries)),
            also=self._hook if attaches(self.driver) else None,
            unprepared=lambda uid: self._network.forget(uid) if self._network is not None else None,
        )
        preparer = self.preparer
        self.driver.records = lambda: {uid: record.devices for uid, record in preparer.known().items()}
        await asyncio.to_thread(self.driver.restore)
        servers = self._servers(self.preparer)
        if attaches(self.driver):
            path = self._folder / "pods.sock"
            self._network = PodNetwork(
                self.driver,
                path,
                preparer.record,
                lambda claim, found: self._tell_network(preparer, statuses, claim, found),
            )
            servers.insert(0, self._network)
        for path in await asyncio.to_thread(remove_dead, self.settings.registry, self._folder, self.driver.name):
            logger.info("removed %s: an instance that was killed left it behind", path)
        try:
            for server in servers:
                await asyncio.to_thread(server.start)
                hit("service-open")
            async with asyncio.TaskGroup() as group:
                group.create_task(self.publication.run(), name=f"{self.driver.name}-slices")
                group.create_task(self._watch_health(self.preparer, statuses), name=f"{self.driver.name}-health")
        finally:
            self._reports.close()
            for server in reversed(servers):
                await asyncio.to_thread(server.stop)
            self.preparer.close()
            if self.settings.withdraw:
                await self.publication.withdraw()

    def _hook(self, uid: str) -> ContainerEdits:
        assert self._network is not None
        return hook_edits(self._network.socket.absolute(), uid)

    def _tell_network(
        self,
        preparer: Preparer,
        statuses: ClaimStatus,
        asked: wire.Claim,
        found: Sequence[tuple[PreparedDevice, v1.NetworkDeviceData]],
    ) -> None:
        for device, data in found:
            preparer.metadata.update(asked.namespace, asked.name, device.poolName, device.deviceName, {}, data)
        claim = self._wait(self._read_claim(asked.namespace, asked.name))
        if claim is None or claim.metadata.uid != asked.uid:
            return
        entries = [
            v1.AllocatedDeviceStatus(
                driver=self.driver.name, pool=d.poolName, device=d.deviceName, shareID=d.shareID, networkData=data
            )
            for d, data in found
        ]
        self._wait(statuses.write(claim, entries))

    def _servers(self, preparer: Preparer) -> list[_Server]:
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
            hit("driver-registered")
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self.registered.set)
        else:
            self.counts["registration_failures"] += 1
            logger.error("the kubelet refused driver %s: %s", self.driver.name, status.error)

    async def _watch_health(self, preparer: Preparer, statuses: ClaimStatus) -> None:
        looking: asyncio.Future[Mapping[str, Health]] | None = None
        while True:
            looking = looking or asyncio.ensure_future(asyncio.to_thread(self.driver.health))
            await asyncio.wait([looking], timeout=HEALTH_TIMEOUT)
            if not looking.done():
                # One thread hangs; another one would hang too. What was said last does not hold for ever.
                self.counts["health_failures"] += 1
                logger.error("driver %s has not said how its devices are for %.0f s", self.driver.name, HEALTH_TIMEOUT)
                found = self._all_unknown(f"the driver has not answered for {HEALTH_TIMEOUT:.0f} s")
            else:
                try:
                    found = looking.result()
                except Exception as error:
                    self.counts["health_failures"] += 1
                    logger.exception("driver %s cannot say how its devices are", self.driver.name)
                    found = self._all_unknown(f"the driver could not look: {error}")
                looking = None
            self.publication.set_health(found)
            self._report()
            await statuses.tell_holders(preparer, partial(health_of, found))
            await self._clock.sleep(self.settings.health_period)

    def _all_unknown(self, why: str) -> dict[str, Health]:
        unknown = Health("Unknown", why)
        return {
            f"{pool.name}/{device.name}": unknown for pool in self.publication.pools.values() for device in pool.devices
        }

    def _report(self) -> None:
        self._reports.set(self.publication.pools.values(), self.publication.health)

    async def _read_claim(self, namespace: str, name: str) -> v1.ResourceClaim | None:
        try:
            return await self._client.get(RESOURCECLAIM, name, namespace)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return on_loop(self._loop, work)
