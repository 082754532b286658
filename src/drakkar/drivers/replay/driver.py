"""The driver behind recorded slices: it publishes them as they are and tells containers which devices they got."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from drakkar.api.resource import v1
from drakkar.driver import AllocatedDevice, ContainerEdits, Driver, Pool, Prepared, PrepareError
from drakkar.driver.config import ANY
from drakkar.drivers.replay.recorded import pools_of

#: Variables that name a container's devices begin with this.
PREFIX = "DEVICE_"


class ReplayDriver(Driver):
    """Stands for the driver `name` on `node` (empty: only for the devices of no node). Raises UsageError."""

    configs = ANY
    # Nothing is ever sick: taints come with the slices, or by a DeviceTaintRule.
    unhealthy = "None"

    def __init__(self, name: str, slices: Iterable[v1.ResourceSlice], node: str = "") -> None:
        self.name = name
        slices = list(slices)
        self._for_cluster = pools_of(name, slices, "")
        self._of_node = pools_of(name, slices, node) if node else []
        self._devices = {
            (pool.name, device.name): device for pool in (*self._of_node, *self._for_cluster) for device in pool.devices
        }

    def discover(self) -> Sequence[v1.Device | v1.CounterSet]:
        """The node's devices; how they lie in slices is what :meth:`pools` tells."""
        return [device for pool in self._of_node for device in pool.devices]

    def pools(self, node: str) -> Sequence[Pool]:
        """Those that were recorded for the node."""
        return self._of_node

    def cluster_pools(self) -> Sequence[Pool]:
        """Those that were recorded for no node."""
        return self._for_cluster

    def prepare(self, claim: v1.ResourceClaim, devices: Sequence[AllocatedDevice]) -> Sequence[Prepared]:
        """A variable per device; see :func:`variable`."""
        return [self._prepared(found.result) for found in devices]

    def _prepared(self, result: v1.DeviceRequestAllocationResult) -> Prepared:
        device = self._devices.get((result.pool, result.device))
        if device is None:
            raise PrepareError(f"device {result.pool}/{result.device} is not among the recorded ones of this node")
        return Prepared(edits=ContainerEdits(env=[variable(result)]), attributes=device.attributes or {})


def variable(result: v1.DeviceRequestAllocationResult) -> str:
    """``DEVICE_GPU_EXAMPLE_COM_N1_GPU_0=gpu.example.com/n1/gpu-0 memory=4Gi``: which device, and how much of it.

    A share of a device has its share ID in the name, since a container may have several; administrator access is said.
    """
    parts = [result.driver, result.pool, result.device, *([result.shareID] if result.shareID else [])]
    words = [f"{result.driver}/{result.pool}/{result.device}"]
    words += [f"{name}={amount}" for name, amount in sorted((result.consumedCapacity or {}).items())]
    if result.adminAccess:
        # The same container may have the device for itself, too.
        parts.append("admin")
        words.append("admin")
    name = re.sub(r"[^A-Za-z0-9]", "_", "_".join(parts)).upper()
    return f"{PREFIX}{name}={' '.join(words)}"
