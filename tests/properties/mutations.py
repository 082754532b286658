"""Random changes to scenarios of the allocator corpus, so that features meet in new combinations."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

Scenario = dict[str, Any]

FLAGS = (
    "AdminAccess",
    "CompatibilityGroups",
    "ConsumableCapacity",
    "DeviceBindingAndStatus",
    "DeviceTaints",
    "FractionalCapacityRange",
    "ListTypeAttributes",
    "OptionalNodeOperations",
    "PartitionableDevices",
    "PrioritizedList",
)
AMOUNTS = ("1", "1500m", "3G", "10Gi", "30Gi", "9E", "0", "7", "25G", "100u")


def requests_of(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """All requests and alternatives."""
    for claim in scenario["claims"]:
        for request in claim["spec"]["devices"].get("requests", []):
            if "exactly" in request:
                yield request["exactly"]
            yield from request.get("firstAvailable", [])


def devices_of(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """All published devices."""
    for published in scenario["resourceSlices"]:
        yield from published["spec"].get("devices") or []


def toggle_feature(scenario: Scenario, rnd: random.Random, _other: Scenario) -> None:
    """One feature on or off."""
    flag = rnd.choice(FLAGS)
    scenario.setdefault("features", {})[flag] = not scenario["features"].get(flag, False)


def other_claims(scenario: Scenario, _rnd: random.Random, other: Scenario) -> None:
    """The claims of another scenario."""
    scenario["claims"] = copy.deepcopy(other["claims"])


def other_holders(scenario: Scenario, _rnd: random.Random, other: Scenario) -> None:
    """What is allocated in another scenario."""
    scenario["allocatedClaims"] = copy.deepcopy(other.get("allocatedClaims", []))


def other_counts(scenario: Scenario, rnd: random.Random, _other: Scenario) -> None:
    """Other counts."""
    for request in requests_of(scenario):
        if rnd.random() < 0.5 and request.get("allocationMode") != "All":
            request["count"] = rnd.randint(1, 4)


def mode_all(scenario: Scenario, rnd: random.Random, _other: Scenario) -> None:
    """One request becomes mode All."""
    found = [request for request in requests_of(scenario) if request.get("allocationMode") == "ExactCount"]
    if found:
        request = rnd.choice(found)
        request["allocationMode"] = "All"
        request.pop("count", None)


def shuffle_devices(scenario: Scenario, rnd: random.Random, _other: Scenario) -> None:
    """Devices in another order."""
    for published in scenario["resourceSlices"]:
        if published["spec"].get("devices"):
            rnd.shuffle(published["spec"]["devices"])


def taints(scenario: Scenario, rnd: random.Random, _other: Scenario) -> None:
    """Taints here and tolerations there."""
    for device in devices_of(scenario):
        if rnd.random() < 0.2:
            effect = rnd.choice(["NoSchedule", "NoExecute", "None"])
            device["taints"] = [{"key": "k", "value": rnd.choice(["", "v"]), "effect": effect}]
    for request in requests_of(scenario):
        if rnd.random() < 0.4:
            toleration = {"key": "k", "operator": rnd.choice(["Exists", "Equal"])}
            if toleration["operator"] == "Equal" and rnd.random() < 0.5:
                toleration["value"] = "v"
            request["tolerations"] = [toleration]


def binding(scenario: Scenario, rnd: random.Random, _other: Scenario) -> None:
    """Binding conditions."""
    for device in devices_of(scenario):
        if rnd.random() < 0.3:
            device["bindingConditions"], device["bindingFailureConditions"] = ["ready"], ["failed"]
        if rnd.random() < 0.1:
            device["bindsToNode"] = True


def admin(scenario: Scenario, rnd: random.Random, _other: Scenario) -> None:
    """Administrator access."""
    for claim in scenario["claims"]:
        for request in claim["spec"]["devices"].get("requests", []):
            if "exactly" in request and rnd.random() < 0.3:
                request["exactly"]["adminAccess"] = rnd.random() < 0.8


def constraint(scenario: Scenario, rnd: random.Random, _other: Scenario) -> None:
    """One more constraint."""
    names = sorted({name for device in devices_of(scenario) for name in device.get("attributes") or {}})
    drivers = sorted({published["spec"]["driver"] for published in scenario["resourceSlices"]})
    if names and drivers:
        name = rnd.choice(names)
        name = name if "/" in name else f"{rnd.choice(drivers)}/{name}"
        devices = rnd.choice(scenario["claims"])["spec"]["devices"]
        devices.setdefault("constraints", []).append({rnd.choice(["matchAttribute", "distinctAttribute"]): name})


def shareable(scenario: Scenario, rnd: random.Random, _other: Scenario) -> None:
    """Devices become shareable, or dedicated."""
    for device in devices_of(scenario):
        if device.get("capacity") and rnd.random() < 0.5:
            device["allowMultipleAllocations"] = not device.get("allowMultipleAllocations", False)


def capacity(scenario: Scenario, rnd: random.Random, _other: Scenario) -> None:
    """Capacity requests."""
    for request in requests_of(scenario):
        if rnd.random() < 0.5:
            name = rnd.choice(["bandwidth", "memory", "vlans"])
            request["capacity"] = {"requests": {name: rnd.choice(AMOUNTS)}}


def generations(scenario: Scenario, rnd: random.Random, _other: Scenario) -> None:
    """Pools that are being replaced or not whole."""
    for published in scenario["resourceSlices"]:
        if rnd.random() < 0.3:
            published["spec"]["pool"]["generation"] += 1
        if rnd.random() < 0.1:
            published["spec"]["pool"]["resourceSliceCount"] += rnd.choice([-1, 1])


def more_requests(scenario: Scenario, rnd: random.Random, _other: Scenario) -> None:
    """A request twice."""
    requests = rnd.choice(scenario["claims"])["spec"]["devices"].get("requests", [])
    if requests:
        twin = copy.deepcopy(rnd.choice(requests))
        twin["name"] += "x"
        requests.insert(rnd.randrange(len(requests) + 1), twin)


def join(scenario: Scenario, _rnd: random.Random, other: Scenario) -> None:
    """Another scenario's devices and claims beside these."""
    scenario["resourceSlices"] += copy.deepcopy(other["resourceSlices"])
    known = {item["metadata"]["name"] for item in scenario["deviceClasses"]}
    scenario["deviceClasses"] += [c for c in other["deviceClasses"] if c["metadata"]["name"] not in known]
    scenario["claims"] += copy.deepcopy(other["claims"])


CHANGES: tuple[Callable[[Scenario, random.Random, Scenario], None], ...] = (
    toggle_feature,
    other_claims,
    other_holders,
    other_counts,
    mode_all,
    shuffle_devices,
    taints,
    binding,
    admin,
    constraint,
    shareable,
    capacity,
    generations,
    more_requests,
    join,
)


def mutate(scenarios: dict[str, list[Scenario]], rnd: random.Random) -> Scenario:
    """A scenario with one to four changes; objects have distinct names afterwards."""
    families = sorted(scenarios)
    family = rnd.choice(families)
    scenario = copy.deepcopy(rnd.choice(scenarios[family]))
    for _ in range(rnd.randint(1, 4)):
        change = rnd.choice(CHANGES)
        change(scenario, rnd, rnd.choice(scenarios[rnd.choice(families) if change is join else family]))
    seen: set[str] = set()
    for number, published in enumerate(scenario["resourceSlices"]):
        if published["metadata"]["name"] in seen:
            published["metadata"]["name"] += f"-{number}"
        seen.add(published["metadata"]["name"])
    for number, claim in enumerate(scenario["claims"]):
        claim["metadata"].update(name=f"c{number}", uid=f"uid-c{number}")
    for number, claim in enumerate(scenario.get("allocatedClaims", [])):
        claim["metadata"].update(name=f"held-{number}", uid=f"uid-held-{number}")
    scenario["timeoutSeconds"] = 1
    return scenario
