"""The messages of etcd, as bytes: known encodings, and what is not a message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakkar.store import etcdwire as wire

_FIELDS = st.lists(st.tuples(st.integers(1, 100), st.one_of(st.integers(0, 2**63 - 1), st.binary(max_size=300))))


def test_known_bytes() -> None:
    # Field 1 with 150, field 2 with "testing": the examples of the protobuf documentation.
    assert wire.message((1, 150)) == bytes.fromhex("089601")
    assert wire.message((2, b"testing")) == bytes.fromhex("120774657374696e67")
    # "It must not exist" is said, not left out.
    assert wire.compare_modified(b"k", 0) == bytes.fromhex("080010021a016b3000")


@given(_FIELDS)
def test_what_was_written_is_read(given_fields: list[tuple[int, int | bytes]]) -> None:
    found = wire.fields(wire.message(*given_fields))
    wanted: dict[int, list[int | bytes]] = {}
    for field, value in given_fields:
        wanted.setdefault(field, []).append(value)
    assert found == wanted


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (wire.range_answer, wire.txn_answer, wire.watch_answer):
        try:
            read(data)
        except ValueError:
            continue


@pytest.mark.parametrize("text", ["08", "12057465", "0d00000000", "08ffffffffffffffffffff01"])
def test_cut_off_or_unknown(text: str) -> None:
    with pytest.raises(ValueError, match=r"cut off|longer|wire type|too long"):
        wire.fields(bytes.fromhex(text))
