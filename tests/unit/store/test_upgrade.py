"""Data of every release is taken over: its tables brought up to date, its objects served as they were."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

from drakkar.apiserver import ApiServer
from drakkar.store import Write, sqlite
from drakkar.store.problems import StoreProblem
from drakkar.store.sqlite import SCHEMA_VERSION, SqliteBackend
from tests.support.stores import TABLES, make_store
from tests.unit.apiserver.core.serving import Api, StoppedClock

PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


def content(path: Path) -> dict[str, bytes | None]:
    async def run() -> dict[str, bytes | None]:
        store = SqliteBackend(path)
        found = {record.key: record.value for record in store.load()}
        await store.close()
        return found

    return asyncio.run(run())


@pytest.mark.parametrize("version", sorted(TABLES))
def test_a_cluster_at_work_goes_on(tmp_path: Path, version: int) -> None:
    """The pod keeps its uid, its claim its devices; writes go on above the old revisions."""
    path = tmp_path / "drakkar.db"
    kept = make_store(path, version)

    async def run() -> None:
        clock = StoppedClock()
        server = ApiServer(SqliteBackend(path), clock=clock)
        await server.start()
        api = Api(server, clock, server.token("admin", "system:masters"))
        pod, claim = await api.get(f"{PODS}/p"), await api.get(f"{CLAIMS}/c")
        stored = kept["/core/pods/default/p"]
        assert pod["metadata"]["uid"] == stored["metadata"]["uid"]
        assert (pod["spec"], pod["status"]) == (stored["spec"], stored["status"])
        assert claim["status"]["reservedFor"][0]["uid"] == pod["metadata"]["uid"]
        assert claim["status"]["allocation"]["devices"]["results"][0]["device"] == "gpu-0"
        thing = await api.get("/apis/example.com/v1/namespaces/default/things/t")
        assert thing["spec"] == {"size": 3}
        changed = await api.patch(f"{PODS}/p", {"metadata": {"labels": {"after": "upgrade"}}})
        highest = max(entry.revision for table in server.state.tables.values() for entry in table.entries.values())
        assert int(changed["metadata"]["resourceVersion"]) == highest
        await api.patch(f"{CLAIMS}/c", {"metadata": {"labels": {"after": "upgrade"}}})
        await api.close()

    asyncio.run(run())
    assert set(kept) <= set(content(path))


def test_the_newest_frozen_tables_are_those_of_today(tmp_path: Path) -> None:
    """Who changes the tables has to raise SCHEMA_VERSION, write a migration and freeze the new tables here."""

    def shape(path: Path) -> dict[str, Any]:
        connection = apsw.Connection(str(path))
        names = ("application_id", "user_version")
        found: dict[str, Any] = {name: connection.execute(f"PRAGMA {name}").fetchall() for name in names}
        found["tables"] = sorted(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
        connection.close()
        return found

    make_store(tmp_path / "frozen.db", SCHEMA_VERSION)

    async def fresh() -> None:
        await SqliteBackend(tmp_path / "fresh.db").close()

    asyncio.run(fresh())
    assert shape(tmp_path / "frozen.db") == shape(tmp_path / "fresh.db")
    assert set(TABLES) == set(range(1, SCHEMA_VERSION + 1))
    assert set(sqlite._MIGRATIONS) == set(range(1, SCHEMA_VERSION))


# The way of a migration, with one that there may be some day.


def _tomorrow(connection: apsw.Connection) -> None:
    connection.execute("ALTER TABLE objects ADD COLUMN note TEXT NOT NULL DEFAULT 'upgraded'")


def _broken(connection: apsw.Connection) -> None:
    _tomorrow(connection)
    connection.execute("UPDATE no_such_table SET a=1")


def test_a_migration_keeps_everything_and_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "drakkar.db"
    kept = make_store(path, 1)
    monkeypatch.setattr(sqlite, "SCHEMA_VERSION", 2)
    monkeypatch.setattr(sqlite, "_MIGRATIONS", {1: _tomorrow})
    assert set(content(path)) == set(kept)
    connection = apsw.Connection(str(path))
    assert connection.execute("SELECT DISTINCT note FROM objects").fetchall() == [("upgraded",)]
    connection.close()
    assert set(content(path)) == set(kept)  # nothing to do the second time
    monkeypatch.undo()
    with pytest.raises(StoreProblem, match="newer Drakkar"):
        SqliteBackend(path)
    copy = tmp_path / "drakkar.db.schema-1"
    assert copy.stat().st_mode & 0o077 == 0
    assert set(content(copy)) == set(kept)  # what the older Drakkar goes back to


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "drakkar.db"
    kept = make_store(path, 1)
    with monkeypatch.context() as patched:
        patched.setattr(sqlite, "SCHEMA_VERSION", 2)
        patched.setattr(sqlite, "_MIGRATIONS", {1: _broken})
        with pytest.raises(StoreProblem, match="cannot open"):
            SqliteBackend(path)
    assert set(content(path)) == set(kept)


_DIES = """
import os, signal, sys
from drakkar.store import sqlite
def die(connection):
    connection.execute("UPDATE objects SET value=x'00'")
    os.kill(os.getpid(), signal.SIGKILL)
sqlite.SCHEMA_VERSION, sqlite._MIGRATIONS = 2, {1: die}
sqlite.SqliteBackend(sys.argv[1])
"""


def test_death_in_a_migration(tmp_path: Path) -> None:
    path = tmp_path / "drakkar.db"
    kept = make_store(path, 1)
    ended = subprocess.run([sys.executable, "-c", _DIES, str(path)], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    found = content(path)
    assert set(found) == set(kept)
    assert b"\x00" not in found.values()


# Size.


def test_the_file_does_not_grow_with_history(tmp_path: Path) -> None:
    path = tmp_path / "drakkar.db"

    async def run() -> None:
        store = SqliteBackend(path, synchronous="NORMAL")
        for turn in range(60):
            await store.commit([Write(f"/{n}", None, b"%d" % turn * 2000) for n in range(100)])
            if turn % 3 == 0:
                await store.commit([Write(f"/{n}", None, None) for n in range(50)])
        log = path.with_name(path.name + "-wal")
        assert log.stat().st_size < 64 << 20
        await store.close()
        # 100 objects of 4 kB, and 24 MB of history.
        assert path.stat().st_size < 2 << 20
        assert not log.exists()

    asyncio.run(run())


def test_space_of_what_is_gone_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "drakkar.db"

    async def run() -> None:
        store = SqliteBackend(path, synchronous="NORMAL")
        await store.commit([Write(f"/{n}", 0, b"x" * 500_000) for n in range(50)])
        await store.commit([Write(f"/{n}", None, None) for n in range(49)])
        await store.close()
        assert path.stat().st_size > 20 << 20
        again = SqliteBackend(path)
        await again.close()
        assert path.stat().st_size < 2 << 20
        assert list(content_keys(path)) == ["/49"]

    def content_keys(path: Path) -> list[str]:
        connection = apsw.Connection(str(path))
        found = [str(key) for (key,) in connection.execute("SELECT key FROM objects")]
        connection.close()
        return found

    asyncio.run(run())
