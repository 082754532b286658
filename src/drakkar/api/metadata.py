"""Validation of ``metadata``, the same for every kind.

Source: spec/apiserver.md (identity, finalizers, update rules), spec/api.md section 2.
"""

from __future__ import annotations

from typing import Final

from drakkar.api import formats
from drakkar.api.errors import FieldError
from drakkar.api.faults import Faults
from drakkar.api.meta import Object
from drakkar.api.names import FOREGROUND_DELETION, NAMESPACE_FINALIZER, ORPHAN_DEPENDENTS
from drakkar.api.rules import same_meaning
from drakkar.api.tree import child, children, text, texts

ANNOTATIONS_MAX: Final = 256 * 1024
_PLAIN_FINALIZERS: Final = frozenset((NAMESPACE_FINALIZER, ORPHAN_DEPENDENTS, FOREGROUND_DELETION))
_IMMUTABLE: Final = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")


def validate_metadata(
    obj: Object, *, namespaced: bool, name_format: formats.Check = formats.dns_subdomain
) -> list[FieldError]:
    """Faults of ``obj["metadata"]`` on create."""
    faults = Faults()
    check_metadata(faults, child(obj, "metadata"), namespaced, name_format, "metadata")
    return faults.found


def validate_metadata_update(new: Object, old: Object, *, namespaced: bool) -> list[FieldError]:
    """Faults of the metadata of an update; the name was checked when the object was created."""
    faults = Faults()
    check_metadata_update(faults, child(new, "metadata"), child(old, "metadata"), namespaced)
    return faults.found


def check_metadata(faults: Faults, meta: Object, namespaced: bool, name_format: formats.Check, path: str) -> None:
    """As :func:`validate_metadata`, into ``faults``."""
    name, prefix, namespace = text(meta, "name"), text(meta, "generateName"), text(meta, "namespace")
    if prefix:
        # The server appends to it, so that a trailing dash is fine.
        faults.check(f"{path}.generateName", prefix, lambda value: name_format(_as_name(value)))
    if name:
        faults.check(f"{path}.name", name, name_format)
    elif not prefix:
        faults.required(f"{path}.name", "name or generateName is required")
    if namespaced:
        if not namespace:
            faults.required(f"{path}.namespace")
        else:
            faults.check(f"{path}.namespace", namespace, formats.dns_label)
    elif namespace:
        faults.forbidden(f"{path}.namespace", "not allowed on this type")
    _check_rest(faults, meta, path)


def _as_name(prefix: str) -> str:
    return prefix[:-1] + "a" if prefix.endswith("-") and len(prefix) > 1 else prefix


def check_metadata_update(faults: Faults, new: Object, old: Object, namespaced: bool) -> None:
    """As :func:`validate_metadata_update`, into ``faults``."""
    for field in _IMMUTABLE:
        if (new.get(field) or None) != (old.get(field) or None) and (field != "namespace" or namespaced):
            faults.invalid(f"metadata.{field}", new.get(field), "field is immutable")
    if (new.get("generation") or 0) < (old.get("generation") or 0):
        faults.invalid("metadata.generation", new.get("generation"), "must not be decremented")
    if old.get("deletionTimestamp"):
        before = frozenset(texts(old, "finalizers"))
        added = [name for name in texts(new, "finalizers") if name not in before]
        if added:
            listed = ", ".join(f'"{name}"' for name in added)
            faults.forbidden(
                "metadata.finalizers",
                "no new finalizers can be added if the object is being deleted, "
                f"found new finalizers []string{{{listed}}}",
            )
    if not same_meaning(new, old):
        _check_rest(faults, new, "metadata")


def _check_rest(faults: Faults, meta: Object, path: str) -> None:
    if (meta.get("generation") or 0) < 0:
        faults.invalid(f"{path}.generation", meta["generation"], "must be greater than or equal to 0")
    check_labels(faults, child(meta, "labels"), f"{path}.labels")
    check_annotations(faults, child(meta, "annotations"), f"{path}.annotations")
    _check_owners(faults, children(meta, "ownerReferences"), f"{path}.ownerReferences")
    finalizers = texts(meta, "finalizers")
    for finalizer in finalizers:
        if faults.check(f"{path}.finalizers", finalizer, formats.qualified_name) and (
            "/" not in finalizer and finalizer not in _PLAIN_FINALIZERS
        ):
            faults.invalid(
                f"{path}.finalizers",
                finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            )
    if ORPHAN_DEPENDENTS in finalizers and FOREGROUND_DELETION in finalizers:
        faults.invalid(
            f"{path}.finalizers",
            finalizers,
            f"finalizer {ORPHAN_DEPENDENTS} and {FOREGROUND_DELETION} cannot be both set",
        )


def check_labels(faults: Faults, labels: Object, path: str) -> None:
    """Keys and values of a label map."""
    for key, value in sorted(labels.items()):
        faults.check(path, key, formats.qualified_name)
        faults.check(path, value, formats.label_value)


def check_annotations(faults: Faults, annotations: Object, path: str) -> None:
    """Keys and total size of annotations."""
    size = 0
    for key, value in sorted(annotations.items()):
        faults.check(path, key, lambda name: formats.qualified_name(name.lower()))
        size += len(key.encode()) + len(value.encode())
    if size > ANNOTATIONS_MAX:
        faults.too_long(path, ANNOTATIONS_MAX)


def _check_owners(faults: Faults, owners: list[Object], path: str) -> None:
    controllers = 0
    for index, owner in enumerate(owners):
        for field, message in (
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ):
            if not owner.get(field):
                faults.invalid(f"{path}[{index}].{field}", owner.get(field, ""), message)
        if owner.get("apiVersion") == "v1" and owner.get("kind") == "Event":
            faults.invalid(f"{path}[{index}]", owner, "Event is disallowed from being an owner")
        controllers += owner.get("controller") is True
    if controllers > 1:
        faults.invalid(path, owners, "Only one reference can have Controller set to true")
