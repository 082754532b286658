"""What one server takes on at a time, and how long it waits for its clients.

The numbers are those of kube-apiserver and of Go's server below it, where these have one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

#: Largest body of a request, in bytes.
BODY_LIMIT = 3 << 20
#: Bytes of all request bodies that are held at a time; further requests are put off.
BODIES_LIMIT = 256 << 20
#: Largest head of a request, in bytes (Go's default).
HEAD_LIMIT = 1 << 20
#: Seconds from the first byte of a request to the end of its head, and from a connection to its first request.
HEAD_SECONDS = 32.0
#: Seconds without any progress after which a connection whose client does not read is cut.
STALL_SECONDS = 60.0
#: Bytes that wait in a connection before the sender does.
WRITE_BUFFER = 128 << 10


@dataclass(frozen=True, slots=True)
class Limits:
    """What an operator may choose: flags of ``drakkar up``, by the names of kube-apiserver's."""

    #: Requests in progress beyond which further ones are put off; watches and conversations do not count.
    reading: int = 400
    writing: int = 200
    #: Seconds for a request that is no watch, its body and its answer included.
    seconds: float = 60.0


class Intake:
    """Keeps count of the bytes of request bodies."""

    def __init__(self, limit: int = BODIES_LIMIT):
        self._limit = limit
        self._held = 0

    def take(self, size: int) -> bool:
        """Whether there is room for so many more bytes; then they count until :meth:`give_back`."""
        if self._held + size > self._limit:
            return False
        self._held += size
        return True

    def give_back(self, size: int) -> None:
        """Forgets so many bytes."""
        self._held -= size


class Releasing:
    """A stream that tells when it has ended, however it did, even if nobody ever read from it."""

    def __init__(self, stream: AsyncIterator[bytes], release: Callable[[], None]):
        self._stream = stream
        self._release: Callable[[], None] | None = release

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._stream)
        except BaseException:
            self._done()
            raise

    async def aclose(self) -> None:
        """Ends the stream early."""
        self._done()
        close = getattr(self._stream, "aclose", None)
        if close is not None:
            await close()

    def _done(self) -> None:
        if self._release is not None:
            self._release()
            self._release = None
