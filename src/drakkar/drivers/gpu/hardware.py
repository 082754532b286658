"""What the GPU driver needs of the machine: one narrow interface, with a real and a fake side.

Real: `drakkar.drivers.gpu.nvml`. Fake: `drakkar.drivers.gpu.fake`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from drakkar.driver import DeviceNode, Mount

#: How long one process keeps the GPU while others wait, as the kernel driver knows it.
Interval = Literal["Default", "Short", "Medium", "Long"]


class HardwareError(Exception):
    """The hardware or its driver refused; the message says what was asked and what it answered."""


class MigProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A size of partition: `3g.20gb`. Memory in MiB; a placement is the first memory slice and how many."""

    name: str
    id: int
    memory: int
    multiprocessors: int
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0
    placements: tuple[tuple[int, int], ...] = ()


class MigInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that exists. `nodes` are the device nodes that give access to it."""

    uuid: str
    gpu: str
    profile: str
    start: int
    nodes: tuple[str, ...] = ()


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. Memory in MiB; `bound` is the kernel driver that has it."""

    index: int
    minor: int
    uuid: str
    product: str
    brand: str = "Nvidia"
    architecture: str = ""
    compute_capability: str = ""
    memory: int
    multiprocessors: int = 0
    pci_bus_id: str = ""
    pcie_root: str = ""
    numa_node: int | None = None
    #: The NVLink fabric: cluster UUID and clique; empty without one.
    clique: str = ""
    mig_profiles: tuple[MigProfile, ...] = ()
    mig_enabled: bool = False
    mig_instances: tuple[MigInstance, ...] = ()
    bound: str = "nvidia"


class Event(msgspec.Struct, frozen=True):
    """An XID error of a GPU (by UUID)."""

    gpu: str
    xid: int


class Hardware(Protocol):
    """All calls block and may raise HardwareError."""

    def versions(self) -> tuple[str, str]:
        """Driver and CUDA version, such as `580.126.9` and `13.0`."""
        ...

    def gpus(self) -> Sequence[Gpu]:
        """As they are now."""
        ...

    def create_mig(self, gpu: str, profile: MigProfile, start: int) -> MigInstance:
        """Make a partition, with MIG mode switched on when it is off."""
        ...

    def destroy_mig(self, instance: MigInstance) -> None:
        """Remove a partition, and MIG mode with the last one."""
        ...

    def set_time_slice(self, gpu: str, interval: Interval) -> None:
        """Set how long processes hold the GPU."""
        ...

    def set_exclusive(self, gpu: str, exclusive: bool) -> None:
        """Let only one process (the MPS daemon) open the GPU."""
        ...

    def start_mps(self, name: str, gpus: Sequence[str], threads: int | None, memory: str) -> str:
        """Start (or find) the MPS daemon of a claim; returns the folder of its pipe."""
        ...

    def stop_mps(self, name: str) -> None:
        """End the daemon, if there is one."""
        ...

    def bind(self, pci_bus_id: str, driver: str) -> None:
        """Hand the PCI function to another kernel driver: `vfio-pci` or `nvidia`."""
        ...

    def iommu_group(self, pci_bus_id: str) -> str:
        """Number of the group, which names the device node of a function that is passed through."""
        ...

    def device_node(self, path: str) -> DeviceNode:
        """What gives a container the device node at this path."""
        ...

    def memory(self, gpu: str) -> Sequence[Mount]:
        """What stands for the memory of a GPU that is not there; nothing for a real one, whose driver gives access."""
        ...

    def common_nodes(self) -> Sequence[str]:
        """Device nodes that every CUDA process needs."""
        ...

    def libraries(self) -> Sequence[tuple[str, str]]:
        """Files of the driver that containers need, libraries and tools of this very version: on the host, inside."""
        ...

    def events(self) -> Sequence[Event]:
        """XID errors since the last call."""
        ...
