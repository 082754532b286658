"""A plane whose disk has no room: writes are refused, reads and watches go on, and nothing acknowledged is lost.

The limit of the kernel on the size of files stands for a full disk: write(2) fails just the same, in the
middle of SQLite's log, and it can be set and lifted for a running process.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

import pytest

from drakkar.api import kinds
from drakkar.api.errors import ApiError
from drakkar.cli.target import connect
from drakkar.client import Client
from tests.support.plane import Up

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="prlimit(2) is Linux's"),
]
FREE = resource.RLIM_INFINITY


def _limit(up: Up, size: int) -> None:
    assert up.process is not None
    resource.prlimit(up.process.pid, resource.RLIMIT_FSIZE, (size, FREE))


async def _create(client: Client, name: str) -> None:
    obj = {"metadata": {"name": name, "namespace": "default"}, "data": {"k": name * 2000}}
    await client.create(kinds.CONFIGMAP, obj, "default")


async def _fill(client: Client, acknowledged: set[str], lane: int) -> ApiError:
    number = 0
    while True:
        try:
            await _create(client, f"c-{lane}-{number}")
        except ApiError as error:
            return error
        acknowledged.add(f"c-{lane}-{number}")
        number += 1


async def _names(client: Client) -> set[str]:
    found = (await client.list(kinds.CONFIGMAP, "default")).items
    return {obj["metadata"]["name"] for obj in found} - {"kube-root-ca.crt"}


async def _story(up: Up, acknowledged: set[str]) -> None:
    async with connect(up.kubeconfig) as client:
        await _create(client, "before")
        acknowledged.add("before")
        _limit(up, 1_500_000)
        for error in await asyncio.gather(*(_fill(client, acknowledged, lane) for lane in range(4))):
            assert (error.code, error.reason) == (507, "InsufficientStorage")
            assert "free space" in str(error)
            assert str(up.data) in str(error)
        assert len(acknowledged) > 20
        assert up.wait_dead(0) is None, up.output
        # Reads and watches go on, with what is durable and nothing else.
        assert await _names(client) == acknowledged
        watch = client.watch(kinds.CONFIGMAP, "default", resource_version="0")
        told = {(await anext(watch)).object["metadata"]["name"] for _ in range(len(acknowledged))}
        assert told - {"kube-root-ca.crt"} <= acknowledged
        with pytest.raises(ApiError, match="free space"):
            await client.patch(kinds.CONFIGMAP, "before", "default", {"data": {"more": "x" * 50_000}})
        _limit(up, FREE)
        for number in range(5):
            await _create(client, f"after-{number}")
            acknowledged.add(f"after-{number}")
        assert await _names(client) == acknowledged
        await watch.aclose()


async def _check(up: Up, acknowledged: set[str]) -> None:
    async with connect(up.kubeconfig) as client:
        assert await _names(client) == acknowledged


def test_a_full_disk(tmp_path: Path) -> None:
    acknowledged: set[str] = set()
    up = Up(tmp_path / "data", "--no-scheduler", "--no-controllers")
    up.start()
    asyncio.run(_story(up, acknowledged))
    up.kill()
    with up:
        asyncio.run(_check(up, acknowledged))
