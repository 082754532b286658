"""Evaluate a selector on a whole fleet at once.

Devices differ in everything (serial numbers), but an expression reads little of them. Each
thing that is read is a column. A selector is split at its logical operators; every part is
evaluated once per distinct combination of the values it reads, and comparisons of one column with
constant texts run over the column itself. Results are three-valued, because an error counts
only when the search reaches its device.

Source: spec/cel-choice.md section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from drakkar.cel.access import Path
from drakkar.cel.device import DeviceInput
from drakkar.cel.errors import EvaluationError
from drakkar.cel.program import Program
from drakkar.cel.texttests import TextTest
from drakkar.cel.values import kind_of

#: In this order ``&&`` is the lesser and ``||`` the greater of two answers: an error counts unless the other decides.
FALSE: Final = 0
ERROR: Final = 1
TRUE: Final = 2

Codes: TypeAlias = NDArray[np.int32]
Answers: TypeAlias = NDArray[np.int8]


class Column(Protocol):
    """One thing that expressions read, for every device of a fleet."""

    @property
    def texts(self) -> Sequence[str | None] | None:
        """The strings of all rows, to be looked at one by one, None on rows without a value.

        None where some row holds something else, or where asking each distinct value once is cheaper.
        """
        ...

    @property
    def absent(self) -> NDArray[np.bool_] | None:
        """Rows without a value, None when there are none; only asked where ``texts`` is not None."""
        ...

    @property
    def codes(self) -> Codes:
        """One number per row; equal numbers mean equal values."""
        ...

    @property
    def values(self) -> Sequence[Any]:
        """Values by number, as expressions see them; :data:`~drakkar.cel.values.ABSENT` where there is none."""
        ...

    def having(self, texts: frozenset[str]) -> NDArray[np.bool_]:
        """Rows that hold one of the strings; only asked where ``texts`` is not None."""
        ...


class Columns(Protocol):
    """A fleet as columns. It does not change while an evaluator uses it."""

    @property
    def rows(self) -> int:
        """How many devices there are."""
        ...

    def column(self, path: Path) -> Column:
        """The column of a path that :attr:`Program.reads` may name."""
        ...

    def failing(self) -> NDArray[np.bool_]:
        """Per device, whether every expression fails on it."""
        ...

    def device(self, row: int) -> DeviceInput:
        """The device of a row."""
        ...


class ColumnEvaluator:
    """Evaluates programs on one state of a fleet; groupings are kept between programs."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._groups: dict[frozenset[Path], tuple[NDArray[np.intp], NDArray[np.intp]]] = {}
        self._damaged: NDArray[np.bool_] | None = None

    def evaluate(self, program: Program) -> Answers:
        """:data:`FALSE`, :data:`ERROR` or :data:`TRUE` per device."""
        if not self._columns.rows:
            return np.zeros(0, dtype=np.int8)
        answers = self._evaluate(program).copy()
        answers[self._failing()] = ERROR
        return answers

    def _failing(self) -> NDArray[np.bool_]:
        if self._damaged is None:
            self._damaged = self._columns.failing()
        return self._damaged

    def _evaluate(self, program: Program) -> Answers:
        operator, parts = program.operands()
        if operator == "!_":
            return TRUE - self._evaluate(parts[0])
        if operator:
            decides = FALSE if operator == "_&&_" else TRUE
            result = self._evaluate(parts[0])
            for part in parts[1:]:
                # What is decided everywhere needs no further look.
                if not (result != decides).any():
                    break
                other = self._evaluate(part)
                result = np.minimum(result, other) if decides == FALSE else np.maximum(result, other)
            return result
        return self._leaf(program)

    def _leaf(self, program: Program) -> Answers:
        reads = program.reads
        if reads is None:
            return self._each(program)
        if not reads:
            return np.full(self._columns.rows, _answer(program, DeviceInput.blank()), dtype=np.int8)
        if len(reads) == 1:
            (path,) = reads
            return self._single(program, path, self._columns.column(path))
        paths = sorted(reads)
        columns = [self._columns.column(path) for path in paths]
        representatives, groups = self._grouped(frozenset(reads), columns)
        device = DeviceInput.blank()
        places = [device.place(path) for path in paths]
        values = [column.values for column in columns]
        answers = bytearray()
        for row in zip(*(column.codes[representatives].tolist() for column in columns), strict=True):
            for place, of, code in zip(places, values, row, strict=True):
                place(of[code])
            answers.append(_answer(program, device))
        return np.frombuffer(answers, dtype=np.int8)[groups]

    def _single(self, program: Program, path: Path, column: Column) -> Answers:
        test = program.text_test()
        texts = None if test is None else column.texts
        if test is not None and texts is not None:
            return _of_texts(program, path, column, test, texts)
        return _table(program, path, column.values)[column.codes]

    def _grouped(self, reads: frozenset[Path], columns: Sequence[Column]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        known = self._groups.get(reads)
        if known is not None:
            return known
        key = np.zeros(self._columns.rows, dtype=np.int64)
        size = 1
        representatives = np.zeros(0, dtype=np.intp)
        for column in columns:
            codes = column.codes
            values = int(codes.max()) + 1
            # Renumbered each time, so that the product of many columns stays small.
            representatives, key = _distinct(key * values + codes, size * values)
            size = len(representatives)
        groups = key.astype(np.intp)
        self._groups[reads] = representatives, groups
        return representatives, groups

    def _each(self, program: Program) -> Answers:
        answers = (_answer(program, self._columns.device(row)) for row in range(self._columns.rows))
        return np.fromiter(answers, dtype=np.int8, count=self._columns.rows)


def _of_texts(program: Program, path: Path, column: Column, test: TextTest, texts: Sequence[str | None]) -> Answers:
    """Answers of a test over a column of strings."""
    absent = column.absent
    if test.wanted is not None:
        answers = _of_bools(column.having(test.wanted) ^ test.negated)
    elif absent is None:
        answers = _of_bools(np.frombuffer(bytes(test.apply(cast("Sequence[str]", texts))), dtype=np.bool_))
    else:
        answers = np.zeros(len(texts), dtype=np.int8)
        present = [text for text in texts if text is not None]
        answers[~absent] = _of_bools(np.frombuffer(bytes(test.apply(present)), dtype=np.bool_))
    if absent is not None:
        # A device that has nothing at the path.
        answers[absent] = _answer(program, DeviceInput.blank())
    return answers


def _of_bools(bools: NDArray[np.bool_]) -> Answers:
    return bools.astype(np.int8) * np.int8(TRUE)


def _table(program: Program, path: Path, values: Sequence[Any]) -> Answers:
    """The answer for each of the values."""
    device = DeviceInput.blank()
    place = device.place(path)
    answers = bytearray()
    test = program.text_test()
    if test is not None:
        texts = [value for value in values if kind_of(value) is str]
        of_texts = iter(test.apply(texts))
        for value in values:
            if kind_of(value) is str:
                answers.append(TRUE if next(of_texts) else FALSE)
            else:
                place(value)
                answers.append(_answer(program, device))
        return np.frombuffer(answers, dtype=np.int8)
    for value in values:
        place(value)
        answers.append(_answer(program, device))
    return np.frombuffer(answers, dtype=np.int8)


def _answer(program: Program, device: DeviceInput) -> int:
    try:
        return TRUE if program.evaluate(device) else FALSE
    except EvaluationError:
        return ERROR


def _distinct(key: NDArray[np.int64], size: int) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """A row for each of the distinct numbers in ``key``, all below ``size``, and per row which of them it has."""
    if size > 4 * len(key) + 1024:
        _, representatives, groups = np.unique(key, return_index=True, return_inverse=True)
        return representatives, groups.astype(np.int64)
    # Numbers as dense as this are looked up in a table, without sorting.
    table = np.full(size, -1, dtype=np.int64)
    table[key] = np.arange(len(key))
    distinct = np.flatnonzero(table >= 0)
    representatives = table[distinct]
    table[distinct] = np.arange(len(distinct))
    return representatives, table[key]
