"""Quantities, versions and named formats."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from datetime import date
from typing import Any, Final

from drakkar.api.errors import ParseError
from drakkar.api.quantity import Quantity
from drakkar.api.semver import Semver
from drakkar.cel.errors import EvaluationError, no_overload
from drakkar.cel.network import parse_url
from drakkar.cel.signatures import FORMATS
from drakkar.cel.timelib import parse_timestamp
from drakkar.cel.values import INT_MAX, INT_MIN, NONE, Format, Optional, Sum, optional


def to_quantity(text: Any) -> Quantity:
    """``quantity(text)``."""
    if type(text) is not str:
        raise no_overload("quantity", text)
    try:
        return Quantity.parse(text)
    except ParseError as error:
        hint = "; the suffix is k for 1000 and Ki for 1024" if text.endswith("K") else ""
        raise EvaluationError("conversion", f"quantity({text!r}): {error}{hint}") from None


def _parses(function: str, parse: Callable[..., Any]) -> Callable[..., bool]:
    def call(text: Any, *rest: Any) -> bool:
        if type(text) is not str or any(type(one) is not bool for one in rest):
            raise no_overload(function, text, *rest)
        try:
            parse(text, *rest)
        except ParseError:
            return False
        return True

    return call


def to_semver(text: Any, normalize: Any = False) -> Semver:
    """``semver(text[, normalize])``."""
    if type(text) is not str or type(normalize) is not bool:
        raise no_overload("semver", text, normalize)
    try:
        return Semver.parse(text, normalize)
    except ParseError as error:
        raise EvaluationError("conversion", f"semver({text!r}): {error}") from None


def order(one: Any, other: Any, function: str) -> int:
    """Order of two quantities or two versions: -1, 0, 1."""
    if isinstance(one, Quantity):
        if isinstance(other, Quantity):
            left, right = one.nanos, other.nanos
            return (left > right) - (left < right)
    elif type(one) is Semver and type(other) is Semver:
        # Most versions differ in their numbers; only then the slower full comparison is saved.
        if one.major != other.major:
            return 1 if one.major > other.major else -1
        if one.minor != other.minor:
            return 1 if one.minor > other.minor else -1
        if one.patch != other.patch:
            return 1 if one.patch > other.patch else -1
        return one.compare(other) if one.pre or other.pre else 0
    raise no_overload(function, one, other)


def is_greater(one: Any, other: Any) -> bool:
    """``isGreaterThan``."""
    return order(one, other, "isGreaterThan") > 0


def is_less(one: Any, other: Any) -> bool:
    """``isLessThan``."""
    return order(one, other, "isLessThan") < 0


def compare_to(one: Any, other: Any) -> int:
    """``compareTo``."""
    return order(one, other, "compareTo")


def _of_quantity(function: str, apply: Callable[[Quantity], Any]) -> Callable[[Any], Any]:
    def call(value: Any) -> Any:
        if not isinstance(value, Quantity):
            raise no_overload(function, value)
        return apply(value)

    return call


def _as_integer(value: Quantity) -> int:
    result = value.as_int64()
    if result is None:
        raise EvaluationError("conversion", "cannot convert value to integer")
    return result


def _arithmetic(function: str, sign: int) -> Callable[[Any, Any], Quantity]:
    def call(one: Any, other: Any) -> Quantity:
        if not isinstance(one, Quantity) or not (isinstance(other, Quantity) or type(other) is int):
            raise no_overload(function, one, other)
        if isinstance(other, int):
            # The least int has no negative: subtracting it adds it.
            other, added = Quantity.from_int(other), sign > 0 or other == INT_MIN
        else:
            added = sign > 0
        result = one + other if added else one - other
        return Sum(result.nanos, result.scale, result.format)

    return call


def _part(function: str, get: Callable[[Semver], int]) -> Callable[[Any], int]:
    def call(value: Any) -> int:
        if type(value) is not Semver:
            raise no_overload(function, value)
        number = get(value)
        # Parts are unsigned 64-bit numbers read as signed ones.
        return number - 2**64 if number > INT_MAX else number

    return call


# Named formats. Messages name the rule; the API's own wording differs from release to release.

_LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_LABEL1035: Final = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_UUID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE)


def _rule(pattern: re.Pattern[str], limit: int, what: str) -> Callable[[str], list[str]]:
    def check(text: str) -> list[str]:
        problems: list[str] = []
        if len(text) > limit:
            problems.append(f"must be no more than {limit} characters")
        if not pattern.fullmatch(text):
            problems.append(f"must be {what}")
        return problems

    return check


def _prefix(check: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    # A prefix of a generated name may end in a dash.
    return lambda text: check(text[:-1] + "a" if len(text) > 1 and text.endswith("-") else text)


_label = _rule(_LABEL, 63, "a lowercase RFC 1123 label such as 'my-name' or '123-abc'")
_label1035 = _rule(_LABEL1035, 63, "an RFC 1035 label such as 'my-name' or 'abc-123'")
_subdomain = _rule(_SUBDOMAIN, 253, "a lowercase RFC 1123 subdomain such as 'example.com'")
_name = _rule(_NAME, 63, "alphanumeric with '-', '_' or '.' inside, such as 'MyName' or 'my.name'")


def _qualified(text: str) -> list[str]:
    prefix, slash, name = text.rpartition("/")
    if text.count("/") > 1:
        return ["must be a name with an optional DNS subdomain prefix, such as 'example.com/MyName'"]
    problems: list[str] = []
    if slash:
        problems += (
            ["prefix part must be non-empty"] if not prefix else [f"prefix part {one}" for one in _subdomain(prefix)]
        )
    if not name:
        problems.append("name part must be non-empty")
    return problems + [f"name part {one}" for one in _name(name)]


def _byte(text: str) -> list[str]:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return ["invalid base64"]
    return [] if text else ["invalid base64"]


def _date(text: str) -> list[str]:
    try:
        if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            date.fromisoformat(text)
            return []
    except ValueError:
        pass
    return ["invalid date"]


_CHECKS: Final[dict[str, Callable[[str], list[str]]]] = {
    "dns1123Label": _label,
    "dns1123Subdomain": _subdomain,
    "dns1035Label": _label1035,
    "qualifiedName": _qualified,
    "dns1123LabelPrefix": _prefix(_label),
    "dns1123SubdomainPrefix": _prefix(_subdomain),
    "dns1035LabelPrefix": _prefix(_label1035),
    "labelValue": lambda text: _name(text) if text else [],
    "uri": lambda text: [] if parse_url(text) else ["invalid URI"],
    "uuid": lambda text: [] if _UUID.fullmatch(text) else ["does not match the UUID format"],
    "byte": _byte,
    "date": _date,
    "datetime": lambda text: [] if parse_timestamp(text) else ["invalid datetime"],
}


def named_format(name: Any) -> Optional:
    """``format.named``."""
    if type(name) is not str:
        raise no_overload("format.named", name)
    return optional(Format(name)) if name in _CHECKS else NONE


def validate(format_: Any, text: Any) -> Optional:
    """``validate``: none when the text has the format, else its faults."""
    if type(format_) is not Format or type(text) is not str:
        raise no_overload("validate", format_, text)
    problems = _CHECKS[format_.name](text)
    return optional(problems) if problems else NONE


def _constant(value: Format) -> Callable[[], Format]:
    return lambda: value


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "quantity": to_quantity, "isQuantity": _parses("isQuantity", Quantity.parse),
    "sign": _of_quantity("sign", Quantity.sign), "asInteger": _of_quantity("asInteger", _as_integer),
    "isInteger": _of_quantity("isInteger", lambda value: value.as_int64() is not None),
    "asApproximateFloat": _of_quantity("asApproximateFloat", Quantity.to_float),
    "add": _arithmetic("add", 1), "sub": _arithmetic("sub", -1),
    "isGreaterThan": is_greater,
    "isLessThan": is_less, "compareTo": compare_to,
    "semver": to_semver, "isSemver": _parses("isSemver", Semver.parse),
    "major": _part("major", lambda value: value.major), "minor": _part("minor", lambda value: value.minor),
    "patch": _part("patch", lambda value: value.patch), "format.named": named_format, "validate": validate,
    **{f"format.{name}": _constant(Format(name)) for name in FORMATS},
}  # fmt: skip
