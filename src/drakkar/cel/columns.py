"""Evaluate a selector on a whole fleet at once.

Devices differ in everything (serial numbers), but an expression reads little of them. Each
thing that is read is a column of small numbers (0: absent). A selector is split at its
logical operators; every part is evaluated once per distinct combination of the numbers it
reads, and ``path == "text"`` is a comparison of numbers. Results are three-valued, because
an error counts only when the search reaches its device.

Source: spec/cel-choice.md section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from drakkar.api.semver import Semver
from drakkar.cel.access import Path
from drakkar.cel.device import DeviceInput
from drakkar.cel.errors import EvaluationError
from drakkar.cel.program import Program
from drakkar.cel.values import kind_of

FALSE: Final = 0
TRUE: Final = 1
ERROR: Final = 2

Codes: TypeAlias = NDArray[np.int32]
Answers: TypeAlias = NDArray[np.int8]


class Columns(Protocol):
    """A fleet as columns. It does not change while an evaluator uses it."""

    @property
    def rows(self) -> int:
        """How many devices there are."""
        ...

    def codes(self, path: Path) -> Codes:
        """One number per device for the value at ``path``; equal numbers mean equal values, 0 absent."""
        ...

    def code_of(self, path: Path, text: str) -> int | None:
        """The number of a string in the column, None when no device has it."""
        ...

    def has_versions(self, path: Path) -> bool:
        """Whether some value in the column is a version, which refuses comparison with a string."""
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
        """:data:`FALSE`, :data:`TRUE` or :data:`ERROR` per device."""
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
            inner = self._evaluate(parts[0])
            return _NOT[inner]
        if operator:
            decides = FALSE if operator == "_&&_" else TRUE
            result = self._evaluate(parts[0])
            for part in parts[1:]:
                # What is decided everywhere needs no further look.
                if not (result != decides).any():
                    break
                result = _combine(result, self._evaluate(part), decides)
            return result
        return self._leaf(program)

    def _leaf(self, program: Program) -> Answers:
        equality = program.equality()
        if equality is not None and type(equality.value) is str and equality.path != ("multi",):
            versions_matter = not equality.literal_first and self._columns.has_versions(equality.path)
            if not versions_matter:
                return self._equal(equality.path, equality.value)
        reads = program.reads
        if reads is None:
            return self._each(program, range(self._columns.rows))
        if not reads:
            row = int(np.argmin(self._failing()))
            return np.full(self._columns.rows, _answer(program, self._columns.device(row)), dtype=np.int8)
        representatives, groups = self._grouped(reads)
        return self._each(program, representatives.tolist())[groups]

    def _equal(self, path: Path, text: str) -> Answers:
        codes = self._columns.codes(path)
        code = self._columns.code_of(path, text)
        answers = np.zeros(len(codes), dtype=np.int8) if code is None else (codes == code).astype(np.int8)
        if len(path) == 3:
            answers[codes == 0] = ERROR
        return answers

    def _grouped(self, reads: frozenset[Path]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        known = self._groups.get(reads)
        if known is not None:
            return known
        key = self._failing().astype(np.int64)
        size = 2
        representatives = np.zeros(0, dtype=np.intp)
        for path in sorted(reads):
            codes = self._columns.codes(path)
            values = int(codes.max()) + 1
            # Renumbered each time, so that the product of many columns stays small.
            representatives, key = _distinct(key * values + codes, size * values)
            size = len(representatives)
        groups = key.astype(np.intp)
        self._groups[reads] = representatives, groups
        return representatives, groups

    def _each(self, program: Program, rows: Sequence[int]) -> Answers:
        answers = (_answer(program, self._columns.device(row)) for row in rows)
        return np.fromiter(answers, dtype=np.int8, count=len(rows))


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


_NOT: Final[Answers] = np.array([TRUE, FALSE, ERROR], dtype=np.int8)


def _combine(one: Answers, other: Answers, decides: int) -> Answers:
    """``&&`` (decided by false) or ``||`` (decided by true) of three-valued vectors."""
    result = np.maximum(one, other) if decides == FALSE else np.where((one == ERROR) | (other == ERROR), ERROR, one)
    decided = (one == decides) | (other == decides)
    if decides == FALSE:
        return np.where(decided, np.int8(FALSE), result).astype(np.int8)
    return np.where(decided, np.int8(TRUE), result).astype(np.int8)


class DeviceColumns:
    """Columns made from a list of devices, built when first read."""

    def __init__(self, devices: Sequence[DeviceInput]) -> None:
        self._devices = devices
        self._columns: dict[Path, tuple[Codes, dict[Any, int], bool]] = {}

    @property
    def rows(self) -> int:
        """How many devices there are."""
        return len(self._devices)

    def failing(self) -> NDArray[np.bool_]:
        """Devices whose own data cannot be read."""
        return np.fromiter((device.error is not None for device in self._devices), dtype=np.bool_)

    def device(self, row: int) -> DeviceInput:
        """The device of a row."""
        return self._devices[row]

    def codes(self, path: Path) -> Codes:
        """One number per device."""
        return self._column(path)[0]

    def code_of(self, path: Path, text: str) -> int | None:
        """The number of a string."""
        return self._column(path)[1].get((str, text))

    def has_versions(self, path: Path) -> bool:
        """Whether some value is a version."""
        return self._column(path)[2]

    def _column(self, path: Path) -> tuple[Codes, dict[Any, int], bool]:
        known = self._columns.get(path)
        if known is None:
            known = self._columns[path] = self._build(path)
        return known

    def _build(self, path: Path) -> tuple[Codes, dict[Any, int], bool]:
        interned: dict[Any, int] = {None: 0}
        codes = np.zeros(len(self._devices), dtype=np.int32)
        versions = False
        for row, device in enumerate(self._devices):
            value = _value(device, path)
            if value is None:
                continue
            versions = versions or type(value) is Semver
            codes[row] = interned.setdefault(_identity(value), len(interned))
        return codes, interned, versions


def _value(device: DeviceInput, path: Path) -> Any:
    match path:
        case ("driver",):
            return device.driver
        case ("multi",):
            return device.multi
        case ("attributes", domain, name):
            return device.attributes[domain].get(name)
        case ("capacity", domain, name):
            return device.capacity[domain].get(name)
        case _:
            raise ValueError(f"{path} is no column")


def _identity(value: Any) -> Any:
    """A hashable stand-in that differs wherever an expression could tell two values apart."""
    if kind_of(value) is list:
        return (list, tuple(map(_identity, value)))
    if isinstance(value, Semver):
        return (Semver, str(value))
    if hasattr(value, "nanos"):
        return (type(value), value.nanos, value.scale)
    return (type(value), value)
