"""Errors of the whole house.

    DrakkarError                 root; catch this one
    ├── EnvironmentProblem       port in use, folder not writable, foreign database ...: exit code 2
    ├── UsageError               bad arguments or files of the user: exit code 2
    ├── ApiError                 an API server answered with a Status; carries it
    └── ParseError               text that is no quantity, semver, selector, expression ...

"Does not fit" is a result of the allocator, not an exception. Validation returns lists of
:class:`FieldError` values and raises nothing.
"""

from __future__ import annotations

from typing import Any

from drakkar.api.meta import Struct


class DrakkarError(Exception):
    """Root of all errors this package raises on purpose."""


class EnvironmentProblem(DrakkarError):
    """The machine does not allow it; the message is one sentence with the cure."""


class UsageError(DrakkarError):
    """The user's arguments or files are wrong; the message names object, field and cure."""


class ParseError(DrakkarError, ValueError):
    """A text does not have the form it should have."""


class ApiError(DrakkarError):
    """An API server refused a request; ``status`` is the ``metav1.Status`` it sent."""

    def __init__(self, status: dict[str, Any]):
        self.status = status
        super().__init__(str(status.get("message", "")) or f"status {self.code}")

    @property
    def code(self) -> int:
        """HTTP status code."""
        return int(self.status.get("code", 500))

    @property
    def reason(self) -> str:
        """Machine-readable reason, for example ``Conflict``; empty when the server gave none."""
        return str(self.status.get("reason", ""))

    @property
    def is_unknown_kind(self) -> bool:
        """Whether the server does not know the resource at all; a single object that is missing is named."""
        details: dict[str, Any] = self.status.get("details") or {}
        return self.code == 404 and not details.get("name")


class FieldError(Struct, frozen=True, kw_only=True):
    """One fault of an object: ``type`` is the cause of ``metav1.Status`` (``FieldValueInvalid`` ...)."""

    type: str
    field: str
    detail: str = ""
    value: Any = None
