"""The publisher over a real API server: it undoes edits and reports fields that the server drops."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from drakkar.api.features import Features
from drakkar.api.kinds import RESOURCESLICE
from drakkar.api.resource import v1
from drakkar.client import Caches, Client, Create, Patch, Runner
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
            runner = Runner(client, caches, publisher, client.clock)
            task = asyncio.create_task(runner.run())
            await runner.ready.wait()
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
            runner = Runner(client, caches, publisher, client.clock)
            task = asyncio.create_task(runner.run())
            await runner.ready.wait()
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


class HandClock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


def test_a_slice_that_goes_while_its_sibling_is_created_is_no_dropped_field(
    problems: list[str], monkeypatch: pytest.MonkeyPatch
):
    """Both slices of a pool were deleted, one after the other: the first one is back, now the second one is missing."""
    contents = tuple(SliceContent(devices=(v1.Device(name=name),)) for name in "ab")
    pool = Pool("p", contents, all_nodes=True)
    clock = HandClock()
    publisher = SlicePublisher(
        DRIVER, lambda name, found: pool, clock, on_problem=lambda p, text: problems.append(text)
    )
    present: list[v1.ResourceSlice] = []
    monkeypatch.setattr(publisher, "slices", lambda key: present)
    first, second = publisher.reconcile("p")
    assert isinstance(first, Create)
    assert isinstance(second, Create)
    metadata = {"name": first.obj["metadata"]["generateName"] + "abcde", "uid": "u", "resourceVersion": "5"}
    present.append(msgspec.convert({**first.obj, "metadata": metadata}, v1.ResourceSlice))
    clock.now += 3
    patch, create = publisher.reconcile("p")
    assert problems == []
    assert isinstance(patch, Patch)
    assert patch.body["spec"]["pool"]["generation"] == 2
    assert isinstance(create, Create)
    assert create.obj["metadata"]["generateName"].startswith("00001-")


async def listed(client: Client) -> list[v1.ResourceSlice]:
    return (await client.list(RESOURCESLICE)).items
