"""Drivers on this node: found by their registration sockets, called by their newest living instance.

Follows spec/kubelet-protocol.md sections 2, 3, 6 and 7: several instances of a driver may be registered (an upgrade),
the newest connected one is called; a failing registration is tried again while the socket is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import stat
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from drakkar.api.clock import Clock
from drakkar.api.formats import dns_subdomain
from drakkar.node.agent.folder import FolderWatch
from drakkar.plugin import wire
from drakkar.plugin.grpc_client import CALL_TIMEOUT, PluginError, SocketClient, choose_dra, choose_health

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds before a failed registration is tried again, and before a health stream that ended is opened anew.
RETRY, HEALTH_RETRY = 1.0, 5.0
#: Characters of a driver's name (``DriverNameMaxLength`` of the API).
_LONGEST_NAME = 63
#: Seconds between two looks at whether drivers are connected.
_LOOK = 1.0

#: Hears of a driver's health: the driver, and its complete list, or None when nothing is known any more.
HealthHeard = Callable[[str, wire.NodeWatchResourcesResponse | None], None]
#: Hears whether a driver can be called, whenever that changes.
UsableHeard = Callable[[str, bool], None]

_Key = tuple[Path, int, int]


@dataclass(eq=False)
class Instance:
    """One registered process of a driver."""

    driver: str
    registration: Path
    client: SocketClient
    service: str
    health: str | None
    tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])


class Plugins:
    """The drivers whose sockets lie in ``registry``; :meth:`run` keeps them known."""

    def __init__(self, registry: Path, clock: Clock, *, health: HealthHeard, usable: UsableHeard):
        self._registry = registry
        self._clock = clock
        self._health = health
        self._usable = usable
        self._instances: dict[str, list[Instance]] = {}
        self._known: dict[_Key, asyncio.Task[None]] = {}
        self._by_key: dict[_Key, Instance] = {}
        self._told: dict[str, bool] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def drivers(self) -> list[str]:
        """Names of the registered drivers."""
        return sorted(self._instances)

    def instances(self, driver: str) -> list[Instance]:
        """The registered instances of a driver, the newest last."""
        return [*self._instances.get(driver, ())]

    def instance(self, driver: str, but: Collection[Instance] = ()) -> Instance:
        """Whom to call: the newest connected instance, else the newest. Raises PluginError when there is none."""
        found = [each for each in self.instances(driver) if each not in but]
        if not found:
            raise PluginError(f"DRA driver {driver} is not registered", unreachable=True)
        return next((each for each in reversed(found) if each.client.connected()), found[-1])

    async def call(self, driver: str, ask: Callable[[Instance], Awaitable[T]]) -> T:
        """Ask the instance that is to be called, and the others where nobody answers: calls are idempotent.

        So a call that meets the end of an upgraded driver does not fail. Raises PluginError.
        """
        tried: list[Instance] = []
        while True:
            instance = self.instance(driver, tried)
            try:
                return await ask(instance)
            except PluginError as error:
                tried.append(instance)
                others = any(each not in tried for each in self.instances(driver))
                if not error.unreachable or not others:
                    raise
                logger.info("driver %s: %s; asking another instance", driver, error)

    async def run(self) -> None:
        """Watch the folder until cancelled."""
        watch = FolderWatch(self._registry)
        looking = asyncio.create_task(self._look(), name="plugin-connections")
        try:
            while True:
                await self._scan()
                await watch.changed()
        finally:
            watch.close()
            looking.cancel()
            for task in self._known.values():
                task.cancel()
            await asyncio.gather(looking, *self._known.values(), return_exceptions=True)
            for instances in list(self._instances.values()):
                for instance in list(instances):
                    await self._drop(instance)
            for task in list(self._closing):
                task.cancel()
            await asyncio.gather(*self._closing, return_exceptions=True)

    async def _scan(self) -> None:
        found: set[_Key] = set()
        for path in self._registry.iterdir():
            if path.name.startswith("."):
                continue
            with contextlib.suppress(FileNotFoundError):
                about = path.stat()
                if stat.S_ISSOCK(about.st_mode):
                    # A driver that comes back makes its socket anew under the old name.
                    found.add((path, about.st_ino, about.st_ctime_ns))
        for key in [key for key in self._known if key not in found]:
            task = self._known.pop(key)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            instance = self._by_key.pop(key, None)
            if instance is not None:
                logger.info("driver %s: its registration socket %s is gone", instance.driver, key[0].name)
                await self._drop(instance)
        for key in sorted(found - self._known.keys(), key=lambda key: key[2]):
            self._known[key] = asyncio.create_task(self._register(key), name=f"register-{key[0].name}")

    async def _register(self, key: _Key) -> None:
        said = ""
        while True:
            try:
                await self._attempt(key)
                return
            except PluginError as error:
                if str(error) != said:
                    said = str(error)
                    logger.warning("registration socket %s: %s; trying again", key[0].name, said)
            await self._clock.sleep(RETRY)

    async def _attempt(self, key: _Key) -> None:
        """Raises PluginError."""
        async with SocketClient(key[0]) as registration:
            info = await registration.get_info()
            try:
                instance = self._accepted(key[0], info)
            except PluginError as error:
                with contextlib.suppress(PluginError):
                    await registration.notify(wire.RegistrationStatus(False, str(error)))
                raise
            self._by_key[key] = instance
            self._instances.setdefault(instance.driver, []).append(instance)
            try:
                await registration.notify(wire.RegistrationStatus(True))
            except PluginError:
                del self._by_key[key]
                await self._drop(instance)
                raise
        logger.info("driver %s registered (%s at %s)", instance.driver, instance.service, info.endpoint)
        instance.client.connected()
        if instance.health is not None:
            instance.tasks.append(
                asyncio.create_task(self._watch_health(instance, instance.health), name=f"health-{instance.driver}")
            )
        self._tell(instance.driver)

    def _accepted(self, path: Path, info: wire.PluginInfo) -> Instance:
        if info.type != wire.DRA_PLUGIN:
            raise PluginError(f"plugins of type {info.type!r} are not served here, only {wire.DRA_PLUGIN}")
        if not info.name or not info.endpoint.startswith("/"):
            raise PluginError(
                f"name {info.name!r} and endpoint {info.endpoint!r}: both are needed, the latter absolute"
            )
        # As names of drivers in slices and claims, which the API server judges so.
        if len(info.name) > _LONGEST_NAME or dns_subdomain(info.name.lower()):
            raise PluginError(
                f"name {info.name[:_LONGEST_NAME]!r} cannot be that of a driver: "
                f"it must be a DNS name of at most {_LONGEST_NAME} characters"
            )
        service = choose_dra(info.supported_versions)
        if any(each.client.socket == Path(info.endpoint) for each in self._instances.get(info.name, ())):
            raise PluginError(f"endpoint {info.endpoint} of driver {info.name} is registered already")
        health = choose_health(info.supported_versions)
        return Instance(info.name, path, SocketClient(Path(info.endpoint)), service, health)

    async def _drop(self, instance: Instance) -> None:
        instances = self._instances.get(instance.driver, [])
        if instance in instances:
            instances.remove(instance)
        if not instances:
            self._instances.pop(instance.driver, None)
            self._health(instance.driver, None)
        for task in instance.tasks:
            task.cancel()
        await asyncio.gather(*instance.tasks, return_exceptions=True)
        # A call that is under way may still be answered; nobody waits for that here.
        closing = asyncio.create_task(instance.client.close(CALL_TIMEOUT), name=f"close-{instance.driver}")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        self._tell(instance.driver)

    async def _watch_health(self, instance: Instance, version: str) -> None:
        while True:
            try:
                async for response in instance.client.watch_health(version):
                    if self.instance(instance.driver) is instance:
                        self._health(instance.driver, response)
            except PluginError as error:
                logger.debug("health of driver %s: %s", instance.driver, error)
            if self._instances.get(instance.driver, [None])[-1] is instance:
                self._health(instance.driver, None)
            await self._clock.sleep(HEALTH_RETRY)

    async def _look(self) -> None:
        while True:
            await self._clock.sleep(_LOOK)
            for driver in list(self._instances):
                self._tell(driver)

    def _tell(self, driver: str) -> None:
        usable = any(each.client.connected() for each in self._instances.get(driver, ()))
        if self._told.get(driver) != usable:
            self._told[driver] = usable
            self._usable(driver, usable)
