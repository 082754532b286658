"""Conditions of a Node as its kubelet keeps them: with a heartbeat, and with the time of the last change."""

from __future__ import annotations

from drakkar.api.meta import Object
from drakkar.api.objects import condition


def node_condition(node: Object, kind: str, status: str, reason: str, message: str, *, stamp: str) -> Object:
    """The condition to write at the time ``stamp``; one that says the same status already keeps its transition time."""
    old = condition(node, kind)
    changed = stamp
    if old is not None and old.get("status") == status and old.get("lastTransitionTime"):
        changed = old["lastTransitionTime"]
    entry = {"type": kind, "status": status, "reason": reason, "message": message}
    return entry | {"lastHeartbeatTime": stamp, "lastTransitionTime": changed}
