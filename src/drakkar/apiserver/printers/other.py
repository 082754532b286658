"""Cells of kinds that are only stored: access control, storage classes, custom resource definitions."""

from __future__ import annotations

from typing import Any

from drakkar.apiserver.printers.text import age

Object = dict[str, Any]


def generic(obj: Object, now: float) -> list[Any]:
    """Name and age."""
    meta = obj["metadata"]
    return [meta["name"], age(meta.get("creationTimestamp"), now)]


def dated(obj: Object, now: float) -> list[Any]:
    """Name and time of creation, which clients turn into an age themselves."""
    meta = obj["metadata"]
    return [meta["name"], meta.get("creationTimestamp", "")]


def role_binding(obj: Object, now: float) -> list[Any]:
    """Role, age; subjects by kind when wide."""
    role = obj.get("roleRef") or {}
    subjects: dict[str, list[str]] = {"User": [], "Group": [], "ServiceAccount": []}
    for item in obj.get("subjects") or ():
        name = item.get("name", "")
        if item.get("kind") == "ServiceAccount":
            name = f"{item.get('namespace', '')}/{name}"
        subjects.setdefault(item.get("kind", ""), []).append(name)
    return [
        obj["metadata"]["name"],
        f"{role.get('kind', '')}/{role.get('name', '')}",
        age(obj["metadata"].get("creationTimestamp"), now),
        *(", ".join(subjects[kind]) for kind in ("User", "Group", "ServiceAccount")),
    ]


def storage_class(obj: Object, now: float) -> list[Any]:
    """Provisioner, policies, age; the default class is marked."""
    meta = obj["metadata"]
    default = (meta.get("annotations") or {}).get("storageclass.kubernetes.io/is-default-class") == "true"
    return [
        meta["name"] + (" (default)" if default else ""),
        obj.get("provisioner", ""),
        obj.get("reclaimPolicy", "Delete"),
        obj.get("volumeBindingMode", "Immediate"),
        "true" if obj.get("allowVolumeExpansion") else "false",
        age(meta.get("creationTimestamp"), now),
    ]


def runtime_class(obj: Object, now: float) -> list[Any]:
    """Handler and age."""
    meta = obj["metadata"]
    return [meta["name"], obj.get("handler", ""), age(meta.get("creationTimestamp"), now)]


def definition(obj: Object, now: float) -> list[Any]:
    """A custom resource definition."""
    spec, status = obj.get("spec", {}), obj.get("status") or {}
    names = spec.get("names") or {}
    established = any(
        item["type"] == "Established" and item["status"] == "True" for item in status.get("conditions") or ()
    )
    return [
        obj["metadata"]["name"],
        spec.get("scope", ""),
        ", ".join(item["name"] for item in spec.get("versions") or ()),
        obj["metadata"].get("creationTimestamp", ""),
        spec.get("group", ""),
        names.get("kind", ""),
        ", ".join(names.get("shortNames") or ()),
        established,
    ]
