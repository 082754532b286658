"""Rules of resource.k8s.io, one object and its faults per line (spec/api.md sections 2 to 6)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from drakkar.api.errors import FieldError
from drakkar.api.faults import describe
from drakkar.api.features import Features
from drakkar.api.registry import ValidationContext, validator_for
from drakkar.api.resource.validation import validate_create, validate_update

Object = dict[str, Any]
Change = Callable[[Object], Any]

INVALID, REQUIRED, FORBIDDEN = "FieldValueInvalid", "FieldValueRequired", "FieldValueForbidden"
DUPLICATE, TOO_MANY, TOO_LONG = "FieldValueDuplicate", "FieldValueTooMany", "FieldValueTooLong"
NOT_SUPPORTED = "FieldValueNotSupported"


def faults(errors: list[FieldError]) -> list[tuple[str, str]]:
    return [(error.field, error.type) for error in errors]


def make_slice() -> Object:
    return {
        "metadata": {"name": "s"},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": 0, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": "d0",
                    "attributes": {"model": {"string": "A"}, "gpu.example.com/index": {"int": 0}},
                    "capacity": {"memory": {"value": "80Gi"}},
                }
            ],
        },
    }


def spec(**members: Any) -> Change:
    def change(obj: Object) -> None:
        for name, value in members.items():
            if value is None:
                obj["spec"].pop(name, None)
            else:
                obj["spec"][name] = value

    return change


def device(**members: Any) -> Change:
    return lambda obj: obj["spec"]["devices"][0].update(members)


def policy(capacity: str = "10", **members: Any) -> Change:
    return device(allowMultipleAllocations=True, capacity={"m": {"value": capacity, "requestPolicy": members}})


P = "spec.devices[0].capacity[m].requestPolicy"
TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (spec(), []),
        (spec(driver=""), [("spec.driver", REQUIRED)]),
        (spec(driver="GPU.example.com"), []),
        (spec(driver="a_b"), [("spec.driver", INVALID)]),
        (spec(driver="a" * 64), [("spec.driver", TOO_LONG), ("spec.driver", INVALID)][:1]),
        (spec(pool={"name": "a//b", "resourceSliceCount": 1}), [("spec.pool.name", INVALID)]),
        (spec(pool={"name": "rack/1", "resourceSliceCount": 0, "generation": -1}),
         [("spec.pool.resourceSliceCount", INVALID), ("spec.pool.generation", INVALID)]),
        (spec(nodeName=None), [("spec", REQUIRED)]),
        (spec(nodeName=""), [("spec.nodeName", INVALID)]),
        (spec(allNodes=True), [("spec", INVALID)]),
        (spec(nodeName=None, allNodes=False), [("spec.allNodes", INVALID)]),
        (spec(nodeName=None, nodeSelector={"nodeSelectorTerms": [TERM]}), []),
        (spec(nodeName=None, nodeSelector={"nodeSelectorTerms": [TERM, TERM]}),
         [("spec.nodeSelector.nodeSelectorTerms", INVALID)]),
        (spec(nodeName=None, nodeSelector={"nodeSelectorTerms": []}),
         [("spec.nodeSelector.nodeSelectorTerms", REQUIRED)]),
        (spec(devices=[{"name": "a"}, {"name": "a"}]), [("spec.devices[1].name", DUPLICATE)]),
        (spec(devices=[{"name": f"d{i}"} for i in range(129)]), [("spec.devices", TOO_MANY)]),
        (spec(devices=[{"name": f"d{i}", "attributes": {"a": {"ints": [1]}}} for i in range(65)]),
         [("spec.devices", TOO_MANY)]),
        (spec(devices=[{"name": f"d{i}"} for i in range(128)]), []),
        (spec(sharedCounters=[{"name": "s", "counters": {"c": {"value": "1"}}}]), [("spec", INVALID)]),
        (spec(devices=None, sharedCounters=[{"name": "S", "counters": {}}]),
         [("spec.sharedCounters[0].name", INVALID), ("spec.sharedCounters[0].counters", REQUIRED)]),
        (spec(skipNodeOperations=["NodePrepareResources"]), [("spec.skipNodeOperations", INVALID)]),
        (spec(skipNodeOperations=["NodePrepareResources", "*"]), []),
        (spec(skipNodeOperations=["Never"]), [("spec.skipNodeOperations[0]", NOT_SUPPORTED)]),
        (spec(partitionTypeAttribute="gpu.example.com/model"), [("spec.partitionTypeAttribute", INVALID)]),
        (device(name="A.b"), [("spec.devices[0].name", INVALID)]),
        (device(attributes={"a/b/c": {"int": 1}}), [("spec.devices[0].attributes[a/b/c]", INVALID)]),
        (device(attributes={"a-b": {"int": 1}}), [("spec.devices[0].attributes[a-b]", INVALID)]),
        (device(attributes={"/b": {"int": 1}}), [("spec.devices[0].attributes[/b]", INVALID)]),
        (device(attributes={"x" * 33: {"int": 1}}), [(f"spec.devices[0].attributes[{'x' * 33}]", TOO_LONG)]),
        (device(attributes={"a": {}}), [("spec.devices[0].attributes[a]", INVALID)]),
        (device(attributes={"a": {"int": 0, "bool": False}}), [("spec.devices[0].attributes[a]", INVALID)]),
        (device(attributes={"a": {"string": "x" * 65}}), [("spec.devices[0].attributes[a].string", TOO_LONG)]),
        (device(attributes={"a": {"version": "1.2.3.4"}}), [("spec.devices[0].attributes[a].version", INVALID)]),
        (device(attributes={"a": {"versions": ["1.0.0", "x"]}}),
         [("spec.devices[0].attributes[a].versions[1]", INVALID)]),
        (device(attributes={"a": {"ints": []}}), [("spec.devices[0].attributes[a].ints", INVALID)]),
        (device(attributes={"a": {"ints": [0] * 49}}), [("spec.devices[0].attributes", INVALID)]),
        (device(attributes={f"a{i}": {"int": i} for i in range(32)}), [("spec.devices[0]", INVALID)]),
        (device(taints=[{"key": "", "effect": "Bad"}]),
         [("spec.devices[0].taints[0].key", INVALID)] * 2 + [("spec.devices[0].taints[0].effect", NOT_SUPPORTED)]),
        (device(taints=[{"key": "k"}]), [("spec.devices[0].taints[0].effect", REQUIRED)]),
        (device(taints=[{"key": "k", "effect": "None"}] * 17), [("spec.devices[0].taints", TOO_MANY)]),
        (device(nodeName="n1"), [("spec.devices[0].nodeName", INVALID)]),
        (spec(nodeName=None, perDeviceNodeSelection=True), [("spec.devices[0]", REQUIRED)]),
        (device(bindingConditions=["a"]), [("spec.devices[0].bindingFailureConditions", INVALID)]),
        (device(bindingConditions=["a"], bindingFailureConditions=["a"]),
         [("spec.devices[0].bindingFailureConditions[0]", INVALID)]),
        (device(consumesCounters=[{"counterSet": "a", "counters": {"c": {"value": "x"}}}]),
         [("spec.devices[0].consumesCounters[0].counters[c].value", INVALID)]),
        (device(consumesCounters=[{"counterSet": c, "counters": {"c": {}}} for c in "aaa"]),
         [("spec.devices[0].consumesCounters", TOO_MANY)]),
        (device(consumesCounters=[{"counterSet": "a", "counters": {"c": {}}, "compatibilityGroups": ["g", "g"]}]),
         [("spec.devices[0].consumesCounters[0].compatibilityGroups[1]", DUPLICATE)]),
        (device(capacity={"m": {"value": "1Q"}}), [("spec.devices[0].capacity[m].value", INVALID)]),
        (device(capacity={"m": {"value": "1", "requestPolicy": {}}}),
         [("spec.devices[0].capacity[m].requestPolicy", FORBIDDEN)]),
        (policy(), []),
        (policy(validValues=["1"]), [(f"{P}.default", REQUIRED)]),
        (policy(default="1", validValues=["1", "2"]), []),
        (policy(default="3", validValues=["1", "2"]), [(f"{P}.validValues", INVALID)]),
        (policy(default="1", validValues=["1", "1"]), [(f"{P}.validValues[1]", DUPLICATE)]),
        (policy(default="1", validValues=["2", "1"]), [(f"{P}.validValues", INVALID)]),
        (policy(default="1", validValues=["1", "11"]), [(f"{P}.validValues[1]", INVALID)]),
        (policy(default="1", validValues=["1"], validRange={"min": "1"}), [(P, FORBIDDEN)]),
        (policy(default="2", validRange={"min": "1", "max": "9", "step": "2"}), [(f"{P}.default", INVALID)]),
        (policy(default="3", validRange={"min": "1", "max": "9", "step": "2"}), []),
        (policy(default="3", validRange={"min": "1", "max": "8", "step": "2"}), [(f"{P}.validRange.max", INVALID)]),
        (policy(default="1", validRange={"min": "1", "step": "0"}), [(f"{P}.validRange.step", INVALID)]),
        (policy(default="500m", validRange={"min": "250m", "step": "250m"}), []),
        (policy(default="1u", validRange={"min": "1u", "step": "1u"}), [(f"{P}.validRange.step", INVALID)]),
        (policy(default="0", validRange={"min": "1"}), [(f"{P}.default", INVALID)]),
        (policy(default="5", validRange={"min": "1", "max": "20"}), [(f"{P}.validRange.max", INVALID)]),
        (policy(default="11", validRange={"min": "11"}), [(f"{P}.validRange.min", INVALID)]),
        (device(nodeAllocatableResources={"example.com/x": {"mapping": {"deviceMultiplier": "1"}}}),
         [("spec.devices[0].nodeAllocatableResources[example.com/x]", INVALID)]),
        (device(nodeAllocatableResources={"cpu": {}}), [("spec.devices[0].nodeAllocatableResources[cpu]", REQUIRED)]),
        (device(nodeAllocatableResources={"cpu": {"mapping": {"capacityKey": "no"}}}),
         [("spec.devices[0].nodeAllocatableResources[cpu].mapping.capacityMultiplier", REQUIRED),
          ("spec.devices[0].nodeAllocatableResources[cpu].mapping.capacityKey", INVALID)]),
        (device(nodeAllocatableResources={"memory": {"overhead": {"perPod": "-1"}}}),
         [("spec.devices[0].nodeAllocatableResources[memory].overhead.perPod", INVALID)]),
        (lambda obj: obj["metadata"].update(namespace="x"), [("metadata.namespace", FORBIDDEN)]),
        (lambda obj: obj["metadata"].update(name="A"), [("metadata.name", INVALID)]),
    ],
)  # fmt: skip
def test_slices(change: Change, expected: list[tuple[str, str]]) -> None:
    obj = make_slice()
    change(obj)
    assert faults(validate_create("ResourceSlice", obj)) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (spec(driver="other.example.com"), [("spec.driver", INVALID)]),
        (spec(nodeName=None, allNodes=True), [("spec.nodeName", INVALID)]),
        (spec(pool={"name": "n2", "resourceSliceCount": 1}), [("spec.pool.name", INVALID)]),
        (spec(devices=[{"name": "new", "taints": [{"key": "k", "effect": "Later"}]}]),
         [("spec.devices[0].taints[0].effect", NOT_SUPPORTED)]),
    ],
)  # fmt: skip
def test_slice_updates(change: Change, expected: list[tuple[str, str]]) -> None:
    old = make_slice()
    new = copy.deepcopy(old)
    change(new)
    assert faults(validate_update("ResourceSlice", new, old)) == expected


def test_stored_faults_do_not_block_other_changes() -> None:
    old = make_slice()
    old["spec"]["devices"][0] |= {"taints": [{"key": "k", "effect": "Later"}], "capacity": {"m": {"value": "?"}}}
    new = copy.deepcopy(old)
    new["spec"]["pool"]["generation"] = 5
    assert validate_update("ResourceSlice", new, old) == []


def make_claim() -> Object:
    return {
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {
            "devices": {
                "requests": [
                    {"name": "a", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}},
                    {
                        "name": "b",
                        "firstAvailable": [
                            {"name": "x", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2},
                            {"name": "y", "deviceClassName": "gpu", "allocationMode": "All"},
                        ],
                    },
                ]
            }
        },
    }


def exactly(**members: Any) -> Change:
    return lambda obj: obj["spec"]["devices"]["requests"][0]["exactly"].update(members)


def devices(**members: Any) -> Change:
    return lambda obj: obj["spec"]["devices"].update(members)


R = "spec.devices.requests[0]"
OPAQUE = {"driver": "gpu.example.com", "parameters": {"a": 1}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (exactly(), []),
        (exactly(deviceClassName=""), [(f"{R}.exactly.deviceClassName", REQUIRED)]),
        (exactly(deviceClassName="A"), [(f"{R}.exactly.deviceClassName", INVALID)]),
        (exactly(count=0), [(f"{R}.exactly.count", INVALID)]),
        (exactly(allocationMode="All"), [(f"{R}.exactly.count", INVALID)]),
        (exactly(allocationMode="Some"), [(f"{R}.exactly.allocationMode", NOT_SUPPORTED)]),
        (exactly(selectors=[{}]), [(f"{R}.exactly.selectors[0].cel", REQUIRED)]),
        (exactly(selectors=[{"cel": {"expression": "bad"}}]),
         [(f"{R}.exactly.selectors[0].cel.expression", INVALID)]),
        (exactly(selectors=[{"cel": {"expression": "x" * 10241}}]),
         [(f"{R}.exactly.selectors[0].cel.expression", TOO_LONG)]),
        (exactly(selectors=[{"cel": {"expression": "true"}}] * 33), [(f"{R}.exactly.selectors", TOO_MANY)]),
        (exactly(adminAccess=True), [(f"{R}.adminAccess", FORBIDDEN)]),
        (exactly(tolerations=[{"operator": "Exists", "value": "v"}]),
         [(f"{R}.exactly.tolerations[0].value", INVALID)]),
        (exactly(tolerations=[{"operator": "Near", "effect": "Never"}]),
         [(f"{R}.exactly.tolerations[0].operator", NOT_SUPPORTED),
          (f"{R}.exactly.tolerations[0].effect", NOT_SUPPORTED)]),
        (exactly(tolerations=[{"operator": "Exists"}] * 17), []),
        (exactly(derivedAttributes=[{"name": "d/numa", "expression": "1"}]),
         [(f"{R}.exactly.derivedAttributes[0].name", INVALID)]),
        (devices(requests=[{"name": "r"}]), [(R, REQUIRED)]),
        (devices(requests=[]), []),
        (devices(requests=[{"name": f"r{i}", "exactly": {}} for i in range(33)]),
         [("spec.devices.requests", TOO_MANY)]),
        (devices(constraints=[{}]), [("spec.devices.constraints[0]", REQUIRED)]),
        (devices(constraints=[{"matchAttribute": "a"}]), [("spec.devices.constraints[0].matchAttribute", INVALID)]),
        (devices(constraints=[{"matchAttribute": "d/a", "requests": ["a", "b", "b/x", "b/z", "c"]}]),
         [("spec.devices.constraints[0].requests[3]", INVALID), ("spec.devices.constraints[0].requests[4]", INVALID)]),
        (devices(constraints=[{"distinctAttribute": "d/a", "requests": ["a", "a"]}]),
         [("spec.devices.constraints[0].requests[1]", DUPLICATE)]),
        (devices(constraints=[{"matchAttribute": "d/a", "distinctAttribute": "nodomain"}]), []),
        (devices(config=[{}]), [("spec.devices.config[0].opaque", REQUIRED)]),
        (devices(config=[{"opaque": OPAQUE, "requests": ["zz"]}]), [("spec.devices.config[0].requests[0]", INVALID)]),
        (devices(config=[{"opaque": {"driver": "d"}}]), [("spec.devices.config[0].opaque.parameters", REQUIRED)]),
        (devices(config=[{"opaque": {"driver": "d", "parameters": [1]}}]),
         [("spec.devices.config[0].opaque.parameters", INVALID)]),
        (devices(config=[{"opaque": {"driver": "d", "parameters": {"a": "x" * 10240}}}]),
         [("spec.devices.config[0].opaque.parameters", TOO_LONG)]),
        (lambda obj: obj["metadata"].pop("name"), [("metadata.name", REQUIRED)]),
        (lambda obj: obj["metadata"].pop("namespace"), [("metadata.namespace", REQUIRED)]),
        (lambda obj: obj["spec"]["devices"]["requests"].append(obj["spec"]["devices"]["requests"][0]),
         [("spec.devices.requests[2].name", DUPLICATE)]),
    ],
)  # fmt: skip
def test_claims(change: Change, expected: list[tuple[str, str]]) -> None:
    obj = make_claim()
    change(obj)
    assert faults(validate_create("ResourceClaim", obj, CONTEXT)) == expected
    template = {"metadata": obj["metadata"], "spec": {"spec": obj["spec"]}}
    inside = [(field.replace("spec.", "spec.spec.", 1), type) for field, type in expected]
    assert faults(validate_create("ResourceClaimTemplate", template, CONTEXT)) == inside


def check(expression: str) -> list[FieldError]:
    return [FieldError(type=INVALID, field="", detail="compilation failed")] if expression == "bad" else []


CONTEXT = ValidationContext(check_selector=check)


def test_derived_attributes_need_a_constraint() -> None:
    obj = make_claim()
    derived = [{"name": "d/numa", "expression": "1"}]
    obj["spec"]["devices"]["requests"][0]["exactly"]["derivedAttributes"] = derived
    for requests in ([], ["a"], ["a", "b"]):
        obj["spec"]["devices"]["constraints"] = [{"matchAttribute": "d/numa", "requests": requests}]
        assert validate_create("ResourceClaim", obj) == []
    obj["spec"]["devices"]["constraints"][0]["requests"] = ["b"]
    assert len(validate_create("ResourceClaim", obj)) == 1


def test_templates_carry_labels_and_annotations_only() -> None:
    obj = {"metadata": {"name": "t", "namespace": "d"}, "spec": {"spec": make_claim()["spec"], "metadata": {}}}
    obj["spec"]["metadata"] = {"labels": {"a": "b"}, "annotations": {"c": "d"}}
    assert validate_create("ResourceClaimTemplate", obj) == []
    obj["spec"]["metadata"] = {"name": "x", "labels": {"a b": ""}}
    assert faults(validate_create("ResourceClaimTemplate", obj)) == [
        ("spec.metadata.labels", INVALID),
        ("spec.metadata.name", FORBIDDEN),
    ]


def test_admin_access_needs_the_label() -> None:
    obj = make_claim()
    exactly(adminAccess=True)(obj)
    ctx = ValidationContext(namespace_labels={"resource.kubernetes.io/admin-access": "true"})
    assert validate_create("ResourceClaim", obj, ctx) == []
    ctx = ValidationContext(namespace_labels={"resource.kubernetes.io/admin-access": "True"})
    assert len(validate_create("ResourceClaim", obj, ctx)) == 1


def test_specs_are_immutable_and_not_looked_at_again() -> None:
    old = make_claim()
    exactly(deviceClassName="NOW INVALID")(old)
    new = copy.deepcopy(old)
    new["metadata"]["labels"] = {"a": "b"}
    assert validate_update("ResourceClaim", new, old) == []
    exactly(count=3)(new)
    (error,) = validate_update("ResourceClaim", new, old)
    assert (error.field, describe(error)) == ("spec", "Invalid value: null: field is immutable")


RESULT = {"request": "a", "driver": "gpu.example.com", "pool": "n1", "device": "d0"}
POD = {"resource": "pods", "name": "p", "uid": "u"}


def with_status(**status: Any) -> Object:
    return {**make_claim(), "status": status}


def allocation(*results: Object, **members: Any) -> Object:
    return {"devices": {"results": list(results)}, **members}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({}, {"allocation": allocation(RESULT), "reservedFor": [POD]}, []),
        ({}, {"reservedFor": [POD]}, [("status.reservedFor", FORBIDDEN)]),
        ({}, {"allocation": allocation({**RESULT, "request": "zz"})},
         [("status.allocation.devices.results[0].request", INVALID)]),
        ({}, {"allocation": allocation({**RESULT, "request": "b/x"})}, []),
        ({}, {"allocation": allocation({"request": ""})},
         [(f"status.allocation.devices.results[0].{f}", REQUIRED) for f in ("request", "driver", "pool", "device")]),
        ({}, {"allocation": allocation(*[RESULT] * 33)}, [("status.allocation.devices.results", TOO_MANY)]),
        ({}, {"allocation": allocation({**RESULT, "shareID": "X"})},
         [("status.allocation.devices.results[0].shareID", INVALID)]),
        ({}, {"allocation": allocation({**RESULT, "adminAccess": True})},
         [("status.allocation.devices.results[0].adminAccess", FORBIDDEN)]),
        ({}, {"allocation": allocation(RESULT, nodeSelector={"nodeSelectorTerms": [{"matchFields": [
            {"key": "spec.x", "operator": "In", "values": ["n1"]}]}]})},
         [("status.allocation.nodeSelector.nodeSelectorTerms[0].matchFields[0].key", INVALID)]),
        ({}, {"allocation": {"devices": {"config": [{"source": "Sky", "opaque": OPAQUE}]}}},
         [("status.allocation.devices.config[0].source", NOT_SUPPORTED)]),
        ({"allocation": allocation(RESULT)}, {"allocation": allocation({**RESULT, "device": "d1"})},
         [("status.allocation", INVALID)]),
        ({"allocation": allocation(RESULT)}, {}, []),
        ({"allocation": allocation(RESULT)}, {"allocation": allocation(RESULT), "reservedFor": [POD, POD]},
         [("status.reservedFor[1].uid", DUPLICATE)]),
        ({"allocation": allocation(RESULT)}, {"allocation": allocation(RESULT), "reservedFor": [{}]},
         [(f"status.reservedFor[0].{f}", REQUIRED) for f in ("resource", "name", "uid")]),
        ({"allocation": allocation(RESULT)},
         {"allocation": allocation(RESULT), "reservedFor": [{**POD, "uid": str(i)} for i in range(257)]},
         [("status.reservedFor", TOO_MANY)]),
        ({"allocation": allocation(RESULT)},
         {"allocation": allocation(RESULT), "devices": [{"driver": "gpu.example.com", "pool": "n1", "device": "d0",
          "networkData": {"ips": ["10.0.0.1/24", "10.0.0.1", "2001:db8::0/64"], "interfaceName": "i" * 257}}]},
         [("status.devices[0].networkData.interfaceName", TOO_LONG),
          ("status.devices[0].networkData.ips[1]", INVALID), ("status.devices[0].networkData.ips[2]", INVALID)]),
        ({"allocation": allocation(RESULT)},
         {"allocation": allocation(RESULT), "devices": [{"driver": "gpu.example.com", "pool": "n1", "device": "no",
          "data": 1, "conditions": [{"type": "Ready", "status": "Yes"}]}]},
         [("status.devices[0]", INVALID), ("status.devices[0].conditions[0].status", NOT_SUPPORTED),
          ("status.devices[0].conditions[0].lastTransitionTime", REQUIRED),
          ("status.devices[0].conditions[0].reason", REQUIRED), ("status.devices[0].data", INVALID)]),
    ],
)  # fmt: skip
def test_claim_status(old: Object, new: Object, expected: list[tuple[str, str]]) -> None:
    found = validate_update("ResourceClaim", with_status(**new), with_status(**old), "status")
    assert faults(found) == expected


def test_no_new_consumers_while_the_claim_goes() -> None:
    old = with_status(allocation=allocation(RESULT), reservedFor=[POD, {**POD, "uid": "v"}])
    old["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    new = copy.deepcopy(old)
    new["status"]["reservedFor"] = [POD]
    assert validate_update("ResourceClaim", new, old, "status") == []
    new["status"]["reservedFor"] = [{**POD, "uid": "w"}]
    assert faults(validate_update("ResourceClaim", new, old, "status")) == [("status.reservedFor", FORBIDDEN)]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, []),
        ({"selectors": [{"cel": {"expression": "bad"}}]}, [("spec.selectors[0].cel.expression", INVALID)]),
        ({"extendedResourceName": "example.com/gpu"}, []),
        ({"extendedResourceName": "gpu"}, [("spec.extendedResourceName", INVALID)]),
        ({"extendedResourceName": "deviceclass.resource.kubernetes.io/x"}, [("spec.extendedResourceName", INVALID)]),
        ({"extendedResourceName": "requests.example.com/x"}, [("spec.extendedResourceName", INVALID)]),
        ({"config": [{"opaque": {"driver": "D_", "parameters": {}}}]}, [("spec.config[0].opaque.driver", INVALID)]),
    ],
)
def test_classes(members: Object, expected: list[tuple[str, str]]) -> None:
    obj = {"metadata": {"name": "gpu"}, "spec": members}
    assert faults(validate_create("DeviceClass", obj, CONTEXT)) == expected
    # What is stored unchanged is not compiled again.
    left = [] if "selectors" in members else expected
    assert faults(validate_update("DeviceClass", obj, obj, None, CONTEXT)) == (left if "config" not in members else [])


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"taint": {"key": "k", "effect": "NoExecute"}}, []),
        ({"taint": {"key": "k", "effect": "Later"}, "deviceSelector": {"driver": "", "pool": "A", "device": "a.b"}},
         [("spec.deviceSelector.driver", REQUIRED), ("spec.deviceSelector.pool", INVALID),
          ("spec.deviceSelector.device", INVALID), ("spec.taint.effect", NOT_SUPPORTED)]),
    ],
)  # fmt: skip
def test_taint_rules(members: Object, expected: list[tuple[str, str]]) -> None:
    assert faults(validate_create("DeviceTaintRule", {"metadata": {"name": "r"}, "spec": members})) == expected


def test_taint_rule_status() -> None:
    entry = {"type": "EvictionInProgress", "status": "True", "reason": "R", "lastTransitionTime": "t"}
    obj: Object = {"metadata": {"name": "r"}, "spec": {}, "status": {"conditions": [entry, entry]}}
    assert faults(validate_update("DeviceTaintRule", obj, obj, "status")) == [("status.conditions[1].type", DUPLICATE)]
    obj["status"]["conditions"] = [entry] * 9
    assert faults(validate_update("DeviceTaintRule", obj, obj, "status")) == [("status.conditions", TOO_MANY)]


def test_pool_status_requests() -> None:
    obj: Object = {"metadata": {"name": "q"}, "spec": {"driver": "d", "limit": 0}}
    assert faults(validate_create("ResourcePoolStatusRequest", obj)) == [("spec.limit", INVALID)]
    obj["spec"] = {"driver": "d", "defaultPartitionTypeAttribute": "d/type"}
    assert validate_create("ResourcePoolStatusRequest", obj) == []
    off = ValidationContext(features=Features.default())
    assert faults(validate_create("ResourcePoolStatusRequest", obj, off)) == [
        ("spec.defaultPartitionTypeAttribute", FORBIDDEN)
    ]
    answered = {**obj, "status": {"poolCount": 1, "pools": [{"driver": "d", "poolName": "p", "generation": 1}]}}
    assert validate_update("ResourcePoolStatusRequest", answered, obj, "status") == []
    again = {**obj, "status": {"poolCount": 2}}
    assert faults(validate_update("ResourcePoolStatusRequest", again, answered, "status")) == [("status", INVALID)]


def test_partition_type() -> None:
    obj = make_slice()
    obj["spec"]["partitionTypeAttribute"] = "gpu.example.com/model"
    consumes = [{"counterSet": "a", "counters": {"c": {"value": "1"}}}]
    device(consumesCounters=consumes)(obj)
    assert validate_create("ResourceSlice", obj) == []
    device(attributes={"other": {"string": "A"}})(obj)
    assert faults(validate_create("ResourceSlice", obj)) == [
        ("spec.devices[0].attributes[gpu.example.com/model]", REQUIRED)
    ]
    off = ValidationContext(features=Features.default())
    assert faults(validate_create("ResourceSlice", obj, off)) == [("spec.partitionTypeAttribute", FORBIDDEN)]


def test_paths_follow_the_version_of_the_client() -> None:
    ctx = ValidationContext(version="v1beta1")
    obj = make_slice()
    device(name="A", attributes={"a": {}})(obj)
    assert faults(validate_create("ResourceSlice", obj, ctx)) == [
        ("spec.devices[0].name", INVALID),
        ("spec.devices[0].basic.attributes[a]", INVALID),
    ]
    claim = make_claim()
    exactly(deviceClassName="")(claim)
    validate = validator_for("resource.k8s.io", "ResourceClaim")
    assert validate is not None
    assert faults(validate(claim, None, None, ctx)) == [("spec.devices.requests[0].deviceClassName", REQUIRED)]
