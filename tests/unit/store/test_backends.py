"""One suite for all stores: what `drakkar.store.base` promises."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drakkar.store import Compacted, Conflict, MemoryBackend, Record, StoreFailed, Write
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
        await asyncio.wait_for(reader, 60)
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


def test_odd_keys_and_values_come_back_as_they_are(reopen: Reopen) -> None:
    records = {
        "/core/configmaps/default/a": b"",
        "/core/configmaps/default/a/b": bytes(range(256)),
        "/core/configmaps/default/ab": b"{}",
        "/x/y//system:controller:é'\"%_\\": b'{"a":"\xc3\xa9"}',
        "/x/y//" + "n" * 253: b"x" * 1_200_000,
    }

    async def first() -> None:
        store = reopen()
        list(store.load())
        start = store.revision
        answers = await store.commit([Write(key, 0, value) for key, value in records.items()])
        assert all(isinstance(answer, int) for answer in answers)
        seen: dict[str, bytes | None] = {}
        async for record in store.changes(start):
            seen[record.key] = record.value
            if len(seen) == len(records):
                break
        assert seen == records
        assert await store.commit([]) == []
        await store.close()

    async def second() -> None:
        store = reopen()
        assert {record.key: record.value for record in store.load()} == records
        await store.close()

    asyncio.run(first())
    asyncio.run(second())


def test_a_key_lives_several_lives(reopen: Reopen) -> None:
    """Each life begins as absent and ends with a revision of its own; old revisions fit no longer."""

    async def run() -> None:
        store = reopen()
        list(store.load())
        last = store.revision
        for _ in range(3):
            (made,) = await store.commit([Write("/a", 0, b"1")])
            assert isinstance(made, int)
            assert made > last
            assert await store.commit([Write("/a", 0, b"2")]) == [Conflict("/a", made)]
            (gone,) = await store.commit([Write("/a", made, None)])
            assert isinstance(gone, int)
            assert gone > made
            assert await store.commit([Write("/a", made, b"3")]) == [Conflict("/a", 0)]
            last = gone
        assert list(store.load()) == []
        await store.close()

    asyncio.run(run())


def test_conflicts_change_nothing_and_leave_no_trace(reopen: Reopen) -> None:
    async def run() -> None:
        store = reopen()
        list(store.load())
        (one,) = await store.commit([Write("/a", 0, b"1")])
        assert isinstance(one, int)
        for _ in range(5):
            assert await store.commit([Write("/a", 0, b"x"), Write("/b", one, b"x")]) == [
                Conflict("/a", one),
                Conflict("/b", 0),
            ]
        (two,) = await store.commit([Write("/b", 0, b"2")])
        changes = store.changes(one)
        assert await anext(changes) == Record("/b", two, b"2")  # type: ignore[arg-type]
        await store.close()

    asyncio.run(run())


def test_changes_tell_the_whole_story_from_any_point(reopen: Reopen) -> None:
    """Replayed from the start or from the middle they lead to what is stored, in growing revisions."""

    async def run() -> None:
        store = reopen()
        list(store.load())
        start = store.revision
        held: dict[str, int] = {}
        for turn in range(40):
            batch = [Write(f"/{n}", held.get(f"/{n}", 0), b"%d" % turn) for n in range(turn % 5, 9, 2)]
            if turn % 4 == 3:
                batch = [Write(key, revision, None) for key, revision in held.items()][:3]
            for write, answer in zip(batch, await store.commit(batch), strict=True):
                assert isinstance(answer, int)
                if write.value is None:
                    del held[write.key]
                else:
                    held[write.key] = answer
        (end,) = await store.commit([Write("/end", 0, b"")])

        async def replay(after: int) -> list[Record]:
            found: list[Record] = []
            async for record in store.changes(after):
                found.append(record)
                if record.revision == end:
                    break
            return found

        story = await replay(start)
        revisions = [record.revision for record in story]
        assert revisions == sorted(set(revisions))
        state: dict[str, Record] = {}
        for record in story:
            state[record.key] = record
        assert sorted(record for record in state.values() if record.value is not None) == sorted(store.load())
        for at in (0, 1, 17, len(story) - 2):
            assert await replay(story[at].revision) == story[at + 1 :]
        await store.close()

    asyncio.run(run())


def test_readers_of_changes_end_with_the_store(reopen: Reopen) -> None:
    async def run() -> None:
        store = reopen()
        list(store.load())

        start = store.revision
        seen = [0, 0, 0]

        async def read(number: int) -> None:
            async for _ in store.changes(start):
                seen[number] += 1

        readers = [asyncio.create_task(read(number)) for number in range(3)]
        await asyncio.sleep(0.1)
        await store.commit([Write("/a", 0, b"1")])
        async with asyncio.timeout(60):
            while seen != [1, 1, 1]:
                await asyncio.sleep(0.01)
            await store.close()
            await asyncio.gather(*readers)
        assert seen == [1, 1, 1]

    asyncio.run(run())


def test_compaction_keeps_what_is(reopen: Reopen) -> None:
    async def first() -> list[Record]:
        store = reopen()
        list(store.load())
        start = store.revision
        await store.commit([Write(f"/{n}", 0, b"1") for n in range(10)])
        (middle,) = await store.commit([Write("/0", None, b"2")])
        await store.compact(middle)  # type: ignore[arg-type]
        await store.compact(start)  # backwards: nothing
        (later,) = await store.commit([Write("/1", None, b"2")])
        assert isinstance(later, int)
        with pytest.raises(Compacted):
            await anext(aiter(store.changes(start)))
        assert (await anext(aiter(store.changes(later - 1)))).key == "/1"
        records = sorted(store.load())
        assert len(records) == 10
        await store.close()
        return records

    async def second(records: list[Record]) -> None:
        store = reopen()
        assert sorted(store.load()) == records
        await store.close()

    asyncio.run(second(asyncio.run(first())))


def test_many_writers_at_once(reopen: Reopen) -> None:
    """Counters under compare and set: as many as were told that they won, and no two of one revision."""

    async def run() -> None:
        store = reopen()
        list(store.load())
        revisions: list[int] = []
        held: dict[str, tuple[int, int]] = {}

        async def add(key: str) -> None:
            for _ in range(12):
                revision, count = held.get(key, (0, 0))
                (answer,) = await store.commit([Write(key, revision, b"%d" % (count + 1))])
                if isinstance(answer, int):
                    revisions.append(answer)
                    held[key] = (answer, count + 1)
                else:
                    assert isinstance(answer, Conflict)

        await asyncio.gather(*(add(f"/{n % 5}") for n in range(25)))
        assert len(revisions) == len(set(revisions))
        found = {record.key: (record.revision, int(record.value or b"")) for record in store.load()}
        assert found == held
        assert sum(count for _, count in held.values()) == len(revisions)
        await store.close()

    asyncio.run(run())
