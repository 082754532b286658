"""The transport over sockets: `drakkar.client.http1` for ordinary requests, aiohttp for streams.

aiohttp costs half a second of CPU to import, so that happens with the first stream.
Ordinary requests have a time limit; of streams only the beginning has one, because silence on a
watch is normal: the caches judge it by the bookmarks that do or do not arrive. Credentials that
a server refuses are read once more, where they can have changed, before the refusal counts.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import errno
import json
import os
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from httptools import HttpParserError

from drakkar.api.errors import DrakkarError, EnvironmentProblem
from drakkar.api.times import timestamp
from drakkar.api.wire import Request, Response
from drakkar.client.codec import CREDENTIALS
from drakkar.client.http1 import CONNECT_TIMEOUT, Connections
from drakkar.client.kubeconfig import Material
from drakkar.client.proxies import parse_proxy
from drakkar.client.transport import TimedOut, Unreachable, wants_stream
from drakkar.client.trust import trusting

#: Longest time an ordinary request may take, in seconds; API servers cut off after 60.
REQUEST_TIMEOUT = 65.0


def tls_context(ca: bytes | None, certificate: bytes | None, key: bytes | None, *, insecure: bool = False) -> Any:
    """An SSL context from PEM bytes; without ``ca`` the system's roots count. Raises EnvironmentProblem."""
    try:
        context = trusting(ca.decode() if ca else None)
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

    ``token`` may be a function, called for every request, so that rotated tokens are picked up; ``reload`` gives
    authority, certificate and key anew. ``identity`` says for people whose credentials these are. ``server_name`` is
    what the server's certificate is for, if not its address; ``proxy`` the URL of an HTTP proxy on the way there.
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
        identity: str = "",
        reload: Callable[[], Material] | None = None,
        server_name: str = "",
        proxy: str = "",
    ):
        self._server = server.rstrip("/")
        self._tls = (ca, certificate, key, insecure)
        self._token = token
        self._identity = identity
        self._reload = reload
        self._server_name = server_name
        self._proxy = parse_proxy(proxy) if proxy else None
        self._asking = asyncio.Lock()
        self._renewing = asyncio.Lock()
        self._user_agent = user_agent
        self._session: Any = None
        self._connections: Connections | None = None
        #: Answers that are still being read.
        self._streams: set[Any] = set()

    def _context(self) -> Any:
        ca, certificate, key, insecure = self._tls
        secure = self._server.startswith("https:")
        return tls_context(ca, certificate, key, insecure=insecure) if secure else None

    def _open(self) -> Any:
        import aiohttp

        if self._session is None:
            context = self._context()
            self._session = aiohttp.ClientSession(
                # Watches hold a connection each, so the pool has no upper bound.
                connector=aiohttp.TCPConnector(ssl=context or True, limit=0),
                headers={"user-agent": self._user_agent},
                auto_decompress=True,
                read_bufsize=2**18,
            )
        return self._session

    async def request(self, request: Request) -> Response:
        """One exchange; raises Unreachable when the connection fails or ends early."""
        token, tls = await self._current_token(), self._tls
        try:
            response = await self._exchange(request, token)
        except Unreachable as error:
            # TLS goes before the request: what it refuses has not been carried out.
            if not _is_tls(error) or not await self._reloaded(tls):
                raise
            response = await self._exchange(request, token)
        if response.status == 401 and await self._renewed(token, tls):
            token = await self._current_token()
            response = await self._exchange(request, token)
        if response.status == 401:
            response.headers[CREDENTIALS] = self._credentials(token)
        return response

    async def _current_token(self) -> str:
        """The token to send; empty for none. Raises Unreachable where there should be one."""
        if not callable(self._token):
            return self._token or ""
        try:
            if not getattr(self._token, "slow", False):
                return self._token()
            async with self._asking:
                # A program of its own may take its time, in which everything else goes on.
                return await asyncio.to_thread(self._token)
        except DrakkarError as error:
            raise Unreachable(f"no credentials for {self._server}: {error}") from error

    async def _renewed(self, token: str, tls: Any) -> bool:
        """Reads credentials again that a server has refused; whether there are others now."""
        async with self._renewing:
            # Others may have been refused at the same time: one of them asks for all.
            if self._tls is not tls or await self._current_token() != token:
                return True
            renew = getattr(self._token, "renew", None)
            if renew is not None:
                renew()
            others = await self._current_token() != token
            return await self._read_again() or others

    async def _reloaded(self, tls: Any) -> bool:
        """Reads authority, certificate and key again; whether they are others than in ``tls``."""
        async with self._renewing:
            return self._tls is not tls or await self._read_again()

    async def _read_again(self) -> bool:
        if self._reload is None:
            return False
        try:
            fresh = *await asyncio.to_thread(self._reload), self._tls[3]
            if fresh == self._tls:
                return False
            tls_context(*fresh[:3])
        except (DrakkarError, OSError):
            # Half-written: the next refusal looks again.
            return False
        self._tls = fresh
        # Also ends the watches of the old identity, which begin anew.
        await self.close()
        return True

    def _credentials(self, token: str) -> str:
        """Which credentials a server refused, and whether they have run out by our clock."""
        _, certificate, _, _ = self._tls
        if token:
            ends = _token_ends(token)
            kind, cure = "the token", "renew it"
        elif certificate:
            ends = _certificate_ends(certificate)
            kind, cure = "the client certificate", "renew it"
        else:
            ends = None
            kind, cure = "a request without token and certificate", "name a user with either in the kubeconfig"
        owner = f" of {self._identity}" if self._identity else ""
        past = f", which expired at {timestamp(ends)}" if ends is not None and ends < time.time() else ""
        return f"{kind}{owner}{past}; {cure}"

    async def _exchange(self, request: Request, token: str) -> Response:
        headers = dict(request.headers)
        if token and "authorization" not in headers:
            headers["authorization"] = f"Bearer {token}"
        target = quote(request.path, safe="/:@!$&'()*+,;=~")
        if request.query:
            target += "?" + urlencode(request.query)
        if wants_stream(request):
            return await self._stream(request, target, headers)
        if self._connections is None:
            self._connections = Connections(
                self._server, self._context(), self._user_agent, self._server_name, self._proxy
            )
        try:
            return await self._connections.request(request.method, target, headers, request.body, REQUEST_TIMEOUT)
        except TimeoutError as error:
            raise TimedOut(f"no answer from {self._server} in time: {self._why(error)}") from error
        except (OSError, HttpParserError) as error:
            raise Unreachable(f"no answer from {self._server}: {self._why(error)}") from error

    async def _stream(self, request: Request, target: str, headers: dict[str, str]) -> Response:
        import aiohttp
        import yarl

        session = self._open()
        through: dict[str, Any] = {}
        if self._proxy is not None and self._server.startswith("https:"):
            through["proxy"] = f"http://{_bracketed(self._proxy.host)}:{self._proxy.port}"
            through["proxy_headers"] = self._proxy.headers
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                answer = await session.request(
                    request.method,
                    yarl.URL(self._server + target, encoded=True),
                    headers=headers,
                    data=request.body or None,
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
                    allow_redirects=False,
                    server_hostname=self._server_name or None,
                    **through,
                )
            response_headers = {name.lower(): value for name, value in answer.headers.items()}
            if answer.status == 200:
                return Response(answer.status, response_headers, stream=self._chunks(answer))
            async with answer:
                return Response(answer.status, response_headers, await answer.read())
        except TimeoutError as error:
            raise TimedOut(f"no answer from {self._server} in time: {self._why(error)}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"no answer from {self._server}: {self._why(error)}") from error

    def _why(self, error: Exception) -> str:
        """What went wrong; a server may cut connections with a certificate that has run out without a word."""
        _, certificate, _, _ = self._tls
        ends = _certificate_ends(certificate) if certificate else None
        if ends is None or ends > time.time():
            return _why(error)
        owner = f" of {self._identity}" if self._identity else ""
        return f"{_why(error)}; the client certificate{owner} expired at {timestamp(ends)}; renew it"

    async def _chunks(self, answer: Any) -> AsyncIterator[bytes]:
        import aiohttp

        self._streams.add(answer)
        try:
            async for chunk in answer.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"stream from {self._server} broke: {_why(error)}") from error
        finally:
            self._streams.discard(answer)
            answer.close()

    async def close(self) -> None:
        """Closes all connections; streams end with Unreachable. What is asked from now on begins with new ones."""
        # Out of the way first: others go on asking while these are being closed.
        connections, self._connections = self._connections, None
        session, self._session = self._session, None
        if connections is not None:
            await connections.close()
        if session is not None:
            import aiohttp

            for answer in self._streams:
                # Who waits for more would not hear of a connection that is closed at this end.
                answer.content.set_exception(aiohttp.ClientConnectionError("the connection was closed here"))
            await session.close()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_tls(error: Exception) -> bool:
    """Whether the two ends did not come to trust each other."""
    cause = error.__cause__
    # aiohttp's keep the error below as either.
    below = (cause, getattr(cause, "os_error", None), getattr(cause, "certificate_error", None))
    return any(isinstance(each, ssl.SSLError) for each in below)


def _why(error: Exception) -> str:
    """What went wrong, without what the message around it says anyway."""
    cause = getattr(error, "os_error", error)  # aiohttp's
    if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError):
        if cause.errno is not None and cause.errno in errno.errorcode:
            return os.strerror(cause.errno)
        if cause.strerror:
            return cause.strerror  # of names that cannot be resolved
    return str(error) or type(error).__name__


def _token_ends(token: str) -> float | None:
    """When a JSON Web Token ends (Unix time); None for other tokens."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (binascii.Error, ValueError, KeyError, TypeError):
        return None


def _certificate_ends(pem: bytes) -> float | None:
    """When a certificate ends (Unix time); None when it cannot be read."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
    except ValueError:
        return None
