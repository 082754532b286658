"""Caches at servers that tell changes twice, late or never, and that answer with old states."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from drakkar.api.kinds import POD
from drakkar.api.wire import Request, Response
from drakkar.client import Cache, Caches, Client
from drakkar.client import cache as cache_module
from tests.unit.client.fakeserver import answer, failure
from tests.unit.client.test_cache import until


def pod(name: str, uid: str, revision: int) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "uid": uid, "resourceVersion": str(revision)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


class Script:
    """A transport that lists what it is told to, and tells what is put into ``events``."""

    def __init__(self, revision: int, *items: dict[str, Any]):
        self.state = revision, items
        self.lists = 0
        self.watches: list[str] = []
        self.expired = False
        self.events: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()

    async def request(self, request: Request) -> Response:
        query = dict(request.query)
        if "watch" not in query:
            self.lists += 1
            revision, items = self.state
            return answer({"metadata": {"resourceVersion": str(revision)}, "items": items})
        if query.get("sendInitialEvents"):
            return failure(422, "Invalid")
        self.watches.append(query["resourceVersion"])
        if self.expired:
            return failure(410, "Expired")
        return Response(200, stream=self._tell())

    async def _tell(self) -> AsyncIterator[bytes]:
        while True:
            event, obj = await self.events.get()
            yield json.dumps({"type": event, "object": obj}).encode() + b"\n"

    def tell(self, event: str, obj: dict[str, Any]) -> None:
        self.events.put_nowait((event, obj))

    async def close(self) -> None:
        """Nothing to close."""


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "FIRST_PAUSE", 0.005)
    monkeypatch.setattr(cache_module, "LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(cache_module, "SET_BACK", 0.1)
    monkeypatch.setattr(cache_module, "SUSPICION", 0.0)


def play(script: Script, body: Callable[[Cache, list[str]], Awaitable[None]]) -> None:
    async def run() -> None:
        caches = Caches(Client(script))
        pods = caches.of(POD)
        seen: list[str] = []
        pods.subscribe(lambda event, old, new: seen.append(f"{event} {new['metadata']['uid']}"))
        async with asyncio.timeout(60):
            await caches.start()
            await caches.synced()
            await body(pods, seen)
        await caches.stop()

    asyncio.run(run())


def test_what_is_told_twice_or_late_does_nothing() -> None:
    script = Script(5, pod("a", "a1", 5))

    async def body(pods: Cache, seen: list[str]) -> None:
        script.tell("MODIFIED", pod("a", "a1", 7))
        script.tell("MODIFIED", pod("a", "a1", 6))
        script.tell("MODIFIED", pod("a", "a1", 7))
        # Its name is given again; the end of the first comes last, and twice.
        script.tell("ADDED", pod("a", "a2", 9))
        script.tell("DELETED", pod("a", "a1", 8))
        script.tell("ADDED", pod("b", "b1", 10))
        script.tell("DELETED", pod("b", "b1", 12))
        script.tell("DELETED", pod("b", "b1", 11))
        script.tell("ADDED", pod("c", "c1", 13))
        await until(lambda: pods.get("default", "c"))
        assert seen == ["ADDED a1", "MODIFIED a1", "DELETED a1", "ADDED a2", "ADDED b1", "DELETED b1", "ADDED c1"]
        assert pods.uid("a2") is not None
        assert script.lists == 1

    play(script, body)


def test_a_late_change_of_something_unknown_is_looked_up() -> None:
    script = Script(5)

    async def body(pods: Cache, seen: list[str]) -> None:
        script.tell("ADDED", pod("b", "b1", 7))
        await until(lambda: pods.get("default", "b"))
        # A has come late and is there; c has come twice and is gone.
        script.state = 8, (pod("a", "a1", 6), pod("b", "b1", 7))
        script.tell("ADDED", pod("a", "a1", 6))
        await until(lambda: pods.get("default", "a"))
        script.state = 10, (pod("a", "a1", 6), pod("b", "b1", 7))
        await until(lambda: len(script.watches) == 2)
        script.tell("ADDED", pod("d", "d1", 11))
        await until(lambda: pods.get("default", "d"))
        assert seen == ["ADDED b1", "ADDED a1", "ADDED d1"]
        assert script.lists == 2

    play(script, body)


def test_a_list_that_is_older_than_what_was_seen_is_not_believed_at_once() -> None:
    script = Script(5, pod("a", "a1", 5))

    async def body(pods: Cache, seen: list[str]) -> None:
        script.tell("ADDED", pod("b", "b1", 9))
        await until(lambda: pods.get("default", "b"))
        script.expired = True
        script.tell("ERROR", {"code": 410, "reason": "Expired", "message": "too old"})
        await until(lambda: script.lists > 2)
        # The old state, from before b came, is still what is listed.
        assert pods.get("default", "b") is not None
        script.expired = False
        # A server that was set back to a backup stays with it.
        await until(lambda: pods.get("default", "b") is None)
        assert seen == ["ADDED a1", "ADDED b1", "DELETED b1"]

    play(script, body)


def test_a_change_that_was_never_told_comes_to_light_by_a_write_of_ours() -> None:
    script = Script(5, pod("a", "a1", 5))

    async def body(pods: Cache, seen: list[str]) -> None:
        written = pod("a", "a1", 6)
        script.state = 7, (written, pod("b", "b1", 7))
        script.tell("ADDED", pod("b", "b1", 7))
        await until(lambda: pods.get("default", "b"))
        await asyncio.sleep(0.15)
        assert not await pods.reached(written, timeout=1)
        await until(lambda: pods.get("default", "a")["metadata"]["resourceVersion"] == "6")
        assert await pods.reached(written, timeout=60)
        assert seen == ["ADDED a1", "ADDED b1", "MODIFIED a1"]

    play(script, body)


def test_the_state_is_read_anew_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "RELIST", 0.01)
    script = Script(5, pod("a", "a1", 5))

    async def body(pods: Cache, seen: list[str]) -> None:
        # Never told; the watch ends, as watches do.
        script.state = 6, ()
        await asyncio.sleep(0.05)
        script.tell("ERROR", {"code": 500, "reason": "InternalError", "message": "goes down"})
        await until(lambda: pods.get("default", "a") is None)

    play(script, body)


def test_revisions_that_expire_all_the_time_make_no_hot_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(cache_module, "LONGEST_PAUSE", 10.0)
    script = Script(5, pod("a", "a1", 5))
    script.expired = True

    async def body(pods: Cache, seen: list[str]) -> None:
        await until(lambda: script.lists == 4)
        started = asyncio.get_running_loop().time()
        await until(lambda: script.lists == 5)
        # The fourth pause: 0.02 s, doubled three times, halved at most by chance.
        assert asyncio.get_running_loop().time() - started > 0.02 * 8 / 2 * 0.9

    play(script, body)
