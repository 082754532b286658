"""CustomResourceDefinitions: whether one is good, and what the server adds to it.

Source: apiextensions.k8s.io/v1; paths, causes and texts are kube-apiserver's.
"""

from __future__ import annotations

import re
from typing import Any

from drakkar.api import formats
from drakkar.api.errors import FieldError
from drakkar.api.faults import Faults
from drakkar.api.tree import at, child, children, text, texts
from drakkar.apiserver.custom.structural import schema_faults

Object = dict[str, Any]

_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
_COLUMN_FORMATS = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")
_MAX_SELECTABLE = 8
#: ``.spec.a.b``: all that paths of scale and of selectable fields may be.
_SIMPLE = re.compile(r"(?:\.[A-Za-z_][A-Za-z0-9_-]*)+")
_LABEL = re.compile("[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_RULE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
    "character, and end with an alphanumeric character"
)


def complete(definition: Object, now: str) -> None:
    """Fills in names, conversion and status of a definition before it is validated."""
    spec: Object = definition.get("spec") or {}
    names: Object = spec.get("names") or {}
    versions: list[Object] = spec.get("versions") or []
    if names.get("kind"):
        if not names.get("singular"):
            names["singular"] = names["kind"].lower()
        if not names.get("listKind"):
            names["listKind"] = names["kind"] + "List"
    if not spec.get("conversion"):
        spec["conversion"] = {"strategy": "None"}
    service = child(spec, "conversion", "webhook", "clientConfig", "service")
    if service and service.get("port") is None:
        service["port"] = 443
    for version in versions:
        _default_columns(version)
    status: Object = definition.get("status") or {}
    storage = next((version.get("name") for version in versions if version.get("storage")), None)
    before: list[str] = status.get("storedVersions") or []
    conditions: list[Object] = status.get("conditions") or [
        {"type": "NamesAccepted", "reason": "NoConflicts", "message": "no conflicts found"},
        {"type": "Established", "reason": "InitialNamesAccepted", "message": "the initial names have been accepted"},
    ]
    definition["status"] = {
        "conditions": [{"status": "True", "lastTransitionTime": now, **condition} for condition in conditions],
        "acceptedNames": dict(names),
        "storedVersions": before if storage is None or storage in before else [*before, storage],
    }


def _default_columns(version: Object) -> None:
    """Members that the wire always has."""
    for column in children(version, "additionalPrinterColumns"):
        for field in ("name", "type", "jsonPath"):
            column.setdefault(field, "")


def definition_faults(definition: Object, old: Object | None) -> list[FieldError]:
    """Faults of a definition beyond its metadata; schemas that an update leaves alone are not judged again."""
    faults = Faults()
    spec, before = child(definition, "spec"), child(old, "spec")
    _names(faults, definition, spec)
    if text(spec, "scope") not in ("Cluster", "Namespaced"):
        if not text(spec, "scope"):
            faults.required("spec.scope")
        else:
            faults.not_supported("spec.scope", spec["scope"], ("Cluster", "Namespaced"))
    if spec.get("preserveUnknownFields"):
        detail = "must be false; use x-kubernetes-preserve-unknown-fields in the schema instead"
        faults.invalid("spec.preserveUnknownFields", True, detail)
    _conversion(faults, child(spec, "conversion"))
    versions = children(spec, "versions")
    storing = [version for version in versions if version.get("storage")]
    if not versions:
        faults.required("spec.versions", "must have exactly one version marked as storage version")
    elif len(storing) != 1:
        faults.invalid("spec.versions", len(versions), "must have exactly one version marked as storage version")
    seen: set[str] = set()
    earlier = {text(version, "name"): version for version in children(before, "versions")}
    for index, version in enumerate(versions):
        path, name = f"spec.versions[{index}]", text(version, "name")
        if not _LABEL.fullmatch(name):
            faults.invalid(f"{path}.name", name, _LABEL_RULE)
        if name in seen:
            faults.invalid(f"{path}.name", name, "must contain unique version names")
        seen.add(name)
        _version(faults, path, version, earlier.get(name))
    for index, name in enumerate(texts(definition, "status", "storedVersions")):
        if name not in seen:
            detail = (
                f"missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions"
                " until a storage migration ensures no data remains persisted in it and removes it from"
                " status.storedVersions"
            )
            faults.invalid(f"status.storedVersions[{index}]", name, detail)
    if old is not None:
        for way in (("scope",), ("names", "kind"), ("names", "plural"), ("group",)):
            if at(spec, *way) != at(before, *way):
                faults.invalid(f"spec.{'.'.join(way)}", at(spec, *way), "field is immutable")
    return faults.found


def _names(faults: Faults, definition: Object, spec: Object) -> None:
    names, group = child(spec, "names"), text(spec, "group")
    expected = f"{text(names, 'plural')}.{group}"
    name = text(definition, "metadata", "name")
    if name != expected:
        faults.invalid("metadata.name", name, f'must be spec.names.plural+"."+spec.group, which is "{expected}"')
    if not group:
        faults.required("spec.group")
    elif faults.check("spec.group", group, formats.dns_subdomain) and "." not in group:
        faults.invalid("spec.group", group, "should be a domain with at least one dot")
    for field in ("plural", "singular", "kind", "listKind"):
        value = text(names, field)
        if not value:
            if field in ("plural", "kind"):
                faults.required(f"spec.names.{field}")
        elif not _LABEL.fullmatch(value.lower() if field in ("kind", "listKind") else value):
            faults.invalid(f"spec.names.{field}", value, _LABEL_RULE)
    for field in ("shortNames", "categories"):
        for index, value in enumerate(texts(names, field)):
            if not _LABEL.fullmatch(value):
                faults.invalid(f"spec.names.{field}[{index}]", value, _LABEL_RULE)
    if text(names, "kind") and text(names, "kind") == text(names, "listKind"):
        faults.invalid("spec.names.listKind", names["listKind"], "kind and listKind may not be the same")


def _conversion(faults: Faults, conversion: Object) -> None:
    strategy, webhook = text(conversion, "strategy"), conversion.get("webhook")
    if strategy not in ("None", "Webhook"):
        faults.not_supported("spec.conversion.strategy", strategy, ("None", "Webhook"))
    elif strategy == "None" and webhook is not None:
        faults.forbidden("spec.conversion.webhook", 'should not be set when strategy is not set to "Webhook"')
    elif strategy == "Webhook":
        if webhook is None:
            faults.required("spec.conversion.webhook.clientConfig", 'required when strategy is set to "Webhook"')
            return
        versions = texts(conversion, "webhook", "conversionReviewVersions")
        if not versions:
            faults.required("spec.conversion.webhook.conversionReviewVersions")
        elif not {"v1", "v1beta1"} & set(versions):
            detail = "must include at least one of v1, v1beta1"
            faults.invalid("spec.conversion.webhook.conversionReviewVersions", versions, detail)


def _version(faults: Faults, path: str, version: Object, old: Object | None) -> None:
    schema = at(version, "schema", "openAPIV3Schema")
    where = f"{path}.schema.openAPIV3Schema"
    if not schema:
        faults.required(where, "schemas are required")
        return
    schema_faults(faults, where, schema, old=at(old, "schema", "openAPIV3Schema"))
    for index, column in enumerate(children(version, "additionalPrinterColumns")):
        _column(faults, f"{path}.additionalPrinterColumns[{index}]", column)
    scale = at(version, "subresources", "scale")
    if scale is not None:
        for field, root, needed in (
            ("specReplicasPath", ".spec.", True),
            ("statusReplicasPath", ".status.", True),
            ("labelSelectorPath", (".spec.", ".status."), False),
        ):
            value, place = text(scale, field), f"{path}.subresources.scale.{field}"
            if not value:
                if needed:
                    faults.required(place)
            elif not _SIMPLE.fullmatch(value):
                faults.invalid(place, value, "should be a simple json path without array indexes")
            elif not value.startswith(root):
                allowed = root if isinstance(root, str) else " or ".join(root)
                faults.invalid(place, value, f"should be a json path under {allowed}")
    _selectable(faults, path, version, schema)


def _column(faults: Faults, path: str, column: Object) -> None:
    if not text(column, "name"):
        faults.required(f"{path}.name")
    kind = text(column, "type")
    if not kind:
        faults.required(f"{path}.type", f"must be one of {','.join(sorted(_COLUMN_TYPES))}")
    elif kind not in _COLUMN_TYPES:
        faults.invalid(f"{path}.type", kind, f"must be one of {','.join(sorted(_COLUMN_TYPES))}")
    if text(column, "format") and column["format"] not in _COLUMN_FORMATS:
        faults.invalid(f"{path}.format", column["format"], f"must be one of {','.join(_COLUMN_FORMATS)}")
    json_path = text(column, "jsonPath")
    if not json_path:
        faults.required(f"{path}.jsonPath")
    elif not json_path.startswith((".", "[")) or json_path.count("[") != json_path.count("]"):
        faults.invalid(f"{path}.jsonPath", json_path, "is an invalid path: it has to begin with a dot or a bracket")


def _selectable(faults: Faults, path: str, version: Object, schema: Object) -> None:
    fields = children(version, "selectableFields")
    if not faults.fits(f"{path}.selectableFields", fields, _MAX_SELECTABLE):
        return
    seen: set[str] = set()
    for index, field in enumerate(fields):
        place, json_path = f"{path}.selectableFields[{index}].jsonPath", text(field, "jsonPath")
        if not json_path:
            faults.required(place)
            continue
        if not _SIMPLE.fullmatch(json_path):
            faults.invalid(place, json_path, "must be a simple path of fields")
            continue
        if json_path.startswith(".metadata."):
            faults.invalid(place, json_path, "must not point to fields in metadata")
        else:
            found: Any = schema
            for step in json_path[1:].split("."):
                found = ((found or {}).get("properties") or {}).get(step)
            if (found or {}).get("type") not in ("string", "boolean", "integer"):
                faults.invalid(place, json_path, "must point to a field of type string, boolean or integer")
        if json_path in seen:
            faults.duplicate(place, json_path)
        seen.add(json_path)
