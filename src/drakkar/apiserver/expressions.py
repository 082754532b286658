"""CEL in objects, judged when they are written.

The compiler is loaded when the first expression comes. `drakkar.cel` remembers programs by
text, so that an expression in a thousand claims is compiled once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drakkar.api.errors import FieldError
from drakkar.api.features import Features

if TYPE_CHECKING:
    from drakkar.cel import CompileError


def as_upstream(error: CompileError) -> str:
    """The issues in the layout of upstream's compiler: place, message, line, a caret under the place."""
    found: list[str] = []
    lines = error.text.split("\n")
    # One place can be checked twice (macros copy their target); it is shown once.
    for issue in dict.fromkeys(error.issues):
        line, column = issue.line or 1, issue.column or 1
        shown = f"ERROR: <input>:{line}:{column}: {issue.message}"
        if line <= len(lines):
            source = lines[line - 1].rstrip("\r").replace("\t", " ")
            shown += f"\n | {source}\n | {'.' * max(column - 1, 0)}^"
        found.append(shown)
    return "\n".join(found)


def _judge(text: str, features: Features, derived: bool) -> list[FieldError]:
    from drakkar.cel import CompileError, compile_derived, compile_selector

    compile_ = compile_derived if derived else compile_selector
    try:
        program = compile_(text, environment="new-expressions", features=features)
    except CompileError as error:
        detail = f"compilation failed: {as_upstream(error)}"
        return [FieldError(type="FieldValueInvalid", field="", value=text, detail=detail)]
    if program.too_expensive:
        return [FieldError(type="FieldValueForbidden", field="", detail="too complex, exceeds cost limit")]
    return []


#: Characters of distinct expressions that one object may have. Compiling takes some 10 µs a character on the
#: event loop; upstream allows all that fits in a body, which would keep heartbeats waiting for half a minute.
MAX_TEXT = 128 << 10


#: What all derived attributes of a claim may cost together, by their estimates (spec/api.md 4.5).
DERIVED_BUDGET = 1_000_000


class Expressions:
    """The checkers that validation gets for one object, for the gates of one server."""

    def __init__(self, features: Features):
        self._features = features
        self._seen: set[str] = set()
        self._left = MAX_TEXT
        self._derived_cost = 0

    def selector(self, text: str) -> list[FieldError]:
        """Faults of a device selector."""
        return self._excess(text) or _judge(text, self._features, False)

    def derived_attribute(self, text: str) -> list[FieldError]:
        """Faults of the expression of a derived attribute."""
        found = self._excess(text) or _judge(text, self._features, True)
        if not found:
            from drakkar.cel import compile_derived

            program = compile_derived(text, environment="new-expressions", features=self._features)
            self._derived_cost += program.max_cost
            if self._derived_cost > DERIVED_BUDGET:
                detail = "too complex, the derived attributes of a claim together exceed its cost limit"
                return [FieldError(type="FieldValueForbidden", field="", detail=detail)]
        return found

    def _excess(self, text: str) -> list[FieldError]:
        if text not in self._seen:
            self._seen.add(text)
            self._left -= len(text)
        if self._left >= 0:
            return []
        detail = f"all expressions of an object together may not have more than {MAX_TEXT} characters"
        return [FieldError(type="FieldValueForbidden", field="", detail=detail)]
