"""Short builders for allocation problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from drakkar.allocator import Failed, Fits, NoFit, Outcome, prepare
from drakkar.allocator.batch import numbered_shares
from drakkar.api.resource.v1 import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from drakkar.inventory import Inventory, Snapshot, Switches

DRIVER = "gpu.example.com"
HOST = "kubernetes.io/hostname"


def device(name: str, **fields: Any) -> dict[str, Any]:
    """A device; ``attributes`` may hold plain values."""
    if "attributes" in fields:
        fields["attributes"] = {key: attribute(value) for key, value in fields["attributes"].items()}
    if "capacity" in fields:
        fields["capacity"] = {
            key: value if isinstance(value, dict) else {"value": value} for key, value in fields["capacity"].items()
        }
    if "draws" in fields:
        fields["consumesCounters"] = [
            {"counterSet": name_, "counters": {key: {"value": value} for key, value in counters.items()}}
            for name_, counters in fields.pop("draws").items()
        ]
    return {"name": name, **fields}


def attribute(value: Any) -> dict[str, Any]:
    """An attribute of the value's type; dicts are taken as they are."""
    if isinstance(value, dict):
        return value
    if isinstance(value, bool):
        return {"bool": value}
    return {"int": value} if isinstance(value, int) else {"string": value}


def published(name: str, devices: Sequence[dict[str, Any]] = (), **fields: Any) -> ResourceSlice:
    """A slice; on node ``n1`` unless told otherwise, of a pool named like its node."""
    pool = {"name": fields.pop("pool", "p"), "generation": fields.pop("generation", 1)}
    pool["resourceSliceCount"] = fields.pop("count", 1)
    counters = fields.pop("counters", None)
    if counters is not None:
        fields["sharedCounters"] = [
            {"name": set_name, "counters": {key: {"value": value} for key, value in values.items()}}
            for set_name, values in counters.items()
        ]
    if not {"nodeName", "allNodes", "nodeSelector", "perDeviceNodeSelection"} & fields.keys():
        fields["nodeName"] = "n1"
    spec = {"driver": fields.pop("driver", DRIVER), "pool": pool, "devices": list(devices), **fields}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, type=ResourceSlice)


def on_hosts(*names: str) -> dict[str, Any]:
    """A node selector for these hosts."""
    expression = {"key": HOST, "operator": "In", "values": list(names)}
    return {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}


def device_class(name: str = "gpu", *expressions: str, config: Sequence[dict[str, Any]] = ()) -> DeviceClass:
    """A class with these selectors (its driver's devices if none is given)."""
    selectors = [{"cel": {"expression": text}} for text in expressions or (f'device.driver == "{DRIVER}"',)]
    spec: dict[str, Any] = {"selectors": selectors}
    if config:
        spec["config"] = list(config)
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, type=DeviceClass)


def request(name: str = "r", count: int = 1, select: str | None = None, **fields: Any) -> dict[str, Any]:
    """A request for ``count`` devices; ``count=0`` means mode All."""
    exact: dict[str, Any] = {"deviceClassName": fields.pop("class_name", "gpu"), **fields}
    if count:
        exact.update(allocationMode="ExactCount", count=count)
    else:
        exact["allocationMode"] = "All"
    if select is not None:
        exact["selectors"] = [{"cel": {"expression": select}}]
    if "capacity" in exact:
        exact["capacity"] = {"requests": exact["capacity"]}
    return {"name": name, "exactly": exact}


def ranked(name: str, *alternatives: dict[str, Any]) -> dict[str, Any]:
    """A request with ordered alternatives, each made by :func:`request`."""
    return {"name": name, "firstAvailable": [{"name": a["name"], **a["exactly"]} for a in alternatives]}


def claim(*requests: dict[str, Any], name: str = "c", **devices: Any) -> ResourceClaim:
    """A claim."""
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    spec = {"devices": {"requests": list(requests), **devices}}
    return msgspec.convert({"metadata": metadata, "spec": spec}, type=ResourceClaim)


def taint_rule(name: str, key: str, effect: str = "NoSchedule", **selector: str) -> DeviceTaintRule:
    """A taint rule for what ``selector`` says."""
    spec = {"deviceSelector": selector, "taint": {"key": key, "effect": effect}}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, type=DeviceTaintRule)


def inventory(*objects: Any, nodes: Sequence[str] = ("n1",), switches: Switches | None = None) -> Inventory:
    """An inventory of slices, classes and rules (class ``gpu`` included) and nodes labelled with their names."""
    made = Inventory(switches or Switches())
    made.set_class(device_class())
    for name in nodes:
        made.set_node(name, {HOST: name})
    for item in objects:
        if isinstance(item, ResourceSlice):
            made.set_slice(item)
        elif isinstance(item, DeviceClass):
            made.set_class(item)
        elif isinstance(item, DeviceTaintRule):
            made.set_taint_rule(item)
        else:
            made.set_claim(item)
    return made


def solve(source: Inventory | Snapshot, *claims: ResourceClaim, node: str = "n1", policy: str = "upstream") -> Outcome:
    """The answer for a node."""
    snapshot = source.snapshot() if isinstance(source, Inventory) else source
    return prepare(snapshot, claims, policy, numbered_shares()).solve(node)


def chosen(outcome: Outcome) -> list[str]:
    """Names of the chosen devices over all claims, in order; fails the test when the claims do not fit."""
    assert isinstance(outcome, Fits), outcome
    return [result.device for a in outcome.allocations for result in a.devices.results or ()]


def error_class(outcome: Outcome) -> str:
    """Class of the error, or ``nofit``."""
    if isinstance(outcome, NoFit):
        return "nofit"
    assert isinstance(outcome, Failed), outcome
    return outcome.error_class


def allocated(source: ResourceClaim, outcome: Outcome, number: int = 0) -> ResourceClaim:
    """The claim with its allocation written."""
    assert isinstance(outcome, Fits), outcome
    status = msgspec.structs.replace(source.status, allocation=outcome.allocations[number])
    return msgspec.structs.replace(source, status=status)
