"""Bytes from an API server into objects, and back.

Kinds with a struct decode into it, all others into dicts. One decoder per type is kept,
because building one costs more than decoding a small object.

Opaque parameters of a claim may be nested thousands of levels deep, and who writes a claim must not be able to stop
those who read all of them. So what no decoder can follow is read with everything below `DEEPEST` levels left out.
"""

from __future__ import annotations

import logging
import re
from functools import cache
from typing import Any, TypeVar

import msgspec

from drakkar.api.errors import ApiError
from drakkar.api.kinds import Kind
from drakkar.api.wire import Response

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Levels of objects and lists that are read of what is nested too deep for a decoder (which follow some 900).
DEEPEST = 200
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


class Envelope(msgspec.Struct, gc=False):
    """One frame of a watch, its object still bytes."""

    type: str
    object: msgspec.Raw


class _ListMeta(msgspec.Struct, gc=False):
    resourceVersion: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class ListBody(msgspec.Struct, gc=False):
    """A list, its items still bytes."""

    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    items: list[msgspec.Raw] | None = None


@cache
def _decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type_)


_encoder = msgspec.json.Encoder()
_envelopes = msgspec.json.Decoder(Envelope)
_lists = msgspec.json.Decoder(ListBody)

encode = _encoder.encode


def _decoded(decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw) -> T:
    try:
        return decoder.decode(data)
    except RecursionError:
        logger.warning("JSON is nested too deep: what lies below %d levels is not read", DEEPEST)
        return decoder.decode(cut(bytes(data)))


def cut(data: bytes, deepest: int = DEEPEST) -> bytes:
    """JSON with objects and lists below ``deepest`` levels empty."""
    kept: list[bytes] = []
    begin = depth = 0
    for token in _TOKEN.finditer(data):
        character = data[token.start() : token.start() + 1]
        if character in b"{[":
            depth += 1
            if depth == deepest + 1:
                kept.append(data[begin : token.end()])
        elif character in b"}]":
            if depth == deepest + 1:
                begin = token.start()
            depth -= 1
    if depth <= deepest:  # Else it is not whole, which the decoder will say.
        kept.append(data[begin:])
    return b"".join(kept)


def decode_envelope(data: bytes | msgspec.Raw) -> Envelope:
    """One frame of a watch."""
    return _decoded(_envelopes, data)


def decode_list(data: bytes | msgspec.Raw) -> ListBody:
    """A list of objects."""
    return _decoded(_lists, data)


def decode_json(data: bytes | msgspec.Raw) -> Any:
    """Plain JSON values."""
    return _decoded(_decoder(Any), data)


def decode_object(kind: Kind, data: bytes | msgspec.Raw) -> Any:
    """An object of ``kind``; list items come without ``apiVersion`` and ``kind``, which are filled in."""
    if kind.type is not None:
        return _decoded(_decoder(kind.type), data)
    obj: dict[str, Any] = _decoded(_decoder(dict[str, Any]), data)
    if "kind" not in obj:
        return {"apiVersion": kind.api_version, "kind": kind.kind, **obj}
    return obj


def decode_known(kind: Kind, data: bytes | msgspec.Raw) -> Any | None:
    """As `decode_object`; an object whose fields have unexpected types is logged and gives None."""
    try:
        return decode_object(kind, data)
    except msgspec.ValidationError as error:
        name = meta(decode_json(data), "name")
        logger.error("%s %s cannot be read and is ignored: %s", kind.kind, name, error)
        return None


def to_dict(obj: Any) -> dict[str, Any]:
    """The JSON form of a struct or dict, absent fields left out."""
    return obj if isinstance(obj, dict) else msgspec.to_builtins(obj)


#: Header in which a transport says of a 401 whose credentials were not accepted.
CREDENTIALS = "drakkar-credentials"


def error_of(response: Response) -> ApiError:
    """The error that a response with status >= 400 stands for."""
    error = _error_of(response)
    refused = response.headers.get(CREDENTIALS)
    if error.code == 401 and refused:
        return ApiError({**error.status, "message": f"{error}: the server does not accept {refused}"})
    return error


def _error_of(response: Response) -> ApiError:
    status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": response.status}
    try:
        sent = decode_json(response.body)
    except msgspec.DecodeError:
        sent = None
    if isinstance(sent, dict) and sent.get("kind") == "Status":
        return ApiError({**status, **sent})
    text = response.body[:500].decode(errors="replace").strip()
    return ApiError({**status, "message": text or f"the server answered {response.status} without a body"})


def meta(obj: Any, field: str) -> str:
    """A text field of the metadata of a struct or dict; empty when absent."""
    if isinstance(obj, dict):
        return obj.get("metadata", {}).get(field) or ""
    return getattr(obj.metadata, field) or ""


def revision(text: str) -> int:
    """A resourceVersion as a number: comparable within one server (Kubernetes promises so since 1.35)."""
    return int(text) if text.isdigit() else 0
