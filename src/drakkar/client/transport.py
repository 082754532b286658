"""How requests reach an API server.

A transport has one method and knows nothing of kinds. :class:`MemoryTransport` calls a server
in the same process, with the same authentication as over the network, so that components
cannot tell the difference; `drakkar.client.http` has the one for sockets.
"""

from __future__ import annotations

from typing import Protocol

from drakkar.api.errors import DrakkarError
from drakkar.api.wire import Handler, Request, Response


class Unreachable(DrakkarError):
    """No answer came: connection refused, reset, timed out. Trying again later may help."""


class TimedOut(Unreachable):
    """The answer did not come in time; the request may be carried out all the same, even later."""


class Transport(Protocol):
    """Carries one request; watches and logs answer with ``Response.stream``, the rest with ``body``.

    Raises :class:`Unreachable` when no complete answer came, also out of a stream.
    """

    async def request(self, request: Request) -> Response: ...

    async def close(self) -> None: ...


def wants_stream(request: Request) -> bool:
    """Whether the answer has no end of its own: ``watch`` or ``follow`` is asked for."""
    return any(key in ("watch", "follow") and value in ("true", "1") for key, value in request.query)


class MemoryTransport:
    """Calls ``handler`` in this process as the owner of ``token`` (none: anonymous)."""

    def __init__(self, handler: Handler, token: str | None = None, *, user_agent: str = "drakkar"):
        self._handler = handler
        self._headers = {"user-agent": user_agent}
        if token:
            self._headers["authorization"] = f"Bearer {token}"

    async def request(self, request: Request) -> Response:
        """The handler's answer; the headers of the request win over those of the transport."""
        return await self._handler(
            Request(
                method=request.method,
                path=request.path,
                query=request.query,
                headers={**self._headers, **request.headers},
                body=request.body,
                peer=request.peer,
            )
        )

    async def close(self) -> None:
        """Nothing to close; streams belong to whoever reads them."""
