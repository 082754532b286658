"""Selectors over many rows at once, with numpy; loaded only for large fleets.

The codes of the selector table become the columns of :mod:`drakkar.cel.columns`: comparisons of
an attribute with a text are comparisons of numbers, even where every device has its own value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from drakkar.cel.access import Path
from drakkar.cel.columns import ColumnEvaluator
from drakkar.cel.program import Program

if TYPE_CHECKING:
    from drakkar.inventory.selection import Column, SelectorTable

_DAMAGED: Final = ("damaged",)


class Fleet:
    """The rows of a table from ``start`` on, as columns. Made anew when the table has grown."""

    def __init__(self, table: SelectorTable, start: int) -> None:
        self._table = table
        self.start = start
        self.end = len(table.rows)
        self._codes: dict[Path, NDArray[np.int32]] = {}
        self._evaluator = ColumnEvaluator(self)

    @property
    def rows(self) -> int:
        """How many devices there are."""
        return self.end - self.start

    def codes(self, path: Path) -> NDArray[np.int32]:
        """One number per device for the value at ``path``."""
        known = self._codes.get(path)
        if known is None:
            # A copy, because an array that lends its memory cannot grow.
            codes = self._column(path).codes
            known = self._codes[path] = np.frombuffer(codes, dtype=np.int32)[self.start :].copy()
        return known

    def _column(self, path: Path) -> Column:
        column = self._table.column(path)
        column.extend(self._table.rows)
        return column

    def code_of(self, path: Path, text: str) -> int | None:
        """The number of a string in the column."""
        return self._column(path).interned.get(text)

    def has_versions(self, path: Path) -> bool:
        """Whether some value in the column is a version."""
        return path[0] == "attributes" and self._column(path).versions

    def failing(self) -> NDArray[np.bool_]:
        """Devices on which every expression fails."""
        return self.codes(_DAMAGED) != 0

    def device(self, row: int) -> Any:
        """The device of a row."""
        return self._table.cel.present(self._table.rows[self.start + row])

    def answers(self, program: Program) -> bytes:
        """NO, YES or ERROR (as in :mod:`drakkar.inventory.selection`) per row."""
        return (self._evaluator.evaluate(program) + 1).astype(np.uint8).tobytes()
