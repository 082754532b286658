"""Quantities: exact decimal amounts with the suffixes of Kubernetes (``1Gi``, ``250m``, ``1e3``).

The number is kept as an integer count of nano units, the finest amount the API knows, so
arithmetic and order are exact and no float is involved. Beside it stand two properties of
the *spelling* that remain visible to clients: the family of suffixes, which decides how
the amount is printed, and the decimal scale, which decides whether CEL's ``isInteger``
holds (``1`` is an integer there, ``1000m`` and ``1.0`` are not).

Source: spec/api.md section 2, spec/cel-choice.md 3.2 number 11.
"""

from __future__ import annotations

from functools import lru_cache, total_ordering
from typing import Final, Literal

from drakkar.api.errors import ParseError

Format = Literal["DecimalSI", "BinarySI", "DecimalExponent"]

NANO_DIGITS: Final = 9
_NANO: Final = 10**NANO_DIGITS
_MILLI_IN_NANO: Final = 10**6
INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)

#: Amounts whose digits leave the short form of upstream are capped here.
_MAX_LONG: Final = INT64_MAX * _NANO
#: More than any machine has; keeps a hostile exponent from filling memory.
_MAX_EXPONENT: Final = 1000

_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_SUFFIX: Final = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY_SUFFIX: Final = {exponent // 10: suffix for suffix, exponent in _BINARY.items()}

_WRONG_FORM: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_WRONG_SUFFIX: Final = "unable to parse quantity's suffix"
_DIGITS: Final = frozenset("0123456789")
_SUFFIX_LETTERS: Final = frozenset("eEinumkKMGTP")


@total_ordering
class Quantity:
    """An immutable amount; equality and order look at the number, never at the spelling.

    ``nanos`` is the amount in 1e-9 units. ``scale`` is the power of ten of the last written
    digit, or None for numbers too long for upstream's short form; ``format`` is the suffix
    family.
    """

    __slots__ = ("format", "nanos", "scale")

    nanos: int
    scale: int | None
    format: Format

    def __init__(self, nanos: int, scale: int | None = None, format: Format = "DecimalSI") -> None:
        self.nanos = nanos
        self.scale = scale
        self.format = format

    @staticmethod
    def parse(text: str) -> Quantity:
        """The quantity that ``text`` spells; :class:`ParseError` when it spells none. Cached."""
        return _parse(text)

    @staticmethod
    def from_int(value: int, format: Format = "DecimalSI") -> Quantity:
        """``value`` whole units."""
        return Quantity(value * _NANO, 0, format)

    @staticmethod
    def from_milli(value: int) -> Quantity:
        """``value`` thousandths, as CPU amounts are counted."""
        return Quantity(value * _MILLI_IN_NANO, -3)

    # Arithmetic. The family of suffixes of a sum comes from the left side, unless that is zero.

    def __add__(self, other: Quantity) -> Quantity:
        return self._with(other, self.nanos + other.nanos)

    def __sub__(self, other: Quantity) -> Quantity:
        return self._with(other, self.nanos - other.nanos)

    def __mul__(self, other: Quantity) -> Quantity:
        """The product, rounded up to whole nano units; binary when either side is."""
        binary = "BinarySI" in (self.format, other.format)
        return Quantity(-(-self.nanos * other.nanos // _NANO), None, "BinarySI" if binary else "DecimalSI")

    def __neg__(self) -> Quantity:
        return Quantity(-self.nanos, self.scale, self.format)

    def _with(self, other: Quantity, nanos: int) -> Quantity:
        format = self.format if self.nanos else other.format
        if self.scale is None or other.scale is None:
            return Quantity(nanos, None, format)
        scale = self.scale if not other.nanos else other.scale if not self.nanos else min(self.scale, other.scale)
        value = nanos // 10 ** (scale + NANO_DIGITS)
        return Quantity(nanos, scale if INT64_MIN <= value <= INT64_MAX else None, format)

    def __eq__(self, other: object) -> bool:
        return self.nanos == other.nanos if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: Quantity) -> bool:
        return self.nanos < other.nanos

    def __hash__(self) -> int:
        return hash(self.nanos)

    def __bool__(self) -> bool:
        return self.nanos != 0

    def __repr__(self) -> str:
        return f"Quantity({self.canonical()!r})"

    def __str__(self) -> str:
        return self.canonical()

    def compare(self, other: Quantity) -> int:
        """-1, 0 or 1."""
        return (self.nanos > other.nanos) - (self.nanos < other.nanos)

    def sign(self) -> int:
        """-1, 0 or 1."""
        return (self.nanos > 0) - (self.nanos < 0)

    # Conversions.

    def to_int(self) -> int:
        """Whole units, fractions rounded away from zero. Not limited to 64 bits."""
        return _divide_up(self.nanos, _NANO)

    def to_milli(self) -> int:
        """Thousandths, finer fractions rounded away from zero (see :attr:`has_milli`)."""
        return _divide_up(self.nanos, _MILLI_IN_NANO)

    @property
    def has_milli(self) -> bool:
        """Whether thousandths express the amount exactly."""
        return self.nanos % _MILLI_IN_NANO == 0

    @property
    def is_whole(self) -> bool:
        """Whether the amount has no fraction, however it is spelled."""
        return self.nanos % _NANO == 0

    def as_int64(self) -> int | None:
        """The amount as CEL's ``asInteger`` sees it: None when the spelling is fractional or too long."""
        if self.scale is None or self.scale < 0:
            return None
        value = self.nanos // _NANO
        return value if INT64_MIN <= value <= INT64_MAX else None

    def to_float(self) -> float:
        """The nearest double."""
        return self.nanos / _NANO

    def canonical(self) -> str:
        """The one spelling that the API server returns for this amount and suffix family."""
        if self.nanos == 0:
            return "0"
        if self.format == "BinarySI" and abs(self.nanos) >= 1024 * _NANO and self.is_whole:
            number, power = self.nanos // _NANO, 0
            while power < 6 and number % 1024 == 0:
                number //= 1024
                power += 1
            return f"{number}{_BINARY_SUFFIX.get(power, '')}"
        number, exponent = self.nanos, -NANO_DIGITS
        while number % 1000 == 0:
            number //= 1000
            exponent += 3
        if self.format == "DecimalExponent":
            return f"{number}e{exponent}" if exponent else str(number)
        if exponent > 18:
            number, exponent = number * 10 ** (exponent - 18), 18
        return f"{number}{_DECIMAL_SUFFIX[exponent]}"


def _divide_up(number: int, divisor: int) -> int:
    return -(-number // divisor) if number >= 0 else number // divisor


def _split(text: str) -> tuple[bool, str, str, str]:
    """Sign, digits before and after the point, suffix; the point and either digits may be missing."""
    position, end = 0, len(text)
    negative = text[0] == "-"
    if text[0] in "+-":
        position = 1
    start = position
    while position < end and text[position] in _DIGITS:
        position += 1
    whole = text[start:position].lstrip("0") or "0"
    fraction = ""
    if position < end and text[position] == ".":
        start = position = position + 1
        while position < end and text[position] in _DIGITS:
            position += 1
        fraction = text[start:position]
    suffix = text[position:]
    rest = suffix.lstrip("".join(_SUFFIX_LETTERS))
    if rest[:1] in ("-", "+"):
        rest = rest[1:]
    if any(letter not in _DIGITS for letter in rest):
        raise ParseError(f"{text!r}: {_WRONG_FORM}")
    return negative, whole, fraction, suffix


def _exponent(text: str, suffix: str) -> tuple[Format, int]:
    """Suffix family and exponent: of two for BinarySI, of ten otherwise."""
    if suffix in _DECIMAL:
        return "DecimalSI", _DECIMAL[suffix]
    if suffix in _BINARY:
        return "BinarySI", _BINARY[suffix]
    digits = suffix[2:] if suffix[1:2] in ("-", "+") else suffix[1:]
    if suffix[0] not in "eE" or not digits or not digits.isascii() or not digits.isdigit():
        raise ParseError(f"{text!r}: {_WRONG_SUFFIX}")
    exponent = int(digits[:10])
    if exponent > _MAX_EXPONENT and suffix[1:2] != "-":
        raise ParseError(f"{text!r}: {_WRONG_SUFFIX}")
    exponent = min(exponent, _MAX_EXPONENT)
    return "DecimalExponent", -exponent if suffix[1:2] == "-" else exponent


@lru_cache(maxsize=16384)
def _parse(text: str) -> Quantity:
    if not text:
        raise ParseError(f"'': {_WRONG_FORM}")
    negative, whole, fraction, suffix = _split(text)
    format, exponent = _exponent(text, suffix)
    if len(whole) + len(fraction) > 4096:
        raise ParseError(f"{text[:20]!r}...: number is too long")
    digits = int(whole + fraction)
    sign = -1 if negative else 1

    # The short form: the digits fit into 18 places (for binary suffixes, roughly 15 with the factor).
    if format == "BinarySI":
        short = not fraction and 15 - len(whole) - exponent * 3 // 10 - 1 >= 0
        scale = 0
        amount = digits << exponent
    else:
        scale = exponent - len(fraction)
        short = len(whole) + len(fraction) <= 18 and scale >= -NANO_DIGITS
        amount = digits
    if short and amount <= INT64_MAX:
        return Quantity(sign * amount * 10 ** (scale + NANO_DIGITS), scale, format)

    if format == "BinarySI":
        numerator, shift = digits << exponent, NANO_DIGITS - len(fraction)
    else:
        numerator, shift = digits, NANO_DIGITS + scale
    nanos = numerator * 10**shift if shift >= 0 else -(-numerator // 10**-shift)
    nanos = min(nanos, _MAX_LONG)
    if format == "BinarySI" and 0 < nanos < _NANO:
        format = "DecimalSI"
    return Quantity(sign * nanos, None, format)


@lru_cache(maxsize=16384)
def parse_int(text: str) -> int:
    """Whole units of the quantity ``text``, rounded up: for amounts that are counted, not measured."""
    return _parse(text).to_int()
