"""Probes by HTTP: what counts as well, and where redirects lead."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from aiohttp import web

from drakkar.client.clock import SystemClock
from drakkar.node.agent.probes import Probes
from drakkar.node.agent.streams import Session, Wanted


async def _answer(request: web.Request) -> web.Response:
    where = {
        "/well": (200, None),
        "/ill": (500, None),
        "/to-well": (302, "/well"),
        "/to-ill": (307, "ill"),
        "/to-others": (302, "http://other.invalid/ill"),
        "/round": (301, "/round"),
        "/unchanged": (304, None),
    }
    status, location = where.get(request.path, (404, None))
    return web.Response(status=status, headers={"Location": location} if location else None)


async def _no_command(command: Sequence[str], wanted: Wanted) -> Session:
    raise AssertionError(f"{command}, {wanted}: no command is asked for")


async def _probed(path: str) -> str:
    app = web.Application()
    app.router.add_get("/{path:.*}", _answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        probes = Probes({}, "127.0.0.1", _no_command, SystemClock(), lambda name, well, problem: None)
        return await probes.once({"httpGet": {"port": port, "path": path}, "timeoutSeconds": 60})
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/well", ""),
        ("/unchanged", ""),
        ("/ill", "HTTP probe failed with statuscode: 500"),
        ("/to-well", ""),
        ("/to-ill", "HTTP probe failed with statuscode: 500"),
        ("/round", "HTTP probe failed: stopped after 10 redirects"),
    ],
)
def test_answers_and_redirects(path: str, problem: str) -> None:
    assert asyncio.run(_probed(path)) == problem


def test_a_container_does_not_choose_whom_the_node_talks_to() -> None:
    """The other host is not asked: its name could not be resolved, which would be a problem."""
    assert asyncio.run(_probed("/to-others")) == ""
