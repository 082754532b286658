"""Multi-node domains: a job's pods land on one clique, their nodes join, the domain says when it is ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.errors import ApiError, UsageError
from drakkar.api.kinds import DEVICECLASS, POD, Kind
from drakkar.api.objects import condition_is, name_of
from drakkar.cli.manifests import read_objects
from drakkar.client import Client
from drakkar.drivers.computedomain.command import DomainStatus, control, label_node
from drakkar.drivers.computedomain.driver import ComputeDomainDriver
from drakkar.drivers.computedomain.fabric import FakeFabric, Imex
from drakkar.drivers.computedomain.names import COMPUTEDOMAIN
from tests.support.drivers import DriverCluster, driver_cluster
from tests.support.eventually import eventually

EXAMPLES = Path(__file__).parents[3] / "examples" / "computedomain"
CRD = Kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", False)
KINDS = {"CustomResourceDefinition": CRD, "DeviceClass": DEVICECLASS, "ComputeDomain": COMPUTEDOMAIN, "Pod": POD}


async def create(cluster: DriverCluster, file: str, **changes: Any) -> None:
    for obj in read_objects(EXAMPLES / file):
        namespace = "default" if KINDS[obj["kind"]].namespaced else None
        if obj["kind"] == "ComputeDomain":
            obj["spec"] |= changes
        await cluster.client.create(KINDS[obj["kind"]], obj, namespace)


@asynccontextmanager
async def racks(root: Path, cliques: dict[str, str]) -> AsyncIterator[tuple[DriverCluster, dict[str, FakeFabric]]]:
    """Nodes by name with their cliques, one folder as the memory of all fabrics."""
    fabrics = {node: FakeFabric(root / "fabric") for node in cliques}
    loop = asyncio.get_running_loop()
    clients: list[Client] = []

    def build(node: str, _folder: Path) -> ComputeDomainDriver:
        status = DomainStatus(clients[0], node, loop)
        return ComputeDomainDriver(node, fabrics[node], status.read, status.tell)

    async with driver_cluster(root, {node: {"cd": build} for node in cliques}, with_client=clients.append) as cluster:
        await create(cluster, "crd.yaml")
        for node, clique in cliques.items():
            await label_node(cluster.client, node, clique)
        controllers = asyncio.create_task(control(cluster.client))
        try:
            yield cluster, fabrics
        finally:
            controllers.cancel()
            await asyncio.gather(controllers, return_exceptions=True)


async def domain(cluster: DriverCluster) -> Any:
    return await cluster.client.get(COMPUTEDOMAIN, "training", "default")


def test_a_domain_from_claim_to_ready_and_back(root: Path) -> None:
    async def story() -> None:
        async with racks(root, {"a1": "rack-a", "b1": "rack-b", "b2": "rack-b"}) as (cluster, fabrics):
            await create(cluster, "domain.yaml")
            pods = await cluster.bound(2)
            assert sorted(pod["spec"]["nodeName"] for pod in pods) == ["b1", "b2"]
            found = await eventually(lambda: domain(cluster), lambda d: d.get("status", {}).get("clique"))
            assert (found["status"]["clique"], found["status"]["status"]) == ("rack-b", "NotReady")
            (claim,) = await cluster.claims()

            with pytest.raises(AssertionError, match="1 of 2 nodes have joined domain training: b1"):
                await cluster.prepare("b1", "cd", claim)
            edits = await cluster.prepare("b2", "cd", claim)
            edits += await cluster.prepare("b1", "cd", claim)
            folders = {mount.hostPath for edit in edits for mount in edit.mounts if mount.containerPath == "/fabric"}
            assert len(folders) == 1
            found = await eventually(lambda: domain(cluster), lambda d: d["status"]["status"] == "Ready")
            assert sorted(node["name"] for node in found["status"]["nodes"]) == ["b1", "b2"]
            uid = found["metadata"]["uid"]
            await eventually(lambda: asyncio.sleep(0, fabrics["b2"]._up.get(uid)), lambda peers: peers == ["b1", "b2"])

            await cluster.unprepare("b1", "cd", claim)
            found = await eventually(lambda: domain(cluster), lambda d: d["status"]["status"] == "NotReady")
            assert [node["name"] for node in found["status"]["nodes"]] == ["b2"]
            assert found["status"]["conditions"][0]["message"] == "1 of 2 nodes have joined"
            assert not fabrics["b1"].ready(uid)

    asyncio.run(story())


def test_a_clique_that_is_too_small_is_not_taken_and_a_broken_daemon_is_named(root: Path) -> None:
    async def story() -> None:
        async with racks(root, {"a1": "rack-a", "b1": "rack-b"}) as (cluster, fabrics):
            await create(cluster, "domain.yaml")

            async def waiting() -> list[Any]:
                return (await cluster.client.list(POD, "default")).items

            pods = await eventually(
                waiting, lambda pods: len(pods) == 2 and all(p["status"].get("conditions") for p in pods)
            )
            assert not any(condition_is(pod, "PodScheduled") for pod in pods)
            found = await eventually(lambda: domain(cluster), lambda d: d.get("status"))
            assert found["status"]["conditions"][0]["reason"] == "NotAllocated"
            # A third machine is put into rack b: now there is room.
            await label_node(cluster.client, "a1", "rack-b")
            pods = await cluster.bound(2)
            found = await domain(cluster)
            node = pods[0]["spec"]["nodeName"]
            fabrics[node].broken.add(found["metadata"]["uid"])
            (claim,) = await cluster.claims()
            with pytest.raises(AssertionError, match="does not start"):
                await cluster.prepare(node, "cd", claim)

    asyncio.run(story())


def test_a_claim_of_that_name_that_is_somebody_elses_is_told(root: Path) -> None:
    async def story() -> None:
        async with racks(root, {"a1": "rack-a"}) as (cluster, _):
            from drakkar.api.kinds import RESOURCECLAIM

            request = {"name": "r", "exactly": {"deviceClassName": "computedomain.drakkar.dev"}}
            other = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": "training-channel"},
                "spec": {"devices": {"requests": [request]}},
            }
            await cluster.client.create(RESOURCECLAIM, other, "default")
            await create(cluster, "domain.yaml")
            found = await eventually(lambda: domain(cluster), lambda d: d.get("status"))
            assert found["status"]["conditions"][0]["reason"] == "ClaimExists"
            assert name_of(found) == "training"
            with pytest.raises(ApiError, match="does not change"):
                await cluster.client.patch(COMPUTEDOMAIN, "training", "default", {"spec": {"numNodes": 9}})
            with pytest.raises(UsageError, match="cannot be the value of label"):
                await label_node(cluster.client, "a1", "rack a")

    asyncio.run(story())


def test_the_daemon_is_run_with_the_addresses_of_all(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-imex"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    fabric = Imex(tmp_path / "imex", program=str(program))
    fabric.join("d1", 3, ["10.0.0.2", "10.0.0.1"])
    try:
        assert fabric.ready("d1")
        assert (tmp_path / "imex/d1/nodes.cfg").read_text() == "10.0.0.1\n10.0.0.2\n"
        again = Imex(tmp_path / "imex", program=str(program))
        assert again.ready("d1")
        assert not again.ready("d2")
    finally:
        fabric.leave("d1")
    assert not fabric.ready("d1")
    assert not (tmp_path / "imex/d1").exists()
