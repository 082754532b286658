"""Helpers over API objects as plain dicts; structs of `drakkar.api` work where only metadata is read.

They answer the questions that several components ask of the same foreign object, so that
the answer exists once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from drakkar.api.kinds import Kind
from drakkar.api.meta import Object
from drakkar.api.names import PODS_PER_NODE
from drakkar.api.quantity import Quantity
from drakkar.api.tree import at, child, children, text


def _meta(obj: Any, field: str) -> Any:
    if isinstance(obj, Mapping):
        return at(cast(Mapping[str, Any], obj), "metadata", field)
    return getattr(obj.metadata, field, None)


def name_of(obj: Any) -> str:
    """``metadata.name``, empty when unset."""
    return _meta(obj, "name") or ""


def namespace_of(obj: Any) -> str:
    """``metadata.namespace``, empty for cluster-scoped objects."""
    return _meta(obj, "namespace") or ""


def uid_of(obj: Any) -> str:
    """``metadata.uid``, empty when unset."""
    return _meta(obj, "uid") or ""


def resource_version_of(obj: Any) -> str:
    """``metadata.resourceVersion``, empty when unset."""
    return _meta(obj, "resourceVersion") or ""


def labels_of(obj: Any) -> dict[str, str]:
    """``metadata.labels``, empty when unset; do not change it."""
    return _meta(obj, "labels") or {}


def annotations_of(obj: Any) -> dict[str, str]:
    """``metadata.annotations``, empty when unset; do not change it."""
    return _meta(obj, "annotations") or {}


def finalizers_of(obj: Any) -> list[str]:
    """``metadata.finalizers``, empty when unset; do not change it."""
    return _meta(obj, "finalizers") or []


def is_deleting(obj: Any) -> bool:
    """Whether the object has been asked to go (``metadata.deletionTimestamp``)."""
    return bool(_meta(obj, "deletionTimestamp"))


def key_of(obj: Any) -> str:
    """``namespace/name``, or just ``name`` for cluster-scoped objects."""
    namespace = namespace_of(obj)
    return f"{namespace}/{name_of(obj)}" if namespace else name_of(obj)


def split_key(key: str) -> tuple[str, str]:
    """Namespace (empty for cluster-scoped objects) and name of a :func:`key_of` key."""
    namespace, _, name = key.rpartition("/")
    return namespace, name


def owner_reference(kind: Kind, obj: Any, *, controller: bool = True, block: bool = True) -> Object:
    """A reference to ``obj`` for ``metadata.ownerReferences`` of what it owns."""
    reference: Object = {"apiVersion": kind.api_version, "kind": kind.kind, "name": name_of(obj), "uid": uid_of(obj)}
    if controller:
        reference["controller"] = True
    if block:
        reference["blockOwnerDeletion"] = True
    return reference


def controller_of(obj: Any) -> Any | None:
    """The owner reference with ``controller: true`` (a dict, or a struct for structs), or None."""
    references: list[Any] = _meta(obj, "ownerReferences") or []
    return next((reference for reference in references if _controls(reference)), None)


def _controls(reference: Any) -> bool:
    if isinstance(reference, Mapping):
        return bool(cast(Mapping[str, Any], reference).get("controller"))
    return bool(reference.controller)


# Conditions.


def condition(obj: Mapping[str, Any], type: str) -> Object | None:
    """The entry of ``status.conditions`` with this type, or None."""
    conditions = children(obj, "status", "conditions")
    return next((entry for entry in conditions if entry.get("type") == type), None)


def condition_is(obj: Mapping[str, Any], type: str, status: str = "True") -> bool:
    """Whether the condition exists and has this status."""
    found = condition(obj, type)
    return found is not None and found.get("status") == status


def with_condition(conditions: Iterable[Object] | None, new: Object) -> list[Object]:
    """A copy of ``conditions`` in which ``new`` replaces the entry of its type or stands last.

    ``lastTransitionTime`` stays what it was when the status does not change.
    """
    result = list(conditions or ())
    for index, old in enumerate(result):
        if old.get("type") == new.get("type"):
            if old.get("status") == new.get("status") and old.get("lastTransitionTime"):
                new = {**new, "lastTransitionTime": old["lastTransitionTime"]}
            result[index] = new
            return result
    return [*result, new]


# Pods.


#: Nine digits are more pods than any node takes, and int() refuses very long ones.
_COUNT = re.compile("0{0,9}[1-9][0-9]{0,8}")


def pods_per_node(claim: Any) -> int | None:
    """The claim's own limit of pods on one node (annotation ``drakkar.dev/pods-per-node``), if it has a usable one."""
    text = annotations_of(claim).get(PODS_PER_NODE, "")
    return int(text) if _COUNT.fullmatch(text) else None


def pod_is_done(pod: Mapping[str, Any]) -> bool:
    """Whether the pod has ended: no container of it will run again."""
    return text(pod, "status", "phase") in ("Succeeded", "Failed")


def pod_node(pod: Mapping[str, Any]) -> str:
    """Name of the node the pod is bound to, empty before that."""
    return text(pod, "spec", "nodeName")


def pod_priority(pod: Mapping[str, Any]) -> int:
    """``spec.priority``; 0 where admission set none."""
    return at(pod, "spec", "priority") or 0


def is_sidecar(container: Mapping[str, Any]) -> bool:
    """Whether an init container keeps running beside the main ones."""
    return container.get("restartPolicy") == "Always"


def pod_claim_names(pod: Mapping[str, Any]) -> dict[str, str | None]:
    """Entry of ``spec.resourceClaims`` → name of its claim.

    None stands for a claim that has yet to be made from a template; an entry whose template
    turned out to need no claim is left out.
    """
    made: dict[str, str | None] = {
        entry["name"]: entry.get("resourceClaimName") for entry in children(pod, "status", "resourceClaimStatuses")
    }
    names: dict[str, str | None] = {}
    for entry in children(pod, "spec", "resourceClaims"):
        if entry.get("resourceClaimName"):
            names[entry["name"]] = entry["resourceClaimName"]
        elif entry["name"] not in made:
            names[entry["name"]] = None
        elif made[entry["name"]]:
            names[entry["name"]] = made[entry["name"]]
    return names


#: Resources that a pod-level ``spec.resources`` may set for all containers together.
_POD_LEVEL = ("cpu", "memory")


def pod_requests(pod: Mapping[str, Any]) -> dict[str, Quantity]:
    """What a node must have left for the pod.

    Main containers and sidecars add up. An ordinary init container runs alone, but beside the
    sidecars listed before it; the larger of both needs counts. Pod-level resources replace
    the sum, and the overhead of the runtime comes on top.
    """
    spec = child(pod, "spec")
    total: dict[str, Quantity] = {}
    sidecars: dict[str, Quantity] = {}
    peak: dict[str, Quantity] = {}
    for container in children(spec, "containers"):
        _combine(total, _amounts(container, "requests"), _plus)
    for container in children(spec, "initContainers"):
        wanted = _amounts(container, "requests")
        if is_sidecar(container):
            _combine(total, wanted, _plus)
            _combine(sidecars, wanted, _plus)
            wanted = dict(sidecars)
        else:
            _combine(wanted, sidecars, _plus)
        _combine(peak, wanted, max)
    _combine(total, peak, max)
    for name, amount in _amounts(spec, "requests").items():
        if name in _POD_LEVEL or name.startswith("hugepages-"):
            total[name] = amount
    overhead = {name: Quantity.parse(str(spelled)) for name, spelled in child(spec, "overhead").items()}
    _combine(total, overhead, _plus)
    return total


def _amounts(holder: Mapping[str, Any], which: str) -> dict[str, Quantity]:
    found = child(holder, "resources", which)
    return {name: Quantity.parse(str(spelled)) for name, spelled in found.items()}


def _plus(left: Quantity, right: Quantity) -> Quantity:
    return left + right


def _combine(
    total: dict[str, Quantity], more: Mapping[str, Quantity], how: Callable[[Quantity, Quantity], Quantity]
) -> None:
    for name, amount in more.items():
        total[name] = how(total[name], amount) if name in total else amount


def pod_qos_class(pod: Mapping[str, Any]) -> str:
    """Guaranteed, Burstable or BestEffort, from the CPU and memory of the pod's containers."""
    spec = child(pod, "spec")
    holders = [spec] if at(spec, "resources") else [*children(spec, "initContainers"), *children(spec, "containers")]
    guaranteed = True
    anything = False
    for holder in holders:
        requests, limits = _amounts(holder, "requests"), _amounts(holder, "limits")
        for name in _POD_LEVEL:
            limit, request = limits.get(name), requests.get(name)
            anything = anything or bool(limit) or bool(request)
            guaranteed = guaranteed and bool(limit) and (request is None or request == limit)
    if not anything:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"
