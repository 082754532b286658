"""Selectors evaluated once per distinct combination of what they read.

Devices get dense row numbers in the order in which they are first asked about. For every attribute,
capacity and the driver that some selector reads there is a column of small integers, equal
values having equal numbers. A selector looks at the distinct tuples of its columns only: forty
thousand devices of three models cost three evaluations. A device whose own data cannot be read
by CEL (an attribute without a value, an impossible version) fails in every expression, so it
is asked by itself. Rows are only ever added, so snapshots of any age can share the tables.

Source: spec/engine.md section 2, spec/allocation.md section 9.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Protocol

from drakkar.api.errors import ParseError
from drakkar.api.resource.v1 import DeviceAttribute
from drakkar.inventory.devices import DeviceRecord, SliceRecord
from drakkar.inventory.pools import Base, Pool
from drakkar.inventory.published import Published, decoded, is_damaged, looked_up

if TYPE_CHECKING:
    from drakkar.cel.program import Program as CompiledProgram

#: New rows from which on they are asked about all together, which needs numpy.
_MANY: Final = 4096

#: New rows whose values are gathered together: many enough to be fast, few enough to be still in the processor's cache.
_TOGETHER: Final = 512

#: What a selector says about a device.
NO: Final = 1
YES: Final = 2
ERROR: Final = 3

Read = tuple[str, ...]


class Program(Protocol):
    """The part of a compiled selector that is used here (see the architecture page)."""

    @property
    def reads(self) -> frozenset[Any] | None: ...

    def evaluate(self, device: Any) -> bool: ...


class Derivation(Protocol):
    """A compiled derived attribute."""

    def value(self, device: Any) -> Any: ...


class Cel(Protocol):
    """How selectors are compiled and devices presented to them; the default is :mod:`drakkar.cel`."""

    def compile(self, text: str) -> Program:
        """The program; raises a :class:`~drakkar.api.errors.DrakkarError` when the text is wrong."""
        ...

    def compile_derived(self, text: str) -> Derivation:
        """The program of a derived attribute; raises like :meth:`compile`."""
        ...

    def attribute(self, value: Any) -> DeviceAttribute:
        """A value that a derivation gave, as an attribute; raises a DrakkarError when it cannot be one."""
        ...

    def present(self, record: DeviceRecord) -> Any:
        """The device as a program wants it."""
        ...


class Column:
    """What some read finds on every row: raw values (see :mod:`drakkar.inventory.published`), and numbers for them."""

    __slots__ = ("_codes", "_distinct", "_interned", "holes", "raw", "read", "texts")

    def __init__(self, read: Read) -> None:
        self.read = read
        self.raw: list[Any] = []
        #: Whether all are strings (or nothing).
        self.texts = read[0] in ("attributes", "driver")
        #: Whether some row has nothing.
        self.holes = False
        self._codes: array[int] = array("i")
        self._interned: dict[Any, int] = {None: 0}
        #: The values by number.
        self._distinct: list[Any] = [None]

    def extend(self, table: SelectorTable) -> None:
        """Adds the rows behind those that the column has."""
        start = len(self.raw)
        if start == len(table.rows):
            return
        loose = table.rows[max(start, table.gathered) :]
        match self.read:
            case ("driver",):
                self.raw += [row.slice.driver for row in table.rows[start:]]
            case ("multi",):
                self.raw += [True if row.multi else None for row in table.rows[start:]]
            case ("damaged",):
                self.raw += [None] * (len(table.rows) - start)
                for row in table.damaged(start):
                    # The device itself, because no other fails in the same way.
                    self.raw[row] = table.rows[row]
            case (kind, domain, name):
                for of, first, end in table.runs_from(start):
                    values, texts = of.values(kind, domain, name, first, end)
                    self.raw += values
                    self.texts = self.texts and texts
                if loose:
                    values = looked_up(loose, kind, domain, name)
                    self.raw += values
                    self.texts = self.texts and all([value is None or type(value) is str for value in values])
            case _:
                raise ValueError(f"{self.read} is no column")
        self.holes = self.holes or None in (self.raw[start:] if start else self.raw)

    @property
    def codes(self) -> array[int]:
        """One number per row; equal values have equal ones, 0 is nothing."""
        start = len(self._codes)
        if start < len(self.raw):
            fresh = self.raw[start:] if start else self.raw
            # Numbers are dealt out in one go, which is faster than one by one.
            known = self._interned
            new = [value for value in dict.fromkeys(fresh) if value not in known]
            known.update(zip(new, range(len(known), len(known) + len(new)), strict=True))
            self._distinct += new
            self._codes.extend(map(known.__getitem__, fresh))
        return self._codes

    def values(self) -> list[Any]:
        """By number, the values as expressions see them; :data:`drakkar.cel.values.ABSENT` for nothing."""
        known = len(self._interned) if self.codes else 1
        return [self.value(code) for code in range(known)]

    def value(self, code: int) -> Any:
        """The value that has the number, as expressions see it."""
        raw = self._distinct[code]
        return raw if type(raw) is str and self.read[0] != "capacity" else decoded(self.read[0], raw)


_DAMAGED: Final[Read] = ("damaged",)


class Selector:
    """One expression and what it says about every device asked so far."""

    __slots__ = ("_columns", "_errors", "_memo", "_probe", "fault", "program", "results", "text")

    def __init__(self, text: str, table: SelectorTable) -> None:
        self.text = text
        self.program: Program | None = None
        #: Why the text does not compile.
        self.fault: Exception | None = None
        try:
            self.program = table.cel.compile(text)
        except Exception as error:
            if not is_cel_error(error):
                raise
            self.fault = error
        self.results = bytearray()
        self._memo: dict[Any, int] = {}
        #: The errors among them, because some expressions take long to fail.
        self._errors: dict[Any, Exception] = {}
        self._columns: list[Column] | None = None
        self._probe: _Probe | None = None
        if self.program is not None and self.program.reads is not None:
            reads = sorted((tuple(read) for read in self.program.reads), key=str)
            self._columns = [table.column(read) for read in (*reads, _DAMAGED)]

    def extend(self, table: SelectorTable) -> None:
        """Asks about rows that are new since the last time."""
        rows = table.rows
        start = len(self.results)
        if self.program is None:
            self.results.extend(bytes((ERROR,)) * (len(rows) - start))
            return
        if len(rows) - start >= _MANY:
            together = table.together(self.program, start)
            if together is not None:
                self.results.extend(together)
                return
        if self._columns is None:
            for row in rows[start:]:
                answer = self._evaluate(row, table)
                self.results.append(ERROR if isinstance(answer, Exception) else YES if answer else NO)
            return
        for column in self._columns:
            column.extend(table)
        memo = self._memo
        keys = list(zip(*(column.codes[start:] for column in self._columns), strict=True))
        for offset, key in enumerate(keys):
            if key not in memo:
                answer = self._of_values(key, rows[start + offset], table)
                memo[key] = ERROR if isinstance(answer, Exception) else YES if answer else NO
                if isinstance(answer, Exception):
                    self._errors[key] = answer.with_traceback(None)
        self.results.extend([memo[key] for key in keys])

    def _of_values(self, key: tuple[int, ...], row: DeviceRecord, table: SelectorTable) -> bool | Exception:
        """The answer for devices with these numbers, of which ``row`` is one."""
        from drakkar.cel.program import Program as Compiled

        if key[-1] or self._columns is None or not isinstance(self.program, Compiled):
            return self._evaluate(row, table)
        if self._probe is None:
            self._probe = _Probe(self.program, self._columns[:-1])
        return self._probe.answer(key)

    def ask(self, row: DeviceRecord, table: SelectorTable) -> bool | Exception:
        """The answer for one device, or the error that the expression ends in."""
        number = table.row_of(row)
        if self._columns is not None and number is not None and number < len(self.results):
            if self.results[number] != ERROR:
                return self.results[number] == YES
            for column in self._columns:
                column.extend(table)
            key = tuple(column.codes[number] for column in self._columns)
            known = self._errors.get(key)
            if known is None:
                answer = self._evaluate(row, table)
                if isinstance(answer, Exception):
                    self._errors[key] = answer.with_traceback(None)
                return answer
            return known
        return self._evaluate(row, table)

    def _evaluate(self, row: DeviceRecord, table: SelectorTable) -> bool | Exception:
        if self.program is None:
            return self.fault or ParseError(self.text)
        try:
            return self.program.evaluate(table.cel.present(row))
        except Exception as error:
            if not is_cel_error(error):
                raise
            return error


class _Probe:
    """A device that holds only what an expression reads; it is changed for every question."""

    __slots__ = ("_columns", "_device", "_places", "_program")

    def __init__(self, program: CompiledProgram, columns: list[Column]) -> None:
        from drakkar.cel.device import DeviceInput

        self._program = program
        self._columns = columns
        self._device = DeviceInput.blank()
        self._places = [self._device.place(column.read) for column in columns]

    def answer(self, key: tuple[int, ...]) -> bool | Exception:
        """What the expression says about the values with these numbers."""
        for place, column, code in zip(self._places, self._columns, key, strict=False):
            place(column.value(code))
        try:
            return self._program.evaluate(self._device)
        except Exception as error:
            if not is_cel_error(error):
                raise
            return error


def _driver_of_row(row: DeviceRecord) -> str:
    return row.slice.driver


def _row_of_run(run: tuple[Published, int, int]) -> int:
    return run[2]


def is_cel_error(error: Exception) -> bool:
    """Whether an exception is the expression's own error and no defect of ours."""
    from drakkar.api.errors import DrakkarError

    return isinstance(error, DrakkarError)


class SelectorTable:
    """All selectors that were asked for lately, over all devices that were asked about."""

    def __init__(self, cel: Cel, limit: int = 1024) -> None:
        self.cel = cel
        self.rows: list[DeviceRecord] = []
        #: What the rows hold, by driver, and which rows are whose: (driver's, place there, row), by row.
        self._published: dict[str, Published] = {}
        self._runs: list[tuple[Published, int, int]] = []
        #: So many rows are in there; those behind them are few.
        self.gathered = 0
        #: Identity of a published slice → row of its first device; the others follow. Rows keep their slices alive.
        self._first: dict[int, int] = {}
        self._columns: dict[Read, Column] = {}
        self._selectors: dict[str, Selector] = {}
        self._derivations: dict[str, Derivation | Exception] = {}
        self._limit = limit
        #: The rows that were last asked about together, see :mod:`drakkar.inventory.fleet`.
        self._fleet: object = None

    def column(self, read: Read) -> Column:
        """The column for something that expressions read."""
        found = self._columns.get(read)
        if found is None:
            found = self._columns[read] = Column(read)
        return found

    def selector(self, text: str) -> Selector:
        """The selector; compiled on first use, the one unused for longest goes when there are too many."""
        found = self._selectors.pop(text, None)
        if found is None:
            if len(self._selectors) >= self._limit:
                del self._selectors[next(iter(self._selectors))]
            found = Selector(text, self)
        self._selectors[text] = found
        return found

    def forget_answers(self) -> None:
        """Lets go of what selectors said, but not of the columns they read (for measuring)."""
        self._selectors.clear()
        self._fleet = None

    def together(self, program: Program, start: int) -> bytes | None:
        """What a program says about all rows from ``start`` on; None when it can only be asked one by one."""
        from drakkar.cel.program import Program as Compiled

        if not isinstance(program, Compiled):
            return None
        from drakkar.inventory.fleet import Fleet

        fleet = self._fleet
        if not isinstance(fleet, Fleet) or fleet.start != start or fleet.end != len(self.rows):
            fleet = self._fleet = Fleet(self, start)
        return fleet.answers(program)

    def derive(self, text: str, record: DeviceRecord) -> DeviceAttribute | Exception:
        """A derived attribute of a device, or the error that its expression ends in."""
        program = self._derivations.get(text)
        try:
            if program is None:
                program = self.cel.compile_derived(text)
            if not isinstance(program, Exception):
                found: DeviceAttribute | Exception = self.cel.attribute(program.value(self.cel.present(record)))
            else:
                found = program
        except Exception as error:
            if not is_cel_error(error):
                raise
            found = error
            program = program or error
        if len(self._derivations) >= self._limit:
            self._derivations.clear()
        self._derivations[text] = program
        return found

    def uncompilable(self, text: str) -> bool:
        """Whether a derived attribute, asked for before, did not even compile."""
        return isinstance(self._derivations.get(text), Exception)

    def enter(self, record: SliceRecord) -> int:
        """Gives the devices of a slice their rows; returns the first. Taints make no difference."""
        if not record.devices:
            # No row would keep the slice alive, and another one could come to its identity.
            return len(self.rows)
        first = self._first.get(id(record.slice))
        if first is None:
            first = self._first[id(record.slice)] = len(self.rows)
            self.rows += record.devices
            if len(self.rows) - self.gathered >= _TOGETHER:
                self._gather()
        return first

    def _gather(self) -> None:
        """Turns the values of the rows that came since the last time on their side, driver by driver."""
        fresh: dict[str, list[DeviceRecord]] = {}
        for driver, group in groupby(self.rows[self.gathered :], key=_driver_of_row):
            of = self._published.get(driver)
            if of is None:
                of = self._published[driver] = Published(driver)
            devices = fresh.setdefault(driver, [])
            if not self._runs or self._runs[-1][0] is not of:
                self._runs.append((of, len(of.devices) + len(devices), self.gathered))
            before = len(devices)
            devices += group
            self.gathered += len(devices) - before
        for driver, devices in fresh.items():
            self._published[driver].add(devices)

    def runs_from(self, row: int) -> Iterator[tuple[Published, int, int]]:
        """Who published the gathered rows from ``row`` on: (the driver's, first place, end) in the order of rows."""
        number = bisect_right(self._runs, row, key=_row_of_run) - 1
        for at in range(max(number, 0), len(self._runs)):
            of, place, first = self._runs[at]
            end = self._runs[at + 1][2] if at + 1 < len(self._runs) else self.gathered
            skipped = max(row - first, 0)
            if first + skipped < end:
                yield of, place + skipped, place + end - first

    def damaged(self, start: int) -> list[int]:
        """Rows from ``start`` on of devices that cannot be turned into CEL values."""
        found: list[int] = []
        row = start
        for of, first, end in self.runs_from(start):
            found += [row + place - first for place in of.damaged[bisect_left(of.damaged, first) :] if place < end]
            row += end - first
        loose = max(start, self.gathered)
        return found + [loose + at for at, one in enumerate(self.rows[loose:]) if is_damaged(one)]

    def row_of(self, record: DeviceRecord) -> int | None:
        """Row of a device, if its slice was entered."""
        first = self._first.get(id(record.slice.slice))
        return None if first is None else first + record.slice.devices.index(record)

    def enter_all(self, pools: Iterable[Pool]) -> None:
        """Gives all devices their rows, so that a selector looks at all of them in one go."""
        for pool in pools:
            for record in pool.slices.values():
                self.enter(record)

    def rows_of(self, base: Base) -> list[tuple[int, int]]:
        """Where the devices of a pool stand in the tables: first row and end, slice by slice."""
        found: list[tuple[int, int]] = []
        for member in base.members:
            if member.devices and member.name in base.firsts:
                row = self.enter(member)
                found.append((row, row + len(member.devices)))
        return found

    def answers(self, text: str, rows: list[tuple[int, int]]) -> bytes:
        """What the selector says at each of the rows: NO, YES or ERROR."""
        selector = self.selector(text)
        if len(selector.results) < len(self.rows):
            selector.extend(self)
        return b"".join([selector.results[first:end] for first, end in rows])

    def codes(self, attribute: str, rows: list[tuple[int, int]]) -> bytes:
        """The values of an attribute at the rows; equal bytes stand for equal values."""
        domain, _, name = attribute.partition("/")
        column = self.column(("attributes", domain, name))
        if len(column.raw) < len(self.rows):
            column.extend(self)
        codes = column.codes
        return b"".join([codes[first:end].tobytes() for first, end in rows])

    def select(self, text: str, base: Base) -> tuple[int, int]:
        """Positions of a pool that the selector passes, and positions where it fails with an error."""
        answers = self.answers(text, self.rows_of(base))
        return mask_of(answers, YES), mask_of(answers, ERROR)


_BITS: Final = {wanted: bytes(49 if answer == wanted else 48 for answer in range(256)) for wanted in (YES, ERROR)}


def mask_of(answers: bytes, wanted: int) -> int:
    """The positions that have the wanted answer."""
    if wanted not in answers:
        return 0
    return int(answers[::-1].translate(_BITS[wanted]), 2)
