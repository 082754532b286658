"""Health and metrics of one running part over HTTP, for probes and Prometheus.

    /healthz   200 while the process serves
    /readyz    200 once the part has the server's state, leading or standing by; 503 before. Its text says, too,
               which rights the API server says are missing, and in which role
    /metrics   text form of Prometheus

Plain HTTP and without authentication: bind it to loopback, or to the pod's own address.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from drakkar.api.errors import EnvironmentProblem, UsageError
from drakkar.api.exposition import family

if TYPE_CHECKING:
    from aiohttp import web

logger = logging.getLogger(__name__)


def address_of(text: str) -> tuple[str, int] | None:
    """Host and port of ``HOST:PORT``, ``[IPv6]:PORT`` or ``:PORT``; None for ``0`` or nothing: no endpoint."""
    if text in ("", "0"):
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"address {text!r}: use HOST:PORT, for example 127.0.0.1:10259, or 0 for none")
    return host.strip("[]") or "0.0.0.0", int(port)


def leading(leads: bool) -> list[str]:
    """The metric by which replicas tell which of them works."""
    return [
        *family("drakkar_leading", "gauge", "Whether this replica is the one that works."),
        f"drakkar_leading {int(leads)}",
    ]


@asynccontextmanager
async def serving(
    address: tuple[str, int] | None,
    ready: Callable[[], str],
    metrics: Callable[[], str],
    refused: Callable[[], str] = lambda: "",
) -> AsyncIterator[str]:
    """Answers as long as the block lasts; gives its URL, empty for no address.

    ``ready`` says what is still missing, empty when nothing is; ``refused`` what the API server does not allow.
    """
    if address is None:
        yield ""
        return
    from aiohttp import web

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readyz(_: web.Request) -> web.Response:
        missing = ready()
        text = "\n".join(filter(None, (missing or "ok", refused())))
        return web.Response(text=text, status=503 if missing else 200)

    async def metrics_text(_: web.Request) -> web.Response:
        return web.Response(text=metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    application = web.Application()
    application.router.add_get("/healthz", healthz)
    application.router.add_get("/livez", healthz)
    application.router.add_get("/readyz", readyz)
    application.router.add_get("/metrics", metrics_text)
    runner = web.AppRunner(application, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        site = web.TCPSite(runner, *address)
        try:
            await site.start()
        except OSError as error:
            raise EnvironmentProblem(f"{address[0]}:{address[1]}: cannot be bound: {error.strerror}") from error
        host, port = runner.addresses[0][:2]
        yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
    finally:
        await runner.cleanup()
