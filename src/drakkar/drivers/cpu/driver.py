"""The driver `cpu.drakkar.dev`: processors that nobody else gets, and memory of a NUMA node.

Grouped: a device per NUMA node (and kind of core) from which claims take a number of processors; the driver chooses
which. Individual: a device per processor. What a claim got is kept with its record, so a restart knows it.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from threading import Lock

import msgspec

from drakkar.api.errors import UsageError
from drakkar.api.resource import v1
from drakkar.driver import AllocatedDevice, ContainerEdits, Driver, Hook, Prepared, PrepareError, device
from drakkar.drivers.cpu.topology import Cpu, Topology, choose, format_cpus
from drakkar.plugin import wire
from drakkar.plugin.checkpoint import PreparedDevice

NAME = "cpu.drakkar.dev"
MODES = ("grouped", "individual")
_MIB = 1 << 20


class CpuDriver(Driver):
    """Processors of one node without those that are `reserved` for the system.

    With `node_allocatable` the scheduler takes what a claim gets from the node's cpu and memory (KEP-5517), so that a
    pod need not request the same again. Raises UsageError for an unknown mode.
    """

    name = NAME
    unhealthy = "None"

    def __init__(
        self,
        topology: Topology,
        *,
        mode: str = "grouped",
        reserved: Collection[int] = (),
        node_allocatable: bool = True,
    ) -> None:
        if mode not in MODES:
            raise UsageError(f"--mode {mode}: choose {' or '.join(MODES)}")
        self._topology = topology
        self._mode = mode
        self._node_allocatable = node_allocatable
        self._cpus = [cpu for cpu in topology.cpus if cpu.id not in reserved]
        self._groups: dict[str, list[Cpu]] = {}
        for cpu in self._cpus:
            kind = "" if cpu.kind == "standard" else f"-{cpu.kind}"
            self._groups.setdefault(f"numa-{cpu.numa}{kind}", []).append(cpu)
        # Claim → processors, for claims that have no record yet.
        self._taken: dict[str, set[int]] = {}
        self._lock = Lock()

    def discover(self) -> Sequence[v1.Device]:
        """By mode: groups or single processors; then memory."""
        if self._mode == "grouped":
            processors = [self._group(name, cpus) for name, cpus in self._groups.items()]
        else:
            processors = [self._single(cpu) for cpu in self._cpus]
        memory = [self._memory(node, size) for node, size in sorted(self._topology.memory.items()) if size]
        return [*processors, *memory]

    def prepare(self, claim: v1.ResourceClaim, devices: Sequence[AllocatedDevice]) -> Sequence[Prepared]:
        """Choose processors, all of a claim or none."""
        uid = claim.metadata.uid
        with self._lock:
            # A claim that is prepared again chooses anew.
            self._taken.pop(uid, None)
            used = {cpu for other, cpus in self.taken().items() if other != uid for cpu in cpus}
            mine: set[int] = set()
            chosen: list[tuple[AllocatedDevice, frozenset[int]]] = []
            for found in devices:
                cpus = self._choose(found, used | mine)
                mine |= cpus
                chosen.append((found, cpus))
            self._taken[uid] = mine
        return [self._prepared(found, cpus) for found, cpus in chosen]

    def unprepare(self, claim: wire.Claim, devices: Sequence[PreparedDevice]) -> None:
        """The processors are free."""
        with self._lock:
            self._taken.pop(claim.uid, None)

    def taken(self) -> dict[str, set[int]]:
        """Processors by the UID of the claim that has them, as the records of both instances of an upgrade say."""
        found = {
            uid: {cpu for device in devices for cpu in device.state.get("cpus", ())}
            for uid, devices in self.records().items()
        }
        for uid, cpus in self._taken.items():
            found.setdefault(uid, set()).update(cpus)
        return found

    def _choose(self, found: AllocatedDevice, used: Collection[int]) -> frozenset[int]:
        if found.name.startswith("memory-"):
            return frozenset()
        if self._mode == "individual":
            cpu = int(found.name.removeprefix("cpu-"))
            if not any(cpu == known.id for known in self._cpus):
                raise PrepareError(f"device {found.name} does not exist (any more) on this node")
            return frozenset((cpu,))
        group = self._groups.get(found.name)
        if group is None:
            raise PrepareError(f"device {found.name} does not exist (any more) on this node")
        wanted = found.consumed("cpu")
        count = len(group) if wanted is None else wanted
        chosen = choose([cpu for cpu in group if cpu.id not in used], count)
        if chosen is None:
            free = sum(cpu.id not in used for cpu in group)
            raise PrepareError(f"device {found.name} has {free} free processors, the claim was promised {count}")
        return frozenset(cpu.id for cpu in chosen)

    def _prepared(self, found: AllocatedDevice, cpus: frozenset[int]) -> Prepared:
        key = found.name.upper().replace("-", "_")
        if found.name.startswith("memory-"):
            node = found.name.removeprefix("memory-")
            return Prepared(edits=ContainerEdits(env=[f"MEMS_{key}={node}"]))
        mems = format_cpus({cpu.numa for cpu in self._cpus if cpu.id in cpus})
        listed = format_cpus(cpus)
        hook = Hook(
            hookName="createRuntime",
            path=sys.executable,
            args=[sys.executable, "-m", "drakkar.drivers.cpu.hook", f"--cpus={listed}", f"--mems={mems}"],
        )
        return Prepared(edits=ContainerEdits(env=[f"CPUS_{key}={listed}"], hooks=[hook]), state={"cpus": sorted(cpus)})

    def _group(self, name: str, cpus: Sequence[Cpu]) -> v1.Device:
        first = cpus[0]
        policy = v1.CapacityRequestPolicy(
            default="1", validRange=v1.CapacityRequestPolicyRange(min="1", max=str(len(cpus)), step="1")
        )
        described = device(
            name,
            {"type": "group", "kind": first.kind, "socket": first.socket, "smt": _smt(cpus), "cpus": len(cpus)},
            {"cpu": v1.DeviceCapacity(value=str(len(cpus)), requestPolicy=policy)},
            numa_node=first.numa,
            shared=True,
        )
        return self._charged(described, "cpu", v1.NodeAllocatableMapping(capacityKey="cpu", capacityMultiplier="1"))

    def _single(self, cpu: Cpu) -> v1.Device:
        described = device(
            f"cpu-{cpu.id}",
            {
                "type": "cpu",
                "kind": cpu.kind,
                "socket": cpu.socket,
                "core": cpu.core[1],
                "id": cpu.id,
                "cache": cpu.cache,
            },
            numa_node=cpu.numa,
        )
        return self._charged(described, "cpu", v1.NodeAllocatableMapping(deviceMultiplier="1"))

    def _memory(self, node: int, size: int) -> v1.Device:
        policy = v1.CapacityRequestPolicy(
            default="64Mi", validRange=v1.CapacityRequestPolicyRange(min="1Mi", max=f"{size}Mi", step="1Mi")
        )
        capacity = v1.DeviceCapacity(value=str(size * _MIB), requestPolicy=policy)
        described = device(f"memory-{node}", {"type": "memory"}, {"memory": capacity}, numa_node=node, shared=True)
        return self._charged(
            described, "memory", v1.NodeAllocatableMapping(capacityKey="memory", capacityMultiplier="1")
        )

    def _charged(self, described: v1.Device, resource: str, mapping: v1.NodeAllocatableMapping) -> v1.Device:
        if not self._node_allocatable:
            return described
        charge = v1.NodeAllocatableResource(mapping=mapping)
        return msgspec.structs.replace(described, nodeAllocatableResources={resource: charge})


def _smt(cpus: Sequence[Cpu]) -> bool:
    return len({cpu.core for cpu in cpus}) < len(cpus)
