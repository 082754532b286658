"""Walks over an object and its schema: faults, pruning, defaults.

The walks are written for the common case, an object without faults: no path is built
until a fault has been found, and unknown parts are never looked into.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from drakkar.api.errors import ParseError
from drakkar.api.quantity import Quantity
from drakkar.apiserver import status
from drakkar.apiserver.schema.nodes import SchemaNode

#: Upstream's decoder stops collecting strict errors there.
_MAX_FAULTS = 100

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")

_LAYOUT = {"time": "2006-01-02T15:04:05Z07:00", "microtime": "2006-01-02T15:04:05.000000Z07:00"}

_INT_RANGE = {"int32": (-(1 << 31), (1 << 31) - 1), "int64": (-(1 << 63), (1 << 63) - 1)}

_QUANTITY_FAULT = r"quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


class _TypeFault(Exception):
    """A value of the wrong type; frames add the names of fields while it passes."""

    def __init__(self, text: str, go_type: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.go_type = go_type
        self.owner = ""
        self.path: list[str] = []

    def message(self) -> str:
        """The words of Go's JSON decoder."""
        if not self.go_type:
            return self.text
        if not self.path:
            return f"json: cannot unmarshal {self.text} into Go value of type {self.go_type}"
        where = f"{self.owner}.{'.'.join(reversed(self.path))}"
        return f"json: cannot unmarshal {self.text} into Go struct field {where} of type {self.go_type}"


def check(obj: dict[str, Any], schema: SchemaNode) -> list[str]:
    """Unknown fields in upstream's words (``unknown field "spec.foo"``), in the order they stand.

    Raises:
        StatusError: 400 when a value has the wrong type.
    """
    try:
        faults = _check(obj, schema) or []
    except _TypeFault as fault:
        kind = str(obj.get("kind", ""))
        version = str(obj.get("apiVersion", "")).rpartition("/")[2]
        text = f'{kind} in version "{version}" cannot be handled as a {kind}: {fault.message()}'
        raise status.StatusError(status.bad_request(text)) from None
    return [f'unknown field "{path}"' for path in faults[:_MAX_FAULTS]]


def strict_error(obj: dict[str, Any], faults: list[str]) -> dict[str, Any]:
    """The Status for ``fieldValidation=Strict`` when there are faults."""
    kind = str(obj.get("kind", ""))
    version = str(obj.get("apiVersion", "")).rpartition("/")[2]
    text = f'{kind} in version "{version}" cannot be handled as a {kind}: strict decoding error: ' + ", ".join(faults)
    return status.bad_request(text)


def _check(value: Any, node: SchemaNode) -> list[str] | None:
    """Paths of unknown fields below ``value``, None when there are none; null is any type's zero, as in Go."""
    kind = node.kind
    found: list[str] | None = None
    if kind == "struct":
        if type(value) is not dict:
            raise _wrong(value, node)
        fields = node.fields
        for name, item in value.items():
            field = fields.get(name)
            if field is None:
                if node.preserve:
                    continue
                if node.additional is None:
                    found = found or []
                    found.append(name)
                    continue
                field = node.additional
            if item is None or type(item) is field.exact:
                continue
            try:
                below = _check(item, field)
            except _TypeFault as fault:
                fault.path.append(name)
                fault.owner = fault.owner or node.go_name
                raise
            if below:
                found = _prefixed(found, name, below)
    elif kind == "list":
        if type(value) is not list:
            raise _wrong(value, node)
        items = node.items
        if items is None:
            return None
        for index, item in enumerate(value):
            if item is None or type(item) is items.exact:
                continue
            below = _check(item, items)
            if below:
                found = _prefixed(found, f"[{index}]", below)
    elif kind == "map":
        if type(value) is not dict:
            raise _wrong(value, node)
        values = node.additional
        if values is None:
            return None
        for name, item in value.items():
            if item is None or type(item) is values.exact:
                continue
            below = _check(item, values)
            if below:
                found = _prefixed(found, name, below)
    else:
        scalar = _SCALARS.get(kind)
        if scalar is not None:
            scalar(value, node)
    return found


def _prefixed(found: list[str] | None, name: str, below: list[str]) -> list[str]:
    """``found`` and the paths of a child, which gets its name in front."""
    named = [name + path if path.startswith("[") else f"{name}.{path}" for path in below]
    return named if found is None else found + named


def json_word(value: Any) -> str:
    """How Go's decoder names a JSON value."""
    match value:
        case bool():
            return "bool"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
        case _:
            return "null"


def _wrong(value: Any, node: SchemaNode) -> _TypeFault:
    return _TypeFault(json_word(value), node.go_type())


def _check_string(value: Any, node: SchemaNode) -> None:
    if type(value) is not str:
        raise _wrong(value, node)
    if node.format == "byte":
        try:
            base64.b64decode(value.replace("\n", "").replace("\r", ""), validate=True)
        except (binascii.Error, ValueError):
            at = next((i for i, c in enumerate(value) if not (c.isalnum() and c.isascii()) and c not in "+/=\r\n"), -1)
            position = at if at >= 0 else len(value) // 4 * 4
            raise _TypeFault(f"illegal base64 data at input byte {position}") from None


def _check_integer(value: Any, node: SchemaNode) -> None:
    if type(value) is int:
        low, high = _INT_RANGE.get(node.format, _INT_RANGE["int64"])
        if low <= value <= high:
            return
        raise _TypeFault(f"number {value}", node.go_type())
    if type(value) is float:
        raise _TypeFault(f"number {value:g}", node.go_type())
    raise _wrong(value, node)


def _check_number(value: Any, node: SchemaNode) -> None:
    if type(value) not in (int, float):
        raise _wrong(value, node)


def _check_boolean(value: Any, node: SchemaNode) -> None:
    if type(value) is not bool:
        raise _wrong(value, node)


def _check_quantity(value: Any, node: SchemaNode) -> None:
    if type(value) is str or type(value) in (int, float):
        try:
            Quantity.parse(str(value))
        except ParseError:
            raise _TypeFault(_QUANTITY_FAULT) from None
        return
    raise _TypeFault(_QUANTITY_FAULT)


def _check_int_or_string(value: Any, node: SchemaNode) -> None:
    if type(value) is str:
        return
    if type(value) is not int:
        text = f"number {value:g}" if type(value) is float else json_word(value)
        raise _TypeFault(f"json: cannot unmarshal {text} into Go value of type int32")


def _check_time(value: Any, node: SchemaNode) -> None:
    if type(value) is not str:
        raise _TypeFault(f"json: cannot unmarshal {json_word(value)} into Go value of type string")
    if value and not _RFC3339.fullmatch(value):
        layout = _LAYOUT[node.kind]
        raise _TypeFault(f'parsing time "{value}" as "{layout}": cannot parse "{value}" as "2006"')


_SCALARS: dict[str, Callable[[Any, SchemaNode], None]] = {
    "string": _check_string,
    "integer": _check_integer,
    "number": _check_number,
    "boolean": _check_boolean,
    "quantity": _check_quantity,
    "int-or-string": _check_int_or_string,
    "time": _check_time,
    "microtime": _check_time,
}


def prune(obj: dict[str, Any], schema: SchemaNode) -> None:
    """Brings ``obj``, which :func:`check` has passed, into the form Go would write it in.

    Unknown fields and nulls go (Go still writes some times as null; to clients null and absent
    are the same); quantities are spelled canonically. Works in place.
    """
    _prune_struct(obj, schema)


def _prune_struct(obj: dict[str, Any], node: SchemaNode) -> None:
    fields = node.fields
    gone: list[str] | None = None
    for name, value in obj.items():
        field = fields.get(name)
        if field is None:
            if node.preserve:
                continue
            if node.additional is None:
                gone = gone or []
                gone.append(name)
                continue
            field = node.additional
        if type(value) is field.exact:
            continue
        if value is None:
            if not field.nullable:
                gone = gone or []
                gone.append(name)
            continue
        kind = field.kind
        if kind in _DEEP:
            _prune_value(value, field)
        elif kind == "quantity":
            obj[name] = _canonical(value)
    if gone:
        for name in gone:
            del obj[name]


_DEEP = frozenset({"struct", "list", "map"})
#: What Go makes of a null among the elements of a list or map.
_ZERO: dict[str, Any] = {"string": "", "integer": 0, "number": 0, "boolean": False, "int-or-string": 0}


def _prune_value(value: Any, node: SchemaNode) -> None:
    kind = node.kind
    if kind == "struct":
        _prune_struct(value, node)
    elif kind == "list":
        items = node.items
        if items is None:
            return
        if items.kind == "quantity":
            value[:] = [_canonical(0 if item is None else item) for item in value]
        elif items.kind in _DEEP:
            for index, item in enumerate(value):
                if item is None:
                    # An element cannot vanish; Go writes the zero of its type.
                    value[index] = [] if items.kind == "list" else {}
                else:
                    _prune_value(item, items)
        elif None in value and items.kind in _ZERO:
            value[:] = [_ZERO[items.kind] if item is None else item for item in value]
    else:
        values = node.additional
        if values is None:
            return
        if values.kind == "quantity":
            for name, item in value.items():
                value[name] = _canonical(0 if item is None else item)
        elif values.kind in _DEEP:
            for name, item in value.items():
                if item is None:
                    value[name] = [] if values.kind == "list" else {}
                else:
                    _prune_value(item, values)
        elif values.kind in _ZERO:
            for name, item in value.items():
                if item is None:
                    value[name] = _ZERO[values.kind]


def _canonical(value: Any) -> str:
    return _canonical_text(value if type(value) is str else str(value))


@lru_cache(maxsize=16384)
def _canonical_text(text: str) -> str:
    return Quantity.parse(text).canonical()


def is_settled(value: Any, node: SchemaNode) -> bool:
    """Whether :func:`check` would find nothing in ``value`` and :func:`prune` and :func:`write_zeros` change nothing.

    One cheap walk instead of three, for what clients of good manners send. False only means that
    the other walks have to look.
    """
    kind = node.kind
    given = type(value)
    if given is dict:
        if kind == "struct":
            fields = node.fields
            for name, item in value.items():
                field = fields.get(name)
                if field is None or (type(item) is not field.exact and not is_settled(item, field)):
                    return False
            zeros = node.zeros
            return value.keys() >= (_zeros(node) if zeros is None else zeros).keys()
        if kind == "map":
            return node.additional is None or _are_settled(value.values(), node.additional)
        return kind == "any"
    if given is list:
        if kind == "list":
            return node.items is None or _are_settled(value, node.items)
        return kind == "any"
    if given is str:
        if kind == "quantity":
            return _is_canonical(value)
        if kind == "time" or kind == "microtime":
            return _RFC3339.fullmatch(value) is not None
        return kind == "int-or-string" or kind == "any"
    if given is int:
        if kind == "integer":
            low, high = _INT_RANGE["int32"]
            return low <= value <= high
        return kind == "int-or-string" or kind == "number" or kind == "any"
    return False


def _are_settled(items: Iterable[Any], node: SchemaNode) -> bool:
    exact = node.exact
    return all(type(item) is exact or is_settled(item, node) for item in items)


@lru_cache(maxsize=16384)
def _is_canonical(text: str) -> bool:
    try:
        return Quantity.parse(text).canonical() == text
    except ParseError:
        return False


#: Types of zeros that are written.
_ZEROS = frozenset({str, int, bool})


def _zeros(node: SchemaNode) -> dict[str, Any]:
    """What Go writes for a struct's required texts, numbers and truths that nobody set; remembered in the node."""
    zeros = node.zeros
    if zeros is None:
        fields = node.fields
        zeros = node.zeros = {
            name: field.default
            for name in node.required
            if (field := fields.get(name)) is not None and type(field.default) in _ZEROS and not field.default
        }
    return zeros


def write_zeros(value: Any, node: SchemaNode) -> None:
    """Sets required scalars that are absent to their zero, in place, as Go writes them.

    ``value`` has passed :func:`prune`. Readers then need not reckon with conditions without a
    type, references without a uid or ports without a number.
    """
    kind = node.kind
    if kind == "struct":
        fields = node.fields
        for name, item in value.items():
            if type(item) is not str and (field := fields.get(name)) is not None and field.kind in _DEEP:
                write_zeros(item, field)
        for name, zero in _zeros(node).items():
            value.setdefault(name, zero)
    elif kind == "list":
        items = node.items
        if items is not None and items.kind in _DEEP:
            for item in value:
                write_zeros(item, items)
    elif node.additional is not None and node.additional.kind in _DEEP:
        for item in value.values():
            write_zeros(item, node.additional)


def apply_schema_defaults(obj: dict[str, Any], schema: SchemaNode) -> None:
    """Sets absent fields that have a default, in place, below everything that is present.

    For built-in types these are the values Go always writes (``status: {}``, empty required
    strings) beside the few real ones; defaults that upstream sets in code are not in the
    schemas.
    """
    if _is_defaulted(schema, set()):
        _default(obj, schema)


def _default(value: Any, node: SchemaNode) -> None:
    kind = node.kind
    if kind == "struct":
        if type(value) is not dict:
            return
        for name, field in node.fields.items():
            if name in value:
                if field.defaulted is not False and field.kind in _DEEP and _is_defaulted(field, set()):
                    _default(value[name], field)
            elif field.has_default:
                default = field.default
                if type(default) is dict:
                    default = dict(default)
                    _default(default, field)
                elif type(default) is list:
                    default = list(default)
                value[name] = default
        if node.additional is not None and node.additional.kind in _DEEP:
            for name, item in value.items():
                if name not in node.fields:
                    _default(item, node.additional)
    elif kind == "list":
        items = node.items
        if items is not None and items.kind in _DEEP and type(value) is list and _is_defaulted(items, set()):
            for item in value:
                _default(item, items)
    elif kind == "map":
        values = node.additional
        if values is not None and values.kind in _DEEP and type(value) is dict and _is_defaulted(values, set()):
            for item in value.values():
                _default(item, values)


def _is_defaulted(node: SchemaNode, above: set[int]) -> bool:
    """Whether the schema has defaults anywhere below; remembered in the node."""
    if node.defaulted is not None:
        return node.defaulted
    if id(node) in above:
        return False
    above.add(id(node))
    children = [*node.fields.values(), *(child for child in (node.items, node.additional) if child is not None)]
    result = any(child.has_default for child in node.fields.values()) or any(
        _is_defaulted(child, above) for child in children if child.kind in _DEEP
    )
    above.discard(id(node))
    # A False found inside a cycle may only be due to the cut; only the outermost answer is certain.
    if result or not above:
        node.defaulted = result
    return result
