"""Keeps what a driver discovers published, as it changes: the pools of one node, or those reached over the network."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError, UsageError
from drakkar.api.formats import dns_subdomain
from drakkar.api.kinds import NODE, RESOURCESLICE
from drakkar.api.meta import Object, OwnerReference
from drakkar.api.objects import name_of, uid_of
from drakkar.api.resource import v1
from drakkar.client import Caches, Client
from drakkar.client.events import EventRecorder
from drakkar.client.runner import Runner
from drakkar.client.transport import Unreachable
from drakkar.driver.driver import Driver, Health
from drakkar.driver.gates import probe_of
from drakkar.driver.health import health_of, with_taints
from drakkar.driver.pools import Pool
from drakkar.driver.publisher import SlicePublisher

logger = logging.getLogger(__name__)

#: Pause in seconds before something that failed is tried again: first, and longest.
PAUSE, LONGEST_PAUSE = 1.0, 60.0
#: Attribute that carries :attr:`Driver.version`.
VERSION_ATTRIBUTE = "driverVersion"
#: Longest name of a driver in bytes: `spec.driver` of a slice.
LONGEST_NAME = 63


def name_problems(name: str) -> str:
    """What keeps a text from being the name of a driver, in words; upper case is let through, as the API does."""
    too_long = (f"may have {LONGEST_NAME} bytes at most",) if len(name) > LONGEST_NAME else ()
    return "; ".join(dns_subdomain(name.lower()) + too_long)


class Publication:
    """The pools of `driver` at work; with `node_name` empty, its `cluster_pools`.

    `counts` gets `discovery_failures` and `publication_problems`; `changed` is called after every discovery.
    """

    def __init__(
        self,
        driver: Driver,
        client: Client,
        clock: Clock,
        *,
        node_name: str,
        counts: Counter[str],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        if wrong := name_problems(driver.name):
            raise UsageError(f"{type(driver).__name__}.name is {driver.name!r}, no name of a driver: {wrong}")
        self.pools: dict[str, Pool] = {}
        self.health: Mapping[str, Health] = {}
        #: Set once the slices stand in the API.
        self.published = asyncio.Event()
        self._driver = driver
        self._client = client
        self._clock = clock
        self._node_name = node_name
        self._counts = counts
        self._changed = changed
        # Pools that have been seen in the API, whole.
        self._standing: set[str] = set()
        self._wanted = asyncio.Event()
        self._node: Object | None = None
        self._publisher: SlicePublisher | None = None
        self._recorder = EventRecorder(client, clock, driver.name, host=node_name)
        self._saying: set[asyncio.Task[None]] = set()

    def refresh(self) -> None:
        """Discover anew, soon; to be called in the event loop."""
        self._wanted.set()

    def set_health(self, found: Mapping[str, Health]) -> None:
        """Taint devices accordingly."""
        if found == self.health:
            return
        self.health = found
        if self._publisher is not None:
            for pool in self.pools:
                self._publisher.trigger(pool)

    def states(self) -> Counter[str]:
        """How many devices are in which state of health."""
        return Counter(
            health_of(self.health, pool.name, device.name).state
            for pool in self.pools.values()
            for device in pool.devices
        )

    def device(self, pool: str, name: str) -> v1.Device | None:
        """A device as it is described now."""
        found = self.pools.get(pool)
        if found is None:
            return None
        return next((described for described in found.devices if described.name == name), None)

    async def discover_until_it_works(self) -> None:
        """The first discovery. Raises UsageError when pools are not the driver's to publish."""
        pause = PAUSE
        while not await self._discover():
            await self._clock.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def run(self) -> None:
        """Publish until cancelled."""
        owner: OwnerReference | None = None
        if self._node_name:
            self._node = node = await self._read_node()
            owner = OwnerReference(apiVersion="v1", kind="Node", name=name_of(node), uid=uid_of(node), controller=True)
        publisher = SlicePublisher(
            self._driver.name,
            self._desired,
            self._clock,
            owner=owner,
            node_name=self._node_name,
            on_problem=self._problem,
            probe=probe_of(self._client),
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
                group.create_task(runner.run(), name=f"{self._driver.name}-publisher")
                await runner.ready.wait()
                for pool in self.pools:
                    publisher.trigger(pool)
                self._look()  # There may be no pools at all.
                while True:
                    await self._wanted.wait()
                    before = set(self.pools)
                    if not await self._discover():
                        self._wanted.set()
                        await self._clock.sleep(PAUSE)
                    for pool in before | set(self.pools):
                        publisher.trigger(pool)
        finally:
            self._publisher = None
            await caches.stop()

    async def withdraw(self) -> None:
        """Remove the slices, because the driver is not coming back."""
        selector = f"spec.driver={self._driver.name},spec.nodeName={self._node_name}"
        try:
            for found in (await self._client.list(RESOURCESLICE, field_selector=selector)).items:
                await self._client.delete(RESOURCESLICE, found.metadata.name)
        except (ApiError, Unreachable) as error:
            logger.error("the slices of driver %s stay: %s", self._driver.name, error)

    async def _discover(self) -> bool:
        self._wanted.clear()
        node = self._node_name
        try:
            pools = await asyncio.to_thread(lambda: self._driver.pools(node) if node else self._driver.cluster_pools())
        except Exception:
            self._counts["discovery_failures"] += 1
            logger.exception("driver %s cannot discover its devices; what was known stays published", self._driver.name)
            return False
        for pool in pools:
            if (pool.node_name or "") != node:
                where = f"of node {node}" if node else "that belong to no node"
                raise UsageError(
                    f"pool {pool.name} of driver {self._driver.name}: only pools {where} are published here"
                )
        self.pools = {pool.name: self._versioned(pool) for pool in pools}
        self._changed()
        return True

    def _versioned(self, pool: Pool) -> Pool:
        if not self._driver.version:
            return pool
        version = {VERSION_ATTRIBUTE: v1.DeviceAttribute(version=self._driver.version)}

        def stamped(device: v1.Device) -> v1.Device:
            return msgspec.structs.replace(device, attributes={**version, **(device.attributes or {})})

        return pool.with_devices(stamped)

    def _desired(self, name: str, slices: Sequence[v1.ResourceSlice]) -> Pool | None:
        pool = self.pools.get(name)
        if pool is None:
            return None
        if len(slices) >= max(1, len(pool.slices)):
            self._standing.add(name)
            self._look()
        return with_taints(self._driver.name, pool, self.health, self._driver.unhealthy)

    def _look(self) -> None:
        """Note when every pool stands in the API."""
        if self._standing >= self.pools.keys():
            self.published.set()

    def _problem(self, pool: str, message: str) -> None:
        self._counts["publication_problems"] += 1
        logger.error("%s", message)
        if self._node is not None:
            said = self._recorder.record(NODE, self._node, "Warning", "ResourceSlicesNotPublished", message)
            task = asyncio.ensure_future(said)
            self._saying.add(task)
            task.add_done_callback(self._saying.discard)

    async def _read_node(self) -> Object:
        pause = PAUSE
        while True:
            try:
                return await self._client.get(NODE, self._node_name)
            except (ApiError, Unreachable) as error:
                self._counts["publication_problems"] += 1
                text = "node %s cannot be read, so nothing is published: %s; again in %.0f s"
                logger.warning(text, self._node_name, error, pause)
            await self._clock.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
