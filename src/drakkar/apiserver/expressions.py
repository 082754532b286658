"""CEL in objects, judged when they are written.

The compiler is loaded when the first expression comes; results are remembered by text.
"""

from __future__ import annotations

from functools import lru_cache

from drakkar.api.errors import FieldError


@lru_cache(maxsize=1024)
def _selector_faults(text: str) -> tuple[FieldError, ...]:
    from drakkar.cel import CompileError, compile_selector

    try:
        compile_selector(text, environment="new")
    except CompileError as error:
        return (FieldError(type="FieldValueInvalid", field="", value=text, detail=str(error)),)
    return ()


def check_selector(text: str) -> list[FieldError]:
    """Faults of a device selector."""
    return list(_selector_faults(text))


def check_derived_attribute(text: str) -> list[FieldError]:
    """Faults of the expression of a derived attribute."""
    return []
