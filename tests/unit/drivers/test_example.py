"""Every profile of the example driver: from its devices to what a container gets."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.kinds import NODE, POD, RESOURCECLAIM
from drakkar.api.objects import condition_is
from drakkar.api.resource import v1
from drakkar.cli.manifests import apply, read_objects
from drakkar.cli.plane import case_plane
from drakkar.client import Caches, Client
from drakkar.client.runner import Runner
from drakkar.driver.publication import Publication
from drakkar.driver.service import DriverService
from drakkar.driver.settings import NodeSettings
from drakkar.drivers.example import PROFILES, ExampleDriver
from drakkar.drivers.example.binding import Attacher
from drakkar.drivers.example.profiles import FABRIC
from drakkar.plugin import cdi, wire
from drakkar.plugin.grpc_client import SocketClient
from drakkar.plugin.sockets import dra_socket
from tests.support.eventually import eventually

EXAMPLES = Path(__file__).parents[3] / "examples" / "example-driver"


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Sockets have short names only."""
    with tempfile.TemporaryDirectory(prefix="drakkar-") as folder:
        yield Path(folder)


@asynccontextmanager
async def cluster(root: Path, profile: str) -> AsyncIterator[tuple[Client, SocketClient, NodeSettings]]:
    """A scheduler and claim controllers, one node with the driver, and a kubelet's hand on its socket."""
    settings = NodeSettings("n1", root, root / "cdi", health_period=0.05)
    settings.registry.mkdir()
    driver = ExampleDriver(profile, root / "faults")
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(case_plane())
        capacity = {"cpu": "8", "pods": "10", "memory": "8Gi"}
        await client.create(
            NODE,
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1", FABRIC: "a"}},
                "status": {
                    "capacity": capacity,
                    "allocatable": capacity,
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            },
        )
        service = DriverService(driver, client, client.clock, settings)
        parts = [asyncio.create_task(service.run())]
        if driver.cluster_pools():
            publication = Publication(driver, client, client.clock, node_name="", counts=service.counts)
            await publication.discover_until_it_works()
            parts.append(asyncio.create_task(publication.run()))
        if profile == "binding-conditions":
            caches = Caches(client)
            parts.append(asyncio.create_task(Runner(client, caches, Attacher(client.clock), client.clock).run()))
            stack.push_async_callback(caches.stop)
        socket = dra_socket(settings.plugin_folder(driver.name))
        await eventually(lambda: asyncio.sleep(0, socket.exists()), bool)
        try:
            yield client, await stack.enter_async_context(SocketClient(socket)), settings
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)


async def bound(client: Client, count: int) -> list[Any]:
    async def read() -> list[Any]:
        return (await client.list(POD, "default")).items

    return await eventually(read, lambda pods: sum(condition_is(pod, "PodScheduled") for pod in pods) == count)


@pytest.mark.parametrize(
    ("profile", "pods", "expected"),
    [
        ("plain", 1, ["gpu-0", "gpu-1"]),
        ("partitionable", 1, ["card-0-half-0", "card-0-quarter-2"]),
        ("consumable", 2, ["port-0 bandwidth=60G", "port-1 bandwidth=60G"]),
        ("taints", 1, ["gpu-0", "gpu-1", "gpu-2"]),
        ("binding-conditions", 1, ["fpga-0"]),
        ("extended-resource", 1, ["gpu-0", "gpu-1"]),
        ("network-attached", 1, ["fabric-0"]),
    ],
)
def test_profile(short_path: Path, profile: str, pods: int, expected: list[str]) -> None:
    async def story() -> None:
        async with cluster(short_path, profile) as (client, kubelet, settings):
            for obj in read_objects(EXAMPLES / f"{profile}.yaml"):
                await apply(client, obj)
            await bound(client, pods)
            claims: list[v1.ResourceClaim] = (await client.list(RESOURCECLAIM)).items
            asked = [wire.Claim(c.metadata.namespace, c.metadata.uid, c.metadata.name) for c in claims]
            answers = (await kubelet.prepare(wire.DRA_V1, asked)).values()
            assert [answer.error for answer in answers if answer.error] == []
            folders = cdi.SpecFolders([settings.cdi_folder])
            devices = [device for answer in answers for device in answer.devices]
            env = [e.partition("=")[2] for d in devices for x in folders.resolve(d.cdi_device_ids) for e in x.env]
            assert sorted(env) == expected

    asyncio.run(story())


def test_every_profile_has_its_example() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == set(PROFILES)
