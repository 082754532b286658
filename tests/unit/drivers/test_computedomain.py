"""Multi-node domains: a job's pods land on one clique, their nodes join, the domain says when it is ready."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.errors import ApiError, UsageError
from drakkar.api.kinds import POD
from drakkar.api.objects import condition_is, name_of
from drakkar.client import Client
from drakkar.drivers.computedomain.command import DomainStatus, control, label_node
from drakkar.drivers.computedomain.driver import ComputeDomainDriver
from drakkar.drivers.computedomain.fabric import FabricError, FakeFabric, Imex
from drakkar.drivers.computedomain.names import COMPUTEDOMAIN
from drakkar.drivers.gpu.driver import GpuDriver
from drakkar.drivers.gpu.fake import FakeHardware
from drakkar.plugin import wire
from drakkar.plugin.checkpoint import PreparedDevice
from tests.support.drivers import DriverCluster, driver_cluster
from tests.support.eventually import eventually

EXAMPLES = Path(__file__).parents[3] / "examples"


@asynccontextmanager
async def racks(
    root: Path, cliques: dict[str, str], *, gpus: bool = False
) -> AsyncIterator[tuple[DriverCluster, dict[str, FakeFabric]]]:
    """Nodes by name with their cliques, one folder as the memory of all fabrics, four GPUs for each on demand."""
    memories = {node: root / f"gpus-{node}" for node in cliques}
    fabrics = {node: FakeFabric(root / "fabric", memories[node] if gpus else None) for node in cliques}
    loop = asyncio.get_running_loop()
    clients: list[Client] = []

    def gpu(node: str, folder: Path) -> GpuDriver:
        return GpuDriver(FakeHardware(folder, "gb200", node=node, memory=memories[node]), mig="off")

    def build(node: str, _folder: Path) -> ComputeDomainDriver:
        status = DomainStatus(clients[0], node, loop)
        return ComputeDomainDriver(node, fabrics[node], status.read, status.tell)

    drivers = {"gpu": gpu, "cd": build} if gpus else {"cd": build}
    async with driver_cluster(root, dict.fromkeys(cliques, drivers), with_client=clients.append) as cluster:
        await cluster.apply(EXAMPLES / "computedomain" / "crd.yaml")
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
            await cluster.apply(EXAMPLES / "computedomain" / "domain.yaml")
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


def test_gpus_of_two_nodes_in_one_nvlink_domain(root: Path) -> None:
    """Use case 12 of the GPU driver: what a pod gets reaches the GPUs of the other node, and no others."""

    async def story() -> None:
        async with racks(root, {"a1": "rack-a", "b1": "rack-b", "b2": "rack-b"}, gpus=True) as (cluster, fabrics):
            await cluster.apply(EXAMPLES / "gpu" / "classes.yaml")
            await cluster.apply(EXAMPLES / "gpu" / "12-nvlink-domain.yaml")
            pods = await cluster.bound(2)
            assert sorted(pod["spec"]["nodeName"] for pod in pods) == ["b1", "b2"]
            claims = {claim.metadata.name: claim for claim in await cluster.claims()}
            channel = claims.pop("nvlink-channel")
            with pytest.raises(AssertionError, match="1 of 2 nodes have joined"):
                await cluster.prepare("b1", "cd", channel)
            reached: dict[str, set[str]] = {}
            for node in ("b2", "b1"):
                edits = await cluster.prepare(node, "cd", channel)
                paths = [device.path for edit in edits for device in edit.deviceNodes]
                assert paths == ["/dev/nvidia-caps-imex-channels/channel0"]
                (folder,) = (Path(m.hostPath) for edit in edits for m in edit.mounts if m.containerPath == "/fabric")
                reached[node] = await asyncio.to_thread(_files, folder)
            own: dict[str, set[str]] = {}
            for claim in claims.values():
                assert claim.status.allocation is not None
                assert claim.status.allocation.devices.results is not None
                node = claim.status.allocation.devices.results[0].pool
                found = await cluster.prepare(node, "gpu", claim)
                places = [mount.containerPath for edit in found for mount in edit.mounts]
                own[node] = {place.rpartition("/")[2] for place in places if place.startswith("/run/fake-gpus/")}
                assert len(own[node]) == 4
            assert own["b1"].isdisjoint(own["b2"])
            assert reached == dict.fromkeys(("b1", "b2"), own["b1"] | own["b2"])
            memory = min(own["b2"])
            (folder / memory).write_bytes(b"written by b1")
            assert (root / "gpus-b2" / memory).read_bytes() == b"written by b1"
            await cluster.unprepare("b2", "cd", channel)
            assert await asyncio.to_thread(_files, folder) == own["b1"]
            assert fabrics["b1"].ready(folder.name)

    asyncio.run(story())


def _files(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_a_domain_that_is_left_while_it_is_looked_at_is_not_joined_again(tmp_path: Path) -> None:
    fabric = FakeFabric(tmp_path)
    state = {"domain": "uid-1", "name": "d", "channel": 0, "namespace": "default"}
    device = PreparedDevice(requestNames=["channel"], poolName="rack", deviceName="channel-0", state=state)
    asked = wire.Claim("default", "claim-1", "c")
    leaving: list[bool] = []

    def read(namespace: str, name: str) -> Any:
        if leaving:
            # Whoever is slower: the record goes only after the driver has done its part.
            driver.unprepare(asked, [device])
        return {"metadata": {"uid": "uid-1"}}

    driver = ComputeDomainDriver("n1", fabric, read, lambda _namespace, _name, _joined: None)
    driver.records = lambda: {"claim-1": [device]}
    driver.health()
    assert fabric.ready("uid-1")
    leaving.append(True)
    driver.health()
    assert not fabric.ready("uid-1")
    leaving.clear()
    driver.health()
    assert not fabric.ready("uid-1")


def test_memory_of_another_file_system_cannot_be_mapped(root: Path) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == root.stat().st_dev:
        pytest.skip("needs /dev/shm on a file system of its own")
    (root / "gpu").touch()
    with tempfile.TemporaryDirectory(dir=shared) as other, pytest.raises(FabricError, match="on one file system"):
        FakeFabric(Path(other), root).join("d", 0, [])


def test_a_clique_that_is_too_small_is_not_taken_and_a_broken_daemon_is_named(root: Path) -> None:
    async def story() -> None:
        async with racks(root, {"a1": "rack-a", "b1": "rack-b"}) as (cluster, fabrics):
            await cluster.apply(EXAMPLES / "computedomain" / "domain.yaml")

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
            await cluster.apply(EXAMPLES / "computedomain" / "domain.yaml")
            found = await eventually(lambda: domain(cluster), lambda d: d.get("status"))
            assert found["status"]["conditions"][0]["reason"] == "ClaimExists"
            assert name_of(found) == "training"
            with pytest.raises(ApiError, match="does not change"):
                await cluster.client.patch(COMPUTEDOMAIN, "training", "default", {"spec": {"numNodes": 9}})
            with pytest.raises(UsageError, match="cannot be the value of label"):
                await label_node(cluster.client, "a1", "rack a")

    asyncio.run(story())


@pytest.fixture
def daemon(tmp_path: Path) -> Path:
    """Stands for nvidia-imex: writes a line whenever it starts, and waits."""
    program = tmp_path / "nvidia-imex"
    line = f"import os, signal; open({str(tmp_path / 'starts')!r}, 'a').write(f'{{os.getpid()}}\\n'); signal.pause()"
    program.write_text(f"#!{sys.executable}\n{line}\n")
    program.chmod(0o755)
    return program


def starts(tmp_path: Path, count: int) -> list[int]:
    """Process ids of the daemons that were started, once there are so many."""
    file = tmp_path / "starts"
    deadline = time.monotonic() + 60
    while not file.exists() or len(file.read_text().splitlines()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return [int(line) for line in file.read_text().splitlines()]


def test_the_daemon_is_run_with_the_addresses_of_all(tmp_path: Path, daemon: Path) -> None:
    fabric = Imex(tmp_path / "imex", program=str(daemon))
    fabric.join("d1", 3, ["10.0.0.2", "10.0.0.1"])
    try:
        assert fabric.ready("d1")
        assert (tmp_path / "imex/d1/nodes.cfg").read_text() == "10.0.0.1\n10.0.0.2\n"
        starts(tmp_path, 1)
        # A node more: the daemon is told by being started again, once.
        for _ in range(2):
            fabric.join("d1", 3, ["10.0.0.2", "10.0.0.1", "10.0.0.3"])
        assert len(starts(tmp_path, 2)) == 2
        assert not fabric.ready("d2")
    finally:
        fabric.leave("d1")
    assert not fabric.ready("d1")
    assert not (tmp_path / "imex/d1").exists()


def test_the_daemon_survives_its_driver_and_there_is_never_a_second(tmp_path: Path, daemon: Path) -> None:
    join = (
        "import sys; from pathlib import Path; from drakkar.drivers.computedomain.fabric import Imex\n"
        "Imex(Path(sys.argv[1]), program=sys.argv[2]).join('d1', 0, ['10.0.0.1'])\n"
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    )
    command = [sys.executable, "-c", join, str(tmp_path / "imex"), str(daemon)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (first,) = starts(tmp_path, 1)
    # Two instances of an upgrade look after it, both by their regular looks.
    instances = [Imex(tmp_path / "imex", program=str(daemon)) for _ in range(2)]
    for instance in instances:
        assert instance.ready("d1")
        instance.join("d1", 0, ["10.0.0.1"])
    assert starts(tmp_path, 1) == [first]
    # It ends with the container of the instance that had started it: one of the others starts it, once.
    os.kill(first, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while instances[0].ready("d1"):
        assert time.monotonic() < deadline
    for instance in instances:
        instance.join("d1", 0, ["10.0.0.1"])
    assert len(starts(tmp_path, 2)) == 2
    # In another container its process cannot be seen; it is not taken for one that happens to have its number.
    (tmp_path / "imex/d1/pid").write_text(str(os.getpid()))
    with pytest.raises(FabricError, match="in another container"):
        instances[1].leave("d1")
    assert instances[1].ready("d1")
    (tmp_path / "imex/d1/pid").write_text(str(starts(tmp_path, 2)[1]))
    instances[1].leave("d1")
    assert not instances[0].ready("d1")
