"""Collecting :class:`FieldError` values, and their text.

A :class:`Faults` is handed down while an object is walked; paths are plain strings as the
API spells them (``spec.devices[0].attributes[model]``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from drakkar.api.errors import FieldError

NOT_FOUND: Final = "FieldValueNotFound"
REQUIRED: Final = "FieldValueRequired"
DUPLICATE: Final = "FieldValueDuplicate"
INVALID: Final = "FieldValueInvalid"
NOT_SUPPORTED: Final = "FieldValueNotSupported"
FORBIDDEN: Final = "FieldValueForbidden"
TOO_LONG: Final = "FieldValueTooLong"
TOO_MANY: Final = "FieldValueTooMany"
TYPE_INVALID: Final = "FieldValueTypeInvalid"
INTERNAL: Final = "InternalError"

_TITLES: Final[Mapping[str, str]] = {
    NOT_FOUND: "Not found",
    REQUIRED: "Required value",
    DUPLICATE: "Duplicate value",
    INVALID: "Invalid value",
    NOT_SUPPORTED: "Unsupported value",
    FORBIDDEN: "Forbidden",
    TOO_LONG: "Too long",
    TOO_MANY: "Too many",
    TYPE_INVALID: "Invalid value",
    INTERNAL: "Internal error",
}
_WITHOUT_VALUE: Final = frozenset((REQUIRED, FORBIDDEN, TOO_LONG, INTERNAL))


def describe(error: FieldError) -> str:
    """The message of the cause in a Status: kind of fault, value where it helps, detail."""
    text = _TITLES.get(error.type, error.type)
    if error.type not in _WITHOUT_VALUE:
        value = json.dumps(error.value, ensure_ascii=False, separators=(",", ":"))
        text = f"{text}: {value}"
    return f"{text}: {error.detail}" if error.detail else text


class Faults:
    """A growing list of errors; ``found`` has them in the order of discovery."""

    __slots__ = ("found",)

    def __init__(self) -> None:
        self.found: list[FieldError] = []

    def add(self, type: str, path: str, value: Any = None, detail: str = "") -> None:
        """Any kind of fault."""
        self.found.append(FieldError(type=type, field=path, value=value, detail=detail))

    def required(self, path: str, detail: str = "") -> None:
        """A value must be given."""
        self.add(REQUIRED, path, None, detail)

    def invalid(self, path: str, value: Any, detail: str) -> None:
        """A value breaks a rule."""
        self.add(INVALID, path, value, detail)

    def duplicate(self, path: str, value: Any) -> None:
        """A value occurs again where it must be unique."""
        self.add(DUPLICATE, path, value)

    def not_found(self, path: str, value: Any, detail: str = "") -> None:
        """A value refers to nothing."""
        self.add(NOT_FOUND, path, value, detail)

    def forbidden(self, path: str, detail: str) -> None:
        """A value is not permitted here."""
        self.add(FORBIDDEN, path, None, detail)

    def not_supported(self, path: str, value: Any, known: Iterable[str]) -> None:
        """A value is none of the ``known`` ones."""
        listed = ", ".join(json.dumps(name) for name in sorted(known))
        self.add(NOT_SUPPORTED, path, value, f"supported values: {listed}")

    def too_long(self, path: str, limit: int) -> None:
        """A text has more than ``limit`` bytes."""
        self.add(TOO_LONG, path, None, f"may not be more than {limit} bytes")

    def too_many(self, path: str, count: int, limit: int) -> None:
        """A list or map has more than ``limit`` entries."""
        self.add(TOO_MANY, path, count, f"must have at most {limit} item{'s' if limit != 1 else ''}")

    # Frequent compositions.

    def check(self, path: str, value: str, format: Callable[[str], Sequence[str]]) -> bool:
        """Report every message of a format check as invalid; True when there was none."""
        messages = format(value)
        for message in messages:
            self.invalid(path, value, message)
        return not messages

    def fits(self, path: str, items: list[Any] | Mapping[str, Any] | None, limit: int) -> bool:
        """Whether a list or map has at most ``limit`` entries; reports it when not."""
        count = len(items) if items else 0
        if count > limit:
            self.too_many(path, count, limit)
        return count <= limit

    def unique(self, path: str, keys: Iterable[Any], suffix: str = "") -> None:
        """Report the second and later occurrences in a list of keys, at ``path[index]suffix``."""
        seen: set[Any] = set()
        for index, key in enumerate(keys):
            if key in seen:
                self.duplicate(f"{path}[{index}]{suffix}", key if isinstance(key, str) else list(key))
            seen.add(key)


def keyed(path: str, key: str, limit: int = 0) -> str:
    """``path[key]``; a key longer than ``limit`` (if positive) is shortened in the middle."""
    if 0 < limit < len(key):
        half = (limit - 3) // 2
        key = f"{key[: limit - 3 - half]}...{key[len(key) - half :]}"
    return f"{path}[{key}]"
