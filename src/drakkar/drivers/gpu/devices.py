"""GPUs and their partitions as devices of the API; names and attributes: docs/reference/gpu-driver.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from drakkar.api.resource import v1
from drakkar.driver import consumes, counter_set, device
from drakkar.drivers.gpu.hardware import Gpu, MigInstance, MigProfile

NAME = "gpu.drakkar.dev"
#: Memory slices that partitions are placed on.
MEMORY_SLICES = 8


class Partition(msgspec.Struct, frozen=True):
    """What a device of type `mig` stands for; `instance` None: it is made when a claim is prepared."""

    gpu: Gpu
    profile: MigProfile
    start: int
    instance: MigInstance | None = None


class Whole(msgspec.Struct, frozen=True):
    """A whole GPU, for containers or (`passthrough`) for a virtual machine."""

    gpu: Gpu
    passthrough: bool = False


Thing = Whole | Partition


def describe(
    gpus: Sequence[Gpu], versions: tuple[str, str], *, mig: str, passthrough: bool
) -> tuple[list[v1.CounterSet], dict[str, tuple[v1.Device, Thing]]]:
    """Counter sets and, by name, devices with what they stand for. `mig` is off, static or dynamic."""
    sets: list[v1.CounterSet] = []
    found: dict[str, tuple[v1.Device, Thing]] = {}
    for gpu in gpus:
        partitions = gpu.mig_profiles if mig == "dynamic" else ()
        shared = bool(partitions) or (passthrough and gpu.bound != "vfio-pci")
        if shared:
            sets.append(counter_set(_set_name(gpu), _all_counters(partitions)))
        drawn = [consumes(_set_name(gpu), _all_counters(partitions))] if shared else []
        attributes = _attributes(gpu, versions)
        split = mig == "static" and gpu.mig_enabled
        if gpu.bound != "vfio-pci" and not split:
            found[f"gpu-{gpu.index}"] = (_whole(gpu, attributes, drawn, "gpu"), Whole(gpu))
        if passthrough:
            found[f"gpu-{gpu.index}-vfio"] = (_whole(gpu, attributes, drawn, "vfio"), Whole(gpu, passthrough=True))
        for instance in gpu.mig_instances if split else ():
            profile = next((p for p in gpu.mig_profiles if p.name == instance.profile), None)
            if profile is not None:
                partition = Partition(gpu, profile, instance.start, instance)
                found[partition_name(partition)] = (_part(partition, attributes, []), partition)
        for profile in partitions:
            for start, size in profile.placements:
                partition = Partition(gpu, profile, start)
                draws = [consumes(_set_name(gpu), _counters(profile, start, size))]
                found[partition_name(partition)] = (_part(partition, attributes, draws), partition)
    return sets, found


def partition_name(partition: Partition) -> str:
    """`gpu-0-mig-1g5gb-19-0`: GPU, profile by name and number, place."""
    plain = re.sub(r"[^a-z0-9]", "", partition.profile.name)
    return f"gpu-{partition.gpu.index}-mig-{plain}-{partition.profile.id}-{partition.start}"


def _set_name(gpu: Gpu) -> str:
    return f"gpu-{gpu.index}"


def _attributes(gpu: Gpu, versions: tuple[str, str]) -> dict[str, bool | int | str | v1.DeviceAttribute]:
    found: dict[str, bool | int | str | v1.DeviceAttribute] = {
        "index": gpu.index,
        "minor": gpu.minor,
        "productName": gpu.product,
        "brand": gpu.brand,
        "driverVersion": v1.DeviceAttribute(version=semver(versions[0])),
        "cudaDriverVersion": v1.DeviceAttribute(version=semver(versions[1])),
    }
    if gpu.architecture:
        found["architecture"] = gpu.architecture
    if gpu.compute_capability:
        found["cudaComputeCapability"] = v1.DeviceAttribute(version=semver(gpu.compute_capability))
    if gpu.clique:
        found["clique"] = gpu.clique
    return found


def semver(text: str) -> str:
    """A version of the kernel driver or of CUDA in semantic form: three numbers without leading zeros."""
    parts = [str(int(part)) for part in re.findall(r"\d+", text)[:3]]
    return ".".join([*parts, "0", "0", "0"][:3])


def _whole(
    gpu: Gpu,
    attributes: Mapping[str, bool | int | str | v1.DeviceAttribute],
    drawn: Sequence[v1.DeviceCounterConsumption],
    kind: str,
) -> v1.Device:
    name = f"gpu-{gpu.index}" + ("-vfio" if kind == "vfio" else "")
    capacity: dict[str, int | str | v1.DeviceCapacity] = {"memory": f"{gpu.memory}Mi"}
    if gpu.multiprocessors:
        capacity["multiprocessors"] = gpu.multiprocessors
    return device(
        name,
        {**attributes, "type": kind, "uuid": gpu.uuid},
        capacity,
        pcie_root=gpu.pcie_root,
        pci_bus_id=gpu.pci_bus_id,
        numa_node=gpu.numa_node,
        consumes=drawn,
    )


def _part(
    partition: Partition,
    attributes: Mapping[str, bool | int | str | v1.DeviceAttribute],
    drawn: Sequence[v1.DeviceCounterConsumption],
) -> v1.Device:
    gpu, profile = partition.gpu, partition.profile
    own: dict[str, bool | int | str | v1.DeviceAttribute] = {
        "type": "mig",
        "profile": profile.name,
        "parentUUID": gpu.uuid,
    }
    if partition.instance is not None:
        own["uuid"] = partition.instance.uuid
    capacity: dict[str, int | str | v1.DeviceCapacity] = {
        "memory": f"{profile.memory}Mi",
        "multiprocessors": profile.multiprocessors,
        "copyEngines": profile.copy_engines,
        "decoders": profile.decoders,
    }
    return device(
        partition_name(partition),
        {**attributes, **own},
        capacity,
        pcie_root=gpu.pcie_root,
        pci_bus_id=gpu.pci_bus_id,
        numa_node=gpu.numa_node,
        consumes=drawn,
    )


def _counters(profile: MigProfile, start: int, size: int) -> dict[str, int | str]:
    return {
        "memory": f"{profile.memory}Mi",
        **{name: value for name, value in _engines(profile) if value},
        **{f"memory-slice-{number}": 1 for number in range(start, start + size)},
    }


def _all_counters(profiles: Sequence[MigProfile]) -> dict[str, int | str]:
    if not profiles:
        return {"gpu": 1}
    whole = max(profiles, key=lambda profile: (profile.multiprocessors, profile.memory))
    totals: dict[str, int | str] = {"memory": f"{whole.memory}Mi"}
    for name, _ in _engines(whole):
        most = max(value for profile in profiles for engine, value in _engines(profile) if engine == name)
        if most:
            totals[name] = most
    return totals | {f"memory-slice-{number}": 1 for number in range(MEMORY_SLICES)}


def _engines(profile: MigProfile) -> Iterator[tuple[str, int]]:
    yield "multiprocessors", profile.multiprocessors
    yield "copy-engines", profile.copy_engines
    yield "decoders", profile.decoders
    yield "encoders", profile.encoders
    yield "jpeg-engines", profile.jpeg_engines
    yield "ofa-engines", profile.ofa_engines
