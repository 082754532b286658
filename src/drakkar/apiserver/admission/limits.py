"""LimitRange: what containers get that say nothing, and the bounds of what pods and volumes may ask for.

Source: admission plugin LimitRanger; texts are its.
"""

from __future__ import annotations

from typing import Any

from drakkar.api.objects import pod_requests
from drakkar.api.quantity import Quantity
from drakkar.api.tree import child, children, text
from drakkar.apiserver import status
from drakkar.apiserver.cache import State
from drakkar.apiserver.catalog import Stored
from drakkar.apiserver.status import StatusError

Object = dict[str, Any]
Amounts = dict[str, Quantity]

LIMIT_RANGES = "/core/limitranges/"
ANNOTATION = "kubernetes.io/limit-ranger"


def limit_ranges(state: State, namespace: str) -> list[Object]:
    """The LimitRanges of a namespace, by name."""
    table = state.tables[LIMIT_RANGES]
    if not table.entries or not namespace:
        return []
    return [table.decode(table.entries[key]) for key in table.keys(namespace)]


def set_defaults(pod: Object, ranges: list[Object]) -> None:
    """Requests and limits of containers that name none, in place."""
    said: list[str] = []
    for entry in (entry for found in ranges for entry in children(found, "spec", "limits")):
        if text(entry, "type") != "Container":
            continue
        for which, title in (("initContainers", "init container"), ("containers", "container")):
            for container in children(pod, "spec", which):
                said += _fill(container, entry, title)
    if said:
        annotations = pod["metadata"].get("annotations") or {}
        pod["metadata"]["annotations"] = {**annotations, ANNOTATION: "LimitRanger plugin set: " + "; ".join(said)}


def _fill(container: Object, entry: Object, title: str) -> list[str]:
    said: list[str] = []
    for field, source in (("requests", "defaultRequest"), ("limits", "default")):
        missing = {
            name: amount
            for name, amount in child(entry, source).items()
            if name not in child(container, "resources", field)
        }
        if missing:
            resources = container["resources"] = dict(child(container, "resources"))
            resources[field] = {**child(resources, field), **missing}
            word = field.removesuffix("s")
            said.append(f"{', '.join(sorted(missing))} {word} for {title} {text(container, 'name')}")
    return said


def check(stored: Stored, name: str, obj: Object, ranges: list[Object]) -> None:
    """StatusError 403 when a pod or a volume claim lies outside the bounds."""
    faults: list[str] = []
    for entry in (entry for found in ranges for entry in children(found, "spec", "limits")):
        kind = text(entry, "type")
        if stored.plural == "pods" and kind == "Container":
            for which in ("initContainers", "containers"):
                for container in children(obj, "spec", which):
                    faults += _outside(entry, _amounts(container, "requests"), _amounts(container, "limits"))
        elif stored.plural == "pods" and kind == "Pod":
            faults += _outside(entry, pod_requests(obj), _limits(obj))
        elif stored.plural == "persistentvolumeclaims" and kind == "PersistentVolumeClaim":
            faults += _outside(entry, _amounts(child(obj, "spec"), "requests"), {}, volume=True)
    if faults:
        joined = faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]"
        raise StatusError(status.forbidden(stored.group, stored.plural, name, joined))


def _amounts(holder: Object, which: str) -> Amounts:
    return {name: Quantity.parse(str(spelled)) for name, spelled in child(holder, "resources", which).items()}


def _limits(pod: Object) -> Amounts:
    """Limits add up as requests do."""
    spec: Object = {}
    for which in ("initContainers", "containers"):
        spec[which] = [
            {**container, "resources": {"requests": child(container, "resources", "limits")}}
            for container in children(pod, "spec", which)
        ]
    limits = child(pod, "spec", "resources", "limits")
    return pod_requests({"spec": {**spec, **({"resources": {"requests": limits}} if limits else {})}})


def _outside(entry: Object, requests: Amounts, limits: Amounts, *, volume: bool = False) -> list[str]:
    """Why amounts lie outside one entry of a LimitRange, in upstream's words."""
    kind, faults = text(entry, "type"), list[str]()
    for name, spelled in child(entry, "min").items():
        bound, request, limit = Quantity.parse(str(spelled)), requests.get(name), limits.get(name)
        if request is None:
            faults.append(f"minimum {name} usage per {kind} is {spelled}.  No request is specified")
        elif request < bound:
            faults.append(f"minimum {name} usage per {kind} is {spelled}, but request is {request.canonical()}")
        elif limit is not None and limit < bound:
            faults.append(f"minimum {name} usage per {kind} is {spelled}, but limit is {limit.canonical()}")
    for name, spelled in child(entry, "max").items():
        bound, request, limit = Quantity.parse(str(spelled)), requests.get(name), limits.get(name)
        if volume:
            limit = request
        word = "request" if volume else "limit"
        if limit is None:
            faults.append(f"maximum {name} usage per {kind} is {spelled}.  No {word} is specified")
        elif limit > bound:
            faults.append(f"maximum {name} usage per {kind} is {spelled}, but {word} is {limit.canonical()}")
        elif request is not None and request > bound:
            faults.append(f"maximum {name} usage per {kind} is {spelled}, but request is {request.canonical()}")
    for name, spelled in child(entry, "maxLimitRequestRatio").items():
        ratio, request, limit = Quantity.parse(str(spelled)), requests.get(name), limits.get(name)
        if not request or not limit:
            word = "No limit is specified" if not limit else "No request is specified"
            faults.append(f"{name} max limit to request ratio per {kind} is {spelled}, but {word[0].lower()}{word[1:]}")
            continue
        real = limit.to_milli() / request.to_milli()
        if real > ratio.to_milli() / 1000:
            faults.append(f"{name} max limit to request ratio per {kind} is {spelled}, but provided ratio is {real:f}")
    return faults
