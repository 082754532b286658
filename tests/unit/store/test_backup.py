"""Copies of a store: whole, private, and never over something that is in use."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw
import pytest

from drakkar.store import Write
from drakkar.store.backup import backup, restore
from drakkar.store.problems import StoreProblem
from drakkar.store.sqlite import SCHEMA_VERSION, SqliteBackend


async def _fill(path: Path, count: int = 20) -> None:
    store = SqliteBackend(path)
    await store.commit([Write(f"/{n}", 0, b"x" * 3000) for n in range(count)])
    await store.close()


def _keys(path: Path) -> set[str]:
    async def run() -> set[str]:
        store = SqliteBackend(path)
        keys = {record.key for record in store.load()}
        await store.close()
        return keys

    return asyncio.run(run())


def test_a_copy_taken_during_writes_has_all_that_was_answered(tmp_path: Path) -> None:
    source, copy = tmp_path / "data" / "drakkar.db", tmp_path / "copy"

    async def run() -> int:
        store = SqliteBackend(source)
        written = 0

        async def write() -> None:
            nonlocal written
            while True:
                await store.commit([Write(f"/{written}", 0, b"y" * 2000)])
                written += 1

        writer = asyncio.create_task(write())
        while written < 50:
            await asyncio.sleep(0.001)
        before = written
        copied = await asyncio.to_thread(backup, source, copy)
        writer.cancel()
        assert copied.objects >= before
        assert copied.schema_version == SCHEMA_VERSION
        await store.close()
        return before

    before = asyncio.run(run())
    assert copy.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "data"]
    restored = restore(copy, tmp_path / "new" / "drakkar.db")
    assert restored.objects >= before
    assert {f"/{n}" for n in range(before)} <= _keys(tmp_path / "new" / "drakkar.db")


def test_a_used_folder_needs_force_and_a_running_one_is_refused(tmp_path: Path) -> None:
    source, copy, other = tmp_path / "a" / "drakkar.db", tmp_path / "copy", tmp_path / "b" / "drakkar.db"
    asyncio.run(_fill(source))
    backup(source, copy)
    asyncio.run(_fill(other, 3))
    with pytest.raises(StoreProblem, match="--force"):
        restore(copy, other)
    assert len(_keys(other)) == 3

    async def running() -> None:
        store = SqliteBackend(other)
        await store.commit([Write("/mine", 0, b"1")])
        with pytest.raises(StoreProblem, match="in use by another server"):
            restore(copy, other, force=True)
        await store.close()

    asyncio.run(running())
    assert len(_keys(other)) == 4
    restore(copy, other, force=True)
    assert _keys(other) == {f"/{n}" for n in range(20)}


def test_damaged_newer_and_foreign_files_are_refused(tmp_path: Path) -> None:
    source, copy, target = tmp_path / "a" / "drakkar.db", tmp_path / "copy", tmp_path / "b" / "drakkar.db"
    asyncio.run(_fill(source))
    backup(source, copy)
    whole = copy.read_bytes()
    copy.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreProblem, match="damaged"):
        restore(copy, target)
    copy.write_bytes(b"something else" * 500)
    with pytest.raises(StoreProblem, match="not a database of Drakkar; name a file that `drakkar backup` wrote"):
        restore(copy, target)
    copy.write_bytes(whole)
    connection = apsw.Connection(str(copy))
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(StoreProblem, match="newer Drakkar"):
        restore(copy, target)
    assert not target.parent.exists()


def test_a_failed_backup_leaves_the_older_one(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(b"older")
    with pytest.raises(StoreProblem, match="does not exist"):
        backup(tmp_path / "nowhere" / "drakkar.db", copy)
    foreign = tmp_path / "foreign" / "drakkar.db"
    foreign.parent.mkdir()
    connection = apsw.Connection(str(foreign))
    connection.execute("CREATE TABLE albums (title)")
    connection.close()
    with pytest.raises(StoreProblem, match="another application"):
        backup(foreign, copy)
    assert copy.read_bytes() == b"older"
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(StoreProblem, match="the store itself"):
        backup(foreign, foreign)
