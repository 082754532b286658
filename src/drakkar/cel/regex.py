"""Regular expressions: RE2, as the reference implementation uses it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import re2  # pyright: ignore[reportMissingTypeStubs]

from drakkar.cel.errors import EvaluationError

_RE2: Final[Any] = re2


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> Any:
    options = _RE2.Options()
    # Without this the library prints to the process's standard error.
    options.log_errors = False
    return _RE2.compile(pattern, options)


def problem(pattern: str) -> str | None:
    """What is wrong with a pattern, or None."""
    try:
        _compiled(pattern)
    except _RE2.error as error:
        detail = error.args[0] if error.args else error
        return detail.decode(errors="replace") if isinstance(detail, bytes) else str(detail)
    return None


def _pattern(pattern: str) -> Any:
    try:
        return _compiled(pattern)
    except _RE2.error:
        raise EvaluationError(
            "bad-regex", f"error parsing regular expression {pattern!r}: {problem(pattern)}"
        ) from None


def search(pattern: str, text: str) -> Any:
    """First match anywhere in ``text``, or None."""
    return _pattern(pattern).search(text)


def searcher(pattern: str) -> Callable[[str], Any]:
    """A function that finds the first match in a text; raises :class:`EvaluationError` for a bad pattern."""
    search_in = _pattern(pattern).search
    return lambda text: search_in(text)


def find_all(pattern: str, text: str, limit: int) -> list[str]:
    """Texts of the matches from left to right; a negative ``limit`` means all."""
    found: list[str] = []
    last_end = -1
    for match in _pattern(pattern).finditer(text):
        if 0 <= limit <= len(found):
            break
        # An empty match right behind another match does not count.
        if match.start() == match.end() == last_end:
            continue
        last_end = match.end()
        found.append(match.group())
    return found
