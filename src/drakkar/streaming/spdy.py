"""Frames of SPDY/3.1, as far as Kubernetes' streaming uses them; pure, from bytes to frames and back.

The protocol is described in "SPDY Protocol - Draft 3.1". Headers are compressed with a dictionary that is part of it.
Flow control is left out, as Kubernetes' own implementation leaves it out: its windows are neither sent nor obeyed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

VERSION = 3
FIN = 1
#: Largest frame and largest block of decompressed headers that are taken, in bytes.
LONGEST_FRAME, LONGEST_HEADERS = 1 << 20, 16 << 10

_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _PING, _GOAWAY = 1, 2, 3, 6, 7
_CONTROL = 1 << 15
_STREAM_MASK = 0x7FFFFFFF


class SpdyError(ValueError):
    """Bytes that are no SPDY/3.1 of the kind used here."""


@dataclass(frozen=True, slots=True)
class SynStream:
    """A stream begins."""

    stream: int
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    fin: bool = False


@dataclass(frozen=True, slots=True)
class SynReply:
    """The other side takes the stream."""

    stream: int
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    fin: bool = False


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of a stream; ``fin``: no more will come from this side."""

    stream: int
    content: bytes
    fin: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """The stream is broken off."""

    stream: int
    status: int = 5  # CANCEL


@dataclass(frozen=True, slots=True)
class Ping:
    """Is sent back as it is."""

    number: int


@dataclass(frozen=True, slots=True)
class GoAway:
    """No further streams are taken."""

    last: int
    status: int = 0


Frame = SynStream | SynReply | Data | Reset | Ping | GoAway


def _length_first(*words: str) -> bytes:
    return b"".join(struct.pack(">I", len(word)) + word.encode() for word in words)


_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status"
)
_MORE_WORDS = "version HTTP/1.1 url public set-cookie keep-alive origin"
#: The dictionary for headers: words with their lengths, then text without.
DICTIONARY = (
    _length_first(*_WORDS.split(), "200 OK", *_MORE_WORDS.split())
    + b"100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    + b"203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized"
    + b"403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    + b"Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    + b"chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,"
    + b"text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


class Encoder:
    """Frames to bytes, in the order in which they are sent: compressed headers depend on those before."""

    def __init__(self) -> None:
        self._packer = zlib.compressobj(6, zlib.DEFLATED, 15, 8, zlib.Z_DEFAULT_STRATEGY, DICTIONARY)

    def encode(self, frame: Frame) -> bytes:
        """The bytes of a frame."""
        match frame:
            case Data():
                return struct.pack(">II", frame.stream, len(frame.content) | frame.fin << 24) + frame.content
            case SynStream():
                return _control(
                    _SYN_STREAM, frame.fin, struct.pack(">IIH", frame.stream, 0, 0) + self._pack(frame.headers)
                )
            case SynReply():
                return _control(_SYN_REPLY, frame.fin, struct.pack(">I", frame.stream) + self._pack(frame.headers))
            case Reset():
                return _control(_RST_STREAM, False, struct.pack(">II", frame.stream, frame.status))
            case Ping():
                return _control(_PING, False, struct.pack(">I", frame.number))
            case GoAway():
                return _control(_GOAWAY, False, struct.pack(">II", frame.last, frame.status))

    def _pack(self, headers: Mapping[str, str]) -> bytes:
        plain = struct.pack(">I", len(headers))
        for name, value in headers.items():
            plain += _length_first(name.lower(), value)
        return self._packer.compress(plain) + self._packer.flush(zlib.Z_SYNC_FLUSH)


class Decoder:
    """Bytes to frames; what has no meaning here (settings, windows, priorities) is skipped."""

    def __init__(self) -> None:
        self._unpacker = zlib.decompressobj(15, DICTIONARY)
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete now. Raises SpdyError; the connection is of no use after that."""
        self._held += data
        while len(self._held) >= 8:
            first, second = struct.unpack_from(">II", self._held)
            length = second & 0xFFFFFF
            if length > LONGEST_FRAME:
                raise SpdyError(f"a frame of {length} bytes is longer than {LONGEST_FRAME}")
            if len(self._held) < 8 + length:
                return
            content = bytes(self._held[8 : 8 + length])
            del self._held[: 8 + length]
            fin = bool(second >> 24 & FIN)
            if not first >> 31:
                yield Data(first, content, fin)
                continue
            frame = self._control_frame(first, content, fin)
            if frame is not None:
                yield frame

    def _control_frame(self, first: int, content: bytes, fin: bool) -> Frame | None:
        version, kind = first >> 16 & 0x7FFF, first & 0xFFFF
        if version != VERSION:
            raise SpdyError(f"SPDY version {version} is not spoken here, only {VERSION}")
        try:
            match kind:
                case 1:
                    (stream,) = struct.unpack_from(">I", content)
                    return SynStream(stream & _STREAM_MASK, self._headers(content[10:]), fin)
                case 2:
                    (stream,) = struct.unpack_from(">I", content)
                    return SynReply(stream & _STREAM_MASK, self._headers(content[4:]), fin)
                case 3:
                    stream, status = struct.unpack_from(">II", content)
                    return Reset(stream & _STREAM_MASK, status)
                case 6:
                    return Ping(struct.unpack_from(">I", content)[0])
                case 7:
                    last, status = struct.unpack_from(">II", content)
                    return GoAway(last & _STREAM_MASK, status)
                case 8:
                    # Late headers mean nothing here, but the state of the decompression depends on them.
                    self._headers(content[4:])
                    return None
                case _:
                    return None
        except struct.error:
            raise SpdyError(f"a control frame of type {kind} is too short") from None

    def _headers(self, packed: bytes) -> dict[str, str]:
        try:
            plain = self._unpacker.decompress(packed, LONGEST_HEADERS)
        except zlib.error as error:
            raise SpdyError(f"headers cannot be decompressed: {error}") from None
        if self._unpacker.unconsumed_tail:
            raise SpdyError(f"headers are longer than {LONGEST_HEADERS} bytes")
        try:
            (count,) = struct.unpack_from(">I", plain)
            at, headers = 4, dict[str, str]()
            for _ in range(count):
                pair: list[str] = []
                for _ in range(2):
                    (length,) = struct.unpack_from(">I", plain, at)
                    if at + 4 + length > len(plain):
                        raise SpdyError("headers end in the middle of a word")
                    pair.append(plain[at + 4 : at + 4 + length].decode("latin-1"))
                    at += 4 + length
                headers[pair[0].lower()] = pair[1]
        except struct.error:
            raise SpdyError("headers end in the middle of a word") from None
        return headers


def _control(kind: int, fin: bool, content: bytes) -> bytes:
    return struct.pack(">HHI", _CONTROL | VERSION, kind, len(content) | fin << 24) + content
