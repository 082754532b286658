"""The way of a pod with a device through a real agent: claim, driver, process, status, end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.errors import ApiError
from drakkar.api.kinds import DEVICECLASS, EVENT, POD, RESOURCECLAIMTEMPLATE, RESOURCESLICE
from drakkar.api.kinds import NODE as NODE_KIND
from drakkar.api.meta import Object
from drakkar.api.resource import v1
from drakkar.driver import AllocatedDevice, ContainerEdits, Driver, device
from drakkar.driver.driver import Health
from drakkar.plugin.cdi import Mount
from tests.support.agents import NODE, Cluster, cluster
from tests.support.eventually import eventually

NAME = "hello.example.com"


class Hello(Driver):
    name = NAME

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prepared: list[str] = []
        self.unprepared: list[str] = []
        self.sick: dict[str, Health] = {}

    def discover(self) -> Sequence[v1.Device]:
        return [device(f"d{number}") for number in range(4)]

    def prepare(self, claim: v1.ResourceClaim, devices: Sequence[AllocatedDevice]) -> Sequence[ContainerEdits]:
        self.prepared.append(claim.metadata.uid)
        data = self.folder / "data"
        data.write_text("from the device\n")
        mount = Mount(hostPath=str(data), containerPath="/device/data", options=["ro", "bind"])
        return [ContainerEdits(env=[f"HELLO={found.name}"], mounts=[mount]) for found in devices]

    def unprepare(self, claim: Any, devices: Sequence[Any]) -> None:
        self.unprepared.append(claim.uid)

    def health(self) -> dict[str, Health]:
        return self.sick


def pod(name: str, script: str, **more: Any) -> Object:
    container: Object = {"name": "main", "image": "any", "command": ["sh", "-c", script]}
    container["resources"] = {"claims": [{"name": "hello"}]}
    claims = [{"name": "hello", "resourceClaimTemplateName": "hello"}]
    spec: Object = {"containers": [container], "resourceClaims": claims, "terminationGracePeriodSeconds": 1}
    spec["restartPolicy"] = "Never"
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec | more}


async def prepare_cluster(site: Cluster) -> None:
    selector = {"cel": {"expression": f'device.driver == "{NAME}"'}}
    await site.client.create(
        DEVICECLASS,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": NAME},
            "spec": {"selectors": [selector]},
        },
    )
    request = {"name": "r", "exactly": {"deviceClassName": NAME}}
    await site.client.create(
        RESOURCECLAIMTEMPLATE,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "hello", "namespace": "default"},
            "spec": {"spec": {"devices": {"requests": [request]}}},
        },
    )


async def gone(site: Cluster, name: str) -> bool:
    try:
        await site.pod(name)
    except ApiError as error:
        return error.code == 404
    return False


async def log(site: Cluster, name: str) -> str:
    path = f"/api/v1/namespaces/default/pods/{name}/log"
    try:
        response = await site.client.send("GET", path)
    except ApiError as error:
        if error.code != 400:
            raise
        return ""  # not started yet
    if response.stream is None:
        return response.body.decode()
    return b"".join([piece async for piece in response.stream]).decode()


def test_a_pod_gets_its_device_and_gives_it_back(tmp_path: Path, root: Path) -> None:
    async def run() -> None:
        async with cluster(tmp_path, root) as site:
            await prepare_cluster(site)
            agent = await site.start_agent()
            driver = Hello(tmp_path)
            await site.start_driver(driver)
            script = 'echo "I have $HELLO"; cat $DRAKKAR_ROOT/device/data; trap "exit 3" TERM; sleep 100 & wait'
            await site.client.create(POD, pod("p", script))
            running = await eventually(lambda: site.pod("p"), lambda p: p["status"].get("phase") == "Running")
            (status,) = running["status"]["containerStatuses"]
            (resources,) = status["allocatedResourcesStatus"]
            assert resources["name"] == "claim:hello"
            assert resources["resources"][0]["resourceID"].startswith(f"{NAME}/")
            assert await eventually(lambda: log(site, "p"), lambda text: "\n" in text) == "I have d0\nfrom the device\n"
            driver.sick = {"d0": Health("Unhealthy", "it coughs")}
            await eventually(
                lambda: site.pod("p"),
                lambda p: (
                    p["status"]["containerStatuses"][0]["allocatedResourcesStatus"][0]["resources"][0]["health"]
                    == "Unhealthy"
                ),
            )
            await site.client.delete(POD, "p", "default")
            await eventually(lambda: gone(site, "p"), bool)
            assert len(driver.prepared) == 1
            assert driver.unprepared == driver.prepared
            assert agent.claims is not None
            assert agent.claims.records() == []
            await eventually(site.claims, lambda claims: not claims)
            await eventually(lambda: asyncio.to_thread(os.listdir, root / "pods"), lambda left: not left)

    asyncio.run(run())


def test_devices_that_need_nobody_on_the_node(tmp_path: Path, root: Path) -> None:
    """``skipNodeOperations`` (spec/kubelet-protocol.md): no driver is there, and none is missed."""

    async def run() -> None:
        async with cluster(tmp_path, root) as site:
            await prepare_cluster(site)
            await site.start_agent()
            node = await eventually(
                lambda: site.client.get(NODE_KIND, NODE), lambda n: "declaredFeatures" in n.get("status", {})
            )
            spec = {
                "driver": NAME,
                "nodeName": NODE,
                "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "d0"}],
                "skipNodeOperations": ["*"],
            }
            owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node["metadata"]["uid"]}
            slice_ = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": "ready-made", "ownerReferences": [owner]},
                "spec": spec,
            }
            await site.client.create(RESOURCESLICE, slice_)
            await site.client.create(POD, pod("p", "echo done"))
            await eventually(lambda: site.pod("p"), lambda p: p["status"].get("phase") == "Succeeded")
            await site.client.delete(POD, "p", "default")
            await eventually(site.claims, lambda claims: not claims)

    asyncio.run(run())


def test_a_pod_that_ends_by_itself(tmp_path: Path, root: Path) -> None:
    async def run() -> None:
        async with cluster(tmp_path, root) as site:
            await prepare_cluster(site)
            await site.start_agent()
            driver = Hello(tmp_path)
            await site.start_driver(driver)
            await site.client.create(POD, pod("good", "echo done"))
            await site.client.create(POD, pod("bad", "exit 3"))
            await eventually(lambda: site.pod("good"), lambda p: p["status"].get("phase") == "Succeeded")
            bad = await eventually(lambda: site.pod("bad"), lambda p: p["status"].get("phase") == "Failed")
            ended = bad["status"]["containerStatuses"][0]["state"]["terminated"]
            assert (ended["exitCode"], ended["reason"]) == (3, "Error")
            # Before the pod is said to be over, its devices are free.
            assert sorted(driver.unprepared) == sorted(driver.prepared)
            assert await log(site, "good") == "done\n"
            await site.client.delete(POD, "good", "default")
            await eventually(lambda: gone(site, "good"), bool)

    asyncio.run(run())


def test_without_its_driver_a_pod_waits(tmp_path: Path, root: Path) -> None:
    async def run() -> None:
        async with cluster(tmp_path, root) as site:
            await prepare_cluster(site)
            await site.start_agent()
            driver = Hello(tmp_path)
            await site.start_driver(driver)
            await site.stop("driver")
            await site.client.create(POD, pod("p", "echo $HELLO"))

            async def events() -> list[str]:
                return [event["reason"] for event in (await site.client.list(EVENT)).items]

            await eventually(events, lambda reasons: "FailedPrepareDynamicResources" in reasons)
            await site.start_driver(driver, "driver again")
            await eventually(lambda: site.pod("p"), lambda p: p["status"].get("phase") == "Succeeded")

    asyncio.run(run())


def test_after_a_reboot_drivers_prepare_again(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from drakkar.node.agent import agent as module
    from drakkar.plugin.checkpoint import Torn

    async def run() -> None:
        async with cluster(tmp_path, root) as site:
            await prepare_cluster(site)
            await site.start_agent()
            driver = Hello(tmp_path)
            await site.start_driver(driver)
            body = pod("p", "sleep 1000")
            body["spec"]["restartPolicy"] = "Always"
            await site.client.create(POD, body)
            await eventually(lambda: site.pod("p"), lambda p: p["status"].get("phase") == "Running")
            (file,) = (root / "claims").iterdir()
            # Within one boot the record is enough.
            await site.stop("agent")
            agent = await site.start_agent()
            await asyncio.sleep(0.3)
            assert agent.claims is not None
            assert [record.state for record in agent.claims.records()] == ["prepared"]
            await site.stop("agent")
            # The machine was started anew: nothing that was set up in the kernel is left.
            monkeypatch.setattr(module, "boot_id", lambda: "another boot")
            agent = await site.start_agent()
            assert agent.claims is not None
            await eventually(
                lambda: asyncio.sleep(0, agent.claims.records()),
                lambda records: [record.bootID for record in records] == ["another boot"],
            )
            # A record that is damaged does not stop the agent; the pod's claim is written anew.
            await site.stop("agent")
            file.write_bytes(b"{")
            agent = await site.start_agent()
            assert agent.claims is not None
            await eventually(lambda: asyncio.sleep(0, agent.claims.records()), lambda records: len(records) == 1)
            assert not isinstance(agent.claims.records()[0], Torn)
            await site.client.delete(POD, "p", "default")
            await eventually(lambda: gone(site, "p"), bool)
            assert driver.unprepared == driver.prepared

    asyncio.run(run())


def test_a_node_is_ready_before_the_drivers_of_forgotten_pods_are_back(tmp_path: Path, root: Path) -> None:
    async def run() -> None:
        async with cluster(tmp_path, root) as site:
            await prepare_cluster(site)
            await site.start_agent()
            driver = Hello(tmp_path)
            await site.start_driver(driver)
            await site.client.create(POD, pod("p", "sleep 1000"))
            await eventually(lambda: site.pod("p"), lambda p: p["status"].get("phase") == "Running")
            await site.stop("agent")
            await site.stop("driver")
            await site.client.delete(POD, "p", "default", grace=0)
            agent = await site.start_agent()
            assert agent.claims is not None
            assert len(agent.claims.records()) == 1
            assert driver.unprepared == []
            await site.start_driver(driver, "driver again")
            await eventually(lambda: asyncio.sleep(0, agent.claims.records()), lambda left: not left)
            assert driver.unprepared == driver.prepared

    asyncio.run(run())


def test_a_node_that_was_not_heard_of_ends_what_was_given_away_before_it_is_ready(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with cluster(tmp_path, root) as site:
            await prepare_cluster(site)
            agent = await site.start_agent()
            driver = Hello(tmp_path)
            await site.start_driver(driver)
            await site.client.create(POD, pod("p", "sleep 1000"))
            await eventually(lambda: site.pod("p"), lambda p: p["status"].get("phase") == "Running")
            (worker,) = agent._workers.values()
            # Its watch is deaf while the pod is taken away from it by force.
            monkeypatch.setattr(worker, "update", lambda pod: None)
            deaf = worker.vanish
            monkeypatch.setattr(worker, "vanish", lambda: None)
            await site.client.delete(POD, "p", "default", grace=0)
            await asyncio.sleep(0.2)
            assert not worker.quiet.is_set()
            monkeypatch.setattr(worker, "vanish", deaf)
            joined: list[bool] = []
            join = agent._beats.join

            async def seen(beat: Any, node: Any) -> None:
                joined.append(worker.quiet.is_set())
                await join(beat, node)

            monkeypatch.setattr(agent._beats, "join", seen)
            # The lease has run out.
            agent._beat.renewed = float("-inf")
            agent._rejoin.set()
            await eventually(lambda: asyncio.sleep(0, joined), bool)
            assert joined == [True]
            await eventually(lambda: asyncio.sleep(0, driver.unprepared), bool)

    asyncio.run(run())


def test_the_health_of_an_extended_resource_is_told(tmp_path: Path, root: Path) -> None:
    """No claim in the pod: the class stands behind the name of a resource."""

    async def run() -> None:
        async with cluster(tmp_path, root) as site:
            await prepare_cluster(site)
            await site.client.patch(DEVICECLASS, NAME, None, {"spec": {"extendedResourceName": f"{NAME}/greeter"}})
            await site.start_agent()
            await site.start_driver(Hello(tmp_path))
            body = pod("p", 'echo "I have $HELLO"; sleep 100', resourceClaims=None)
            body["spec"]["containers"][0]["resources"] = {"limits": {f"{NAME}/greeter": 1}}
            await site.client.create(POD, body)
            running = await eventually(lambda: site.pod("p"), lambda p: p["status"].get("phase") == "Running")
            assert await eventually(lambda: log(site, "p"), lambda text: "\n" in text) == "I have d0\n"
            claim = running["status"]["extendedResourceClaimStatus"]
            (resources,) = running["status"]["containerStatuses"][0]["allocatedResourcesStatus"]
            request = claim["requestMappings"][0]["requestName"]
            assert resources["name"] == f"claim:{claim['resourceClaimName']}/{request}"
            assert resources["resources"][0]["health"] == "Healthy"

    asyncio.run(run())
