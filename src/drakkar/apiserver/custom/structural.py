"""Structural schemas: what may stand where in ``openAPIV3Schema``.

A schema is structural when every value has one type, said in one place: then unknown fields
can be pruned and defaults be filled in.

Source: KEP-1979, validation of apiextensions.k8s.io/v1; texts are kube-apiserver's.
"""

from __future__ import annotations

from typing import Any

from drakkar.api.faults import TYPE_INVALID, Faults
from drakkar.api.tree import child, children, text, texts
from drakkar.apiserver.custom.rules import KEY, REASONS, compile_rules, has_rules, rule_text
from drakkar.apiserver.custom.values import value_faults
from drakkar.apiserver.expressions import MAX_TEXT

Object = dict[str, Any]

_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_UNSUPPORTED = ("$ref", "$schema", "id", "definitions", "dependencies", "patternProperties", "additionalItems")
#: What may not stand inside allOf, anyOf, oneOf and not.
_ONLY_OUTSIDE = (
    "type",
    "default",
    "nullable",
    "title",
    "description",
    "additionalProperties",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
)
_JUNCTORS = ("allOf", "anyOf", "oneOf")
#: Levels of a schema; deeper ones exist for no purpose but harm.
MAX_DEPTH = 64


def schema_faults(faults: Faults, path: str, schema: Object, *, old: Object | None) -> None:
    """Faults of the schema of one version; ``old`` is what it was before an update."""
    if schema == old:
        return
    before = len(faults.found)
    if not _shaped(faults, path, schema):
        return
    if _deeper(schema, MAX_DEPTH):
        faults.invalid(path, None, f"must not be nested deeper than {MAX_DEPTH} levels")
        return
    if not text(schema, "type"):
        faults.required(f"{path}.type", "must not be empty at the root")
    elif schema["type"] != "object":
        faults.invalid(f"{path}.type", schema["type"], "must be object at the root")
    if schema.get("additionalProperties"):
        faults.forbidden(f"{path}.additionalProperties", "must not be used at the root")
    if schema.get("nullable"):
        faults.forbidden(f"{path}.nullable", "nullable cannot be true at the root")
    _metadata(faults, path, child(schema, "properties", "metadata"))
    _structure(faults, path, schema, root=True)
    if len(faults.found) > before or not has_rules(schema):
        return
    if rule_text(schema) > MAX_TEXT:
        faults.forbidden(path, f"all rules of a version together may not have more than {MAX_TEXT} characters")
    else:
        compile_rules(schema, faults, path)


_TEXTS = (
    "type", "format", "pattern", "title", "description", "x-kubernetes-list-type", "x-kubernetes-map-type",
)  # fmt: skip
_LISTS_OF_TEXTS = ("required", "x-kubernetes-list-map-keys")
_FLAGS = (
    "nullable", "uniqueItems", "exclusiveMinimum", "exclusiveMaximum", "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource", "x-kubernetes-int-or-string",
)  # fmt: skip
_NUMBERS = ("minimum", "maximum", "multipleOf")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_RULE_TEXTS = ("rule", "message", "messageExpression", "reason", "fieldPath")


def _shaped(faults: Faults, path: str, schema: Any) -> bool:
    """Whether every keyword has a value of its type; the built-in schema of definitions leaves most of that open."""
    before = len(faults.found)
    pending: list[tuple[str, Any]] = [(path, schema)]
    while pending and len(faults.found) - before < 10:
        where, part = pending.pop()
        if not isinstance(part, dict):
            faults.add(TYPE_INVALID, where, part, "must be a schema")
            continue
        for names, kind, word in (
            (_TEXTS, str, "a string"),
            (_FLAGS, bool, "a boolean"),
            (_NUMBERS, (int, float), "a number"),
            (_COUNTS, int, "a number"),
            ((*_LISTS_OF_TEXTS, "enum", KEY, *_JUNCTORS), list, "a list"),
            (("properties",), dict, "an object"),
        ):
            for name in names:
                value = part.get(name)
                if value is None:
                    part.pop(name, None)
                elif not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
                    faults.add(TYPE_INVALID, f"{where}.{name}", value, f"must be {word}")
        if len(faults.found) > before:
            continue
        for name in _LISTS_OF_TEXTS:
            if not all(isinstance(item, str) for item in part.get(name) or ()):
                faults.add(TYPE_INVALID, f"{where}.{name}", part[name], "must be a list of strings")
        for index, rule in enumerate(part.get(KEY) or ()):
            texts_ = isinstance(rule, dict) and all(isinstance(rule.get(name, ""), str) for name in _RULE_TEXTS)
            if not texts_:
                faults.add(TYPE_INVALID, f"{where}.{KEY}[{index}]", rule, "must be a rule")
        for name, below in (part.get("properties") or {}).items():
            pending.append((f"{where}.properties[{name}]", below))
        for junctor in _JUNCTORS:
            pending += [(f"{where}.{junctor}[{i}]", below) for i, below in enumerate(part.get(junctor) or ())]
        for name in ("not", "items"):
            if part.get(name) is None:
                part.pop(name, None)
            elif not isinstance(part[name], list):
                pending.append((f"{where}.{name}", part[name]))
        more = part.get("additionalProperties")
        if more is None:
            part.pop("additionalProperties", None)
        elif not isinstance(more, bool):
            pending.append((f"{where}.additionalProperties", more))
    return len(faults.found) == before


def _deeper(schema: Any, left: int) -> bool:
    if not isinstance(schema, dict):
        return False
    if not left:
        return True
    parts = [*(schema.get("properties") or {}).values(), schema.get("items"), schema.get("additionalProperties")]
    for junctor in _JUNCTORS:
        parts += schema.get(junctor) or []
    return any(_deeper(part, left - 1) for part in [*parts, schema.get("not")])


def _metadata(faults: Faults, path: str, metadata: Object) -> None:
    if set(child(metadata, "properties")) - {"name", "generateName"} or "default" in metadata:
        faults.forbidden(
            f"{path}.properties[metadata]",
            "must not specify anything other than name and generateName, but metadata is implicitly specified",
        )


def _structure(faults: Faults, path: str, schema: Object, *, root: bool = False) -> None:
    _own(faults, path, schema, root)
    for junctor in _JUNCTORS:
        for index, part in enumerate(children(schema, junctor)):
            _inside(faults, f"{path}.{junctor}[{index}]", part, schema)
    if schema.get("not") is not None:
        _inside(faults, f"{path}.not", child(schema, "not"), schema)
    properties = child(schema, "properties")
    for name, part in properties.items():
        where = f"{path}.properties[{name}]"
        if root and name in ("metadata", "kind", "apiVersion"):
            continue
        _typed(faults, where, part, "must not be empty for specified object fields")
        _structure(faults, where, part)
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        _typed(faults, f"{path}.additionalProperties", more, "must not be empty for specified object fields")
        _structure(faults, f"{path}.additionalProperties", more)
    items = schema.get("items")
    if isinstance(items, list):
        faults.forbidden(f"{path}.items", "items must be a schema object and not an array")
    elif isinstance(items, dict):
        _typed(faults, f"{path}.items", items, "must not be empty for specified array items")
        _structure(faults, f"{path}.items", items)


def _typed(faults: Faults, path: str, schema: Object, why: str) -> None:
    free = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if not text(schema, "type") and not free:
        faults.required(f"{path}.type", why)


def _unsupported(faults: Faults, path: str, schema: Object) -> None:
    for field in _UNSUPPORTED:
        if schema.get(field) is not None:
            faults.forbidden(f"{path}.{field}", f"{field} is not supported")


def _own(faults: Faults, path: str, schema: Object, root: bool) -> None:
    """What a schema says about its own value."""
    _unsupported(faults, path, schema)
    kind = text(schema, "type")
    if kind and kind not in _TYPES:
        faults.not_supported(f"{path}.type", kind, _TYPES)
        return
    more = schema.get("additionalProperties")
    if more is not None and schema.get("properties"):
        faults.forbidden(f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive")
    if more is False:
        faults.forbidden(f"{path}.additionalProperties", "additionalProperties cannot be set to false")
    if kind == "array" and schema.get("items") is None:
        faults.required(f"{path}.items", "must be specified")
    if schema.get("uniqueItems"):
        faults.forbidden(
            f"{path}.uniqueItems", "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        )
    _extensions(faults, path, schema, kind)
    _pattern(faults, path, schema)
    for index, rule in enumerate(children(schema, KEY)):
        _rule(faults, f"{path}.{KEY}[{index}]", rule, schema)
    if "default" in schema and not root:
        _default(faults, path, schema)


def _extensions(faults: Faults, path: str, schema: Object, kind: str) -> None:
    if schema.get("x-kubernetes-preserve-unknown-fields") is False:
        faults.invalid(f"{path}.x-kubernetes-preserve-unknown-fields", False, "must be true or undefined")
    if schema.get("x-kubernetes-int-or-string") and kind:
        faults.invalid(f"{path}.type", kind, "must be empty if x-kubernetes-int-or-string is true")
    if schema.get("x-kubernetes-embedded-resource"):
        if kind != "object":
            faults.invalid(f"{path}.type", kind, "must be object if x-kubernetes-embedded-resource is true")
        if not schema.get("properties") and not schema.get("x-kubernetes-preserve-unknown-fields"):
            faults.required(
                f"{path}.properties",
                "must not be empty if x-kubernetes-embedded-resource is true without "
                "x-kubernetes-preserve-unknown-fields",
            )
    map_type = schema.get("x-kubernetes-map-type")
    if map_type is not None and map_type not in ("atomic", "granular"):
        faults.not_supported(f"{path}.x-kubernetes-map-type", map_type, ("atomic", "granular"))
    if map_type is not None and kind != "object":
        faults.invalid(f"{path}.type", kind, "must be object if x-kubernetes-map-type is specified")
    _list_type(faults, path, schema, kind)


def _list_type(faults: Faults, path: str, schema: Object, kind: str) -> None:
    list_type, keys = schema.get("x-kubernetes-list-type"), texts(schema, "x-kubernetes-list-map-keys")
    if list_type is not None and list_type not in ("atomic", "map", "set"):
        faults.not_supported(f"{path}.x-kubernetes-list-type", list_type, ("atomic", "map", "set"))
        return
    if list_type is not None and kind != "array":
        faults.invalid(f"{path}.type", kind, "must be array if x-kubernetes-list-type is specified")
        return
    items: Object = schema["items"] if isinstance(schema.get("items"), dict) else {}
    if list_type == "set" and items.get("nullable"):
        faults.forbidden(f"{path}.items.nullable", "cannot be nullable when x-kubernetes-list-type is set")
    if list_type == "set" and (
        (items.get("type") == "object" and items.get("x-kubernetes-map-type") != "atomic")
        or (items.get("type") == "array" and items.get("x-kubernetes-list-type") not in (None, "atomic"))
    ):
        faults.invalid(
            f"{path}.items.x-kubernetes-map-type",
            items.get("x-kubernetes-map-type"),
            "must be atomic as item of a list with x-kubernetes-list-type=set",
        )
    if list_type != "map":
        if keys:
            faults.forbidden(
                f"{path}.x-kubernetes-list-map-keys", "must not be set unless x-kubernetes-list-type is map"
            )
        return
    if not keys:
        faults.required(f"{path}.x-kubernetes-list-map-keys", "must not be empty if x-kubernetes-list-type is map")
    if items.get("type") != "object":
        faults.invalid(
            f"{path}.items.type", items.get("type"), "must be object if parent array's x-kubernetes-list-type is map"
        )
        return
    faults.unique(f"{path}.x-kubernetes-list-map-keys", keys)
    for index, key in enumerate(keys):
        found = child(items, "properties", key)
        if not found:
            detail = "entries must all be names of item properties"
            faults.invalid(f"{path}.x-kubernetes-list-map-keys[{index}]", key, detail)
        elif found.get("type") in ("array", "object"):
            detail = "property must be a scalar, because it is in parent's x-kubernetes-list-map-keys"
            faults.invalid(f"{path}.items.properties[{key}].type", found["type"], detail)
        elif key not in texts(items, "required") and "default" not in found:
            faults.required(
                f"{path}.items.properties[{key}].default",
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
            )


def _pattern(faults: Faults, path: str, schema: Object) -> None:
    pattern = schema.get("pattern")
    if not pattern:
        return
    import re2

    try:
        re2.compile(pattern)
    except re2.error as error:
        detail = f"must be a valid regular expression, but isn't: {error}"
        faults.invalid(f"{path}.pattern", pattern, detail)


def _rule(faults: Faults, path: str, rule: Object, schema: Object) -> None:
    if not text(rule, "rule").strip():
        faults.required(f"{path}.rule", "rule is not specified")
    message = text(rule, "message")
    if message and not message.strip():
        faults.invalid(f"{path}.message", message, "message must be non-empty if specified")
    elif "\n" in message:
        faults.invalid(f"{path}.message", message, "message must not contain line breaks")
    elif not message and "\n" in text(rule, "rule").strip():
        faults.required(f"{path}.message", "message must be specified if rule contains line breaks")
    if rule.get("reason") is not None and rule["reason"] not in REASONS:
        faults.not_supported(f"{path}.reason", rule["reason"], REASONS)
    if rule.get("fieldPath") is not None:
        _field_path(faults, f"{path}.fieldPath", rule["fieldPath"], schema)


def _field_path(faults: Faults, path: str, spelled: str, schema: Object) -> None:
    """A rule's ``fieldPath`` leads through fields, and keys of maps in brackets, that the schema has."""
    import re

    parts = re.findall(r"\.([A-Za-z0-9_$-]+)|\['((?:[^'\\]|\\.)*)'\]", spelled)
    whole = "".join(f".{name}" if name else f"['{key}']" for name, key in parts)
    at_: Any = schema
    for name, key in parts:
        properties = (at_ or {}).get("properties") or {}
        more = (at_ or {}).get("additionalProperties")
        at_ = properties.get(name or key) or (more if key and isinstance(more, dict) else None)
    if whole != spelled or not parts or at_ is None:
        faults.invalid(path, spelled, "fieldPath must be a valid path to a field of the schema")


def _default(faults: Faults, path: str, schema: Object) -> None:
    value = schema["default"]
    wrapped = {"type": "object", "properties": {"value": schema}}
    for fault in value_faults({"value": value}, wrapped):
        faults.invalid(f"{path}.default{fault.field.removeprefix('value')}", value, fault.detail or "is not valid")
    unknown = _unknown(value, schema)
    if unknown:
        faults.invalid(f"{path}.default", value, f"must not have unknown fields, has {unknown}")


def _unknown(value: Any, schema: Object) -> str:
    """The first field of a default that pruning would take away."""
    if isinstance(value, dict):
        properties, more = child(schema, "properties"), schema.get("additionalProperties")
        for name, item in value.items():
            part = properties.get(name) or (more if isinstance(more, dict) else None)
            if part is None:
                if schema.get("x-kubernetes-preserve-unknown-fields") or more is True:
                    continue
                return name
            below = _unknown(item, part)
            if below:
                return f"{name}.{below}"
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        return next((found for item in value if (found := _unknown(item, schema["items"]))), "")
    return ""


def _inside(faults: Faults, path: str, part: Object, outer: Object) -> None:
    """A part of a junctor may only narrow what is said outside."""
    _unsupported(faults, path, part)
    for field in _ONLY_OUTSIDE:
        int_or_string = outer.get("x-kubernetes-int-or-string") and field == "type"
        if part.get(field) is not None and not int_or_string:
            faults.forbidden(f"{path}.{field}", "must be empty to be structural")
    if part.get(KEY):
        faults.forbidden(f"{path}.{KEY}", "must be empty to be structural")
    _pattern(faults, path, part)
    properties = child(outer, "properties")
    for name, below in child(part, "properties").items():
        known = properties.get(name)
        if known is None and not isinstance(outer.get("additionalProperties"), dict):
            faults.required(
                _outside(path, f"properties[{name}]"), f"because it is defined in {path}.properties[{name}]"
            )
        _inside(faults, f"{path}.properties[{name}]", below, known or {})
    if isinstance(part.get("items"), dict):
        _inside(faults, f"{path}.items", part["items"], outer["items"] if isinstance(outer.get("items"), dict) else {})
    for junctor in _JUNCTORS:
        for index, below in enumerate(children(part, junctor)):
            _inside(faults, f"{path}.{junctor}[{index}]", below, outer)
    if part.get("not") is not None:
        _inside(faults, f"{path}.not", child(part, "not"), outer)


def _outside(path: str, name: str) -> str:
    """Where the structural part would have to say what a junctor speaks of."""
    import re

    return re.sub(r"\.(?:allOf|anyOf|oneOf)\[[0-9]+\]|\.not\b", "", path) + f".{name}"
