"""The few messages of etcd v3 that the store needs, as bytes.

A message on the wire is a list of (field number, value); a value here is a whole number or
bytes, so one short function writes any message and another reads any. Names and numbers of the fields
are those of etcd's ``rpc.proto`` and ``kv.proto``. Why not a library: docs/decisions/0003-etcd-messages.md.
"""

from __future__ import annotations

from typing import NamedTuple

#: Field number → values in the order in which they came.
Fields = dict[int, list["int | bytes"]]


def message(*fields: tuple[int, int | bytes]) -> bytes:
    """A message of these fields. Numbers must not be negative; zeros are written too (a chosen oneof)."""
    out = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            _varint(out, number << 3)
            _varint(out, value)
        else:
            _varint(out, number << 3 | 2)
            _varint(out, len(value))
            out += value
    return bytes(out)


def _varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def fields(data: bytes) -> Fields:
    """The fields of a message. Raises ValueError when it is cut off or uses what etcd does not."""
    found: Fields = {}
    at, end = 0, len(data)
    try:
        while at < end:
            tag, at = _read(data, at)
            kind = tag & 7
            value: int | bytes
            if kind == 0:
                value, at = _read(data, at)
            elif kind == 2:
                size, at = _read(data, at)
                value = data[at : at + size]
                at += size
                if at > end:
                    raise ValueError("a field is longer than its message")
            else:
                raise ValueError(f"wire type {kind} is not used by etcd")
            found.setdefault(tag >> 3, []).append(value)
    except IndexError:
        raise ValueError("a number is cut off") from None
    return found


def _read(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def number(found: Fields, field: int) -> int:
    """A number; the last one counts, 0 when absent."""
    values = found.get(field)
    value = values[-1] if values else 0
    if not isinstance(value, int):
        raise ValueError(f"field {field} should be a number")
    return value


def blob(found: Fields, field: int) -> bytes:
    """Bytes, text or a message; the last one counts, empty when absent."""
    values = found.get(field)
    value = values[-1] if values else b""
    if isinstance(value, int):
        raise ValueError(f"field {field} should not be a number")
    return value


def blobs(found: Fields, field: int) -> list[bytes]:
    """All values of a repeated field of bytes or messages."""
    return [value for value in found.get(field, ()) if isinstance(value, bytes)]


# Requests.


def range_request(key: bytes, end: bytes = b"", *, limit: int = 0, revision: int = 0) -> bytes:
    """RangeRequest: one key, or those from ``key`` to before ``end``."""
    return message((1, key), (2, end), (3, limit), (4, revision))


def put_op(key: bytes, value: bytes) -> bytes:
    """RequestOp with a PutRequest."""
    return message((2, message((1, key), (2, value))))


def delete_op(key: bytes, end: bytes = b"") -> bytes:
    """RequestOp with a DeleteRangeRequest: one key, or those from ``key`` to before ``end``."""
    return message((3, message((1, key), (2, end))))


def range_op(key: bytes) -> bytes:
    """RequestOp with a RangeRequest of one key."""
    return message((1, range_request(key)))


def txn_op(request: bytes) -> bytes:
    """RequestOp with a TxnRequest: a transaction inside another one, judged by itself."""
    return message((4, request))


def compare_modified(key: bytes, revision: int) -> bytes:
    """Compare: the key was last written at ``revision``; 0: it does not exist."""
    return message((1, 0), (2, 2), (3, key), (6, revision))


def compare_value(key: bytes, value: bytes) -> bytes:
    """Compare: the key has this value."""
    return message((1, 0), (2, 3), (3, key), (7, value))


def txn_request(compares: list[bytes], success: list[bytes], failure: list[bytes]) -> bytes:
    """TxnRequest."""
    parts = ((1, compares), (2, success), (3, failure))
    return message(*((field, part) for field, group in parts for part in group))


def compaction_request(revision: int) -> bytes:
    """CompactionRequest."""
    return message((1, revision))


def watch_request(key: bytes, end: bytes, start: int) -> bytes:
    """WatchRequest that creates a watch from revision ``start`` on, with progress notifications."""
    return message((1, message((1, key), (2, end), (3, start), (4, 1))))


# Answers.


class KeyValue(NamedTuple):
    """A key as of its last write."""

    key: bytes
    revision: int
    value: bytes


class RangeAnswer(NamedTuple):
    """RangeResponse; ``revision`` is that of the whole store."""

    revision: int
    items: list[KeyValue]
    more: bool


class TxnAnswer(NamedTuple):
    """TxnResponse: ``found`` are the items of its ranges, ``deleted`` is how many keys its deletions met."""

    revision: int
    succeeded: bool
    found: list[KeyValue]
    deleted: int
    #: The transactions inside, in order.
    inner: list[TxnAnswer]


class WatchAnswer(NamedTuple):
    """WatchResponse; ``changes`` with value None are deletions."""

    revision: int
    created: bool
    canceled: bool
    compacted: int
    reason: str
    changes: list[tuple[bytes, int, bytes | None]]


def header_revision(found: Fields) -> int:
    """Revision in the header of an answer."""
    return number(fields(blob(found, 1)), 3)


def _key_value(data: bytes) -> KeyValue:
    found = fields(data)
    return KeyValue(blob(found, 1), number(found, 3), blob(found, 5))


def range_answer(data: bytes) -> RangeAnswer:
    """Reads a RangeResponse."""
    found = fields(data)
    return RangeAnswer(header_revision(found), [_key_value(item) for item in blobs(found, 2)], bool(number(found, 3)))


def txn_answer(data: bytes) -> TxnAnswer:
    """Reads a TxnResponse."""
    found = fields(data)
    items: list[KeyValue] = []
    inner: list[TxnAnswer] = []
    deleted = 0
    for response in blobs(found, 3):
        parts = fields(response)
        for ranged in blobs(parts, 1):
            items += [_key_value(item) for item in blobs(fields(ranged), 2)]
        for removal in blobs(parts, 3):
            deleted += number(fields(removal), 2)
        inner += [txn_answer(nested) for nested in blobs(parts, 4)]
    return TxnAnswer(header_revision(found), bool(number(found, 2)), items, deleted, inner)


def watch_answer(data: bytes) -> WatchAnswer:
    """Reads a WatchResponse."""
    found = fields(data)
    changes: list[tuple[bytes, int, bytes | None]] = []
    for event in blobs(found, 11):
        parts = fields(event)
        item = _key_value(blob(parts, 2))
        changes.append((item.key, item.revision, None if number(parts, 1) == 1 else item.value))
    return WatchAnswer(
        header_revision(found),
        bool(number(found, 3)),
        bool(number(found, 4)),
        number(found, 5),
        blob(found, 6).decode(errors="replace"),
        changes,
    )
