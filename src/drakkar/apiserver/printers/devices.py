"""Cells of the kinds of resource.k8s.io."""

from __future__ import annotations

from typing import Any

from drakkar.apiserver.printers.text import age

Object = dict[str, Any]


def claim(obj: Object, now: float) -> list[Any]:
    """State (``pending``, ``allocated,reserved``, ``deleted,…``) and age."""
    meta, status = obj["metadata"], obj.get("status") or {}
    states: list[str] = []
    if meta.get("deletionTimestamp"):
        states.append("deleted")
    if status.get("allocation") is not None:
        states.append("allocated")
        if status.get("reservedFor"):
            states.append("reserved")
    return [meta["name"], ",".join(states) or "pending", age(meta.get("creationTimestamp"), now)]


def slice_(obj: Object, now: float) -> list[Any]:
    """Node, driver, pool, age."""
    meta, spec = obj["metadata"], obj.get("spec", {})
    return [
        meta["name"],
        spec.get("nodeName", ""),
        spec.get("driver", ""),
        (spec.get("pool") or {}).get("name", ""),
        age(meta.get("creationTimestamp"), now),
    ]


def taint_rule(obj: Object, now: float) -> list[Any]:
    """Key, value, effect, since when, age."""
    meta, taint = obj["metadata"], obj.get("spec", {}).get("taint") or {}
    return [
        meta["name"],
        taint.get("key", ""),
        taint.get("value", ""),
        taint.get("effect", ""),
        age(taint.get("timeAdded"), now),
        age(meta.get("creationTimestamp"), now),
    ]


def pool_status_request(obj: Object, now: float) -> list[Any]:
    """Driver, sums over the pools, state, when it was completed."""
    meta, status = obj["metadata"], obj.get("status") or {}
    pools = status.get("pools") or ()

    def total(field: str) -> str:
        return str(sum(pool.get(field) or 0 for pool in pools))

    conditions = {item["type"]: item for item in status.get("conditions") or () if item.get("status") == "True"}
    state, completed = "Pending", "<none>"
    if "Failed" in conditions:
        state = "Failed"
    elif "Complete" in conditions:
        count = status.get("poolCount", len(pools))
        state = "Complete" if len(pools) >= count else f"Complete ({len(pools)}/{count} pools)"
        completed = age(conditions["Complete"].get("lastTransitionTime"), now)
    return [
        meta["name"],
        obj.get("spec", {}).get("driver", ""),
        total("totalDevices"),
        total("availableDevices"),
        total("allocatedDevices"),
        total("unavailableDevices"),
        str(sum(bool(pool.get("validationError")) for pool in pools)),
        status.get("poolCount", 0),
        state,
        completed,
    ]
