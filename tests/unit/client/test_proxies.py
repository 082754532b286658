from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from drakkar.api.errors import UsageError
from drakkar.api.kinds import POD
from drakkar.client import Client, HttpTransport, Unreachable, kubeconfig
from drakkar.client.proxies import Proxy, parse_proxy, proxy_for
from tests.unit.client.fakeserver import FakeServer
from tests.unit.client.test_cache import pod
from tests.unit.client.test_http import Site, secured

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
        # Whatever a server is called, only this machine is there.
        port = head.split()[1].rpartition(":")[2]
        far_reader, far_writer = await asyncio.open_connection("localhost", int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        for pair in ((reader, far_writer), (far_reader, writer)):
            self._tasks.add(asyncio.create_task(self._pass_on(*pair)))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            writer.write(data)
        writer.close()


def test_requests_and_streams_go_through_it(tmp_path: Path) -> None:
    _, context = secured(tmp_path)
    ca = (tmp_path / "ca").read_bytes()

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


@pytest.mark.parametrize("by", ["kubeconfig", "environment"])
def test_a_kubeconfig_leads_through_it(by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, context = secured(tmp_path)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)

    async def scenario() -> None:
        server = FakeServer()
        server.put(POD, pod("a"))
        async with Site(server, context) as url, Tunnel() as tunnel:
            proxy = f"http://joe:s@localhost:{tunnel.port}"
            far = url.replace("localhost", "api.example.com")
            cluster = {"server": far, "certificate-authority": "ca", "tls-server-name": "localhost"}
            if by == "kubeconfig":
                # Goes before the environment, which leads nowhere.
                cluster["proxy-url"] = proxy
                monkeypatch.setenv("HTTPS_PROXY", "http://localhost:1")
            else:
                monkeypatch.setenv("HTTPS_PROXY", proxy)
            document = {
                "current-context": "x",
                "contexts": [{"name": "x", "context": {"cluster": "x"}}],
                "clusters": [{"name": "x", "cluster": cluster}],
            }
            (tmp_path / "config").write_text(json.dumps(document))
            client = Client(kubeconfig.load(tmp_path / "config").transport())
            await client.patch(POD, "a", "default", {"metadata": {}})
            assert tunnel.asked == [f"connect {far.removeprefix('https://')} http/1.1"]
            await client.close()

    asyncio.run(scenario())
