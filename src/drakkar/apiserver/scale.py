"""The ``scale`` subresource: replicas of a workload as an object of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drakkar.api.errors import ParseError
from drakkar.api.selectors import LabelSelector
from drakkar.api.tree import at, text
from drakkar.apiserver import status
from drakkar.apiserver.status import StatusError

Object = dict[str, Any]

#: Group, version and kind of what the subresource speaks.
KIND = ("autoscaling", "v1", "Scale")


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """Where a kind keeps what its Scale shows; ``selector`` is None where it has no selector."""

    replicas: tuple[str, ...] = ("spec", "replicas")
    observed: tuple[str, ...] = ("status", "replicas")
    selector: tuple[str, ...] | None = ("spec", "selector")

    @staticmethod
    def of(scale: Object) -> ScalePaths:
        """From ``subresources.scale`` of a definition."""

        def steps(field: str) -> tuple[str, ...]:
            return tuple(part for part in text(scale, field).split(".") if part)

        return ScalePaths(steps("specReplicasPath"), steps("statusReplicasPath"), steps("labelSelectorPath") or None)


BUILT_IN = ScalePaths()


def scale_of(obj: Object, paths: ScalePaths = BUILT_IN) -> Object:
    """The ``autoscaling/v1`` Scale of a workload."""
    meta: Object = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    found: Object = {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {},
        "status": {"replicas": at(obj, *paths.observed) or 0},
    }
    replicas = at(obj, *paths.replicas)
    if replicas:
        found["spec"]["replicas"] = replicas
    selector = _selector_text(at(obj, *paths.selector)) if paths.selector is not None else ""
    if selector:
        found["status"]["selector"] = selector
    return found


def _selector_text(selector: Object | str | None) -> str:
    if not selector:
        return ""
    if isinstance(selector, str):
        return selector  # as custom resources keep it
    if not selector.keys() <= {"matchLabels", "matchExpressions"}:
        selector = {"matchLabels": selector}  # replication controllers have plain labels
    try:
        requirements = LabelSelector.from_object(selector).requirements
    except ParseError:
        # Stored before selectors were validated: it selects nothing, so there is no text for it.
        return ""
    parts: list[str] = []
    for requirement in requirements:
        values = ",".join(sorted(requirement.values))
        match requirement.operator:
            case "In":
                parts.append(
                    f"{requirement.key}={values}"
                    if len(requirement.values) == 1
                    else f"{requirement.key} in ({values})"
                )
            case "NotIn":
                parts.append(f"{requirement.key} notin ({values})")
            case "Exists":
                parts.append(requirement.key)
            case _:
                parts.append(f"!{requirement.key}")
    return ",".join(parts)


def rescale(obj: Object, scale: Object, paths: ScalePaths = BUILT_IN) -> Object:
    """The workload with the replicas of the Scale; StatusError 422 when they are negative."""
    replicas = (scale.get("spec") or {}).get("replicas") or 0
    if not isinstance(replicas, int) or replicas < 0:
        raise StatusError(
            status.bad_request(f"spec.replicas of a Scale must be a number of at least 0, not {replicas!r}")
        )
    meta = scale.get("metadata") or {}
    holder = obj
    for step in paths.replicas[:-1]:
        holder[step] = dict(holder.get(step) or {})
        holder = holder[step]
    holder[paths.replicas[-1]] = replicas
    # The scale's revision and uid are conditions on the workload.
    for key in ("resourceVersion", "uid"):
        if meta.get(key):
            obj["metadata"][key] = meta[key]
    return obj
