"""A cluster for drivers of ours: scheduler, claim controllers, nodes with drivers, a kubelet's hand on the sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from drakkar.api.kinds import NODE, POD, RESOURCECLAIM
from drakkar.api.objects import condition_is
from drakkar.api.resource import v1
from drakkar.cli.manifests import apply, read_objects
from drakkar.cli.plane import case_plane
from drakkar.client import Client
from drakkar.driver import ContainerEdits, Driver
from drakkar.driver.service import DriverService
from drakkar.driver.settings import NodeSettings
from drakkar.plugin import cdi, wire
from drakkar.plugin.grpc_client import SocketClient
from drakkar.plugin.sockets import dra_socket
from tests.support.eventually import eventually

#: Makes the driver of a node, given the node's name and a folder of its own.
Build = Callable[[str, Path], Driver]


class DriverCluster:
    """What the tests of drivers ask of a running cluster."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.services: dict[tuple[str, str], DriverService] = {}
        self.sockets: dict[tuple[str, str], SocketClient] = {}

    async def apply(self, path: Path) -> None:
        """Create all objects of a manifest."""
        for obj in read_objects(path):
            await apply(self.client, obj)

    async def bound(self, count: int) -> list[Any]:
        """All pods, once so many are bound."""

        async def read() -> list[Any]:
            return (await self.client.list(POD, "default")).items

        return await eventually(read, lambda pods: sum(condition_is(pod, "PodScheduled") for pod in pods) == count)

    async def claims(self) -> list[v1.ResourceClaim]:
        return (await self.client.list(RESOURCECLAIM)).items

    async def prepare(self, node: str, driver: str, claim: v1.ResourceClaim) -> list[ContainerEdits]:
        """What containers get for the devices of a claim. Raises AssertionError with the driver's words."""
        asked = wire.Claim(claim.metadata.namespace, claim.metadata.uid, claim.metadata.name)
        answer = (await self.sockets[node, driver].prepare(wire.DRA_V1, [asked]))[claim.metadata.uid]
        assert not answer.error, answer.error
        folders = cdi.SpecFolders([self.services[node, driver].settings.cdi_folder])
        return [edits for device in answer.devices for edits in folders.resolve(device.cdi_device_ids)]

    async def unprepare(self, node: str, driver: str, claim: v1.ResourceClaim) -> None:
        asked = wire.Claim(claim.metadata.namespace, claim.metadata.uid, claim.metadata.name)
        answer = (await self.sockets[node, driver].unprepare(wire.DRA_V1, [asked]))[claim.metadata.uid]
        assert not answer.error, answer.error


@asynccontextmanager
async def driver_cluster(
    root: Path,
    nodes: Mapping[str, Mapping[str, Build]],
    labels: Mapping[str, str] | None = None,
    *,
    with_client: Callable[[Client], None] = lambda _: None,
) -> AsyncIterator[DriverCluster]:
    """Nodes by name with their drivers by a short name; `root` must have a short path, sockets lie below it.

    ``with_client`` is given the client before the drivers are made.
    """
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(case_plane())
        with_client(client)
        cluster = DriverCluster(client)
        parts: list[asyncio.Task[None]] = []
        for number, (name, drivers) in enumerate(nodes.items()):
            await client.create(NODE, _node(name, labels or {}))
            folder = root / str(number)
            settings = NodeSettings(name, folder, folder / "cdi", health_period=0.05)
            settings.registry.mkdir(parents=True)
            for short, build in drivers.items():
                driver = build(name, folder / short)
                service = DriverService(driver, client, client.clock, settings)
                parts.append(asyncio.create_task(service.run()))
                socket = dra_socket(settings.plugin_folder(driver.name))
                await eventually(lambda socket=socket: asyncio.sleep(0, socket.exists()), bool)
                await asyncio.wait_for(service.publication.published.wait(), 60)
                cluster.services[name, short] = service
                cluster.sockets[name, short] = await stack.enter_async_context(SocketClient(socket))
        try:
            yield cluster
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)


def _node(name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    capacity = {"cpu": "64", "pods": "100", "memory": "256Gi"}
    conditions = [{"type": "Ready", "status": "True"}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "status": {"capacity": capacity, "allocatable": capacity, "conditions": conditions},
    }
