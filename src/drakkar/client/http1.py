"""Ordinary requests over HTTP/1.1: one answer each, on connections that are kept.

A scheduler on a cluster spends most of its processor time on its requests. aiohttp takes some 125 µs for one, this some
25 µs, with the same parser (httptools) below uvicorn; streams, of which there are few, stay with aiohttp.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
from collections.abc import Mapping
from typing import cast
from urllib.parse import urlsplit

import httptools

from drakkar.api.wire import Response
from drakkar.client.proxies import Proxy

#: Kept connections that have not been used for this many seconds are not used again: servers close theirs after longer.
KEPT = 15.0
#: Longest time until a connection stands, over all addresses of the server, in seconds.
CONNECT_TIMEOUT = 10.0


class Broken(OSError):
    """The connection ended before the answer was complete."""


class Connections:
    """Connections to one server (``https://host:port/prefix``), as many as there are requests at a time.

    ``server_name`` is what its certificate is for, if not its address; through ``proxy`` only servers with TLS are
    reached.
    """

    def __init__(
        self,
        server: str,
        context: ssl.SSLContext | None,
        user_agent: str,
        server_name: str = "",
        proxy: Proxy | None = None,
    ):
        parts = urlsplit(server)
        self._host = parts.hostname or ""
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/")
        self._context = context
        self._server_name = (server_name or self._host) if context is not None else None
        self._proxy = proxy if context is not None else None
        self._constant = f" HTTP/1.1\r\nhost: {parts.netloc.rpartition('@')[2]}\r\nuser-agent: {user_agent}\r\n"
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()

    async def request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, timeout: float
    ) -> Response:
        """One exchange; ``target`` is path and query, escaped, and ``timeout`` in seconds is for all of it.

        Raises TimeoutError, OSError (:class:`Broken` among them) and httptools.HttpParserError; never sends twice.
        """
        if any("\r" in value or "\n" in value for value in headers.values()):
            raise ValueError(f"a header of {method} {target} has a line break")
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        if body or method in ("POST", "PUT", "PATCH"):
            lines.append(f"content-length: {len(body)}\r\n")
        if method == "GET":
            lines.append("accept-encoding: gzip\r\n")
        head = "".join((method, " ", self._prefix, target, self._constant, *lines, "\r\n")).encode()
        async with asyncio.timeout(timeout):
            connection = self._kept() or await self._connect()
            try:
                response = await connection.exchange(head + body)
            except BaseException:
                # Half an answer may be on its way, which must not be taken for that of the next request.
                connection.abort()
                raise
        if connection.is_open:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        if response.headers.get("content-encoding") == "gzip":
            response.body = gzip.decompress(response.body)
        return response

    def _kept(self) -> _Connection | None:
        """The connection that was used last, unless that is too long ago."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and now - connection.idle_since < KEPT:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> _Connection:
        """A connection to the first address of the server that answers; each has its part of the time."""
        loop = asyncio.get_running_loop()
        if self._proxy is not None:
            return await self._connect_through(self._proxy)
        found = await loop.getaddrinfo(self._host, self.port, type=socket.SOCK_STREAM)
        failure = OSError(f"{self._host} has no address")
        for host, port in cast("list[tuple[str, int]]", [address[:2] for *_, address in found]):
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT / len(found)):
                    _, connection = await loop.create_connection(
                        lambda: _Connection(self._all),
                        host,
                        port,
                        ssl=self._context,
                        server_hostname=self._server_name,
                    )
                return connection
            except OSError as error:
                failure = error
        raise failure

    async def _connect_through(self, proxy: Proxy) -> _Connection:
        """A connection that ``proxy`` makes (``CONNECT``), with TLS from here to the server."""
        assert self._context is not None
        loop = asyncio.get_running_loop()
        name = f"[{self._host}]" if ":" in self._host else self._host
        asked = f"CONNECT {name}:{self.port} HTTP/1.1\r\nhost: {name}:{self.port}\r\n"
        asked += "".join(f"{header}: {value}\r\n" for header, value in proxy.headers.items())
        async with asyncio.timeout(CONNECT_TIMEOUT):
            way, greeting = await loop.create_connection(_Greeting, proxy.host, proxy.port)
            try:
                way.write(f"{asked}\r\n".encode())
                status = await greeting.status
                if status != 200:
                    raise OSError(f"the proxy {proxy.host}:{proxy.port} refuses to connect: it answers {status}")
                connection = _Connection(self._all)
                secured = await loop.start_tls(way, connection, self._context, server_hostname=self._server_name)
            except BaseException:
                way.abort()
                raise
        assert secured is not None
        connection.connection_made(secured)
        return connection

    async def close(self) -> None:
        """Closes all connections; requests under way end with :class:`Broken`."""
        for connection in [*self._all]:
            connection.abort()
        self._idle.clear()
        # Transports finish closing in the next rounds of the loop.
        await asyncio.sleep(0)


class _Greeting(asyncio.Protocol):
    """What a proxy says before it leads to the server: ``status`` of its answer."""

    def __init__(self) -> None:
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserUpgrade, httptools.HttpParserError) as error:
            self._settle(OSError(f"the proxy does not speak HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle(Broken("the proxy closed the connection without an answer"))

    def on_headers_complete(self) -> None:
        if not self.status.done():
            self.status.set_result(self._parser.get_status_code())

    def _settle(self, error: OSError) -> None:
        if not self.status.done():
            self.status.set_exception(error)


class _Connection(asyncio.Protocol):
    """One connection with at most one request on its way."""

    def __init__(self, everyone: set[_Connection]):
        self.is_open = False
        self.idle_since = 0.0
        self._everyone = everyone
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Response] | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._headers: dict[str, str] = {}
        self._pieces: list[bytes] = []
        self._headed = False

    async def exchange(self, data: bytes) -> Response:
        """Sends a request and waits for its answer."""
        if self._transport is None or not self.is_open:
            raise Broken("the connection was closed")
        self._parser = httptools.HttpResponseParser(self)
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        return await self._answer

    def abort(self) -> None:
        """Closes the connection at once."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # By its methods; uvloop's for TLS is no subclass.
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True
        self._everyone.add(self)

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self._answer is None or self._answer.done():
            # Nothing was asked.
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(error)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._everyone.discard(self)
        lasts = self._headed and not {"content-length", "transfer-encoding"} & self._headers.keys()
        if lasts and exc is None and self._answer is not None and not self._answer.done():
            # An answer without a length ends with its connection.
            self.on_message_complete()
        self._fail(exc if isinstance(exc, OSError) else Broken("the server closed the connection without an answer"))

    # httptools

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.done():
            # A second answer to one request: whatever comes next would be taken for that of another.
            self.abort()
        self._headers = {}
        self._pieces = []
        self._headed = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._headed = True

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < 200:
            return  # Only news on the way to the answer.
        if not self._parser.should_keep_alive():
            self.is_open = False
            if self._transport is not None:
                self._transport.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(Response(status, self._headers, b"".join(self._pieces)))
