from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from drakkar.api.kinds import POD
from drakkar.client import Cache, Caches, Client, MemoryTransport, Unreachable
from drakkar.client import cache as cache_module
from tests.unit.client.fakeserver import FakeServer, failure


def pod(name: str, node: str = "", **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default", **meta}, "spec": {"nodeName": node}}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "FIRST_PAUSE", 0.005)
    monkeypatch.setattr(cache_module, "LONGEST_PAUSE", 0.02)


async def until(condition: Any, seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("streaming", [True, False, None])
def test_follows_and_heals(streaming: bool | None) -> None:
    async def scenario() -> None:
        server = FakeServer()
        server.streaming_lists = streaming
        server.put(POD, pod("a", "n1"))
        caches = Caches(Client(MemoryTransport(server.handle)))
        pods = caches.of(POD, indexes={"node": lambda p: [p["spec"].get("nodeName") or ""]})
        assert caches.of(POD) is pods
        seen: list[tuple[str, str]] = []
        pods.subscribe(lambda event, old, new: seen.append((event, new["metadata"]["name"])))
        await caches.start()
        await caches.synced()
        assert [p["metadata"]["name"] for p in pods.list()] == ["a"]
        server.put(POD, pod("b", "n1"))
        await until(lambda: pods.get("default", "b"))
        assert len(pods.by("node", "n1")) == 2
        server.put(POD, pod("a", "n2", uid=server.get(POD, "a")["metadata"]["uid"]))
        await until(lambda: pods.by("node", "n2"))
        assert [p["metadata"]["name"] for p in pods.by("node", "n1")] == ["b"]
        # A broken stream is resumed, an expired revision leads to a new list; both tell only the difference.
        server.disconnect()
        server.remove(POD, "b")
        await until(lambda: pods.get("default", "b") is None)
        server.put(POD, pod("c"))
        server.expire()
        server.disconnect()
        await until(lambda: pods.get("default", "c"))
        assert seen == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b"), ("ADDED", "c")]
        assert pods.uid(server.get(POD, "c")["metadata"]["uid"]) is pods.get("default", "c")
        await caches.stop()

    asyncio.run(scenario())


def test_a_recreated_object_is_told_as_two() -> None:
    async def scenario() -> None:
        server = FakeServer()
        server.put(POD, pod("a", uid="1"))
        caches = Caches(Client(MemoryTransport(server.handle)))
        pods = caches.of(POD)
        await caches.start()
        await caches.synced()
        seen: list[tuple[str, str]] = []
        pods.subscribe(lambda event, old, new: seen.append((event, new["metadata"]["uid"])))
        server.deliver.clear()
        server.remove(POD, "a")
        server.put(POD, pod("a", uid="2"))
        server.expire()
        server.disconnect()
        server.deliver.set()
        await until(lambda: pods.uid("2"))
        assert seen == [("ADDED", "1"), ("DELETED", "1"), ("ADDED", "2")]
        assert pods.uid("1") is None
        await caches.stop()

    asyncio.run(scenario())


def test_waits_for_own_writes() -> None:
    async def scenario() -> None:
        server = FakeServer()
        client = Client(MemoryTransport(server.handle))
        caches = Caches(client)
        pods = caches.of(POD)
        await caches.start()
        await caches.synced()
        server.deliver.clear()
        made = await client.create(POD, pod("a"))
        assert not await pods.reached(made, timeout=0.02)
        server.deliver.set()
        assert await pods.reached(made, timeout=60)
        assert pods.get("default", "a") is not None
        await caches.stop()

    asyncio.run(scenario())


def test_survives_a_server_that_is_away() -> None:
    async def scenario() -> None:
        server = FakeServer()
        away = True

        class Sometimes(MemoryTransport):
            async def request(self, request: Any) -> Any:
                if away:
                    raise Unreachable("connection refused")
                return await super().request(request)

        caches = Caches(Client(Sometimes(server.handle)))
        pods = caches.of(POD)
        await caches.start()
        await asyncio.sleep(0.05)
        assert not pods.synced.is_set()
        away = False
        server.put(POD, pod("a"))
        await until(lambda: pods.get("default", "a"))
        await caches.stop()

    asyncio.run(scenario())


def test_a_silent_watch_is_replaced() -> None:
    async def scenario() -> None:
        server = FakeServer()
        caches = Caches(Client(MemoryTransport(server.handle)))
        pods = caches.of(POD)
        await caches.start()
        await caches.synced()
        watches = len(server.requests)
        pods.check(pods.last_heard + cache_module.SILENCE + 1)
        await until(lambda: len(server.requests) > watches)
        server.put(POD, pod("a"))
        await until(lambda: pods.get("default", "a"))
        await caches.stop()

    asyncio.run(scenario())


def test_late_subscribers_and_indexes_see_what_is_there() -> None:
    async def scenario() -> None:
        server = FakeServer()
        server.put(POD, pod("a", "n1"))
        caches = Caches(Client(MemoryTransport(server.handle)))
        await caches.start()
        pods = caches.of(POD)
        await caches.synced()
        seen: list[str] = []
        pods.subscribe(lambda event, old, new: seen.append(event))
        pods.index("node", lambda p: [p["spec"]["nodeName"]])
        assert seen == ["ADDED"]
        assert len(pods.by("node", "n1")) == 1
        await caches.stop()

    asyncio.run(scenario())


def test_a_frame_that_is_no_json_does_not_end_the_cache() -> None:
    async def scenario() -> None:
        server = FakeServer()
        garbled = False

        class Garbling(MemoryTransport):
            async def request(self, request: Any) -> Any:
                nonlocal garbled
                response = await super().request(request)
                if response.stream is not None and not garbled:
                    garbled = True
                    response.stream = self.garbage()
                return response

            async def garbage(self) -> Any:
                yield b"<html>\n"

        caches = Caches(Client(Garbling(server.handle)))
        pods = caches.of(POD)
        await caches.start()
        await asyncio.wait_for(caches.synced(), 60)
        server.put(POD, pod("a"))
        await until(lambda: pods.get("default", "a"))
        await caches.stop()

    asyncio.run(scenario())


def test_a_kind_that_is_not_served_yet_counts_as_empty_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        server = FakeServer()
        server.refuse = [failure(404, "NotFound", "the server could not find the requested resource")] * 4
        caches = Caches(Client(MemoryTransport(server.handle)))
        pods = caches.of(POD)
        await caches.start()
        await asyncio.wait_for(caches.synced(), 60)
        assert pods.list() == []
        server.put(POD, pod("a"))
        await until(lambda: pods.get("default", "a"))
        assert not server.refuse
        await caches.stop()

    caplog.set_level(logging.INFO, "drakkar.client.cache")
    asyncio.run(scenario())
    assert len([record for record in caplog.records if "could not find" in record.getMessage()]) == 1


def test_a_written_object_counts_as_seen_only_if_the_selector_leaves_it_out() -> None:
    cache = Cache(Client(None), POD, "", "app=x", "spec.nodeName=a")  # type: ignore[arg-type]

    def pod(node: str, app: str) -> Any:
        meta = {"name": "p", "namespace": "default", "resourceVersion": "7", "labels": {"app": app}}
        return {"metadata": meta, "spec": {"nodeName": node}}

    assert not cache.has_reached(pod("a", "x"))
    assert cache.has_reached(pod("b", "x"))
    assert cache.has_reached(pod("a", "y"))
