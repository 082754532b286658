"""The transport over real sockets: mutual TLS, tokens, streams, servers that go away."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import datetime
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from drakkar.api.errors import ApiError
from drakkar.api.kinds import POD
from drakkar.api.wire import Request, Response
from drakkar.client import Caches, Client, HttpTransport, Unreachable, kubeconfig
from drakkar.client.trust import trusting
from tests.unit.client.fakeserver import FakeServer, failure
from tests.unit.client.test_cache import pod, until


def authority(called: str = "test-ca") -> Any:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.UTC)
    root_key = ec.generate_private_key(ec.SECP256R1())
    root_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, called)])

    def certificate(name: str, ca: bool = False, hours: float = 1) -> tuple[bytes, bytes]:
        key = root_key if ca else ec.generate_private_key(ec.SECP256R1())
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(root_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=2))
            .not_valid_after(now + datetime.timedelta(hours=hours))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        )
        made = builder.sign(root_key, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM), key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    return certificate


def secured(folder: Path, *, checking: bool = False) -> tuple[Any, ssl.SSLContext]:
    """An authority (certificate: ``folder/ca``), and the TLS of its server localhost, which may check clients."""
    certificate = authority()
    (ca, _), (cert, key) = certificate("test-ca", ca=True), certificate("a")
    for name, content in (("ca", ca), ("cert", cert), ("key", key)):
        (folder / name).write_bytes(content)
    context = trusting(ca.decode(), ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "cert", folder / "key")
    if checking:
        context.verify_mode = ssl.CERT_REQUIRED
    return certificate, context


class Site:
    """The small server behind a real socket."""

    def __init__(self, server: FakeServer, context: ssl.SSLContext | None = None):
        self.server = server
        self.context = context
        self.peers: list[Any] = []

    async def __aenter__(self) -> str:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self.answer)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "localhost", 0, ssl_context=self.context)
        await site.start()
        port = self.runner.addresses[0][1]
        return f"{'https' if self.context else 'http'}://localhost:{port}"

    async def __aexit__(self, *_: object) -> None:
        self.server.disconnect()
        await self.runner.cleanup()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.peers.append(request.transport.get_extra_info("peercert") if request.transport else None)
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = await request.read()
        made = Request(request.method, request.path, tuple(request.query.items()), headers, body)
        response = await self.server.handle(made)
        if response.stream is None:
            return web.Response(status=response.status, body=response.body, headers=response.headers)
        stream = web.StreamResponse()
        await stream.prepare(request)
        async for chunk in response.stream:
            await stream.write(chunk)
        return stream


@pytest.fixture
def as_python_313(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own contexts want certificates that strictly follow RFC 5280, whatever Python this is."""
    make = ssl.create_default_context

    def strict(*arguments: Any, **named: Any) -> ssl.SSLContext:
        context = make(*arguments, **named)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)


@pytest.mark.usefixtures("as_python_313")
def test_client_certificates_both_ways(tmp_path: Path) -> None:
    """Without key identifiers, which Go does not miss."""
    certificate, context = secured(tmp_path, checking=True)
    ca, (client_cert, client_key) = (tmp_path / "ca").read_bytes(), certificate("b")

    async def scenario() -> None:
        site = Site(FakeServer(), context)
        async with site as url:
            client = Client(HttpTransport(url, ca=ca, certificate=client_cert, key=client_key))
            await client.create(POD, pod("a"))
            assert (await client.get(POD, "a", "default"))["metadata"]["name"] == "a"
            assert site.peers[0]["subject"] == ((("commonName", "b"),),)
            await client.close()
            stranger = Client(HttpTransport(url, certificate=client_cert, key=client_key))
            with pytest.raises(Unreachable):
                await stranger.delete(POD, "a", "default")
            await stranger.close()

    asyncio.run(scenario())


def test_caches_live_through_a_restart_of_the_server() -> None:
    async def scenario() -> None:
        server = FakeServer()
        server.put(POD, pod("a"))
        async with Site(server) as url:
            client = Client(HttpTransport(url, token=lambda: "rotated"))
            caches = Caches(client)
            pods = caches.of(POD)
            await caches.start()
            await caches.synced()
            server.put(POD, pod("b"))
            await until(lambda: pods.get("default", "b"))
            assert server.requests[0].headers["authorization"] == "Bearer rotated"
        with pytest.raises(Unreachable, match=r"no answer from http://localhost:\d+: Connection refused$"):
            await client.delete(POD, "a", "default")
        server.remove(POD, "a")
        await caches.stop()
        await client.close()

    asyncio.run(scenario())


def test_a_stream_ends_with_its_transport() -> None:
    async def scenario() -> None:
        async with Site(FakeServer()) as url:
            transport = HttpTransport(url)
            query = [("watch", "true"), ("allowWatchBookmarks", "true")]
            answer = await transport.request(Request("GET", "/api/v1/pods", query))
            stream = answer.stream
            assert stream is not None

            async def read() -> None:
                async for _ in stream:
                    pass

            reading = asyncio.create_task(read())
            await asyncio.sleep(0.1)
            assert not reading.done()
            await transport.close()
            with pytest.raises(Unreachable, match="was closed here"):
                await asyncio.wait_for(reading, 60)

    asyncio.run(scenario())


def test_connections_that_are_closed_are_nobody_elses() -> None:
    """As when credentials are renewed while everything else goes on."""

    async def scenario() -> None:
        server = FakeServer()
        server.put(POD, pod("a"))
        async with Site(server) as url:
            transport = HttpTransport(url)
            client = Client(transport)

            async def first() -> str:
                async for event in client.watch(POD, send_initial_events=True):
                    return event.object["metadata"]["name"]
                return ""

            assert await first() == "a"
            await client.get(POD, "a", "default")
            closing = asyncio.create_task(transport.close())
            for _ in range(3):
                await asyncio.sleep(0)
                found = await asyncio.gather(first(), client.patch(POD, "a", "default", {"metadata": {}}))
                assert found[0] == found[1]["metadata"]["name"] == "a"
            await closing
            await client.close()

    asyncio.run(scenario())


def token(name: str, exp: int) -> str:
    """A JSON Web Token that nobody has signed."""
    claims = base64.urlsafe_b64encode(json.dumps({"sub": name, "exp": exp}).encode()).decode().rstrip("=")
    return f"e30.{claims}.x"


class Particular(FakeServer):
    """Accepts one token, or one client, which it is told of, and nobody else."""

    accepted = ""

    async def handle(self, request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {self.accepted}":
            return failure(401, "Unauthorized", "Unauthorized")
        return await super().handle(request)


def test_a_token_that_was_rotated_early_is_read_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = Particular()
        server.put(POD, pod("a"))
        old, new = token("a", 1000), token("a", 2**33)
        (tmp_path / "token").write_text(old)
        async with Site(server) as url:
            config = kubeconfig.Config(url, token=kubeconfig.TokenFile(tmp_path / "token"), identity="the account")
            client = Client(config.transport())
            server.accepted = old
            await client.get(POD, "a", "default")
            server.accepted = new
            with pytest.raises(ApiError, match="the server does not accept the token of the account, which expired at"):
                await client.get(POD, "a", "default")
            (tmp_path / "token").write_text(new)
            await client.get(POD, "a", "default")
            server.accepted = "another"
            with pytest.raises(ApiError, match="does not accept the token of the account; renew it"):
                await client.get(POD, "a", "default")
            (tmp_path / "token").unlink()
            with pytest.raises(Unreachable, match=r"no credentials for .*token cannot be read"):
                await client.delete(POD, "a", "default")
            await client.close()

    asyncio.run(scenario())


def test_a_certificate_that_has_run_out_is_named_and_its_successor_taken(tmp_path: Path) -> None:
    certificate, context = secured(tmp_path, checking=True)

    def lay(hours: float) -> None:
        for name, content in zip(("c.crt", "c.key"), certificate("client", hours=hours), strict=True):
            (tmp_path / name).write_bytes(content)

    class Strict(FakeServer):
        """As upstream's server does, which checks the dates of a certificate itself."""

        async def handle(self, request: Request) -> Response:
            return await super().handle(request) if good else failure(401, "Unauthorized", "Unauthorized")

    async def scenario() -> None:
        nonlocal good
        server = Strict()
        server.put(POD, pod("a"))
        lay(hours=-1)
        # Without a check of its own: the handshake takes what the server behind it refuses.
        async with Site(server, unchecked) as url:
            cluster = {"server": url, "certificate-authority": "ca"}
            user = {"client-certificate": "c.crt", "client-key": "c.key"}
            document = {
                "current-context": "x",
                "contexts": [{"name": "x", "context": {"cluster": "x", "user": "joe"}}],
                "clusters": [{"name": "x", "cluster": cluster}],
                "users": [{"name": "joe", "user": user}],
            }
            (tmp_path / "config").write_text(json.dumps(document))
            client = Client(kubeconfig.load(tmp_path / "config").transport())
            with pytest.raises(ApiError, match=r"client certificate of user 'joe' of kubeconfig .*, which expired at"):
                await client.get(POD, "a", "default")
            lay(hours=1)
            good = True
            # Refused with the old one, which is in use still, and asked once more with the new one.
            server.refuse = [failure(401, "Unauthorized", "Unauthorized")]
            await client.get(POD, "a", "default")
            await client.close()
        # A server that checks certificates cuts the connection; ours is known to have run out all the same.
        lay(hours=-1)
        async with Site(server, context) as url:
            document["clusters"][0]["cluster"]["server"] = url
            (tmp_path / "config").write_text(json.dumps(document))
            client = Client(kubeconfig.load(tmp_path / "config").transport())
            with pytest.raises(Unreachable, match=r"the client certificate of user 'joe'.* expired at .*; renew it"):
                await client.delete(POD, "a", "default")
            await client.close()

    good = False
    unchecked = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    unchecked.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    asyncio.run(scenario())


def test_a_server_with_a_new_authority_is_trusted_as_soon_as_the_file_says_so(tmp_path: Path) -> None:
    """And what is half-written changes nothing."""
    first, second = authority("first"), authority("second")

    def serve(certificate: Any) -> ssl.SSLContext:
        for name, content in zip(("cert", "key"), certificate("a"), strict=True):
            (tmp_path / name).write_bytes(content)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
        return context

    def trusted(certificate: Any) -> bytes:
        return certificate("first" if certificate is first else "second", ca=True)[0]

    async def scenario() -> None:
        server = FakeServer()
        server.put(POD, pod("a"))
        (tmp_path / "ca").write_bytes(trusted(first))
        config = kubeconfig.Config("", reload=lambda: ((tmp_path / "ca").read_bytes(), None, None))
        async with Site(server, serve(second)) as url:
            made = dataclasses.replace(config, server=url, ca=trusted(first))
            client = Client(made.transport())
            for half in (trusted(first), trusted(second)[:200], b""):
                (tmp_path / "ca").write_bytes(half)
                with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
                    await client.patch(POD, "a", "default", {"metadata": {"labels": {"a": "b"}}})
            (tmp_path / "ca").write_bytes(trusted(first) + trusted(second))
            await client.patch(POD, "a", "default", {"metadata": {"labels": {"a": "b"}}})
            await client.close()
            # A stream as the first thing that is asked.
            client = Client(made.transport())
            async for event in client.watch(POD, send_initial_events=True):
                assert event.object["metadata"]["labels"] == {"a": "b"}
                break
            await client.close()

    asyncio.run(scenario())


def test_a_plugin_gives_new_certificates_and_is_run_once_for_all_that_are_refused(tmp_path: Path) -> None:
    certificate, context = secured(tmp_path, checking=True)
    plugin = tmp_path / "plugin"
    plugin.write_text("#!/bin/sh\ncd $(dirname $0); echo x >> runs; cat answer\n")
    plugin.chmod(0o700)

    def issue(name: str) -> None:
        made, private = certificate(name)
        status = {"clientCertificateData": made.decode(), "clientKeyData": private.decode()}
        (tmp_path / "answer").write_text(json.dumps({"status": status}))

    class Known(FakeServer):
        async def handle(self, request: Request) -> Response:
            # The handshake of the connection that asks was the last one.
            if site.peers[-1]["subject"] != ((("commonName", accepted),),):
                return failure(401, "Unauthorized", "Unauthorized")
            return await super().handle(request)

    async def scenario() -> None:
        nonlocal accepted, site
        server = Known()
        server.put(POD, pod("a"))
        site = Site(server, context)
        async with site as url:
            issue("one")
            document = {
                "current-context": "x",
                "contexts": [{"name": "x", "context": {"cluster": "x", "user": "joe"}}],
                "clusters": [{"name": "x", "cluster": {"server": url, "certificate-authority": "ca"}}],
                "users": [{"name": "joe", "user": {"exec": {"command": "./plugin"}}}],
            }
            (tmp_path / "config").write_text(json.dumps(document))
            client = Client(kubeconfig.load(tmp_path / "config").transport())
            await client.get(POD, "a", "default")
            accepted = "two"
            issue("two")
            with pytest.raises(ApiError, match="does not accept the client certificate"):
                # It has just been run: what it says then is not asked again at once.
                await client.get(POD, "a", "default")
            assert (tmp_path / "runs").read_text() == "x\n"
            monkeypatch.setattr(kubeconfig, "PLUGIN_PAUSE", 0.0)
            await asyncio.gather(*(client.get(POD, "a", "default") for _ in range(5)))
            assert (tmp_path / "runs").read_text() == "x\nx\n"
            await client.close()

    accepted = "one"
    site: Site
    monkeypatch = pytest.MonkeyPatch()
    try:
        asyncio.run(scenario())
    finally:
        monkeypatch.undo()
