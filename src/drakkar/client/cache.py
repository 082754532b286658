"""Local copies of what the server holds, kept current by list and watch.

One :class:`Cache` per kind and selector, shared by everybody in the process. It survives
restarts of the server, expired revisions and broken streams: whatever happens, it comes
back to the server's state and tells its subscribers the difference. Streaming lists
(``sendInitialEvents``) are used where the server knows them, list and watch elsewhere.

It does not go back in time: a change told twice or late does nothing, and a list that is older
than what has been seen is asked for again. A change that was never told comes to light when
a later one overtakes a write of ours, and otherwise with the next list, once an hour.

Revisions arrive in order, so "everything up to revision r has been seen" is one number per
cache; :meth:`Cache.reached` waits for it, which is how writers read their own writes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Any

from drakkar.api.errors import ApiError
from drakkar.api.kinds import Kind
from drakkar.api.objects import labels_of
from drakkar.api.selectors import FieldSelector, LabelSelector
from drakkar.client.client import Client, WatchEvent
from drakkar.client.codec import meta, revision
from drakkar.client.transport import Unreachable

logger = logging.getLogger(__name__)

#: Called in the loop with "ADDED", "MODIFIED" or "DELETED", the old and the new object (None where there is none).
Subscriber = Callable[[str, Any, Any], None]
Index = Callable[[Any], Iterable[Any]]

#: Servers send a bookmark about once a minute; a watch that is silent for longer than this is taken for dead.
SILENCE = 180.0
#: First and longest pause between attempts to reach the server, in seconds.
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 15.0
#: Watches end after this many seconds plus up to as much again, so that they spread over replicas.
WATCH_SECONDS = 300
#: Answers to a watch that mean "not from this revision": too old (410), unknown (400), in the future (504).
REVISION_REFUSED = (400, 410, 504)
#: Answers to a streaming list that mean "not here": unknown or switched off, and, within the stream, 500 of a
#: kube-apiserver whose etcd cannot tell progress (before 3.4.25).
STREAMING_REFUSED = (400, 422, 500)
#: The whole state is read again after about so many seconds (0: never). A watch that tells every change needs none of
#: it: what a server, or something on the way from it, has left out is found then.
RELIST = float(os.environ.get("DRAKKAR_RELIST_SECONDS", "3600"))
#: A list that is older than what has been seen is believed after so many seconds: a server may be set back to a backup.
SET_BACK = 5.0
#: Least seconds between two lists that are made because a write of ours did not come back.
SUSPICION = 60.0
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class _ListAgain(Exception):
    """The state has to be read anew; says why."""


class Cache:
    """The objects of one kind (and selector), by name, by uid and by index; made by :meth:`Caches.of`.

    Objects are shared, never to be changed. ``list`` and ``by`` answer in order of arrival.
    """

    def __init__(self, client: Client, kind: Kind, namespace: str, label_selector: str, field_selector: str):
        self.kind = kind
        #: Everything up to this revision has been seen.
        self.revision = 0
        self.synced = asyncio.Event()
        self.last_heard = client.clock.monotonic()
        self._client = client
        self._clock = client.clock
        self._where = {"namespace": namespace or None, "label_selector": label_selector}
        self._where["field_selector"] = field_selector
        self._objects: dict[tuple[str, str], Any] = {}
        self._by_uid: dict[str, Any] = {}
        self._indexers: dict[str, Index] = {}
        self._indexes: dict[str, dict[Any, dict[tuple[str, str], Any]]] = {}
        self._subscribers: list[Subscriber] = []
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[bool]]] = []
        self._streams = True
        self._rng = random.Random()
        self._watch: asyncio.Task[None] | None = None
        #: When the state was last read, and when it is to be read again (monotonic).
        self._listed = float("-inf")
        self._relist_at = float("inf")
        #: Since when lists have been older than what has been seen.
        self._older_since: float | None = None
        self._suspected = False

    # reading

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._objects.values())

    def get(self, namespace: str | None, name: str) -> Any | None:
        """The object, or None."""
        return self._objects.get((namespace or "", name))

    def list(self, namespace: str | None = None) -> list[Any]:
        """All objects, or those of one namespace."""
        if namespace is None:
            return [*self._objects.values()]
        return [obj for (where, _), obj in self._objects.items() if where == namespace]

    def uid(self, uid: str) -> Any | None:
        """The object with this uid, or None."""
        return self._by_uid.get(uid)

    def by(self, index: str, value: Any) -> list[Any]:
        """The objects that the index function filed under ``value``."""
        return [*self._indexes[index].get(value, {}).values()]

    def subscribe(self, subscriber: Subscriber) -> None:
        """Calls ``subscriber`` for every change from now on, and at once for what is known already."""
        self._subscribers.append(subscriber)
        for obj in [*self._objects.values()]:
            self._call(subscriber, "ADDED", None, obj)

    def index(self, name: str, function: Index) -> None:
        """Adds an index; an index that exists already is kept."""
        if name in self._indexers:
            return
        self._indexers[name] = function
        table = self._indexes[name] = {}
        for key, obj in self._objects.items():
            for value in function(obj):
                table.setdefault(value, {})[key] = obj

    # waiting

    async def until(self, holds: Callable[[], bool], timeout: float) -> bool:
        """Waits until ``holds()`` after some change; False when ``timeout`` seconds pass first."""
        if holds():
            return True
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        entry = (holds, future)
        self._waiting.append(entry)
        timer = asyncio.create_task(self._clock.sleep(timeout), name="cache-wait")
        try:
            await asyncio.wait((future, timer), return_when=asyncio.FIRST_COMPLETED)
            return future.done() and future.result()
        finally:
            timer.cancel()
            if entry in self._waiting:
                self._waiting.remove(entry)

    def has_reached(self, obj: Any) -> bool:
        """Whether the state of ``obj`` (as a write returned it), or a later one, has been seen."""
        wanted = revision(meta(obj, "resourceVersion"))
        if self.revision >= wanted:
            return True
        known = self.get(meta(obj, "namespace"), meta(obj, "name"))
        if known is None:
            # Objects that the selector leaves out never arrive.
            return not self._selects(obj)
        return revision(meta(known, "resourceVersion")) >= wanted

    def _selects(self, obj: Any) -> bool:
        where = self._where
        if where["namespace"] and meta(obj, "namespace") != where["namespace"]:
            return False
        labels = LabelSelector.parse(where["label_selector"] or "")
        fields = FieldSelector.parse(where["field_selector"] or "")
        return labels.matches(labels_of(obj)) and fields.matches(lambda path: _field(obj, path))

    async def reached(self, obj: Any, timeout: float = 5.0) -> bool:
        """Waits for :meth:`has_reached`; False after ``timeout`` seconds, or when the watch has left it out."""
        if not await self.until(lambda: self.has_reached(obj), timeout):
            self._suspect(SUSPICION)
            return False
        known = self.get(meta(obj, "namespace"), meta(obj, "name"))
        if known is None or meta(known, "uid") != meta(obj, "uid"):
            return True
        if revision(meta(known, "resourceVersion")) >= revision(meta(obj, "resourceVersion")):
            return True
        # Later changes have been told, this one has not and never will be.
        self._suspect(SET_BACK)
        return False

    def _suspect(self, pause: float) -> None:
        """Has the state read anew, unless that was done in the last ``pause`` seconds: something did not come."""
        if self._watch is not None and self._clock.monotonic() - self._listed > pause:
            self._suspected = True
            self._watch.cancel()

    def _wake(self) -> None:
        if not self._waiting:
            return
        for entry in [*self._waiting]:
            holds, future = entry
            if not future.done() and holds():
                future.set_result(True)
                self._waiting.remove(entry)

    # keeping current

    async def run(self) -> None:
        """Lists and watches until cancelled."""
        pause = FIRST_PAUSE
        position = ""
        while True:
            self.last_heard = self._clock.monotonic()
            started = self.last_heard
            level = logging.INFO
            try:
                if not position and not self._streams:
                    listed = await self._client.list(self.kind, **self._where, limit=500)
                    self._take(listed.items, revision(listed.resource_version))
                    position = listed.resource_version
                # A task of its own, so that `check` can end a watch that went silent.
                self._watch = asyncio.create_task(self._follow(position), name=f"watch-{self.kind.plural}")
                try:
                    await self._watch
                finally:
                    if not self._watch.done():
                        self._watch.cancel()
                        await asyncio.gather(self._watch, return_exceptions=True)
                position = self._position()
                if self._clock.monotonic() - started > 1.0:
                    pause = FIRST_PAUSE
                    continue
                problem = "the server ended the watch at once"
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                if self._suspected:
                    self._suspected = False
                    problem, position = "a write of ours did not come back", ""
                else:
                    problem = f"silent for {SILENCE:.0f} s"
                    if not position:
                        self._streams = False
            except _ListAgain as error:
                problem, position = str(error), ""
            except ApiError as error:
                problem = str(error)
                if error.code in STREAMING_REFUSED and not position and self._streams:
                    self._streams = False
                    logger.info("%s: no streaming lists here, using list and watch", self.kind.plural)
                    continue
                position = self._position()
                if error.code == 404 and self.synced.is_set() and not self.revision:
                    # Said already; an optional kind may be absent for as long as the server lives.
                    level = logging.DEBUG
                if error.code == 404 and not self.synced.is_set():
                    logger.warning("%s are not served here; taken as none until they are", self.kind.plural)
                    self._replace([], 0)
                    pause = LONGEST_PAUSE
                if error.code in REVISION_REFUSED:
                    position = ""
                    # Lists are dear: where revisions expire all the time, they have to be far between.
                    if self._clock.monotonic() - self._listed > LONGEST_PAUSE:
                        continue
            except Unreachable as error:
                problem = str(error)
                position = self._position()
            except Exception as error:
                # Whatever it is (a frame that is no JSON, a fault of ours): a cache that ends unseen would
                # leave its readers with old state for ever.
                logger.exception("watch of %s failed", self.kind.plural)
                problem = f"{type(error).__name__}: {error}"
                position = ""
            if self._clock.monotonic() - started > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            logger.log(level, "watch of %s: %s; again in %.1f s", self.kind.plural, problem, pause)
            await self._clock.sleep(pause * (0.5 + self._rng.random()))
            pause = min(pause * 2, LONGEST_PAUSE)

    def _position(self) -> str:
        """Where the next watch begins; empty: with the whole state."""
        known = self.synced.is_set() and self.revision and self._clock.monotonic() < self._relist_at
        return str(self.revision) if known else ""

    def check(self, now: float) -> None:
        """Ends a watch that has been silent for too long; ``now`` is monotonic."""
        if now - self.last_heard > SILENCE and self._watch is not None:
            self._watch.cancel()

    async def _follow(self, position: str) -> None:
        initial: list[Any] | None = None if position else []
        seconds = WATCH_SECONDS + self._rng.randrange(WATCH_SECONDS)
        if position:
            seconds = max(1, min(seconds, self._relist_at - self._clock.monotonic()))
        events = self._client.watch(
            self.kind,
            **self._where,
            resource_version=position,
            send_initial_events=not position,
            timeout=int(seconds),
        )
        async with aclosing(events):
            async for event in events:
                self.last_heard = self._clock.monotonic()
                if initial is None:
                    self._apply(event)
                elif event.type == "BOOKMARK":
                    metadata = event.object.get("metadata", {})
                    if (metadata.get("annotations") or {}).get(INITIAL_EVENTS_END) == "true":
                        self._take(initial, revision(metadata.get("resourceVersion", "")))
                        initial = None
                elif event.type == "DELETED":
                    name = _key(event.object)
                    initial = [obj for obj in initial if _key(obj) != name]
                else:
                    initial.append(self._known(event.object))

    def _apply(self, event: WatchEvent) -> None:
        seen = revision(meta(event.object, "resourceVersion"))
        if event.type == "BOOKMARK":
            self._advance(seen)
            return
        key = _key(event.object)
        old = self._objects.get(key)
        if 0 < seen <= self.revision and not self._is_news(event, old):
            return
        if event.type == "DELETED":
            self._remove(key, event.object)
        elif old is None or meta(old, "uid") == meta(event.object, "uid"):
            self._put(key, old, event.object)
        else:
            # Deleted and made anew while nobody watched: two objects for everybody who holds the uid.
            self._remove(key, old)
            self._put(key, None, event.object)
        self._advance(seen)

    def _is_news(self, event: WatchEvent, old: Any) -> bool:
        """Whether a change that comes after later ones was not known; raises _ListAgain when that cannot be told."""
        if old is not None:
            return revision(meta(old, "resourceVersion")) < revision(meta(event.object, "resourceVersion"))
        if event.type == "DELETED":
            return False
        raise _ListAgain("changes came out of their order")

    def _known(self, obj: Any) -> Any:
        """The same object as it is kept here, if it is: the state read anew needs no second copy of it."""
        known = self._objects.get(_key(obj))
        if known is None or meta(known, "uid") != meta(obj, "uid"):
            return obj
        return known if meta(known, "resourceVersion") == meta(obj, "resourceVersion") else obj

    def _take(self, objects: list[Any], seen: int) -> None:
        """Takes over the state at revision ``seen``; raises _ListAgain for one that is older than what is known."""
        now = self._clock.monotonic()
        if seen < self.revision:
            self._older_since = now if self._older_since is None else self._older_since
            if now - self._older_since < SET_BACK:
                raise _ListAgain(f"the list is of revision {seen}, but {self.revision} has been seen")
        self._older_since = None
        self._listed = now
        self._relist_at = now + RELIST * (0.75 + self._rng.random() / 2) if RELIST else float("inf")
        self._replace(objects, seen)

    def _advance(self, seen: int) -> None:
        self.revision = max(self.revision, seen)
        self._wake()

    def _replace(self, objects: list[Any], seen: int) -> None:
        fresh = {_key(obj): obj for obj in objects}
        for key in [key for key in self._objects if key not in fresh]:
            self._remove(key, self._objects[key])
        # In the order of their last change, as a watch would have told it.
        for key, obj in sorted(fresh.items(), key=lambda item: revision(meta(item[1], "resourceVersion"))):
            old = self._objects.get(key)
            if old is not None and meta(old, "uid") != meta(obj, "uid"):
                self._remove(key, old)
                old = None
            if old is None or meta(old, "resourceVersion") != meta(obj, "resourceVersion"):
                self._put(key, old, obj)
        # The server may have been restored from a backup: its word counts, also when it is smaller.
        self.revision = seen
        self.synced.set()
        self._wake()

    def _put(self, key: tuple[str, str], old: Any, new: Any) -> None:
        self._unfile(key, old)
        self._objects[key] = new
        self._by_uid[meta(new, "uid")] = new
        for name, function in self._indexers.items():
            for value in function(new):
                self._indexes[name].setdefault(value, {})[key] = new
        self._tell("ADDED" if old is None else "MODIFIED", old, new)

    def _remove(self, key: tuple[str, str], last: Any) -> None:
        old = self._objects.pop(key, None)
        if old is None:
            return
        self._by_uid.pop(meta(old, "uid"), None)
        self._unfile(key, old)
        self._tell("DELETED", old, last)

    def _unfile(self, key: tuple[str, str], old: Any) -> None:
        if old is None:
            return
        for name, function in self._indexers.items():
            table = self._indexes[name]
            for value in function(old):
                entries = table.get(value)
                if entries is not None:
                    entries.pop(key, None)
                    if not entries:
                        del table[value]

    def _tell(self, event_type: str, old: Any, new: Any) -> None:
        for subscriber in self._subscribers:
            self._call(subscriber, event_type, old, new)

    def _call(self, subscriber: Subscriber, event_type: str, old: Any, new: Any) -> None:
        try:
            subscriber(event_type, old, new)
        except Exception:
            # A faulty subscriber must not stop the cache for all others.
            logger.exception("a subscriber of %s failed on %s", self.kind.plural, "/".join(_key(new)))


def _field(obj: Any, path: str) -> str:
    """The text of a field by its path, as field selectors compare it; empty when absent."""
    for part in path.split("."):
        obj = obj.get(part) if isinstance(obj, dict) else getattr(obj, part, None)
    return "" if obj is None else str(obj)


def _key(obj: Any) -> tuple[str, str]:
    return meta(obj, "namespace"), meta(obj, "name")


class Caches:
    """The caches of one process at one server; parts that ask for the same kind and selector share one."""

    def __init__(self, client: Client):
        self.client = client
        self._caches: dict[tuple[Any, ...], Cache] = {}
        self._tasks: dict[Cache, asyncio.Task[None]] = {}
        self._guard: asyncio.Task[None] | None = None

    def of(
        self,
        kind: Kind,
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        indexes: dict[str, Index] | None = None,
    ) -> Cache:
        """The cache of ``kind``; new indexes are added to an existing one. Started at once after :meth:`start`."""
        where = (kind.group, kind.version, kind.plural, namespace, label_selector, field_selector)
        cache = self._caches.get(where)
        if cache is None:
            cache = self._caches[where] = Cache(self.client, kind, namespace, label_selector, field_selector)
            if self._guard is not None:
                self._launch(cache)
        for name, function in (indexes or {}).items():
            cache.index(name, function)
        return cache

    def holding(self, kind: Kind) -> list[Cache]:
        """The existing caches of ``kind``, whatever their selector."""
        wanted = (kind.group, kind.plural)
        return [cache for where, cache in self._caches.items() if (where[0], where[2]) == wanted]

    async def start(self) -> None:
        """Starts all caches; again is harmless."""
        if self._guard is None:
            self._guard = asyncio.create_task(self._watchdog(), name="watchdog")
        for cache in self._caches.values():
            if cache not in self._tasks:
                self._launch(cache)

    def _launch(self, cache: Cache) -> None:
        self._tasks[cache] = asyncio.create_task(cache.run(), name=f"cache-{cache.kind.plural}")

    async def synced(self) -> None:
        """Waits until every cache has the server's state once; raises what ended a cache."""
        for cache in [*self._caches.values()]:
            waiter = asyncio.create_task(cache.synced.wait(), name="sync-wait")
            try:
                task = self._tasks.get(cache)
                await asyncio.wait({waiter, task} if task else {waiter}, return_when=asyncio.FIRST_COMPLETED)
                if task is not None and task.done():
                    task.result()
            finally:
                waiter.cancel()

    async def _watchdog(self) -> None:
        clock = self.client.clock
        while True:
            await clock.sleep(SILENCE / 3)
            for cache in self._caches.values():
                cache.check(clock.monotonic())

    async def stop(self) -> None:
        """Ends all watches and waits for that."""
        tasks = [task for task in (*self._tasks.values(), self._guard) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        self._guard = None
