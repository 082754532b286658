"""A copy of the SQLite store that is taken while a server writes, and put back later.

SQLite's own backup reads a consistent state page by page; the copy is checked and only then
given its name, so that a file under that name is always whole.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import apsw

from drakkar.store.problems import StoreProblem
from drakkar.store.sqlite import check, held, quoted


class Copied(NamedTuple):
    """What a copy holds: objects, and the revision that no write of it has reached."""

    objects: int
    revision: int
    schema_version: int


def backup(store: Path, target: Path) -> Copied:
    """Copy the store, which may be in use, into ``target`` (mode 0600). Raises StoreProblem."""
    if not store.is_file():
        raise StoreProblem(f"{store} does not exist; name the folder of a used `drakkar up` with --data")
    if target.exists() and store.exists() and target.samefile(store):
        raise StoreProblem(f"{target} is the store itself; choose another file for the backup")
    with _whole(target) as part:
        try:
            source = apsw.Connection(
                f"file:{quoted(store)}?mode=rw", flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI
            )
            copy = apsw.Connection(str(part))
            try:
                source.set_busy_timeout(10_000)
                _copy(source, copy)
            finally:
                copy.close()
                source.close()
        except apsw.Error as error:
            raise StoreProblem(f"cannot copy {store}: {error}") from None
        return _content(part)


def restore(file: Path, store: Path, *, force: bool = False) -> Copied:
    """Make a store from a backup; changes nothing unless all of it can be done. Raises StoreProblem.

    A folder with data is refused without ``force``, one that a server uses always.
    """
    cure = "name a file that `drakkar backup` wrote"
    if not file.is_file():
        raise StoreProblem(f"{file} does not exist; {cure}")
    if file.with_name(file.name + "-wal").exists():
        raise StoreProblem(f"{file} is the store of a server, not a backup; make one with `drakkar backup`")
    check(file, cure)
    folder = store.parent
    try:
        used = folder.is_dir() and any(folder.iterdir())
        if used and not force:
            raise StoreProblem(f"{folder} is not empty; choose a new folder with --data, or overwrite it with --force")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StoreProblem(f"cannot make the data folder {folder}: {error.strerror}") from None
    with held(store), _whole(store) as part:
        try:
            source = apsw.Connection(
                f"file:{quoted(file)}?mode=ro&immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
            )
            copy = apsw.Connection(str(part))
            try:
                _copy(source, copy)
            finally:
                copy.close()
                source.close()
        except apsw.Error as error:
            raise StoreProblem(f"cannot copy {file}: {error}") from None
        content = _content(part)
        # The log of the old data must never be replayed into the new file.
        for suffix in ("-wal", "-shm"):
            store.with_name(store.name + suffix).unlink(missing_ok=True)
        return content


def _copy(source: apsw.Connection, copy: apsw.Connection) -> None:
    with copy.backup("main", source, "main") as running:
        # In one step: between steps a writer would make it start again and again.
        while not running.done:
            running.step()
    # A backup is one file: without this the copy would be in write-ahead mode like its source.
    copy.execute("PRAGMA journal_mode=DELETE").fetchall()


def _content(path: Path) -> Copied:
    """Checks a finished copy and says what is in it."""
    check(path)
    connection = apsw.Connection(
        f"file:{quoted(path)}?mode=ro&immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    )
    try:
        meta = {str(key): str(value) for key, value in connection.execute("SELECT key, value FROM meta")}
        (count,) = connection.execute("SELECT count(*) FROM objects").fetchone() or (0,)
        return Copied(int(str(count)), int(meta["revision"]), int(meta["schemaVersion"]))
    finally:
        connection.close()


@contextlib.contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """A file beside ``target`` that takes its place, durably, at the end of the block, or vanishes."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    except OSError as error:
        raise StoreProblem(f"cannot write to {target.parent}: {error.strerror}; choose another place") from None
    os.close(descriptor)  # made with mode 0600
    part = Path(name)
    try:
        yield part
        _sync(part)
        os.replace(part, target)
        _sync(target.parent)
    except OSError as error:
        raise StoreProblem(f"cannot write {target}: {error.strerror}") from None
    finally:
        for rest in (part, part.with_name(part.name + "-journal")):
            rest.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
