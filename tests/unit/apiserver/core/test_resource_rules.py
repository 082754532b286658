"""Every rule of resource.k8s.io that the tables of tests/unit/api leave out, through the server.

Each row is a change to a good object, and the fields and causes that the Status has to name.
Source: spec/api.md sections 2 to 5.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from tests.unit.apiserver.core.serving import Api, Object, Refused
from tests.unit.apiserver.core.test_writes import CLAIMS, SLICES, play

Change = Callable[[Object], Any]
INVALID, REQUIRED, FORBIDDEN = "FieldValueInvalid", "FieldValueRequired", "FieldValueForbidden"
DUPLICATE, TOO_MANY, TOO_LONG = "FieldValueDuplicate", "FieldValueTooMany", "FieldValueTooLong"
NOT_SUPPORTED = "FieldValueNotSupported"
Row = tuple[Change, list[tuple[str, str]]]

GROUP = "/apis/resource.k8s.io"
LONG = "a" * 64
TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}


def at(path: str, value: Any) -> Change:
    """Sets what stands at a path of names and numbers; None takes it away."""

    def change(obj: Object) -> None:
        *way, last = [int(step) if step.isdigit() else step for step in path.split("/")]
        holder: Any = obj
        for step in way:
            holder = holder[step] if isinstance(step, int) else holder.setdefault(step, {})
        if value is None:
            holder.pop(last, None)
        else:
            holder[last] = value

    return change


def both(*changes: Change) -> Change:
    def change(obj: Object) -> None:
        for one in changes:
            one(obj)

    return change


# Slices.


def slice_() -> Object:
    return {
        "metadata": {"name": "s"},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": 0, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": "d0",
                    "attributes": {"model": {"string": "A"}},
                    "capacity": {"memory": {"value": "80Gi"}},
                }
            ],
        },
    }


D = "spec/devices/0"
F = "spec.devices[0]"
COUNTERS = [{"counterSet": "a", "counters": {"c": {"value": "1"}}}]
PER_DEVICE = both(at("spec/nodeName", None), at("spec/perDeviceNodeSelection", True))


def shared_counters(value: Any) -> Change:
    return both(at("spec/devices", None), at("spec/sharedCounters", value))


def policy(**members: Any) -> Change:
    return both(
        at(f"{D}/allowMultipleAllocations", True),
        at(f"{D}/capacity", {"m": {"value": "10", "requestPolicy": members}}),
    )


def allocatable(**members: Any) -> Change:
    return at(f"{D}/nodeAllocatableResources", {"cpu": members})


P = f"{F}.capacity[m].requestPolicy"
N = f"{F}.nodeAllocatableResources[cpu]"

SLICE_ROWS: list[Row] = [
    (at("spec/pool/name", ""), [("spec.pool.name", REQUIRED)]),
    (at("spec/pool/name", "a/" * 130 + "a"), [("spec.pool.name", TOO_LONG)]),
    (at("spec/nodeName", "No Name"), [("spec.nodeName", INVALID)]),
    (both(at("spec/nodeName", None), at("spec/perDeviceNodeSelection", False), at(f"{D}", {"name": "d"})),
     [("spec.perDeviceNodeSelection", INVALID)]),
    (both(at("spec/nodeSelector", {"nodeSelectorTerms": [TERM]}), at("spec/allNodes", True)), [("spec", INVALID)]),
    (both(at("spec/nodeName", None), at("spec/nodeSelector", {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a", "b"]}]}]})),
     [("spec.nodeSelector.nodeSelectorTerms[0].matchFields[0].values", REQUIRED)]),
    (both(at("spec/nodeName", None), at("spec/nodeSelector", {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "Exists", "values": ["a"]}]}]})),
     [("spec.nodeSelector.nodeSelectorTerms[0].matchFields[0].operator", INVALID)]),
    # Counters that are shared.
    (shared_counters([{"name": f"s{i}", "counters": {"c": {"value": "1"}}} for i in range(9)]),
     [("spec.sharedCounters", TOO_MANY)]),
    (shared_counters([{"name": "s", "counters": {"c": {"value": "1"}}}] * 2),
     [("spec.sharedCounters[1].name", DUPLICATE)]),
    (shared_counters([{"name": "", "counters": {"c": {"value": "1"}}}]), [("spec.sharedCounters[0].name", REQUIRED)]),
    (shared_counters([{"name": "s", "counters": {f"c{i}": {"value": "1"} for i in range(33)}}]),
     [("spec.sharedCounters[0].counters", TOO_MANY)]),
    (shared_counters([{"name": "s", "counters": {"C": {"value": "1"}}}]),
     [("spec.sharedCounters[0].counters[C]", INVALID)]),
    (shared_counters([{"name": "s", "counters": {LONG: {"value": "1"}}}]),
     [(f"spec.sharedCounters[0].counters[{'a' * 30}...{'a' * 30}]", INVALID)]),
    (at("spec/skipNodeOperations", ["*", "*"]), [("spec.skipNodeOperations[1]", DUPLICATE)]),
    (both(at("spec/partitionTypeAttribute", "model"), at(f"{D}/consumesCounters", COUNTERS)),
     [("spec.partitionTypeAttribute", INVALID)]),
    (both(at("spec/partitionTypeAttribute", "gpu.example.com/model"), at(f"{D}/consumesCounters", COUNTERS),
          at(f"{D}/attributes/model", {"int": 1})),
     [(f"{F}.attributes[gpu.example.com/model]", REQUIRED)]),
    # Devices.
    (at(f"{D}/name", ""), [(f"{F}.name", REQUIRED)]),
    (at(f"{D}/name", LONG), [(f"{F}.name", INVALID)]),
    (at("spec/devices", [{"name": f"d{i}", "taints": [{"key": "k", "effect": "None"}]} for i in range(65)]),
     [("spec.devices", TOO_MANY)]),
    (at("spec/devices", [{"name": f"d{i}", "consumesCounters": COUNTERS} for i in range(65)]),
     [("spec.devices", TOO_MANY)]),
    (at(f"{D}/attributes", {"a/b": {"int": 1}, "A.b/c": {"int": 1}, "d_/e": {"int": 1}}),
     [(f"{F}.attributes[d_/e]", INVALID)]),
    (at(f"{D}/attributes", {f"{LONG}/b": {"int": 1}}), [(f"{F}.attributes[{LONG}/b]", TOO_LONG)]),
    (at(f"{D}/attributes", {"a/": {"int": 1}}), [(f"{F}.attributes[a/]", INVALID)]),
    (at(f"{D}/attributes", {"1a": {"int": 1}}), [(f"{F}.attributes[1a]", INVALID)]),
    (at(f"{D}/attributes", {"a": {"strings": ["x", "y" * 65]}}), [(f"{F}.attributes[a].strings[1]", TOO_LONG)]),
    (at(f"{D}/attributes", {"a": {"bools": []}}), [(f"{F}.attributes[a].bools", INVALID)]),
    (at(f"{D}/attributes", {"a": {"version": "1.0.0-" + "a" * 60}}), [(f"{F}.attributes[a].version", TOO_LONG)]),
    (at(f"{D}/attributes", {"a": {"version": "01.0.0"}}), [(f"{F}.attributes[a].version", INVALID)]),
    (at(f"{D}/attributes", {"a": {"int": 1, "ints": [1]}}), [(f"{F}.attributes[a]", INVALID)]),
    (at(f"{D}/capacity", {"a-b": {"value": "1"}}), [(f"{F}.capacity[a-b]", INVALID)]),
    (at(f"{D}/capacity", {f"c{i}": {"value": "1"} for i in range(32)}), [(F, INVALID)]),
    (at(f"{D}/taints", [{"key": "k", "value": "no value", "effect": "None"}]), [(f"{F}.taints[0].value", INVALID)]),
    (at(f"{D}/taints", [{"key": "a b", "effect": "None"}]), [(f"{F}.taints[0].key", INVALID)]),
    (at(f"{D}/allNodes", True), [(f"{F}.allNodes", INVALID)]),
    (at(f"{D}/nodeSelector", {"nodeSelectorTerms": [TERM]}), [(f"{F}.nodeSelector", INVALID)]),
    (both(PER_DEVICE, at(f"{D}/nodeName", "n"), at(f"{D}/allNodes", True)), [(F, INVALID)]),
    (both(PER_DEVICE, at(f"{D}/nodeName", "")), [(f"{F}.nodeName", INVALID)]),
    (both(PER_DEVICE, at(f"{D}/allNodes", False)), [(f"{F}.allNodes", INVALID)]),
    (both(PER_DEVICE, at(f"{D}/nodeSelector", {"nodeSelectorTerms": []})),
     [(f"{F}.nodeSelector.nodeSelectorTerms", REQUIRED)]),
    (both(PER_DEVICE, at(f"{D}/nodeSelector", {"nodeSelectorTerms": [TERM, TERM]})), []),
    (at(f"{D}/bindingFailureConditions", ["a"]), [(f"{F}.bindingConditions", INVALID)]),
    (both(at(f"{D}/bindingConditions", ["a", "a"]), at(f"{D}/bindingFailureConditions", ["b"])),
     [(f"{F}.bindingConditions[1]", DUPLICATE)]),
    (both(at(f"{D}/bindingConditions", list("abcde")), at(f"{D}/bindingFailureConditions", ["x"])),
     [(f"{F}.bindingConditions", TOO_MANY)]),
    (both(at(f"{D}/bindingConditions", ["a"]), at(f"{D}/bindingFailureConditions", list("vwxyz"))),
     [(f"{F}.bindingFailureConditions", TOO_MANY)]),
    (both(at(f"{D}/bindingConditions", ["a b"]), at(f"{D}/bindingFailureConditions", ["x"])),
     [(f"{F}.bindingConditions[0]", INVALID)]),
    (at(f"{D}/consumesCounters", COUNTERS * 2), [(f"{F}.consumesCounters[1].counterSet", DUPLICATE)]),
    (at(f"{D}/consumesCounters", [{"counterSet": "", "counters": {"c": {"value": "1"}}}]),
     [(f"{F}.consumesCounters[0].counterSet", REQUIRED)]),
    (at(f"{D}/consumesCounters", [{"counterSet": "a"}]), [(f"{F}.consumesCounters[0].counters", REQUIRED)]),
    (at(f"{D}/consumesCounters", [{"counterSet": "a", "counters": {f"c{i}": {"value": "1"} for i in range(33)}}]),
     [(f"{F}.consumesCounters[0].counters", TOO_MANY)]),
    (at(f"{D}/consumesCounters", [{**COUNTERS[0], "compatibilityGroups": ["a", "b", "c"]}]),
     [(f"{F}.consumesCounters[0].compatibilityGroups", TOO_MANY)]),
    # Amounts that may be asked for.
    (policy(default="1", validValues=[str(i + 1) for i in range(11)]), [(f"{P}.validValues", TOO_MANY)]),
    (policy(default="1", validRange={"max": "5"}), [(f"{P}.validRange.min", REQUIRED)]),
    (policy(default="4", validRange={"min": "4", "max": "3"}),
     [(f"{P}.validRange.min", INVALID), (f"{P}.default", INVALID)]),
    (policy(default="9", validRange={"min": "1", "max": "8"}), [(f"{P}.default", INVALID)]),
    (policy(default="5", validRange={"min": "5", "step": "6"}), [(f"{P}.validRange.step", INVALID)]),
    (policy(validRange={"min": "1"}), [(f"{P}.default", REQUIRED)]),
    (policy(default="0", validRange={"min": "0", "step": "-1"}), [(f"{P}.validRange.step", INVALID)]),
    (policy(default="-1", validRange={"min": "-1", "step": "1"}), [(f"{P}.validRange", INVALID)]),
    # What a device takes from its node.
    (allocatable(mapping={"capacityKey": "memory", "capacityMultiplier": "1", "deviceMultiplier": "1"}),
     [(f"{N}.mapping", INVALID)]),
    (allocatable(mapping={}), [(f"{N}.mapping", REQUIRED)]),
    (allocatable(mapping={"deviceMultiplier": "0"}), [(f"{N}.mapping.deviceMultiplier", INVALID)]),
    (allocatable(mapping={"capacityKey": "memory", "capacityMultiplier": "-1"}),
     [(f"{N}.mapping.capacityMultiplier", INVALID)]),
    (allocatable(mapping={"deviceMultiplier": "1", "capacityMultiplier": "1"}), [(f"{N}.mapping.capacityKey", REQUIRED)]),  # noqa: E501
    (allocatable(mapping={"capacityKey": "memory", "capacityMultiplier": "1"}), []),
    (allocatable(overhead={}), [(f"{N}.overhead", REQUIRED)]),
    (allocatable(overhead={"perPod": "1", "perContainer": "-1"}), [(f"{N}.overhead.perContainer", INVALID)]),
    (at(f"{D}/nodeAllocatableResources", {"gpu": {"overhead": {"perPod": "1"}}}),
     [(f"{F}.nodeAllocatableResources[gpu]", INVALID)]),
    (at(f"{D}/nodeAllocatableResources", {"hugepages-2Mi": {"overhead": {"perPod": "1"}}}), []),
]  # fmt: skip

# Claims.


def claim() -> Object:
    return {
        "metadata": {"name": "c"},
        "spec": {
            "devices": {
                "requests": [
                    {"name": "a", "exactly": {"deviceClassName": "gpu"}},
                    {
                        "name": "b",
                        "firstAvailable": [
                            {"name": "x", "deviceClassName": "gpu"},
                            {"name": "y", "deviceClassName": "gpu", "allocationMode": "All"},
                        ],
                    },
                ]
            }
        },
    }


R = "spec/devices/requests"
Q = "spec.devices.requests"
C = "spec.devices.constraints[0]"
OPAQUE = {"driver": "gpu.example.com", "parameters": {"a": 1}}


def derived(*items: Object) -> Change:
    return both(
        at(f"{R}/0/exactly/derivedAttributes", list(items)),
        at("spec/devices/constraints", [{"matchAttribute": "d/numa"}]),
    )


def numa(expression: str) -> Object:
    return {"name": "d/numa", "expression": expression}


#: Costs some 36,000 by its estimate, as much as 28 of them may cost together.
SCAN = "device.attributes.map(d, device.attributes[d].filter(k, k.matches('a.*b.*c.*d.*e.*f.*g')).size()).sum()"

CLAIM_ROWS: list[Row] = [
    (at(f"{R}/0/name", ""), [(f"{Q}[0].name", REQUIRED)]),
    (at(f"{R}/0/name", "A"), [(f"{Q}[0].name", INVALID)]),
    (at(f"{R}/0/firstAvailable", [{"name": "x", "deviceClassName": "gpu"}]), [(f"{Q}[0]", INVALID)]),
    (at(f"{R}/1/firstAvailable", [{"name": f"s{i}", "deviceClassName": "gpu"} for i in range(9)]),
     [(f"{Q}[1].firstAvailable", TOO_MANY)]),
    (at(f"{R}/1/firstAvailable/1/name", "x"), [(f"{Q}[1].firstAvailable[1].name", DUPLICATE)]),
    (at(f"{R}/1/firstAvailable/1/name", ""), [(f"{Q}[1].firstAvailable[1].name", REQUIRED)]),
    (at(f"{R}/1/firstAvailable/0/deviceClassName", ""), [(f"{Q}[1].firstAvailable[0].deviceClassName", REQUIRED)]),
    (at(f"{R}/1/firstAvailable/1/count", 3), [(f"{Q}[1].firstAvailable[1].count", INVALID)]),
    (at(f"{R}/1/firstAvailable/0/count", -1), [(f"{Q}[1].firstAvailable[0].count", INVALID)]),
    (at(f"{R}/1/firstAvailable/0/selectors", [{"cel": {"expression": "1"}}]),
     [(f"{Q}[1].firstAvailable[0].selectors[0].cel.expression", INVALID)]),
    (at(f"{R}/0/exactly/selectors", [{"cel": {"expression": "type(device.driver) == string"}}]),
     [(f"{Q}[0].exactly.selectors[0].cel.expression", FORBIDDEN)]),
    (at(f"{R}/0/exactly/tolerations", [{"key": "a b", "operator": "Exists"}]),
     [(f"{Q}[0].exactly.tolerations[0].key", INVALID)]),
    (at(f"{R}/0/exactly/tolerations", [{"key": "k", "value": "no value"}]),
     [(f"{Q}[0].exactly.tolerations[0].value", INVALID)]),
    (at("spec/devices/constraints", [{"matchAttribute": "d/a"}] * 33), [("spec.devices.constraints", TOO_MANY)]),
    (at("spec/devices/config", [{"opaque": OPAQUE}] * 33), [("spec.devices.config", TOO_MANY)]),
    (at("spec/devices/constraints", [{"distinctAttribute": "a"}]), [(f"{C}.distinctAttribute", INVALID)]),
    (at("spec/devices/constraints", [{"matchAttribute": "d/a", "requests": [f"r{i}" for i in range(33)]}]),
     [(f"{C}.requests", TOO_MANY)]),
    (at("spec/devices/config", [{"opaque": OPAQUE, "requests": ["a", "a"]}]),
     [("spec.devices.config[0].requests[1]", DUPLICATE)]),
    (at("spec/devices/config", [{"opaque": {"driver": "", "parameters": {"a": 1}}}]),
     [("spec.devices.config[0].opaque.driver", REQUIRED)]),
    (at("spec/devices/config", [{"opaque": {"driver": "d", "parameters": "text"}}]),
     [("spec.devices.config[0].opaque.parameters", INVALID)]),
    (derived({"name": "numa", "expression": "1"}),
     [(f"{Q}[0].exactly.derivedAttributes[0].name", INVALID)] * 2),
    (derived(numa("1"), numa("2")), [(f"{Q}[0].exactly.derivedAttributes[1].name", DUPLICATE)]),
    (derived(numa("")), [(f"{Q}[0].exactly.derivedAttributes[0].expression", REQUIRED)]),
    (derived(numa("'" + "x" * 10240 + "'")), [(f"{Q}[0].exactly.derivedAttributes[0].expression", TOO_LONG)]),
    (derived(numa("1.5")), [(f"{Q}[0].exactly.derivedAttributes[0].expression", INVALID)]),
    (derived(numa("device.nope")), [(f"{Q}[0].exactly.derivedAttributes[0].expression", INVALID)]),
    (derived(*[{"name": f"d/n{i}", "expression": "1"} for i in range(33)]),
     [(f"{Q}[0].exactly.derivedAttributes", TOO_MANY)]),
    (derived(numa("1")), []),
]  # fmt: skip

# Status of claims.

RESULT = {"request": "a", "driver": "gpu.example.com", "pool": "n1", "device": "d0"}
ENTRY = {"driver": "gpu.example.com", "pool": "n1", "device": "d0"}
CONDITION = {
    "type": "Ready",
    "status": "True",
    "reason": "R",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
    "message": "",
}
A = "status.allocation.devices"


def allocated(*results: Object, **members: Any) -> Object:
    return {"allocation": {"devices": {"results": list(results), **members}}}


STATUS_ROWS: list[tuple[Object, list[tuple[str, str]]]] = [
    (allocated({**RESULT, "driver": "a_b"}), [(f"{A}.results[0].driver", INVALID)]),
    (allocated({**RESULT, "pool": "a//b"}), [(f"{A}.results[0].pool", INVALID)]),
    (allocated({**RESULT, "device": "A"}), [(f"{A}.results[0].device", INVALID)]),
    (allocated({**RESULT, "tolerations": [{"operator": "Exists", "value": "v"}]}),
     [(f"{A}.results[0].tolerations[0].value", INVALID)]),
    (allocated({**RESULT, "bindingConditions": ["a"]}), [(f"{A}.results[0].bindingFailureConditions", INVALID)]),
    (allocated({**RESULT, "consumedCapacity": {"a-b": "1"}}), [(f"{A}.results[0].consumedCapacity[a-b]", INVALID)]),
    (allocated({**RESULT, "skipNodeOperations": ["NodePrepareResources"]}),
     [(f"{A}.results[0].skipNodeOperations", INVALID)]),
    (allocated(RESULT, config=[{"source": "FromClass", "opaque": OPAQUE}] * 65), [(f"{A}.config", TOO_MANY)]),
    (allocated(RESULT, config=[{"opaque": OPAQUE}]), [(f"{A}.config[0].source", REQUIRED)]),
    (allocated(RESULT, config=[{"source": "FromClaim", "requests": ["zz"], "opaque": OPAQUE}]),
     [(f"{A}.config[0].requests[0]", INVALID)]),
    (allocated(RESULT, config=[{"source": "FromClaim"}]), [(f"{A}.config[0].opaque", REQUIRED)]),
    ({"allocation": {"devices": {"results": [RESULT]}, "nodeSelector": {}}},
     [("status.allocation.nodeSelector.nodeSelectorTerms", REQUIRED)]),
    ({**allocated(RESULT), "devices": [{}]},
     [(f"status.devices[0].{field}", REQUIRED) for field in ("driver", "pool", "device")]
     + [("status.devices[0]", INVALID)]),
    ({**allocated(RESULT), "devices": [ENTRY, ENTRY]}, [("status.devices[1]", DUPLICATE)]),
    ({**allocated(RESULT), "devices": [{**ENTRY, "shareID": "x"}]},
     [("status.devices[0].shareID", INVALID), ("status.devices[0]", INVALID)]),
    ({**allocated(RESULT), "devices": [{**ENTRY, "conditions": [{**CONDITION, "type": f"T{i}"} for i in range(9)]}]},
     [("status.devices[0].conditions", TOO_MANY)]),
    ({**allocated(RESULT), "devices": [{**ENTRY, "conditions": [{**CONDITION, "reason": "no reason"}]}]},
     [("status.devices[0].conditions[0].reason", INVALID)]),
    ({**allocated(RESULT), "devices": [{**ENTRY, "conditions": [{**CONDITION, "type": ""}]}]},
     [("status.devices[0].conditions[0].type", REQUIRED)]),
    ({**allocated(RESULT), "devices": [{**ENTRY, "conditions": [{**CONDITION, "observedGeneration": -1}]}]},
     [("status.devices[0].conditions[0].observedGeneration", INVALID)]),
    ({**allocated(RESULT), "devices": [{**ENTRY, "data": {"a": "x" * 10240}}]}, [("status.devices[0].data", TOO_LONG)]),
    ({**allocated(RESULT), "devices": [{**ENTRY, "networkData": {"hardwareAddress": "x" * 129}}]},
     [("status.devices[0].networkData.hardwareAddress", TOO_LONG)]),
    ({**allocated(RESULT), "devices": [{**ENTRY, "networkData": {"ips": [f"10.0.0.{i}/24" for i in range(17)]}}]},
     [("status.devices[0].networkData.ips", TOO_MANY)]),
    ({**allocated(RESULT), "devices": [{**ENTRY, "networkData": {"ips": ["10.0.0.1/24"] * 2}}]},
     [("status.devices[0].networkData.ips[1]", DUPLICATE)]),
    ({**allocated(RESULT), "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
      "devices": [{**ENTRY, "conditions": [CONDITION], "data": {"a": 1}}]}, []),
]  # fmt: skip

# The other kinds.


def class_(**spec: Any) -> Object:
    return {"metadata": {"name": "gpu"}, "spec": spec}


def rule(**spec: Any) -> Object:
    return {"metadata": {"name": "r"}, "spec": spec}


SELECTOR = {"cel": {"expression": "true"}}
TAINT = {"key": "k", "effect": "NoExecute"}

OTHER_ROWS: list[tuple[str, Object, list[tuple[str, str]]]] = [
    ("v1/deviceclasses", class_(selectors=[SELECTOR] * 33), [("spec.selectors", TOO_MANY)]),
    ("v1/deviceclasses", class_(selectors=[{}]), [("spec.selectors[0].cel", REQUIRED)]),
    ("v1/deviceclasses", class_(selectors=[{"cel": {"expression": "device.driver"}}]),
     [("spec.selectors[0].cel.expression", INVALID)]),
    ("v1/deviceclasses", class_(config=[{"opaque": OPAQUE}] * 33), [("spec.config", TOO_MANY)]),
    ("v1/deviceclasses", class_(config=[{}]), [("spec.config[0].opaque", REQUIRED)]),
    ("v1/deviceclasses", class_(extendedResourceName=""), [("spec.extendedResourceName", INVALID)]),
    ("v1/deviceclasses", {**class_(), "metadata": {"name": "No"}}, [("metadata.name", INVALID)]),
    ("v1/devicetaintrules", rule(), [("spec.taint.key", INVALID), ("spec.taint.key", INVALID), ("spec.taint.effect", REQUIRED)]),  # noqa: E501
    ("v1/devicetaintrules", rule(taint={"key": "k", "value": "a b", "effect": "None"}), [("spec.taint.value", INVALID)]),  # noqa: E501
    ("v1/devicetaintrules", rule(taint=TAINT, deviceSelector={"pool": ""}), [("spec.deviceSelector.pool", REQUIRED)]),
    ("v1/devicetaintrules", rule(taint=TAINT, deviceSelector={"device": ""}), [("spec.deviceSelector.device", REQUIRED)]),  # noqa: E501
    ("v1/devicetaintrules", rule(taint=TAINT, deviceSelector={}), []),
    ("v1alpha3/resourcepoolstatusrequests", rule(driver=""), [("spec.driver", REQUIRED)]),
    ("v1alpha3/resourcepoolstatusrequests", rule(driver="d", poolName="A"), [("spec.poolName", INVALID)]),
    ("v1alpha3/resourcepoolstatusrequests", rule(driver="d", limit=1001), [("spec.limit", INVALID)]),
    ("v1alpha3/resourcepoolstatusrequests", rule(driver="d", defaultPartitionTypeAttribute="x"),
     [("spec.defaultPartitionTypeAttribute", INVALID)]),
]  # fmt: skip

POOL = {"driver": "d", "poolName": "p", "generation": 1}
S = "status.pools[0]"
PART = {"attribute": "d/t", "type": "x", "total": 1, "allocatable": 1}
AMOUNT = {"name": "m", "total": "1", "consumed": "0", "available": "1"}


def answered(pool: Object | None = None, **members: Any) -> Object:
    return {"poolCount": 1, "pools": [{**POOL, **(pool or {})}], **members}


POOL_STATUS_ROWS: list[tuple[Object, list[tuple[str, str]]]] = [
    ({"pools": [POOL]}, [("status.poolCount", REQUIRED)]),
    (answered(poolCount=-1), [("status.poolCount", INVALID)]),
    (answered(pools=[POOL] * 1001), [("status.pools", TOO_MANY)]),
    (answered(conditions=[{**CONDITION, "type": f"T{i}"} for i in range(11)]), [("status.conditions", TOO_MANY)]),
    (answered({"driver": ""}), [(f"{S}.driver", REQUIRED)]),
    (answered({"poolName": "a//b"}), [(f"{S}.poolName", INVALID)]),
    (answered({"nodeName": ""}), [(f"{S}.nodeName", INVALID)]),
    (answered({"resourceSliceCount": 0}), [(f"{S}.resourceSliceCount", INVALID)]),
    *[(answered({field: -1}), [(f"{S}.{field}", INVALID)])
      for field in ("totalDevices", "allocatedDevices", "availableDevices", "unavailableDevices")],
    (answered({"validationError": "x" * 257}), [(f"{S}.validationError", TOO_LONG)]),
    (answered({"partitionSummary": [{**PART, "type": f"t{i}"} for i in range(33)]}), [(f"{S}.partitionSummary", TOO_MANY)]),  # noqa: E501
    (answered({"partitionSummary": [PART, PART]}), [(f"{S}.partitionSummary[1]", DUPLICATE)]),
    (answered({"partitionSummary": [{**PART, "attribute": "", "type": ""}]}),
     [(f"{S}.partitionSummary[0].attribute", REQUIRED), (f"{S}.partitionSummary[0].type", REQUIRED)]),
    (answered({"partitionSummary": [{**PART, "total": -1}]}), [(f"{S}.partitionSummary[0].total", INVALID)]),
    (answered({"shareableSummary": {"fullyAvailableDevices": 0}}),
     [(f"{S}.shareableSummary.partiallyAvailableDevices", REQUIRED)]),
    (answered({"shareableSummary": {"fullyAvailableDevices": 0, "partiallyAvailableDevices": 0,
                                    "capacity": [AMOUNT] * 33}}), [(f"{S}.shareableSummary.capacity", TOO_MANY)]),
    (answered({"shareableSummary": {"fullyAvailableDevices": 0, "partiallyAvailableDevices": 0,
                                    "capacity": [{**AMOUNT, "name": ""}]}}),
     [(f"{S}.shareableSummary.capacity[0].name", REQUIRED)]),
]  # fmt: skip


async def faults(work: Any) -> list[tuple[str, str]]:
    try:
        await work
    except Refused as error:
        if error.code != 422:
            raise
        return [(cause["field"], cause["reason"]) for cause in error.status["details"]["causes"]]
    return []


def judged(found: list[tuple[Any, Any, Any]]) -> None:
    """Fails with all rows that are wrong, not only the first."""
    assert [row for row in found if row[1] != row[2]] == []


def test_slices() -> None:
    async def scene(api: Api) -> None:
        found: list[tuple[Any, Any, Any]] = []
        for number, (change, expected) in enumerate(SLICE_ROWS):
            obj = slice_()
            change(obj)
            found.append((number, await faults(api.post(f"{SLICES}?dryRun=All", obj)), expected))
        judged(found)

    play(scene)


def test_claims_and_templates() -> None:
    async def scene(api: Api) -> None:
        found: list[tuple[Any, Any, Any]] = []
        templates = CLAIMS.replace("resourceclaims", "resourceclaimtemplates")
        for number, (change, expected) in enumerate(CLAIM_ROWS):
            obj = claim()
            change(obj)
            found.append((number, await faults(api.post(f"{CLAIMS}?dryRun=All", obj)), expected))
            template = {"metadata": {"name": "t"}, "spec": {"spec": obj["spec"]}}
            inside = [(field.replace("spec.", "spec.spec.", 1), cause) for field, cause in expected]
            found.append((f"template {number}", await faults(api.post(f"{templates}?dryRun=All", template)), inside))
        judged(found)

    play(scene)


def test_derived_attributes_have_a_common_budget() -> None:
    async def scene(api: Api) -> None:
        one = claim()
        derived(numa(SCAN))(one)
        assert await faults(api.post(f"{CLAIMS}?dryRun=All", one)) == []
        many = claim()
        names = [f"d/n{index}" for index in range(32)]
        derived(*[{"name": name, "expression": SCAN} for name in names])(many)
        many["spec"]["devices"]["constraints"] = [{"matchAttribute": name} for name in names]
        found = await faults(api.post(f"{CLAIMS}?dryRun=All", many))
        assert found
        assert {cause for _, cause in found} == {FORBIDDEN}

    play(scene)


def test_status_of_claims() -> None:
    async def scene(api: Api) -> None:
        made = await api.post(CLAIMS, claim())
        found: list[tuple[Any, Any, Any]] = []
        for number, (status, expected) in enumerate(STATUS_ROWS):
            obj = {**copy.deepcopy(made), "status": status}
            found.append((number, await faults(api.put(f"{CLAIMS}/c/status?dryRun=All", obj)), expected))
        judged(found)

    play(scene)


def test_other_kinds() -> None:
    async def scene(api: Api) -> None:
        found: list[tuple[Any, Any, Any]] = []
        for number, (path, obj, expected) in enumerate(OTHER_ROWS):
            found.append((number, await faults(api.post(f"{GROUP}/{path}?dryRun=All", obj)), expected))
        judged(found)

    play(scene)


def test_answers_about_pools() -> None:
    async def scene(api: Api) -> None:
        path = f"{GROUP}/v1alpha3/resourcepoolstatusrequests"
        made = await api.post(path, rule(driver="d"))
        found: list[tuple[Any, Any, Any]] = []
        for number, (status, expected) in enumerate(POOL_STATUS_ROWS):
            obj = {**copy.deepcopy(made), "status": status}
            found.append((number, await faults(api.put(f"{path}/r/status?dryRun=All", obj)), expected))
        changed = {**copy.deepcopy(made), "spec": {"driver": "e"}}
        found.append(("spec", await faults(api.put(f"{path}/r", changed)), [("spec", INVALID)]))
        judged(found)

    play(scene)
