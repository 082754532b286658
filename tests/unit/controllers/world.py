"""A small API server, its caches and runners, all in one thread of plain calls.

`World` keeps objects and applies writes as the server would, as far as controllers can tell.
`Caches` sees every change only when `World.deliver` says so, so that tests choose how stale a
cache is. `Harness` runs controllers over it step by step, in any order, and can kill all of them
between any two writes.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec

from drakkar.api.errors import ApiError
from drakkar.api.kinds import POD, Kind
from drakkar.client.clock import timestamp
from drakkar.client.writes import After, Create, Delete, Patch, Record

START = 1_800_000_000.0


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = START

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now - START

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Queue:
    """Keys in order, each once."""

    def __init__(self) -> None:
        self.keys: dict[str, None] = {}

    def add(self, key: str) -> None:
        self.keys[key] = None

    def take(self, key: str) -> str:
        del self.keys[key]
        return key


class Cache:
    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.objects: dict[tuple[str, str], Any] = {}
        self.indexes: dict[str, Callable[[Any], Iterable[Any]]] = {}
        self.subscribers: list[Any] = []
        self.synced = asyncio.Event()
        self.synced.set()

    def get(self, namespace: str | None, name: str) -> Any:
        return self.objects.get((namespace or "", name))

    def list(self, namespace: str | None = None) -> list[Any]:
        return [obj for (where, _), obj in self.objects.items() if namespace in (None, where)]

    def __iter__(self) -> Any:
        return iter(self.objects.values())

    def by(self, index: str, value: Any) -> Any:
        function = self.indexes[index]
        return [obj for obj in self.objects.values() if value in list(function(obj))]

    def uid(self, uid: str) -> Any:
        return next((obj for obj in self.objects.values() if _meta(obj, "uid") == uid), None)

    def subscribe(self, subscriber: Any) -> None:
        self.subscribers.append(subscriber)
        for obj in list(self.objects.values()):
            subscriber("ADDED", None, obj)

    def see(self, namespace: str, name: str, obj: Any | None) -> None:
        old = self.objects.get((namespace, name))
        if obj is None:
            self.objects.pop((namespace, name), None)
        else:
            self.objects[namespace, name] = obj
        if old is None and obj is None:
            return
        event = "DELETED" if obj is None else "ADDED" if old is None else "MODIFIED"
        for subscriber in self.subscribers:
            subscriber(event, old, obj)


class Caches:
    def __init__(self, world: World) -> None:
        self.world = world
        self.known: dict[tuple[str, str], Cache] = {}

    def of(self, kind: Kind, *, indexes: dict[str, Any] | None = None, **_: Any) -> Cache:
        where = (kind.group, kind.plural)
        if where not in self.known:
            cache = self.known[where] = Cache(kind)
            for (namespace, name), obj in self.world.table(kind).items():
                cache.see(namespace, name, self.world.decode(kind, obj))
        self.known[where].indexes |= indexes or {}
        return self.known[where]


class World:
    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.tables: dict[tuple[str, str], dict[tuple[str, str], Any]] = {}
        self.revision = 0
        self.pending: dict[tuple[str, str], deque[tuple[str, str, Any]]] = {}
        self.caches = Caches(self)
        self.events: list[Record] = []
        self.history: list[tuple[str, Any, Any]] = []
        self.watchers: list[Callable[[Kind, Any, Any], None]] = []
        self.kinds: dict[tuple[str, str], Kind] = {}

    def table(self, kind: Kind) -> dict[tuple[str, str], Any]:
        self.kinds.setdefault((kind.group, kind.plural), kind)
        return self.tables.setdefault((kind.group, kind.plural), {})

    def decode(self, kind: Kind, obj: Any) -> Any:
        return msgspec.convert(obj, kind.type) if kind.type is not None else copy.deepcopy(obj)

    # the server

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Any:
        found = self.table(kind).get((namespace or "", name))
        if found is None:
            raise failure(404, "NotFound", f"{kind.plural} {name} not found", name)
        return self.decode(kind, found)

    def read(self, kind: Kind, name: str, namespace: str = "default") -> Any:
        return self.table(kind).get((namespace if kind.namespaced else "", name))

    def all(self, kind: Kind) -> list[Any]:
        return [*self.table(kind).values()]

    def create(self, kind: Kind, obj: Any) -> Any:
        obj = copy.deepcopy(msgspec.to_builtins(obj))
        meta = obj.setdefault("metadata", {})
        if kind.namespaced:
            meta.setdefault("namespace", "default")
        where = (meta.get("namespace", ""), meta["name"])
        if where in self.table(kind):
            raise failure(409, "AlreadyExists", f"{kind.plural} {where} exists")
        obj = {"apiVersion": kind.api_version, "kind": kind.kind, **obj}
        meta.setdefault("uid", f"uid-{kind.plural}-{meta['name']}-{self.revision}")
        meta.setdefault("creationTimestamp", timestamp(self.clock.now))
        meta.setdefault("generation", 1)
        obj.setdefault("status", {})
        self._store(kind, where, obj)
        return obj

    def patch(self, write: Patch) -> Any:
        where = (write.namespace, write.name)
        current = self.table(write.kind).get(where)
        if current is None:
            raise failure(404, "NotFound", f"{write.kind.plural} {where} not found")
        body = copy.deepcopy(write.body)
        meta = body.get("metadata", {})
        for field in ("uid", "resourceVersion"):
            if field in meta and meta[field] != current["metadata"][field]:
                raise failure(409, "Conflict", f"{write.kind.plural} {where}: {field} differs")
        new = copy.deepcopy(current)
        if write.subresource == "status":
            assert set(body) <= {"apiVersion", "kind", "metadata", "status"}, body
            new["status"] = _merge(new.get("status") or {}, body["status"], write.type)
        else:
            assert "status" not in body
            new = _merge(new, body, write.type)
        if new == current:
            return current
        if new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"):
            grace = new["metadata"].get("deletionGracePeriodSeconds") or 0
            if grace == 0:
                self._store(write.kind, where, None)
                return new
        self._store(write.kind, where, new)
        return new

    def delete(self, write: Delete) -> None:
        where = (write.namespace, write.name)
        current = self.table(write.kind).get(where)
        if current is None:
            return
        meta = current["metadata"]
        if write.uid and write.uid != meta["uid"]:
            raise failure(409, "Conflict", "uid differs")
        if write.resource_version and write.resource_version != meta["resourceVersion"]:
            raise failure(409, "Conflict", "resourceVersion differs")
        grace = 0
        phase = (current.get("status") or {}).get("phase")
        if write.kind.plural == POD.plural and current["spec"].get("nodeName") and phase not in ("Succeeded", "Failed"):
            grace = 30 if write.grace is None else write.grace
        finalizers: list[str] = [*(meta.get("finalizers") or ())]
        if write.propagation == "Foreground" and "foregroundDeletion" not in finalizers:
            finalizers.append("foregroundDeletion")
        if write.propagation == "Orphan" and "orphan" not in finalizers:
            finalizers.append("orphan")
        if not grace and not finalizers:
            self._store(write.kind, where, None)
            return
        if meta.get("deletionTimestamp") and meta.get("deletionGracePeriodSeconds", 0) <= grace:
            return
        new = copy.deepcopy(current)
        new["metadata"] |= {"deletionTimestamp": timestamp(self.clock.now), "deletionGracePeriodSeconds": grace}
        if finalizers:
            new["metadata"]["finalizers"] = finalizers
        self._store(write.kind, where, new)

    def update(self, kind: Kind, name: str, namespace: str, change: Callable[[Any], None]) -> Any:
        """An ordinary client's read, change, write."""
        where = (namespace if kind.namespaced else "", name)
        new = copy.deepcopy(self.table(kind)[where])
        change(new)
        self._store(kind, where, new)
        return new

    def _store(self, kind: Kind, where: tuple[str, str], new: Any | None) -> None:
        self.revision += 1
        table = self.table(kind)
        old = table.get(where)
        if new is None:
            del table[where]
        else:
            new["metadata"]["resourceVersion"] = str(self.revision)
            table[where] = new
        self.history.append((kind.plural, old, new))
        for watcher in self.watchers:
            watcher(kind, old, new)
        self.pending.setdefault((kind.group, kind.plural), deque()).append((*where, copy.deepcopy(new)))

    def execute(self, write: Any) -> None:
        match write:
            case Create():
                self.create(write.kind, write.obj)
            case Patch():
                self.patch(write)
            case Delete():
                self.delete(write)
            case Record():
                self.events.append(write)
            case After():
                pass

    # caches

    def deliver(self, where: tuple[str, str] | None = None, count: int = 1_000_000) -> None:
        """Shows the caches what they have not seen yet, in order, of one kind or of all."""
        for key in [where] if where else list(self.pending):
            queue = self.pending[key]
            cache = self.caches.known.get(key)
            for _ in range(min(count, len(queue))):
                namespace, name, obj = queue.popleft()
                if cache is not None:
                    cache.see(namespace, name, None if obj is None else self.decode(cache.kind, obj))

    def forget_caches(self) -> None:
        """A new process: caches are filled anew."""
        self.caches = Caches(self)
        self.pending.clear()


class Harness:
    """Controllers made by ``build`` over a world; ``build`` is called again after each crash."""

    def __init__(self, world: World, build: Callable[[World], list[Any]]) -> None:
        self.world = world
        self.build = build
        self.crashes = 0
        self.start()

    def start(self) -> None:
        self.world.forget_caches()
        self.controllers = self.build(self.world)
        self.queues = [Queue() for _ in self.controllers]
        self.timers: list[tuple[float, int, str]] = []
        for controller, queue in zip(self.controllers, self.queues, strict=True):
            controller.setup(self.world.caches, queue)

    def reconcile(self, number: int, key: str) -> list[Any]:
        result = self.controllers[number].reconcile(key)
        return _finish(result) if inspect.iscoroutine(result) else result

    def work(self, number: int, key: str, crash_after: int | None = None) -> list[Any]:
        """One key; an API error brings it back, a crash ends the process."""
        self.queues[number].take(key)
        try:
            writes = self.reconcile(number, key)
            for done, write in enumerate(writes):
                if crash_after is not None and done >= crash_after:
                    self.crashes += 1
                    self.start()
                    return writes
                if isinstance(write, After):
                    self.timers.append((self.world.clock.now + write.seconds, number, key))
                else:
                    self.world.execute(write)
        except ApiError as error:
            if error.code not in (404, 409):
                raise
            self.queues[number].add(key)
            return []
        return writes

    def ripe(self) -> list[tuple[int, str]]:
        return [(number, key) for number, queue in enumerate(self.queues) for key in queue.keys]

    def rest(self) -> None:
        """As `settle`, and a moment more, for what is allowed to wait for company."""
        self.advance(0.2)

    def settle(self, limit: int = 5000) -> None:
        """Runs until nothing is left to do at this moment."""
        for _ in range(limit):
            self.world.deliver()
            self._fire()
            ripe = self.ripe()
            if not ripe:
                return
            self.work(*ripe[0])
        raise AssertionError(f"does not come to rest: {self.ripe()}")

    def settle_chaos(self, rng: random.Random, crashes: int, limit: int = 20000) -> None:
        """As `settle`, in random order, on stale caches, with crashes between writes."""
        for _ in range(limit):
            waiting = [key for key, queue in self.world.pending.items() if queue]
            ripe = self.ripe()
            if not waiting and not ripe:
                self._fire()
                if not self.ripe():
                    return
            if waiting and (not ripe or rng.random() < 0.5):
                self.world.deliver(rng.choice(waiting), rng.randint(1, 3))
                continue
            crash = None
            if crashes and rng.random() < 0.1:
                crash = rng.randint(0, 4)
                crashes -= 1
            if ripe:
                self.work(*rng.choice(ripe), crash_after=crash)
        raise AssertionError(f"does not come to rest: {self.ripe()}")

    def _fire(self) -> None:
        due = [timer for timer in self.timers if timer[0] <= self.world.clock.now + 1e-6]
        for timer in due:
            self.timers.remove(timer)
            self.queues[timer[1]].add(timer[2])

    def advance(self, seconds: float, settle: Callable[[], None] | None = None) -> None:
        """Moves the clock, stopping at every timer."""
        settle = settle or self.settle
        end = self.world.clock.now + seconds
        while True:
            settle()
            upcoming = [timer[0] for timer in self.timers if timer[0] <= end]
            if not upcoming:
                break
            self.world.clock.now = max(self.world.clock.now, min(upcoming))
            settle()
        self.world.clock.now = end
        settle()


def _finish(result: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine that never has to wait: the world answers at once."""
    try:
        result.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a reconciler waited for something that is no read")


def failure(code: int, reason: str, message: str, name: str = "") -> ApiError:
    """``name`` is that of the object which is missing; a kind that is missing has none."""
    status = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    return ApiError({**status, "details": {"name": name}})


def _meta(obj: Any, field: str) -> Any:
    return obj["metadata"].get(field) if isinstance(obj, dict) else getattr(obj.metadata, field)


#: Lists that strategic patches merge, and their key.
MERGE_KEYS = {"conditions": "type", "resourceClaimStatuses": "name"}


def _merge(target: Any, patch: Any, type_: str) -> Any:
    result = dict(target)
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.split("/", 1)[1]
            left = [item for item in result.get(name) or () if item not in value]
            result.pop(name, None)
            if left:
                result[name] = left
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = _merge(result.get(key) or {}, value, type_)
        elif isinstance(value, list) and type_ != "merge" and key in MERGE_KEYS:
            merged = {item[MERGE_KEYS[key]]: item for item in result.get(key) or ()}
            for item in value:
                merged[item[MERGE_KEYS[key]]] = {**merged.get(item[MERGE_KEYS[key]], {}), **item}
            result[key] = list(merged.values())
        else:
            result[key] = value
    return result
