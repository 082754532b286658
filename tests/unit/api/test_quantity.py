"""Quantities: spellings, exactness, order, and what of the spelling stays visible."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakkar.api.errors import ParseError
from drakkar.api.quantity import Quantity, parse_int

SUFFIXES = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "e3", "E-2", "e+1"]
FACTORS = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1), "k": Fraction(10**3),
    "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15), "E": Fraction(10**18),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40), "e3": Fraction(1000),
    "E-2": Fraction(1, 100), "e+1": Fraction(10),
}  # fmt: skip

numbers = st.tuples(st.sampled_from(["", "-", "+"]), st.integers(0, 10**9), st.text("0123456789", max_size=3)).map(
    lambda parts: f"{parts[0]}{parts[1]}" + (f".{parts[2]}" if parts[2] else "")
)
spellings = st.tuples(numbers, st.sampled_from(SUFFIXES)).map("".join)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"), ("-0", "0"), ("1.", "1"), (".5", "500m"), ("+5", "5"), ("5e-1", "500e-3"), ("1E", "1E"),
        ("1000m", "1"), ("1500m", "1500m"), ("0.1", "100m"), ("1e3", "1e3"), ("1E3", "1e3"), ("12e6", "12e6"),
        ("1024Ki", "1Mi"), ("1023Ki", "1023Ki"), ("1536Mi", "1536Mi"), ("1.5Gi", "1536Mi"), ("0.5Ki", "512"),
        ("0.1Ki", "102400m"), ("1000Ki", "1000Ki"), ("1000", "1k"), ("1234", "1234"), ("0.0000000001", "1n"),
        ("-0.0000000001", "-1n"), ("100000k", "100M"), ("9223372036854775808", "9223372036854775807"),
        ("-9223372036854775809", "-9223372036854775807"), ("16Ei", "9223372036854775807"), ("80Gi", "80Gi"),
    ],
)  # fmt: skip
def test_canonical_spelling(text: str, canonical: str) -> None:
    assert Quantity.parse(text).canonical() == canonical


@pytest.mark.parametrize(
    "text", ["", "1e", "200K", "1 Gi", "abc", "1.1.M", "1i", "0.1mi", "-3.01i", "1e1.5", "١", "1ee3"]
)
def test_refused_spelling(text: str) -> None:
    with pytest.raises(ParseError):
        Quantity.parse(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("999999999999999999", 999999999999999999), ("1000000000000000000", None), ("1E", 10**18), ("9E", 9 * 10**18),
        ("12E", None), ("7Ei", None), ("1000m", None), ("1.0", None), ("1Ki", 1024), ("0.5", None),
    ],
)  # fmt: skip
def test_integers_depend_on_the_spelling(text: str, value: int | None) -> None:
    assert Quantity.parse(text).as_int64() == value


@given(spellings)
def test_value_is_exact(text: str) -> None:
    quantity = Quantity.parse(text)
    suffix = next(s for s in sorted(SUFFIXES, key=len, reverse=True) if text.endswith(s))
    exact = Fraction(text.removesuffix(suffix)) * FACTORS[suffix]
    if abs(exact) < 2**62 and (exact * 10**9).denominator == 1:
        assert Fraction(quantity.nanos, 10**9) == exact


@given(spellings)
def test_canonical_form_is_stable_and_equal(text: str) -> None:
    quantity = Quantity.parse(text)
    again = Quantity.parse(quantity.canonical())
    assert again == quantity
    assert again.canonical() == quantity.canonical()


@given(spellings, spellings)
def test_order_and_arithmetic(left: str, right: str) -> None:
    one, two = Quantity.parse(left), Quantity.parse(right)
    assert (one < two) == (one.nanos < two.nanos)
    assert one.compare(two) == -two.compare(one)
    assert (one + two) - two == one
    assert (one == two) == (hash(one) == hash(two) and one.compare(two) == 0)


@given(spellings)
def test_rounding_goes_away_from_zero(text: str) -> None:
    quantity = Quantity.parse(text)
    exact = Fraction(quantity.nanos, 10**9)
    assert abs(quantity.to_int()) >= abs(exact)
    assert abs(quantity.to_int() - exact) < 1
    assert parse_int(text) == quantity.to_int()
    assert quantity.has_milli == (Fraction(quantity.to_milli(), 1000) == exact)


def test_suffix_family_of_a_sum() -> None:
    assert (Quantity.parse("1Gi") + Quantity.parse("1G")).canonical() == str(2**30 + 10**9)
    assert (Quantity.parse("0") + Quantity.parse("1Gi")).canonical() == "1Gi"
    assert (Quantity.parse("1k") - Quantity.parse("1k")).canonical() == "0"
    assert Quantity.from_milli(250).canonical() == "250m"
    assert Quantity.from_int(2048, "BinarySI").canonical() == "2Ki"
