"""The transport over sockets, on aiohttp.

aiohttp costs half a second of CPU to import, so that happens with the first request.
Ordinary requests have a time limit; streams have none, because silence on a watch is
normal: the caches judge it by the bookmarks that do or do not arrive.
"""

from __future__ import annotations

import errno
import os
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from drakkar.api.errors import EnvironmentProblem
from drakkar.api.wire import Request, Response
from drakkar.client.transport import Unreachable, wants_stream

#: Longest time an ordinary request may take, in seconds; API servers cut off after 60.
REQUEST_TIMEOUT = 65.0
CONNECT_TIMEOUT = 10.0


def tls_context(ca: bytes | None, certificate: bytes | None, key: bytes | None, *, insecure: bool = False) -> Any:
    """An SSL context from PEM bytes; without ``ca`` the system's roots count. Raises EnvironmentProblem."""
    try:
        context = ssl.create_default_context(cadata=ca.decode() if ca else None)
        if insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate and key:
            # The ssl module reads client certificates from files only; the folder is private (0700) and short-lived.
            with tempfile.TemporaryDirectory(prefix="drakkar-tls-") as folder:
                certificate_file, key_file = Path(folder, "tls.crt"), Path(folder, "tls.key")
                certificate_file.write_bytes(certificate)
                key_file.write_bytes(key)
                context.load_cert_chain(certificate_file, key_file)
    except (ssl.SSLError, ValueError) as error:
        raise EnvironmentProblem(
            f"the certificates for the API server cannot be used: {error}; check certificate-authority-data, "
            "client-certificate-data and client-key-data in the kubeconfig"
        ) from error
    return context


class HttpTransport:
    """Speaks to ``server`` (``https://host:port``) with a client certificate, a token, or neither.

    ``token`` may be a function, called for every request, so that rotated tokens are picked up.
    """

    def __init__(
        self,
        server: str,
        *,
        ca: bytes | None = None,
        certificate: bytes | None = None,
        key: bytes | None = None,
        token: str | Callable[[], str] | None = None,
        insecure: bool = False,
        user_agent: str = "drakkar",
    ):
        self._server = server.rstrip("/")
        self._tls = (ca, certificate, key, insecure)
        self._token = token
        self._user_agent = user_agent
        self._session: Any = None

    def _open(self) -> Any:
        import aiohttp

        if self._session is None:
            ca, certificate, key, insecure = self._tls
            secure = self._server.startswith("https:")
            context = tls_context(ca, certificate, key, insecure=insecure) if secure else None
            self._session = aiohttp.ClientSession(
                # Watches hold a connection each, so the pool has no upper bound.
                connector=aiohttp.TCPConnector(ssl=context or True, limit=0),
                headers={"user-agent": self._user_agent},
                auto_decompress=True,
                read_bufsize=2**18,
            )
        return self._session

    def _timeout(self, stream: bool) -> Any:
        import aiohttp

        return aiohttp.ClientTimeout(total=None if stream else REQUEST_TIMEOUT, sock_connect=CONNECT_TIMEOUT)

    async def request(self, request: Request) -> Response:
        """One exchange; raises Unreachable when the connection fails or ends early."""
        import aiohttp
        import yarl

        session = self._open()
        stream = wants_stream(request)
        headers = dict(request.headers)
        token = self._token() if callable(self._token) else self._token
        if token and "authorization" not in headers:
            headers["authorization"] = f"Bearer {token}"
        url = self._server + quote(request.path, safe="/:@!$&'()*+,;=~")
        if request.query:
            url += "?" + urlencode(request.query)
        try:
            answer = await session.request(
                request.method,
                yarl.URL(url, encoded=True),
                headers=headers,
                data=request.body or None,
                timeout=self._timeout(stream),
                allow_redirects=False,
            )
            response_headers = {name.lower(): value for name, value in answer.headers.items()}
            if stream and answer.status == 200:
                return Response(answer.status, response_headers, stream=self._chunks(answer))
            async with answer:
                return Response(answer.status, response_headers, await answer.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"no answer from {self._server}: {_why(error)}") from error

    async def _chunks(self, answer: Any) -> AsyncIterator[bytes]:
        import aiohttp

        try:
            async for chunk in answer.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"stream from {self._server} broke: {_why(error)}") from error
        finally:
            answer.close()

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def _why(error: Exception) -> str:
    """What went wrong, without what the message around it says anyway."""
    import aiohttp

    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno  # negative for names that cannot be resolved
        if number is not None and number in errno.errorcode:
            return os.strerror(number)
    return str(error) or type(error).__name__
