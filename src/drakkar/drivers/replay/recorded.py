"""Recorded ResourceSlices as pools: what a driver published once, as the framework can publish it again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from drakkar.api.errors import UsageError
from drakkar.api.manifests import parse_objects
from drakkar.api.meta import Object
from drakkar.api.resource import v1
from drakkar.api.resource.conversion import VERSIONS, convert
from drakkar.driver import Pool, SliceContent, check_pool


def read_slices(path: Path) -> list[v1.ResourceSlice]:
    """The ResourceSlices of a file of YAML or JSON; other objects are left out. Raises UsageError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--slices {path}: {why}") from error
    found = slices_of(parse_objects(text, f"--slices {path}"))
    if not found:
        raise UsageError(
            f"--slices {path}: no ResourceSlice in it; write one with kubectl get resourceslices -o yaml > FILE"
        )
    return found


def slices_of(objects: Iterable[Object]) -> list[v1.ResourceSlice]:
    """The ResourceSlices among objects, in any served version. Raises UsageError for one that cannot be read."""
    return [_decode(obj) for obj in objects if obj.get("kind") == "ResourceSlice"]


def _decode(obj: Object) -> v1.ResourceSlice:
    version = str(obj.get("apiVersion")).rpartition("/")[2]
    try:
        return msgspec.convert(convert(obj, "ResourceSlice", version, VERSIONS["ResourceSlice"][0]), v1.ResourceSlice)
    except (AttributeError, TypeError, ValueError) as error:  # also msgspec.ValidationError
        metadata = obj.get("metadata")
        name = metadata.get("name", "") if isinstance(metadata, dict) else ""
        raise UsageError(f"ResourceSlice {name!r} cannot be read: {error}; check its apiVersion and fields") from error


def pools_of(driver: str, slices: Iterable[v1.ResourceSlice], node: str) -> list[Pool]:
    """The driver's pools of one node (empty: those of no node), as they were at their newest generation.

    Raises UsageError for a pool that no driver of the framework would publish: one with a slice missing, a device
    twice, or slices of different nodes.
    """
    pools: dict[str, list[v1.ResourceSlice]] = {}
    for found in slices:
        if found.spec.driver == driver:
            pools.setdefault(found.spec.pool.name, []).append(found)
    return [_pool(name, of_pool) for name, of_pool in pools.items() if any(_node(found) == node for found in of_pool)]


def drivers_of(slices: Iterable[v1.ResourceSlice]) -> list[str]:
    """The names of the drivers, sorted."""
    return sorted({found.spec.driver for found in slices})


def nodes_of(driver: str, slices: Iterable[v1.ResourceSlice]) -> list[str]:
    """The nodes for which the driver published something, sorted."""
    return sorted({_node(found) for found in slices if found.spec.driver == driver} - {""})


def _node(found: v1.ResourceSlice) -> str:
    return found.spec.nodeName or ""


def _pool(name: str, recorded: list[v1.ResourceSlice]) -> Pool:
    where = f"pool {name} of driver {recorded[0].spec.driver}"
    generation = max(found.spec.pool.generation for found in recorded)
    slices = [found.spec for found in recorded if found.spec.pool.generation == generation]
    counts = {spec.pool.resourceSliceCount for spec in slices}
    if counts != {len(slices)}:
        said = " or ".join(str(count) for count in sorted(counts))
        raise UsageError(f"{where}: {len(slices)} slices of generation {generation} are there, they say {said}")
    # Slices that say it per device reach whom their devices name, whatever the others of the pool say.
    reached = [
        (spec.nodeName, spec.nodeSelector, bool(spec.allNodes)) for spec in slices if not spec.perDeviceNodeSelection
    ]
    node_name, node_selector, all_nodes = reached[0] if reached else (None, None, False)
    if any(each != reached[0] for each in reached):
        raise UsageError(f"{where}: its slices are for different nodes; a driver publishes a pool for the same ones")
    pool = Pool(
        name=name,
        slices=tuple(_content(spec) for spec in slices),
        generation=generation,
        node_name=node_name,
        node_selector=node_selector,
        all_nodes=all_nodes,
    )
    problems = check_pool(pool)
    if problems:
        raise UsageError(f"driver {recorded[0].spec.driver}: {'; '.join(problems)}")
    return pool


def _content(spec: v1.ResourceSliceSpec) -> SliceContent:
    return SliceContent(
        devices=tuple(spec.devices or ()),
        shared_counters=tuple(spec.sharedCounters or ()),
        per_device_nodes=bool(spec.perDeviceNodeSelection),
        partition_type_attribute=spec.partitionTypeAttribute,
        skip_node_operations=tuple(spec.skipNodeOperations or ()),
    )
