"""Just enough of the protobuf encoding for the kubelet's plugin messages, which are few and small.

A message is a dataclass whose fields carry their number and form (:func:`text`, :func:`number`, …). As protobuf asks,
fields with the value that they have anyway are left out, unknown ones are skipped, and of a single field that
comes twice the last one counts (messages are merged).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Literal, TypeVar, cast

Form = Literal["text", "bool", "number", "message"]
M = TypeVar("M")

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_INT64 = 1 << 64


class WireError(ValueError):
    """Bytes that are not the message they should be."""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    number: int
    form: Form
    message: type | None
    many: Literal["", "list", "map"]
    optional: bool


def text(number: int) -> str:
    """A string field."""
    return field(default="", metadata=_meta(number, "text"))


def optional_text(number: int) -> str | None:
    """A string field that tells absent from empty."""
    return field(default=None, metadata=_meta(number, "text", optional=True))


def texts(number: int) -> list[str]:
    """A repeated string field."""
    return field(default_factory=list, metadata=_meta(number, "text", many="list"))


def flag(number: int) -> bool:
    """A bool field."""
    return field(default=False, metadata=_meta(number, "bool"))


def number(number: int) -> int:
    """An int64 or enum field."""
    return field(default=0, metadata=_meta(number, "number"))


def message(number: int, of: type[M]) -> M:
    """A message field; absent is the same as empty."""
    return field(default_factory=of, metadata=_meta(number, "message", of))


def messages(number: int, of: type[M]) -> list[M]:
    """A repeated message field."""
    return field(default_factory=list, metadata=_meta(number, "message", of, many="list"))


def message_map(number: int, of: type[M]) -> dict[str, M]:
    """A map from strings to messages."""
    return field(default_factory=dict, metadata=_meta(number, "message", of, many="map"))


def encode(value: object) -> bytes:
    """The bytes of a message."""
    out = bytearray()
    for spec in _fields(type(value)):
        held = getattr(value, spec.name)
        if spec.many == "list":
            for item in held:
                _put(out, spec.number, _content(spec.form, item))
        elif spec.many == "map":
            for key, item in held.items():
                entry = bytearray()
                _put(entry, 1, key.encode())
                _put(entry, 2, encode(item))
                _put(out, spec.number, bytes(entry))
        elif spec.form == "message":
            content = encode(held)
            if content:
                _put(out, spec.number, content)
        elif held is not None and (held or spec.optional):
            _put(out, spec.number, _content(spec.form, held))
    return bytes(out)


def decode(of: type[M], data: bytes) -> M:
    """A message from bytes. Raises WireError that names the message and the field."""
    specs = {spec.number: spec for spec in _fields(of)}
    held: dict[str, Any] = {}
    parts: dict[str, bytes] = {}
    try:
        for tag, content in _items(data):
            spec = specs.get(tag)
            if spec is None:
                continue
            if isinstance(content, int) != (spec.form in ("bool", "number")):
                raise WireError(f"field {spec.name} has another wire type")
            if spec.many == "map":
                key, item = _entry(spec, cast(bytes, content))
                held.setdefault(spec.name, {})[key] = item
            elif spec.many == "list":
                held.setdefault(spec.name, []).append(_value(spec, content))
            elif spec.form == "message":
                parts[spec.name] = parts.get(spec.name, b"") + cast(bytes, content)
            else:
                held[spec.name] = _value(spec, content)
        for spec in specs.values():
            if spec.name in parts:
                held[spec.name] = decode(cast(type, spec.message), parts[spec.name])
    except (WireError, UnicodeDecodeError) as error:
        raise WireError(f"{of.__name__}: {error}") from None
    return of(**held)


@cache
def _fields(of: type) -> tuple[_Field, ...]:
    found = (_Field(item.name, **item.metadata["wire"]) for item in fields(of))
    return tuple(sorted(found, key=lambda spec: spec.number))


def _meta(
    number: int,
    form: Form,
    message: type | None = None,
    *,
    many: Literal["", "list", "map"] = "",
    optional: bool = False,
) -> dict[str, dict[str, Any]]:
    return {"wire": {"number": number, "form": form, "message": message, "many": many, "optional": optional}}


def _content(form: Form, value: Any) -> bytes | int:
    if form == "text":
        return value.encode()
    if form == "message":
        return encode(value)
    return int(value) % _INT64


def _value(spec: _Field, content: bytes | int) -> Any:
    if isinstance(content, int):
        if spec.form == "bool":
            return bool(content)
        return content - _INT64 if content >= _INT64 // 2 else content
    if spec.form == "text":
        return content.decode()
    return decode(cast(type, spec.message), content)


def _entry(spec: _Field, content: bytes) -> tuple[str, Any]:
    key, value = b"", b""
    for tag, part in _items(content):
        if tag in (1, 2) and isinstance(part, int):
            raise WireError(f"field {spec.name} has another wire type")
        if tag == 1:
            key = cast(bytes, part)
        elif tag == 2:
            value = cast(bytes, part)
    return key.decode(), decode(cast(type, spec.message), value)


def _put(out: bytearray, number: int, content: bytes | int) -> None:
    if isinstance(content, int):
        _put_varint(out, number << 3 | _VARINT)
        _put_varint(out, content)
    else:
        _put_varint(out, number << 3 | _BYTES)
        _put_varint(out, len(content))
        out += content


def _put_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _items(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Field numbers with a number, or with bytes for everything else (fixed-size numbers are only skipped)."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise WireError("a field number is 0")
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise WireError(f"wire type {kind} is not used by these messages")
        if at + length > len(data):
            raise WireError("ends in the middle of a field")
        yield number, bytes(data[at : at + length])
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data):
            raise WireError("ends in the middle of a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value % _INT64, at
        if shift >= 70:
            raise WireError("a number is longer than 10 bytes")
