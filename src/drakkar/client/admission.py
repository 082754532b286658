"""The server's end of admission webhooks: AdmissionReview over HTTPS, the rules functions without I/O.

The certificate may be renewed in its files while the webhook is served.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from drakkar.api.errors import DrakkarError, EnvironmentProblem
from drakkar.api.meta import Object
from drakkar.client import codec

logger = logging.getLogger(__name__)

#: Seconds between two looks whether the certificate has been renewed; whoever renews does so days before it ends.
LOOK = 10.0
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
    one answers at every path. A certificate that is renewed in its files is used for connections from then on.
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

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    pair = _Pair(certificate, key)
    try:
        pair.load(context)
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
        keeping = asyncio.create_task(_keep(pair, context), name="webhook-certificate")
        try:
            yield runner.addresses[0][1]
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
    finally:
        await runner.cleanup()


class _Pair:
    """A certificate and its key in files that may be written anew."""

    def __init__(self, certificate: Path, key: Path):
        self.certificate = certificate
        self._key = key
        #: What was read last, good or not.
        self._read: tuple[bytes, bytes] | None = None

    def load(self, context: ssl.SSLContext) -> bool:
        """Has ``context`` use what the files hold, if that is something new; whether it was.

        Raises OSError or SSLError, and changes nothing, where they cannot be read or do not belong together.
        """
        found = self.certificate.read_bytes(), self._key.read_bytes()
        if found == self._read:
            return False
        self._read = found
        # The ssl module reads files only, and these may be replaced between two looks; the folder is private (0700).
        with tempfile.TemporaryDirectory(prefix="drakkar-tls-") as folder:
            copies = Path(folder, "tls.crt"), Path(folder, "tls.key")
            for path, content in zip(copies, found, strict=True):
                path.write_bytes(content)
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*copies)
            context.load_cert_chain(*copies)
        return True


async def _keep(pair: _Pair, context: ssl.SSLContext) -> None:
    """Looks after the certificate until cancelled."""
    while True:
        await asyncio.sleep(LOOK)
        try:
            # Not in a thread: a handshake between the new certificate and its key would break.
            if pair.load(context):
                logger.info("the webhook's certificate %s was renewed", pair.certificate)
        except (OSError, ssl.SSLError) as error:
            logger.warning("certificate %s was changed, but the old one stays in use: %s", pair.certificate, error)
