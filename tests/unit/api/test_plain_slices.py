"""The short cut of slice validation for plain devices: it accepts nothing that the long way refuses."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from drakkar.api.resource.validation import slices, validate_create, validate_update

names = st.sampled_from(["a", "model", "gpu.example.com/a", "a" * 33, "", "1a", "x/y/z", "GPU.example.com/a", "/a"])
texts = st.sampled_from(["", "x", "x" * 64, "x" * 65, "é" * 32, "é" * 33, "1.2.3", "1.2", "v1.2.3", "1.2.3-a"])
scalars = st.fixed_dictionaries(
    {},
    optional={
        "string": texts,
        "version": texts,
        "int": st.one_of(st.none(), st.integers(-2, 2)),
        "bool": st.sampled_from([None, True, False]),
        "strings": st.lists(texts, max_size=2),
    },
)
amounts = st.fixed_dictionaries(
    {},
    optional={
        "value": st.sampled_from(["1", "80Gi", "", "1x", "-1", None]),
        "requestPolicy": st.sampled_from([{"default": "1", "validValues": ["1"]}, {}, None]),
    },
)
devices = st.fixed_dictionaries(
    {"name": st.sampled_from(["d", "e", "D", "", "-"])},
    optional={
        "attributes": st.dictionaries(names, scalars, max_size=3),
        "capacity": st.dictionaries(names, amounts, max_size=2),
        "allowMultipleAllocations": st.booleans(),
        "nodeName": st.just("n"),
        "taints": st.just([{"key": "k", "effect": "NoSchedule"}]),
    },
)


def slice_of(items: list[Any], per_device: bool) -> Any:
    where = {"perDeviceNodeSelection": True} if per_device else {"nodeName": "n"}
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    return {"metadata": {"name": "s"}, "spec": {"driver": "d.example.com", "pool": pool, "devices": items, **where}}


@settings(max_examples=300, deadline=None)
@given(st.lists(devices, max_size=3), st.lists(devices, max_size=2), st.booleans())
def test_same_faults_as_the_long_way(items: list[Any], before: list[Any], per_device: bool) -> None:
    new, old = slice_of(items, per_device), slice_of(before, per_device)
    found = validate_create("ResourceSlice", new), validate_update("ResourceSlice", new, old)
    with (
        patch.object(slices, "_PLAIN_FIELDS", frozenset[str]()),
        patch.object(slices, "_are_plain_attributes", return_value=False),
        patch.object(slices, "_is_plain_capacity", return_value=False),
    ):
        wanted = validate_create("ResourceSlice", new), validate_update("ResourceSlice", new, old)
    assert found == wanted
