"""Names of writes, for crash tests: what a write means in the way of a claim.

Only called when failpoints are on; see `drakkar.store.failpoints`.
"""

from __future__ import annotations

from typing import Any

from drakkar.apiserver.catalog import Stored

Object = dict[str, Any]


def points_of(stored: Stored, new: Object | None, old: Object | None) -> tuple[str, ...]:
    """The points a write hits; ``new`` is None for a delete, ``old`` for a create."""
    if new is None:
        return ("eviction",) if stored.plural == "pods" else ()
    found: list[str] = []
    if stored.plural == "resourceclaims":
        before, after = _status(old), _status(new)
        if after.get("allocation") and not before.get("allocation"):
            found.append("claim-allocation")
        if before.get("allocation") and not after.get("allocation"):
            found.append("deallocation")
        if (after.get("reservedFor") or []) != (before.get("reservedFor") or []):
            found.append("reservation")
    elif stored.plural == "pods":
        if (new.get("spec") or {}).get("nodeName") and not ((old or {}).get("spec") or {}).get("nodeName"):
            found.append("binding")
        if new["metadata"].get("deletionTimestamp") and not ((old or {}).get("metadata") or {}).get(
            "deletionTimestamp"
        ):
            found.append("eviction")
    elif _tainted(stored.plural, new) != _tainted(stored.plural, old):
        found.append("taint")
    return tuple(found)


def _status(obj: Object | None) -> Object:
    return (obj or {}).get("status") or {}


def _tainted(plural: str, obj: Object | None) -> Any:
    """The taints in a slice, a node or a rule."""
    spec = (obj or {}).get("spec") or {}
    if plural == "resourceslices":
        return [(device.get("name"), device["taints"]) for device in spec.get("devices") or () if device.get("taints")]
    return (spec.get("taints") or spec.get("taint")) if plural in ("nodes", "devicetaintrules") else None
