"""A driver at work: an API server in memory above it, a kubelet made of a socket client below."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.kinds import EVENT, NAMESPACE, NODE, RESOURCECLAIM, RESOURCESLICE
from drakkar.api.resource import v1
from drakkar.client import Client
from drakkar.driver import AllocatedDevice, ContainerEdits, Driver, Health, Prepared, counter_set, device
from drakkar.driver.service import DriverService
from drakkar.driver.settings import NodeSettings
from drakkar.plugin import cdi, wire
from drakkar.plugin.grpc_client import SocketClient
from drakkar.plugin.sockets import registration_socket
from tests.support.eventually import eventually, memory_plane

NAME = "hello.example.com"


class Hello(Driver):
    name = NAME
    version = "1.2.0"
    unhealthy = "NoExecute"

    def __init__(self) -> None:
        self.devices: list[v1.Device | v1.CounterSet] = [device("d0", {"model": "x"}, numa_node=0), device("d1")]
        self.sick: dict[str, Health] = {}
        self.blind = False

    def discover(self) -> Sequence[v1.Device | v1.CounterSet]:
        return self.devices

    def prepare(
        self, claim: v1.ResourceClaim, devices: Sequence[AllocatedDevice]
    ) -> Sequence[ContainerEdits | Prepared]:
        return [
            Prepared(
                edits=ContainerEdits(env=[f"HELLO={found.name}"]),
                network=v1.NetworkDeviceData(interfaceName="net1", ips=["10.0.0.1/24"]),
            )
            for found in devices
        ]

    def health(self) -> Mapping[str, Health]:
        if self.blind:
            raise OSError("no such device")
        return self.sick


class Machine:
    """The running driver and what a kubelet has in its hands."""

    def __init__(self, client: Client, root: Path, driver: Driver) -> None:
        self.client, self.driver = client, driver
        self.settings = NodeSettings("n1", root, root / "cdi", health_period=0.05)
        self.service = DriverService(driver, client, client.clock, self.settings)

    async def register(self) -> SocketClient:
        socket = registration_socket(self.settings.registry, NAME)
        await eventually(lambda: asyncio.sleep(0, socket.exists()), bool)
        async with SocketClient(socket) as registration:
            info = await registration.get_info()
            assert (info.type, info.name) == ("DRAPlugin", NAME)
            assert info.supported_versions == [wire.DRA_V1, wire.DRA_V1BETA1, wire.HEALTH_V1, wire.HEALTH_V1ALPHA1]
            await registration.notify(wire.RegistrationStatus(True))
        return SocketClient(Path(info.endpoint))

    async def slices(self) -> list[v1.ResourceSlice]:
        return (await self.client.list(RESOURCESLICE)).items

    async def devices(self) -> dict[str, v1.Device]:
        return {d.name: d for found in await self.slices() for d in found.spec.devices or ()}


@asynccontextmanager
async def machine(root: Path, driver: Driver) -> AsyncIterator[Machine]:
    (root / "plugins_registry").mkdir(exist_ok=True)
    async with memory_plane() as client:
        await client.create(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        here = Machine(client, root, driver)
        task = asyncio.create_task(here.service.run())
        try:
            yield here
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert [*here.settings.registry.iterdir()] == []


async def allocated_claim(client: Client, name: str, device_name: str, **more: Any) -> v1.ResourceClaim:
    request = {"name": "r", "exactly": {"deviceClassName": "hello"}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
    }
    await client.create(RESOURCECLAIM, claim, "default")
    result = {"request": "r", "driver": NAME, "pool": "n1", "device": device_name, **more}
    return await client.patch(
        RESOURCECLAIM,
        name,
        "default",
        {"status": {"allocation": {"devices": {"results": [result]}}}},
        subresource="status",
    )


def read(path: str | Path) -> Any:
    """The one JSON object of a metadata file; None when there is no such file."""
    return json.loads(Path(path).read_text()) if Path(path).exists() else None


def asked(claim: v1.ResourceClaim) -> wire.Claim:
    return wire.Claim(claim.metadata.namespace, claim.metadata.uid, claim.metadata.name)


def test_from_discovery_to_a_container_and_back(root: Path) -> None:
    async def story() -> None:
        async with machine(root, Hello()) as here, await here.register() as kubelet:
            await asyncio.wait_for(here.service.publication.published.wait(), 60)
            (published,) = await here.slices()
            assert published.spec.nodeName == "n1"
            assert [owner.name for owner in published.metadata.ownerReferences or ()] == ["n1"]
            first = (published.spec.devices or [])[0].attributes or {}
            assert first["driverVersion"].version == "1.2.0"
            assert first["resource.kubernetes.io/numaNode"].int == 0
            claim = await allocated_claim(here.client, "c", "d0")
            (prepared,) = (await kubelet.prepare(wire.DRA_V1, [asked(claim)]))[claim.metadata.uid].devices
            edits = cdi.SpecFolders([here.settings.cdi_folder]).resolve(prepared.cdi_device_ids)
            assert [env for edit in edits for env in edit.env] == ["HELLO=d0"]
            (mount,) = [mount for edit in edits for mount in edit.mounts]
            content = read(mount.hostPath)
            (described,) = content["requests"][0]["devices"]
            assert described["attributes"]["model"] == {"string": "x"}
            assert described["networkData"]["interfaceName"] == "net1"
            status = (await here.client.get(RESOURCECLAIM, "c", "default")).status.devices
            assert [(entry.device, entry.networkData.ips) for entry in status] == [("d0", ["10.0.0.1/24"])]
            answer = (await kubelet.unprepare(wire.DRA_V1, [asked(claim)]))[claim.metadata.uid]
            assert answer.error == ""
            assert [*here.settings.cdi_folder.iterdir()] == []
            assert read(mount.hostPath) is None

    asyncio.run(story())


def test_a_device_is_never_prepared_for_two_claims(root: Path) -> None:
    async def story() -> None:
        async with machine(root, Hello()) as here, await here.register() as kubelet:
            label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
            await here.client.patch(NAMESPACE, "default", None, label)
            one = await allocated_claim(here.client, "one", "d0")
            two = await allocated_claim(here.client, "two", "d0")
            admin = await allocated_claim(here.client, "admin", "d0", adminAccess=True)
            answers = [
                (await kubelet.prepare(wire.DRA_V1, [asked(c)]))[c.metadata.uid].error for c in (one, two, admin)
            ]
            assert answers[0] == answers[2] == ""
            assert answers[1] == (
                f"prepare of claim default/two: device n1/d0 is prepared for claim default/one (UID {one.metadata.uid})"
            )
            await kubelet.unprepare(wire.DRA_V1, [asked(one)])
            assert (await kubelet.prepare(wire.DRA_V1, [asked(two)]))[two.metadata.uid].error == ""

    asyncio.run(story())


def test_sickness_reaches_slices_kubelet_claim_and_application(root: Path) -> None:
    async def story() -> None:
        driver = Hello()
        async with machine(root, driver) as here, await here.register() as kubelet:
            claim = await allocated_claim(here.client, "c", "d0")
            await kubelet.prepare(wire.DRA_V1, [asked(claim)])
            stream = kubelet.watch_health(wire.HEALTH_V1)
            assert {d.health for d in (await anext(stream)).devices} == {wire.HealthStatus.HEALTHY}

            driver.sick = {"d0": Health("Degraded", "half the lanes")}
            assert "half the lanes" in [d.message for d in (await anext(stream)).devices]
            conditions = await eventually(lambda: conditions_of(here.client, "c"), bool)
            assert [(c.type, c.status, c.reason, c.message) for c in conditions] == [
                ("Healthy", "False", "Degraded", "half the lanes")
            ]
            path = here.settings.plugin_folder(NAME) / "dra-device-metadata/default_c/r/metadata.json"
            content = read(path)
            assert content["metadata"]["generation"] == 2
            assert content["requests"][0]["devices"][0]["attributes"]["drakkar.dev/health"] == {"string": "Degraded"}
            assert not (await here.devices())["d0"].taints

            driver.sick = {"d0": Health("Unhealthy", "XID 79"), "d1": Health("Unhealthy", effect="None")}
            found = await eventually(here.devices, lambda devices: bool(devices["d0"].taints))
            assert [(t.key, t.effect) for t in found["d0"].taints or ()] == [(f"{NAME}/unhealthy", "NoExecute")]
            assert not found["d1"].taints

            driver.sick = {}
            await eventually(here.devices, lambda devices: not devices["d0"].taints)
            await eventually(
                lambda: conditions_of(here.client, "c"), lambda found: [c.status for c in found] == ["True"]
            )
            assert "drakkar.dev/health" not in read(path)["requests"][0]["devices"][0]["attributes"]

            driver.blind = True
            async for report in stream:
                if {d.health for d in report.devices} == {wire.HealthStatus.UNKNOWN}:
                    break
            await stream.aclose()

    asyncio.run(story())


def test_of_a_driver_that_hangs_nothing_is_known(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drakkar.driver.service.HEALTH_TIMEOUT", 0.05)
    go_on = threading.Event()

    async def story() -> None:
        driver = Hello()
        async with machine(root, driver) as here, await here.register() as kubelet:
            stream = kubelet.watch_health(wire.HEALTH_V1)
            for hangs, state in ((True, wire.HealthStatus.UNKNOWN), (False, wire.HealthStatus.HEALTHY)):
                if hangs:
                    driver.health = lambda: (go_on.wait(10), {})[1]  # type: ignore[method-assign]
                else:
                    go_on.set()
                async for report in stream:
                    if {d.health for d in report.devices} == {state}:
                        break
            await stream.aclose()

    try:
        asyncio.run(story())
    finally:
        go_on.set()


def test_new_hardware_and_pools_that_cannot_be(root: Path) -> None:
    async def story() -> None:
        driver = Hello()
        async with machine(root, driver) as here:
            await asyncio.wait_for(here.service.publication.published.wait(), 60)
            driver.devices = [counter_set("s", {"c": 1}), device("d7")]
            here.service.refresh()
            await eventually(here.devices, lambda devices: devices.keys() == {"d7"})
            assert [len(s.spec.sharedCounters or ()) for s in await here.slices()] == [1, 0]
            driver.devices = [device("d8"), device("d8")]
            here.service.refresh()
            events = await eventually(lambda: events_of(here.client), bool)
            assert events[0]["reason"] == "ResourceSlicesNotPublished"
            assert "device 'd8' exists twice" in events[0]["message"]
            driver.devices = [device("Not A Name")]
            here.service.refresh()
            events = await eventually(lambda: events_of(here.client), lambda found: len(found) > 1)
            assert any("cannot be published" in event["message"] for event in events)

    asyncio.run(story())


async def conditions_of(client: Client, name: str) -> list[Any]:
    claim = await client.get(RESOURCECLAIM, name, "default")
    return [condition for entry in claim.status.devices or () for condition in entry.conditions or ()]


async def events_of(client: Client) -> list[Any]:
    return (await client.list(EVENT)).items
