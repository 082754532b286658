"""The API server's client of node agents: HTTPS with its certificate, verified both ways.

Nobody is followed elsewhere: all agents take this server's word, so one that may send it on has the pods of all.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from drakkar.api.wire import Response
from drakkar.apiserver import status
from drakkar.apiserver.status import StatusError
from drakkar.apiserver.streaming.targets import Target
from drakkar.streaming.channels import LONGEST_MESSAGE

if TYPE_CHECKING:
    import aiohttp

#: Seconds to reach an agent.
_CONNECT = 10.0

_TEXT = {"content-type": "text/plain"}


class Agents:
    """Connections to agents; ``tls`` has the client certificate and the authority that agents' certificates are of."""

    def __init__(self, tls: ssl.SSLContext):
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Ends all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def logs(self, url: str) -> Response:
        """The log at this URL as a stream. StatusError with the agent's words, or 500 when it cannot be reached."""
        import aiohttp

        try:
            answer = await self._client().get(url, ssl=self._tls)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise StatusError(_unreachable(url, error)) from None
        if answer.status != 200:
            words = (await answer.text()).strip()
            answer.release()
            raise StatusError(_agents_words(answer.status, words))
        return Response(200, dict(_TEXT), stream=_pieces(answer))

    async def converse(self, target: Target) -> aiohttp.ClientWebSocketResponse:
        """A WebSocket to the agent. StatusError 500 when it cannot be had."""
        import aiohttp

        try:
            return await self._client().ws_connect(
                target.url, protocols=target.protocols, ssl=self._tls, max_msg_size=LONGEST_MESSAGE, compress=0
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise StatusError(_unreachable(target.url, error)) from None

    def _client(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT)
            trace = aiohttp.TraceConfig()
            trace.on_request_redirect.append(_stay)
            # No connections are kept: a node that went away leaves none behind.
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=connector, trace_configs=[trace])
        return self._session


async def _stay(session: aiohttp.ClientSession, context: object, redirect: aiohttp.TraceRequestRedirectParams) -> None:
    """Ends a request that was answered with a redirect; ``ws_connect`` has no flag for it."""
    import aiohttp

    redirect.response.close()
    raise aiohttp.ClientError(f"the agent answered {redirect.response.status}, and redirects are not followed")


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    import aiohttp

    try:
        # An agent that dies in the middle ends the log, as upstream's does.
        with contextlib.suppress(aiohttp.ClientError, OSError):
            async for piece in answer.content.iter_any():
                yield piece
    finally:
        answer.close()


def _unreachable(url: str, error: BaseException) -> dict[str, object]:
    where = url.partition("?")[0]
    why = getattr(error, "os_error", None) or error
    return status.internal(f"error dialing backend: {where}: {why or type(error).__name__}")


def _agents_words(code: int, words: str) -> dict[str, object]:
    if code == 400:
        return status.bad_request(words)
    if code == 404:
        return status.status_error(404, "NotFound", words)
    return status.internal(f"the agent of the node answered {code}: {words}")
