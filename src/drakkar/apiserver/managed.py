"""Where the registry meets server-side apply: what an endpoint ignores, and who owns what.

Owners of fields are tracked from the start where the creator says who they are (`fieldManager`), else
from the first apply on; then what was there before is owned by ``before-first-apply``, as upstream
does for old objects.
"""

from __future__ import annotations

from drakkar.api.rules import Strategy


def reset_paths(strategy: Strategy | None, subresource: str) -> tuple[tuple[str, ...], ...] | None:
    """Paths that an apply to this endpoint ignores; None for the usual ones."""
    if strategy is None:
        return None
    return tuple((f"f:{name}",) for name in strategy.reset_fields.get(subresource, ()))
