from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from drakkar.api.errors import UsageError
from drakkar.api.kinds import POD
from drakkar.client import Client, HttpTransport, Unreachable
from drakkar.client.proxies import Proxy, parse_proxy, proxy_for
from tests.unit.client.fakeserver import FakeServer
from tests.unit.client.test_cache import pod
from tests.unit.client.test_http import Site, authority

PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("server", "exceptions", "proxied"),
    [
        ("https://api.example.com:6443", "", True),
        ("http://api.example.com:6443", "", False),
        ("https://localhost:6443", "", False),
        ("https://127.0.0.2:6443", "", False),
        ("https://[::1]:6443", "", False),
        ("https://api.example.com:6443", "*", False),
        ("https://api.example.com:6443", "other.com, example.com", False),
        ("https://example.com:6443", ".example.com", True),
        ("https://api.example.com:6443", "*.example.com", False),
        ("https://myexample.com:6443", "example.com", True),
        ("https://api.example.com:6443", "example.com:443", True),
        ("https://api.example.com:6443", "example.com:6443", False),
        ("https://10.96.0.1:443", "10.96.0.0/12", False),
        ("https://10.96.0.1:443", "10.96.0.1", False),
        ("https://10.97.0.1:443", "10.96.0.0/16,nonsense/x", True),
        ("https://[fd00::1]:443", "fd00::/8", False),
        ("https://[fd00::1]:443", "[fd00::1]:443", False),
    ],
)
def test_which_servers_are_reached_through_a_proxy(server: str, exceptions: str, proxied: bool) -> None:
    assert proxy_for(server, {"https_proxy": PROXY, "NO_PROXY": exceptions}) == (PROXY if proxied else "")
    assert proxy_for(server, {"NO_PROXY": exceptions}) == ""


def test_addresses_of_proxies() -> None:
    assert parse_proxy("http://joe:p%40ss@proxy:3128") == Proxy("proxy", 3128, "joe:p@ss")
    assert parse_proxy("proxy:3128") == Proxy("proxy", 3128)
    with pytest.raises(UsageError, match="proxy 'socks5://proxy:1080' cannot be used"):
        parse_proxy("socks5://joe:secret@proxy:1080")


class Tunnel:
    """An HTTP proxy that knows CONNECT, and who may use it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Tunnel:
        self._server = await asyncio.start_server(self._serve, "localhost", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        self.asked.append(head.split("\r\n")[0])
        if "proxy-authorization: basic am9lonm=" not in head:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
            writer.close()
            return
        host, _, port = head.split()[1].rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        for pair in ((reader, far_writer), (far_reader, writer)):
            self._tasks.add(asyncio.create_task(self._pass_on(*pair)))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            writer.write(data)
        writer.close()


def test_requests_and_streams_go_through_it(tmp_path: Path) -> None:
    certificate = authority()
    (ca, _), (cert, key) = certificate("test-ca", ca=True), certificate("a")
    for name, content in (("cert", cert), ("key", key)):
        (tmp_path / name).write_bytes(content)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")

    async def scenario() -> None:
        server = FakeServer()
        server.put(POD, pod("a"))
        async with Site(server, context) as url, Tunnel() as tunnel:
            through = f"http://joe:s@localhost:{tunnel.port}"
            # The certificate is for localhost, and so are we told to expect it at another name of the same machine.
            elsewhere = url.replace("localhost", "127.0.0.1")
            client = Client(HttpTransport(elsewhere, ca=ca, proxy=through, server_name="localhost"))
            assert (await client.get(POD, "a", "default"))["metadata"]["name"] == "a"
            async for event in client.watch(POD, send_initial_events=True):
                assert event.object["metadata"]["name"] == "a"
                break
            port = url.rpartition(":")[2]
            assert tunnel.asked == [f"connect 127.0.0.1:{port} http/1.1"] * 2
            await client.close()
            stranger = Client(HttpTransport(url, ca=ca, proxy=f"http://localhost:{tunnel.port}"))
            with pytest.raises(Unreachable, match="refuses to connect: it answers 407"):
                await stranger.delete(POD, "a", "default")
            await stranger.close()

    asyncio.run(scenario())
