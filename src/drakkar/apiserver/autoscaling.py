"""HorizontalPodAutoscaler ``autoscaling/v1`` over the stored ``v2``: one CPU target instead of metrics.

What v1 has no field for travels in an annotation, so that a v1 client's read and write back
loses nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

Object = dict[str, Any]

_METRICS = "autoscaling.alpha.kubernetes.io/metrics"
_STATUS = ("observedGeneration", "lastScaleTime", "currentReplicas", "desiredReplicas")


def _is_cpu(metric: Object) -> bool:
    resource = metric.get("resource") or {}
    target = resource.get("target") or {}
    return (
        metric.get("type") == "Resource"
        and resource.get("name") == "cpu"
        and target.get("type") == "Utilization"
        and target.get("averageUtilization") is not None
    )


def to_v1(obj: Object) -> Object:
    """The v2 form as v1."""
    spec, status = dict(obj.get("spec") or {}), obj.get("status") or {}
    metrics: list[Object] = spec.pop("metrics", None) or []
    others: Object = {}
    cpu = next((metric for metric in metrics if _is_cpu(metric)), None)
    if cpu is not None:
        spec["targetCPUUtilizationPercentage"] = cpu["resource"]["target"]["averageUtilization"]
    rest = [metric for metric in metrics if metric is not cpu]
    if rest:
        others["metrics"] = rest
    behavior = spec.pop("behavior", None)
    if behavior:
        others["behavior"] = behavior
    result: Object = {**obj, "spec": spec}
    kept: Object = {key: status[key] for key in _STATUS if key in status}
    for metric in status.get("currentMetrics") or ():
        resource = metric.get("resource") or {}
        if resource.get("name") == "cpu" and (resource.get("current") or {}).get("averageUtilization") is not None:
            kept["currentCPUUtilizationPercentage"] = resource["current"]["averageUtilization"]
    if "status" in obj:
        result["status"] = kept
    if others:
        meta = obj["metadata"]
        text = msgspec.json.encode(others).decode()
        result["metadata"] = {**meta, "annotations": {**(meta.get("annotations") or {}), _METRICS: text}}
    return result


def from_v1(obj: Object) -> Object:
    """The v1 form as v2."""
    spec, status = dict(obj.get("spec") or {}), obj.get("status") or {}
    meta: Object = obj.get("metadata") or {}
    annotations = dict(meta.get("annotations") or {})
    metrics: list[Object] = []
    percentage = spec.pop("targetCPUUtilizationPercentage", None)
    if percentage is not None:
        target = {"type": "Utilization", "averageUtilization": percentage}
        metrics.append({"type": "Resource", "resource": {"name": "cpu", "target": target}})
    try:
        others = msgspec.json.decode(annotations.pop(_METRICS, "{}"))
    except msgspec.DecodeError:
        others = {}
    if isinstance(others, dict):
        metrics += others.get("metrics") or []
        if others.get("behavior"):
            spec["behavior"] = others["behavior"]
    if metrics:
        spec["metrics"] = metrics
    result: Object = {**obj, "spec": spec}
    if "status" in obj:
        result["status"] = {key: status[key] for key in _STATUS if key in status}
        current = status.get("currentCPUUtilizationPercentage")
        if current is not None:
            found = {"name": "cpu", "current": {"averageUtilization": current}}
            result["status"]["currentMetrics"] = [{"type": "Resource", "resource": found}]
    if "annotations" in meta:
        result["metadata"] = {key: value for key, value in meta.items() if key != "annotations"}
        if annotations:
            result["metadata"]["annotations"] = annotations
    return result
