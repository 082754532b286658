"""What only a store on disk can get wrong: foreign, newer, damaged, locked or full."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from drakkar.store import StoreFailed, Write
from drakkar.store.problems import StoreProblem
from drakkar.store.sqlite import SCHEMA_VERSION, SqliteBackend


def make(path: Path) -> None:
    async def run() -> None:
        store = SqliteBackend(path)
        await store.commit([Write("/a", 0, b"x" * 5000), Write("/b", 0, b"y" * 5000)])
        await store.close()

    asyncio.run(run())


def refused(path: Path) -> str:
    before = path.read_bytes()
    with pytest.raises(StoreProblem) as caught:
        SqliteBackend(path)
    assert path.read_bytes() == before
    text = str(caught.value)
    assert "\n" not in text
    assert str(path.parent) in text
    return text


def test_a_foreign_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"my holiday pictures" * 100)
    assert "not a database of Drakkar" in refused(path)


def test_a_foreign_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE albums (title)")
    connection.close()
    assert "another application" in refused(path)


@pytest.mark.parametrize("where", ["header", "table"])
def test_newer_data_is_left_alone(tmp_path: Path, where: str) -> None:
    path = tmp_path / "store.db"
    make(path)
    connection = apsw.Connection(str(path))
    if where == "header":
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    else:
        connection.execute("UPDATE meta SET value='99' WHERE key='schemaVersion'")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    assert "newer Drakkar" in refused(path)


def test_damage_is_found(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    make(path)
    data = bytearray(path.read_bytes())
    data[4096 : len(data)] = b"\x5a" * (len(data) - 4096)
    path.write_bytes(data)
    assert "damaged" in refused(path)


def test_a_truncated_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    make(path)
    path.write_bytes(path.read_bytes()[:5000])
    assert "damaged" in refused(path)


def test_two_servers_do_not_share_data(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    async def run() -> None:
        store = SqliteBackend(path)
        with pytest.raises(StoreProblem, match=f"in use by another server \\(process {os.getpid()}\\)"):
            SqliteBackend(path)
        await store.commit([Write("/a", 0, b"1")])
        await store.close()
        again = SqliteBackend(path)
        assert [record.key for record in again.load()] == ["/a"]
        await again.close()

    asyncio.run(run())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o500)
    with pytest.raises(StoreProblem, match="cannot write to the data folder"):
        SqliteBackend(folder / "store.db")


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(StoreProblem, match="cannot make the data folder"):
        SqliteBackend(tmp_path / "data" / "store.db")


def test_a_failed_commit_is_final(tmp_path: Path) -> None:
    async def run() -> None:
        store = SqliteBackend(tmp_path / "store.db")
        await store.commit([Write("/a", 0, b"1")])
        store._connection.execute("PRAGMA max_page_count=4").fetchall()
        with pytest.raises(StoreFailed, match=r"store\.db"):
            await store.commit([Write("/b", 0, b"x" * 1_000_000)])
        with pytest.raises(StoreFailed):
            await store.commit([Write("/c", 0, b"1")])
        await store.close()
        again = SqliteBackend(tmp_path / "store.db")
        assert [(record.key, record.value) for record in again.load()] == [("/a", b"1")]
        await again.close()

    asyncio.run(run())


_CHILD = """
import asyncio, sys
from drakkar.store import Write
from drakkar.store.sqlite import SqliteBackend
async def main():
    store = SqliteBackend(sys.argv[1])
    n = 0
    while True:
        answers = await store.commit([Write(f"/{n}", 0, str(n).encode() * 50) for n in range(n, n + 5)])
        n += 5
        print(n, flush=True)
asyncio.run(main())
"""


def test_what_was_answered_survives_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    child = subprocess.Popen([sys.executable, "-c", _CHILD, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    answered = 0
    for _ in range(20):
        answered = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    rest = child.stdout.read().split()
    child.wait()
    child.stdout.close()
    answered = max([answered, *map(int, rest)])

    async def run() -> None:
        store = SqliteBackend(path)
        keys = {record.key for record in store.load()}
        assert {f"/{n}" for n in range(answered)} <= keys
        assert len(keys) % 5 == 0  # batches are whole
        await store.close()

    asyncio.run(run())


def test_files_are_private(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    make(path)
    assert path.stat().st_mode & 0o077 == 0
