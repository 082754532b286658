"""Random writes by many at once: lists, watches, past revisions and a restart tell the same story."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from drakkar.api.wire import Request
from drakkar.store import MemoryBackend
from drakkar.store.base import Backend
from drakkar.store.sqlite import SqliteBackend
from tests.unit.apiserver.core.serving import Api, Object, Refused
from tests.unit.apiserver.core.test_writes import CONFIGMAPS


class Reader:
    """Follows a watch and rebuilds the state from it."""

    def __init__(self) -> None:
        self.state: dict[str, Object] = {}
        self.revision = 0

    async def follow(self, api: Api, query: tuple[tuple[str, str], ...]) -> None:
        response = await api.ask(Request("GET", CONFIGMAPS, (("watch", "1"), *query)))
        assert response.stream is not None
        async for chunk in response.stream:
            for line in chunk.splitlines():
                frame = json.loads(line)
                obj = frame["object"]
                revision = int(obj["metadata"]["resourceVersion"])
                if frame["type"] == "BOOKMARK":
                    continue
                name = obj["metadata"]["name"]
                known = self.state.get(name)
                assert known is None or int(known["metadata"]["resourceVersion"]) < revision
                self.revision = max(self.revision, revision)
                if frame["type"] == "DELETED":
                    del self.state[name]
                else:
                    assert (frame["type"] == "ADDED") == (known is None)
                    self.state[name] = obj


async def write(api: Api, rng: random.Random) -> None:
    """One random write; refusals are part of the game."""
    name = f"c{rng.randrange(12)}"
    try:
        match rng.randrange(4):
            case 0:
                labels = {"odd": str(rng.randrange(2))}
                await api.post(CONFIGMAPS, {"metadata": {"name": name, "labels": labels}, "data": {"n": "0"}})
            case 1:
                body = {"metadata": {"labels": {"odd": str(rng.randrange(2))}}, "data": {"n": str(rng.random())}}
                await api.patch(f"{CONFIGMAPS}/{name}", body)
            case 2:
                obj = await api.get(f"{CONFIGMAPS}/{name}")
                await asyncio.sleep(0)
                await api.put(f"{CONFIGMAPS}/{name}", {**obj, "data": {"n": str(rng.random())}})
            case _:
                await api.delete(f"{CONFIGMAPS}/{name}")
    except Refused as error:
        if error.code not in (404, 409):
            raise


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("seed", [1, 2])
def test_everybody_tells_the_same_story(store: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    memory = MemoryBackend()

    def open_backend() -> Backend:
        return memory if store == "memory" else SqliteBackend(tmp_path / "store.db", synchronous="NORMAL")

    async def run() -> None:
        api = await Api.start(open_backend())
        everything, odd = Reader(), Reader()
        snapshots: dict[str, Object] = {}
        readers = [
            asyncio.create_task(everything.follow(api, ())),
            asyncio.create_task(odd.follow(api, (("labelSelector", "odd=1"),))),
        ]
        for _ in range(25):
            await asyncio.gather(*(write(api, rng) for _ in range(12)))
            listed = await api.get(CONFIGMAPS)
            snapshots[listed["metadata"]["resourceVersion"]] = listed
        for revision, listed in snapshots.items():
            past = await api.get(f"{CONFIGMAPS}?resourceVersionMatch=Exact&resourceVersion={revision}")
            assert past == listed
        for _ in range(5):
            await asyncio.sleep(0)
        final = await api.get(CONFIGMAPS)

        def bare(items: list[Object]) -> dict[str, Object]:
            kept = ("metadata", "data")
            return {item["metadata"]["name"]: {key: item[key] for key in kept if key in item} for item in items}

        assert bare(list(everything.state.values())) == bare(final["items"])
        selected = await api.get(f"{CONFIGMAPS}?labelSelector=odd=1")
        assert bare(list(odd.state.values())) == bare(selected["items"])
        await api.close()
        await asyncio.gather(*readers)
        again = await Api.start(open_backend())
        assert (await again.get(CONFIGMAPS))["items"] == final["items"]
        await again.close()

    asyncio.run(run())
