"""Custom resources: a definition that is written is served at once, one that goes takes its objects along.

Versions differ in their schema only (conversion ``None``); objects are kept in the storage
version. Definitions that other programs stored are served again after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drakkar.api.errors import FieldError
from drakkar.apiserver.cache import Change
from drakkar.apiserver.catalog import Catalog, Served
from drakkar.apiserver.discovery import Resource, Subresource
from drakkar.apiserver.schema import SchemaNode, custom_schema, schemas

Object = dict[str, Any]
Key = tuple[str, str, str]

DEFINITIONS = "/apiextensions.k8s.io/customresourcedefinitions/"
_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_STATUS_VERBS = ("get", "patch", "update")


def complete(definition: Object, now: str) -> list[FieldError]:
    """Fills in names and status of a definition before it is stored; the faults that forbid it."""
    spec: Object = definition.get("spec") or {}
    names: Object = spec.get("names") or {}
    versions: list[Object] = spec.get("versions") or []
    faults: list[FieldError] = []
    expected = f"{names.get('plural', '')}.{spec.get('group', '')}"
    name = definition["metadata"].get("name", "")
    if name != expected:
        detail = f'must be spec.names.plural+"."+spec.group, which is {expected!r}'
        faults.append(FieldError(type="FieldValueInvalid", field="metadata.name", value=name, detail=detail))
    for field in ("plural", "kind"):
        if not names.get(field):
            faults.append(FieldError(type="FieldValueRequired", field=f"spec.names.{field}"))
    if sum(bool(version.get("storage")) for version in versions) != 1:
        detail = "must have exactly one version marked as storage version"
        faults.append(FieldError(type="FieldValueInvalid", field="spec.versions", value=len(versions), detail=detail))
    for index, version in enumerate(versions):
        if not (version.get("schema") or {}).get("openAPIV3Schema"):
            detail = "schemas are required"
            path = f"spec.versions[{index}].schema.openAPIV3Schema"
            faults.append(FieldError(type="FieldValueRequired", field=path, detail=detail))
    if faults:
        return faults
    names.setdefault("singular", names["kind"].lower())
    names.setdefault("listKind", names["kind"] + "List")
    if not spec.get("conversion"):
        spec["conversion"] = {"strategy": "None"}
    status: Object = definition.get("status") or {}
    storage = next(version["name"] for version in versions if version.get("storage"))
    before: list[str] = status.get("storedVersions") or []
    conditions: list[Object] = status.get("conditions") or [
        {"type": "NamesAccepted", "reason": "NoConflicts", "message": "no conflicts found"},
        {"type": "Established", "reason": "InitialNamesAccepted", "message": "the initial names have been accepted"},
    ]
    definition["status"] = {
        "conditions": [{"status": "True", "lastTransitionTime": now, **condition} for condition in conditions],
        "acceptedNames": dict(names),
        "storedVersions": before if storage in before else [*before, storage],
    }
    return []


class CustomResources:
    """What the stored definitions say."""

    def __init__(self, catalog: Catalog):
        self._catalog = catalog
        #: ``openAPIV3Schema`` by (group, version, kind).
        self.schemas: dict[Key, Object] = {}
        self._nodes: dict[Key, SchemaNode] = {}
        self._columns: dict[Key, list[Object] | None] = {}
        self._printers: dict[Key, Any] = {}

    def node(self, served: Served) -> SchemaNode | None:
        """The compiled schema of a served kind, custom or built in."""
        key = (served.group, served.version, served.kind)
        if key not in self.schemas:
            return schemas().for_kind(*key)
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = custom_schema(self.schemas[key], namespaced=served.namespaced)
        return found

    def schema(self, served: Served) -> Object | None:
        """The schema of a custom kind as its definition has it."""
        return self.schemas.get((served.group, served.version, served.kind))

    def printer(self, served: Served) -> Any | None:
        """How rows of a custom kind are printed."""
        key = (served.group, served.version, served.kind)
        if key not in self._columns:
            return None
        if key not in self._printers:
            from drakkar.apiserver.printers import custom_printer

            self._printers[key] = custom_printer(self._columns[key])
        return self._printers[key]

    def changed(self, change: Change, definition: Object) -> None:
        """Takes over a definition that was committed."""
        spec: Object = definition["spec"]
        group, names = spec["group"], spec["names"]
        for version in [key[1] for key in self.schemas if key[0] == group and key[2] == names["kind"]]:
            key = (group, version, names["kind"])
            for table in (self.schemas, self._nodes, self._columns, self._printers):
                table.pop(key, None)
        self._catalog.remove(group, names["plural"], forget=change.type == "DELETED")
        if change.type != "DELETED":
            self.serve(definition)

    def serve(self, definition: Object) -> None:
        """Serves all versions of a definition that are to be served, the storage version first."""
        spec: Object = definition["spec"]
        for version in sorted(spec["versions"], key=lambda version: not version.get("storage")):
            resource = _resource(spec, version)
            key = (resource.group, resource.version, resource.kind)
            self.schemas[key] = version["schema"]["openAPIV3Schema"]
            self._columns[key] = version.get("additionalPrinterColumns")
            fields = {
                path.removeprefix("."): tuple(path.removeprefix(".").split("."))
                for path in (field["jsonPath"] for field in version.get("selectableFields") or ())
            }
            self._catalog.add_custom(resource, fields, served=bool(version.get("served")))


def _resource(spec: Object, version: Mapping[str, Any]) -> Resource:
    names, group = spec["names"], spec["group"]
    subresources: Object = version.get("subresources") or {}
    found: list[Subresource] = []
    if "status" in subresources:
        found.append(Subresource("status", names["kind"], group, version["name"], _STATUS_VERBS))
    if "scale" in subresources:
        found.append(Subresource("scale", "Scale", "autoscaling", "v1", _STATUS_VERBS))
    return Resource(
        group=group,
        version=version["name"],
        kind=names["kind"],
        plural=names["plural"],
        singular=names.get("singular") or names["kind"].lower(),
        namespaced=spec.get("scope") == "Namespaced",
        verbs=_VERBS,
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        subresources=tuple(found),
    )
