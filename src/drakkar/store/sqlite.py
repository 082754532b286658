"""The durable store of one machine: one SQLite file, written by one thread.

A commit is a transaction with one fsync, shared by everything that waited for it (group
commit); the event loop never touches the disk. Only the newest value of a key is kept: like
a real server's, history does not outlive a restart.

The file is left untouched unless it is certain to be ours: another application's file, newer
data, damage, and a folder that a second server uses are refused with a sentence.

On disk: ``objects(key, rev, value)`` and ``meta(key, value)`` with ``schemaVersion`` and
``revision``, a number that no write has reached yet. Numbers are reserved in blocks, so that
writes that need not be durable cost no transaction; after a restart counting goes on behind the
reserved block.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import apsw

from drakkar.store.base import Answer, Conflict, History, Record, Refused, StoreFailed, Write
from drakkar.store.problems import StoreProblem

#: Version of the tables. Raise it with a migration in `_MIGRATIONS` for every version before.
SCHEMA_VERSION = 1
#: ``application_id`` in the header of the file: "Drkr".
APPLICATION_ID = 0x44726B72
#: Revisions reserved at a time.
_BLOCK = 1000
#: Pages of the write-ahead log after which it is copied into the file (4 kB each).
_CHECKPOINT_PAGES = 2000
#: Bytes that the write-ahead log keeps on disk once it has been copied.
_LOG_BYTES = 16 << 20
#: Pages that nothing uses, above which (and above half of all) the file is made smaller at the start.
_SLACK_PAGES = 4000
_HEADER = 100
#: Errors of writing that leave what is on disk as it was; a failed fsync is none of them.
_WRITE_FAILED = frozenset({apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_TRUNCATE, apsw.SQLITE_IOERR_SHMSIZE})

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE objects (key TEXT PRIMARY KEY, rev INTEGER NOT NULL, value BLOB NOT NULL);
"""

#: Version found → what brings the tables to the next one.
_MIGRATIONS: dict[int, Callable[[apsw.Connection], None]] = {}


class _Job(NamedTuple):
    batch: Sequence[Write]
    future: asyncio.Future[list[Answer]]
    loop: asyncio.AbstractEventLoop


class SqliteBackend:
    """An open store.

    Making one opens or creates the file and locks it for this process. With
    ``synchronous="NORMAL"`` the newest commits may be lost when the machine (not only the process)
    crashes; the rest stays consistent. Raises StoreProblem, having changed nothing.
    """

    value_limit: int | None = None

    def __init__(self, path: str | os.PathLike[str], *, synchronous: str = "FULL"):
        if synchronous not in ("FULL", "NORMAL"):
            raise ValueError(f"synchronous must be FULL or NORMAL, not {synchronous!r}")
        self.path = path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreProblem(f"cannot make the data folder {path.parent}: {error.strerror}") from None
        self._lock = _acquire(path)
        try:
            new = _is_new(path)
            if not new:
                _inspect(path)
            self._connection = _connect(path, synchronous, new)
            self._revision = _read_revision(self._connection)
        except BaseException:
            _release(self._lock)
            raise
        #: Revisions up to this one are reserved on disk.
        self._reserved = self._revision
        self._passing: dict[str, int] = {}
        self._history = History(self._revision)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._failure: str | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="store commit", daemon=True)
        self._thread.start()

    @property
    def revision(self) -> int:
        return self._revision

    def load(self) -> Iterator[Record]:
        for key, revision, value in self._connection.execute("SELECT key, rev, value FROM objects"):
            yield Record(str(key), int(str(revision)), bytes(value) if isinstance(value, bytes) else b"")

    def commit(self, batch: Sequence[Write]) -> asyncio.Future[list[Answer]]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Answer]] = loop.create_future()
        if self._closed or self._failure is not None:
            future.set_exception(StoreFailed(self._failure or "the store is closed"))
        else:
            self._jobs.put(_Job(batch, future, loop))
        return future

    def changes(self, after: int) -> AsyncIterator[Record]:
        return self._history.read(after)

    async def compact(self, revision: int) -> None:
        """Forgets changes in memory; the file holds no history that could be compacted."""
        self._history.compact(revision)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._jobs.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
        self._history.close()

    # The writer thread.

    def _work(self) -> None:
        ended = False
        while not ended:
            jobs = [self._jobs.get()]
            while not self._jobs.empty():
                jobs.append(self._jobs.get())
            ended = jobs[-1] is None
            todo = [job for job in jobs if job is not None]
            if todo:
                self._commit(todo)
        with contextlib.suppress(apsw.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._connection.close()
        _release(self._lock)

    def _commit(self, jobs: list[_Job]) -> None:
        answers: list[list[Answer]] = []
        records: list[Record] = []
        error = self._failure
        if error is None:
            try:
                answers = self._transact([job.batch for job in jobs], records)
            except apsw.Error as found:
                if _no_room(found) and self._undone():
                    answers = [[self._alone(write, records) for write in job.batch] for job in jobs]
                if not answers or self._failure is not None:
                    error = self._failure = self._failure or f"cannot write {self.path}: {found}"
                    self._undone()
        # All jobs of one server come from one loop; tests may use several.
        for loop in {id(job.loop): job.loop for job in jobs}.values():
            mine = [(job, answers[at] if error is None else None) for at, job in enumerate(jobs) if job.loop is loop]
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._answer, mine, records if error is None else [], error)

    def _transact(self, batches: Sequence[Sequence[Write]], records: list[Record]) -> list[list[Answer]]:
        """All batches in one transaction, which is on disk afterwards; appends what was changed to ``records``."""
        answers: list[list[Answer]] = []
        done: list[Record] = []
        revision, passing = self._revision, dict[str, int]()
        begun = any(write.durable for batch in batches for write in batch)
        if begun:
            self._connection.execute("BEGIN IMMEDIATE")
        for batch in batches:
            answer: list[Answer] = []
            for write in batch:
                outcome = self._write(write, revision + 1, passing)
                if isinstance(outcome, int):
                    revision = outcome
                    done.append(Record(write.key, revision, write.value))
                answer.append(outcome)
            answers.append(answer)
        reserved = self._reserved
        if revision > reserved:
            reserved = revision + _BLOCK
            self._connection.execute("UPDATE meta SET value=? WHERE key='revision'", (str(reserved),))
        if begun:
            self._connection.execute("COMMIT")
        self._reserved = reserved
        self._revision = revision
        for key, passed in passing.items():
            if passed:
                self._passing[key] = passed
            else:
                self._passing.pop(key, None)
        records += done
        return answers

    def _alone(self, write: Write, records: list[Record]) -> Answer:
        """A write in a transaction of its own, after several did not fit together."""
        if self._failure is None:
            try:
                return self._transact([[write]], records)[0][0]
            except apsw.Error as found:
                if not (_no_room(found) and self._undone()):
                    self._failure = f"cannot write {self.path}: {found}"
        return Refused(write.key, f"no room to write {self.path}; free space on its disk", full=True)

    def _undone(self) -> bool:
        """Rolls back; whether the connection is as it was before the transaction."""
        with contextlib.suppress(apsw.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            return not self._connection.in_transaction
        return False

    def _write(self, write: Write, revision: int, passing: dict[str, int]) -> Answer:
        """One write inside the transaction; ``passing`` collects changes of what is not durable (0: gone)."""
        execute = self._connection.execute
        key, expected, value, durable = write
        if not durable:
            actual = passing.get(key, self._passing.get(key, 0))
            if expected is not None and expected != actual:
                return Conflict(key, actual)
            passing[key] = 0 if value is None else revision
            return revision
        if expected is not None:
            row = execute("SELECT rev FROM objects WHERE key=?", (key,)).fetchone()
            actual = int(row[0]) if row is not None else 0
            if expected != actual:
                return Conflict(key, actual)
        if value is None:
            execute("DELETE FROM objects WHERE key=?", (key,))
        elif expected:
            execute("UPDATE objects SET rev=?, value=? WHERE key=?", (revision, value, key))
        else:
            execute(
                "INSERT INTO objects(key, rev, value) VALUES(?,?,?) "
                "ON CONFLICT(key) DO UPDATE SET rev=excluded.rev, value=excluded.value",
                (key, revision, value),
            )
        return revision

    def _answer(
        self, answered: list[tuple[_Job, list[Answer] | None]], records: list[Record], error: str | None
    ) -> None:
        if records:
            self._history.append(records)
        for job, answer in answered:
            if job.future.done():
                continue
            if answer is None:
                job.future.set_exception(StoreFailed(error or "the store failed"))
            else:
                job.future.set_result(answer)


def _no_room(error: apsw.Error) -> bool:
    """Whether the disk, a quota or a limit on the file's size kept SQLite from writing; nothing was committed then."""
    return isinstance(error, apsw.FullError) or getattr(error, "extendedresult", 0) in _WRITE_FAILED


# Opening.


def _acquire(path: Path) -> int:
    """The lock beside the file; a second server on the same data gets a sentence instead."""
    lock_path = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    except OSError as error:
        raise StoreProblem(
            f"cannot write to the data folder {path.parent}: {error.strerror}; choose another one with --data"
        ) from None
    try:
        import fcntl
    except ImportError:  # Windows: SQLite's own locks still keep two writers apart
        return descriptor
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(descriptor, 32).decode(errors="replace").strip()
        os.close(descriptor)
        who = f" (process {holder})" if holder.isdigit() else ""
        raise StoreProblem(
            f"the data in {path.parent} is in use by another server{who}; stop it or choose another folder with --data"
        ) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor


def _release(lock: int) -> None:
    # The file stays: removing it would let two processes lock two files of the same name.
    with contextlib.suppress(OSError):
        os.ftruncate(lock, 0)
        os.close(lock)


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """No server uses the store in this file as long as the block runs. Raises StoreProblem."""
    lock = _acquire(path)
    try:
        yield
    finally:
        _release(lock)


def _is_new(path: Path) -> bool:
    try:
        return not path.exists() or path.stat().st_size == 0
    except OSError as error:
        raise StoreProblem(f"cannot read {path}: {error.strerror}") from None


def _inspect(path: Path) -> None:
    """Refuses what is not ours, newer, damaged or not writable, without opening it for writing."""
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        raise StoreProblem(f"{path} is not writable; change its permissions or choose another folder with --data")
    check(path)


def check(path: Path, cure: str = "move it away or choose another folder with --data") -> None:
    """Refuses what is not a whole store of ours, or a newer one; only reads. Raises StoreProblem.

    ``cure`` is what to do about a file that is none of ours.
    """
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER)
    except OSError as error:
        raise StoreProblem(f"cannot read {path}: {error.strerror}") from None
    if not header.startswith(b"SQLite format 3\0"):
        raise StoreProblem(f"{path} is not a database of Drakkar; {cure}")
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise StoreProblem(f"{path} is a database of another application; {cure}")
    version = int.from_bytes(header[60:64], "big")
    if version > SCHEMA_VERSION:
        raise _newer(path, version)
    # Without a write-ahead log the file can be read without leaving anything beside it.
    clean = not path.with_name(path.name + "-wal").exists()
    uri = f"file:{quoted(path)}?mode=ro" + ("&immutable=1" if clean else "")
    try:
        connection = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        try:
            verdict = connection.execute("PRAGMA quick_check(1)").fetchall()
            rows: dict[Any, Any] = dict(connection.execute("SELECT key, value FROM meta"))
        finally:
            connection.close()
    except apsw.Error as error:
        raise _damaged(path, str(error)) from None
    if verdict != [("ok",)]:
        raise _damaged(path, str(verdict[0][0]))
    stored = str(rows.get("schemaVersion", ""))
    if not stored.isdigit() or not str(rows.get("revision", "")).isdigit():
        raise _damaged(path, "its schemaVersion or revision is missing")
    if int(stored) > SCHEMA_VERSION:
        raise _newer(path, int(stored))


def quoted(path: Path) -> str:
    """The path as a part of an SQLite URI."""
    from urllib.parse import quote

    return quote(str(path.absolute()))


def _newer(path: Path, version: int) -> StoreProblem:
    return StoreProblem(
        f"{path} was written by a newer Drakkar (schemaVersion {version}, this one knows {SCHEMA_VERSION}); "
        "upgrade Drakkar or choose another folder with --data"
    )


def _damaged(path: Path, why: str) -> StoreProblem:
    text = " ".join(why.split())
    return StoreProblem(
        f"{path} is damaged ({text}); bring back a backup with `drakkar restore FILE --data {path.parent} --force`, "
        "or choose another folder with --data"
    )


def _connect(path: Path, synchronous: str, new: bool) -> apsw.Connection:
    try:
        connection = apsw.Connection(str(path))
        os.chmod(path, 0o600)
        connection.set_busy_timeout(2000)
        if new:
            # Before write-ahead logging starts, so that these numbers are in the header at once.
            with connection:
                connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
                connection.execute(_TABLES)
                connection.execute(
                    "INSERT INTO meta VALUES('schemaVersion', ?), ('revision', '0')", (str(SCHEMA_VERSION),)
                )
        connection.execute("PRAGMA journal_mode=WAL").fetchall()
        connection.execute(f"PRAGMA synchronous={synchronous}")
        connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}").fetchall()
        connection.execute(f"PRAGMA journal_size_limit={_LOG_BYTES}").fetchall()
        _migrate(connection, path)
        _shrink(connection)
    except (apsw.Error, OSError) as error:
        raise StoreProblem(f"cannot open {path}: {error}; choose another folder with --data") from None
    return connection


def _migrate(connection: apsw.Connection, path: Path) -> None:
    """Brings data of an older version up to date, step by step; a copy of the old data stays."""
    row = connection.execute("SELECT value FROM meta WHERE key='schemaVersion'").fetchone()
    version = int(str(row[0])) if row is not None else SCHEMA_VERSION
    if version < SCHEMA_VERSION:
        copy = path.with_name(f"{path.name}.schema-{version}")
        copy.unlink(missing_ok=True)
        connection.execute("VACUUM INTO ?", (str(copy),)).fetchall()
        os.chmod(copy, 0o600)
    while version < SCHEMA_VERSION:
        with connection:
            _MIGRATIONS[version](connection)
            version += 1
            connection.execute("UPDATE meta SET value=? WHERE key='schemaVersion'", (str(version),))
            connection.execute(f"PRAGMA user_version={version}")


def _shrink(connection: apsw.Connection) -> None:
    """Gives back the space of what was deleted, where that is most of the file."""
    free = int(str((connection.execute("PRAGMA freelist_count").fetchone() or (0,))[0]))
    pages = int(str((connection.execute("PRAGMA page_count").fetchone() or (0,))[0]))
    if free > _SLACK_PAGES and free > pages // 2:
        with contextlib.suppress(apsw.FullError):  # the larger file serves as well
            connection.execute("VACUUM").fetchall()


def _read_revision(connection: apsw.Connection) -> int:
    row = connection.execute("SELECT value FROM meta WHERE key='revision'").fetchone()
    return int(str(row[0])) if row is not None else 0
