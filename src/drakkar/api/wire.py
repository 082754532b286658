"""One exchange with an API server, without I/O.

The API server answers a :class:`Request` with a :class:`Response`; a client transport
carries them, over HTTP or by calling the server in the same process. Bodies and stream
chunks are bytes as they stand on the wire.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, frozen=True)
class Request:
    """What a client asks. ``headers`` has lower-case names, ``query`` repeats keys in order."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    #: Subject of a verified client certificate: (common name, organizations), or None.
    peer: tuple[str, tuple[str, ...]] | None = None
    #: Address of the client; empty for calls within the process.
    source: str = ""
    #: Whether the caller takes a long body in pieces, as ``Response.stream``.
    pieces: bool = False


@dataclass(slots=True)
class Response:
    """What the server answers: ``body``, or ``stream`` for watches and, where the request takes pieces, long bodies."""

    status: int
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    #: Yields chunks as they become available; closing it (``aclose``) ends the watch.
    stream: AsyncIterator[bytes] | None = None
    #: Whether ``stream`` is one long body, which is there already, and no watch.
    whole: bool = False
    #: With status 101: whom the client's connection is to be joined with (a `Target` of `drakkar.apiserver.streaming`).
    upgrade: Any = None


#: The API server as a function; `drakkar.apiserver` provides one, the in-memory transport calls it.
Handler = Callable[[Request], Awaitable[Response]]
