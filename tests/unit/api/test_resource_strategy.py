"""What is reset, kept, stamped and pruned when objects of resource.k8s.io are written."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings

from drakkar.api.features import Features
from drakkar.api.registry import strategy_for
from drakkar.api.resource.strategy import prepare_create, prepare_update
from tests import strategies

Object = dict[str, Any]
NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


def create(kind: str, obj: Object, features: Features | None = None) -> Object:
    obj = copy.deepcopy(obj)
    prepare_create(kind, obj, NOW, features or Features.drakkar())
    return obj


def update(kind: str, old: Object, new: Object, subresource: str | None = None) -> Object:
    new = copy.deepcopy(new)
    prepare_update(kind, new, old, subresource, LATER)
    return new


def test_slices_count_generations_and_stamp_taints() -> None:
    taint = {"key": "k", "effect": "NoSchedule"}
    old = create(
        "ResourceSlice", {"metadata": {"generation": 9}, "spec": {"devices": [{"name": "a", "taints": [taint]}]}}
    )
    assert old["metadata"]["generation"] == 1
    assert old["spec"]["devices"][0]["taints"][0]["timeAdded"] == NOW
    same = update("ResourceSlice", old, {**old, "metadata": {"labels": {"a": "b"}}})
    assert same["metadata"]["generation"] == 1
    changed = copy.deepcopy(old)
    changed["spec"]["devices"].append({"name": "b", "taints": [taint]})
    changed = update("ResourceSlice", old, changed)
    assert changed["metadata"]["generation"] == 2
    assert [device["taints"][0]["timeAdded"] for device in changed["spec"]["devices"]] == [NOW, LATER]


def test_slice_warns_of_upper_case() -> None:
    strategy = strategy_for("resource.k8s.io", "ResourceSlice")
    assert strategy is not None
    assert strategy.warnings({"spec": {"driver": "gpu.example.com"}}, None) == []
    assert "lowercase" in strategy.warnings({"spec": {"driver": "GPU.example.com"}}, None)[0]


RESULT = {"request": "a", "driver": "d", "pool": "p", "device": "x"}


def allocated(*names: str) -> Object:
    return {"devices": {"results": [{**RESULT, "device": name} for name in names]}}


def test_claims_keep_status_and_spec_apart() -> None:
    old = create("ResourceClaim", {"metadata": {"generation": 3}, "spec": {}, "status": {"allocation": {}}})
    assert old["status"] == {}
    assert "generation" not in old["metadata"]
    old["status"] = {"allocation": allocated("x")}
    old["metadata"] = {"name": "c", "labels": {"a": "b"}, "finalizers": ["f/f"], "resourceVersion": "1"}
    main = update("ResourceClaim", old, {"metadata": {}, "spec": {"devices": {}}, "status": {}})
    assert main["status"] == old["status"]
    sent = {"metadata": {"name": "c", "resourceVersion": "2", "finalizers": []}, "spec": {"x": 1}, "status": {}}
    status = update("ResourceClaim", old, sent, "status")
    assert status["spec"] == old["spec"]
    assert status["metadata"] == {**old["metadata"], "resourceVersion": "2"}
    assert status["status"] == {}


@pytest.mark.parametrize(
    ("allocation", "left"),
    [(allocated("x", "y"), ["x", "y", "never"]), (allocated("y"), ["y", "never"]), (None, ["never"])],
)
def test_device_status_goes_with_its_allocation(allocation: Object | None, left: list[str]) -> None:
    devices = [{"driver": "d", "pool": "p", "device": name} for name in ("x", "y", "never")]
    old: Object = {"metadata": {}, "spec": {}, "status": {"allocation": allocated("x", "y"), "devices": devices}}
    new: Object = {"metadata": {}, "status": {"devices": devices}}
    if allocation is not None:
        new["status"]["allocation"] = allocation
    found = update("ResourceClaim", old, new, "status")
    assert [item["device"] for item in found["status"]["devices"]] == left


def test_pruning_takes_the_empty_list_along() -> None:
    old: Object = {"status": {"allocation": allocated("x"), "devices": [{"driver": "d", "pool": "p", "device": "x"}]}}
    found = update("ResourceClaim", old, {"status": {"devices": list(old["status"]["devices"])}}, "status")
    assert found["status"] == {}


def test_taint_rule_time_follows_its_effect() -> None:
    rule: Object = {"metadata": {}, "spec": {"taint": {"key": "k", "effect": "None"}}, "status": {"conditions": []}}
    old = create("DeviceTaintRule", rule)
    assert old["status"] == {}
    assert old["spec"]["taint"]["timeAdded"] == NOW
    new = copy.deepcopy(old)
    new["spec"]["taint"]["effect"] = "NoExecute"
    assert update("DeviceTaintRule", old, new)["spec"]["taint"]["timeAdded"] == LATER
    new["spec"]["taint"]["timeAdded"] = "2026-06-01T00:00:00Z"
    found = update("DeviceTaintRule", old, new)
    assert found["spec"]["taint"]["timeAdded"] == "2026-06-01T00:00:00Z"
    assert found["metadata"]["generation"] == 2
    new["spec"]["taint"] = {"key": "k", "effect": "None", "timeAdded": NOW}
    assert update("DeviceTaintRule", old, new)["metadata"]["generation"] == 1


def test_pool_status_request_has_no_status_at_first() -> None:
    old = create("ResourcePoolStatusRequest", {"metadata": {}, "spec": {"driver": "d"}, "status": {"poolCount": 1}})
    assert "status" not in old
    answered = update("ResourcePoolStatusRequest", old, {**old, "status": {"poolCount": 1}}, "status")
    assert answered["status"] == {"poolCount": 1}
    assert update("ResourcePoolStatusRequest", answered, {**old})["status"] == {"poolCount": 1}


def rich_slice() -> Object:
    return {
        "metadata": {},
        "spec": {
            "sharedCounters": [{"name": "s"}],
            "devices": [
                {
                    "name": "a",
                    "taints": [{"key": "k"}],
                    "consumesCounters": [{"counterSet": "s", "compatibilityGroups": ["g"]}],
                    "allowMultipleAllocations": True,
                    "capacity": {"m": {"value": "1", "requestPolicy": {}}},
                    "attributes": {"l": {"ints": [1]}},
                    "bindingConditions": ["b"],
                    "nodeAllocatableResources": {"cpu": {}},
                }
            ],
            "skipNodeOperations": ["*"],
        },
    }


@pytest.mark.parametrize(
    ("gate", "gone"),
    [
        ("DRADeviceTaints", ["taints"]),
        ("DRAPartitionableDevices", ["consumesCounters"]),
        ("DRAConsumableCapacity", ["allowMultipleAllocations"]),
        ("DRAResourceClaimDeviceStatus", ["bindingConditions"]),
        ("DRADeviceBindingConditions", ["bindingConditions"]),
        ("DRANodeAllocatableResources", ["nodeAllocatableResources"]),
        ("DRADerivedAttributes", []),
    ],
)
def test_fields_of_a_disabled_feature_are_dropped_unless_in_use(gate: str, gone: list[str]) -> None:
    features = Features.drakkar().with_({gate: False})
    plain: Object = {"metadata": {}, "spec": {"devices": []}}
    full = set(rich_slice()["spec"]["devices"][0])
    made = create("ResourceSlice", rich_slice(), features)
    assert full - set(made["spec"]["devices"][0]) == set(gone)
    changed = rich_slice()
    prepare_update("ResourceSlice", changed, copy.deepcopy(plain), None, NOW, features)
    assert full - set(changed["spec"]["devices"][0]) == set(gone)
    kept = rich_slice()
    prepare_update("ResourceSlice", kept, rich_slice(), None, NOW, features)
    assert set(kept["spec"]["devices"][0]) == full


def test_other_dropped_fields() -> None:
    off = Features.profile("1.34").with_({"DRAAdminAccess": False, "DRAPrioritizedList": False})
    made = create("ResourceSlice", rich_slice(), off)
    assert "sharedCounters" not in made["spec"]
    assert "skipNodeOperations" not in made["spec"]
    assert made["spec"]["devices"][0]["attributes"] == {"l": {}}
    assert made["spec"]["devices"][0]["capacity"] == {"m": {"value": "1"}}
    request = {"exactly": {"adminAccess": True, "tolerations": [], "capacity": {}}, "firstAvailable": [{}]}
    claim: Object = {"spec": {"devices": {"requests": [request], "constraints": [{"distinctAttribute": "d/a"}]}}}
    for kind, obj in (("ResourceClaim", claim), ("ResourceClaimTemplate", {"spec": {"spec": claim["spec"]}})):
        made = create(kind, obj, off)
        devices = (made["spec"].get("spec") or made["spec"])["devices"]
        assert devices == {"requests": [{"exactly": {}}], "constraints": [{}]}
    assert create("DeviceClass", {"spec": {"extendedResourceName": "a/b"}}, off)["spec"] == {}


@settings(max_examples=25)
@given(strategies.slices())
def test_a_second_write_of_the_same_changes_nothing(obj: Object) -> None:
    old = create("ResourceSlice", obj)
    assert update("ResourceSlice", old, old) == old
