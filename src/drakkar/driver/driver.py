"""What a driver author writes: one class.

:class:`Driver` says which devices there are, what a container gets for one, and how they feel. Everything else (slices,
sockets, records on disk, CDI and metadata files, taints, claim status, upgrades) is the framework's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from drakkar.api.meta import Condition
from drakkar.api.quantity import Quantity
from drakkar.api.resource import v1
from drakkar.driver.pools import Pool, node_pool
from drakkar.plugin import wire
from drakkar.plugin.cdi import ContainerEdits
from drakkar.plugin.checkpoint import PreparedDevice

State = Literal["Healthy", "Degraded", "Unhealthy", "Unknown"]
#: What happens to a sick device: only told, no new claims, or holders are evicted too.
Effect = Literal["None", "NoSchedule", "NoExecute"]


class PrepareError(Exception):
    """A claim cannot be prepared or unprepared; the message goes to the kubelet and into the pod's events."""


class Health(msgspec.Struct, frozen=True):
    """How a device is. `effect` None: the driver's own policy.

    Degraded means usable with less: holders are told (claim status, metadata file), nothing is tainted.
    """

    state: State
    message: str = ""
    effect: Effect | None = None


class AllocatedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device of the claim, and the configs for it, decoded, from the least to the most important."""

    result: v1.DeviceRequestAllocationResult
    configs: list[msgspec.Struct] = []
    #: As the driver described it; None when it does not exist (any more).
    device: v1.Device | None = None

    @property
    def name(self) -> str:
        """The device's name in its pool."""
        return self.result.device

    def consumed(self, capacity: str) -> int | None:
        """How much of a capacity of the driver's own the claim got, rounded up; None where it takes the device."""
        amounts = self.result.consumedCapacity or {}
        amount = amounts.get(capacity) or amounts.get(f"{self.result.driver}/{capacity}")
        return Quantity.parse(amount).to_int() if amount else None


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one device, where edits alone do not say it all."""

    edits: ContainerEdits = ContainerEdits()
    #: Entries of the claim's `status.devices`, which the framework writes in the driver's name.
    data: v1.JSONObject | None = None
    network: v1.NetworkDeviceData | None = None
    conditions: list[Condition] = []
    #: Attributes for the application's metadata file; None: those of the published device.
    attributes: dict[str, v1.DeviceAttribute] | None = None
    #: Kept on disk with the claim's record, for :meth:`Driver.restore` and `unprepare` (`PreparedDevice.state`).
    state: dict[str, Any] = {}


class Driver(ABC):
    """One kind of device on one node. Calls come from several threads at once, for one claim never."""

    #: The driver's name in slices and classes, a DNS name.
    name: str
    #: Version of the driver, published as attribute `driverVersion` of every device, so that claims can ask for it.
    version: str = ""
    #: `(apiVersion, kind)` of opaque parameters → struct; structs must forbid unknown fields.
    configs: Mapping[tuple[str, str], type[msgspec.Struct]] = {}
    #: What happens to unhealthy devices.
    unhealthy: Effect = "NoSchedule"
    #: Whether applications get a file that describes their devices (KEP-5304).
    metadata: bool = True
    #: Reads what claims (by UID) have on this node, from the records on disk; set by whoever runs the driver.
    records: Callable[[], Mapping[str, Sequence[PreparedDevice]]] = staticmethod(dict)

    @abstractmethod
    def discover(self) -> Sequence[v1.Device | v1.CounterSet]:
        """The node's devices in the order in which they are to be handed out, and their counter sets.

        Called at the start and whenever :meth:`drakkar.driver.service.DriverService.refresh` is called.
        """

    def pools(self, node: str) -> Sequence[Pool]:
        """The pools; by default one, named after the node, of what :meth:`discover` returns."""
        return [node_pool(node, self.discover(), room_for_taints=self.unhealthy != "None")]

    def cluster_pools(self) -> Sequence[Pool]:
        """Pools of devices that belong to no node (network-attached ones), published once for the whole cluster.

        Asked of the one instance that runs as the cluster's controller; such a pool names its nodes by a selector.
        """
        return []

    @abstractmethod
    def prepare(
        self, claim: v1.ResourceClaim, devices: Sequence[AllocatedDevice]
    ) -> Sequence[ContainerEdits | Prepared]:
        """Set the devices up and say what a container gets for each, in their order (empty edits: nothing).

        May be called again for a claim after a crash or a reboot. Raises PrepareError.
        """

    def unprepare(self, claim: wire.Claim, devices: Sequence[PreparedDevice]) -> None:  # noqa: B027
        """Undo `prepare`, also a half one; nothing by default. Raises PrepareError.

        Of the claim only namespace, name and UID are known, it may be gone; `devices` is empty when the record is torn.
        """

    def restore(self) -> None:  # noqa: B027
        """Called once, after the first discovery and before any other call.

        What the hardware shows beyond :attr:`records` was left by a crash and may be removed.
        """

    def attach(
        self, claim: wire.Claim, devices: Sequence[PreparedDevice], namespace: Path
    ) -> Sequence[v1.NetworkDeviceData | None]:
        """Move network devices into the network namespace (a file) of a pod and say what became of each.

        Only drivers of network devices define it. Called when the runtime has made the first container, again after a
        restart of the driver; the devices come back by themselves when the namespace ends. Raises PrepareError.
        """
        raise NotImplementedError

    def health(self) -> Mapping[str, Health]:
        """State of devices by name (`pool/name` where a driver has several pools); who is left out is healthy.

        Called every few seconds. Raising means that nothing is known: every device is Unknown.
        """
        return {}
