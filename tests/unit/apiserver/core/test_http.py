"""The server on a socket: TLS, certificates, compression, streams, and what can go wrong at start."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import ssl
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from drakkar.api.errors import EnvironmentProblem
from drakkar.api.wire import Request
from drakkar.apiserver import ApiServer, Pki, Serving, open_pki, open_server, serve, write_kubeconfig
from drakkar.apiserver.http import listen
from drakkar.client.clock import SystemClock
from tests.support.eventually import eventually
from tests.unit.apiserver.core.test_writes import CONFIGMAPS


class Plain:
    """A client that shows the bytes."""

    def __init__(self, serving: Serving, context: ssl.SSLContext | None, token: str = ""):
        self.serving = serving
        self.context = context
        self.token = token

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host = "localhost" if self.context else None
        return await asyncio.open_connection("127.0.0.1", self.serving.port, ssl=self.context, server_hostname=host)

    def head(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", "host: localhost"]
        if self.token:
            lines.append(f"authorization: Bearer {self.token}")
        if body:
            lines += [f"content-length: {len(body)}", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
        reader, writer = await self.open()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        writer.write(self.head(method, path, body, {**named, "connection": "close"}))
        answer = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        head, _, content = answer.partition(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        found = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in rest}
        return int(first.split()[1]), found, content


Scene = Callable[[ApiServer, Serving, Pki | None], Awaitable[None]]


def play(folder: Path, scene: Scene, *, tls: bool = False) -> None:
    async def run() -> None:
        server = await open_server(folder, clock=SystemClock(), synchronous="NORMAL")
        pki = open_pki(folder / "pki") if tls else None
        serving = await serve(server, pki=pki)
        await scene(server, serving, pki)
        await serving.close()
        await server.close()

    asyncio.run(run())


def test_client_certificates_over_tls(tmp_path: Path) -> None:
    async def scene(server: ApiServer, serving: Serving, pki: Pki | None) -> None:
        assert pki is not None
        certificate, key = pki.client("someone", ("system:masters", "others"))
        (tmp_path / "c.crt").write_bytes(certificate)
        (tmp_path / "c.key").write_bytes(key)
        context = ssl.create_default_context(cadata=pki.ca_certificate.decode())
        anonymous = Plain(serving, context)
        assert (await anonymous.ask("GET", "/healthz"))[::2] == (200, b"ok")
        assert (await anonymous.ask("GET", "/api"))[0] == 401
        context = ssl.create_default_context(cadata=pki.ca_certificate.decode())
        context.load_cert_chain(tmp_path / "c.crt", tmp_path / "c.key")
        known = Plain(serving, context)
        review = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        code, _, body = await known.ask("POST", review, b"{}")
        assert code == 201
        info = json.loads(body)["status"]["userInfo"]
        assert info == {"username": "someone", "groups": ["system:masters", "others", "system:authenticated"]}
        stranger = open_pki(tmp_path / "other")
        context = ssl.create_default_context(cadata=stranger.ca_certificate.decode())
        with pytest.raises(ssl.SSLError):
            await Plain(serving, context).ask("GET", "/healthz")

    play(tmp_path, scene, tls=True)


def test_large_answers_are_compressed_on_request(tmp_path: Path) -> None:
    async def scene(server: ApiServer, serving: Serving, pki: Pki | None) -> None:
        client = Plain(serving, None, server.token("admin", "system:masters"))
        body = json.dumps({"metadata": {"name": "big"}, "data": {"k": "v" * 200_000}}).encode()
        code, headers, _ = await client.ask("POST", CONFIGMAPS, body)
        assert (code, headers["content-type"]) == (201, "application/json")
        _, headers, packed = await client.ask("GET", f"{CONFIGMAPS}/big", accept_encoding="gzip")
        assert headers["content-encoding"] == "gzip"
        assert len(packed) < 10_000
        _, headers, plain = await client.ask("GET", f"{CONFIGMAPS}/big")
        assert "content-encoding" not in headers
        assert gzip.decompress(packed) == plain

    play(tmp_path, scene)


def test_long_lists_go_out_in_pieces_and_are_what_short_ones_are(tmp_path: Path) -> None:
    async def scene(server: ApiServer, serving: Serving, pki: Pki | None) -> None:
        token = server.token("admin", "system:masters")
        headers = {"authorization": f"Bearer {token}"}
        for number in range(70):
            obj = {"metadata": {"name": f"c{number}"}, "data": {"k": "v" * 20_000}}
            made = await server.handle(Request("POST", CONFIGMAPS, (), headers, json.dumps(obj).encode()))
            assert made.status == 201
        for accept in ("application/json", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"):
            headers["accept"] = accept
            whole = await server.handle(Request("GET", CONFIGMAPS, (), headers))
            assert len(json.loads(whole.body)["items"]) >= 70
            taken = await server.handle(Request("GET", CONFIGMAPS, (), headers, pieces=True))
            assert taken.stream is not None
            assert taken.whole
            parts = [part async for part in taken.stream]
            assert len(parts) > 2
            assert b"".join(parts) == whole.body
        client = Plain(serving, None, token)
        _, sent, packed = await client.ask("GET", CONFIGMAPS, accept_encoding="gzip")
        assert sent["content-encoding"] == "gzip"
        assert sent["transfer-encoding"] == "chunked"
        lengths, rest = 0, packed
        unpacked = zlib.decompressobj(31)
        text = b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            text += unpacked.decompress(rest[: int(size, 16)])
            lengths += int(size, 16)
            rest = rest[int(size, 16) + 2 :]
        assert unpacked.eof
        assert lengths < 50_000
        assert len(json.loads(text)["items"]) >= 70

    play(tmp_path, scene)


def test_bodies_that_are_too_large_are_refused_unread(tmp_path: Path) -> None:
    async def scene(server: ApiServer, serving: Serving, pki: Pki | None) -> None:
        client = Plain(serving, None, server.token("admin", "system:masters"))
        reader, writer = await client.open()
        writer.write(client.head("POST", CONFIGMAPS, b"", {"content-length": str(4 << 20)}))
        answer = await asyncio.wait_for(reader.read(4096), 60)
        assert b" 413 " in answer.split(b"\r\n")[0]
        writer.close()

    play(tmp_path, scene)


def test_a_watch_streams_and_ends_with_its_reader(tmp_path: Path) -> None:
    async def scene(server: ApiServer, serving: Serving, pki: Pki | None) -> None:
        client = Plain(serving, None, server.token("admin", "system:masters"))
        reader, writer = await client.open()
        writer.write(client.head("GET", f"{CONFIGMAPS}?watch=1&timeoutSeconds=60", b"", {}))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        assert b"200" in head
        assert b"chunked" in head.lower()
        await client.ask("POST", CONFIGMAPS, b'{"metadata":{"name":"a"}}')
        chunk = await asyncio.wait_for(reader.readuntil(b"\n\r\n"), 60)
        assert b'{"type":"ADDED","object":{"kind":"ConfigMap"' in chunk
        assert len(server.ticker) == 1
        writer.close()
        # It does not go on without a reader.
        await eventually(lambda: asyncio.sleep(0, len(server.ticker)), lambda watches: watches == 0)

    play(tmp_path, scene)


def test_closing_ends_watches_cleanly(tmp_path: Path) -> None:
    async def run() -> None:
        server = await open_server(None, clock=SystemClock())
        serving = await serve(server)
        client = Plain(serving, None, server.token("admin", "system:masters"))
        reader, writer = await client.open()
        writer.write(client.head("GET", f"{CONFIGMAPS}?watch=1", b"", {}))
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.wait_for(serving.close(), 60)
        assert (await reader.read()).endswith(b"0\r\n\r\n")
        writer.close()
        await server.close()

    asyncio.run(run())


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    async def scene(server: ApiServer, serving: Serving, pki: Pki | None) -> None:
        with pytest.raises(EnvironmentProblem, match=f"cannot listen on 127.0.0.1 port {serving.port}.*--port"):
            await serve(server, port=serving.port)

    play(tmp_path, scene)


def test_data_in_use_is_one_sentence(tmp_path: Path) -> None:
    async def scene(server: ApiServer, serving: Serving, pki: Pki | None) -> None:
        with pytest.raises(EnvironmentProblem, match="in use by another server"):
            await open_server(tmp_path, clock=SystemClock())

    play(tmp_path, scene)


def test_certificates_are_kept_and_private(tmp_path: Path) -> None:
    first = open_pki(tmp_path / "pki")
    server = (tmp_path / "pki" / "server.crt").read_bytes()
    assert open_pki(tmp_path / "pki") == first
    assert (tmp_path / "pki" / "server.crt").read_bytes() == server
    open_pki(tmp_path / "pki", hosts=["10.1.2.3", "example.com"])
    assert (tmp_path / "pki" / "server.crt").read_bytes() != server
    write_kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:1", first)
    for path in [tmp_path / "kubeconfig", *(tmp_path / "pki").iterdir()]:
        assert path.stat().st_mode & 0o077 == 0, path
    (tmp_path / "pki" / "ca.key").write_text("garbage")
    (tmp_path / "pki" / "server.crt").unlink()
    with pytest.raises(EnvironmentProblem, match="remove it to have new ones"):
        open_pki(tmp_path / "pki")


def test_no_signal_handlers_are_installed(tmp_path: Path) -> None:
    import signal

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    async def scene(server: ApiServer, serving: Serving, pki: Pki | None) -> None:
        # asyncio.run itself handles SIGINT; nobody may touch SIGTERM.
        assert signal.getsignal(signal.SIGTERM) == before[0]

    play(tmp_path, scene)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_sockets_are_closed(tmp_path: Path) -> None:
    ports: list[int] = []

    async def scene(server: ApiServer, serving: Serving, pki: Pki | None) -> None:
        ports.append(serving.port)

    play(tmp_path, scene)
    with socket.socket() as again:
        again.bind(("127.0.0.1", ports[0]))


def test_answers_in_two_pieces_are_not_held_back() -> None:
    """Nagle's algorithm is off on connections that are accepted, on asyncio's own loop too."""

    async def run() -> None:
        accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        sock = listen("127.0.0.1", 0)

        def started(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.put_nowait(writer)

        async with await asyncio.start_server(started, sock=sock):
            _, writer = await asyncio.open_connection(*sock.getsockname())
            answering = await accepted.get()
            assert answering.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            answering.close()
            writer.close()

    asyncio.run(run())
