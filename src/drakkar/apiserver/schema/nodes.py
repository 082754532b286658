"""Schemas as linked nodes, compiled from OpenAPI on first use."""

from __future__ import annotations

import gzip
from functools import cache
from importlib import resources
from typing import Any

import msgspec

_REF_PREFIX = "#/components/schemas/"

_META = "io.k8s.apimachinery.pkg.apis.meta.v1."

#: Types whose JSON is a scalar or free form although Go has a struct for them.
_SPECIAL = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "quantity",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "int-or-string",
    _META + "Time": "time",
    _META + "MicroTime": "microtime",
    _META + "FieldsV1": "any",
    _META + "Patch": "any",
    "io.k8s.apimachinery.pkg.runtime.RawExtension": "any",
}


class SchemaNode:
    """The schema of one value.

    ``kind`` is one of ``struct`` (fixed fields), ``map``, ``list``, ``string``, ``integer``,
    ``number``, ``boolean``, ``quantity``, ``int-or-string``, ``time``, ``microtime`` and
    ``any`` (nothing known: kept as it is).
    """

    __slots__ = (
        "_fields",
        "_raw",
        "_table",
        "additional",
        "default",
        "defaulted",
        "embedded",
        "enum",
        "exact",
        "format",
        "has_default",
        "items",
        "kind",
        "list_type",
        "map_keys",
        "map_type",
        "merge_key",
        "name",
        "nullable",
        "patch_strategy",
        "preserve",
        "required",
        "zeros",
    )

    def __init__(self, kind: str, name: str = "") -> None:
        self.kind = kind
        #: Full name of the type (``io.k8s.api.core.v1.PodSpec``), empty for anonymous ones.
        self.name = name
        #: Schema of the elements of a list.
        self.items: SchemaNode | None = None
        #: Schema of the values of a map, and of unnamed fields of a custom struct.
        self.additional: SchemaNode | None = None
        self.default: Any = None
        self.has_default = False
        self.required: tuple[str, ...] = ()
        self.enum: tuple[Any, ...] = ()
        self.format = ""
        #: Python type that needs no further look: str or bool; None where the value matters.
        self.exact: type | None = {"string": str, "boolean": bool}.get(kind)
        #: ``atomic``, ``set``, ``map`` or empty (as OpenAPI marks lists; empty means atomic).
        self.list_type = ""
        #: Fields that name an element of a list of type ``map``.
        self.map_keys: tuple[str, ...] = ()
        #: ``atomic``, ``granular`` or empty (granular).
        self.map_type = ""
        #: For strategic merge patches: ``merge``, ``replace``, ``retainKeys``.
        self.patch_strategy: frozenset[str] = frozenset()
        self.merge_key = ""
        #: A custom struct that keeps fields it does not name.
        self.preserve = False
        #: Whether null is a value of its own, which is kept (custom types only).
        self.nullable = False
        #: A custom struct that holds a whole object of some kind.
        self.embedded = False
        self._fields: dict[str, SchemaNode] | None = None
        self._raw: dict[str, Any] | None = None
        self._table: Schemas | None = None
        #: Computed by the walker: does anything below have a default?
        self.defaulted: bool | None = None
        #: Computed by the walker: required scalars of this struct with their zeros.
        self.zeros: dict[str, Any] | None = None

    @property
    def fields(self) -> dict[str, SchemaNode]:
        """Fields of a struct by JSON name; empty for other kinds."""
        found = self._fields
        if found is None:
            raw, table = self._raw, self._table
            found = self._fields = (
                {name: table.compile(schema) for name, schema in raw.items()} if raw and table is not None else {}
            )
            if self.embedded and table is not None:
                found.update(_object_fields(table))
            self._raw = None
        return found

    @property
    def go_name(self) -> str:
        """Last part of the type's name, as Go messages spell it: ``PodSpec``."""
        return self.name.rpartition(".")[2]

    def go_type(self) -> str:
        """The Go type in decoding errors: ``v1.PodSpec``, ``[]v1.Container``, ``map[string]string``, ``int32``."""
        match self.kind:
            case "struct":
                return ".".join(self.name.split(".")[-2:]) if self.name else "map[string]interface {}"
            case "list":
                return "[]" + (self.items.go_type() if self.items else "interface {}")
            case "map":
                return "map[string]" + (self.additional.go_type() if self.additional else "interface {}")
            case "integer":
                return self.format or "int64"
            case "number":
                return "float64"
            case "boolean":
                return "bool"
            case "string":
                return "[]uint8" if self.format == "byte" else "string"
            case "quantity":
                return "resource.Quantity"
            case "int-or-string":
                return "intstr.IntOrString"
            case "time":
                return "v1.Time"
            case "microtime":
                return "v1.MicroTime"
            case _:
                return "interface {}"


class _GroupVersionKind(msgspec.Struct):
    group: str
    version: str
    kind: str


class _Marks(msgspec.Struct):
    """The only part of a schema that the index of kinds needs."""

    kinds: list[_GroupVersionKind] = msgspec.field(name="x-kubernetes-group-version-kind", default_factory=list)


class _Table(msgspec.Struct):
    schemas: dict[str, msgspec.Raw]


class _MarkTable(msgspec.Struct):
    schemas: dict[str, _Marks]


class Schemas:
    """The built-in types. Reading costs some milliseconds and 400 kB, each type its own on first use."""

    def __init__(self, data: bytes) -> None:
        self._raw = msgspec.json.decode(data, type=_Table).schemas
        self._names: dict[tuple[str, str, str], str] = {}
        for name, marks in msgspec.json.decode(data, type=_MarkTable).schemas.items():
            for gvk in marks.kinds:
                self._names[(gvk.group, gvk.version, gvk.kind)] = name
        self._nodes: dict[str, SchemaNode] = {}

    def for_kind(self, group: str, version: str, kind: str) -> SchemaNode | None:
        """Schema of a kind, or None when it is not built in."""
        name = self._names.get((group, version, kind))
        return self.named(name) if name else None

    def name_of_kind(self, group: str, version: str, kind: str) -> str | None:
        """Full type name of a kind, or None."""
        return self._names.get((group, version, kind))

    def names(self) -> tuple[str, ...]:
        """All type names."""
        return tuple(self._raw)

    def openapi(self, name: str) -> dict[str, Any]:
        """The OpenAPI schema of a type as it was published; KeyError when there is none."""
        return msgspec.json.decode(self._raw[name])

    def openapi_bytes(self, name: str) -> bytes:
        """The same, not decoded."""
        return bytes(self._raw[name])

    def named(self, name: str) -> SchemaNode:
        """Schema of a type by its full name; KeyError when there is none."""
        node = self._nodes.get(name)
        if node is None:
            special = _SPECIAL.get(name)
            if special:
                node = SchemaNode(special, name)
                self._nodes[name] = node
            else:
                # Registered before its fields are compiled: types may contain themselves.
                schema = self.openapi(name)
                node = SchemaNode(_kind_of(schema), name)
                self._nodes[name] = node
                self._fill(node, schema)
        return node

    def compile(self, schema: dict[str, Any]) -> SchemaNode:
        """Node of an OpenAPI schema; a bare reference shares the node of its type."""
        ref = schema.get("$ref")
        if ref is not None:
            return self.named(ref.removeprefix(_REF_PREFIX))
        wrapped = schema.get("allOf")
        if wrapped and "$ref" in wrapped[0]:
            target = self.named(wrapped[0]["$ref"].removeprefix(_REF_PREFIX))
            if len(schema) == 1:
                return target
            node = _copy(target)
        else:
            node = SchemaNode(_kind_of(schema))
        self._fill(node, schema)
        return node

    def _fill(self, node: SchemaNode, schema: dict[str, Any]) -> None:
        if "properties" in schema:
            node._raw = schema["properties"]
        node._table = self
        if "items" in schema:
            node.items = self.compile(schema["items"])
        additional = schema.get("additionalProperties")
        if isinstance(additional, dict):
            node.additional = self.compile(additional)
        if "default" in schema:
            node.default, node.has_default = schema["default"], True
        if "required" in schema:
            node.required = tuple(schema["required"])
        if "enum" in schema:
            node.enum = tuple(schema["enum"])
        node.format = schema.get("format", node.format)
        if node.format == "byte":
            node.exact = None
        node.list_type = schema.get("x-kubernetes-list-type", node.list_type)
        node.map_keys = tuple(schema.get("x-kubernetes-list-map-keys", node.map_keys))
        node.map_type = schema.get("x-kubernetes-map-type", node.map_type)
        strategy = schema.get("x-kubernetes-patch-strategy")
        if strategy:
            node.patch_strategy = frozenset(strategy.split(","))
        node.merge_key = schema.get("x-kubernetes-patch-merge-key", node.merge_key)
        node.preserve = bool(schema.get("x-kubernetes-preserve-unknown-fields", node.preserve))
        node.nullable = bool(schema.get("nullable", node.nullable))
        node.embedded = bool(schema.get("x-kubernetes-embedded-resource", node.embedded))


def _kind_of(schema: dict[str, Any]) -> str:
    """Kind of the node for an OpenAPI schema without reference."""
    if schema.get("x-kubernetes-int-or-string"):
        return "int-or-string"
    match schema.get("type"):
        case "object":
            if "properties" in schema:
                return "struct"
            if schema.get("x-kubernetes-preserve-unknown-fields") and "additionalProperties" not in schema:
                return "any"
            # A built-in type without fields is an empty struct, a map has a schema for its values.
            return "map" if "additionalProperties" in schema else "struct"
        case "array":
            return "list"
        case "string" | "integer" | "number" | "boolean" as scalar:
            return scalar
        case _:
            return "struct" if "properties" in schema else "any"


def _copy(node: SchemaNode) -> SchemaNode:
    """A node that can differ from its type in default and markers; the fields are shared lazily."""
    copy = SchemaNode(node.kind, node.name)
    for slot in SchemaNode.__slots__:
        setattr(copy, slot, getattr(node, slot))
    return copy


def custom_schema(openapi: dict[str, Any], *, namespaced: bool = True) -> SchemaNode:
    """Schema of a custom resource from ``openAPIV3Schema``; metadata is the built-in ObjectMeta."""
    table = schemas()
    node = table.compile(openapi)
    if node.kind == "any":
        node = SchemaNode("struct")
        node.preserve = True
    node._fields = {**node.fields, **_object_fields(table)}
    return node


def _object_fields(table: Schemas) -> dict[str, SchemaNode]:
    return {
        "apiVersion": SchemaNode("string"),
        "kind": SchemaNode("string"),
        "metadata": table.named(_META + "ObjectMeta"),
    }


@cache
def schemas() -> Schemas:
    """The table of built-in types, read once."""
    packed = resources.files("drakkar.data").joinpath("schemas.json.gz").read_bytes()
    return Schemas(gzip.decompress(packed))
