"""Values of custom resources against the limits of their schema.

Shape and unknown fields are judged by `drakkar.apiserver.schema`; this walk adds what only
custom schemas say: required fields, enumerations, ranges, lengths and patterns.
Rules in CEL (``x-kubernetes-validations``) are not evaluated.
"""

from __future__ import annotations

from typing import Any

from drakkar.api.errors import FieldError
from drakkar.api.faults import Faults

Object = dict[str, Any]


def structural_faults(obj: Object, schema: Object) -> list[FieldError]:
    """Faults of a whole object; its metadata is not looked at."""
    faults = Faults()
    _walk(faults, "", obj, schema)
    return faults.found


def _walk(faults: Faults, path: str, value: Any, schema: Object) -> None:
    if "enum" in schema and value not in schema["enum"]:
        faults.not_supported(path, value, [str(known) for known in schema["enum"]])
        return
    if isinstance(value, dict):
        _object(faults, path, value, schema)
    elif isinstance(value, list):
        if "minItems" in schema and len(value) < schema["minItems"]:
            faults.invalid(path, value, f"{path} in body should have at least {schema['minItems']} items")
        if "maxItems" in schema:
            faults.fits(path, value, schema["maxItems"])
        items = schema.get("items")
        if isinstance(items, dict):
            for index, item in enumerate(value):
                _walk(faults, f"{path}[{index}]", item, items)
    elif isinstance(value, str):
        _text(faults, path, value, schema)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high = schema.get("minimum"), schema.get("maximum")
        if low is not None and (value <= low if schema.get("exclusiveMinimum") else value < low):
            word = "greater than" if schema.get("exclusiveMinimum") else "greater than or equal to"
            faults.invalid(path, value, f"{path} in body should be {word} {low}")
        if high is not None and (value >= high if schema.get("exclusiveMaximum") else value > high):
            word = "less than" if schema.get("exclusiveMaximum") else "less than or equal to"
            faults.invalid(path, value, f"{path} in body should be {word} {high}")


def _object(faults: Faults, path: str, value: Object, schema: Object) -> None:
    properties: Object = schema.get("properties") or {}
    more = schema.get("additionalProperties")
    for name in schema.get("required") or ():
        if value.get(name) is None:
            faults.required(f"{path}.{name}" if path else name)
    for name, item in value.items():
        below = f"{path}.{name}" if path else name
        if below in ("metadata", "kind", "apiVersion") or item is None:
            continue
        known = properties.get(name, more)
        if isinstance(known, dict):
            _walk(faults, below, item, known)


def _text(faults: Faults, path: str, value: str, schema: Object) -> None:
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        faults.too_long(path, schema["maxLength"])
    if "minLength" in schema and len(value) < schema["minLength"]:
        faults.invalid(path, value, f"{path} in body should be at least {schema['minLength']} chars long")
    pattern = schema.get("pattern")
    if pattern:
        import re2

        if re2.search(pattern, value) is None:
            faults.invalid(path, value, f"{path} in body should match '{pattern}'")
