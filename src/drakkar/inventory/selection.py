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
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, Protocol

from drakkar.api.errors import ParseError
from drakkar.api.quantity import Quantity
from drakkar.api.resource.v1 import DeviceAttribute
from drakkar.api.semver import Semver
from drakkar.inventory.devices import DeviceRecord, SliceRecord
from drakkar.inventory.pools import Base, Pool

#: New rows from which on they are asked about all together, which needs numpy.
_MANY: Final = 4096

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


class _Interned(dict[Any, int]):
    """Value → number; a value that is new gets the next one."""

    def __missing__(self, value: Any) -> int:
        self[value] = number = len(self)
        return number


class Column:
    """Numbers that stand for values; 0 is absent."""

    __slots__ = ("codes", "interned", "read", "versions")

    def __init__(self, read: Read) -> None:
        self.read = read
        self.codes: array[int] = array("i")
        self.interned: dict[Any, int] = _Interned({None: 0})
        #: Whether some attribute in the column is a version.
        self.versions = False

    def extend(self, rows: list[DeviceRecord]) -> None:
        """Adds the rows behind those that the column has."""
        start = len(self.codes)
        if start == len(rows):
            return
        known = len(self.interned)
        values = _READERS[self.read[0]](rows[start:] if start else rows, self.read)
        self.codes.extend(map(self.interned.__getitem__, values))
        if self.read[0] == "attributes" and not self.versions and len(self.interned) > known:
            fresh = list(self.interned)[known:]
            self.versions = any(type(value) is tuple and value[_VERSION] is not None for value in fresh)


def _drivers(rows: list[DeviceRecord], _read: Read) -> list[Any]:
    return [row.slice.driver for row in rows]


def _multi(rows: list[DeviceRecord], _read: Read) -> list[Any]:
    return [row.device.allowMultipleAllocations for row in rows]


def _attributes(rows: list[DeviceRecord], read: Read) -> list[Any]:
    """A string stands for itself, any other value for all fields of its attribute."""
    _, domain, name = read
    qualified = f"{domain}/{name}"
    values: list[Any] = []
    for row in rows:
        attributes = row.device.attributes
        found: DeviceAttribute | None = None
        if attributes:
            found = attributes.get(qualified)
            if found is None and row.slice.driver == domain:
                found = attributes.get(name)
        if found is None:
            values.append(None)
        elif found.string is not None:
            values.append(found.string)
        else:
            values.append(_fields(found))
    return values


#: Place of the version in what stands for an attribute.
_VERSION: Final = 2


def _fields(found: DeviceAttribute) -> tuple[Any, ...]:
    return (
        found.int,
        found.bool,
        found.version,
        None if found.strings is None else tuple(found.strings),
        None if found.ints is None else tuple(found.ints),
        None if found.bools is None else tuple(found.bools),
        None if found.versions is None else tuple(found.versions),
    )


def _capacities(rows: list[DeviceRecord], read: Read) -> list[Any]:
    _, domain, name = read
    qualified = f"{domain}/{name}"
    values: list[Any] = []
    for row in rows:
        capacity = row.device.capacity
        found = None
        if capacity:
            found = capacity.get(qualified)
            if found is None and row.slice.driver == domain:
                found = capacity.get(name)
        values.append(None if found is None else found.value)
    return values


def _damaged(rows: list[DeviceRecord], _read: Read) -> list[Any]:
    return [row if is_damaged(row) else None for row in rows]


_READERS: Final[dict[str, Callable[[list[DeviceRecord], Read], list[Any]]]] = {
    "driver": _drivers,
    "multi": _multi,
    "attributes": _attributes,
    "capacity": _capacities,
    "damaged": _damaged,
}
_DAMAGED: Final[Read] = ("damaged",)
_VALUELESS: Final = DeviceAttribute()


def is_damaged(row: DeviceRecord) -> bool:
    """Whether some attribute or capacity of the device cannot be turned into a CEL value."""
    device = row.device
    for attribute in (device.attributes or {}).values():
        if attribute.string is not None or attribute.int is not None or attribute.bool is not None:
            continue
        versions = attribute.versions or ()
        if attribute.version is not None:
            versions = (attribute.version,)
        elif attribute == _VALUELESS:
            return True
        for version in versions:
            try:
                Semver.parse(version)
            except ParseError:
                return True
    return bool(device.capacity) and not all(_is_quantity(capacity.value) for capacity in device.capacity.values())


@lru_cache(maxsize=4096)
def _is_quantity(text: str) -> bool:
    try:
        Quantity.parse(text)
    except ParseError:
        return False
    return True


class Selector:
    """One expression and what it says about every device asked so far."""

    __slots__ = ("_columns", "_errors", "_memo", "fault", "program", "results", "text")

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
        if self.program is not None and self.program.reads is not None:
            reads = sorted((tuple(read) for read in self.program.reads), key=str)
            self._columns = [table.column(read) for read in (*reads, _DAMAGED)]

    def extend(self, rows: list[DeviceRecord], table: SelectorTable) -> None:
        """Asks about rows that are new since the last time."""
        start = len(self.results)
        if self.program is None:
            self.results.extend(bytes((ERROR,)) * (len(rows) - start))
            return
        if self._columns is None:
            for row in rows[start:]:
                answer = self._evaluate(row, table)
                self.results.append(ERROR if isinstance(answer, Exception) else YES if answer else NO)
            return
        if len(rows) - start >= _MANY:
            together = table.together(self.program, start)
            if together is not None:
                self.results.extend(together)
                return
        for column in self._columns:
            column.extend(rows)
        memo = self._memo
        keys = list(zip(*(column.codes[start:] for column in self._columns), strict=True))
        for offset, key in enumerate(keys):
            if key not in memo:
                answer = self._evaluate(rows[start + offset], table)
                memo[key] = ERROR if isinstance(answer, Exception) else YES if answer else NO
                if isinstance(answer, Exception):
                    self._errors[key] = answer.with_traceback(None)
        self.results.extend([memo[key] for key in keys])

    def ask(self, row: DeviceRecord, table: SelectorTable) -> bool | Exception:
        """The answer for one device, or the error that the expression ends in."""
        number = table.row_of(row)
        if self._columns is not None and number is not None and number < len(self.results):
            if self.results[number] != ERROR:
                return self.results[number] == YES
            for column in self._columns:
                column.extend(table.rows)
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


def is_cel_error(error: Exception) -> bool:
    """Whether an exception is the expression's own error and no defect of ours."""
    from drakkar.api.errors import DrakkarError

    return isinstance(error, DrakkarError)


class SelectorTable:
    """All selectors that were asked for lately, over all devices that were asked about."""

    def __init__(self, cel: Cel, limit: int = 1024) -> None:
        self.cel = cel
        self.rows: list[DeviceRecord] = []
        #: Slice → row of its first device; the others follow.
        self._first: dict[SliceRecord, int] = {}
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
        """Gives the devices of a slice their rows; returns the first."""
        first = self._first.get(record)
        if first is None:
            first = self._first[record] = len(self.rows)
            self.rows += record.devices
        return first

    def row_of(self, record: DeviceRecord) -> int | None:
        """Row of a device, if its slice was entered."""
        first = self._first.get(record.slice)
        return None if first is None else first + record.slice.devices.index(record)

    def enter_all(self, pools: Iterable[Pool]) -> None:
        """Gives all devices their rows, so that a selector looks at all of them in one go."""
        for pool in pools:
            for record in pool.slices.values():
                self.enter(record)

    def answers(self, text: str, base: Base) -> bytes:
        """What the selector says per position of a pool: NO, YES or ERROR."""
        selector = self.selector(text)
        parts: list[bytearray] = []
        for member in base.members:
            if member.name not in base.firsts or not member.devices:
                continue
            row = self.enter(member)
            end = row + len(member.devices)
            if len(selector.results) < end:
                selector.extend(self.rows, self)
            parts.append(selector.results[row:end])
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def codes(self, attribute: str, base: Base) -> bytes:
        """The values of an attribute at the positions of a pool; equal bytes stand for equal values."""
        domain, _, name = attribute.partition("/")
        column = self.column(("attributes", domain, name))
        parts: list[bytes] = []
        for member in base.members:
            if member.name not in base.firsts or not member.devices:
                continue
            row = self.enter(member)
            end = row + len(member.devices)
            if len(column.codes) < end:
                column.extend(self.rows)
            parts.append(column.codes[row:end].tobytes())
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def select(self, text: str, base: Base) -> tuple[int, int]:
        """Positions of a pool that the selector passes, and positions where it fails with an error."""
        answers = self.answers(text, base)
        return mask_of(answers, YES), mask_of(answers, ERROR)


_BITS: Final = {wanted: bytes(49 if answer == wanted else 48 for answer in range(256)) for wanted in (YES, ERROR)}


def mask_of(answers: bytes, wanted: int) -> int:
    """The positions that have the wanted answer."""
    if wanted not in answers:
        return 0
    return int(answers[::-1].translate(_BITS[wanted]), 2)
