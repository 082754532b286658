"""Where a driver works on its node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Where a driver runs. `instance_uid` (the UID of its pod) makes rolling upgrades without a gap possible."""

    node_name: str
    kubelet_root: Path = Path("/var/lib/kubelet")
    cdi_folder: Path = Path("/var/run/cdi")
    instance_uid: str = ""
    #: Seconds between two looks at the devices' health.
    health_period: float = 5.0
    #: Remove the driver's slices when it stops, because it is not coming back.
    withdraw: bool = False

    @property
    def registry(self) -> Path:
        """The folder in which a kubelet looks for drivers."""
        return self.kubelet_root / "plugins_registry"

    def plugin_folder(self, driver: str) -> Path:
        """The driver's own folder, shared by all its instances."""
        return self.kubelet_root / "plugins" / driver
