"""How cells write durations, ages, selectors and lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

NONE = "<none>"
UNKNOWN = "<unknown>"

_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_YEAR = 365 * _DAY


def human_duration(seconds: float) -> str:
    """At most two units, coarser the longer it is: ``119s``, ``9m5s``, ``7h5m``, ``47h``, ``7d3h``, ``2y5d``."""
    whole = int(seconds)
    if whole < -1:
        # Clocks may differ by a second; more is no duration.
        return "<invalid>"
    if whole < 0:
        return "0s"
    if whole < 2 * _MINUTE:
        return f"{whole}s"
    if whole < 10 * _MINUTE:
        return _two(whole, _MINUTE, "m", 1, "s")
    if whole < 3 * _HOUR:
        return f"{whole // _MINUTE}m"
    if whole < 8 * _HOUR:
        return _two(whole, _HOUR, "h", _MINUTE, "m")
    if whole < 2 * _DAY:
        return f"{whole // _HOUR}h"
    if whole < 8 * _DAY:
        return _two(whole, _DAY, "d", _HOUR, "h")
    if whole < 2 * _YEAR:
        return f"{whole // _DAY}d"
    if whole < 8 * _YEAR:
        return _two(whole, _YEAR, "y", _DAY, "d")
    return f"{whole // _YEAR}y"


def _two(seconds: int, large: int, large_name: str, small: int, small_name: str) -> str:
    rest = seconds % large // small
    return f"{seconds // large}{large_name}" + (f"{rest}{small_name}" if rest else "")


def epoch(time: str | None) -> float | None:
    """Seconds since the epoch of an RFC 3339 time; None when there is none or it is malformed."""
    if not time:
        return None
    try:
        parsed = datetime.fromisoformat(time)
    except ValueError:
        return None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def age(time: str | None, now: float) -> str:
    """How long ago ``time`` was, ``<unknown>`` without one."""
    then = epoch(time)
    return UNKNOWN if then is None else human_duration(now - then)


def joined(items: Iterable[Any]) -> str:
    """Comma list, ``<none>`` when empty."""
    return ",".join(str(item) for item in items) or NONE


def labels(values: Mapping[str, Any] | None) -> str:
    """``a=b,c=d`` in order of keys, ``<none>`` when empty."""
    return joined(f"{key}={value}" for key, value in sorted((values or {}).items()))


def label_selector(selector: Mapping[str, Any] | None) -> str:
    """The text form of a label selector object."""
    if selector is None:
        return NONE
    parts = {key: f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()}
    requirements = [(key, text) for key, text in parts.items()]
    for item in selector.get("matchExpressions") or ():
        key, values = item["key"], ",".join(sorted(item.get("values") or ()))
        match item["operator"]:
            case "In":
                text = f"{key} in ({values})"
            case "NotIn":
                text = f"{key} notin ({values})"
            case "Exists":
                text = key
            case _:
                text = f"!{key}"
        requirements.append((key, text))
    return joined(text for _, text in sorted(requirements))
