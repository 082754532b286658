"""The server's end of an admission webhook: AdmissionReview over HTTPS, the rule a function without I/O."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from drakkar.api.errors import EnvironmentProblem
from drakkar.api.meta import Object

#: Largest AdmissionReview in bytes: an object of the API server's limit, old and new.
_LONGEST = 8 << 20


@asynccontextmanager
async def serving(
    review: Callable[[Object], Object], host: str, port: int, certificate: Path, key: Path
) -> AsyncIterator[int]:
    """Answer at `https://host:port/` as long as the block lasts; gives the port. Raises EnvironmentProblem.

    ``review`` makes of an AdmissionReview with a request the one with its response.
    """
    from aiohttp import web

    async def answer(asked: web.Request) -> web.Response:
        try:
            body: Any = msgspec.json.decode(await asked.read())
        except msgspec.DecodeError:
            return web.Response(status=400, text="the body is no JSON")
        if not isinstance(body, dict) or not isinstance(body.get("request"), dict):
            return web.Response(status=400, text="the body is no AdmissionReview")
        return web.Response(body=msgspec.json.encode(review(body)), content_type="application/json")

    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise EnvironmentProblem(f"certificate {certificate} with key {key} cannot be used: {error}") from error
    application = web.Application(client_max_size=_LONGEST)
    application.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port, ssl_context=context).start()
        except OSError as error:
            raise EnvironmentProblem(f"webhook at {host}:{port}: cannot be bound: {error.strerror}") from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
