"""Values of custom resources against their schema: types, limits, alternatives, lists that are sets or maps.

Unknown fields are judged by `drakkar.apiserver.schema`, rules in CEL by `drakkar.apiserver.custom.rules`.
What an update leaves as it was is not judged again (ratcheting), wherever old and new value belong
together: fields by name, elements of maps by key, elements of lists of type ``map`` by their keys.

Source: validation of custom resources in kube-apiserver 1.37; texts are its.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable
from datetime import date, datetime
from math import isclose
from typing import Any, Final
from urllib.parse import urlsplit

from drakkar.api.errors import FieldError
from drakkar.api.faults import TYPE_INVALID, Faults
from drakkar.apiserver.schema.walk import json_word

Object = dict[str, Any]

#: Stands for an old value that there is not, or that no new value belongs to.
NOTHING: Final = object()
#: Faults that are told of one object; a long list of wrong elements helps nobody.
_MOST_FAULTS = 100


def value_faults(obj: Object, schema: Object, old: Object | None = None) -> list[FieldError]:
    """Faults of a whole object; its metadata is not looked at."""
    faults = Faults()
    _walk(faults, "", obj, schema, NOTHING if old is None else old)
    return faults.found[:_MOST_FAULTS]


def _walk(faults: Faults, path: str, value: Any, schema: Object, old: Any) -> None:
    if len(faults.found) >= _MOST_FAULTS or (old is not NOTHING and value == old):
        return
    if not _is_of_type(faults, path, value, schema):
        return
    if "enum" in schema and not any(_same(value, known) for known in schema["enum"]):
        faults.not_supported(path, value, [known if isinstance(known, str) else str(known) for known in schema["enum"]])
        return
    if isinstance(value, dict):
        _object(faults, path, value, schema, old)
    elif isinstance(value, list):
        _list(faults, path, value, schema, old)
    elif isinstance(value, str):
        _text(faults, path, value, schema)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _number(faults, path, value, schema)
    _alternatives(faults, path, value, schema)


def _same(left: Any, right: Any) -> bool:
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def _is_of_type(faults: Faults, path: str, value: Any, schema: Object) -> bool:
    if value is None:
        if not schema.get("nullable") and schema.get("type"):
            return _wrong_type(faults, path, "null", schema["type"])
        return False
    if schema.get("x-kubernetes-int-or-string"):
        if type(value) in (int, str):
            return True
        return _wrong_type(faults, path, _word(value), "integer,string")
    wanted = schema.get("type")
    if not wanted or _WORDS[wanted](value):
        return True
    return _wrong_type(faults, path, _word(value), wanted)


_WORDS: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: type(value) is int or (type(value) is float and value.is_integer()),
    "number": lambda value: type(value) in (int, float),
}


def _word(value: Any) -> str:
    word = {"bool": "boolean", "number": "number"}.get(json_word(value), json_word(value))
    return "integer" if type(value) is int else word


def _wrong_type(faults: Faults, path: str, found: str, wanted: str) -> bool:
    faults.add(TYPE_INVALID, path, found, f'{path} in body must be of type {wanted}: "{found}"')
    return False


def _object(faults: Faults, path: str, value: Object, schema: Object, old: Any) -> None:
    properties: Object = schema.get("properties") or {}
    more = schema.get("additionalProperties")
    before: Object = old if isinstance(old, dict) else {}
    for name in schema.get("required") or ():
        if name not in value:
            faults.required(f"{path}.{name}" if path else name)
    least, most = schema.get("minProperties"), schema.get("maxProperties")
    if least is not None and len(value) < least:
        faults.invalid(path, value, f"{path} in body should have at least {least} properties")
    if most is not None:
        faults.fits(path, value, most)
    for name, item in value.items():
        below = f"{path}.{name}" if path else name
        if below in ("metadata", "kind", "apiVersion"):
            continue
        known = properties.get(name, more)
        if isinstance(known, dict):
            _walk(faults, below, item, known, before.get(name, NOTHING))


def _list(faults: Faults, path: str, value: list[Any], schema: Object, old: Any) -> None:
    if "minItems" in schema and len(value) < schema["minItems"]:
        faults.invalid(path, value, f"{path} in body should have at least {schema['minItems']} items")
    if "maxItems" in schema and not faults.fits(path, value, schema["maxItems"]):
        return
    kind = schema.get("x-kubernetes-list-type")
    if kind == "set":
        _no_duplicates(faults, path, value, value)
    elif kind == "map":
        keys = map_keys(schema)
        _no_duplicates(faults, path, value, [key_of(item, keys) for item in value])
    items = schema.get("items")
    if isinstance(items, dict):
        before = by_key(old, schema)
        keys = map_keys(schema)
        for index, item in enumerate(value):
            known = before.get(key_of(item, keys), NOTHING) if before else NOTHING
            _walk(faults, f"{path}[{index}]", item, items, known)


def _no_duplicates(faults: Faults, path: str, values: list[Any], keys: list[Any]) -> None:
    seen: set[str] = set()
    for index, key in enumerate(keys):
        text = repr(key)
        if text in seen:
            faults.duplicate(f"{path}[{index}]", key if isinstance(key, str | int) else values[index])
        seen.add(text)


def map_keys(schema: Object) -> tuple[tuple[str, Any], ...]:
    """Keys of a list of type ``map``, with the defaults that stand for absent ones."""
    fields: Object = (schema.get("items") or {}).get("properties") or {}
    return tuple(
        (name, (fields.get(name) or {}).get("default")) for name in schema.get("x-kubernetes-list-map-keys") or ()
    )


def key_of(item: Any, keys: tuple[tuple[str, Any], ...]) -> tuple[Any, ...]:
    """What names an element of such a list."""
    if not isinstance(item, dict):
        return (repr(item),)
    return tuple(repr(item.get(name, default)) for name, default in keys)


def by_key(old: Any, schema: Object) -> dict[tuple[Any, ...], Any]:
    """Elements of an old list by their keys; empty for lists whose elements have none."""
    if schema.get("x-kubernetes-list-type") != "map" or not isinstance(old, list):
        return {}
    keys = map_keys(schema)
    return {key_of(item, keys): item for item in old}


def _number(faults: Faults, path: str, value: float, schema: Object) -> None:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and (value <= low if schema.get("exclusiveMinimum") else value < low):
        word = "greater than" if schema.get("exclusiveMinimum") else "greater than or equal to"
        faults.invalid(path, value, f"{path} in body should be {word} {_plain(low)}")
    if high is not None and (value >= high if schema.get("exclusiveMaximum") else value > high):
        word = "less than" if schema.get("exclusiveMaximum") else "less than or equal to"
        faults.invalid(path, value, f"{path} in body should be {word} {_plain(high)}")
    factor = schema.get("multipleOf")
    if factor and not isclose(value / factor, round(value / factor), abs_tol=1e-9):
        faults.invalid(path, value, f"{path} in body should be a multiple of {_plain(factor)}")
    bits = {"int32": 31, "int64": 63}.get(schema.get("format") or "")
    if bits and schema.get("type") == "integer" and not -(1 << bits) <= value < 1 << bits:
        faults.invalid(path, value, f"{path} in body must be of type {schema['format']}")


def _plain(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


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
    check = _FORMATS.get(schema.get("format") or "")
    if check is not None and not check(value):
        faults.add(TYPE_INVALID, path, value, f'{path} in body must be of type {schema["format"]}: "{value}"')


def _alternatives(faults: Faults, path: str, value: Any, schema: Object) -> None:
    """``allOf``, ``anyOf``, ``oneOf`` and ``not``: all that upstream says is which of them failed."""

    def fits(part: Object) -> bool:
        found = Faults()
        _walk(found, path, value, part, NOTHING)
        return not found.found

    for part in schema.get("allOf") or ():
        _walk(faults, path, value, part, NOTHING)
    choices = schema.get("anyOf")
    if choices and not any(fits(part) for part in choices):
        faults.invalid(path, "", f'"{path}" must validate at least one schema (anyOf)')
    choices = schema.get("oneOf")
    if choices:
        count = sum(fits(part) for part in choices)
        if count != 1:
            found = "Found none valid" if not count else f"Found {count} valid alternatives"
            faults.invalid(path, "", f'"{path}" must validate one and only one schema (oneOf). {found}')
    if schema.get("not") is not None and fits(schema["not"]):
        faults.invalid(path, "", f'"{path}" must not validate the schema (not)')


# Formats. Unknown ones say nothing.

_DURATION = re.compile(
    r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h)(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))*|0"
)
_HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(?:\.[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*"
)
_UUID = re.compile("(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_MAC = re.compile("[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5,7}")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
)


def _parses(parse: Callable[[str], Any]) -> Callable[[str], bool]:
    def check(value: str) -> bool:
        try:
            return parse(value) is not None
        except (ValueError, binascii.Error):
            return False

    return check


def _date(value: str) -> date:
    if len(value) != 10:
        raise ValueError(value)
    return date.fromisoformat(value)


def _time(value: str) -> datetime | None:
    if not _TIME.fullmatch(value):
        return None
    # Fractions of any length; Python reads six digits.
    return datetime.fromisoformat(re.sub(r"\.([0-9]+)", lambda found: "." + found[1][:6].ljust(6, "0"), value.upper()))


def _uri(value: str) -> str | None:
    return urlsplit(value).scheme or None


_FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": _parses(_time),
    "datetime": _parses(_time),
    "date": _parses(_date),
    "duration": lambda value: _DURATION.fullmatch(value) is not None,
    "byte": _parses(lambda value: base64.b64decode(value, validate=True)),
    "ipv4": _parses(ipaddress.IPv4Address),
    "ipv6": _parses(ipaddress.IPv6Address),
    "ip": _parses(ipaddress.ip_address),
    "cidr": _parses(lambda value: ipaddress.ip_network(value, strict=False) if "/" in value else None),
    "uuid": lambda value: _UUID.fullmatch(value) is not None,
    "hostname": lambda value: _HOST.fullmatch(value) is not None,
    "mac": lambda value: _MAC.fullmatch(value) is not None,
    "email": lambda value: _EMAIL.fullmatch(value) is not None,
    "uri": _parses(_uri),
}
