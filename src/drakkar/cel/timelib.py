"""Timestamps and durations: parsing, printing, parts in a time zone."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from drakkar.cel.errors import EvaluationError, no_overload
from drakkar.cel.values import INT_MAX, INT_MIN, Duration, Timestamp

_SECOND: Final = 10**9
_UNITS: Final = {
    "ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": _SECOND, "m": 60 * _SECOND, "h": 3600 * _SECOND,
}  # fmt: skip
_PART: Final = re.compile(r"([0-9]*)(\.[0-9]*)?(ns|us|µs|μs|ms|s|m|h)")
_RFC3339: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]+))?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_OFFSET: Final = re.compile(r"([+-]?)([0-9]{1,2}):([0-9]{2})")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST: Final = -62135596800 * _SECOND
_LAST: Final = 253402300800 * _SECOND - 1


def duration(nanos: int) -> Duration:
    """A duration; raises where 64 bits of nanoseconds do not hold it."""
    if INT_MIN <= nanos <= INT_MAX:
        return Duration(nanos)
    raise EvaluationError("overflow", "duration overflow")


def timestamp(nanos: int) -> Timestamp:
    """A timestamp between the years 1 and 9999."""
    if _FIRST <= nanos <= _LAST:
        return Timestamp(nanos)
    raise EvaluationError("overflow", "timestamp overflow")


def between(one: Timestamp, other: Timestamp) -> Duration:
    """``one - other``; the whole seconds alone have to fit 64 bits of nanoseconds, too."""
    duration((one.nanos // _SECOND - other.nanos // _SECOND) * _SECOND)
    return duration(one.nanos - other.nanos)


def parse_duration(text: str) -> Duration | None:
    """``1h30m``, ``-1.5s``, ``0``; None when malformed or too long."""
    negative = text[:1] == "-"
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return Duration(0)
    total, at = Fraction(0), 0
    while at < len(rest):
        part = _PART.match(rest, at)
        if part is None or not (part[1] or (part[2] or "")[1:]):
            return None
        whole, fraction = part[1].lstrip("0"), (part[2] or "")[1:][:18]
        if len(whole) > 19:
            return None
        total += Fraction(int((whole or "0") + fraction) * _UNITS[part[3]], 10 ** len(fraction))
        at = part.end()
    nanos = int(total)
    if not rest or nanos > INT_MAX + negative:
        return None
    return Duration(-nanos if negative else nanos)


def parse_timestamp(text: str) -> Timestamp | None:
    """RFC 3339; None when malformed or outside the years 1 to 9999."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    try:
        moment = datetime(*(int(match[group]) for group in range(1, 7)), tzinfo=UTC)  # type: ignore[misc]
    except ValueError:
        return None
    nanos = int((moment - _EPOCH).total_seconds()) * _SECOND + int((match[7] or "0")[:9].ljust(9, "0"))
    zone = match[8]
    if zone not in "Zz":
        hours, minutes = int(zone[1:3]), int(zone[4:6])
        if hours > 24 or minutes > 60:
            return None
        shift = (hours * 3600 + minutes * 60) * _SECOND
        nanos += shift if zone[0] == "-" else -shift
    return Timestamp(nanos) if _FIRST <= nanos <= _LAST else None


def to_duration(value: Any) -> Duration:
    """``duration(x)``."""
    if type(value) is str:
        parsed = parse_duration(value)
        if parsed is None:
            raise EvaluationError("conversion", f"cannot convert {value!r} to duration; write for example 1h30m")
        return parsed
    if type(value) is Duration:
        return value
    raise no_overload("duration", value)


def to_timestamp(value: Any) -> Timestamp:
    """``timestamp(x)``."""
    if type(value) is str:
        parsed = parse_timestamp(value)
        if parsed is None:
            raise EvaluationError("conversion", f"cannot convert {value!r} to timestamp; write RFC 3339")
        return parsed
    if type(value) is int:
        return timestamp(value * _SECOND)
    if type(value) is Timestamp:
        return value
    raise no_overload("timestamp", value)


def _fraction(nanos: int) -> str:
    return f".{nanos:09d}".rstrip("0").rstrip(".")


def duration_text(value: Duration) -> str:
    """Seconds with an ``s``, as precise as a double is."""
    return f"{Decimal(repr(_units(value, _SECOND))):f}".removesuffix(".0") + "s"


def _units(value: Duration, unit: int) -> float:
    """A duration as a double of some unit of nanoseconds, rounded as the reference rounds."""
    whole, rest = divmod(abs(value.nanos), unit)
    number = whole + rest / unit
    return -number if value.nanos < 0 else number


def timestamp_text(value: Timestamp) -> str:
    """RFC 3339 in UTC."""
    seconds, nanos = divmod(value.nanos, _SECOND)
    moment = _EPOCH + timedelta(seconds=seconds)
    return f"{moment.year:04d}-{moment:%m-%dT%H:%M:%S}{_fraction(nanos)}Z"


def _zone(name: str) -> tzinfo:
    offset = _OFFSET.fullmatch(name)
    if offset:
        delta = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        return timezone(-delta if offset[1] == "-" else delta)
    if name in ("", "UTC"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise EvaluationError("conversion", f"unknown time zone {name!r}") from None


def _local(value: Timestamp, zone: Any) -> datetime:
    if type(zone) is not str:
        raise no_overload("timestamp part", value, zone)
    moment = _EPOCH + timedelta(seconds=value.nanos // _SECOND)
    try:
        return moment.astimezone(_zone(zone))
    except (OverflowError, ValueError):
        raise EvaluationError("overflow", "timestamp overflow") from None


_DATE_PARTS: Final[dict[str, Callable[[datetime], int]]] = {
    "getFullYear": lambda moment: moment.year,
    "getMonth": lambda moment: moment.month - 1,
    "getDayOfYear": lambda moment: moment.timetuple().tm_yday - 1,
    "getDayOfMonth": lambda moment: moment.day - 1,
    "getDate": lambda moment: moment.day,
    "getDayOfWeek": lambda moment: moment.isoweekday() % 7,
    "getHours": lambda moment: moment.hour,
    "getMinutes": lambda moment: moment.minute,
    "getSeconds": lambda moment: moment.second,
}
_DURATION_PARTS: Final = {"getHours": 3600 * _SECOND, "getMinutes": 60 * _SECOND, "getSeconds": _SECOND}


def _part(name: str) -> Callable[..., int]:
    def get(value: Any, zone: Any = "UTC") -> int:
        if type(value) is Timestamp:
            if name == "getMilliseconds":
                _local(value, zone)
                return value.nanos % _SECOND // 10**6
            return _DATE_PARTS[name](_local(value, zone))
        if type(value) is Duration:
            if name == "getMilliseconds":
                return int(Fraction(value.nanos, 10**6))
            if name in _DURATION_PARTS:
                return int(_units(value, _DURATION_PARTS[name]))
        raise no_overload(name, value)

    return get


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {name: _part(name) for name in (*_DATE_PARTS, "getMilliseconds")}
