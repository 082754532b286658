"""TPU slices on hosts: the fabric is linked for a claim before its pods are bound, each host hands out its chips."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.kinds import DEVICECLASS, NODE, POD, RESOURCECLAIM, RESOURCESLICE
from drakkar.api.names import TPU_DRIVER
from drakkar.api.objects import annotations_of, pod_node
from drakkar.client import Caches
from drakkar.client.clock import SystemClock
from drakkar.drivers.tpu import Host, TpuDriver
from drakkar.drivers.tpu.chips import FakeChips, LinuxChips
from drakkar.drivers.tpu.command import OwnNode, main
from drakkar.drivers.tpu.driver import BROKEN
from drakkar.drivers.tpu.fabric import FabricError, FakeFabric, ProgramFabric, Wiring, neighbours
from drakkar.drivers.tpu.host import TpuHostDriver
from drakkar.drivers.tpu.shapes import area_of
from tests.support.drivers import DriverCluster, driver_cluster
from tests.support.eventually import eventually

HOSTS = ("n0", "n1", "n2", "n3")


@asynccontextmanager
async def machine(root: Path) -> AsyncIterator[tuple[DriverCluster, FakeFabric]]:
    """A TPU pod of two by two hosts, a part of the driver on each, and the central one with a fabric."""
    made: list[Caches] = []
    loop = asyncio.get_running_loop()

    def build(name: str, folder: Path) -> TpuHostDriver:
        node = OwnNode(made[0].client, made[0], name, loop)
        return TpuHostDriver(FakeChips(folder, 4), node.read, node.seen, node.mark)

    fabric = FakeFabric(root / "fabric")
    nodes = {name: {"tpu": build} for name in HOSTS}
    async with driver_cluster(root, nodes, with_client=lambda client: made.append(Caches(client))) as cluster:
        await made[0].start()
        for number, name in enumerate(HOSTS):
            labels = {
                f"{TPU_DRIVER}/pod": "pod-0",
                f"{TPU_DRIVER}/x": str(number % 2),
                f"{TPU_DRIVER}/y": str(number // 2),
            }
            await cluster.client.patch(NODE, name, None, {"metadata": {"labels": labels}})
        selectors = [{"cel": {"expression": f'device.driver == "{TPU_DRIVER}"'}}]
        await cluster.client.create(
            DEVICECLASS,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceClass",
                "metadata": {"name": TPU_DRIVER},
                "spec": {"selectors": selectors},
            },
        )
        central = asyncio.create_task(TpuDriver(cluster.client, SystemClock(), fabric).run())
        try:
            yield cluster, fabric
        finally:
            central.cancel()
            await asyncio.gather(central, return_exceptions=True)
            await made[0].stop()


def claim(topology: str) -> dict[str, Any]:
    expression = f'device.attributes["{TPU_DRIVER}"].topology == "{topology}"'
    exactly = {"deviceClassName": TPU_DRIVER, "selectors": [{"cel": {"expression": expression}}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": "slice",
            "namespace": "default",
            "annotations": {"drakkar.dev/pods-per-node": "1"},
        },
        "spec": {"devices": {"requests": [{"name": "slice", "exactly": exactly}]}},
    }


def pod(name: str) -> dict[str, Any]:
    container = {"name": "worker", "image": "any", "resources": {"claims": [{"name": "slice"}]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container], "resourceClaims": [{"name": "slice", "resourceClaimName": "slice"}]},
    }


async def start(cluster: DriverCluster, topology: str, pods: int) -> list[Any]:
    await cluster.client.create(RESOURCECLAIM, claim(topology))
    for number in range(pods):
        await cluster.client.create(POD, pod(f"worker-{number}"))
    return await cluster.bound(pods)


def environment(edits: Sequence[Any]) -> dict[str, str]:
    return dict(entry.split("=", 1) for edit in edits for entry in edit.env or ())


def test_a_slice_is_linked_for_its_claim_and_every_host_knows_its_place(root: Path) -> None:
    async def scenario() -> None:
        async with machine(root) as (cluster, fabric):
            bound = await start(cluster, "4x4", 4)
            assert sorted(pod_node(found) for found in bound) == list(HOSTS)
            [wiring] = fabric.connected().values()
            assert (wiring.pod, wiring.device, wiring.hosts) == ("pod-0", "tpu-4x4-0-0", list(HOSTS))
            assert sorted(wiring.links) == [("n0", "n1"), ("n0", "n2"), ("n1", "n3"), ("n2", "n3")]
            [allocated] = await cluster.claims()
            for number, name in enumerate(HOSTS):
                edits = await cluster.prepare(name, "tpu", allocated)
                assert environment(edits) == {
                    "TPU_WORKER_ID": str(number),
                    "TPU_TOPOLOGY": "4x4",
                    "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
                    "TPU_HOST_BOUNDS": "2,2,1",
                    "TPU_SKIP_MDS_QUERY": "true",
                }
                nodes = [node.path for edit in edits for node in edit.deviceNodes or ()]
                assert nodes == [f"/dev/accel{chip}" for chip in range(4)]
                await cluster.unprepare(name, "tpu", allocated)
            for number in range(4):
                await cluster.client.delete(POD, f"worker-{number}", "default", grace=0)
            await cluster.client.delete(RESOURCECLAIM, "slice", "default")
            await eventually(lambda: asyncio.sleep(0, fabric.connected()), lambda found: not found)

    asyncio.run(scenario())


def test_a_slice_whose_links_fail_is_given_up_for_another(root: Path) -> None:
    async def scenario() -> None:
        async with machine(root) as (cluster, fabric):
            (root / "fabric" / "fault-n0").touch()
            [bound] = await start(cluster, "2x2", 1)
            assert pod_node(bound) != "n0"
            assert [wiring.hosts for wiring in fabric.connected().values()] == [[pod_node(bound)]]

    asyncio.run(scenario())


def test_links_that_a_crash_has_left_are_undone(root: Path) -> None:
    async def scenario() -> None:
        left = Wiring(claim="gone", pod="pod-0", device="tpu-4x4-0-0", hosts=list(HOSTS), links=[])
        FakeFabric(root / "fabric").connect(left)
        async with machine(root) as (cluster, fabric):
            [bound] = await start(cluster, "2x4", 1)
            [wiring] = fabric.connected().values()
            assert pod_node(bound) in wiring.hosts
            assert wiring.claim != "gone"

    asyncio.run(scenario())


def test_a_host_that_misses_a_chip_is_marked_and_its_slices_are_tainted(root: Path) -> None:
    async def scenario() -> None:
        async with machine(root) as (cluster, _fabric):

            async def tainted() -> set[str]:
                slices = (await cluster.client.list(RESOURCESLICE)).items
                return {device.name for found in slices for device in found.spec.devices or () if device.taints}

            gone = root / "0" / "tpu" / "gone-3"
            gone.touch()
            await eventually(tainted, lambda found: found == {"tpu-2x2-0-0", "tpu-2x4-0-0", "tpu-4x4-0-0"})
            node = await cluster.client.get(NODE, "n0")
            assert annotations_of(node)[BROKEN] == "3 of 4 chips"
            gone.unlink()
            await eventually(tainted, lambda found: not found)

    asyncio.run(scenario())


def test_prepare_says_what_is_wrong(root: Path) -> None:
    async def scenario() -> None:
        async with machine(root) as (cluster, _fabric):
            [bound] = await start(cluster, "2x2", 1)
            [allocated] = await cluster.claims()
            place = HOSTS.index(pod_node(bound))
            other = next(name for name in HOSTS if name != pod_node(bound))
            with pytest.raises(AssertionError, match=r"has no host at \(\d, \d\) of TPU pod pod-0, which this node is"):
                await cluster.prepare(other, "tpu", allocated)
            (root / str(place) / "tpu" / "gone-0").touch()
            with pytest.raises(AssertionError, match="3 of 4 chips of this host are there"):
                await cluster.prepare(pod_node(bound), "tpu", allocated)
            await cluster.client.patch(NODE, pod_node(bound), None, {"metadata": {"labels": {f"{TPU_DRIVER}/x": None}}})
            with pytest.raises(AssertionError, match="is no host of a TPU pod"):
                await cluster.prepare(pod_node(bound), "tpu", allocated)

    asyncio.run(scenario())


def test_areas_and_neighbours() -> None:
    area = area_of("tpu-4x8-8-0")
    assert area is not None
    assert area.rows(Host(0, 0, "h")) == [[(4, y), (5, y)] for y in range(4)]
    assert [area.number(Host(x, y, "h")) for x, y in ((4, 0), (5, 0), (4, 1), (5, 3), (3, 0), (4, 4))] == [
        0, 1, 2, 7, None, None,
    ]  # fmt: skip
    assert area_of("gpu-0") is None
    assert neighbours([["a"]]) == []
    assert neighbours([["a", "b"], ["c", "d"]]) == [("a", "b"), ("c", "d"), ("a", "c"), ("b", "d")]


def test_two_claims_cannot_link_one_host(tmp_path: Path) -> None:
    fabric = FakeFabric(tmp_path)
    first = Wiring(claim="a", pod="p", device="d", hosts=["h", "i"], links=[("h", "i")])
    fabric.connect(first)
    fabric.connect(first)
    with pytest.raises(FabricError, match="host i is linked for claim a"):
        fabric.connect(Wiring(claim="b", pod="p", device="e", hosts=["i"], links=[]))
    fabric.disconnect(first)
    fabric.disconnect(first)
    assert fabric.connected() == {}


def test_a_program_links(tmp_path: Path) -> None:
    program = tmp_path / "fabric"
    program.write_text(
        '#!/bin/sh\ncd "${0%/*}"\ncase $1 in\n'
        "connect) cat > linked; [ ! -e broken ] || { echo 'no light' >&2; exit 1; } ;;\n"
        "disconnect) rm linked ;;\nlist) [ ! -e linked ] || cat linked ;;\nesac\n"
    )
    fabric = ProgramFabric(program)
    with pytest.raises(FabricError, match="cannot be run: Permission denied"):
        fabric.connected()
    program.chmod(0o755)
    wiring = Wiring(claim="a", pod="p", device="d", hosts=["h", "i"], links=[("h", "i")])
    assert fabric.connected() == {}
    fabric.connect(wiring)
    assert json.loads((tmp_path / "linked").read_text())["links"] == [["h", "i"]]
    assert fabric.connected() == {wiring.key: wiring}
    fabric.disconnect(wiring)
    with pytest.raises(FabricError, match=r"ended with 1|No such file"):
        fabric.disconnect(wiring)
    (tmp_path / "broken").touch()
    with pytest.raises(FabricError, match=r"^no light$"):
        fabric.connect(wiring)
    (tmp_path / "linked").write_text("nonsense\n")
    with pytest.raises(FabricError, match="list: "):
        fabric.connected()
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(FabricError, match=r"did not end within 0\.1 s"):
        ProgramFabric(program, patience=0.1).connected()


def test_chips_as_the_kernel_shows_them(tmp_path: Path) -> None:
    (tmp_path / "dev" / "vfio").mkdir(parents=True)
    for name in ("vfio/vfio", "vfio/2", "vfio/10", "accelerator"):
        (tmp_path / "dev" / name).touch()
    chips = LinuxChips(tmp_path)
    assert [node.path for node in chips.nodes()] == ["/dev/vfio/2", "/dev/vfio/10"]
    assert [node.path for node in chips.common()] == ["/dev/vfio/vfio"]
    for number in (1, 0):
        (tmp_path / "dev" / f"accel{number}").touch()
    assert [node.path for node in chips.nodes()] == ["/dev/accel0", "/dev/accel1"]
    assert list(chips.common()) == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--fake-chips", "4"], "--fake-chips is for the part of a host; give --node-name"),
        (["--node-name", "n", "--fake-fabric", "f"], "--fake-fabric is for the part for the whole cluster"),
        (["--fabric-program", "p", "--fake-fabric", "f"], "there is one fabric"),
    ],
)
def test_flags_of_the_other_part_are_refused(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    config = tmp_path / "config"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: c}}]\n"
        "clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: c, user: {token: t}}]\n"
    )
    assert main(["--kubeconfig", str(config), *flags]) == 2
    assert said in capsys.readouterr().err
