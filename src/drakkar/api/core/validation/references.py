"""Validation of references from a pod to its own fields and resources, as variables or as files.

Source: API reference of ObjectFieldSelector and ResourceFieldSelector; answers of kube-apiserver 1.37.
"""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Final

from drakkar.api import formats
from drakkar.api.errors import ParseError
from drakkar.api.faults import Faults
from drakkar.api.meta import Object
from drakkar.api.quantity import Quantity
from drakkar.api.tree import text

#: Fields of a pod that have a name for references; which of them may be used depends on the place.
_FIELDS: Final = frozenset((
    "metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName",
    "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs",
    "status.phase", "status.podIP", "status.podIPs",
))  # fmt: skip
_SUBSCRIPT: Final = re.compile(r"(?P<field>.*)\['(?P<key>.*)'\]", re.DOTALL)
_RESOURCES: Final = tuple(
    f"{part}.{name}" for part in ("limits", "requests") for name in ("cpu", "ephemeral-storage", "memory")
)
_HUGE_PAGES: Final = ("limits.hugepages-", "requests.hugepages-")
_BYTES: Final = ("1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei")
_BYTES_TEXT: Final = f"only divisor's values {', '.join(_BYTES)} are supported with the"


def field_ref(faults: Faults, path: str, reference: Object, allowed: Set[str]) -> None:
    """A ``fieldRef``; ``allowed`` are the whole fields that may stand there. Labels and annotations may be picked."""
    spelled, version = text(reference, "fieldPath"), text(reference, "apiVersion")
    if not version:
        faults.required(f"{path}.apiVersion")
        return
    if not spelled:
        faults.required(f"{path}.fieldPath")
        return
    picked = _SUBSCRIPT.fullmatch(spelled)
    problem = ""
    if version != "v1":
        problem = f"unsupported pod version: {version}"
    elif picked is not None and picked["field"] not in ("metadata.annotations", "metadata.labels"):
        problem = f"field label does not support subscript: {spelled}"
    elif picked is None and spelled not in _FIELDS:
        problem = f"field label not supported: {spelled}"
    if problem:
        faults.invalid(f"{path}.fieldPath", spelled, f"error converting fieldPath: {problem}")
    elif picked is not None:
        # Keys of annotations are the same whatever their case.
        key = picked["key"].lower() if picked["field"] == "metadata.annotations" else picked["key"]
        for message in formats.qualified_name(key):
            faults.invalid(path, picked["key"], message)
    elif spelled not in allowed:
        faults.not_supported(f"{path}.fieldPath", spelled, allowed)


def resource_ref(faults: Faults, path: str, reference: Object, *, needs_container: bool) -> None:
    """A ``resourceFieldRef``; files say of which container they speak."""
    resource = text(reference, "resource")
    if needs_container and not reference.get("containerName"):
        faults.required(f"{path}.containerName")
    elif not resource:
        faults.required(f"{path}.resource")
    elif resource not in _RESOURCES and not resource.startswith(_HUGE_PAGES):
        faults.not_supported(f"{path}.resource", resource, _RESOURCES)
    _divisor(faults, f"{path}.divisor", resource, reference.get("divisor"))


def _divisor(faults: Faults, path: str, resource: str, spelled: object) -> None:
    if spelled is None:
        return
    try:
        divisor = Quantity.parse(str(spelled))
    except ParseError as error:
        faults.invalid(path, spelled, str(error))
        return
    if divisor.sign() == 0:
        return
    name = resource.partition(".")[2]
    if name == "cpu" and divisor.canonical() not in ("1m", "1"):
        faults.invalid(path, resource, "only divisor's values 1m and 1 are supported with the cpu resource")
    elif divisor.canonical() not in _BYTES:
        kind = {"memory": "memory", "ephemeral-storage": "local ephemeral storage"}.get(name, "")
        if name.startswith("hugepages-"):
            kind = "hugepages"
        if kind:
            faults.invalid(path, resource, f"{_BYTES_TEXT} {kind} resource")
