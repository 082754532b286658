"""The driver `gpu.drakkar.dev`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from threading import Lock

from drakkar.api.errors import UsageError
from drakkar.api.resource import v1
from drakkar.driver import AllocatedDevice, ContainerEdits, Driver, Health, Mount, Prepared, PrepareError
from drakkar.driver.driver import Effect
from drakkar.drivers.gpu.config import CONFIGS, GpuConfig, VfioConfig
from drakkar.drivers.gpu.devices import NAME, Partition, Thing, Whole, describe
from drakkar.drivers.gpu.hardware import Gpu, Hardware, HardwareError, MigInstance
from drakkar.plugin import wire
from drakkar.plugin.checkpoint import PreparedDevice

logger = logging.getLogger(__name__)

MIG_MODES = ("off", "static", "dynamic")

#: XIDs that a faulty program causes, not a faulty GPU (NVIDIA's list of XID errors).
OF_APPLICATIONS = frozenset({13, 31, 43, 45, 68, 109})
#: XIDs after which the GPU works on with less: a row to be remapped, high rates of corrected errors, contained errors.
DEGRADING = frozenset({63, 92, 94})


class GpuDriver(Driver):
    """GPUs of one node. Raises UsageError for an unknown `mig` mode."""

    name = NAME
    configs = CONFIGS
    unhealthy: Effect = "NoExecute"

    def __init__(self, hardware: Hardware, *, mig: str = "static", passthrough: bool = False) -> None:
        if mig not in MIG_MODES:
            raise UsageError(f"--mig {mig}: choose one of {', '.join(MIG_MODES)}")
        self._hardware = hardware
        self._mig = mig
        self._passthrough = passthrough
        self._things: dict[str, Thing] = {}
        self._sick: dict[str, Health] = {}
        # Partitions and kernel drivers are changed one at a time.
        self._lock = Lock()

    def discover(self) -> Sequence[v1.Device | v1.CounterSet]:
        """Whole GPUs, partitions that exist (static) or could (dynamic), GPUs to pass through."""
        sets, found = describe(
            self._hardware.gpus(), self._hardware.versions(), mig=self._mig, passthrough=self._passthrough
        )
        self._things = {name: thing for name, (_, thing) in found.items()}
        return [*sets, *(described for described, _ in found.values())]

    def restore(self) -> None:
        """Partitions that no claim has were left by a crash: they go."""
        if self._mig != "dynamic":
            return
        names = {device.deviceName for devices in self.records().values() for device in devices}
        held = {self._place(thing) for name in names if isinstance(thing := self._things.get(name), Partition)}
        for gpu in self._hardware.gpus():
            for instance in gpu.mig_instances:
                if (gpu.uuid, instance.profile, instance.start) not in held:
                    logger.warning("partition %s of %s belongs to no claim and is removed", instance.uuid, gpu.uuid)
                    try:
                        self._hardware.destroy_mig(instance)
                    except HardwareError as error:  # Somebody uses it: it stays, and its place cannot be given away.
                        logger.error("partition %s stays: %s", instance.uuid, error)

    def prepare(self, claim: v1.ResourceClaim, devices: Sequence[AllocatedDevice]) -> Sequence[Prepared]:
        """Make partitions, set sharing, hand over device nodes."""
        try:
            with self._lock:
                things = [(found, self._thing(found.name)) for found in devices]
                shared = self._share(claim.metadata.uid, things)
                return [self._prepare(found, thing, shared) for found, thing in things]
        except HardwareError as error:
            raise PrepareError(str(error)) from error

    def unprepare(self, claim: wire.Claim, devices: Sequence[PreparedDevice]) -> None:
        """Undo all of it; what does not exist any more needs no undoing."""
        try:
            with self._lock:
                self._hardware.stop_mps(claim.uid)
                for device in devices:
                    self._unprepare(device)
        except HardwareError as error:
            raise PrepareError(str(error)) from error

    def health(self) -> Mapping[str, Health]:
        """By XID errors; a GPU that had a fatal one stays unhealthy until the driver is started again."""
        for event in self._hardware.events():
            if event.xid in OF_APPLICATIONS:
                continue
            state = "Degraded" if event.xid in DEGRADING else "Unhealthy"
            if self._sick.get(event.gpu, Health("Healthy")).state != "Unhealthy":
                self._sick[event.gpu] = Health(state, f"XID {event.xid}")
        return {
            name: self._sick[thing.gpu.uuid] for name, thing in self._things.items() if thing.gpu.uuid in self._sick
        }

    def _thing(self, name: str) -> Thing:
        thing = self._things.get(name)
        if thing is None:
            raise PrepareError(f"device {name} does not exist (any more) on this node")
        return thing

    def _prepare(self, found: AllocatedDevice, thing: Thing, shared: ContainerEdits) -> Prepared:
        if isinstance(thing, Whole) and thing.passthrough:
            return Prepared(edits=self._pass_through(found, thing.gpu))
        nodes = [f"/dev/nvidia{thing.gpu.minor}"]
        uuid = thing.gpu.uuid
        attributes = dict((found.device.attributes if found.device else None) or {})
        if isinstance(thing, Partition):
            instance = self._instance(thing)
            nodes += instance.nodes
            uuid = instance.uuid
            attributes["uuid"] = v1.DeviceAttribute(string=uuid)
        mounts = [
            Mount(hostPath=host, containerPath=inside, options=["ro", "bind"])
            for host, inside in self._hardware.libraries()
        ]
        if isinstance(thing, Whole):
            mounts += self._hardware.memory(thing.gpu.uuid)
        edits = ContainerEdits(
            # The runtime of the vendor, where there is one, must not add GPUs on its own.
            env=["NVIDIA_VISIBLE_DEVICES=void", f"GPU_{found.name.upper().replace('-', '_')}={uuid}", *shared.env],
            deviceNodes=[self._hardware.device_node(path) for path in (*nodes, *self._hardware.common_nodes())],
            mounts=[*mounts, *shared.mounts],
        )
        return Prepared(edits=edits, attributes=attributes)

    def _instance(self, partition: Partition) -> MigInstance:
        if partition.instance is not None:
            return partition.instance
        existing = self._existing(partition)
        return existing or self._hardware.create_mig(partition.gpu.uuid, partition.profile, partition.start)

    def _existing(self, partition: Partition) -> MigInstance | None:
        wanted = self._place(partition)
        return next(
            (
                instance
                for gpu in self._hardware.gpus()
                for instance in gpu.mig_instances
                if (gpu.uuid, instance.profile, instance.start) == wanted
            ),
            None,
        )

    def _pass_through(self, found: AllocatedDevice, gpu: Gpu) -> ContainerEdits:
        config = found.configs[-1] if found.configs else VfioConfig()
        if not isinstance(config, VfioConfig):
            raise PrepareError(f"device {found.name} is passed through: its parameters must be a VfioConfig")
        self._hardware.bind(gpu.pci_bus_id, "vfio-pci")
        nodes = [f"/dev/vfio/{self._hardware.iommu_group(gpu.pci_bus_id)}"]
        if config.apiDevice:
            nodes.append("/dev/vfio/vfio")
        name = found.name.upper().replace("-", "_")
        return ContainerEdits(
            env=[f"PCI_{name}={gpu.pci_bus_id}"], deviceNodes=[self._hardware.device_node(path) for path in nodes]
        )

    def _share(self, uid: str, things: Sequence[tuple[AllocatedDevice, Thing]]) -> ContainerEdits:
        """Set how the claim's processes share; edits that all of its devices get."""
        mps: list[str] = []
        settings = GpuConfig()
        for found, thing in things:
            config = found.configs[-1] if found.configs else None
            if isinstance(thing, Whole) and thing.passthrough:
                continue
            if isinstance(config, VfioConfig):
                raise PrepareError(f"device {found.name} is not passed through: its parameters must be a GpuConfig")
            sharing = config.sharing if isinstance(config, GpuConfig) else None
            if sharing is None:
                continue
            if isinstance(thing, Partition) and sharing.strategy == "TimeSlicing" and sharing.timeSlicing is not None:
                raise PrepareError(f"device {found.name} is a partition: it has no time slice of its own")
            if sharing.strategy == "MPS":
                mps.append(thing.gpu.uuid)
                settings = GpuConfig(sharing)
            elif isinstance(thing, Whole):
                interval = sharing.timeSlicing.interval if sharing.timeSlicing is not None else "Default"
                self._hardware.set_time_slice(thing.gpu.uuid, interval)
        if not mps or settings.sharing is None:
            return ContainerEdits()
        for gpu in dict.fromkeys(mps):
            self._hardware.set_exclusive(gpu, True)
        limits = settings.sharing.mps
        threads, memory = (limits.activeThreadPercentage, limits.pinnedDeviceMemoryLimit) if limits else (None, "")
        pipe = self._hardware.start_mps(uid, [*dict.fromkeys(mps)], threads, memory)
        return ContainerEdits(
            env=["CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps"],
            mounts=[Mount(hostPath=pipe, containerPath="/tmp/nvidia-mps", options=["rw", "nosuid", "nodev", "bind"])],
        )

    def _unprepare(self, device: PreparedDevice) -> None:
        thing = self._things.get(device.deviceName)
        if thing is None or device.admin:
            return
        if isinstance(thing, Partition):
            existing = self._existing(thing) if thing.instance is None else None
            if existing is not None:
                self._hardware.destroy_mig(existing)
        elif thing.passthrough:
            self._hardware.bind(thing.gpu.pci_bus_id, "nvidia")
        else:
            self._hardware.set_time_slice(thing.gpu.uuid, "Default")
            self._hardware.set_exclusive(thing.gpu.uuid, False)

    @staticmethod
    def _place(partition: Partition) -> tuple[str, str, int]:
        return partition.gpu.uuid, partition.profile.name, partition.start
