"""The GPU driver on nodes that are not there: every example, from the manifest to what a container gets."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.kinds import RESOURCESLICE
from drakkar.driver import ContainerEdits, PrepareError
from drakkar.drivers.gpu.command import _hardware
from drakkar.drivers.gpu.devices import describe, semver
from drakkar.drivers.gpu.driver import GpuDriver
from drakkar.drivers.gpu.fake import MODELS, FakeHardware
from drakkar.drivers.gpu.hardware import MigInstance
from drakkar.plugin.checkpoint import PreparedDevice
from drakkar.plugin.wire import Claim
from tests.support.drivers import Build, DriverCluster, driver_cluster
from tests.support.eventually import eventually

EXAMPLES = Path(__file__).parents[3] / "examples" / "gpu"


def build(model: str = "a100", count: int = 0, *, mig: str = "off", passthrough: bool = False) -> Build:
    return lambda node, folder: GpuDriver(
        FakeHardware(folder, model, count, node=node, mig=mig == "static"), mig=mig, passthrough=passthrough
    )


def run(
    root: Path, make: Build, example: str, story: Callable[[DriverCluster], Awaitable[None]], pods: int = 1
) -> None:
    async def main() -> None:
        async with driver_cluster(root, {"n1": {"gpu": make}}) as cluster:
            await cluster.apply(EXAMPLES / "classes.yaml")
            await cluster.apply(EXAMPLES / f"{example}.yaml")
            await cluster.bound(pods)
            await story(cluster)

    asyncio.run(main())


async def edits(cluster: DriverCluster) -> list[ContainerEdits]:
    (claim,) = await cluster.claims()
    return await cluster.prepare("n1", "gpu", claim)


def hardware(cluster: DriverCluster) -> FakeHardware:
    driver = cluster.services["n1", "gpu"].driver
    assert isinstance(driver, GpuDriver)
    found = driver._hardware
    assert isinstance(found, FakeHardware)
    return found


def gpus_of(found: list[ContainerEdits]) -> list[str]:
    return sorted(env.partition("=")[0] for edit in found for env in edit.env if env.startswith("GPU_"))


@pytest.mark.parametrize(
    ("example", "pods", "expected"),
    [
        ("01-one-gpu", 1, ["GPU_GPU_0"]),
        ("02-several-gpus", 1, [f"GPU_GPU_{i}" for i in range(4)]),
        ("03-by-attribute", 1, ["GPU_GPU_0"]),
        ("04-by-preference", 1, ["GPU_GPU_0", "GPU_GPU_1"]),
        ("05-shared-by-containers", 1, ["GPU_GPU_0"]),
        ("06-shared-by-pods", 2, ["GPU_GPU_0"]),
    ],
)
def test_whole_gpus(root: Path, example: str, pods: int, expected: list[str]) -> None:
    async def story(cluster: DriverCluster) -> None:
        found = await edits(cluster)
        assert gpus_of(found) == expected
        nodes = [node.path for edit in found for node in edit.deviceNodes]
        assert {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"} <= set(nodes)
        assert "NVIDIA_VISIBLE_DEVICES=void" in [env for edit in found for env in edit.env]

    run(root, build(), example, story, pods)


def test_device_nodes_of_fake_gpus_are_real_to_a_container(tmp_path: Path) -> None:
    """They name numbers, so that a runtime needs no node of the machine; each its own, none a real device's."""
    fake = FakeHardware(tmp_path, "h100")
    paths = [f"/dev/nvidia{i}" for i in range(8)] + ["/dev/vfio/10", "/dev/vfio/vfio", *fake.common_nodes()]
    paths += ["/dev/nvidia-caps/nvidia-cap94", "/dev/nvidia-caps/nvidia-cap794"]
    nodes = [fake.device_node(path) for path in paths]
    assert {(node.type, node.major, node.permissions) for node in nodes} == {("c", 120, "rw")}
    assert len({node.minor for node in nodes}) == len(paths)
    assert max(node.minor or 0 for node in nodes) < 1 << 20


def test_files_stand_for_the_memory_of_whole_gpus(tmp_path: Path) -> None:
    from drakkar.api.resource import v1
    from drakkar.driver import AllocatedDevice

    memory = tmp_path / "memory"
    driver = GpuDriver(FakeHardware(tmp_path, "a100", 2, memory=memory), mig="dynamic")
    driver.discover()

    def ask(name: str) -> list[str]:
        result = v1.DeviceRequestAllocationResult(request="r", driver=driver.name, pool="n", device=name)
        (prepared,) = driver.prepare(v1.ResourceClaim(), [AllocatedDevice(result=result, configs=[])])
        return [mount.containerPath for mount in prepared.edits.mounts]

    (path,) = ask("gpu-1")
    assert path.startswith("/run/fake-gpus/GPU-")
    assert (memory / path.rpartition("/")[2]).stat().st_size == 16 << 20
    assert ask("gpu-0-mig-1g5gb-19-0") == []


def test_time_slicing_is_set_and_reset(root: Path) -> None:
    async def story(cluster: DriverCluster) -> None:
        await edits(cluster)
        gpu = hardware(cluster).gpus()[0].uuid
        assert hardware(cluster).state.time_slices == {gpu: "Long"}
        (claim,) = await cluster.claims()
        await cluster.unprepare("n1", "gpu", claim)
        assert hardware(cluster).state.time_slices == {gpu: "Default"}

    run(root, build(), "07-time-slicing", story, 2)


def test_mps_has_a_daemon_per_claim(root: Path) -> None:
    async def story(cluster: DriverCluster) -> None:
        found = await edits(cluster)
        assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in [env for edit in found for env in edit.env]
        (claim,) = await cluster.claims()
        gpu = hardware(cluster).gpus()[0].uuid
        state = hardware(cluster).state
        assert (state.mps, state.exclusive) == ({claim.metadata.uid: [gpu, "50", "10G"]}, [gpu])
        await cluster.unprepare("n1", "gpu", claim)
        state = hardware(cluster).state
        assert (state.mps, state.exclusive) == ({}, [])

    run(root, build(), "08-mps", story, 2)


def test_static_partition(root: Path) -> None:
    def make(node: str, folder: Path) -> GpuDriver:
        fake = FakeHardware(folder, "a100", 1, node=node, mig=True)
        (gpu,) = fake.gpus()
        profile = next(p for p in gpu.mig_profiles if p.name == "3g.20gb")
        fake.create_mig(gpu.uuid, profile, 4)
        return GpuDriver(fake, mig="static")

    async def story(cluster: DriverCluster) -> None:
        found = await edits(cluster)
        assert gpus_of(found) == ["GPU_GPU_0_MIG_3G20GB_9_4"]
        assert "/dev/nvidia-caps/nvidia-cap94" in [node.path for edit in found for node in edit.deviceNodes]
        (claim,) = await cluster.claims()
        await cluster.unprepare("n1", "gpu", claim)
        assert len(hardware(cluster).gpus()[0].mig_instances) == 1

    run(root, make, "09-static-mig", story)


def test_partitions_are_cut_and_mended(root: Path) -> None:
    async def story(cluster: DriverCluster) -> None:
        found = await edits(cluster)
        assert len(gpus_of(found)) == 3
        made = [i for gpu in hardware(cluster).gpus() for i in gpu.mig_instances]
        assert sorted(i.profile for i in made) == ["1g.5gb", "1g.5gb", "3g.20gb"]
        assert len({i.gpu for i in made}) == 1
        await edits(cluster)
        assert len([i for gpu in hardware(cluster).gpus() for i in gpu.mig_instances]) == 3
        (claim,) = await cluster.claims()
        await cluster.unprepare("n1", "gpu", claim)
        assert [i for gpu in hardware(cluster).gpus() for i in gpu.mig_instances] == []

    run(root, build(count=2, mig="dynamic"), "10-dynamic-mig", story)


def test_passthrough_takes_the_gpu_from_its_driver_and_gives_it_back(root: Path) -> None:
    async def story(cluster: DriverCluster) -> None:
        found = await edits(cluster)
        assert [node.path for edit in found for node in edit.deviceNodes] == ["/dev/vfio/10", "/dev/vfio/vfio"]
        assert hardware(cluster).gpus()[0].bound == "vfio-pci"
        (claim,) = await cluster.claims()
        await cluster.unprepare("n1", "gpu", claim)
        assert hardware(cluster).gpus()[0].bound == "nvidia"

    run(root, build(passthrough=True), "13-passthrough", story)


def test_xid_errors_become_taints(root: Path) -> None:
    async def story(cluster: DriverCluster) -> None:
        folder = root / "0" / "gpu"
        folder.joinpath("xid").write_text("0 13\n1 79\n2 63\n")

        async def tainted() -> dict[str, list[str]]:
            slices = (await cluster.client.list(RESOURCESLICE)).items
            return {d.name: [t.effect for t in d.taints] for s in slices for d in s.spec.devices if d.taints}

        assert await eventually(tainted, bool) == {"gpu-1": ["NoExecute"]}
        health = cluster.services["n1", "gpu"].driver.health()
        assert {name: (h.state, h.message) for name, h in health.items()} == {
            "gpu-1": ("Unhealthy", "XID 79"),
            "gpu-2": ("Degraded", "XID 63"),
        }

    run(root, build(), "01-one-gpu", story)


def test_partitions_of_a_crash_are_removed_at_the_start(tmp_path: Path) -> None:
    fake = FakeHardware(tmp_path, "h100", 1)
    (gpu,) = fake.gpus()
    small = next(p for p in gpu.mig_profiles if p.name == "1g.10gb")
    kept, left = fake.create_mig(gpu.uuid, small, 0), fake.create_mig(gpu.uuid, small, 3)
    driver = GpuDriver(fake, mig="dynamic")
    driver.discover()
    held = PreparedDevice(requestNames=["r"], poolName="n1", deviceName="gpu-0-mig-1g10gb-19-0")
    driver.records = lambda: {"u1": [held]}
    driver.restore()
    assert fake.gpus()[0].mig_instances == (kept,)
    driver.unprepare(Claim("ns", "u1", "c"), [held])
    assert fake.gpus()[0].mig_instances == ()
    assert left.uuid != kept.uuid


@pytest.mark.parametrize("model", MODELS)
def test_partitions_of_the_vendors_tables_fit_side_by_side_or_not(tmp_path: Path, model: str) -> None:
    """What the counters allow is what the hardware can do: the seven smallest fit, an eighth does not."""
    fake = FakeHardware(tmp_path, model, 1)
    sets, found = describe(fake.gpus(), fake.versions(), mig="dynamic", passthrough=False)
    totals = {name: counter.value for name, counter in sets[0].counters.items()}
    assert {f"memory-slice-{i}" for i in range(8)} <= totals.keys()
    assert len(totals) <= 32
    whole = found["gpu-0"][0].consumesCounters
    assert whole is not None
    assert {name: c.value for name, c in whole[0].counters.items()} == totals
    smallest = [d for d, thing in found.values() if (d.attributes or {})["type"].string == "mig" and "-19-" in d.name]
    used = sum(int(d.consumesCounters[0].counters["multiprocessors"].value) for d in smallest if d.consumesCounters)
    assert len(smallest) == 7
    assert used <= int(totals["multiprocessors"])


def test_parameters_that_do_not_fit_the_device_are_refused(tmp_path: Path) -> None:
    from drakkar.api.resource import v1
    from drakkar.driver import AllocatedDevice
    from drakkar.drivers.gpu.config import GpuConfig, Mps, Sharing, TimeSlicing, VfioConfig

    driver = GpuDriver(FakeHardware(tmp_path, "a100", 1), mig="dynamic", passthrough=True)
    driver.discover()

    def ask(name: str, config: GpuConfig | VfioConfig) -> None:
        result = v1.DeviceRequestAllocationResult(request="r", driver=driver.name, pool="n", device=name)
        driver.prepare(v1.ResourceClaim(), [AllocatedDevice(result=result, configs=[config])])

    with pytest.raises(PrepareError, match="must be a GpuConfig"):
        ask("gpu-0", VfioConfig())
    with pytest.raises(PrepareError, match="must be a VfioConfig"):
        ask("gpu-0-vfio", GpuConfig())
    with pytest.raises(PrepareError, match="no time slice of its own"):
        ask("gpu-0-mig-1g5gb-19-0", GpuConfig(Sharing("TimeSlicing", TimeSlicing("Long"))))
    with pytest.raises(PrepareError, match="does not exist"):
        ask("gpu-9", GpuConfig())
    with pytest.raises(ValueError, match="only for strategy MPS"):
        Sharing("TimeSlicing", mps=Mps(50))


def test_versions_become_semantic() -> None:
    assert [semver(text) for text in ("580.126.09", "13.0", "9.0")] == ["580.126.9", "13.0.0", "9.0.0"]


def test_the_vendors_files_are_found_below_any_root_and_mounted_where_programs_look(tmp_path: Path) -> None:
    from drakkar.drivers.gpu.nvml import NvmlHardware

    class Nvml:
        class NVMLError(Exception):
            pass

        @staticmethod
        def nvmlInit() -> None:
            pass

    for name in ("usr/lib64/libcuda.so.1", "usr/bin/nvidia-smi", "usr/lib64/libother.so.1"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    hardware = NvmlHardware(tmp_path, tmp_path / "state", nvml=Nvml)
    assert hardware.libraries() == [
        (str(tmp_path / "usr/bin/nvidia-smi"), "/usr/bin/nvidia-smi"),
        (str(tmp_path / "usr/lib64/libcuda.so.1"), "/usr/lib64/libcuda.so.1"),
    ]


def test_mig_mode_ends_with_the_last_partition(tmp_path: Path) -> None:
    """A whole GPU that is left in MIG mode is no good to whoever gets it next."""
    from types import SimpleNamespace as Of

    from drakkar.drivers.gpu.nvml import NvmlHardware

    class Nvml:
        """One GPU with one profile; partitions by their number, each with one compute instance of the same number."""

        NVML_GPU_INSTANCE_PROFILE_COUNT = 1

        class NVMLError(Exception):
            pass

        def __init__(self) -> None:
            self.mode, self.parts = 1, {1: "MIG-1", 2: "MIG-2"}

        def nvmlInit(self) -> None: ...

        def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
            return "gpu" if uuid == "GPU-0" else next(number for number, name in self.parts.items() if name == uuid)

        def nvmlDeviceGetMaxMigDeviceCount(self, gpu: Any) -> int:
            return 7

        def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: Any, index: int) -> int:
            if index not in self.parts:
                raise self.NVMLError("not found")
            return index

        def nvmlDeviceGetMinorNumber(self, gpu: Any) -> int:
            return 0

        def nvmlDeviceGetUUID(self, device: Any) -> str:
            return self.parts[device]

        def nvmlDeviceGetGpuInstanceId(self, device: Any) -> int:
            return device

        nvmlDeviceGetComputeInstanceId = nvmlDeviceGetGpuInstanceId

        def nvmlDeviceGetGpuInstanceById(self, gpu: Any, number: int) -> int:
            return number

        nvmlGpuInstanceGetComputeInstanceById = nvmlDeviceGetGpuInstanceById

        def nvmlGpuInstanceGetInfo(self, part: int) -> Any:
            return Of(profileId=19, placement=Of(start=part))

        def nvmlComputeInstanceDestroy(self, compute: int) -> None: ...

        def nvmlGpuInstanceDestroy(self, part: int) -> None:
            del self.parts[part]

        def nvmlDeviceSetMigMode(self, gpu: Any, mode: int) -> int:
            self.mode = mode
            return 0

        def nvmlDeviceGetGpuInstanceProfileInfo(self, gpu: Any, number: int, *, version: int) -> Any:
            return Of(
                id=19,
                name="MIG 1g.5gb",
                memorySizeMB=4864,
                multiprocessorCount=14,
                copyEngineCount=1,
                decoderCount=0,
                encoderCount=0,
                jpegCount=0,
                ofaCount=0,
            )

        def nvmlDeviceGetGpuInstancePossiblePlacements(self, gpu: Any, number: int, found: Any, count: Any) -> None: ...

        class c_nvmlGpuInstancePlacement_t(ctypes.Structure):
            _fields_ = (("start", ctypes.c_uint), ("size", ctypes.c_uint))

    for number in (1, 2):
        access = tmp_path / f"proc/driver/nvidia/capabilities/gpu0/mig/gi{number}/access"
        for file in (access, access.parent / f"ci{number}" / "access"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("DeviceFileMinor: 30\n")
    nvml = Nvml()
    hardware = NvmlHardware(tmp_path, tmp_path / "state", system=tmp_path, nvml=nvml)

    def partition(number: int) -> MigInstance:
        return MigInstance(uuid=f"MIG-{number}", gpu="GPU-0", profile="1g.5gb", start=number)

    hardware.destroy_mig(partition(1))
    assert (nvml.parts, nvml.mode) == ({2: "MIG-2"}, 1)
    hardware.destroy_mig(partition(2))
    assert (nvml.parts, nvml.mode) == ({}, 0)


def test_the_webhook_needs_no_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from drakkar.drivers.gpu.command import main

    kubeconfig = (
        '{"current-context": "a", "contexts": [{"name": "a", "context": {"cluster": "a"}}], '
        '"clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}]}'
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config").write_text(kubeconfig)
        monkeypatch.setenv("KUBECONFIG", f"{folder}/config")
        assert main(["--webhook", ":0"]) == 2
    assert "needs --tls-cert and --tls-key" in capsys.readouterr().err


def test_fake_gpus_are_whole_until_somebody_splits_them(tmp_path: Path) -> None:
    """The command's default mode offers partitions that exist; without any there must be something to try with."""
    args = argparse.Namespace(
        fake="h100", fake_count=2, fake_folder=tmp_path, fake_memory=None, mig="static", node_name="n1"
    )

    def names() -> list[str]:
        return [found.name for found in GpuDriver(_hardware(args), mig=args.mig).discover() if hasattr(found, "name")]

    assert names() == ["gpu-0", "gpu-1"]
    hardware = _hardware(args)
    profile = hardware.gpus()[0].mig_profiles[0]
    hardware.create_mig(hardware.gpus()[0].uuid, profile, profile.placements[0][0])
    assert [name.startswith("gpu-0-mig-") for name in names()] == [True, False]
