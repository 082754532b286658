"""What can go wrong with an expression: at compile time (issues with positions) and at evaluation.

Classes are words of our own (the ones of the recorded corpus); messages are sentences
that a user can act on.
"""

from __future__ import annotations

from dataclasses import dataclass

from drakkar.api.errors import DrakkarError, ParseError


@dataclass(frozen=True, slots=True)
class Issue:
    """One fault found while compiling. ``line`` and ``column`` are None where no place is to blame."""

    error_class: str
    message: str
    line: int | None = None
    column: int | None = None


class CompileError(ParseError):
    """The expression is refused; ``issues`` are in the order of their places."""

    def __init__(self, text: str, issues: list[Issue]) -> None:
        self.text = text
        self.issues = tuple(sorted(issues, key=lambda issue: (issue.line or 0, issue.column or 0)))
        # One place can be checked twice (macros copy their target); it is shown once.
        super().__init__("\n".join(_render(text, issue) for issue in dict.fromkeys(self.issues)))

    @property
    def error_class(self) -> str:
        """Class of the first issue."""
        return self.issues[0].error_class


def _render(text: str, issue: Issue) -> str:
    if issue.line is None or issue.column is None:
        return issue.message
    message = f"line {issue.line}, column {issue.column}: {issue.message}"
    lines = text.split("\n")
    if issue.line > len(lines):
        return message
    line = lines[issue.line - 1].rstrip("\r").replace("\t", " ")
    return f"{message}\n | {line}\n | {' ' * max(issue.column - 1, 0)}^"


class EvaluationError(DrakkarError):
    """The expression failed on a device. ``position`` is (line, column) where it is known."""

    def __init__(self, error_class: str, message: str, key: str | None = None) -> None:
        self.error_class = error_class
        self.message = message
        self.key = key
        self.position: tuple[int, int] | None = None
        #: Offset into the expression; programs turn it into ``position``.
        self.offset: int | None = None
        super().__init__(message)

    def __str__(self) -> str:
        where = f"line {self.position[0]}, column {self.position[1]}: " if self.position else ""
        return where + self.message


def no_such_key(key: object) -> EvaluationError:
    """The error of a missing map key, with the ways to guard against it."""
    from drakkar.cel.values import key_text

    name = key_text(key)
    guard = f".?{name}.orValue(...)" if name.isidentifier() else f'[?"{name}"].orValue(...)'
    return EvaluationError("no-such-key", f"no such key: {name}; guard the access with has(...) or with {guard}", name)


def no_overload(function: str, *args: object) -> EvaluationError:
    """The error of a function called with values it does not take."""
    from drakkar.cel.values import type_name

    kinds = ", ".join(type_name(arg) for arg in args)
    return EvaluationError("no-such-overload", f"no such overload: {function} does not take ({kinds})")
