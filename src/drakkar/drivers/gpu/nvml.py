"""Real GPUs: NVML by `nvidia-ml-py`, `/proc` and `/sys` for what NVML does not say, the vendor's tools for the rest.

A GPU that is passed through vanishes from NVML; it is remembered in a file, by its PCI address, so that it can be
offered further and be taken back. Needs the extra `gpu`.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from drakkar.api.errors import EnvironmentProblem
from drakkar.driver import DeviceNode, Mount
from drakkar.driver.memory import Memory
from drakkar.drivers.gpu.hardware import Event, Gpu, HardwareError, Interval, MigInstance, MigProfile

#: Values of `nvidia-smi compute-policy --set-timeslice`.
_SLICES: dict[Interval, int] = {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}
_LIBRARIES = (
    "libcuda.so.*",
    "libcudadebugger.so.*",
    "libnvidia-ml.so.*",
    "libnvidia-ptxjitcompiler.so.*",
    "libnvidia-nvvm.so.*",
    "libnvidia-gpucomp.so.*",
    "libnvidia-opencl.so.*",
)
_LIBRARY_FOLDERS = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib")
_TOOLS = ("usr/bin/nvidia-smi", "usr/bin/nvidia-cuda-mps-control", "usr/bin/nvidia-cuda-mps-server")
_MIB = 1 << 20
#: Seconds for one of the vendor's tools.
_PATIENCE = 30.0


class NvmlHardware:
    """The GPUs of this machine; `root` is where the NVIDIA driver is installed, `folder` the plugin's own.

    Raises EnvironmentProblem where there is no NVML.
    """

    def __init__(self, root: Path, folder: Path, *, system: Path = Path("/"), nvml: Any = None) -> None:
        self._root = root
        self._folder = folder
        self._system = system
        self._nvml = nvml or _module()
        self._events: Any = None
        self._memory = Memory(folder / "gpus.json", dict[str, Gpu], {})
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise EnvironmentProblem(
                f"NVML does not start: {error}; is the NVIDIA driver loaded? To try without GPUs: --fake a100"
            ) from error

    def versions(self) -> tuple[str, str]:
        with self._asking("versions"):
            cuda = self._nvml.nvmlSystemGetCudaDriverVersion_v2()
            return _text(self._nvml.nvmlSystemGetDriverVersion()), f"{cuda // 1000}.{cuda % 1000 // 10}"

    def gpus(self) -> Sequence[Gpu]:
        remembered = self._memory.read()
        found: dict[str, Gpu] = {}
        with self._asking("list of GPUs"):
            for index in range(self._nvml.nvmlDeviceGetCount()):
                gpu = self._read(self._nvml.nvmlDeviceGetHandleByIndex(index))
                found[gpu.pci_bus_id] = gpu
        for address, gpu in remembered.items():
            bound = self._bound(address)
            if address not in found and bound == "vfio-pci":
                found[address] = msgspec.structs.replace(gpu, bound=bound, mig_instances=(), mig_enabled=False)
        ordered = [found[address] for address in sorted(found)]
        # Numbered by address, because NVML's own numbers change when a GPU is passed through.
        ordered = [msgspec.structs.replace(gpu, index=index) for index, gpu in enumerate(ordered)]
        self._memory.write({gpu.pci_bus_id: gpu for gpu in ordered})
        return ordered

    def create_mig(self, gpu: str, profile: MigProfile, start: int) -> MigInstance:
        n = self._nvml
        with self._asking(f"partition {profile.name} at {start} of {gpu}"):
            handle = n.nvmlDeviceGetHandleByUUID(gpu)
            if n.nvmlDeviceGetMigMode(handle)[0] != 1:
                status = n.nvmlDeviceSetMigMode(handle, 1)
                if status != n.NVML_SUCCESS:
                    raise HardwareError(f"MIG mode of {gpu} needs a reset of the GPU (NVML status {status})")
            size = dict(profile.placements)[start]
            placement = n.c_nvmlGpuInstancePlacement_t(start, size)
            part = n.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile.id, ctypes.byref(placement))
            try:
                n.nvmlGpuInstanceCreateComputeInstance(part, self._whole_compute_profile(part))
            except n.NVMLError:
                n.nvmlGpuInstanceDestroy(part)
                raise
            for instance in self._instances(handle, gpu, [profile]):
                if instance.start == start:
                    return instance
        raise HardwareError(f"partition {profile.name} at {start} of {gpu} was made and is not there")

    def destroy_mig(self, instance: MigInstance) -> None:
        n = self._nvml
        with self._asking(f"removal of partition {instance.uuid}"):
            parent = n.nvmlDeviceGetHandleByUUID(instance.gpu)
            try:
                device = n.nvmlDeviceGetHandleByUUID(instance.uuid)
            except n.NVMLError:
                return
            part = n.nvmlDeviceGetGpuInstanceById(parent, n.nvmlDeviceGetGpuInstanceId(device))
            compute = n.nvmlGpuInstanceGetComputeInstanceById(part, n.nvmlDeviceGetComputeInstanceId(device))
            n.nvmlComputeInstanceDestroy(compute)
            n.nvmlGpuInstanceDestroy(part)
            if next(self._instances(parent, instance.gpu, self._profiles(parent)), None) is None:
                n.nvmlDeviceSetMigMode(parent, 0)

    def set_time_slice(self, gpu: str, interval: Interval) -> None:
        self._tool("nvidia-smi", "compute-policy", f"--set-timeslice={_SLICES[interval]}", "-i", gpu)

    def set_exclusive(self, gpu: str, exclusive: bool) -> None:
        n = self._nvml
        mode = n.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS if exclusive else n.NVML_COMPUTEMODE_DEFAULT
        with self._asking(f"compute mode of {gpu}"):
            n.nvmlDeviceSetComputeMode(n.nvmlDeviceGetHandleByUUID(gpu), mode)

    def start_mps(self, name: str, gpus: Sequence[str], threads: int | None, memory: str) -> str:
        pipe, log = self._folder / "mps" / name / "pipe", self._folder / "mps" / name / "log"
        pipe.mkdir(parents=True, exist_ok=True)
        log.mkdir(parents=True, exist_ok=True)
        env = self._mps_env(name) | {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "CUDA_MPS_LOG_DIRECTORY": str(log)}
        if not (pipe / "nvidia-cuda-mps-control.pid").exists():
            self._tool("nvidia-cuda-mps-control", "-d", env=env)
        orders = [f"set_default_active_thread_percentage {threads}"] if threads else []
        orders += [f"set_default_device_pinned_mem_limit {index} {memory}" for index in range(len(gpus)) if memory]
        for order in orders:
            self._tool("nvidia-cuda-mps-control", env=env, stdin=f"{order}\n")
        return str(pipe)

    def stop_mps(self, name: str) -> None:
        folder = self._folder / "mps" / name
        if not folder.exists():
            return
        with suppress(HardwareError):  # Not running is as good as ended.
            self._tool("nvidia-cuda-mps-control", env=self._mps_env(name), stdin="quit\n")
        shutil.rmtree(folder, ignore_errors=True)

    def bind(self, pci_bus_id: str, driver: str) -> None:
        device = self._pci(pci_bus_id)
        if self._bound(pci_bus_id) == driver:
            return
        try:
            (device / "driver_override").write_text(driver)
            if (device / "driver").exists():
                (device / "driver" / "unbind").write_text(pci_bus_id)
            (self._system / "sys/bus/pci/drivers_probe").write_text(pci_bus_id)
        except OSError as error:
            raise HardwareError(f"GPU {pci_bus_id} cannot be handed to {driver}: {error}") from error
        if self._bound(pci_bus_id) != driver:
            raise HardwareError(f"GPU {pci_bus_id} was not taken by {driver}; is its kernel module loaded?")

    def iommu_group(self, pci_bus_id: str) -> str:
        link = self._pci(pci_bus_id) / "iommu_group"
        if not link.exists():
            raise HardwareError(f"GPU {pci_bus_id} has no IOMMU group; switch the IOMMU on")
        return link.resolve().name

    def device_node(self, path: str) -> DeviceNode:
        return DeviceNode(path=path)

    def memory(self, gpu: str) -> Sequence[Mount]:
        return ()

    def common_nodes(self) -> Sequence[str]:
        names = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
        return [name for name in names if (self._system / name[1:]).exists()]

    def libraries(self) -> Sequence[tuple[str, str]]:
        found: set[Path] = {self._root / tool for tool in _TOOLS if (self._root / tool).exists()}
        for folder in _LIBRARY_FOLDERS:
            for pattern in _LIBRARIES:
                found.update((self._root / folder).glob(pattern))
        # Wherever the driver is installed on the host, programs look for it at the usual place.
        return [(str(path), f"/{path.relative_to(self._root)}") for path in sorted(found)]

    def events(self) -> Sequence[Event]:
        n = self._nvml
        found: list[Event] = []
        with self._asking("events"):
            if self._events is None:
                self._events = n.nvmlEventSetCreate()
                for index in range(n.nvmlDeviceGetCount()):
                    handle = n.nvmlDeviceGetHandleByIndex(index)
                    n.nvmlDeviceRegisterEvents(handle, n.nvmlEventTypeXidCriticalError, self._events)
            while True:
                try:
                    data = n.nvmlEventSetWait_v2(self._events, 0)
                except n.NVMLError_Timeout:
                    return found
                if data.eventType == n.nvmlEventTypeXidCriticalError:
                    found.append(Event(_text(n.nvmlDeviceGetUUID(data.device)), int(data.eventData)))

    # Reading.

    def _read(self, handle: Any) -> Gpu:
        n = self._nvml
        pci = n.nvmlDeviceGetPciInfo(handle)
        address = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
        major, minor = n.nvmlDeviceGetCudaComputeCapability(handle)
        uuid = _text(n.nvmlDeviceGetUUID(handle))
        profiles = self._profiles(handle)
        enabled = bool(profiles) and n.nvmlDeviceGetMigMode(handle)[0] == 1
        return Gpu(
            index=0,
            minor=n.nvmlDeviceGetMinorNumber(handle),
            uuid=uuid,
            product=_text(n.nvmlDeviceGetName(handle)),
            architecture=self._architecture(handle),
            compute_capability=f"{major}.{minor}",
            memory=n.nvmlDeviceGetMemoryInfo(handle).total // _MIB,
            multiprocessors=max((p.multiprocessors for p in profiles), default=0),
            pci_bus_id=address,
            pcie_root=self._pcie_root(address),
            numa_node=self._numa_node(address),
            clique=self._clique(handle),
            mig_profiles=tuple(profiles),
            mig_enabled=enabled,
            mig_instances=tuple(self._instances(handle, uuid, profiles)) if enabled else (),
        )

    def _architecture(self, handle: Any) -> str:
        number = self._nvml.nvmlDeviceGetArchitecture(handle)
        prefix = "NVML_DEVICE_ARCH_"
        names = {value: name for name, value in vars(self._nvml).items() if name.startswith(prefix)}
        return names.get(number, "").removeprefix(prefix).capitalize()

    def _clique(self, handle: Any) -> str:
        n = self._nvml
        try:
            info = n.c_nvmlGpuFabricInfo_v2_t()
            n.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        except (AttributeError, n.NVMLError):
            return ""
        cluster = bytes(info.clusterUuid).hex()
        if info.state != n.NVML_GPU_FABRIC_STATE_COMPLETED or not cluster.strip("0"):
            return ""
        parts = (cluster[:8], cluster[8:12], cluster[12:16], cluster[16:20], cluster[20:])
        return f"{'-'.join(parts)}.{info.cliqueId}"

    def _profiles(self, handle: Any) -> list[MigProfile]:
        n = self._nvml
        found: list[MigProfile] = []
        for number in range(n.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                info = n.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=2)
                count = ctypes.c_uint(0)
                n.nvmlDeviceGetGpuInstancePossiblePlacements(handle, info.id, None, ctypes.byref(count))
                placements = (n.c_nvmlGpuInstancePlacement_t * count.value)()
                n.nvmlDeviceGetGpuInstancePossiblePlacements(handle, info.id, placements, ctypes.byref(count))
            except n.NVMLError:
                continue
            found.append(
                MigProfile(
                    name=_text(info.name).removeprefix("MIG ").strip(),
                    id=info.id,
                    memory=int(info.memorySizeMB),
                    multiprocessors=info.multiprocessorCount,
                    copy_engines=info.copyEngineCount,
                    decoders=info.decoderCount,
                    encoders=info.encoderCount,
                    jpeg_engines=info.jpegCount,
                    ofa_engines=info.ofaCount,
                    placements=tuple((p.start, p.size) for p in placements[: count.value]),
                )
            )
        return found

    def _instances(self, handle: Any, uuid: str, profiles: Sequence[MigProfile]) -> Iterator[MigInstance]:
        n = self._nvml
        by_id = {profile.id: profile for profile in profiles}
        minor = n.nvmlDeviceGetMinorNumber(handle)
        for index in range(n.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                device = n.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            except n.NVMLError:
                continue
            part, compute = n.nvmlDeviceGetGpuInstanceId(device), n.nvmlDeviceGetComputeInstanceId(device)
            info = n.nvmlGpuInstanceGetInfo(n.nvmlDeviceGetGpuInstanceById(handle, part))
            profile = by_id.get(info.profileId)
            if profile is not None:
                yield MigInstance(
                    uuid=_text(n.nvmlDeviceGetUUID(device)),
                    gpu=uuid,
                    profile=profile.name,
                    start=info.placement.start,
                    nodes=(self._capability(minor, f"gi{part}"), self._capability(minor, f"gi{part}/ci{compute}")),
                )

    def _whole_compute_profile(self, part: Any) -> int:
        """The compute profile that takes the whole partition: the one with the most slices of which one fits."""
        n = self._nvml
        best: tuple[int, int] | None = None
        for number in range(n.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                info = n.nvmlGpuInstanceGetComputeInstanceProfileInfo(part, number, 0, version=2)
            except n.NVMLError:
                continue
            if info.instanceCount == 1 and (best is None or info.sliceCount > best[0]):
                best = (info.sliceCount, info.id)
        if best is None:
            raise HardwareError("the partition offers no compute profile that takes all of it")
        return best[1]

    def _capability(self, minor: int, path: str) -> str:
        file = self._system / f"proc/driver/nvidia/capabilities/gpu{minor}/mig/{path}/access"
        try:
            number = re.search(r"DeviceFileMinor:\s*(\d+)", file.read_text())
        except OSError as error:
            raise HardwareError(f"{file}: {error.strerror}; the device node of the partition is unknown") from error
        if number is None:
            raise HardwareError(f"{file} names no DeviceFileMinor")
        return f"/dev/nvidia-caps/nvidia-cap{number[1]}"

    def _pci(self, address: str) -> Path:
        return self._system / "sys/bus/pci/devices" / address

    def _bound(self, address: str) -> str:
        link = self._pci(address) / "driver"
        return link.resolve().name if link.exists() else ""

    def _pcie_root(self, address: str) -> str:
        """The root complex above a function, as `pci0000:10`."""
        found = re.search(r"/(pci[0-9a-f]{4}:[0-9a-f]{2})(/|$)", str(self._pci(address).resolve()))
        return found[1] if found else ""

    def _numa_node(self, address: str) -> int | None:
        with suppress(OSError, ValueError):
            node = int((self._pci(address) / "numa_node").read_text())
            return node if node >= 0 else None
        return None

    # Asking.

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._nvml.NVMLError as error:
            raise HardwareError(f"NVML, {what}: {error}") from error

    def _mps_env(self, name: str) -> dict[str, str]:
        return {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(self._folder / "mps" / name / "pipe")}

    def _tool(self, *command: str, env: dict[str, str] | None = None, stdin: str = "") -> None:
        program = str(self._root / "usr/bin" / command[0])
        try:
            done = subprocess.run(
                [program, *command[1:]], env=env, input=stdin, capture_output=True, text=True, timeout=_PATIENCE
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HardwareError(f"{program}: {error}") from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise HardwareError(f"{' '.join(command)} ended with {done.returncode}: {said}")


def _module() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        raise EnvironmentProblem(
            "the package nvidia-ml-py is not installed: pip install 'drakkar[node,gpu]'; without GPUs: --fake a100"
        ) from error


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
