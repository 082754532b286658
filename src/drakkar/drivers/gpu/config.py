"""Parameters that a claim or class may carry for a GPU; unknown fields are refused."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from drakkar.drivers.gpu.devices import NAME
from drakkar.drivers.gpu.hardware import Interval

API_VERSION = f"{NAME}/v1"


class TimeSlicing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Processes take turns."""

    interval: Interval = "Default"


class Mps(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Processes run side by side under one daemon; a limit of threads in per cent, and of memory (`4G`) per process."""

    activeThreadPercentage: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None
    pinnedDeviceMemoryLimit: Annotated[str, msgspec.Meta(pattern=r"^([1-9][0-9]*[MG])?$")] = ""


class Sharing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the processes of a claim share its GPUs."""

    strategy: Literal["TimeSlicing", "MPS"]
    timeSlicing: TimeSlicing | None = None
    mps: Mps | None = None

    def __post_init__(self) -> None:
        if self.strategy == "TimeSlicing" and self.mps is not None:
            raise ValueError("mps is only for strategy MPS")
        if self.strategy == "MPS" and self.timeSlicing is not None:
            raise ValueError("timeSlicing is only for strategy TimeSlicing")


class GpuConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For devices of type gpu and mig."""

    sharing: Sharing | None = None


class VfioConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For devices of type vfio: the container gets the group's device node, and `/dev/vfio/vfio` unless told not to."""

    apiDevice: bool = True


CONFIGS: dict[tuple[str, str], type[msgspec.Struct]] = {
    (API_VERSION, "GpuConfig"): GpuConfig,
    (API_VERSION, "VfioConfig"): VfioConfig,
}
