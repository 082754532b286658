"""GPUs that are not there: A100, H100 and GB200 whose state lives in a file, as that of real ones outlives a driver.

Sizes and places of partitions follow the vendor's tables (MIG user guide); the GB200 figures are rounded.
Their device nodes have numbers that Linux keeps for experiments, with no driver behind them: a container that may open
one gets ENXIO, one that may not EPERM. Files may stand for their memory, so that programs have something to copy.
XID errors are injected by lines `<GPU index or UUID> <xid>` in the file `xid` of the folder.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import TypeVar

import msgspec

from drakkar.driver import DeviceNode, Mount
from drakkar.drivers.gpu.hardware import Event, Gpu, HardwareError, Interval, MigInstance, MigProfile
from drakkar.plugin.files import write_atomically

T = TypeVar("T")

#: Character devices "for local/experimental use" (Linux, devices.txt); 195 could be a real GPU of this machine.
MAJOR = 120
#: Kinds of device nodes, whose number within their kind is at the end of the path.
_FAMILIES = (
    "/dev/nvidia",
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-caps/nvidia-cap",
    "/dev/vfio/",
    "/dev/vfio/vfio",
)
#: Where a container finds the memory of its fake GPUs, a file for each, by UUID; and how large each is.
MEMORY, MEMORY_SIZE = "/run/fake-gpus", 16 << 20


def _profiles(*rows: tuple[str, int, int, int, int, int, int, tuple[int, ...], int]) -> tuple[MigProfile, ...]:
    """Rows: name, number, MiB, multiprocessors, copy engines, decoders, JPEG and OFA engines, places, size."""
    return tuple(
        MigProfile(
            name=name,
            id=number,
            memory=memory,
            multiprocessors=processors,
            copy_engines=copies,
            decoders=decoders,
            jpeg_engines=media,
            ofa_engines=media,
            placements=tuple((start, size) for start in starts),
        )
        for name, number, memory, processors, copies, decoders, media, starts, size in rows
    )


_SEVEN, _EVEN = tuple(range(7)), (0, 2, 4, 6)
MODELS: dict[str, tuple[Gpu, int]] = {
    "a100": (
        Gpu(
            index=0,
            minor=0,
            uuid="",
            product="NVIDIA A100-SXM4-40GB",
            architecture="Ampere",
            compute_capability="8.0",
            memory=40960,
            multiprocessors=108,
            mig_profiles=_profiles(
                ("1g.5gb", 19, 4864, 14, 1, 0, 0, _SEVEN, 1),
                ("1g.5gb+me", 20, 4864, 14, 1, 1, 1, _SEVEN, 1),
                ("1g.10gb", 15, 9856, 14, 1, 1, 0, _EVEN, 2),
                ("2g.10gb", 14, 9856, 28, 2, 1, 0, (0, 2, 4), 2),
                ("3g.20gb", 9, 19968, 42, 3, 2, 0, (0, 4), 4),
                ("4g.20gb", 5, 19968, 56, 4, 2, 0, (0,), 4),
                ("7g.40gb", 0, 40192, 98, 7, 5, 1, (0,), 8),
            ),
        ),
        8,
    ),
    "h100": (
        Gpu(
            index=0,
            minor=0,
            uuid="",
            product="NVIDIA H100 80GB HBM3",
            architecture="Hopper",
            compute_capability="9.0",
            memory=81559,
            multiprocessors=132,
            mig_profiles=_profiles(
                ("1g.10gb", 19, 9984, 16, 1, 1, 1, _SEVEN, 1),
                ("1g.20gb", 15, 20096, 26, 1, 1, 1, _EVEN, 2),
                ("2g.20gb", 14, 20096, 32, 2, 2, 2, (0, 2, 4), 2),
                ("3g.40gb", 9, 40448, 60, 3, 3, 3, (0, 4), 4),
                ("4g.40gb", 5, 40448, 64, 4, 4, 4, (0,), 4),
                ("7g.80gb", 0, 81152, 132, 8, 7, 7, (0,), 8),
            ),
        ),
        8,
    ),
    "gb200": (
        Gpu(
            index=0,
            minor=0,
            uuid="",
            product="NVIDIA GB200",
            architecture="Blackwell",
            compute_capability="10.0",
            memory=189471,
            multiprocessors=152,
            clique="0b9c7d1e-5a52-4b7e-9c3a-6a1c2f0e7d11.0",
            mig_profiles=_profiles(
                ("1g.23gb", 19, 23552, 18, 1, 1, 1, _SEVEN, 1),
                ("1g.47gb", 15, 47616, 30, 1, 1, 1, _EVEN, 2),
                ("2g.47gb", 14, 47616, 36, 2, 2, 2, (0, 2, 4), 2),
                ("3g.93gb", 9, 95232, 70, 3, 3, 3, (0, 4), 4),
                ("4g.93gb", 5, 95232, 74, 4, 4, 4, (0,), 4),
                ("7g.186gb", 0, 189184, 152, 8, 7, 7, (0,), 8),
            ),
        ),
        4,
    ),
}


class _State(msgspec.Struct):
    """What real hardware and its kernel driver would remember."""

    instances: list[MigInstance] = []
    bound: dict[str, str] = {}
    time_slices: dict[str, Interval] = {}
    exclusive: list[str] = []
    mps: dict[str, list[str]] = {}
    read_xids: int = 0


class FakeHardware:
    """One node of `count` GPUs of a model, with their memory in a folder of its own or nowhere.

    Raises HardwareError for an unknown model.
    """

    def __init__(
        self,
        folder: Path,
        model: str = "a100",
        count: int = 0,
        *,
        node: str = "node",
        mig: bool = False,
        memory: Path | None = None,
    ) -> None:
        if model not in MODELS:
            raise HardwareError(f"fake GPU {model!r}: choose one of {', '.join(MODELS)}")
        self._pattern, usual = MODELS[model]
        self._count = count or usual
        self._node = node
        self._mig = mig
        self._folder = folder
        self._file = folder / "state.json"
        self._lock = Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._memory = memory.absolute() if memory is not None else None
        if self._memory is not None:
            self._memory.mkdir(parents=True, exist_ok=True)
            for gpu in self.gpus():
                with (self._memory / gpu.uuid).open("ab") as file:
                    file.truncate(MEMORY_SIZE)

    def versions(self) -> tuple[str, str]:
        return "580.126.09", "13.0"

    def gpus(self) -> Sequence[Gpu]:
        state = self._read()
        return [self._gpu(index, state) for index in range(self._count)]

    def create_mig(self, gpu: str, profile: MigProfile, start: int) -> MigInstance:
        def change(state: _State) -> MigInstance:
            size = dict(profile.placements).get(start)
            if size is None:
                raise HardwareError(f"{profile.name} cannot be placed at {start}")
            for other in state.instances:
                place = self._size(other)
                if other.gpu == gpu and other.start < start + size and start < other.start + place:
                    raise HardwareError(f"{profile.name} at {start}: {other.profile} at {other.start} is in the way")
            if state.bound.get(gpu, "nvidia") != "nvidia":
                raise HardwareError(f"GPU {gpu} is passed through")
            name = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{gpu}/{profile.id}/{start}"))
            index = next(g.index for g in self._all(state) if g.uuid == gpu)
            nodes = (f"/dev/nvidia-caps/nvidia-cap{100 * index + 10 * profile.id + start}",)
            made = MigInstance(uuid=f"MIG-{name}", gpu=gpu, profile=profile.name, start=start, nodes=nodes)
            state.instances.append(made)
            return made

        return self._change(change)

    def destroy_mig(self, instance: MigInstance) -> None:
        def change(state: _State) -> None:
            state.instances = [other for other in state.instances if other.uuid != instance.uuid]

        self._change(change)

    def set_time_slice(self, gpu: str, interval: Interval) -> None:
        self._change(lambda state: state.time_slices.update({gpu: interval}))

    def set_exclusive(self, gpu: str, exclusive: bool) -> None:
        def change(state: _State) -> None:
            state.exclusive = sorted({*state.exclusive, gpu} if exclusive else {*state.exclusive} - {gpu})

        self._change(change)

    def start_mps(self, name: str, gpus: Sequence[str], threads: int | None, memory: str) -> str:
        folder = self._folder / "mps" / name
        folder.mkdir(parents=True, exist_ok=True)
        self._change(lambda state: state.mps.update({name: [*gpus, str(threads or ""), memory]}))
        return str(folder)

    def stop_mps(self, name: str) -> None:
        self._change(lambda state: state.mps.pop(name, None))

    def bind(self, pci_bus_id: str, driver: str) -> None:
        def change(state: _State) -> None:
            gpu = next(g.uuid for g in self._all(state) if g.pci_bus_id == pci_bus_id)
            if driver != "nvidia" and any(instance.gpu == gpu for instance in state.instances):
                raise HardwareError(f"GPU {gpu} has partitions and cannot be passed through")
            state.bound[gpu] = driver

        self._change(change)

    def iommu_group(self, pci_bus_id: str) -> str:
        return str(10 + next(g.index for g in self.gpus() if g.pci_bus_id == pci_bus_id))

    def device_node(self, path: str) -> DeviceNode:
        kind = path.rstrip("0123456789")
        number = int(path.removeprefix(kind) or 0)
        # Twenty bits are left for minor numbers.
        minor = _FAMILIES.index(kind) << 16 | number
        return DeviceNode(path=path, type="c", major=MAJOR, minor=minor, permissions="rw")

    def memory(self, gpu: str) -> Sequence[Mount]:
        if self._memory is None:
            return ()
        return [Mount(hostPath=str(self._memory / gpu), containerPath=f"{MEMORY}/{gpu}", options=["rw", "bind"])]

    def common_nodes(self) -> Sequence[str]:
        return ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")

    def libraries(self) -> Sequence[tuple[str, str]]:
        return ()

    def events(self) -> Sequence[Event]:
        path = self._folder / "xid"
        lines = path.read_text().splitlines() if path.exists() else []

        def change(state: _State) -> list[Event]:
            new = lines[state.read_xids :]
            state.read_xids = len(lines)
            names = {str(gpu.index): gpu.uuid for gpu in self._all(state)}
            return [
                Event(names.get(words[0], words[0]), int(words[1])) for line in new if len(words := line.split()) == 2
            ]

        return self._change(change) if len(lines) != self._read().read_xids else []

    @property
    def state(self) -> _State:
        """What has been set, for tests."""
        return self._read()

    def _gpu(self, index: int, state: _State) -> Gpu:
        name = f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'{self._node}/{index}')}"
        mine = tuple(instance for instance in state.instances if instance.gpu == name)
        return msgspec.structs.replace(
            self._pattern,
            index=index,
            minor=index,
            uuid=name,
            pci_bus_id=f"0000:{16 * (index + 1) + 1:02x}:00.0",
            pcie_root=f"pci0000:{16 * (index + 1):02x}" if index < 15 else "pci0001:00",
            numa_node=index * 2 // self._count,
            mig_enabled=self._mig or bool(mine),
            mig_instances=mine,
            bound=state.bound.get(name, "nvidia"),
        )

    def _all(self, state: _State) -> list[Gpu]:
        return [self._gpu(index, state) for index in range(self._count)]

    def _size(self, instance: MigInstance) -> int:
        profile = next(p for p in self._pattern.mig_profiles if p.name == instance.profile)
        return dict(profile.placements)[instance.start]

    def _read(self) -> _State:
        if not self._file.exists():
            return _State()
        return msgspec.json.decode(self._file.read_bytes(), type=_State)

    def _change(self, change: Callable[[_State], T]) -> T:
        with self._lock:
            state = self._read()
            result = change(state)
            write_atomically(self._file, msgspec.json.encode(state))
            return result
