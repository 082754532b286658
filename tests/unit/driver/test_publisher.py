"""The publisher over a real API server: it undoes edits and reports fields that the server drops."""

from __future__ import annotations

import asyncio

import pytest

from drakkar.api.features import Features
from drakkar.api.kinds import RESOURCESLICE
from drakkar.api.resource import v1
from drakkar.client import Caches, Client, Runner
from drakkar.driver import Pool, SliceContent, SlicePublisher
from tests.support.eventually import eventually, memory_plane

DRIVER = "d.example.com"


@pytest.fixture
def problems() -> list[str]:
    return []


def test_edits_are_undone_and_unfit_pools_reported(problems: list[str]):
    async def story() -> None:
        async with memory_plane() as client:
            devices = [v1.Device(name="a")]
            pool = Pool("p", (SliceContent(devices=tuple(devices)),), all_nodes=True)
            wanted = {"p": pool}
            publisher = SlicePublisher(
                DRIVER,
                lambda name, found: wanted.get(name),
                client.clock,
                on_problem=lambda p, text: problems.append(text),
            )
            caches = Caches(client)
            task = asyncio.create_task(Runner(client, caches, publisher, client.clock).run())
            await asyncio.sleep(0.05)
            publisher.trigger("p")
            (found,) = await eventually(lambda: listed(client), lambda items: len(items) == 1)
            await client.patch(RESOURCESLICE, found.metadata.name, None, {"spec": {"devices": [{"name": "z"}]}})
            await eventually(
                lambda: listed(client), lambda items: [d.name for d in items[0].spec.devices or ()] == ["a"]
            )
            wanted["p"] = Pool("p", (SliceContent(devices=(devices[0], devices[0])),), all_nodes=True)
            publisher.trigger("p")
            await eventually(lambda: asyncio.sleep(0, problems), bool)
            del wanted["p"]
            publisher.trigger("p")
            await eventually(lambda: listed(client), lambda items: not items)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await caches.stop()

    asyncio.run(story())
    assert "device 'a' exists twice" in problems[0]


def test_fields_that_the_server_drops_are_reported_and_not_written_for_ever(problems: list[str]):
    async def story() -> None:
        features = Features.drakkar().with_({"DRADeviceTaints": False, "DRADeviceTaintRules": False})
        async with memory_plane(features) as client:
            taint = v1.DeviceTaint(key="k", effect="NoExecute")
            pool = Pool("p", (SliceContent(devices=(v1.Device(name="a", taints=[taint]),)),), all_nodes=True)
            publisher = SlicePublisher(
                DRIVER, lambda name, found: pool, client.clock, on_problem=lambda p, text: problems.append(text)
            )
            caches = Caches(client)
            task = asyncio.create_task(Runner(client, caches, publisher, client.clock).run())
            await asyncio.sleep(0.05)
            publisher.trigger("p")
            await eventually(lambda: asyncio.sleep(0, problems), bool)
            (found,) = await listed(client)
            assert found.spec.devices == [v1.Device(name="a")]
            await asyncio.sleep(0.2)
            assert await listed(client) == [found]
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await caches.stop()

    asyncio.run(story())
    assert "does not keep all fields" in problems[0]


async def listed(client: Client) -> list[v1.ResourceSlice]:
    return (await client.list(RESOURCESLICE)).items
