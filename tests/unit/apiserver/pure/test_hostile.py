"""Nonsense from clients ends in a Status, never in another exception."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drakkar.apiserver import apply, patch, schema
from drakkar.apiserver.status import StatusError

POD = schema.schemas().for_kind("", "v1", "Pod")
assert POD is not None

scalars = st.one_of(st.none(), st.booleans(), st.integers(-5, 1 << 40), st.floats(allow_nan=False), st.text(max_size=3))
keys = st.sampled_from(
    ["metadata", "spec", "status", "containers", "name", "labels", "finalizers", "ports", "env", "resources", "limits",
     "conditions", "type", "volumes", "$patch", "$retainKeys", "$setElementOrder/containers", "cpu", "tolerations",
     "$deleteFromPrimitiveList/finalizers", "$setElementOrder/finalizers", "ownerReferences", "uid", "containerPort"]
)  # fmt: skip
words = st.sampled_from(["delete", "replace", "merge", "a", "b"])
junk = st.recursive(
    st.one_of(scalars, words),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=12,
)
objects = st.dictionaries(keys, junk, max_size=4)
shaped = st.builds(
    lambda meta, spec, items: {"metadata": meta, "spec": {**spec, "containers": items}},
    st.dictionaries(keys, junk, max_size=3),
    st.dictionaries(keys, junk, max_size=3),
    st.lists(st.one_of(junk, st.dictionaries(keys, junk, max_size=3)), max_size=3),
)
documents = st.one_of(objects, shaped)


def checked(obj):
    """Whether the server would have stored this."""
    try:
        schema.check(obj, POD)
    except StatusError:
        return False
    schema.prune(obj, POD)
    return True


@settings(max_examples=80, deadline=None)
@given(documents, documents)
def test_strategic(doc, change):
    if checked(doc):
        with contextlib.suppress(StatusError):
            patch.apply_strategic_patch(doc, change, POD)


@settings(max_examples=80, deadline=None)
@given(documents, st.one_of(junk, documents))
def test_merge(doc, change):
    with contextlib.suppress(StatusError):
        patch.apply_merge_patch(doc, change)


pointers = st.lists(st.one_of(keys, st.sampled_from(["0", "-1", "-", "", "x"])), max_size=4).map(
    lambda parts: "".join("/" + part.replace("/", "~1") for part in parts)
)
operations = st.fixed_dictionaries(
    {"op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]), "path": pointers},
    optional={"value": junk, "from": pointers},
)


@settings(max_examples=80, deadline=None)
@given(documents, st.one_of(junk, st.lists(operations, max_size=4)))
def test_json_patch(doc, ops):
    with contextlib.suppress(StatusError):
        patch.apply_json_patch(doc, ops)


@settings(max_examples=80, deadline=None)
@given(documents, documents)
def test_apply(live, applied):
    ours = {"apiVersion": "v1", "kind": "Pod", **applied}
    if checked(live) and checked(ours):
        with contextlib.suppress(StatusError):
            one = apply.server_side_apply(live, ours, "m", True, POD, "", 0.0)
            apply.track_update(one, ours, "u", "Update", POD, "", 1.0)


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_bodies(body):
    with contextlib.suppress(StatusError):
        assert isinstance(schema.decode_json(body)[0], dict)
    with contextlib.suppress(StatusError):
        assert isinstance(schema.decode_yaml(body)[0], dict)


@pytest.mark.parametrize("decode", [schema.decode_json, schema.decode_yaml])
@pytest.mark.parametrize("depth", [500, 900, 5_000])
def test_deep_bodies(decode, depth):
    body = b'{"a": ' * depth + b"1" + b"}" * depth
    with contextlib.suppress(StatusError):
        decode(body)
    with contextlib.suppress(StatusError):
        decode(b"a: " + b"[" * depth + b"]" * depth)


def test_yaml_bombs():
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40)]
    with pytest.raises(StatusError):
        schema.decode_yaml("\n".join(lines).encode())


@settings(max_examples=80, deadline=None)
@given(documents)
def test_defaults_and_prune_take_whatever_passes_the_check(doc):
    if checked(doc):
        schema.apply_schema_defaults(doc, POD)
        json.dumps(doc)
        assert schema.check(doc, POD) == []
