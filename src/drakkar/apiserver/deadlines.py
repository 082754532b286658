"""How long a request may take: what the server allows, or less where the client says so.

Source: kube-apiserver, query parameter ``timeout`` of every request but those that last (watches, logs, exec and
their like); spec/apiserver.md section 4, "Limits".
"""

from __future__ import annotations

import json
import re
from fractions import Fraction

from drakkar.apiserver import status
from drakkar.apiserver.routes import RequestInfo
from drakkar.apiserver.status import StatusError

#: Seconds that a read waits for a revision of the future.
FUTURE_SECONDS = 3.0

_UNITS = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "\u00b5s": Fraction(1, 10**6),
    "\u03bcs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
}
_PART = re.compile(r"([0-9]*)(\.[0-9]*)?([^0-9.]*)")
#: Longest text that is read at all, and the longest time that Go's durations hold, in seconds.
_LONGEST_TEXT, _LONGEST = 100, Fraction((1 << 63) - 1, 10**9)
_LASTING = frozenset({"attach", "exec", "log", "portforward", "proxy"})


def lasts(info: RequestInfo) -> bool:
    """Whether a request is one of those that no deadline ends."""
    return info.verb == "watch" or info.subresource in _LASTING


def allotted(text: str, limit: float) -> float:
    """Seconds for a request with ``timeout=text``: at most ``limit``, which also none and 0 stand for.

    StatusError 400 for what is no duration as Go writes them (``1m30s``).
    """
    if not text:
        return limit
    wanted = _duration(text)
    return float(wanted) if 0 < wanted < limit else limit


def exceeded() -> StatusError:
    """504: the time is up. What was asked may be done all the same."""
    return StatusError(status.timeout("request did not complete within requested timeout - context deadline exceeded"))


def _duration(text: str) -> Fraction:
    rest = text[1:] if text[:1] in "+-" else text
    if rest == "0":
        return Fraction(0)
    total = Fraction(0)
    if not rest or len(text) > _LONGEST_TEXT:
        raise _unreadable(f"invalid duration {_quoted(text)}")
    while rest:
        found = _PART.match(rest)
        assert found is not None  # every part of the pattern may be empty
        whole, fraction, unit = found.groups()
        digits = (whole or "") + (fraction or "")[1:]
        if not digits:
            raise _unreadable(f"invalid duration {_quoted(text)}")
        if not unit:
            raise _unreadable(f"missing unit in duration {_quoted(text)}")
        if unit not in _UNITS:
            raise _unreadable(f"unknown unit {_quoted(unit)} in duration {_quoted(text)}")
        total += Fraction(int(digits), 10 ** len((fraction or ".")[1:])) * _UNITS[unit]
        rest = rest[found.end() :]
    if total > _LONGEST:
        raise _unreadable(f"invalid duration {_quoted(text)}")
    return -total if text.startswith("-") else total


def _quoted(text: str) -> str:
    return json.dumps(text[:_LONGEST_TEXT])


def _unreadable(why: str) -> StatusError:
    return StatusError(status.bad_request(f"invalid timeout specified in the request URL - time: {why}"))
