"""What published slices, reports of health and files must be like; pure functions over what was read."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from drakkar.api.names import ATTRIBUTE_NUMA_NODE, ATTRIBUTE_PCI_BUS_ID, ATTRIBUTE_PCIE_ROOT
from drakkar.api.quantity import Quantity
from drakkar.api.resource import v1
from drakkar.driver.metadata import IN_CONTAINER
from drakkar.driver.pools import Pool, SliceContent, check_pool
from drakkar.plugin import cdi, wire

#: Standard attributes, the type that selectors expect, and what their values look like.
_STANDARD = {
    ATTRIBUTE_PCIE_ROOT: ("string", re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}")),
    ATTRIBUTE_PCI_BUS_ID: ("string", re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")),
    ATTRIBUTE_NUMA_NODE: ("int", None),
}
#: A list and its single value are of one kind to selectors that are written for both.
_SINGLE = {"bools": "bool", "ints": "int", "strings": "string", "versions": "version"}
#: Seconds by which a report's time may be wrong.
_CLOCK = 86400.0


def complete(slices: Sequence[v1.ResourceSlice]) -> bool:
    """Whether every pool has all slices of its newest generation, and no others."""
    return not any(_pool_shape(name, mine) for name, mine in pools_of(slices).items())


def pools_of(slices: Sequence[v1.ResourceSlice]) -> dict[str, list[v1.ResourceSlice]]:
    """Slices by pool."""
    found: dict[str, list[v1.ResourceSlice]] = defaultdict(list)
    for each in slices:
        found[each.spec.pool.name].append(each)
    return dict(sorted(found.items()))


def judge_slices(slices: Sequence[v1.ResourceSlice], node_uid: str) -> list[str]:
    """What makes the driver's pools unusable or wrong, in words."""
    problems: list[str] = []
    for name, mine in pools_of(slices).items():
        problems += _pool_shape(name, mine)
        newest = max(s.spec.pool.generation for s in mine)
        current = [s for s in mine if s.spec.pool.generation == newest]
        contents = tuple(SliceContent(tuple(s.spec.devices or ()), tuple(s.spec.sharedCounters or ())) for s in current)
        problems += check_pool(Pool(name, contents))
        problems += _too_much(name, current)
        for each in mine:
            owners = each.metadata.ownerReferences or ()
            if each.spec.nodeName and not any(o.kind == "Node" and o.uid == node_uid for o in owners):
                problems.append(
                    f"pool {name}: slice {each.metadata.name} must be owned by its Node (UID {node_uid}), "
                    "so that it goes with it"
                )
    return problems + _attributes(slices)


def _pool_shape(name: str, mine: Sequence[v1.ResourceSlice]) -> list[str]:
    newest = max(s.spec.pool.generation for s in mine)
    current = [s for s in mine if s.spec.pool.generation == newest]
    problems: list[str] = []
    if old := [s.metadata.name for s in mine if s.spec.pool.generation != newest]:
        generations = sorted({s.spec.pool.generation for s in mine})
        problems.append(
            f"pool {name}: slices of generations {generations} stand side by side; {', '.join(sorted(old))} "
            "should be updated or deleted"
        )
    counts = sorted({s.spec.pool.resourceSliceCount for s in current})
    if counts != [len(current)]:
        said = " and ".join(map(str, counts))
        problems.append(f"pool {name}: resourceSliceCount says {said}, generation {newest} has {len(current)} slices")
    return problems


def _too_much(pool: str, slices: Sequence[v1.ResourceSlice]) -> list[str]:
    """Devices that nobody can ever have: alone they take more than there is."""
    there = {
        (counters.name, name): Quantity.parse(counter.value)
        for s in slices
        for counters in s.spec.sharedCounters or ()
        for name, counter in counters.counters.items()
    }
    return [
        f"pool {pool}: device {device.name} takes {counter.value} of counter {draw.counterSet}/{name}, "
        f"which has {there[draw.counterSet, name].canonical()}: nobody can have it"
        for s in slices
        for device in s.spec.devices or ()
        for draw in device.consumesCounters or ()
        for name, counter in draw.counters.items()
        if (draw.counterSet, name) in there and Quantity.parse(counter.value) > there[draw.counterSet, name]
    ]


def _attributes(slices: Sequence[v1.ResourceSlice]) -> list[str]:
    """Attributes that selectors stumble over."""
    problems: list[str] = []
    first: dict[str, tuple[str, str]] = {}
    for device in (device for s in slices for device in s.spec.devices or ()):
        for name, attribute in (device.attributes or {}).items():
            given = {key: value for key, value in msgspec.structs.asdict(attribute).items() if value is not None}
            kind = _SINGLE.get(next(iter(given), ""), next(iter(given), ""))
            wanted, form = _STANDARD.get(name, ("", None))
            if wanted and kind != wanted:
                problems.append(f"device {device.name}: attribute {name} is of type {kind}, everybody expects {wanted}")
            elif form is not None and not all(form.fullmatch(text) for text in _texts(attribute)):
                problems.append(
                    f"device {device.name}: attribute {name} is {', '.join(_texts(attribute))}, "
                    f"everybody expects {form.pattern}"
                )
            before = first.setdefault(name, (kind, device.name))
            if before[0] != kind:
                problems.append(
                    f"attribute {name} is of type {before[0]} on device {before[1]} and {kind} on {device.name}: "
                    "a selector that reads it fails on one of them"
                )
    return list(dict.fromkeys(problems))


def _texts(attribute: v1.DeviceAttribute) -> list[str]:
    return [attribute.string] if attribute.string is not None else [*(attribute.strings or ())]


def described(slices: Sequence[v1.ResourceSlice]) -> dict[tuple[str, str], v1.Device]:
    """Devices by pool and name, without what comes and goes by itself."""
    return {
        (s.spec.pool.name, device.name): msgspec.structs.replace(device, taints=None)
        for s in slices
        for device in s.spec.devices or ()
    }


def differences(before: Mapping[tuple[str, str], v1.Device], after: Mapping[tuple[str, str], v1.Device]) -> list[str]:
    """How the description of unchanged hardware changed."""
    told: list[str] = []
    for key, old in before.items():
        name, new = "/".join(key), after.get(key)
        if new is None:
            told.append(f"device {name} is not published any more")
            continue
        for part in ("capacity", "attributes"):
            left, right = getattr(old, part) or {}, getattr(new, part) or {}
            changed = sorted(each for each in {*left, *right} if left.get(each) != right.get(each))
            if changed:
                told.append(f"device {name}: {part} {', '.join(changed)} changed")
    return told


def judge_health(
    report: wire.NodeWatchResourcesResponse, devices: Collection[tuple[str, str]] | None
) -> tuple[list[str], list[str]]:
    """Problems and remarks; `devices`: what is published, None where that is not known."""
    problems: list[str] = []
    remarks: list[str] = []
    told = {(d.device.pool_name, d.device.device_name): d for d in report.devices}
    if len(told) < len(report.devices):
        problems.append("a device stands twice in the report")
    states = {d.health for d in report.devices} - {*wire.HealthStatus}
    if states:
        problems.append(f"health {sorted(states)} is none of {[*map(int, wire.HealthStatus)]}")
    if devices is not None:
        if missing := sorted({*devices} - told.keys()):
            problems.append(f"the report must be complete, it lacks {_names(missing)}")
        strange = sorted(key for key, d in told.items() if key not in devices and d.health == wire.HealthStatus.HEALTHY)
        if strange:
            problems.append(f"healthy devices that are not published: {_names(strange)}")
    now = time.time()
    wrong = [key for key, d in told.items() if d.last_updated_time and abs(d.last_updated_time - now) > _CLOCK]
    if wrong:
        remarks.append(f"last_updated_time of {_names(wrong)} is not now: it counts seconds since 1970")
    return problems, remarks


def _names(keys: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{pool}/{device}" for pool, device in keys[:5]) + (" …" if len(keys) > 5 else "")


def judge_mounts(edits: Sequence[cdi.ContainerEdits], folder: Path) -> list[str]:
    """Files of the driver (below `folder`) that it mounts and that are not there, or do not say what they should."""
    problems: list[str] = []
    for mount in (mount for edit in edits for mount in edit.mounts):
        path = Path(mount.hostPath)
        if not path.is_relative_to(folder):
            continue
        if not path.exists():
            problems.append(f"mount {mount.containerPath}: there is no {path} on the host, so no container starts")
        elif mount.containerPath.startswith(IN_CONTAINER) and path.is_file():
            problems += [f"{path}: {problem}" for problem in _metadata(path.read_text(errors="replace"))]
    return problems


def _metadata(text: str) -> list[str]:
    """What is wrong with a file of device metadata (KEP-5304): a stream of objects, one per version."""
    try:
        objects = _stream(text)
    except msgspec.DecodeError as error:
        return [f"is no stream of JSON objects: {error}"]
    if not objects:
        return ["is empty"]
    problems: list[str] = []
    for each in objects:
        version = each.get("apiVersion")
        if not isinstance(version, str) or not version.startswith("metadata.resource.k8s.io/"):
            problems.append(f"apiVersion is {version!r}, a reader looks for metadata.resource.k8s.io/…")
        if each.get("kind") != "DeviceMetadata":
            problems.append(f"kind is {each.get('kind')!r}, not DeviceMetadata")
        if not each.get("requests"):
            problems.append("has no requests")
    return problems


def _stream(text: str) -> list[dict[str, Any]]:
    """JSON objects that stand one after the other."""
    import json

    decoder, objects, at = json.JSONDecoder(), list[dict[str, Any]](), 0
    text = text.strip()
    while at < len(text):
        try:
            found, at = decoder.raw_decode(text, at)
        except ValueError as error:
            raise msgspec.DecodeError(str(error)) from None
        if not isinstance(found, dict):
            raise msgspec.DecodeError("not an object")
        objects.append(found)  # pyright: ignore[reportUnknownArgumentType]
        at += len(text[at:]) - len(text[at:].lstrip())
    return objects


def judge_specs(files: Mapping[str, bytes], before: Collection[str], folder: Path) -> list[str]:
    """CDI files that came since and that a runtime cannot read."""
    problems: list[str] = []
    for name in sorted(files):
        if name not in before and not name.startswith(".") and name.endswith((".json", ".yaml")):
            try:
                cdi.read_spec(folder / name)
            except cdi.CdiError as error:
                if (folder / name).exists():
                    problems.append(str(error))
    return problems
