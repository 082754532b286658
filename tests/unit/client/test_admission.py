"""A webhook's port is open to everybody who reaches it: requests that are broken, deep, slow or packed wrongly."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from drakkar.api.meta import Object
from drakkar.apiserver.tls import open_pki
from drakkar.client import admission
from tests.support.eventually import eventually


def _allow(asked: Object) -> Object:
    return {"response": {"uid": asked["request"]["uid"], "allowed": True}}


async def _sent(port: int, body: bytes, headers: Mapping[str, str] | None = None, length: int | None = None) -> bytes:
    """The first line of the answer and what follows."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=ssl._create_unverified_context())
    try:
        head = {"Host": "w", "Content-Length": str(len(body) if length is None else length), **(headers or {})}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        writer.write(f"POST / HTTP/1.1\r\n{lines}\r\n".encode() + body)
        return await reader.read(4096)
    finally:
        writer.close()


def test_hostile_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    pki = open_pki(tmp_path / "pki")
    certificate, key = pki.folder / "server.crt", pki.folder / "server.key"
    monkeypatch.setattr(admission, "_PATIENCE", 0.2)
    deep = b'{"request": {"uid": "7", "object": ' + b"[" * 5000 + b"]" * 5000 + b"}}"

    async def story() -> None:
        async with admission.serving(_allow, "127.0.0.1", 0, certificate, key) as port:
            assert b'"allowed":true' in await _sent(port, deep)
            for body in (b"", b"{", b"[]", b"{}", b'{"request": []}', b"[" * 5000):
                assert (await _sent(port, body)).startswith(b"HTTP/1.1 400")
            slow = await _sent(port, b"{", length=100)
            assert slow.startswith(b"HTTP/1.1 408")
            assert b"Connection: close" in slow
            assert b'"allowed":true' in await _sent(port, b'{"request": {"uid": "8"}}')
            assert not caplog.records
            # This one the library tells the log as well.
            assert (await _sent(port, b"no gzip", {"Content-Encoding": "gzip"})).startswith(b"HTTP/1.1 400")

    with caplog.at_level(logging.ERROR):
        asyncio.run(story())


def _shown(port: int) -> bytes:
    """The certificate that is shown to who connects now."""
    return ssl.get_server_certificate(("127.0.0.1", port)).encode()


def test_a_renewed_certificate_is_shown_to_who_connects_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admission, "LOOK", 0.01)
    old, new = (open_pki(tmp_path / name).folder for name in ("old", "new"))
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def lay(crt: Path, private: Path) -> None:
        certificate.write_bytes((crt / "server.crt").read_bytes())
        key.write_bytes((private / "server.key").read_bytes())

    async def story() -> None:
        lay(old, old)
        async with admission.serving(_allow, "127.0.0.1", 0, certificate, key) as port:

            async def shown() -> bytes:
                return await asyncio.to_thread(_shown, port)

            first = await shown()
            # Not both at once, and not at all: what is in use stays.
            lay(new, old)
            await eventually(_said(caplog), lambda said: "the old one stays in use" in said)
            certificate.unlink()
            await eventually(_said(caplog), lambda said: "No such file" in said)
            assert await shown() == first
            assert b'"allowed":true' in await _sent(port, b'{"request": {"uid": "8"}}')
            lay(new, new)
            await eventually(shown, lambda now: now in (new / "server.crt").read_bytes())
            # Said when it is in use already.
            await eventually(_said(caplog), lambda said: f"the webhook's certificate {certificate} was renewed" in said)

    with caplog.at_level(logging.INFO):
        asyncio.run(story())


def _said(caplog: pytest.LogCaptureFixture) -> Callable[[], Awaitable[str]]:
    async def text() -> str:
        return caplog.text

    return text
