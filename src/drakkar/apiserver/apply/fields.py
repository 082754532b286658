"""Sets of field paths, and their form in ``managedFields``.

A path is a tuple of elements as ``FieldsV1`` spells them: ``f:name`` for a field or key,
``k:{"name":"c"}`` for an element of a list of type map, ``v:"x"`` for one of a set. A set
of fields is a frozenset of such tuples.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from drakkar.apiserver import status
from drakkar.apiserver.schema.nodes import SchemaNode

Path = tuple[str, ...]
FieldSet = frozenset[Path]

EMPTY: FieldSet = frozenset()

_MEMBER = "."


def to_fields_v1(fields: Iterable[Path]) -> dict[str, Any]:
    """The JSON of ``fieldsV1``: nested objects, ``.`` where a path with children is a member itself."""
    root: dict[str, Any] = {}
    for path in sorted(fields):
        node = root
        for element in path:
            node = node.setdefault(element, {})
        node[_MEMBER] = {}
    _drop_leaf_marks(root)
    return root


def _drop_leaf_marks(node: dict[str, Any]) -> None:
    for child in node.values():
        if len(child) == 1 and _MEMBER in child:
            del child[_MEMBER]
        else:
            _drop_leaf_marks(child)


def from_fields_v1(tree: dict[str, Any]) -> FieldSet:
    """The set that ``fieldsV1`` stands for.

    Raises:
        ValueError: when it is no tree of objects.
    """
    found: set[Path] = set()

    def walk(node: Any, path: Path) -> None:
        if type(node) is not dict:
            raise ValueError("fieldsV1 must consist of objects")
        if not node and path:
            found.add(path)
        for element, child in node.items():
            if element == _MEMBER:
                found.add(path)
            else:
                walk(child, (*path, element))

    walk(tree, ())
    return frozenset(found)


def closure(fields: Iterable[Path]) -> set[Path]:
    """The paths and everything above them."""
    found: set[Path] = set()
    for path in fields:
        while path and path not in found:
            found.add(path)
            path = path[:-1]
    return found


def path_text(path: Path) -> str:
    """How conflicts name a path: ``.spec.containers[name="c"].image``."""
    text = ""
    for element in path:
        kind, _, rest = element.partition(":")
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            keys = json.loads(rest)
            text += "[" + ",".join(f"{key}={_compact(value)}" for key, value in keys.items()) + "]"
        elif kind == "v":
            text += f"[={rest}]"
        else:
            text += f"[{rest}]"
    return text


def _compact(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def element_of(item: Any, node: SchemaNode, index: int) -> str:
    """Path element of an item of an associative list.

    Raises:
        StatusError: 422 when an item has none of the keys that identify it.
    """
    if node.list_type == "set":
        return "v:" + _compact(item)
    if type(item) is not dict:
        _refuse(f"associative list with keys may not have non-map elements (element {index})")
    keys: dict[str, Any] = {}
    for key in sorted(node.map_keys):
        if item.get(key) is not None:
            keys[key] = item[key]
        else:
            field = node.items.fields.get(key) if node.items is not None else None
            # Go's zero default of a required key is no identity; only real defaults are.
            if field is not None and field.has_default and field.default not in ("", 0):
                keys[key] = field.default
    if not keys:
        names = ", ".join(node.map_keys)
        _refuse(f'associative list with keys has an element that omits key field "{names}"')
    return "k:" + _compact(keys)


def _refuse(message: str) -> None:
    raise status.StatusError(status.status_error(422, "Invalid", message, details={}))


def is_atomic(value: Any, node: SchemaNode | None) -> bool:
    """Whether a value has one owner as a whole: scalars, and containers that are marked so."""
    if type(value) is dict:
        return node is not None and (node.map_type == "atomic" or node.kind not in ("struct", "map", "any"))
    if type(value) is list:
        # Lists without a marker are atomic.
        return node is None or node.list_type not in ("map", "set")
    return True


def child_of(node: SchemaNode | None, name: str) -> tuple[SchemaNode | None, bool]:
    """Schema of a field or key, and whether it is a declared field (a key of a map is not)."""
    if node is None:
        return None, False
    field = node.fields.get(name)
    return (field, True) if field is not None else (node.additional, False)


def fields_of(obj: Any, node: SchemaNode | None) -> FieldSet:
    """The fields that an applied object claims."""
    found: set[Path] = set()

    def walk(value: Any, node: SchemaNode | None, path: Path) -> None:
        if is_atomic(value, node):
            found.add(path)
        elif type(value) is dict:
            for name, item in value.items():
                child, declared = child_of(node, name)
                below = (*path, f"f:{name}")
                walk(item, child, below)
                if not declared or item is None or item == {}:
                    found.add(below)
        else:
            for element, item in elements(value, node):
                below = (*path, element)
                walk(item, node.items if node is not None else None, below)
                found.add(below)

    walk(obj, node, ())
    return frozenset(found - {()})


def elements(items: list[Any], node: SchemaNode | None) -> list[tuple[str, Any]]:
    """Items of an associative list with their path elements."""
    return [(element_of(item, node, index), item) for index, item in enumerate(items)] if node is not None else []


class Comparison:
    """What changed between two objects."""

    __slots__ = ("added", "modified", "removed")

    def __init__(self) -> None:
        self.added: set[Path] = set()
        self.modified: set[Path] = set()
        self.removed: set[Path] = set()

    @property
    def written(self) -> FieldSet:
        """What the writer has set."""
        return frozenset(self.added | self.modified)

    @property
    def same(self) -> bool:
        """Whether nothing changed."""
        return not (self.added or self.modified or self.removed)


_ABSENT: Any = object()


def compare(old: Any, new: Any, node: SchemaNode | None) -> Comparison:
    """The difference of two objects, atomic parts as wholes."""
    result = Comparison()
    _compare(old, new, node, (), result)
    return result


def _compare(old: Any, new: Any, node: SchemaNode | None, path: Path, out: Comparison) -> None:
    if old is new or (old is not _ABSENT and new is not _ABSENT and old is not None and old == new):
        return
    old_atomic = old is _ABSENT or is_atomic(old, node)
    new_atomic = new is _ABSENT or is_atomic(new, node)
    if old is _ABSENT:
        out.added.add(path)
    elif new is _ABSENT:
        out.removed.add(path)
    elif old_atomic and new_atomic:
        out.modified.add(path)
        return
    if old is not _ABSENT and new is not _ABSENT and old is not None and new is not None and type(old) is not type(new):
        out.modified.add(path)
        return
    # One side may be a scalar or absent; its children are then all absent.
    before: Any = None if old_atomic else old
    after: Any = None if new_atomic else new
    if type(before) is dict or type(after) is dict:
        before, after = before or {}, after or {}
        for name in before.keys() | after.keys():
            child, _ = child_of(node, name)
            _compare(before.get(name, _ABSENT), after.get(name, _ABSENT), child, (*path, f"f:{name}"), out)
    elif type(before) is list or type(after) is list:
        first, second = dict(elements(before or [], node)), dict(elements(after or [], node))
        items = node.items if node is not None else None
        for element in first.keys() | second.keys():
            _compare(first.get(element, _ABSENT), second.get(element, _ABSENT), items, (*path, element), out)
