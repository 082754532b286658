"""Drivers at the agent: registration with obstacles, several instances, the older protocol, loss and slices."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.kinds import RESOURCESLICE
from drakkar.api.meta import Object
from drakkar.client.clock import SystemClock
from drakkar.node.agent.health import DeviceHealths
from drakkar.node.agent.plugins import Plugins
from drakkar.node.agent.slices import Slices
from drakkar.plugin import wire
from drakkar.plugin.grpc_client import PluginError
from drakkar.plugin.grpc_server import SocketServer, dra_services, registration_service
from tests.support.eventually import eventually, memory_plane
from tests.unit.apiserver.core.serving import StoppedClock

DRIVER = "gpu.example.com"


@pytest.fixture
def root(root: Path) -> Path:
    (root / "registry").mkdir()
    return root


class FakeDriver:
    """One instance of a driver; its answers carry its name."""

    def __init__(self, root: Path, name: str, offered: list[str] | None = None, driver: str = DRIVER):
        self.name = name
        self.statuses: list[wire.RegistrationStatus] = []
        self.failures = 0
        self.endpoint = root / f"{name}.sock"
        info = wire.PluginInfo(wire.DRA_PLUGIN, driver, str(self.endpoint), offered or [wire.DRA_V1, wire.DRA_V1BETA1])

        def get_info() -> wire.PluginInfo:
            if self.failures:
                self.failures -= 1
                raise RuntimeError("not yet")
            return info

        self._service = SocketServer(self.endpoint, dra_services(self._prepare, self._unprepare), threads=2)
        registration = registration_service(get_info, self.statuses.append)
        self._registration = SocketServer(root / "registry" / f"{name}-reg.sock", [registration], threads=2)

    def _prepare(self, claims: list[wire.Claim]) -> wire.NodePrepareResourcesResponse:
        device = wire.Device(["r"], "pool", self.name, [], "share")
        answers = {claim.uid: wire.NodePrepareResourceResponse([device]) for claim in claims}
        return wire.NodePrepareResourcesResponse(answers)

    def _unprepare(self, claims: list[wire.Claim]) -> wire.NodeUnprepareResourcesResponse:
        return wire.NodeUnprepareResourcesResponse(
            {claim.uid: wire.NodeUnprepareResourceResponse() for claim in claims}
        )

    def start(self) -> None:
        self._service.start()
        self._registration.start()

    def stop(self) -> None:
        self._registration.stop(0)
        self._service.stop(0)

    def die(self) -> None:
        """As by SIGKILL: nobody answers, the registration socket stays."""
        self._service.stop(0)


@contextlib.asynccontextmanager
async def running(root: Path) -> AsyncIterator[tuple[Plugins, list[tuple[str, bool]]]]:
    told: list[tuple[str, bool]] = []
    plugins = Plugins(
        root / "registry",
        SystemClock(),
        health=DeviceHealths(lambda: 0.0).heard,
        usable=lambda driver, usable: told.append((driver, usable)),
    )
    task = asyncio.create_task(plugins.run())
    try:
        yield plugins, told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def answer(plugins: Plugins) -> str:
    """Which instance answers now; empty when none does."""
    try:
        answers = await plugins.call(
            DRIVER, lambda found: found.client.prepare(found.service, [wire.Claim("ns", "uid", "name")])
        )
    except PluginError:
        return ""
    (device,) = answers["uid"].devices
    return device.device_name


def test_the_newest_connected_instance_is_called(root: Path) -> None:
    async def run() -> None:
        old, new = FakeDriver(root, "old"), FakeDriver(root, "new")
        async with running(root) as (plugins, _):
            old.start()
            await eventually(lambda: answer(plugins), lambda name: name == "old")
            new.start()
            await eventually(lambda: answer(plugins), lambda name: name == "new")
            new.die()
            # At once: whoever finds nobody there asks the other one.
            assert await answer(plugins) == "old"
            new.stop()
            assert await answer(plugins) == "old"
            old.stop()
            await eventually(lambda: asyncio.sleep(0, plugins.drivers()), lambda drivers: not drivers)
            with pytest.raises(PluginError, match="is not registered"):
                plugins.instance(DRIVER)

    asyncio.run(run())


def test_a_rolling_upgrade_fails_no_call(root: Path) -> None:
    async def run() -> None:
        instances = [FakeDriver(root, f"i{number}") for number in range(4)]
        async with running(root) as (plugins, _):
            instances[0].start()
            await eventually(lambda: answer(plugins), bool)
            calls: list[str] = []
            stop = asyncio.Event()

            async def load() -> None:
                while not stop.is_set():
                    instance = plugins.instance(DRIVER)
                    answers = await instance.client.prepare(instance.service, [wire.Claim("ns", "uid", "name")])
                    calls.append(answers["uid"].devices[0].device_name)

            loads = [asyncio.create_task(load()) for _ in range(4)]
            for old, new in itertools.pairwise(instances):
                await asyncio.to_thread(new.start)
                await eventually(lambda n=new: asyncio.sleep(0, bool(calls) and calls[-1] == n.name), bool)
                # As an instance ends by itself: first its registration, calls in flight are answered.
                await asyncio.to_thread(old._registration.stop, 1.0)
                await asyncio.to_thread(old._service.stop, 1.0)
            stop.set()
            await asyncio.gather(*loads)
            assert set(calls) == {instance.name for instance in instances}
            instances[-1].stop()

    asyncio.run(run())


def test_the_older_protocol_has_no_shares(root: Path) -> None:
    async def run() -> None:
        driver = FakeDriver(root, "beta", [wire.DRA_V1BETA1])
        driver.start()
        async with running(root) as (plugins, _):
            await eventually(lambda: answer(plugins), bool)
            instance = plugins.instance(DRIVER)
            assert instance.service == wire.DRA_V1BETA1
            answers = await instance.client.prepare(instance.service, [wire.Claim("ns", "uid", "name")])
            assert answers["uid"].devices[0].share_id is None
        driver.stop()

    asyncio.run(run())


def test_registration_is_tried_again(root: Path) -> None:
    async def run() -> None:
        driver = FakeDriver(root, "slow")
        driver.failures = 1
        driver.start()
        async with running(root) as (plugins, _):
            await eventually(lambda: answer(plugins), bool)
            assert [status.plugin_registered for status in driver.statuses] == [True]
        driver.stop()

    asyncio.run(run())


def test_what_is_no_dra_driver_hears_why(root: Path) -> None:
    async def run() -> None:
        driver = FakeDriver(root, "odd", ["1.0.0"])
        driver.start()
        # Neither a file nor a hidden socket is a driver.
        (root / "registry" / "file").touch()
        async with running(root) as (plugins, _):
            await eventually(lambda: asyncio.sleep(0, len(driver.statuses)), bool)
            assert not driver.statuses[0].plugin_registered
            assert "offers no DRA service known here" in driver.statuses[0].error
            assert plugins.drivers() == []
        driver.stop()

    asyncio.run(run())


def test_slices_of_a_lost_driver_go_and_those_of_a_short_absence_stay(root: Path) -> None:
    def slice_(name: str, driver: str, node: str) -> Object:
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "d"}]}
        return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}

    async def run() -> None:
        async with memory_plane() as client:
            for name, driver, node in (("a", DRIVER, "n1"), ("b", "other.example.com", "n1"), ("c", DRIVER, "n2")):
                await client.create(RESOURCESLICE, slice_(name, driver, node))

            async def names() -> set[str]:
                return {item.metadata.name for item in (await client.list(RESOURCESLICE)).items}

            clock = StoppedClock()
            slices = Slices(client, clock, "n1", patience=30)
            slices.usable(DRIVER, False)
            await clock.pass_(10)
            slices.usable(DRIVER, True)
            await clock.pass_(40)
            assert await names() == {"a", "b", "c"}
            slices.usable(DRIVER, False)
            await clock.pass_(40)
            await eventually(names, lambda found: found == {"b", "c"})
            await slices.wipe()
            assert await names() == {"c"}
            await slices.close()

    asyncio.run(run())


def test_names_that_no_driver_can_have_are_refused(root: Path) -> None:
    """They would stand in selectors, logs and statuses."""
    names = ["../../evil", "a.example.com,spec.nodeName=n2", "two\nlines", "a" * 64, "A_B"]

    async def run() -> None:
        drivers = [FakeDriver(root, f"evil{number}", driver=name) for number, name in enumerate(names)]
        async with running(root) as (plugins, told):
            for driver in drivers:
                driver.start()
            for driver in drivers:
                statuses = await eventually(lambda driver=driver: asyncio.sleep(0, driver.statuses), bool)
                assert not statuses[0].plugin_registered
                assert "cannot be that of a driver" in statuses[0].error
            assert plugins.drivers() == []
            assert told == []
        for driver in drivers:
            driver.stop()

    asyncio.run(run())
