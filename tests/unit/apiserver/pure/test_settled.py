"""The short cut for objects that need nothing: it must agree with the walks that it saves."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from drakkar.apiserver import schema
from drakkar.apiserver.status import StatusError
from tests.unit.apiserver.pure.traces import objects

ODD: list[Any] = [None, 0, -1, 1 << 31, 1 << 63, 1.5, True, "", "x", "1.0", "1024Mi", "2026-01-01T00:00:00Z", [], {}]
ODD += [[None], {"": None}, {"unknown": 1}, ["a", None], {"a": "b"}]

TYPES = (
    ("resource.k8s.io", "v1", "ResourceSlice"),
    ("resource.k8s.io", "v1", "ResourceClaim"),
    ("", "v1", "Pod"),
    ("", "v1", "Node"),
    ("coordination.k8s.io", "v1", "Lease"),
)


def needs_nothing(value: Any, node: schema.SchemaNode) -> bool:
    """What the three walks say."""
    after = copy.deepcopy(value)
    try:
        if schema.check(after, node):
            return False
    except StatusError:
        return False
    schema.prune(after, node)
    schema.write_zeros(after, node)
    return repr(after) == repr(value)


def values(draw: Any, node: schema.SchemaNode, depth: int) -> Any:
    """A value that fits the schema, but for a few places."""
    if draw(st.integers(0, 60)) == 0:
        return draw(st.sampled_from(ODD))
    match node.kind:
        case "struct":
            names = [name for name in node.required if name in node.fields]
            if depth and node.fields:
                names += draw(st.lists(st.sampled_from(sorted(node.fields)), max_size=3))
            return {name: values(draw, node.fields[name], depth - 1) for name in dict.fromkeys(names)}
        case "list" if node.items is not None:
            return [values(draw, node.items, depth - 1) for _ in range(draw(st.integers(0, 2)))]
        case "map" if node.additional is not None:
            return {f"k{n}": values(draw, node.additional, depth - 1) for n in range(draw(st.integers(0, 2)))}
        case "integer":
            return draw(st.integers(-5, 5))
        case "quantity":
            return draw(st.sampled_from(["1", "80Gi", "100m"]))
        case "boolean":
            return True
        case "time" | "microtime":
            return "2026-01-01T00:00:00Z"
        case _:
            return "text"


@settings(max_examples=400, deadline=None)
@given(st.data(), st.sampled_from(TYPES))
def test_settled_objects_need_nothing(data: st.DataObject, kind: tuple[str, str, str]) -> None:
    node = schema.schemas().for_kind(*kind)
    assert node is not None
    obj = values(data.draw, node, 6)
    if isinstance(obj, dict) and schema.is_settled(obj, node):
        assert needs_nothing(obj, node)


def test_most_recorded_objects_are_settled() -> None:
    settled = total = 0
    for obj in objects("read", "write", "delete", "node", "raw", "helm"):
        group, _, version = obj["apiVersion"].rpartition("/")
        node = schema.schemas().for_kind(group, version, obj["kind"])
        if node is None:
            continue
        total += 1
        if schema.is_settled(obj, node):
            settled += 1
            assert needs_nothing(obj, node)
    assert settled > total // 2


def test_each_odd_value_at_each_kind_of_place() -> None:
    node = schema.schemas().for_kind("", "v1", "Pod")
    assert node is not None
    stack, seen = [node], set[int]()
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        below = [*current.fields.values(), *(n for n in (current.items, current.additional) if n is not None)]
        stack += below
        if current.kind != "struct":
            continue
        for name, _field in current.fields.items():
            for odd in ODD:
                obj = {name: odd}
                if schema.is_settled(obj, current):
                    assert needs_nothing(obj, current), (current.name, name, odd)
