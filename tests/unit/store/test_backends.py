"""One suite for all stores: what `drakkar.store.base` promises."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drakkar.store import Compacted, Conflict, MemoryBackend, StoreFailed, Write
from drakkar.store.base import Backend
from drakkar.store.sqlite import SqliteBackend
from tests.support.etcd import Etcd, running_etcd

Reopen = Callable[[], Backend]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as member:
        yield member


@pytest.fixture(params=["memory", "sqlite", pytest.param("etcd", marks=pytest.mark.slow)])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Reopen:
    """Opens the same data again and again."""
    if request.param == "etcd":
        from drakkar.store.etcd import EtcdBackend

        # A prefix per test: the member is shared.
        url = f"{request.getfixturevalue('etcd').url}/{uuid.uuid4().hex}"
        return lambda: EtcdBackend(url)
    if request.param == "memory":
        memory = MemoryBackend()
        return lambda: memory
    return lambda: SqliteBackend(tmp_path / "data" / "store.db", synchronous="NORMAL")


def test_writes_get_growing_revisions_and_survive(reopen: Reopen) -> None:
    async def first() -> int:
        store = reopen()
        list(store.load())
        answers = await store.commit([Write("/a", 0, b"1"), Write("/b", None, b"2"), Write("/a", None, b"3")])
        assert all(isinstance(answer, int) for answer in answers)
        # Different keys of one batch may get their revisions in any order.
        assert len(set(answers)) == 3
        assert answers[0] < answers[2]  # type: ignore[operator]
        (gone,) = await store.commit([Write("/b", None, None)])
        assert isinstance(gone, int)
        assert store.revision >= gone
        await store.close()
        await store.close()
        return gone

    async def second(last: int) -> None:
        store = reopen()
        records = list(store.load())
        assert [(record.key, record.value) for record in records] == [("/a", b"3")]
        assert store.revision >= last
        (answer,) = await store.commit([Write("/c", 0, b"4")])
        assert isinstance(answer, int)
        assert answer > last
        await store.close()

    asyncio.run(second(asyncio.run(first())))


def test_expectations_are_judged_one_by_one(reopen: Reopen) -> None:
    async def run() -> None:
        store = reopen()
        list(store.load())
        (one,) = await store.commit([Write("/a", 0, b"1")])
        assert isinstance(one, int)
        answers = await store.commit(
            [Write("/a", 0, b"x"), Write("/a", one, b"2"), Write("/a", one, b"3"), Write("/none", 5, None)]
        )
        assert answers[0] == Conflict("/a", one)
        two = answers[1]
        assert isinstance(two, int)
        assert answers[2] == Conflict("/a", two)
        assert answers[3] == Conflict("/none", 0)
        assert [(r.key, r.revision, r.value) for r in store.load()] == [("/a", two, b"2")]
        await store.close()

    asyncio.run(run())


def test_passing_writes_take_revisions_and_may_be_forgotten(reopen: Reopen) -> None:
    async def first() -> int:
        store = reopen()
        list(store.load())
        (one,) = await store.commit([Write("/event", 0, b"1", False)])
        assert await store.commit([Write("/event", 0, b"1", False)]) == [Conflict("/event", one)]  # type: ignore[arg-type]
        (two,) = await store.commit([Write("/kept", 0, b"1")])
        assert isinstance(one, int)
        assert isinstance(two, int)
        assert two > one
        await store.commit([Write("/passing", 0, b"1", False)])
        (three,) = await store.commit([Write("/event", one, None, False)])
        assert isinstance(three, int)
        await store.close()
        return three

    async def second(last: int) -> None:
        store = reopen()
        # One of several servers cannot forget what the others still have.
        assert {record.key for record in store.load()} - {"/passing"} == {"/kept"}
        assert store.revision >= last
        await store.close()

    asyncio.run(second(asyncio.run(first())))


def test_commits_take_effect_in_order(reopen: Reopen) -> None:
    async def run() -> None:
        store = reopen()
        list(store.load())
        futures = [store.commit([Write(f"/{n % 7}", None, str(n).encode())]) for n in range(200)]
        answers = [(await future)[0] for future in futures]
        assert len(set(answers)) == 200
        for first in range(7):
            assert answers[first::7] == sorted(answers[first::7])  # type: ignore[type-var]
        newest = {f"/{n % 7}": b"%d" % n for n in range(193, 200)}
        assert {record.key: record.value for record in store.load()} == newest
        await store.close()

    asyncio.run(run())


def test_changes_follow_and_are_compacted(reopen: Reopen) -> None:
    async def run() -> None:
        store = reopen()
        list(store.load())
        start = store.revision
        seen: list[tuple[str, bytes | None]] = []

        async def read() -> None:
            async for record in store.changes(start):
                seen.append((record.key, record.value))
                if len(seen) == 3:
                    return

        reader = asyncio.create_task(read())
        await store.commit([Write("/a", None, b"1"), Write("/b", None, b"2")])
        await store.commit([Write("/a", None, None)])
        await asyncio.wait_for(reader, 5)
        assert sorted(seen[:2]) == [("/a", b"1"), ("/b", b"2")]
        assert seen[2] == ("/a", None)
        await store.compact(store.revision)
        with pytest.raises(Compacted):
            await anext(aiter(store.changes(start)))
        await store.close()

    asyncio.run(run())


def test_a_closed_store_refuses(reopen: Reopen) -> None:
    async def run() -> None:
        store = reopen()
        await store.close()
        with pytest.raises(StoreFailed):
            await store.commit([Write("/a", None, b"1")])

    asyncio.run(run())
