"""Dynamic Resource Allocation for Kubernetes, in Python.

``drakkar.snapshot(objects)`` and ``drakkar.allocate(snapshot, claims)`` are the library; both are loaded
when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drakkar.allocator.api import allocate, snapshot

__all__ = ["allocate", "snapshot"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from drakkar.allocator import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
