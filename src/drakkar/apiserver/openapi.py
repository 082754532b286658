"""OpenAPI documents, built on request from the schema table and the list of resources.

Clients use them to merge (list and map markers), to explain fields and to see that PATCH
takes ``fieldValidation``. Only what they look at is generated: an operation per verb with
its kind, parameters and media types, and the schemas that are reachable from the kinds.

A document is immutable under its hash, which depends on the served resources and the
schemas only; callers keep documents by hash instead of building them twice.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from drakkar.apiserver.discovery import Resource
from drakkar.apiserver.schema.nodes import Schemas, schemas

#: ``openAPIV3Schema`` of custom kinds by (group, version, kind).
CustomSchemas = Mapping[tuple[str, str, str], dict[str, Any]]

_REF = "#/components/schemas/"
_REFERENCE = re.compile(rb'"#/components/schemas/([^"]+)"')
_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_VERSION = "1.37"

_JSON_TYPES = ("application/json", "application/vnd.kubernetes.protobuf", "application/yaml")
_STREAMS = ("application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch")
_PATCH_TYPES = (
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)

_WRITE_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation")
_DELETE_PARAMETERS = (
    "dryRun",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "orphanDependents",
    "propagationPolicy",
)
_LIST_PARAMETERS = (
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "shardSelector",
    "timeoutSeconds",
    "watch",
)
#: A collection delete takes them too, the ones about watching aside.
_SELECT_PARAMETERS = tuple(name for name in _LIST_PARAMETERS if name not in ("allowWatchBookmarks", "watch"))
_PARAMETER_TYPES = {
    "gracePeriodSeconds": "integer",
    "limit": "integer",
    "timeoutSeconds": "integer",
    "allowWatchBookmarks": "boolean",
    "force": "boolean",
    "ignoreStoreReadErrorWithClusterBreakingPotential": "boolean",
    "orphanDependents": "boolean",
    "sendInitialEvents": "boolean",
    "watch": "boolean",
}


def index(resources: Iterable[Resource], custom: CustomSchemas | None = None) -> dict[str, Any]:
    """``/openapi/v3``: where the document of each group and version is, hash included."""
    by_version: dict[tuple[str, str], list[Resource]] = {}
    for resource in resources:
        by_version.setdefault((resource.group, resource.version), []).append(resource)
    paths: dict[str, Any] = {}
    for (group, version), members in sorted(by_version.items()):
        path = _root(group, version).removeprefix("/")
        digest = document_hash(group, version, members, custom)
        paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


def document_hash(group: str, version: str, resources: Iterable[Resource], custom: CustomSchemas | None = None) -> str:
    """The hash of a document, without building it: upper-case hexadecimal, also its ETag."""
    digest = hashlib.sha512(f"{_VERSION} 1 {group}/{version}".encode())
    for resource in resources:
        if (resource.group, resource.version) == (group, version):
            digest.update(repr(resource).encode())
            schema = (custom or {}).get((group, version, resource.kind))
            if schema is not None:
                digest.update(msgspec.json.encode(schema, order="sorted"))
    return digest.hexdigest().upper()


def document(
    group: str, version: str, resources: Iterable[Resource], custom: CustomSchemas | None = None
) -> bytes | None:
    """The OpenAPI v3 document of a group and version; None when nothing of it is served."""
    members = [resource for resource in resources if (resource.group, resource.version) == (group, version)]
    if not members:
        return None
    table = schemas()
    components = _Components(table)
    paths: dict[str, Any] = {_root(group, version) + "/": {"get": _resource_list(group, version, components)}}
    for resource in members:
        given = (custom or {}).get((group, version, resource.kind))
        if given is not None:
            components.add_custom(resource, given)
        paths.update(_paths(resource, components))
    return b"".join(
        (
            b'{"openapi":"3.0.0","info":{"title":"Kubernetes","version":"',
            _VERSION.encode(),
            b'"},"paths":',
            msgspec.json.encode(dict(sorted(paths.items()))),
            b',"components":{"schemas":',
            components.encode(),
            b',"securitySchemes":{"BearerToken":{"type":"apiKey","name":"authorization","in":"header"}}}}',
        )
    )


def v2(resources: Iterable[Resource], custom: CustomSchemas | None = None) -> bytes:
    """``/openapi/v2`` for old clients: definitions of all served kinds, no paths."""
    components = _Components(schemas())
    for resource in resources:
        given = (custom or {}).get((resource.group, resource.version, resource.kind))
        if given is not None:
            components.add_custom(resource, given)
        components.kind(resource.group, resource.version, resource.kind)
        components.kind(resource.group, resource.version, resource.kind + "List")
    definitions = components.encode().replace(_REF.encode(), b"#/definitions/")
    head = b'{"swagger":"2.0","info":{"title":"Kubernetes","version":"' + _VERSION.encode()
    return head + b'"},"paths":{},"definitions":' + definitions + b"}"


#: The form of ``/openapi/v2`` that kubectl falls back to for kinds it finds in no v3 document.
V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"


def v2_protobuf() -> bytes:
    """``/openapi/v2`` as protobuf, without definitions.

    kubectl asks for it only about kinds that are not served; an empty document makes it go on
    to its own answer, "no matches for kind".
    """

    def text(number: int, content: bytes) -> bytes:
        return bytes((number << 3 | 2, len(content))) + content

    return text(1, b"2.0") + text(2, text(1, b"Kubernetes") + text(2, _VERSION.encode()))


class _Components:
    """The schemas a document needs: those named so far and what they refer to."""

    def __init__(self, table: Schemas) -> None:
        self._table = table
        self._needed: dict[str, None] = {}
        self._custom: dict[str, bytes] = {}
        self._custom_names: dict[tuple[str, str, str], str] = {}

    def named(self, name: str) -> dict[str, str]:
        """A reference to a type by its full name."""
        self._needed.setdefault(name)
        return {"$ref": _REF + name}

    def kind(self, group: str, version: str, kind: str) -> dict[str, str] | None:
        """A reference to a kind, or None when there is no schema for it."""
        name = self._custom_names.get((group, version, kind)) or self._table.name_of_kind(group, version, kind)
        return self.named(name) if name else None

    def add_custom(self, resource: Resource, schema: dict[str, Any]) -> None:
        """Adds a custom kind and its list, with the fields that every object has."""
        group, version, kind = resource.group, resource.version, resource.kind
        base = ".".join([*reversed(group.split(".")), version])
        name, list_name = f"{base}.{kind}", f"{base}.{kind}List"
        text = {"type": "string"}
        full = {
            "type": "object",
            **schema,
            "properties": {
                **schema.get("properties", {}),
                "apiVersion": text,
                "kind": text,
                "metadata": {"allOf": [{"$ref": _REF + _META + "ObjectMeta"}]},
            },
            "x-kubernetes-group-version-kind": [{"group": group, "kind": kind, "version": version}],
        }
        listed = {
            "type": "object",
            "required": ["items"],
            "properties": {
                "apiVersion": text,
                "items": {"type": "array", "items": {"$ref": _REF + name}},
                "kind": text,
                "metadata": {"allOf": [{"$ref": _REF + _META + "ListMeta"}]},
            },
            "x-kubernetes-group-version-kind": [{"group": group, "kind": kind + "List", "version": version}],
        }
        for key, kind_name, value in ((name, kind, full), (list_name, kind + "List", listed)):
            self._custom[key] = msgspec.json.encode(value)
            self._custom_names[(group, version, kind_name)] = key

    def encode(self) -> bytes:
        """The object of schemas, references followed."""
        found: dict[str, bytes] = {}
        todo = list(self._needed)
        while todo:
            name = todo.pop()
            if name in found:
                continue
            raw = found[name] = self._custom.get(name) or self._table.openapi_bytes(name)
            todo += [ref.decode() for ref in _REFERENCE.findall(raw)]
        parts = [msgspec.json.encode(name) + b":" + raw for name, raw in sorted(found.items())]
        return b"{" + b",".join(parts) + b"}"


def _root(group: str, version: str) -> str:
    return f"/apis/{group}/{version}" if group else f"/api/{version}"


def _group_word(group: str) -> str:
    """``rbacAuthorization`` for rbac.authorization.k8s.io: how tags and operations name a group."""
    if not group:
        return "core"
    first, *rest = group.removesuffix(".k8s.io").split(".")
    return first + "".join(part.capitalize() for part in rest)


def _tag(group: str, version: str) -> str:
    return f"{_group_word(group)}_{version}"


def _operation_word(group: str, version: str) -> str:
    word = _group_word(group)
    return word[0].upper() + word[1:] + version.capitalize()


def _response(reference: dict[str, str] | None, media_types: Iterable[str] = _JSON_TYPES) -> dict[str, Any]:
    content = {media: {"schema": reference or {"type": "object"}} for media in media_types}
    return {"description": "OK", "content": content}


def _query(names: Iterable[str]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "query",
            "schema": {"type": _PARAMETER_TYPES.get(name, "string"), "uniqueItems": True},
        }
        for name in names
    ]


def _path_parameters(names: Iterable[str]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "uniqueItems": True}}
        for name in names
    ]


def _resource_list(group: str, version: str, components: _Components) -> dict[str, Any]:
    return {
        "tags": [_tag(group, version)],
        "operationId": f"get{_operation_word(group, version)}APIResources",
        "responses": {"200": _response(components.named(_META + "APIResourceList"))},
    }


def _paths(resource: Resource, components: _Components) -> dict[str, Any]:
    """Path items of a resource and its subresources."""
    root = _root(resource.group, resource.version)
    collection = (
        f"{root}/namespaces/{{namespace}}/{resource.plural}" if resource.namespaced else f"{root}/{resource.plural}"
    )
    scope = ["namespace"] if resource.namespaced else []
    maker = _Operations(resource, components)
    found: dict[str, Any] = {}

    def put(path: str, operations: dict[str, Any], parameters: list[str]) -> None:
        if operations:
            found[path] = {
                **operations,
                "parameters": [*_path_parameters(parameters), *_query(["pretty"])],
            }

    put(collection, maker.collection(), scope)
    put(f"{collection}/{{name}}", maker.item(), ["name", *scope])
    if resource.namespaced and "list" in resource.verbs:
        put(f"{root}/{resource.plural}", {"get": maker.list_all()}, [])
    for sub in resource.subresources:
        operations = maker.subresource(sub.name, sub.kind, sub.group, sub.version, sub.verbs)
        put(f"{collection}/{{name}}/{sub.name}", operations, ["name", *scope])
    return found


class _Operations:
    """Makes the operations of one resource."""

    def __init__(self, resource: Resource, components: _Components) -> None:
        self.resource = resource
        self.components = components
        self.kind = components.kind(resource.group, resource.version, resource.kind)
        self.list_kind = components.kind(resource.group, resource.version, resource.kind + "List")
        self.status = components.named(_META + "Status")
        self.word = _operation_word(resource.group, resource.version)
        self.scope = "Namespaced" if resource.namespaced else ""

    def _make(self, operation: str, action: str, **parts: Any) -> dict[str, Any]:
        resource = self.resource
        made: dict[str, Any] = {"tags": [_tag(resource.group, resource.version)], "operationId": operation}
        kind = parts.pop("kind", (resource.group, resource.version, resource.kind))
        made.update(parts)
        made["x-kubernetes-action"] = action
        made["x-kubernetes-group-version-kind"] = dict(zip(("group", "version", "kind"), kind, strict=True))
        return made

    def _body(self, reference: dict[str, str] | None, media_types: Iterable[str] = ("*/*",)) -> dict[str, Any]:
        content = {media: {"schema": reference or {"type": "object"}} for media in media_types}
        return {"content": content, "required": True}

    def collection(self) -> dict[str, Any]:
        """List, create and delete of many."""
        verbs, kind, word, scope = self.resource.verbs, self.resource.kind, self.word, self.scope
        made: dict[str, Any] = {}
        if "list" in verbs:
            made["get"] = self._make(
                f"list{word}{scope}{kind}",
                "list",
                parameters=_query(_LIST_PARAMETERS),
                responses={"200": _response(self.list_kind, (*_JSON_TYPES, *_STREAMS))},
            )
        if "create" in verbs:
            made["post"] = self._make(
                f"create{word}{scope}{kind}",
                "post",
                parameters=_query(_WRITE_PARAMETERS),
                requestBody=self._body(self.kind),
                responses={code: _response(self.kind) for code in ("200", "201", "202")},
            )
        if "deletecollection" in verbs:
            made["delete"] = self._make(
                f"delete{word}Collection{scope}{kind}",
                "deletecollection",
                parameters=_query([*_DELETE_PARAMETERS, *_SELECT_PARAMETERS]),
                requestBody=self._delete_options(),
                responses={"200": _response(self.status)},
            )
        return made

    def _delete_options(self) -> dict[str, Any]:
        body = self._body(self.components.named(_META + "DeleteOptions"))
        del body["required"]
        return body

    def item(self) -> dict[str, Any]:
        """Get, replace, delete and patch of one."""
        verbs, kind, word, scope = self.resource.verbs, self.resource.kind, self.word, self.scope
        made: dict[str, Any] = {}
        if "get" in verbs:
            made["get"] = self._make(f"read{word}{scope}{kind}", "get", responses={"200": _response(self.kind)})
        if "update" in verbs:
            made["put"] = self._make(
                f"replace{word}{scope}{kind}",
                "put",
                parameters=_query(_WRITE_PARAMETERS),
                requestBody=self._body(self.kind),
                responses={code: _response(self.kind) for code in ("200", "201")},
            )
        if "delete" in verbs:
            made["delete"] = self._make(
                f"delete{word}{scope}{kind}",
                "delete",
                parameters=_query(_DELETE_PARAMETERS),
                requestBody=self._delete_options(),
                responses={code: _response(self.status) for code in ("200", "202")},
            )
        if "patch" in verbs:
            made["patch"] = self._patch(f"patch{word}{scope}{kind}", self.kind)
        return made

    def _patch(self, operation: str, reference: dict[str, str] | None, **parts: Any) -> dict[str, Any]:
        # Custom kinds have no Go type, hence no strategic merge.
        types = _PATCH_TYPES if self.resource_is_built_in() else _PATCH_TYPES[:3]
        return self._make(
            operation,
            "patch",
            parameters=_query([*_WRITE_PARAMETERS, "force"]),
            requestBody=self._body(self.components.named(_META + "Patch"), types),
            responses={code: _response(reference) for code in ("200", "201")},
            **parts,
        )

    def resource_is_built_in(self) -> bool:
        """Whether the kind is in the table of built-in types."""
        resource = self.resource
        return schemas().name_of_kind(resource.group, resource.version, resource.kind) is not None

    def list_all(self) -> dict[str, Any]:
        """List over all namespaces."""
        return self._make(
            f"list{self.word}{self.resource.kind}ForAllNamespaces",
            "list",
            responses={"200": _response(self.list_kind, (*_JSON_TYPES, *_STREAMS))},
        )

    def subresource(self, name: str, kind: str, group: str, version: str, verbs: Iterable[str]) -> dict[str, Any]:
        """The verbs of a subresource, in terms of the kind that it speaks."""
        reference = self.components.kind(group, version, kind)
        tail = f"{self.word}{self.scope}{self.resource.kind}{name.capitalize()}"
        about = (group, version, kind)
        made: dict[str, Any] = {}
        for verb in verbs:
            match verb:
                case "get":
                    made["get"] = self._make(f"read{tail}", "get", kind=about, responses={"200": _response(reference)})
                case "create":
                    made["post"] = self._make(
                        f"create{tail}",
                        "post",
                        kind=about,
                        parameters=_query(_WRITE_PARAMETERS),
                        requestBody=self._body(reference),
                        responses={code: _response(reference) for code in ("200", "201", "202")},
                    )
                case "update":
                    made["put"] = self._make(
                        f"replace{tail}",
                        "put",
                        kind=about,
                        parameters=_query(_WRITE_PARAMETERS),
                        requestBody=self._body(reference),
                        responses={code: _response(reference) for code in ("200", "201")},
                    )
                case "patch":
                    made["patch"] = self._patch(f"patch{tail}", reference, kind=about)
                case _:
                    # Proxies also take delete; no client looks for it here.
                    continue
        return made
