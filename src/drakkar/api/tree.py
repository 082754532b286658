"""Reading JSON trees with types: what is absent or null reads as empty.

Foreign objects arrive as dicts that have passed the schema, so a field that is present has
its type; these helpers only say so to the type checker, and spare callers the ``or {}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def at(obj: Mapping[str, Any] | None, *path: str) -> Any:
    """The value behind ``path``, None when any step is absent."""
    found: Any = obj
    for step in path:
        if not found:
            return None
        found = found.get(step)
    return found


def child(obj: Mapping[str, Any] | None, *path: str) -> dict[str, Any]:
    """The object behind ``path``, a new empty one when absent; do not change it."""
    found = at(obj, *path)
    return {} if found is None else found


def children(obj: Mapping[str, Any] | None, *path: str) -> list[dict[str, Any]]:
    """The list of objects behind ``path``, a new empty one when absent; do not change it."""
    found = at(obj, *path)
    return [] if found is None else found


def texts(obj: Mapping[str, Any] | None, *path: str) -> list[str]:
    """The list of strings behind ``path``, a new empty one when absent; do not change it."""
    found = at(obj, *path)
    return [] if found is None else found


def text(obj: Mapping[str, Any] | None, *path: str) -> str:
    """The string behind ``path``, empty when absent."""
    found = at(obj, *path)
    return "" if found is None else found


def whole(spelled: str) -> int | None:
    """The number that up to 18 ASCII digits spell; None for anything else, since annotations hold what users write."""
    return int(spelled) if len(spelled) <= 18 and spelled.isascii() and spelled.isdigit() else None
