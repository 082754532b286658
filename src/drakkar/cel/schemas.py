"""OpenAPI schemas as CEL types: what ``self`` is in the validation rules of a CustomResourceDefinition.

A schema gives a static type, bounds on sizes for the cost estimate, and the way from JSON to
values: texts with a format become times, durations and bytes, whole numbers of a ``number`` become
doubles. Field names that are no names of CEL are escaped (``a-b`` is ``a__dash__b``).

Source: apiextensions.k8s.io/v1 JSONSchemaProps; rules as of Kubernetes 1.37.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from typing import Any, Final, cast

from drakkar.api.tree import at, child, texts
from drakkar.cel import types
from drakkar.cel.cost import Limit
from drakkar.cel.errors import EvaluationError
from drakkar.cel.parser import RESERVED
from drakkar.cel.timelib import parse_duration, parse_timestamp
from drakkar.cel.types import ListType, StructType, Type
from drakkar.cel.values import Timestamp, is_map, kind_of, same

#: Largest request that a server takes, in bytes; nothing in an object is larger.
MAX_REQUEST: Final = 3 * 1024 * 1024
#: Least length in JSON of a text in quotes, a bool, a number, a duration, a date and a time.
_TEXT, _BOOL, _NUMBER, _DURATION, _DATE, _TIME = 2, 4, 1, 3, 12, 21
#: Greatest length of a duration or time in JSON.
_LONG_TIME: Final = 32

JsonObject = Mapping[str, Any]
Convert = Callable[[Any], Any]


class Schema:
    """A schema prepared for expressions. ``smallest`` is the least length in JSON of a value, in bytes."""

    __slots__ = ("convert", "limit", "smallest", "type")

    def __init__(self, type_: Type, limit: Limit, smallest: int, convert: Convert | None) -> None:
        self.type = type_
        self.limit = limit
        self.smallest = smallest
        #: None where JSON is the value already.
        self.convert = convert

    @property
    def max_cardinality(self) -> int:
        """How many such values one request can hold at most, for rules below lists and maps without a bound."""
        return MAX_REQUEST // (self.smallest + 1)

    def value(self, json: Any) -> Any:
        """JSON as an expression sees it; raises :class:`EvaluationError` where it does not suit the schema."""
        return json if self.convert is None or json is None else self.convert(json)


def schema_of(schema: JsonObject, *, root: bool = False, name: str = "self") -> Schema | None:
    """What expressions see of values of the schema; None for values of which they may see nothing.

    ``root`` is for whole objects: they have ``apiVersion``, ``kind`` and the names in ``metadata`` in any case.
    """
    if schema.get("x-kubernetes-int-or-string"):
        length = schema.get("maxLength")
        size = MAX_REQUEST - 2 if length is None else max(length, 0) * 4
        return Schema(types.DYN, Limit(size), 1, None)
    if root or schema.get("x-kubernetes-embedded-resource"):
        schema = _with_metadata(schema)
    match schema.get("type"):
        case "array":
            return _array(schema, name)
        case "object":
            return _object(schema, name)
        case "string":
            return _string(schema)
        case "boolean":
            return Schema(types.BOOL, Limit(0), _BOOL, None)
        case "integer":
            return Schema(types.INT, Limit(0), _NUMBER, None)
        case "number":
            return Schema(types.DOUBLE, Limit(0), _NUMBER, _to_double)
        case _:
            return None


def _with_metadata(schema: JsonObject) -> JsonObject:
    text = {"type": "string"}
    properties = child(schema, "properties")
    metadata = child(properties, "metadata", "properties")
    if "kind" in properties and "apiVersion" in properties and "name" in metadata and "generateName" in metadata:
        return schema
    names = {"type": "object", "properties": {"name": text, "generateName": text}}
    return {
        **schema,
        "type": "object",
        "properties": {**properties, "apiVersion": text, "kind": text, "metadata": names},
    }


def _array(schema: JsonObject, name: str) -> Schema | None:
    items = schema_of(schema["items"], name=f"{name}.@items") if "items" in schema else None
    if items is None:
        return None
    bound = schema.get("maxItems")
    most = max(bound, 0) if bound is not None else (MAX_REQUEST - 2) // (items.smallest + 1)
    kind = schema.get("x-kubernetes-list-type")
    if kind == "set":
        type_: Type = ListType(items.type)
    elif kind == "map":
        type_ = ListType(items.type, tuple(filter(None, map(escape, schema.get("x-kubernetes-list-map-keys") or ()))))
    else:
        type_ = types.list_of(items.type)
    return Schema(type_, Limit(most, element=items.limit), 2, _list_converter(items))


def _list_converter(items: Schema) -> Convert | None:
    if items.convert is None:
        return None
    return lambda json: [items.value(item) for item in _expect(json, list)]


def _object(schema: JsonObject, name: str) -> Schema | None:
    additional = schema.get("additionalProperties")
    if isinstance(additional, Mapping) and additional:
        return _map(schema, cast("JsonObject", additional), name)
    required = set(texts(schema, "required"))
    fields: dict[str, Schema] = {}
    names: dict[str, str] = {}
    smallest = 2
    for plain, below in child(schema, "properties").items():
        part = schema_of(below, name=f"{name}.{plain}")
        escaped = escape(plain)
        if part is None:
            continue
        if escaped is not None:
            fields[escaped] = part
            names[plain] = escaped
            if plain in _KEYWORDS:
                # Behind a dot a keyword may stand for itself.
                fields[plain] = part
        if plain in required and below.get("default") is None:
            smallest += len(plain) + part.smallest + 4
    type_ = StructType(name, {field: part.type for field, part in fields.items()})
    limit = Limit(0, fields={field: part.limit for field, part in fields.items()})
    return Schema(type_, limit, smallest, _object_converter(fields, names))


def _object_converter(fields: Mapping[str, Schema], names: Mapping[str, str]) -> Convert | None:
    # Fields that are left as they are need no look at all.
    special = {
        plain: (escaped, fields[escaped])
        for plain, escaped in names.items()
        if escaped != plain or fields[escaped].convert is not None
    }
    if not special:
        return None

    def convert(json: Any) -> dict[str, Any]:
        result = dict(_expect(json, dict))
        for plain, (escaped, part) in special.items():
            if plain in result:
                value = result[escaped] = part.value(result.pop(plain))
                if plain in _KEYWORDS:
                    result[plain] = value
        return result

    return convert


def _map(schema: JsonObject, additional: JsonObject, name: str) -> Schema | None:
    element = schema_of(additional, name=f"{name}.@values")
    if element is None:
        return None
    bound = schema.get("maxProperties")
    most = max(bound, 0) if bound is not None else (MAX_REQUEST - 2) // (element.smallest + 6)
    limit = Limit(most, key=Limit(0), element=element.limit)
    return Schema(types.map_of(types.STRING, element.type), limit, 2, _map_converter(element))


def _map_converter(element: Schema) -> Convert | None:
    if element.convert is None:
        return None
    return lambda json: {key: element.value(value) for key, value in _expect(json, dict).items()}


def _string(schema: JsonObject) -> Schema:
    length = schema.get("maxLength")
    match schema.get("format"):
        case "byte":
            size = MAX_REQUEST - 2 if length is None else max(length, 0)
            return Schema(types.BYTES, Limit(size), _TEXT, _to_bytes)
        case "duration":
            return Schema(types.DURATION, Limit(_LONG_TIME), _DURATION, _to_duration)
        case "date":
            return Schema(types.TIMESTAMP, Limit(_DATE), _DATE, _to_date)
        case "date-time":
            return Schema(types.TIMESTAMP, Limit(_LONG_TIME), _TIME, _to_time)
        case _:
            pass
    if length is not None:
        # A code point has up to four bytes.
        size = max(length, 0) * 4
    elif words := at(schema, "enum"):
        size = max((len(word.encode()) for word in words if isinstance(word, str)), default=0)
    else:
        size = MAX_REQUEST - 2
    return Schema(types.STRING, Limit(size), _TEXT, None)


# From JSON to values.


def _expect(json: Any, kind: type[Any]) -> Any:
    if type(json) is not kind:
        words = {list: "an array", dict: "a map", str: "a string"}
        raise EvaluationError("invalid-data", f"invalid data, expected {words[kind]}")
    return json


def _to_double(json: Any) -> float:
    if kind_of(json) is not int and kind_of(json) is not float:
        raise EvaluationError("invalid-data", "invalid data, expected a number")
    return float(json)


def _to_bytes(json: Any) -> bytes:
    try:
        return base64.b64decode(_expect(json, str), validate=True)
    except (binascii.Error, ValueError):
        raise EvaluationError("invalid-data", f"invalid byte formatted string {json!r}") from None


def _to_duration(json: Any) -> Any:
    found = parse_duration(_expect(json, str))
    if found is None:
        raise EvaluationError("invalid-data", f"invalid duration {json!r}")
    return found


def _to_time(json: Any) -> Any:
    found = parse_timestamp(_expect(json, str))
    if found is None:
        raise EvaluationError("invalid-data", f"invalid date-time formatted string {json!r}")
    return found


def _to_date(json: Any) -> Timestamp:
    try:
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", _expect(json, str)):
            raise ValueError(json)
        day = date.fromisoformat(json)
    except ValueError:
        raise EvaluationError("invalid-data", f"invalid date formatted string {json!r}") from None
    return Timestamp(int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 10**9)


# Names.

_PARTS: Final = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_KEYWORDS: Final = RESERVED | {"true", "false", "null", "in"}
_PART: Final = re.compile(r"__|[.\-/]")
_NAME: Final = re.compile(r"[A-Za-z_.\-/][A-Za-z0-9_.\-/]*")


def escape(name: str) -> str | None:
    """A field's name as expressions spell it; None when it cannot be spelled."""
    if name in _KEYWORDS:
        return f"__{name}__"
    if not _NAME.fullmatch(name):
        return None
    return _PART.sub(lambda found: _PARTS[found.group()], name)


# Lists that are sets or maps.


def is_special(type_: Type, seen: frozenset[str] = frozenset()) -> bool:
    """Whether equality within the type is not that of plain values: some list in it is a set or map."""
    if isinstance(type_, ListType):
        return True
    if isinstance(type_, StructType):
        return type_.name not in seen and any(is_special(part, seen | {type_.name}) for part in type_.fields.values())
    return any(is_special(part, seen) for part in type_.params)


def equal(type_: Type, one: Any, other: Any) -> bool:
    """Equality of two values of a static type, in which sets and maps do not care for order."""
    if kind_of(one) is list and kind_of(other) is list and type_.kind == "list":
        element = type_.params[0]
        if len(one) != len(other):
            return False
        if not isinstance(type_, ListType):
            return all(equal(element, left, right) for left, right in zip(one, other, strict=True))
        if type_.keys:
            right = {_key(type_, item): item for item in other}
            return len(right) == len({_key(type_, item) for item in one}) and all(
                _key(type_, item) in right and equal(element, item, right[_key(type_, item)]) for item in one
            )
        return all(any(equal(element, item, each) for each in other) for item in one)
    if is_map(one) and is_map(other):
        if isinstance(type_, StructType):
            parts = [type_.fields.get(key, types.DYN) for key in one]
        elif type_.kind == "map":
            parts = [type_.params[1]] * len(one)
        else:
            return same(one, other)
        return len(one) == len(other) and all(
            key in other and equal(part, one[key], other[key]) for key, part in zip(one, parts, strict=True)
        )
    return same(one, other)


def merge(type_: ListType, one: Any, other: Any) -> list[Any]:
    """``+`` of two sets or maps: the first in its order, then what is new; elements with known keys are replaced."""
    element = type_.params[0]
    result: list[Any] = list(one)
    if not type_.keys:
        result += [item for item in other if not any(equal(element, item, each) for each in one)]
        return result
    places = {_key(type_, item): at for at, item in enumerate(result)}
    for item in other:
        at = places.get(_key(type_, item))
        if at is None:
            result.append(item)
        else:
            result[at] = item
    return result


def _key(type_: ListType, item: Any) -> tuple[Any, ...]:
    if not is_map(item):
        raise EvaluationError("invalid-data", "invalid data, expected a map as element of a list of type map")
    return tuple((kind_of(value), value) for value in (item.get(key) for key in type_.keys))
