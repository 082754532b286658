"""What only a store on disk can get wrong: foreign, newer, damaged, locked or full."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from drakkar.store import Record, Refused, StoreFailed, Write
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
        store._connection.execute("ALTER TABLE objects RENAME TO lost").fetchall()
        with pytest.raises(StoreFailed, match=r"store\.db"):
            await store.commit([Write("/b", 0, b"2")])
        store._connection.execute("ALTER TABLE lost RENAME TO objects").fetchall()
        with pytest.raises(StoreFailed):
            await store.commit([Write("/c", 0, b"1")])
        await store.close()
        again = SqliteBackend(tmp_path / "store.db")
        assert [(record.key, record.value) for record in again.load()] == [("/a", b"1")]
        await again.close()

    asyncio.run(run())


def test_no_room_refuses_what_does_not_fit_and_nothing_else(tmp_path: Path) -> None:
    """A limit on the file's size stands for a full disk: SQLite says the same."""

    async def run() -> None:
        store = SqliteBackend(tmp_path / "store.db")
        (one,) = await store.commit([Write("/a", 0, b"1")])
        assert isinstance(one, int)
        pages = int(str(store._connection.execute("PRAGMA page_count").fetchall()[0][0]))
        store._connection.execute(f"PRAGMA max_page_count={pages + 3}").fetchall()
        fits, big, also = await store.commit(
            [Write("/fits", 0, b"2"), Write("/big", 0, b"x" * 1_000_000), Write("/a", one, b"3")]
        )
        assert isinstance(fits, int)
        assert isinstance(also, int)
        assert also > fits > one
        assert isinstance(big, Refused)
        assert big.full
        assert not big.unclear
        assert "free space" in big.why
        assert await store.commit([Write("/big", None, b"x" * 1_000_000)]) == [big]
        store._connection.execute("PRAGMA max_page_count=1000000").fetchall()
        assert all(isinstance(answer, int) for answer in await store.commit([Write("/big", 0, b"x" * 1_000_000)]))
        seen = [record.key async for record in _first(store.changes(0), 4)]
        assert seen == ["/a", "/fits", "/a", "/big"]
        await store.close()
        again = SqliteBackend(tmp_path / "store.db")
        assert {record.key: len(record.value or b"") for record in again.load()} == {
            "/a": 1,
            "/fits": 1,
            "/big": 1_000_000,
        }
        await again.close()

    asyncio.run(run())


async def _first(changes: AsyncIterator[Record], count: int) -> AsyncIterator[Record]:
    for _ in range(count):
        yield await anext(changes)


_FULL = """
import asyncio, resource, signal, sys
from drakkar.store import Refused, Write
from drakkar.store.sqlite import SqliteBackend
async def main():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = SqliteBackend(sys.argv[1])
    done = 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
    while True:
        (answer,) = await store.commit([Write(f"/{done}", 0, b"x" * 20_000)])
        if isinstance(answer, Refused):
            assert answer.full, answer
            break
        done += 1
    for _ in range(3):
        (answer,) = await store.commit([Write("/more", 0, b"x" * 20_000)])
        assert isinstance(answer, Refused), answer
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    (answer,) = await store.commit([Write("/after", 0, b"x" * 20_000)])
    assert isinstance(answer, int), answer
    print(done)
asyncio.run(main())
"""


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """write(2) fails in the middle of the write-ahead log; the limit goes away; the process ends without closing."""
    path = tmp_path / "store.db"
    ended = subprocess.run([sys.executable, "-c", _FULL, str(path)], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    done = int(ended.stdout)

    async def run() -> None:
        store = SqliteBackend(path)
        assert {record.key for record in store.load()} == {*(f"/{n}" for n in range(done)), "/after"}
        await store.close()

    assert done > 3
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
