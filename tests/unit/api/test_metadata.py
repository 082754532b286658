"""Validation of metadata."""

from __future__ import annotations

from typing import Any

import pytest

from drakkar.api import formats
from drakkar.api.errors import FieldError
from drakkar.api.faults import Faults, describe, keyed
from drakkar.api.metadata import validate_metadata, validate_metadata_update

INVALID, REQUIRED, FORBIDDEN = "FieldValueInvalid", "FieldValueRequired", "FieldValueForbidden"
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}


def faults(errors: list[FieldError]) -> list[tuple[str, str]]:
    return [(error.field, error.type) for error in errors]


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({"name": "a", "namespace": "b"}, []),
        ({"generateName": "a-", "namespace": "b"}, []),
        ({"generateName": "A-", "namespace": "b"}, [("metadata.generateName", INVALID)]),
        ({"namespace": "b"}, [("metadata.name", REQUIRED)]),
        ({"name": "a"}, [("metadata.namespace", REQUIRED)]),
        ({"name": "a", "namespace": "b.c"}, [("metadata.namespace", INVALID)]),
        ({"name": "a" * 254, "namespace": "b"}, [("metadata.name", INVALID)]),
        ({"name": "a", "namespace": "b", "generation": -1}, [("metadata.generation", INVALID)]),
        ({"name": "a", "namespace": "b", "labels": {"a/b/c": "d", "e": "f g"}}, [("metadata.labels", INVALID)] * 2),
        ({"name": "a", "namespace": "b", "annotations": {"A.B/c": "any thing"}}, []),
        (
            {"name": "a", "namespace": "b", "annotations": {"a": "x" * 262144}},
            [("metadata.annotations", "FieldValueTooLong")],
        ),
        ({"name": "a", "namespace": "b", "finalizers": ["example.com/x", "orphan"]}, []),
        ({"name": "a", "namespace": "b", "finalizers": ["mine"]}, [("metadata.finalizers", INVALID)]),
        (
            {"name": "a", "namespace": "b", "finalizers": ["orphan", "foregroundDeletion"]},
            [("metadata.finalizers", INVALID)],
        ),
        ({"name": "a", "namespace": "b", "ownerReferences": [OWNER]}, []),
        ({"name": "a", "namespace": "b", "ownerReferences": [{}]},
         [(f"metadata.ownerReferences[0].{field}", INVALID) for field in ("apiVersion", "kind", "name", "uid")]),
        ({"name": "a", "namespace": "b", "ownerReferences": [{**OWNER, "controller": True}] * 2},
         [("metadata.ownerReferences", INVALID)]),
    ],
)  # fmt: skip
def test_create(meta: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert faults(validate_metadata({"metadata": meta}, namespaced=True)) == expected


def test_scope_and_name_format() -> None:
    assert faults(validate_metadata({"metadata": {"name": "a", "namespace": "b"}}, namespaced=False)) == [
        ("metadata.namespace", FORBIDDEN)
    ]
    role = {"metadata": {"name": "system:node"}}
    assert validate_metadata(role, namespaced=False, name_format=formats.path_segment) == []
    assert (
        len(validate_metadata({"metadata": {"name": "a/b"}}, namespaced=False, name_format=formats.path_segment)) == 1
    )


def test_update() -> None:
    old = {"metadata": {"name": "a", "uid": "u", "generation": 2, "finalizers": ["a/b"], "labels": {"bad key": ""}}}
    assert validate_metadata_update(old, old, namespaced=False) == []
    new = {"metadata": {**old["metadata"], "uid": "v", "generation": 1}}
    assert faults(validate_metadata_update(new, old, namespaced=False))[:2] == [
        ("metadata.uid", INVALID),
        ("metadata.generation", INVALID),
    ]
    going = {"metadata": {"name": "a", "deletionTimestamp": "t", "finalizers": ["a/b"]}}
    more = {"metadata": {**going["metadata"], "finalizers": ["a/b", "c/d"]}}
    (error,) = validate_metadata_update(more, going, namespaced=False)
    assert describe(error) == (
        'Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{"c/d"}'
    )


@pytest.mark.parametrize(
    ("type", "value", "detail", "text"),
    [
        (INVALID, "x", "because", 'Invalid value: "x": because'),
        (INVALID, None, "field is immutable", "Invalid value: null: field is immutable"),
        (REQUIRED, None, "", "Required value"),
        (FORBIDDEN, "x", "no", "Forbidden: no"),
        ("FieldValueDuplicate", "x", "", 'Duplicate value: "x"'),
        ("FieldValueInvalid", {"a": [1, True]}, "d", 'Invalid value: {"a":[1,true]}: d'),
    ],
)
def test_texts_of_causes(type: str, value: Any, detail: str, text: str) -> None:
    assert describe(FieldError(type=type, field="f", value=value, detail=detail)) == text


def test_texts_of_limits() -> None:
    faults = Faults()
    faults.too_many("f", 33, 32)
    faults.too_long("f", 64)
    faults.not_supported("f", "x", ("b", "a"))
    assert [describe(error) for error in faults.found] == [
        "Too many: 33: must have at most 32 items",
        "Too long: may not be more than 64 bytes",
        'Unsupported value: "x": supported values: "a", "b"',
    ]


def test_long_keys_are_shortened_in_the_middle() -> None:
    assert keyed("a", "b" * 10, 10) == f"a[{'b' * 10}]"
    assert keyed("a", "0123456789abc", 11) == "a[0123...9abc]"


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (formats.qualified_name, ["a", "a.b/C_d", "A-1"], ["", "/a", "a/", "A/b", "a/b/c", "-a", "x" * 64, "a b"]),
        (formats.label_value, ["", "a", "A_b.c"], ["-", "a b", "x" * 64]),
        (formats.dns_label, ["a", "0-a"], ["", "-a", "a.b", "A", "x" * 64, "a\n"]),
        (formats.uid, ["01234567-89ab-cdef-0123-456789abcdef"], ["", "x", "01234567-89AB-cdef-0123-456789abcdef"]),
        (formats.interface_address, ["192.0.2.5/24", "2001:db8::1/64"],
         ["192.0.2.5", "192.0.2.05/24", "2001:DB8::1/64", "::ffff:1.2.3.4/96", "fe80::1%eth0/64", "x"]),
        (formats.extended_resource_name, ["example.com/gpu"], ["cpu", "kubernetes.io/x", "requests.a.b/c", "a/b/c"]),
    ],
)  # fmt: skip
def test_formats(check: formats.Check, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if check(text)] == []
    assert [text for text in bad if not check(text)] == []
