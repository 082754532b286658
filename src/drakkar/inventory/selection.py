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
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from drakkar.api.errors import ParseError
from drakkar.api.quantity import Quantity
from drakkar.api.resource.v1 import DeviceAttribute, DeviceCapacity
from drakkar.api.semver import Semver
from drakkar.inventory.devices import DeviceRecord, SliceRecord
from drakkar.inventory.pools import Base, Pool

if TYPE_CHECKING:
    from drakkar.cel.program import Program as CompiledProgram

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


class Column:
    """What some read finds on every row: raw values, and numbers for them when they are asked for.

    A raw value is a string or an int as it is, None where there is nothing, else a tuple that begins with the field
    of the attribute. ``texts`` says whether all are strings.
    """

    __slots__ = ("_codes", "_distinct", "_interned", "raw", "read", "texts")

    def __init__(self, read: Read) -> None:
        self.read = read
        self.raw: list[Any] = []
        self.texts = read[0] in ("attributes", "driver")
        self._codes: array[int] = array("i")
        self._interned: dict[Any, int] = {None: 0}
        #: The values by number.
        self._distinct: list[Any] = [None]

    def extend(self, table: SelectorTable) -> None:
        """Adds the rows behind those that the column has."""
        start = len(self.raw)
        if start == len(table.rows):
            return
        values, texts = _READERS[self.read[0]](table, start, self.read)
        self.raw += values
        self.texts = self.texts and texts

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
        return raw if type(raw) is str and self.read[0] != "capacity" else _decoded(self.read[0], raw)


def _decoded(kind: str, raw: Any) -> Any:
    from drakkar.cel.values import ABSENT

    if kind == "multi":
        return raw is True
    if raw is None:
        return ABSENT
    if kind == "capacity":
        return _parsed(Quantity.parse, raw)
    if type(raw) is not tuple:
        return raw
    field, value = cast("tuple[str, Any]", raw)
    if field == "version":
        return _parsed(Semver.parse, value)
    if field == "versions":
        return [_parsed(Semver.parse, version) for version in value]
    return value if field == "bool" else list(value)


def _parsed(parse: Callable[[str], Any], text: str) -> Any:
    from drakkar.cel.values import ABSENT

    try:
        return parse(text)
    except ParseError:
        # Only on devices on which every expression fails anyway.
        return ABSENT


# What a column is filled from. The common case, the same kind of value on all rows, takes no step per row in Python.

Filled = tuple[list[Any], bool]
#: ``dict.get`` and ``dict.values``, for maps of maps.
_GET: Final = cast("Callable[..., Any]", dict[str, Any].get)
_VALUES: Final = cast("Callable[[Any], Iterable[Any]]", dict[str, Any].values)
_NO_ATTRIBUTES: Final[dict[str, DeviceAttribute]] = {}
_NO_CAPACITIES: Final[dict[str, DeviceCapacity]] = {}
_NO_ATTRIBUTE: Final = DeviceAttribute()
_NO_CAPACITY: Final = DeviceCapacity(value="")


def _drivers(table: SelectorTable, start: int, _read: Read) -> Filled:
    return table.drivers[start:], True


def _multi(table: SelectorTable, start: int, _read: Read) -> Filled:
    return [True if row.multi else None for row in table.rows[start:]], False


def _found(table: SelectorTable, start: int, read: Read, maps: list[Any], nothing: Any) -> list[Any]:
    """What each row has under a name: spelled with its domain or, in the domain of its driver, without."""
    _, domain, name = read
    maps = maps[start:] if start else maps
    qualified = list(map(_GET, maps, repeat(f"{domain}/{name}")))
    if domain not in table.domains:
        return [nothing if one is None else one for one in qualified]
    if len(table.domains) == 1:
        bare = list(map(_GET, maps, repeat(name), repeat(nothing)))
    else:
        drivers = table.drivers[start:]
        bare = [one.get(name, nothing) if of == domain else nothing for one, of in zip(maps, drivers, strict=True)]
    if not any(qualified):
        return bare
    return [short if long is None else long for long, short in zip(qualified, bare, strict=True)]


def _attributes(table: SelectorTable, start: int, read: Read) -> Filled:
    found: list[DeviceAttribute] = _found(table, start, read, table.attributes(), _NO_ATTRIBUTE)
    texts = [one.string for one in found]
    missing = texts.count(None)
    if not missing:
        return texts, True
    if missing == len(texts):
        versions = [one.version for one in found]
        if not versions.count(None):
            shared = {version: ("version", version) for version in dict.fromkeys(versions)}
            return [shared[version] for version in versions], False
        numbers = [one.int for one in found]
        if not numbers.count(None):
            return numbers, False
    return [_raw(one) if text is None else text for text, one in zip(texts, found, strict=True)], False


_TRUE: Final = ("bool", True)
_FALSE: Final = ("bool", False)


def _raw(found: DeviceAttribute) -> Any:
    if found is _NO_ATTRIBUTE:
        return None
    if found.int is not None:
        return found.int
    if found.bool is not None:
        return _TRUE if found.bool else _FALSE
    if found.version is not None:
        return ("version", found.version)
    for field in ("ints", "bools", "strings", "versions"):
        values = cast("list[Any] | None", getattr(found, field))
        if values is not None:
            return (field, tuple(values))
    return None


def _capacities(table: SelectorTable, start: int, read: Read) -> Filled:
    found: list[DeviceCapacity] = _found(table, start, read, table.capacities(), _NO_CAPACITY)
    return [None if one is _NO_CAPACITY else one.value for one in found], False


def _damaged(table: SelectorTable, start: int, _read: Read) -> Filled:
    if not _suspicious(table, start):
        return [None] * (len(table.rows) - start), False
    return [row if is_damaged(row) else None for row in table.rows[start:]], False


def _suspicious(table: SelectorTable, start: int) -> bool:
    """Whether some device of the rows may be damaged; a look at all attributes that does not stop at each device."""
    attributes = chain.from_iterable(map(_VALUES, table.attributes()[start:]))
    odd: list[DeviceAttribute] = [
        one for one in attributes if one.string is None and one.int is None and one.bool is None
    ]
    versions: set[str] = set()
    for one in odd:
        if one.version is not None:
            versions.add(one.version)
        elif one.versions is not None:
            versions.update(one.versions)
        elif one == _VALUELESS:
            return True
    capacities = chain.from_iterable(map(_VALUES, table.capacities()[start:]))
    amounts: set[str] = {one.value for one in capacities}
    return not (all(map(_is_version, versions)) and all(map(_is_quantity, amounts)))


_READERS: Final[dict[str, Callable[[SelectorTable, int, Read], Filled]]] = {
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
        if not all(map(_is_version, versions)):
            return True
    return bool(device.capacity) and not all(_is_quantity(capacity.value) for capacity in device.capacity.values())


@lru_cache(maxsize=4096)
def _is_version(text: str) -> bool:
    try:
        Semver.parse(text)
    except ParseError:
        return False
    return True


@lru_cache(maxsize=4096)
def _is_quantity(text: str) -> bool:
    try:
        Quantity.parse(text)
    except ParseError:
        return False
    return True


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


def is_cel_error(error: Exception) -> bool:
    """Whether an exception is the expression's own error and no defect of ours."""
    from drakkar.api.errors import DrakkarError

    return isinstance(error, DrakkarError)


class SelectorTable:
    """All selectors that were asked for lately, over all devices that were asked about."""

    def __init__(self, cel: Cel, limit: int = 1024) -> None:
        self.cel = cel
        self.rows: list[DeviceRecord] = []
        #: Driver of each row, and all drivers there are.
        self.drivers: list[str] = []
        self.domains: set[str] = set()
        self._attributes: list[dict[str, DeviceAttribute]] = []
        self._capacities: list[dict[str, DeviceCapacity]] = []
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
            self.drivers += [record.driver] * len(record.devices)
            self.domains.add(record.driver)
        return first

    def attributes(self) -> list[dict[str, DeviceAttribute]]:
        """The attributes of each row, as published."""
        fresh = self.rows[len(self._attributes) :]
        if fresh:
            self._attributes += [row.device.attributes or _NO_ATTRIBUTES for row in fresh]
        return self._attributes

    def capacities(self) -> list[dict[str, DeviceCapacity]]:
        """The capacity of each row, as published."""
        fresh = self.rows[len(self._capacities) :]
        if fresh:
            self._capacities += [row.device.capacity or _NO_CAPACITIES for row in fresh]
        return self._capacities

    def row_of(self, record: DeviceRecord) -> int | None:
        """Row of a device, if its slice was entered."""
        first = self._first.get(record.slice)
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
