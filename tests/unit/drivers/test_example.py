"""Every profile of the example driver: from its devices to what a container gets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.errors import UsageError
from drakkar.client import Caches, Client
from drakkar.client.runner import Runner
from drakkar.driver import Health
from drakkar.driver.publication import Publication
from drakkar.drivers.example import PROFILES, ExampleDriver
from drakkar.drivers.example.binding import Attacher
from drakkar.drivers.example.profiles import FABRIC
from tests.support.drivers import driver_cluster

EXAMPLES = Path(__file__).parents[3] / "examples" / "example-driver"


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
def test_profile(root: Path, profile: str, pods: int, expected: list[str]) -> None:
    async def story() -> None:
        driver = ExampleDriver(profile)
        nodes = {"n1": {"example": lambda _node, _folder: driver}}
        async with driver_cluster(root, nodes, {FABRIC: "a"}) as cluster, beside(cluster.client, driver):
            await cluster.apply(EXAMPLES / f"{profile}.yaml")
            await cluster.bound(pods)
            found = [
                edits for claim in await cluster.claims() for edits in await cluster.prepare("n1", "example", claim)
            ]
            assert sorted(env.partition("=")[2] for edits in found for env in edits.env) == expected

    asyncio.run(story())


@asynccontextmanager
async def beside(client: Client, driver: ExampleDriver) -> AsyncIterator[None]:
    """What runs once per cluster for some profiles."""
    parts: list[asyncio.Task[None]] = []
    caches = Caches(client)
    if driver.profile == "network-attached":
        publication = Publication(driver, client, client.clock, node_name="", counts=Counter())
        await publication.discover_until_it_works()
        parts.append(asyncio.create_task(publication.run()))
    if driver.profile == "binding-conditions":
        parts.append(asyncio.create_task(Runner(client, caches, Attacher(client.clock), client.clock).run()))
    try:
        yield
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        await caches.stop()


def test_sick_devices_are_told_by_files(tmp_path: Path) -> None:
    driver = ExampleDriver(faults=tmp_path)
    (tmp_path / "gpu-3").write_text("Unhealthy fan stuck\n")
    (tmp_path / "gpu-4").write_text("purple")
    health = driver.health()
    assert health["gpu-3"] == Health("Unhealthy", "fan stuck")
    assert health["gpu-4"].state == "Unknown"
    with pytest.raises(UsageError, match="choose one of plain, partitionable"):
        ExampleDriver("nonsense")


def test_every_profile_has_its_example() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == set(PROFILES)
