"""Events have two forms, ``v1`` and ``events.k8s.io/v1``, over one storage (the core form)."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]

#: core name → name in events.k8s.io
_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_CORE_NAMES = {new: old for old, new in _NAMES.items()}


def to_events_v1(obj: Object) -> Object:
    """The core form as events.k8s.io/v1."""
    return {_NAMES.get(name, name): value for name, value in obj.items()}


def from_events_v1(obj: Object) -> Object:
    """The form of events.k8s.io/v1 as core."""
    return {_CORE_NAMES.get(name, name): value for name, value in obj.items()}
