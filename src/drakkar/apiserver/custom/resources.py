"""Custom resources: a definition that is written is served at once, one that goes takes its objects along.

Versions differ in their schema only (conversion ``None``); objects are kept in the storage
version. Definitions that other programs stored are served again after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drakkar.api.errors import FieldError
from drakkar.apiserver import status
from drakkar.apiserver.cache import Change
from drakkar.apiserver.catalog import Catalog, Served, Stored
from drakkar.apiserver.custom.rules import RuleTree, compile_rules, has_rules, rule_faults
from drakkar.apiserver.custom.values import value_faults
from drakkar.apiserver.discovery import Resource, Subresource
from drakkar.apiserver.scale import BUILT_IN, ScalePaths
from drakkar.apiserver.schema import SchemaNode, apply_schema_defaults, custom_schema, prune, schemas
from drakkar.apiserver.status import StatusError

Object = dict[str, Any]
Key = tuple[str, str, str]

DEFINITIONS = "/apiextensions.k8s.io/customresourcedefinitions/"
_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_STATUS_VERBS = ("get", "patch", "update")


@dataclass(frozen=True, slots=True)
class Coercion:
    """Prunes and completes an object of a version whose schema differs from the stored one's."""

    own: SchemaNode
    hub: SchemaNode

    def to_own(self, obj: Object) -> Object:
        """A stored object as its version wants it, in place."""
        return _coerced(obj, self.own)

    def to_hub(self, obj: Object) -> Object:
        """The way back, in place."""
        return _coerced(obj, self.hub)


def _coerced(obj: Object, node: SchemaNode) -> Object:
    meta = obj.pop("metadata")
    prune(obj, node)
    apply_schema_defaults(obj, node)
    return {"kind": obj.pop("kind", ""), "apiVersion": obj.pop("apiVersion", ""), "metadata": meta, **obj}


class CustomResources:
    """What the stored definitions say."""

    def __init__(self, catalog: Catalog):
        self._catalog = catalog
        #: ``openAPIV3Schema`` by (group, version, kind).
        self.schemas: dict[Key, Object] = {}
        self._nodes: dict[Key, SchemaNode] = {}
        self._columns: dict[Key, list[Object] | None] = {}
        self._printers: dict[Key, Any] = {}
        self._rules: dict[Key, RuleTree] = {}
        self._scales: dict[Key, ScalePaths] = {}
        #: Versions that only a webhook could make from what is stored, with the stored version.
        self._foreign: dict[Key, str] = {}

    def node(self, served: Served) -> SchemaNode | None:
        """The compiled schema of a served kind, custom or built in."""
        key = (served.group, served.version, served.kind)
        return self._node_of(served, served.version) if key in self.schemas else schemas().for_kind(*key)

    def scale_paths(self, served: Served) -> ScalePaths:
        """Where replicas and selector of a kind with a ``scale`` subresource stand."""
        return self._scales.get((served.group, served.version, served.kind), BUILT_IN)

    def check_convertible(self, served: Served) -> None:
        """StatusError 501 for a version that only a conversion webhook could make."""
        stored = self._foreign.get((served.group, served.version, served.kind))
        if stored is not None:
            text = (
                f"{served.kind} in version {served.version} would have to be made by a conversion webhook, which this "
                f"server does not call; use the stored version {stored}"
            )
            raise StatusError(status.status_error(501, "NotImplemented", text))

    def coercion(self, served: Served, hub: str) -> Coercion | None:
        """What brings objects into the shape of a version and back; None where its schema is the stored one's."""
        key, kept = (served.group, served.version, served.kind), (served.group, hub, served.kind)
        # A version that went since the start is still the one that objects are kept in; it has no schema any more.
        if key not in self.schemas or kept not in self.schemas or self.schemas[kept] == self.schemas[key]:
            return None
        return Coercion(self._node_of(served, served.version), self._node_of(served, hub))

    def hub_node(self, served: Served, hub: str) -> SchemaNode | None:
        """The schema of a custom kind in the version in which it is stored."""
        for version in (hub, served.version):
            if (served.group, version, served.kind) in self.schemas:
                return self._node_of(served, version)
        return None

    def _node_of(self, served: Served, version: str) -> SchemaNode:
        key = (served.group, version, served.kind)
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = custom_schema(self.schemas[key], namespaced=served.namespaced)
        return found

    def type_faults(self, served: Served, obj: Object) -> list[FieldError]:
        """What the schema of a custom kind has against values whose type is wrong."""
        schema = self.schemas.get((served.group, served.version, served.kind))
        return value_faults(obj, schema) if schema is not None else []

    def faults(self, served: Served, obj: Object, old: Object | None) -> list[FieldError]:
        """What schema and rules of a custom kind have against an object; rules count once the schema is content."""
        key = (served.group, served.version, served.kind)
        schema = self.schemas.get(key)
        if schema is None:
            return []
        found = value_faults(obj, schema, old)
        if found:
            return found
        rules = self._rules.get(key)
        if rules is None:
            rules = self._rules[key] = compile_rules(schema) if has_rules(schema) else RuleTree(None, {})
        return rule_faults(rules, obj, old) if rules else []

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
            for table in (
                self.schemas,
                self._nodes,
                self._columns,
                self._printers,
                self._rules,
                self._foreign,
                self._scales,
            ):
                table.pop(key, None)
        self._catalog.remove(group, names["plural"], forget=change.type == "DELETED")
        if change.type != "DELETED":
            self.serve(definition)

    def serve(self, definition: Object) -> None:
        """Serves all versions of a definition that are to be served, the storage version first."""
        spec: Object = definition["spec"]
        by_webhook = (spec.get("conversion") or {}).get("strategy") == "Webhook"
        stored = next(version["name"] for version in spec["versions"] if version.get("storage"))
        for version in sorted(spec["versions"], key=lambda version: not version.get("storage")):
            resource = _resource(spec, version)
            key = (resource.group, resource.version, resource.kind)
            self.schemas[key] = version["schema"]["openAPIV3Schema"]
            self._columns[key] = version.get("additionalPrinterColumns")
            scale = (version.get("subresources") or {}).get("scale")
            if scale:
                self._scales[key] = ScalePaths.of(scale)
            if by_webhook and version["name"] != stored:
                self._foreign[key] = stored
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


def stored_version(definition: Object, stored: Stored) -> Served:
    """The version in which a definition's objects are kept, whether it is served or not."""
    spec: Object = definition["spec"]
    version = next((one for one in spec["versions"] if one["name"] == stored.version), spec["versions"][0])
    resource = _resource(spec, version)
    return Served(
        stored.group,
        stored.version,
        stored.plural,
        stored.kind,
        stored.namespaced,
        frozenset(resource.verbs),
        {sub.name: sub for sub in resource.subresources},
        stored,
        resource,
    )
