"""The server's end of admission webhooks: AdmissionReview over HTTPS, the rules functions without I/O."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from drakkar.api.errors import DrakkarError, EnvironmentProblem
from drakkar.api.meta import Object
from drakkar.client import codec

#: Largest AdmissionReview in bytes: an object of the API server's limit, old and new.
_LONGEST = 8 << 20
#: Seconds in which a request must have come whole; API servers wait for answers no longer (``timeoutSeconds``).
_PATIENCE = 30.0


#: Makes of an AdmissionReview with a request the one with its response; may raise :class:`NotHere`.
Review = Callable[[Object], Object | Awaitable[Object]]


class NotHere(DrakkarError):
    """This process cannot judge now: the API server is told so (503), and does as the ``failurePolicy`` says."""


@asynccontextmanager
async def serving(
    reviews: Review | Mapping[str, Review], host: str, port: int, certificate: Path, key: Path
) -> AsyncIterator[int]:
    """Answer at `https://host:port` as long as the block lasts; gives the port. Raises EnvironmentProblem.

    ``reviews`` says who answers at which path; what has none of its own goes to ``/`` where there is one. A single
    one answers at every path.
    """
    from aiohttp import web

    table = {"/": reviews} if callable(reviews) else reviews

    async def answer(asked: web.Request) -> web.Response:
        review = table.get(asked.path) or table.get("/")
        if review is None:
            return web.Response(status=404, text=f"no webhook at {asked.path}; there are {', '.join(table)}")
        try:
            async with asyncio.timeout(_PATIENCE):
                content = await asked.read()
            body: Any = codec.decode_json(content)
        except TimeoutError:
            words = f"the body did not come within {_PATIENCE:g} s"
            return web.Response(status=408, text=words, headers={"Connection": "close"})
        except (msgspec.DecodeError, web.RequestPayloadError, ConnectionError):
            return web.Response(status=400, text="the body is no JSON")
        if not isinstance(body, dict) or not isinstance(body.get("request"), dict):
            return web.Response(status=400, text="the body is no AdmissionReview")
        try:
            reviewed = review(body)
            if not isinstance(reviewed, dict):
                reviewed = await reviewed
        except NotHere as problem:
            # Closed, so that the next attempt may find somebody else.
            return web.Response(status=503, text=str(problem), headers={"Connection": "close"})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # An API server sends objects of their schema; who else may send what is not known.
            return web.Response(status=400, text=f"the review has not the form of one: {type(error).__name__}: {error}")
        return web.Response(body=msgspec.json.encode(reviewed), content_type="application/json")

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
