"""Typed merge and removal of fields."""

from __future__ import annotations

from typing import Any

from drakkar.apiserver.apply.fields import Path, child_of, elements, is_atomic
from drakkar.apiserver.schema.nodes import SchemaNode


def merge(live: Any, applied: Any, node: SchemaNode | None) -> Any:
    """``live`` with what ``applied`` says; the inputs stay as they are."""
    if is_atomic(applied, node) or type(live) is not type(applied):
        return applied
    if type(applied) is dict:
        result = dict(live)
        for name, value in applied.items():
            if name in live:
                result[name] = merge(live[name], value, child_of(node, name)[0])
            else:
                result[name] = value
        return result
    return _merge_list(live, applied, node)


def _merge_list(live: list[Any], applied: list[Any], node: SchemaNode | None) -> list[Any]:
    """Applied elements in their order; elements of others stay where they stood among them."""
    items = node.items if node is not None else None
    present = dict(elements(live, node))
    wanted = {
        element: merge(present[element], item, items) if element in present else item
        for element, item in elements(applied, node)
    }
    place = {element: index for index, element in enumerate(present)}
    others = [element for element in present if element not in wanted]
    result: list[Any] = []
    left = 0
    for element, item in wanted.items():
        while left < len(others) and element in place and place[others[left]] < place[element]:
            result.append(present[others[left]])
            left += 1
        result.append(item)
    return result + [present[element] for element in others[left:]]


def remove(value: Any, gone: set[Path], node: SchemaNode | None) -> Any:
    """``value`` without the fields in ``gone``; containers that become empty go too (None at the top)."""
    above = {path[:size] for path in gone for size in range(len(path))}
    return _remove(value, gone, above, node, ())


def _remove(value: Any, gone: set[Path], above: set[Path], node: SchemaNode | None, path: Path) -> Any:
    if is_atomic(value, node):
        return value
    if type(value) is dict:
        kept: dict[str, Any] = {}
        for name, item in value.items():
            below = (*path, f"f:{name}")
            if below in gone:
                continue
            rest = _remove(item, gone, above, child_of(node, name)[0], below) if below in above else item
            if rest is not None:
                kept[name] = rest
        return kept or None
    items = node.items if node is not None else None
    result: list[Any] = []
    for element, item in elements(value, node):
        below = (*path, element)
        if below in gone:
            continue
        rest = _remove(item, gone, above, items, below) if below in above else item
        if rest is not None:
            result.append(rest)
    return result or None
