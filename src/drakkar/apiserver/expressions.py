"""CEL in objects, judged when they are written.

The compiler is loaded when the first expression comes; results are remembered by text.
"""

from __future__ import annotations

from functools import lru_cache

from drakkar.api.errors import FieldError


@lru_cache(maxsize=1024)
def _faults(text: str, derived: bool) -> tuple[FieldError, ...]:
    from drakkar.cel import COST_LIMIT, CompileError, compile_derived, compile_selector

    try:
        program = (compile_derived if derived else compile_selector)(text, environment="new-expressions")
    except CompileError as error:
        return (FieldError(type="FieldValueInvalid", field="", value=text, detail=str(error)),)
    if program.too_expensive:
        detail = f"too complex, exceeds cost limit: the estimate is {program.max_cost}, the limit {COST_LIMIT}"
        return (FieldError(type="FieldValueForbidden", field="", detail=detail),)
    return ()


def check_selector(text: str) -> list[FieldError]:
    """Faults of a device selector."""
    return list(_faults(text, False))


def check_derived_attribute(text: str) -> list[FieldError]:
    """Faults of the expression of a derived attribute."""
    return list(_faults(text, True))
