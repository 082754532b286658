"""What a driver publishes at a server that drops fields: nothing that would be given out wrongly."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from drakkar.api.errors import ApiError
from drakkar.api.features import Features
from drakkar.api.kinds import RESOURCESLICE
from drakkar.api.resource import v1
from drakkar.client import Caches, Client, Runner
from drakkar.driver import Pool, SliceContent, SlicePublisher, consumes, counter_set
from drakkar.driver.gates import FRESH, Fitted, Gates, probe_of, publishable
from tests.support.eventually import eventually, memory_plane
from tests.unit.driver.test_publisher import HandClock

DRIVER = "gates.example.com"
PLAIN = v1.Device(name="plain")
PARTITION = v1.Device(name="partition", consumesCounters=[consumes("card", {"memory": 1})])
SICK = v1.Device(name="sick", taints=[v1.DeviceTaint(key="k", effect="NoExecute")])
WATCHED = v1.Device(name="watched", taints=[v1.DeviceTaint(key="k", effect="None")])
SHARED = v1.Device(
    name="shared",
    allowMultipleAllocations=True,
    capacity={"m": v1.DeviceCapacity(value="1Gi", requestPolicy=v1.CapacityRequestPolicy(default="1Mi"))},
)
ATTACHED = v1.Device(
    name="attached", bindingConditions=["example.com/ready"], bindingFailureConditions=["example.com/no"]
)
LISTED = v1.Device(
    name="listed", attributes={"many": v1.DeviceAttribute(strings=["a", "b"]), "one": v1.DeviceAttribute(string="c")}
)
COUNTERS = SliceContent(shared_counters=(counter_set("card", {"memory": 2}),))
POOL = Pool(
    "p", (COUNTERS, SliceContent(devices=(PLAIN, PARTITION, SICK, WATCHED, SHARED, ATTACHED, LISTED))), all_nodes=True
)


class Publishing:
    """A publisher at work, and what it complained about."""

    def __init__(self, client: Client, pool: Pool):
        self.pool = pool
        self.problems: list[str] = []
        self.client = client
        self.publisher = SlicePublisher(
            DRIVER,
            lambda name, found: self.pool,
            client.clock,
            on_problem=lambda name, text: self.problems.append(text),
            probe=probe_of(client),
        )

    async def devices(self) -> list[v1.Device]:
        return [
            device for found in (await self.client.list(RESOURCESLICE)).items for device in found.spec.devices or ()
        ]

    async def versions(self) -> list[str]:
        return [found.metadata.resourceVersion for found in (await self.client.list(RESOURCESLICE)).items]

    async def __aenter__(self) -> Publishing:
        self._caches = Caches(self.client)
        runner = Runner(self.client, self._caches, self.publisher, self.client.clock)
        self._task = asyncio.create_task(runner.run())
        await runner.ready.wait()
        self.publisher.trigger("p")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._caches.stop()


ALL = ("plain", "partition", "sick", "watched", "shared", "attached", "listed")


@pytest.mark.parametrize(
    ("gate", "left", "field"),
    [
        ("DRAPartitionableDevices", {"partition"}, "consumesCounters"),
        ("DRADeviceTaints", {"sick"}, "taints"),
        ("DRADeviceBindingConditions", {"attached"}, "bindingConditions"),
        ("DRAConsumableCapacity", set(), "allowMultipleAllocations"),
        ("DRAListTypeAttributes", set(), "strings"),
    ],
)
def test_devices_that_would_be_given_out_wrongly_are_left_out(gate: str, left: set[str], field: str) -> None:
    async def story() -> None:
        changes = {gate: False, **({"DRADeviceTaintRules": False} if gate == "DRADeviceTaints" else {})}
        async with memory_plane(Features.drakkar().with_(changes)) as client:
            seen: list[str] = []
            caches = Caches(client)
            caches.of(RESOURCESLICE).subscribe(
                lambda event, old, new: seen.extend(device.name for device in new.spec.devices or ())
            )
            await caches.start()
            async with Publishing(client, POOL) as at:
                found = await eventually(at.devices, bool)
                assert [device.name for device in found] == [name for name in ALL if name not in left]
                await eventually(lambda: asyncio.sleep(0, at.problems), bool)
                # What is there stays: it is all that can be published.
                before = await at.versions()
                at.publisher.trigger("p")
                await asyncio.sleep(0.1)
                assert await at.versions() == before
            (problem,) = at.problems
            assert f"{field} ({gate}" in problem
            assert ("devices are not published" in problem) == bool(left)
            # Not for a moment were they there.
            assert not left & {*seen}
            await caches.stop()

    asyncio.run(story())


def test_a_server_that_keeps_everything_hears_no_complaint() -> None:
    async def story() -> None:
        async with memory_plane() as client, Publishing(client, POOL) as at:
            found = await eventually(at.devices, bool)
            assert [device.name for device in found] == [*ALL]
            assert at.problems == []

    asyncio.run(story())


def test_a_device_that_falls_ill_goes_where_its_taint_would_be_dropped() -> None:
    async def story() -> None:
        features = Features.drakkar().with_({"DRADeviceTaints": False, "DRADeviceTaintRules": False})
        async with memory_plane(features) as client:
            well = v1.Device(name="sick")
            async with Publishing(client, Pool("p", (SliceContent(devices=(PLAIN, well)),), all_nodes=True)) as at:
                await eventually(at.devices, lambda found: len(found) == 2)
                at.pool = Pool("p", (SliceContent(devices=(PLAIN, SICK)),), all_nodes=True)
                at.publisher.trigger("p")
                await eventually(at.devices, lambda found: [device.name for device in found] == ["plain"])
                assert "taints (DRADeviceTaints)" in at.problems[0]
                at.pool = Pool("p", (SliceContent(devices=(PLAIN, well)),), all_nodes=True)
                at.publisher.trigger("p")
                await eventually(at.devices, lambda found: len(found) == 2)

    asyncio.run(story())


def test_a_pool_that_is_refused_without_its_fields_is_told() -> None:
    """Without the field that says where its devices are, a slice is invalid."""

    async def story() -> None:
        async with memory_plane(Features.drakkar().with_({"DRAPartitionableDevices": False})) as client:
            device = v1.Device(name="a", allNodes=True)
            pool = Pool("p", (SliceContent(devices=(device,), per_device_nodes=True),))
            async with Publishing(client, pool) as at:
                await eventually(lambda: asyncio.sleep(0, at.problems), bool)
                assert "may need feature gates that are off" in at.problems[0]
                assert await at.devices() == []

    asyncio.run(story())


def test_the_server_is_asked_once_in_a_while() -> None:
    async def story() -> None:
        async with memory_plane(Features.drakkar().with_({"DRAListTypeAttributes": False})) as client:
            asked: list[str] = []
            ask = probe_of(client)

            async def probe(obj: dict[str, object]) -> v1.ResourceSlice:
                asked.append("once")
                return await ask(obj)

            clock = HandClock()
            gates = Gates(probe, clock)
            pool = Pool("p", (SliceContent(devices=(WATCHED, SHARED)),), all_nodes=True)
            for _ in range(3):
                assert await gates.fitted(DRIVER, pool, None) == Fitted(pool)
            assert len(asked) == 1
            # Nothing that a gate could take away needs no question.
            plain = Pool("p", (SliceContent(devices=(PLAIN,)),), all_nodes=True)
            assert await gates.fitted(DRIVER, plain, None) == Fitted(plain)
            assert len(asked) == 1
            clock.now += FRESH
            await gates.fitted(DRIVER, pool, None)
            assert len(asked) == 2

    asyncio.run(story())


def test_what_is_left_of_devices() -> None:
    lost = {"strings": "A", "requestPolicy": "B", "allowMultipleAllocations": "B", "compatibilityGroups": "C"}
    grouped = v1.Device(
        name="grouped",
        consumesCounters=[v1.DeviceCounterConsumption(counterSet="card", counters={}, compatibilityGroups=["g"])],
    )
    pool = Pool("p", (COUNTERS, SliceContent(devices=(LISTED, SHARED, grouped))), all_nodes=True)
    kept, left = publishable(pool, lost)
    assert left == ["grouped"]
    listed, shared = kept.devices
    assert list(listed.attributes or {}) == ["one"]
    assert shared == v1.Device(name="shared", capacity={"m": v1.DeviceCapacity(value="1Gi")})
    empty, left = publishable(Pool("p", (COUNTERS, SliceContent(devices=(PARTITION,)))), {"sharedCounters": "A"})
    assert (empty.slices, left) == ((), ["partition"])


class Older:
    """Refuses what Kubernetes 1.34 refuses, with its causes, and keeps the rest."""

    def __init__(self) -> None:
        self.asked = 0
        self.upgraded = False

    async def __call__(self, obj: dict[str, Any]) -> v1.ResourceSlice:
        self.asked += 1
        spec = obj["spec"]
        here = {counters["name"] for counters in spec.get("sharedCounters", ())}
        refused = [
            f"spec.devices[{number}].consumesCounters[{place}].counterSet"
            for number, device in enumerate(spec.get("devices", ()))
            for place, use in enumerate(device.get("consumesCounters", ()))
            if use["counterSet"] not in here
        ] + [
            f"spec.devices[{number}].taints[{place}].effect"
            for number, device in enumerate(spec.get("devices", ()))
            for place, taint in enumerate(device.get("taints", ()))
            if taint["effect"] == "None"
        ]
        if self.upgraded:
            refused = ["spec"] if here and spec.get("devices") else []
        if refused:
            causes = [{"reason": "FieldValueInvalid", "field": field} for field in refused]
            raise ApiError({"code": 422, "reason": "Invalid", "message": "no", "details": {"causes": causes}})
        return msgspec.convert(obj, type=v1.ResourceSlice)


def test_an_older_server_gets_the_form_that_it_takes() -> None:
    async def story() -> None:
        server, clock = Older(), HandClock()
        gates = Gates(server, clock)
        plain = Pool("q", (SliceContent(devices=(PLAIN, SICK)),), all_nodes=True)
        assert await gates.fitted(DRIVER, plain, None) == Fitted(plain)
        found = await gates.fitted(DRIVER, POOL, None)
        assert found.problem == ""
        drawing, rest = found.pool.slices
        assert (drawing.shared_counters, drawing.devices) == (COUNTERS.shared_counters, (PARTITION,))
        assert [device.name for device in rest.devices] == [name for name in ALL if name != "partition"]
        assert [device.name for device in found.pool.devices if device.taints] == ["sick"]
        # That is known now, also for pools that were not asked about.
        asked = server.asked
        assert (await gates.fitted(DRIVER, replace(POOL, name="other"), None)).pool.slices == found.pool.slices
        assert server.asked == asked
        server.upgraded = True
        clock.now += FRESH
        assert await gates.fitted(DRIVER, POOL, None) == Fitted(POOL)

    asyncio.run(story())


def test_devices_without_room_beside_their_counters_are_told() -> None:
    async def story() -> None:
        names = [f"c{number}" for number in range(40)]
        large = v1.Device(name="large", consumesCounters=[consumes("card", dict.fromkeys(names, 1))])
        contents = (SliceContent(shared_counters=(counter_set("card", dict.fromkeys(names, 1)),)),)
        pool = Pool("p", (*contents, SliceContent(devices=(PLAIN, large))), all_nodes=True)
        found = await Gates(Older(), HandClock()).fitted(DRIVER, pool, None)
        assert [*found.pool.devices] == [PLAIN]
        assert "no room for 1 devices, which are not published (large)" in found.problem

    asyncio.run(story())


def test_what_is_refused_in_all_forms_is_an_error() -> None:
    async def refuse(obj: dict[str, Any]) -> v1.ResourceSlice:
        cause = {"reason": "FieldValueInvalid", "field": "spec.devices[0].consumesCounters[0].counterSet"}
        raise ApiError({"code": 422, "reason": "Invalid", "message": "no", "details": {"causes": [cause]}})

    with pytest.raises(ApiError):
        asyncio.run(Gates(refuse, HandClock()).fitted(DRIVER, POOL, None))
