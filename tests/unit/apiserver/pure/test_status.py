"""Statuses equal the recorded ones, member by member."""

from __future__ import annotations

import pytest

from drakkar.api.errors import FieldError
from drakkar.apiserver import status
from tests.unit.apiserver.pure.traces import exchange

MEDIA = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"]


@pytest.mark.parametrize(
    ("name", "file", "made"),
    [
        ("put not found", "raw", status.not_found("", "configmaps", "nope")),
        ("create again (409)", "write", status.already_exists("resource.k8s.io", "resourceclaims", "claim-a")),
        ("replace stale rv (409)", "write", status.conflict("", "configmaps", "cm-a")),
        ("404 resource", "raw", status.unknown_resource()),
        ("405", "raw", status.method_not_allowed()),
        ("cbor get", "raw", status.not_acceptable(MEDIA)),
        ("415", "raw", status.unsupported_media_type(MEDIA)),
        ("415 patch", "raw", status.unsupported_patch_type()),
        ("list rv future", "raw", status.too_large_resource_version(999999999, 441)),
        ("list rv=2 Exact after compaction", "gone", status.expired()),
        (
            "get as",
            "auth",
            status.forbidden(
                "",
                "pods",
                "",
                'User "nobody" cannot list resource "pods" in API group "" in the namespace "default"',
            ),
        ),
        (
            "name required (422)",
            "raw",
            status.invalid(
                "",
                "ConfigMap",
                "",
                [
                    FieldError(
                        type="FieldValueRequired", field="metadata.name", detail="name or generateName is required"
                    )
                ],
            ),
        ),
        (
            "patch claim spec immutable (422)",
            "write",
            status.invalid(
                "resource.k8s.io",
                "ResourceClaim",
                "claim-a",
                [FieldError(type="FieldValueInvalid", field="spec", detail="field is immutable")],
            ),
        ),
        ("apply server-side conflict", "write", status.apply_conflict([('"m1"', ".data.k")])),
        ("pod eviction", "raw", status.success(code=201)),
    ],
)
def test_equals_recorded(name, file, made):
    recorded = exchange(name, file)["responseBody"]
    assert made == recorded
    assert list(made) == [key for key in recorded]


def test_many_faults_are_listed_in_brackets_and_equal_ones_once():
    fault = FieldError(type="FieldValueTooMany", field="spec.a", value=3, detail="must have at most 2 items")
    made = status.invalid("g", "K", "n", [fault, fault, FieldError(type="FieldValueRequired", field="spec.b")])
    assert made["message"] == (
        'K.g "n" is invalid: [spec.a: Too many: 3: must have at most 2 items, spec.b: Required value]'
    )
    assert len(made["details"]["causes"]) == 3


def test_conflicts_of_several_fields_are_grouped_by_manager():
    made = status.apply_conflict([('"b"', ".x"), ('"a"', ".y"), ('"b"', ".z")])
    assert made["message"] == (
        'Apply failed with 3 conflicts: conflicts with "a":\n- .y\nconflicts with "b":\n- .x\n- .z'
    )
