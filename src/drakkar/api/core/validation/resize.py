"""The subresource ``resize``: what of a pod's containers may ask for more or less once the pod exists.

Only ``cpu`` and ``memory`` of containers and init containers may change, and the pod has to stay in its class of
quality of service. Whatever else a request holds is dropped before (see the pod's strategy).

Source: KEP-1287, API reference of Pod, Container.resources and Container.resizePolicy.
"""

from __future__ import annotations

from typing import Any, Final

from drakkar.api.core.validation.pods import requirements
from drakkar.api.errors import ParseError
from drakkar.api.faults import Faults
from drakkar.api.meta import Object
from drakkar.api.objects import pod_qos_class
from drakkar.api.rules import ValidationContext, same_meaning
from drakkar.api.tree import child, children, text

_RESIZABLE: Final = frozenset(("cpu", "memory"))
_FIELDS: Final = ("containers", "initContainers")


def names_of(spec: Object) -> list[list[str]]:
    """Names of containers and init containers, in order; a resize may not change them."""
    return [[text(item, "name") for item in children(spec, field)] for field in _FIELDS]


def resized(before: Object, wanted: Object) -> Object:
    """The stored spec with the resources and policies that a request wants; the containers have to be the same."""
    spec = dict(before)
    for field in _FIELDS:
        if field in before:
            pairs = zip(children(before, field), children(wanted, field), strict=True)
            spec[field] = [_resized(old, new) for old, new in pairs]
    if wanted.get("resources") is not None:
        spec["resources"] = wanted["resources"]
    return spec


def _resized(old: Object, new: Object) -> Object:
    container = dict(old)
    for field in ("resources", "resizePolicy"):
        if new.get(field) is None:
            container.pop(field, None)
        else:
            container[field] = new[field]
    return container


def validate_resize(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """What the subresource may do."""
    assert old is not None  # a subresource is written of what exists
    spec, before = child(obj, "spec"), child(old, "spec")
    if "kubernetes.io/config.mirror" in child(old, "metadata", "annotations"):
        faults.forbidden("", "static pods cannot be resized")
        return
    if text(before, "os", "name") == "windows":
        faults.forbidden("", "windows pods cannot be resized")
        return
    if not _supported(old):
        faults.forbidden("spec", "Pod running on node without support for resize")
    if not same_meaning(spec.get("resources"), before.get("resources")):
        faults.forbidden("spec.resources", "this server does not resize pod-level resources")
    if children(old, "status", "nodeAllocatableResourceClaimStatuses"):
        faults.forbidden("spec", "pods with node allocatable resource claims cannot be resized")
    if not _same_containers(faults, spec, before):
        return
    claims = frozenset(text(item, "name") for item in children(before, "resourceClaims"))
    for field in _FIELDS:
        for index, (new, stored) in enumerate(zip(children(spec, field), children(before, field), strict=True)):
            path = f"spec.{field}[{index}]"
            requirements(faults, f"{path}.resources", child(new, "resources"), claims)
            _container(faults, path, new, stored)
    if not faults.found:
        # Only amounts that can be read make a class.
        _class(faults, obj, old)


def _same_containers(faults: Faults, spec: Object, before: Object) -> bool:
    for field, wanted, had in zip(_FIELDS, names_of(spec), names_of(before), strict=True):
        if len(wanted) != len(had):
            faults.forbidden(f"spec.{field}", f"{field} may not be added or removed on resize")
            continue
        for index, (name, stored) in enumerate(zip(wanted, had, strict=True)):
            if name != stored:
                faults.forbidden(f"spec.{field}[{index}].name", f"{field} may not be renamed or reordered on resize")
    return names_of(spec) == names_of(before)


def _container(faults: Faults, path: str, new: Object, stored: Object) -> None:
    wanted, had = child(new, "resources"), child(stored, "resources")
    for kind in ("requests", "limits"):
        if child(had, kind).keys() - child(wanted, kind).keys():
            faults.forbidden(f"{path}.resources.{kind}", f"resource {kind} cannot be removed")
    first = path.startswith("spec.initContainers")
    if not same_meaning({**new, "resources": _others(wanted)}, {**stored, "resources": _others(had)}):
        if first:
            faults.forbidden(path, "only cpu and memory resources for init or sidecar containers are mutable")
        else:
            faults.forbidden("spec", "only cpu and memory resources are mutable")
    if first and stored.get("restartPolicy") != "Always" and not same_meaning(new, stored):
        policies = {text(policy, "restartPolicy") for policy in children(stored, "resizePolicy")}
        if "RestartContainer" in policies:
            said = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized"
            faults.forbidden(path, said)


def _others(resources: Object) -> dict[str, Any]:
    """The resources without what may change."""
    found: dict[str, Any] = {"claims": resources.get("claims")}
    for kind in ("requests", "limits"):
        kept = {name: amount for name, amount in child(resources, kind).items() if name not in _RESIZABLE}
        found[kind] = kept or None
    return found


def _supported(pod: Object) -> bool:
    """Whether the pod's node tells what running containers have: one that does not cannot resize them."""
    running = [entry for entry in children(pod, "status", "containerStatuses") if child(entry, "state").get("running")]
    return all(entry.get("resources") is not None for entry in running)


def _class(faults: Faults, obj: Object, old: Object) -> None:
    try:
        before, after = pod_qos_class(old), pod_qos_class(obj)
    except ParseError as error:
        faults.invalid("spec", "", str(error))
        return
    if before != after:
        faults.invalid("spec", after, "Pod QOS Class may not change as a result of resizing")
