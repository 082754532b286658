"""Operators, conversions and the functions of the standard library."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

from drakkar.cel import timelib
from drakkar.cel.errors import EvaluationError, no_overload, no_such_key
from drakkar.cel.limits import check_size
from drakkar.cel.regex import search
from drakkar.cel.values import (
    INT_MAX,
    INT_MIN,
    NONE,
    UINT_MAX,
    Address,
    DomainMap,
    Duration,
    Network,
    Optional,
    Timestamp,
    TypeValue,
    Uint,
    equals,
    is_map,
    kind_of,
    optional,
    ordered,
    same,
    to_key,
    type_name,
)

_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
_REAL: Final = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:inf|infinity)|nan", re.IGNORECASE
)
#: Underscores between digits, and hexadecimal numbers with their exponent, as Go reads them.
_BETWEEN_DIGITS: Final = re.compile(r"(?<=[0-9])_(?=[0-9])")
_HEXADECIMAL: Final = re.compile(
    r"[+-]?0[xX]_?(?:[0-9a-fA-F](?:_?[0-9a-fA-F])*\.?(?:[0-9a-fA-F](?:_?[0-9a-fA-F])*)?|\.[0-9a-fA-F]+)[pP][+-]?[0-9]{1,5}"
)
_TRUE: Final = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE: Final = frozenset(("0", "f", "F", "FALSE", "false", "False"))


def overflow(what: str) -> EvaluationError:
    """A result that 64 bits do not hold."""
    return EvaluationError("overflow", f"{what} overflow")


def _int(value: int) -> int:
    if INT_MIN <= value <= INT_MAX:
        return value
    raise overflow("integer")


def _uint(value: int) -> Uint:
    if 0 <= value <= UINT_MAX:
        return Uint(value)
    raise overflow("unsigned integer")


def add(one: Any, other: Any) -> Any:
    """``+``."""
    kind = kind_of(one)
    kind2 = kind_of(other)
    if kind is kind2:
        if kind is int:
            return _int(one + other)
        if kind is float:
            return one + other
        if kind is str or kind is bytes or kind is list:
            check_size(len(one) + len(other))
            return one + other
        if kind is Uint:
            return _uint(int(one) + int(other))
        if kind is Duration:
            return timelib.duration(one.nanos + other.nanos)
    elif (kind is Timestamp and kind2 is Duration) or (kind is Duration and kind2 is Timestamp):
        return timelib.timestamp(one.nanos + other.nanos)
    raise no_overload("+", one, other)


def subtract(one: Any, other: Any) -> Any:
    """``-``."""
    kind = kind_of(one)
    kind2 = kind_of(other)
    if kind is kind2:
        if kind is int:
            return _int(one - other)
        if kind is float:
            return one - other
        if kind is Uint:
            return _uint(int(one) - int(other))
        if kind is Duration:
            return timelib.duration(one.nanos - other.nanos)
        if kind is Timestamp:
            return timelib.between(one, other)
    elif kind is Timestamp and kind2 is Duration:
        return timelib.timestamp(one.nanos - other.nanos)
    raise no_overload("-", one, other)


def multiply(one: Any, other: Any) -> Any:
    """``*``."""
    kind = kind_of(one)
    if kind is type(other):
        if kind is int:
            return _int(one * other)
        if kind is float:
            return one * other
        if kind is Uint:
            return _uint(int(one) * int(other))
    raise no_overload("*", one, other)


def divide(one: Any, other: Any) -> Any:
    """``/``; integers are cut towards zero."""
    kind = kind_of(one)
    if kind is type(other):
        if kind is float:
            if other:
                return one / other
            if one != one or one == 0.0:
                return math.nan
            return math.copysign(math.inf, one) * math.copysign(1.0, other)
        if kind is int or kind is Uint:
            if not other:
                raise EvaluationError("divide-by-zero", "division by zero")
            result = abs(one) // abs(other)
            return Uint(result) if kind is Uint else _int(result if (one < 0) == (other < 0) else -result)
    raise no_overload("/", one, other)


def modulo(one: Any, other: Any) -> Any:
    """``%``; the result has the sign of the dividend."""
    kind = kind_of(one)
    if kind is type(other) and (kind is int or kind is Uint):
        if not other:
            raise EvaluationError("divide-by-zero", "modulus by zero")
        if kind is int and one == INT_MIN and other == -1:
            raise overflow("integer")
        result = abs(one) % abs(other)
        return Uint(result) if kind is Uint else (-result if one < 0 else result)
    raise no_overload("%", one, other)


def negate(value: Any) -> Any:
    """Unary ``-``."""
    if kind_of(value) is int:
        return _int(-value)
    if kind_of(value) is float:
        return -value
    raise no_overload("-", value)


def logical_not(value: Any) -> bool:
    """``!``."""
    if value is True:
        return False
    if value is False:
        return True
    raise no_overload("!", value)


def less(one: Any, other: Any) -> bool:
    """``<``."""
    return ordered(one, other, "<") < 0


def less_equal(one: Any, other: Any) -> bool:
    """``<=``."""
    return ordered(one, other, "<=") <= 0


def greater(one: Any, other: Any) -> bool:
    """``>``."""
    return ordered(one, other, ">") > 0


def greater_equal(one: Any, other: Any) -> bool:
    """``>=``."""
    return ordered(one, other, ">=") >= 0


def not_equals(one: Any, other: Any) -> bool:
    """``!=``: true also where the values cannot be compared."""
    return not same(one, other)


def contains(item: Any, container: Any) -> bool:
    """``in``."""
    if kind_of(container) is list:
        if kind_of(item) is str:
            # Nothing but an equal string equals a string.
            return item in container
        return any(same(item, one) for one in container)
    if is_map(container):
        return find(container, item)[0]
    raise no_overload("in", item, container)


def find(container: Any, key: Any) -> tuple[bool, Any]:
    """Look a key up in a map: (found, value). The domain maps of a device know only real domains here."""
    kind = kind_of(key)
    if kind is not str:
        try:
            key = to_key(key)
        except EvaluationError:
            return False, None
    if key in container:
        return True, container[key]
    return False, None


def index(container: Any, key: Any) -> Any:
    """``container[key]``."""
    if kind_of(container) is dict or kind_of(container) is DomainMap:
        found = key if kind_of(key) is str else _lookup_key(container, key)
        try:
            return container[found]
        except KeyError:
            raise no_such_key(found) from None
    if kind_of(container) is list:
        return container[list_index(container, key)]
    if kind_of(container) is Optional:
        return optional_index(container, key)
    raise no_such_key(key if kind_of(key) is str else to_key(key))


def _lookup_key(container: Any, key: Any) -> Any:
    if kind_of(key) not in (str, int, Uint, float, bool, type(None)):
        raise no_overload("[]", container, key)
    return to_key(key)


def list_index(container: list[Any], key: Any) -> int:
    """A valid index into a list: whole numbers of any numeric type."""
    if kind_of(key) is float and key == key and abs(key) != math.inf and key == int(key):
        key = int(key)
    elif kind_of(key) is not int and kind_of(key) is not Uint:
        raise no_overload("[]", container, key)
    if 0 <= key < len(container):
        return key
    raise EvaluationError("index-out-of-range", f"index {key} is out of range for a list of {len(container)}")


def optional_index(container: Any, key: Any) -> Optional:
    """``container[?key]``."""
    if kind_of(container) is Optional:
        if not container.present:
            return NONE
        container = container.value
    if kind_of(container) is DomainMap and kind_of(key) is str:
        return optional(container[key])
    if is_map(container):
        _lookup_key(container, key)
        found, value = find(container, key)
        return optional(value) if found else NONE
    if kind_of(container) is list:
        try:
            return optional(container[list_index(container, key)])
        except EvaluationError as error:
            if error.error_class == "index-out-of-range":
                return NONE
            raise
    return NONE


def size(value: Any) -> int:
    """``size``."""
    kind = kind_of(value)
    if kind is str or kind is list or kind is bytes or is_map(value):
        return len(value)
    raise no_overload("size", value)


# Conversions.


def _conversion(value: Any, target: str) -> EvaluationError:
    shown = value if kind_of(value) is not str or len(value) <= 80 else value[:80] + "…"
    return EvaluationError("conversion", f"cannot convert {shown!r} to {target}")


def _digits(text: str, target: str) -> int:
    """The number that a text of digits spells; more digits than 64 bits have are refused without reading them."""
    if len(text.lstrip("+-0")) > 20:
        raise _conversion(text, target)
    sign = "-" if text[0] == "-" else ""
    return int(sign + (text.lstrip("+-0") or "0"))


def to_int(value: Any) -> int:
    """``int(x)``."""
    kind = kind_of(value)
    if kind is int:
        return value
    if kind is Uint:
        return _int(int(value))
    if kind is float:
        if value != value or not -(2.0**63) < value < 2.0**63:
            raise overflow("integer")
        return int(value)
    if kind is str:
        number = _digits(value, "int") if _WHOLE.fullmatch(value) else None
        if number is None or not INT_MIN <= number <= INT_MAX:
            raise _conversion(value, "int")
        return number
    if kind is Timestamp:
        return value.nanos // 10**9
    if kind is Duration:
        return value.nanos
    raise no_overload("int", value)


def to_uint(value: Any) -> Uint:
    """``uint(x)``."""
    kind = kind_of(value)
    if kind is Uint:
        return value
    if kind is int:
        return _uint(value)
    if kind is float:
        if value != value or not 0 <= value < 2.0**64:
            raise overflow("unsigned integer")
        return Uint(int(value))
    if kind is str:
        number = _digits(value, "uint") if value.isascii() and value.isdigit() else None
        if number is None or number > UINT_MAX:
            raise _conversion(value, "uint")
        return Uint(number)
    raise no_overload("uint", value)


def to_double(value: Any) -> float:
    """``double(x)``."""
    kind = kind_of(value)
    if kind is float:
        return value
    if kind is int or kind is Uint:
        return float(value)
    if kind is str:
        if _HEXADECIMAL.fullmatch(value):
            try:
                return float.fromhex(value.replace("_", ""))
            except OverflowError:
                raise _conversion(value, "double") from None
        plain = _BETWEEN_DIGITS.sub("", value)
        if not _REAL.fullmatch(plain):
            raise _conversion(value, "double")
        result = float(plain)
        if math.isinf(result) and "n" not in value.lower():
            raise _conversion(value, "double")
        return result
    raise no_overload("double", value)


def to_bool(value: Any) -> bool:
    """``bool(x)``."""
    if kind_of(value) is bool:
        return value
    if kind_of(value) is str:
        if value in _TRUE:
            return True
        if value in _FALSE:
            return False
        raise _conversion(value, "bool")
    raise no_overload("bool", value)


def to_bytes(value: Any) -> bytes:
    """``bytes(x)``."""
    if kind_of(value) is bytes:
        return value
    if kind_of(value) is str:
        return value.encode()
    raise no_overload("bytes", value)


def to_string(value: Any) -> str:
    """``string(x)``."""
    kind = kind_of(value)
    if kind is str:
        return value
    if kind is bool:
        return "true" if value else "false"
    if kind is int or kind is Uint:
        return int.__repr__(value)
    if kind is float:
        return double_text(value)
    if kind is bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise EvaluationError("conversion", "invalid UTF-8 in bytes, cannot convert to string") from None
    if kind is Timestamp:
        return timelib.timestamp_text(value)
    if kind is Duration:
        return timelib.duration_text(value)
    if kind is Address or kind is Network:
        from drakkar.cel.network import address_text, network_text

        return address_text(value) if kind is Address else network_text(value)
    raise no_overload("string", value)


def double_text(value: float) -> str:
    """The shortest text of a double, in the general form: with an exponent below 1e-4 and for large numbers."""
    if value != value:
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    digits, exponent = _shortest(abs(value))
    sign = "-" if value < 0 else ""
    if exponent < -4 or exponent >= 6:
        mantissa = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
        return f"{sign}{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    fraction = digits[exponent + 1 :]
    return sign + whole + ("." + fraction if fraction else "")


def _shortest(value: float) -> tuple[str, int]:
    """Shortest decimal digits of a positive double and the exponent of the first one."""
    number, _, power = repr(value).partition("e")
    whole, _, fraction = number.partition(".")
    digits = (whole + fraction).lstrip("0")
    leading = len(whole) - 1 if whole != "0" else -(len(fraction) - len(fraction.lstrip("0"))) - 1
    return digits.rstrip("0"), leading + int(power or 0)


def identity(value: Any) -> Any:
    """``dyn(x)``: hides the static type only."""
    return value


def to_type(value: Any) -> TypeValue:
    """``type(x)``."""
    return TypeValue(type_name(value))


# Strings of the standard library.


def starts_with(text: Any, prefix: Any) -> bool:
    """``startsWith``."""
    if kind_of(text) is str and kind_of(prefix) is str:
        return text.startswith(prefix)
    raise no_overload("startsWith", text, prefix)


def ends_with(text: Any, suffix: Any) -> bool:
    """``endsWith``."""
    if kind_of(text) is str and kind_of(suffix) is str:
        return text.endswith(suffix)
    raise no_overload("endsWith", text, suffix)


def string_contains(text: Any, part: Any) -> bool:
    """``contains``."""
    if kind_of(text) is str and kind_of(part) is str:
        return part in text
    raise no_overload("contains", text, part)


def matches(text: Any, pattern: Any) -> bool:
    """``matches``: RE2, unanchored."""
    if kind_of(text) is str and kind_of(pattern) is str:
        return search(pattern, text) is not None
    raise no_overload("matches", text, pattern)


# Optional values.


def of_non_zero(value: Any) -> Optional:
    """``optional.ofNonZeroValue``."""
    kind = kind_of(value)
    if value is None or (kind in (bool, int, Uint, float, str, bytes, list, dict, DomainMap) and not value):
        return NONE
    if kind in (Duration,) and value.nanos == 0:
        return NONE
    return optional(value)


def has_value(value: Any) -> bool:
    """``hasValue``."""
    if kind_of(value) is Optional:
        return value.present
    raise no_overload("hasValue", value)


def optional_value(value: Any) -> Any:
    """``value``."""
    if kind_of(value) is not Optional:
        raise no_overload("value", value)
    if not value.present:
        raise EvaluationError("empty-optional", "the optional has no value; use orValue(...) or test with hasValue()")
    return value.value


def unwrap(value: Any) -> list[Any]:
    """``optional.unwrap`` and ``unwrapOpt``: the values that are present."""
    if kind_of(value) is not list or any(kind_of(item) is not Optional for item in value):
        raise no_overload("unwrap", value)
    return [item.value for item in value if item.present]


def none() -> Optional:
    """``optional.none``."""
    return NONE


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "!_": logical_not, "-_": negate, "_==_": equals, "_!=_": not_equals, "_<_": less, "_<=_": less_equal,
    "_>_": greater, "_>=_": greater_equal, "@in": contains, "_[_]": index, "_[?_]": optional_index, "_+_": add,
    "_-_": subtract, "_*_": multiply, "_/_": divide, "_%_": modulo, "size": size, "type": to_type,
    "dyn": identity, "bool": to_bool, "bytes": to_bytes, "double": to_double, "int": to_int,
    "uint": to_uint, "string": to_string, "duration": timelib.to_duration, "timestamp": timelib.to_timestamp,
    "contains": string_contains, "endsWith": ends_with, "startsWith": starts_with, "matches": matches,
    "optional.of": optional, "optional.ofNonZeroValue": of_non_zero, "optional.none": none,
    "optional.unwrap": unwrap, "unwrapOpt": unwrap, "hasValue": has_value, "value": optional_value,
}  # fmt: skip

#: Functions whose calls with constant arguments are computed while compiling.
CONVERSIONS: Final = frozenset(
    ("bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint")
)
