"""Dynamic Resource Allocation for Kubernetes, in Python.

``drakkar.snapshot(objects)`` and ``drakkar.allocate(snapshot, claims)`` are the library, ``drakkar.hypothetical`` makes
nodes that do not exist yet. They are loaded when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drakkar.allocator.api import allocate, snapshot
    from drakkar.allocator.hypothetical import hypothetical, is_hypothetical

__all__ = ["allocate", "hypothetical", "is_hypothetical", "snapshot"]

_HOMES = {
    "allocate": "drakkar.allocator.api",
    "hypothetical": "drakkar.allocator.hypothetical",
    "is_hypothetical": "drakkar.allocator.hypothetical",
    "snapshot": "drakkar.allocator.api",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
