"""Semantic versions: strict and normalising reading, precedence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakkar.api.errors import ParseError
from drakkar.api.semver import Semver

PRECEDENCE = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11",
              "1.0.0-rc.1", "1.0.0", "1.0.1", "1.10.0", "2.0.0"]  # fmt: skip


def test_precedence_is_that_of_semver_org() -> None:
    versions = [Semver.parse(text) for text in PRECEDENCE]
    assert sorted(reversed(versions)) == versions
    assert [str(version) for version in versions] == PRECEDENCE


@pytest.mark.parametrize(
    "text", ["", "1", "1.0", "v1.0.0", "01.0.0", "1.0.0-01", "1.0.0-", "1.0.0+", "1.0.0.0", "-1.0.0", "1.0.0\n",
             f"{2**64}.0.0"],
)  # fmt: skip
def test_strict_reading_refuses(text: str) -> None:
    with pytest.raises(ParseError):
        Semver.parse(text)


@pytest.mark.parametrize(
    ("text", "normal"),
    [("1", "1.0.0"), ("v1.2", "1.2.0"), ("v01.02.03", "1.2.3"), ("v1.2.3-a+b", "1.2.3-a+b"), ("00.0.0", "0.0.0")],
)
def test_normalising_reading(text: str, normal: str) -> None:
    assert str(Semver.parse(text, normalize=True)) == normal


@pytest.mark.parametrize("text", ["V1.0.0", "vv1.0.0", "1.0-a", "1+b", "1.0.0.0", "", "v"])
def test_normalising_reading_refuses(text: str) -> None:
    with pytest.raises(ParseError):
        Semver.parse(text, normalize=True)


def test_build_metadata_does_not_count() -> None:
    assert Semver.parse("1.0.0+a") == Semver.parse("1.0.0+b")
    assert hash(Semver.parse("1.0.0+a")) == hash(Semver.parse("1.0.0"))


parts = st.integers(0, 12)
versions = st.builds(
    lambda a, b, c, pre: f"{a}.{b}.{c}" + ("-" + ".".join(pre) if pre else ""),
    parts, parts, parts, st.lists(st.sampled_from(["0", "1", "11", "a", "rc", "a-1"]), max_size=2),
)  # fmt: skip


@given(versions, versions, versions)
def test_order_is_total(one: str, two: str, three: str) -> None:
    a, b, c = Semver.parse(one), Semver.parse(two), Semver.parse(three)
    assert a.compare(b) == -b.compare(a)
    assert not (a <= b <= c) or a <= c
    assert str(a) == one
