"""Request bodies in Kubernetes' protobuf, decoded to the JSON that means the same.

Typed Go clients send protobuf for built-in kinds and do not fall back, so bodies must be
understood; answers may always be JSON. A body is the magic ``k8s\\0`` and a message with
``apiVersion``, ``kind`` and the raw object. The field tables ship as package data and are
compiled per type on first use.

Go writes every field that is no pointer, zero or not. A zero therefore only means something
behind a pointer, or where the JSON field is always written.
"""

from __future__ import annotations

import base64
import gzip
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from typing import Any, NoReturn

import msgspec

from drakkar.apiserver import status

MAGIC = b"k8s\0"

_META = "apimachinery/pkg/apis/meta/v1."
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: How deep messages may be nested; the deepest built-in types stay far below.
_MAX_DEPTH = 64


class _Malformed(Exception):
    """The bytes are no message of the expected type."""


class _FieldFacts(msgspec.Struct):
    """One row of the table; see its README for the letters."""

    n: int
    k: str
    j: str
    t: str = ""
    r: str = ""
    p: bool = False
    o: bool = False


class _Table(msgspec.Struct):
    roots: dict[str, str]
    types: dict[str, msgspec.Raw]


def decode(body: bytes) -> dict[str, Any]:
    """The object of a body as JSON values, ``apiVersion`` and ``kind`` included.

    Raises:
        StatusError: 400 when the body is malformed or of an unknown kind.
    """
    if not body.startswith(MAGIC):
        _refuse("provided data does not appear to be a protobuf message, expected prefix 6b387300")
    try:
        return _decode_envelope(body, 0)
    except (_Malformed, IndexError, UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        _refuse(f"proto: {error}" if isinstance(error, _Malformed) else "proto: malformed message")


def _refuse(message: str) -> NoReturn:
    raise status.StatusError(status.bad_request(message))


def _decode_envelope(body: bytes, depth: int) -> dict[str, Any]:
    api_version = kind = content_type = ""
    raw = b""
    for number, value in _scan(body, len(MAGIC), len(body)):
        if number == 1 and isinstance(value, bytes):
            for inner, text in _scan(value, 0, len(value)):
                if inner == 1 and isinstance(text, bytes):
                    api_version = text.decode()
                elif inner == 2 and isinstance(text, bytes):
                    kind = text.decode()
        elif number == 2 and isinstance(value, bytes):
            raw = value
        elif number == 4 and isinstance(value, bytes):
            content_type = value.decode()
    if content_type.startswith("application/json"):
        obj = msgspec.json.decode(raw)
        if type(obj) is not dict:
            raise _Malformed("embedded JSON is no object")
        return {"apiVersion": api_version, "kind": kind, **obj}
    table = _table()
    group, slash, version = api_version.partition("/")
    name = table.roots.get(f"{group}/{version}/{kind}" if slash else f"/{group}/{kind}")
    if name is None:
        _refuse(f'no kind "{kind}" is registered for version "{api_version}"')
    result: dict[str, Any] = {"kind": kind, "apiVersion": api_version}
    _message(name).into(result, raw, 0, len(raw), depth)
    return result


def _scan(data: bytes, at: int, end: int) -> list[tuple[int, int | bytes]]:
    """Fields of a small message, in order; for the hot path see :meth:`_Message.into`."""
    found: list[tuple[int, int | bytes]] = []
    while at < end:
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            found.append((tag >> 3, value))
        elif wire == 2:
            size, at = _varint(data, at)
            if at + size > end:
                raise _Malformed("unexpected end of message")
            found.append((tag >> 3, data[at : at + size]))
            at += size
        else:
            at = _skip(data, at, wire)
    if at > end:
        raise _Malformed("unexpected end of message")
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + 1
        shift += 7
        if shift > 63:
            raise _Malformed("integer overflow")


def _skip(data: bytes, at: int, wire: int) -> int:
    """Position behind a value whose field is unknown."""
    if wire == 0:
        return _varint(data, at)[1]
    if wire == 1:
        return at + 8
    if wire == 2:
        size, at = _varint(data, at)
        return at + size
    if wire == 5:
        return at + 4
    raise _Malformed(f"illegal wire type {wire}")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


class _Field:
    """One compiled field."""

    __slots__ = ("kind", "message", "name", "optional", "plain", "pointer", "repeated", "special")

    def __init__(self, facts: _FieldFacts) -> None:
        self.name = facts.j
        self.kind = facts.k
        self.repeated = facts.r
        self.pointer = facts.p
        self.optional = facts.o
        #: A single string, the most frequent kind of field.
        self.plain = facts.k == "s" and not facts.r
        #: Reads a whole sub-message to a JSON value; None means "not there".
        self.special = _SPECIAL.get(facts.t) if facts.t else None
        self.message = facts.t


class _Message:
    """A compiled type."""

    __slots__ = ("fields",)

    def __init__(self, facts: list[_FieldFacts]) -> None:
        self.fields = {row.n: _Field(row) for row in facts}

    def into(self, result: dict[str, Any], data: bytes, at: int, end: int, depth: int) -> None:
        """Reads the message between ``at`` and ``end`` into ``result``."""
        if depth > _MAX_DEPTH:
            raise _Malformed("message is nested too deeply")
        fields = self.fields
        while at < end:
            tag = data[at]
            at += 1
            if tag >= 0x80:
                tag, at = _varint(data, at - 1)
            field = fields.get(tag >> 3)
            wire = tag & 7
            if field is None:
                at = _skip(data, at, wire)
                continue
            if wire == 2:
                size = data[at]
                at += 1
                if size >= 0x80:
                    size, at = _varint(data, at - 1)
                stop = at + size
                if stop > end:
                    raise _Malformed("unexpected end of message")
                if field.plain:
                    text = data[at:stop].decode()
                    if text or not field.optional or field.pointer:
                        result[field.name] = text
                else:
                    _put_bytes(result, field, data, at, stop, depth)
                at = stop
            elif wire == 0:
                value = data[at]
                at += 1
                if value >= 0x80:
                    value, at = _varint(data, at - 1)
                _put_number(result, field, value)
            elif wire == 1 and field.kind == "d":
                (number,) = struct.unpack_from("<d", data, at)
                if number or field.pointer or not field.optional:
                    result[field.name] = number
                at += 8
            else:
                raise _Malformed(f"wrong wire type {wire} for field {field.name}")
        if at > end:
            raise _Malformed("unexpected end of message")


def _put_number(result: dict[str, Any], field: _Field, value: int) -> None:
    if field.kind == "b":
        scalar: Any = value != 0
    elif field.kind == "i":
        scalar = value - (1 << 64) if value >> 63 else value
    else:
        raise _Malformed(f"wrong wire type 0 for field {field.name}")
    if field.repeated:
        result.setdefault(field.name, []).append(scalar)
    elif scalar or field.pointer or not field.optional:
        result[field.name] = scalar


def _put_bytes(result: dict[str, Any], field: _Field, data: bytes, at: int, stop: int, depth: int) -> None:
    kind, repeated = field.kind, field.repeated
    if repeated == "m":
        key, value = _entry(field, data, at, stop, depth)
        result.setdefault(field.name, {})[key] = value
    elif kind == "s":
        text = data[at:stop].decode()
        if repeated:
            result.setdefault(field.name, []).append(text)
        elif text or field.pointer or not field.optional:
            result[field.name] = text
    elif kind == "m":
        if repeated:
            value = _sub(field, data, at, stop, depth)
            result.setdefault(field.name, []).append({} if value is None else value)
        elif not field.name:
            # An inlined struct: its fields are the parent's.
            _message(field.message).into(result, data, at, stop, depth + 1)
        else:
            value = _sub(field, data, at, stop, depth)
            if value is not None:
                result[field.name] = value
    elif kind == "y":
        text = base64.b64encode(data[at:stop]).decode()
        if repeated:
            result.setdefault(field.name, []).append(text)
        elif text or field.pointer or not field.optional:
            result[field.name] = text
    elif kind in "ib" and repeated:
        while at < stop:
            value, at = _varint(data, at)
            _put_number(result, field, value)
    else:
        raise _Malformed(f"wrong wire type 2 for field {field.name}")


def _sub(field: _Field, data: bytes, at: int, stop: int, depth: int) -> Any:
    if field.special is not None:
        return field.special(data[at:stop], depth)
    value: dict[str, Any] = {}
    _message(field.message).into(value, data, at, stop, depth + 1)
    return value


_ZERO: dict[str, Callable[[], Any]] = {"s": str, "y": str, "i": int, "b": bool, "m": dict, "x": list}


def _entry(field: _Field, data: bytes, at: int, stop: int, depth: int) -> tuple[str, Any]:
    """Key and value of a map entry; what is absent is the zero of its type."""
    # As Go writes entries: a short key, then the value.
    if stop - at > 2 and data[at] == 0x0A and data[at + 1] < 0x80:
        middle = at + 2 + data[at + 1]
        if stop - middle >= 2 and data[middle] == 0x12 and data[middle + 1] < 0x80:
            start = middle + 2
            if start + data[middle + 1] == stop and field.kind in "sm":
                key = data[at + 2 : middle].decode()
                if field.kind == "s":
                    return key, data[start:stop].decode()
                value = _sub(field, data, start, stop, depth)
                if value is not None:
                    return key, value
    key, value, given = "", None, False
    for number, item in _scan(data, at, stop):
        if number == 1:
            key = item.decode() if isinstance(item, bytes) else str(item)
        elif number == 2:
            given = True
            if isinstance(item, int):
                value = item != 0 if field.kind == "b" else _signed(item)
            elif field.kind == "s":
                value = item.decode()
            elif field.kind == "y":
                value = base64.b64encode(item).decode()
            elif field.kind == "x":
                value = [text.decode() for inner, text in _scan(item, 0, len(item)) if isinstance(text, bytes)]
            else:
                value = _sub(field, item, 0, len(item), depth)
    if not given or value is None:
        value = "0" if field.message == _QUANTITY else _ZERO[field.kind]()
    return key, value


# Types with their own JSON form -------------------------------------------------------------


def _time_parts(data: bytes) -> tuple[int, int]:
    seconds = nanos = 0
    for number, value in _scan(data, 0, len(data)):
        if isinstance(value, int):
            if number == 1:
                seconds = _signed(value)
            elif number == 2:
                nanos = _signed(value)
    return seconds, nanos


def _moment(seconds: int) -> datetime:
    try:
        return _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        raise _Malformed(f"time out of range: {seconds}") from None


def _time(data: bytes, depth: int) -> str | None:
    seconds, nanos = _time_parts(data)
    # Go sends nothing for its zero time.
    if not seconds and not nanos:
        return None
    return _moment(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def _micro_time(data: bytes, depth: int) -> str | None:
    seconds, nanos = _time_parts(data)
    if not seconds and not nanos:
        return None
    return _moment(seconds).strftime("%Y-%m-%dT%H:%M:%S.") + f"{nanos // 1000:06d}Z"


def _quantity(data: bytes, depth: int) -> str:
    if len(data) > 2 and data[0] == 0x0A and data[1] == len(data) - 2:
        return data[2:].decode()
    for number, value in _scan(data, 0, len(data)):
        if number == 1 and isinstance(value, bytes):
            return value.decode() or "0"
    return "0"


def _int_or_string(data: bytes, depth: int) -> int | str:
    is_text, number, text = False, 0, ""
    for index, value in _scan(data, 0, len(data)):
        if index == 1 and isinstance(value, int):
            is_text = value == 1
        elif index == 2 and isinstance(value, int):
            number = _signed(value)
        elif index == 3 and isinstance(value, bytes):
            text = value.decode()
    return text if is_text else number


def _raw(data: bytes, depth: int) -> Any:
    """RawExtension and FieldsV1: JSON inside, or once more a protobuf object."""
    for number, value in _scan(data, 0, len(data)):
        if number == 1 and isinstance(value, bytes) and value:
            if value.startswith(MAGIC):
                return _decode_envelope(value, depth + 1)
            return msgspec.json.decode(value)
    return None


_QUANTITY = "apimachinery/pkg/api/resource.Quantity"

_SPECIAL: dict[str, Callable[[bytes, int], Any]] = {
    _META + "Time": _time,
    _META + "MicroTime": _micro_time,
    _META + "FieldsV1": _raw,
    _QUANTITY: _quantity,
    "apimachinery/pkg/util/intstr.IntOrString": _int_or_string,
    "apimachinery/pkg/runtime.RawExtension": _raw,
}


@cache
def _table() -> _Table:
    packed = resources.files("drakkar.data").joinpath("wire-fields.json.gz").read_bytes()
    return msgspec.json.decode(gzip.decompress(packed), type=_Table)


@cache
def _message(name: str) -> _Message:
    return _Message(msgspec.json.decode(_table().types[name], type=list[_FieldFacts]))
