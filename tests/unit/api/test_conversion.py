"""Conversion and defaults of the versions of resource.k8s.io."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drakkar.api import kinds
from drakkar.api.registry import defaults_for
from drakkar.api.resource.conversion import VERSIONS, convert
from drakkar.api.resource.defaults import apply_defaults
from drakkar.api.resource.validation import validate_create
from tests import strategies

objects = st.one_of(strategies.slices(), strategies.claims(), strategies.claim_templates())


@settings(max_examples=25)
@given(objects, st.sampled_from(["v1beta1", "v1beta2"]))
def test_round_trip(obj: dict[str, Any], version: str) -> None:
    before = copy.deepcopy(obj)
    there = convert(obj, obj["kind"], "v1", version)
    assert there["apiVersion"] == f"resource.k8s.io/{version}"
    assert convert(there, obj["kind"], version, "v1") == before
    assert obj == before


@settings(max_examples=25)
@given(objects, st.sampled_from(["v1", "v1beta1", "v1beta2"]))
def test_defaults_are_idempotent_and_already_there(obj: dict[str, Any], version: str) -> None:
    there = convert(obj, obj["kind"], "v1", version)
    once = copy.deepcopy(there)
    apply_defaults(version, obj["kind"], once)
    assert once == there
    apply_defaults(version, obj["kind"], once)
    assert once == there


@settings(max_examples=25)
@given(objects)
def test_generated_objects_are_valid_and_decode(obj: dict[str, Any]) -> None:
    kind = next(kind for kind in kinds.KINDS if kind.kind == obj["kind"])
    assert validate_create(kind.kind, obj) == []
    assert validate_create(kind.kind, msgspec.convert(obj, kind.type)) == []


def claim(version: str, *requests: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"devices": {"requests": list(requests)}},
    }


def test_v1beta1_requests() -> None:
    obj = claim(
        "v1beta1",
        {"name": "a", "deviceClassName": "gpu", "tolerations": [{"key": "k"}]},
        {"name": "b", "deviceClassName": "", "firstAvailable": [{"name": "s", "deviceClassName": "gpu"}]},
        {"name": "c", "deviceClassName": "", "allocationMode": "All", "firstAvailable": [{"name": "s"}]},
    )
    apply_defaults("v1beta1", "ResourceClaim", obj)
    alternative = {"name": "s", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    assert convert(obj, "ResourceClaim", "v1beta1", "v1")["spec"]["devices"]["requests"] == [
        {
            "name": "a",
            "exactly": {
                "deviceClassName": "gpu",
                "allocationMode": "ExactCount",
                "count": 1,
                "tolerations": [{"key": "k", "operator": "Equal"}],
            },
        },
        {"name": "b", "firstAvailable": [alternative]},
        {
            "name": "c",
            "exactly": {"allocationMode": "All"},
            "firstAvailable": [{"name": "s", "allocationMode": "ExactCount", "count": 1}],
        },
    ]


def test_v1beta1_slices() -> None:
    obj = {
        "spec": {
            "nodeName": "",
            "allNodes": False,
            "perDeviceNodeSelection": True,
            "devices": [
                {"name": "bare"},
                {"name": "a", "basic": {"attributes": {}, "capacity": {"m": {"value": "1"}}, "nodeName": "n1"}},
            ],
        }
    }
    hub = convert(obj, "ResourceSlice", "v1beta1", "v1")
    assert hub["spec"] == {
        "perDeviceNodeSelection": True,
        "devices": [{"name": "bare"}, {"name": "a", "capacity": {"m": {"value": "1"}}, "nodeName": "n1"}],
    }
    back = convert(hub, "ResourceSlice", "v1", "v1beta1")
    assert back["spec"]["devices"][0] == {"name": "bare", "basic": {}}


def test_unserved_versions_are_refused() -> None:
    with pytest.raises(ValueError, match="not served"):
        convert({}, "DeviceTaintRule", "v1", "v1beta1")
    assert convert({"spec": {}}, "DeviceTaintRule", "v1alpha3", "v1")["apiVersion"] == "resource.k8s.io/v1"
    assert VERSIONS["ResourcePoolStatusRequest"] == ("v1alpha3",)


def test_pool_status_request_limit() -> None:
    obj: dict[str, Any] = {"spec": {"driver": "d"}}
    defaults = defaults_for("ResourcePoolStatusRequest", "v1alpha3")
    assert defaults is not None
    defaults(obj)
    assert obj["spec"]["limit"] == 100
