"""Selectors over many rows at once, with numpy; loaded only for large fleets.

The columns of the selector table become those of :mod:`drakkar.cel.columns`: comparisons of an
attribute with texts are comparisons of a whole column, even where every device has its own value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from drakkar.cel.access import Path
from drakkar.cel.columns import ERROR, FALSE, TRUE, ColumnEvaluator
from drakkar.cel.program import Program

if TYPE_CHECKING:
    from drakkar.inventory.selection import Column, SelectorTable

_UNKNOWN: Final = np.zeros(0, dtype=np.bool_)


class FleetColumn:
    """A column of the selector table from some row on."""

    def __init__(self, column: Column, start: int) -> None:
        self._column = column
        self._start = start
        self._codes: NDArray[np.int32] | None = None
        self._values: list[Any] | None = None
        self._hashes: NDArray[np.int64] | None = None
        self._asked = 0
        self._varied: bool | None = None
        self._absent: NDArray[np.bool_] | None = _UNKNOWN
        self._rows = column.raw[start:] if start else column.raw

    @property
    def texts(self) -> Sequence[str | None] | None:
        """The strings of all rows, None where there is nothing, if there are no other values and few repeat."""
        if self._varied is None:
            sample = self._column.raw[self._start : self._start + _SAMPLE] if self._column.texts else []
            self._varied = 2 * len(set(sample)) > len(sample) - sample.count(None)
        return self._rows if self._varied else None

    @property
    def absent(self) -> NDArray[np.bool_] | None:
        """Rows without a value, None when there are none."""
        if self._absent is _UNKNOWN:
            self._absent = None
            if self._column.holes:
                self._absent = np.frombuffer(bytes([row is None for row in self._rows]), dtype=np.bool_)
        return self._absent

    @property
    def codes(self) -> NDArray[np.int32]:
        """One number per row."""
        if self._codes is None:
            # A copy, because an array that lends its memory cannot grow.
            self._codes = np.frombuffer(self._column.codes, dtype=np.int32)[self._start :].copy()
        return self._codes

    @property
    def values(self) -> Sequence[Any]:
        """Values by number."""
        if self._values is None:
            self._values = self._column.values()
        return self._values

    def having(self, texts: frozenset[str]) -> NDArray[np.bool_]:
        """Rows that hold one of the strings. Numbers are made of the strings when this is asked again."""
        rows = self._rows
        self._asked += 1
        if self._asked == 1 and len(texts) == 1:
            return _searched(rows, *texts)
        if self._asked == 1 or len(texts) > _FEW:
            return np.frombuffer(bytes([row in texts for row in rows]), dtype=np.bool_)
        if self._hashes is None:
            self._hashes = np.fromiter(map(hash, rows), dtype=np.int64, count=len(rows))
        found = np.zeros(len(rows), dtype=np.bool_)
        for text in texts:
            for row in np.flatnonzero(self._hashes == hash(text)).tolist():
                found[row] = rows[row] == text
        return found


#: Answers of the evaluator in the words of the selector table.
_WORDS: Final = bytes(range(256)).translate(bytes.maketrans(bytes((FALSE, TRUE, ERROR)), bytes((1, 2, 3))))


def _searched(rows: list[Any], text: str) -> NDArray[np.bool_]:
    """Rows that hold the string, which few do."""
    found = np.zeros(len(rows), dtype=np.bool_)
    at = -1
    for _ in range(rows.count(text)):
        at = rows.index(text, at + 1)
        found[at] = True
    return found


#: More strings than this are faster looked up in a set than compared one by one.
_FEW: Final = 16
#: So many rows tell whether the values of a column repeat.
_SAMPLE: Final = 512


class Fleet:
    """The rows of a table from ``start`` on, as columns. Made anew when the table has grown."""

    def __init__(self, table: SelectorTable, start: int) -> None:
        self._table = table
        self.start = start
        self.end = len(table.rows)
        self._columns: dict[Path, FleetColumn] = {}
        self._evaluator = ColumnEvaluator(self)

    @property
    def rows(self) -> int:
        """How many devices there are."""
        return self.end - self.start

    def column(self, path: Path) -> FleetColumn:
        """What is at the path, for every device."""
        known = self._columns.get(path)
        if known is None:
            column = self._table.column(path)
            column.extend(self._table)
            known = self._columns[path] = FleetColumn(column, self.start)
        return known

    def failing(self) -> NDArray[np.bool_]:
        """Devices on which every expression fails."""
        found = np.zeros(self.rows, dtype=np.bool_)
        found[[row - self.start for row in self._table.damaged(self.start)]] = True
        return found

    def device(self, row: int) -> Any:
        """The device of a row."""
        return self._table.cel.present(self._table.rows[self.start + row])

    def answers(self, program: Program) -> bytes:
        """NO, YES or ERROR (as in :mod:`drakkar.inventory.selection`) per row."""
        return self._evaluator.evaluate(program).tobytes().translate(_WORDS)
