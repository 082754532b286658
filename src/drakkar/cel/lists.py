"""List and set functions: the lists extension (version 3), sets, and the list functions of Kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cmp_to_key
from itertools import pairwise
from typing import Any, Final

from drakkar.cel.errors import EvaluationError, no_overload
from drakkar.cel.limits import check_size
from drakkar.cel.operators import add
from drakkar.cel.values import (
    NONE,
    Duration,
    Optional,
    Timestamp,
    Uint,
    compare,
    is_map,
    kind_of,
    optional,
    same,
    to_key,
)

_MAX_RANGE: Final = 10_000_000
_COMPARABLE: Final = (int, Uint, float, bool, Duration, Timestamp, str, bytes)


def _list(function: str, value: Any) -> list[Any]:
    if kind_of(value) is list:
        return value
    raise no_overload(function, value)


def _comparable(function: str, items: list[Any]) -> list[Any]:
    if any(type(item) not in _COMPARABLE for item in items):
        raise no_overload(function, items)
    return items


def is_sorted(value: Any) -> bool:
    """``isSorted``."""
    items = _comparable("isSorted", _list("isSorted", value))
    return all(compare(one, other, "isSorted") != 1 for one, other in pairwise(items))


def _extreme(function: str, sign: int) -> Callable[[Any], Any]:
    def call(value: Any) -> Any:
        items = _comparable(function, _list(function, value))
        if not items:
            raise EvaluationError("empty-list", f"{function} called on an empty list")
        best = items[0]
        for item in items[1:]:
            if compare(item, best, function) == sign:
                best = item
        return best

    return call


def total(value: Any) -> Any:
    """``sum``; an empty list of unknown elements adds up to 0."""
    items = _list("sum", value)
    if any(type(item) not in (int, Uint, float, Duration) for item in items):
        raise no_overload("sum", value)
    if not items:
        return 0
    result = items[0]
    for item in items[1:]:
        result = add(result, item)
    return result


def includes(container: Any, wanted: Any) -> bool:
    """``includes``: membership in a list; a scalar includes what equals it."""
    if kind_of(container) is list:
        return any(same(item, wanted) for item in container)
    return same(container, wanted)


def slice_list(value: Any, start: Any, end: Any) -> list[Any]:
    """``slice``."""
    items = _list("slice", value)
    if type(start) is not int or type(end) is not int:
        raise no_overload("slice", value, start, end)
    if start < 0 or end < 0 or start > end or end > len(items):
        raise EvaluationError("index-out-of-range", f"cannot slice({start}, {end}) a list of {len(items)}")
    return items[start:end]


def flatten(value: Any, depth: Any = 1) -> list[Any]:
    """``flatten``."""
    items = _list("flatten", value)
    if type(depth) is not int:
        raise no_overload("flatten", value, depth)
    if depth < 0:
        raise EvaluationError("invalid-argument", "flatten: the level must not be negative")
    return _flattened(items, depth, {})


def _flattened(items: list[Any], depth: int, known: dict[tuple[int, int], list[Any]]) -> list[Any]:
    """Lists that are met again, as parts of others, are not gone through again."""
    place = (id(items), depth)
    result: list[Any] | None = known.get(place)
    if result is None:
        result = list[Any]()
        for item in items:
            if kind_of(item) is list and depth > 0:
                result += _flattened(item, depth - 1, known)
            else:
                result.append(item)
            check_size(len(result))
        known[place] = result
    return result


def number_range(count: Any) -> list[int]:
    """``lists.range``."""
    if type(count) is not int:
        raise no_overload("lists.range", count)
    if count < 0:
        raise EvaluationError("invalid-argument", f"lists.range: size must be non-negative, got {count}")
    if count > _MAX_RANGE:
        raise EvaluationError("invalid-argument", f"lists.range: {count} exceeds {_MAX_RANGE}")
    check_size(count)
    return list(range(count))


def reverse(value: Any) -> list[Any]:
    """``reverse``."""
    return _list("reverse", value)[::-1]


def distinct(value: Any) -> list[Any]:
    """``distinct``: first occurrences."""
    result: list[Any] = []
    for item in _list("distinct", value):
        if not any(same(item, other) for other in result):
            result.append(item)
    return result


def sort(value: Any) -> list[Any]:
    """``sort``."""
    return sort_by(value, value)


def sort_by(value: Any, keys: Any) -> list[Any]:
    """Order a list by a second one of equal length."""
    items, order = _list("sort", value), _list("sort", keys)
    if not items:
        return items
    if type(order[0]) not in _COMPARABLE:
        raise EvaluationError("invalid-argument", "list elements must be comparable")
    if any(type(key) is not type(order[0]) for key in order):
        raise EvaluationError("invalid-argument", "list elements must have the same type")

    def by_key(one: int, other: int) -> int:
        return compare(order[one], order[other], "sort")

    return [items[at] for at in sorted(range(len(items)), key=cmp_to_key(by_key))]


def _edge(function: str, at: int) -> Callable[[Any], Optional]:
    def call(value: Any) -> Optional:
        items = _list(function, value)
        return optional(items[at]) if items else NONE

    return call


def sets_contains(one: Any, other: Any) -> bool:
    """``sets.contains``: every element of the second list is in the first."""
    items, wanted = _list("sets.contains", one), _list("sets.contains", other)
    return all(any(same(item, each) for each in items) for item in wanted)


def sets_equivalent(one: Any, other: Any) -> bool:
    """``sets.equivalent``."""
    return sets_contains(one, other) and sets_contains(other, one)


def sets_intersects(one: Any, other: Any) -> bool:
    """``sets.intersects``."""
    items, others = _list("sets.intersects", one), _list("sets.intersects", other)
    return any(any(same(item, each) for each in others) for item in items)


def map_insert(target: Any, *entry: Any) -> dict[Any, Any]:
    """What map-building loops do: one key and value, or all entries of another map, are put into ``target`` itself.

    Only loops call this, and each of them begins with a map of its own.
    """
    if not is_map(target):
        raise no_overload("@mapInsert", target)
    if len(entry) == 2:
        added = {to_key(entry[0]): entry[1]}
    elif is_map(entry[0]):
        added = entry[0]
    else:
        raise no_overload("@mapInsert", target, *entry)
    for key, value in added.items():
        if key in target:
            from drakkar.cel.values import key_text

            raise EvaluationError("duplicate-key", f"insert failed: key {key_text(key)} already exists")
        target[key] = value
    return target


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "isSorted": is_sorted, "min": _extreme("min", -1), "max": _extreme("max", 1), "sum": total, "includes": includes,
    "slice": slice_list, "flatten": flatten, "lists.range": number_range, "reverse": reverse, "distinct": distinct,
    "sort": sort, "@sortByAssociatedKeys": sort_by, "first": _edge("first", 0), "last": _edge("last", -1),
    "sets.contains": sets_contains, "sets.equivalent": sets_equivalent, "sets.intersects": sets_intersects,
    "cel.@mapInsert": map_insert,
}  # fmt: skip
