"""Ephemeral containers: added to a running pod through the subresource ``ephemeralcontainers``, never changed.

Source: API reference of PodSpec.ephemeralContainers, EphemeralContainer.
"""

from __future__ import annotations

from typing import Final

from drakkar.api import formats
from drakkar.api.core.validation.environment import variables
from drakkar.api.core.validation.pods import one_of
from drakkar.api.core.validation.volumes import PULL_POLICIES, Volumes, mounts
from drakkar.api.faults import Faults
from drakkar.api.meta import Object
from drakkar.api.resource.validation import shared
from drakkar.api.rules import ValidationContext, same_meaning
from drakkar.api.tree import child, children, text

#: What a container that nobody restarts or schedules cannot have.
_NOT_FOR_THEM: Final = (
    "lifecycle",
    "livenessProbe",
    "ports",
    "readinessProbe",
    "resizePolicy",
    "resources",
    "startupProbe",
    "restartPolicy",
)


def validate_ephemeral_containers(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """What the subresource may do to a pod's ephemeral containers."""
    spec, before = child(obj, "spec"), child(old or {}, "spec")
    path = "spec.ephemeralContainers"
    present = {text(item, "name"): item for item in children(spec, "ephemeralContainers")}
    stored: set[str] = set()
    for item in children(before, "ephemeralContainers"):
        name = text(item, "name")
        stored.add(name)
        if name not in present:
            faults.forbidden(path, f'existing ephemeral containers "{name}" may not be removed')
        elif not same_meaning(present[name], item):
            faults.forbidden(path, f'existing ephemeral containers "{name}" may not be changed')
    regular = {text(item, "name") for field in ("containers", "initContainers") for item in children(spec, field)}
    known = {text(volume, "name"): volume for volume in children(spec, "volumes")}
    names: set[str] = set()
    for index, item in enumerate(children(spec, "ephemeralContainers")):
        at_item, name = f"{path}[{index}]", text(item, "name")
        if shared.named(faults, f"{at_item}.name", name, formats.dns_label) and name in names | regular:
            faults.duplicate(f"{at_item}.name", name)
        names.add(name)
        if name not in stored:
            _one(faults, at_item, item, regular, known)


def _one(faults: Faults, path: str, item: Object, regular: set[str], known: Volumes) -> None:
    if not text(item, "image"):
        faults.required(f"{path}.image")
    one_of(faults, f"{path}.imagePullPolicy", text(item, "imagePullPolicy"), PULL_POLICIES)
    for field in _NOT_FOR_THEM:
        if item.get(field):
            faults.forbidden(f"{path}.{field}", "cannot be set for an Ephemeral Container")
    target = text(item, "targetContainerName")
    if target and target not in regular:
        faults.not_found(f"{path}.targetContainerName", target)
    variables(faults, path, item, known)
    mounts(faults, path, item, known)
    for index, mount in enumerate(children(item, "volumeMounts")):
        if mount.get("subPath") or mount.get("subPathExpr"):
            faults.forbidden(f"{path}.volumeMounts[{index}].subPath", "cannot be set for an Ephemeral Container")
