"""CEL in objects, judged when they are written.

The compiler is loaded when the first expression comes. `drakkar.cel` remembers programs by
text, so that an expression in a thousand claims is compiled once.
"""

from __future__ import annotations

from drakkar.api.errors import FieldError
from drakkar.api.features import Features


def _judge(text: str, features: Features, derived: bool) -> list[FieldError]:
    from drakkar.cel import CompileError, compile_derived, compile_selector

    compile_ = compile_derived if derived else compile_selector
    try:
        program = compile_(text, environment="new-expressions", features=features)
    except CompileError as error:
        text_ = f"compilation failed: ERROR: <input>: {error}"
        return [FieldError(type="FieldValueInvalid", field="", value=text, detail=text_)]
    if program.too_expensive:
        return [FieldError(type="FieldValueForbidden", field="", detail="too complex, exceeds cost limit")]
    return []


class Expressions:
    """The checkers that validation gets, for the gates of one server."""

    def __init__(self, features: Features):
        self._features = features

    def selector(self, text: str) -> list[FieldError]:
        """Faults of a device selector."""
        return _judge(text, self._features, False)

    def derived_attribute(self, text: str) -> list[FieldError]:
        """Faults of the expression of a derived attribute."""
        return _judge(text, self._features, True)
