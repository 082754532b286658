"""Runs a controller: keys in, writes out.

A controller says what has to be written for a key; the runner does it, in order, and stops
at the first write that fails. A key is looked at again only when the caches show what was
written for it before, so a controller never acts twice on the same old state.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Protocol

from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError
from drakkar.api.kinds import Kind
from drakkar.client.cache import Cache, Caches
from drakkar.client.client import Client
from drakkar.client.codec import meta, revision
from drakkar.client.events import EventRecorder
from drakkar.client.queue import KeyQueue
from drakkar.client.transport import Unreachable
from drakkar.client.writes import After, Create, Delete, Patch, Record, Write

logger = logging.getLogger(__name__)

#: Longest wait for one's own writes to come back on the watch, in seconds.
CATCH_UP = 5.0
#: First pause before a key is tried again on newer state, in seconds, and how often before that counts as a failure.
QUICK_RETRY, QUICK_RETRIES = 0.02, 5


class Controller(Protocol):
    """What the runner runs; ``reconcile`` may be a coroutine function where it has to read live."""

    name: str

    def setup(self, caches: Caches, queue: KeyQueue) -> None: ...

    def reconcile(self, key: Any) -> Sequence[Write] | Awaitable[Sequence[Write]]: ...


class Runner:
    """One controller at work, with ``workers`` keys at a time, never one key twice at a time."""

    def __init__(
        self,
        client: Client,
        caches: Caches,
        controller: Controller,
        clock: Clock,
        *,
        workers: int = 4,
        recorder: EventRecorder | None = None,
        rng: random.Random | None = None,
        on_error: Callable[[Hashable, Exception], None] | None = None,
    ):
        self.queue = KeyQueue(clock, rng)
        self.ready = asyncio.Event()
        #: Counters: keys that went well, conflicts, failures.
        self.metrics = {"reconciled": 0, "conflicts": 0, "failures": 0}
        self._client = client
        self._caches = caches
        self._controller = controller
        self._clock = clock
        self._workers = workers
        # Told when the server refuses a write for another reason than that the state was old.
        self._on_error = on_error
        self._recorder = recorder or EventRecorder(client, clock, controller.name)

    async def run(self) -> None:
        """Sets the controller up, waits for the caches and works until cancelled."""
        self._controller.setup(self._caches, self.queue)
        await self._caches.start()
        await self._caches.synced()
        self.ready.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.queue.run_timers(), name=f"{self._controller.name}-timers")
            for number in range(self._workers):
                group.create_task(self._work(), name=f"{self._controller.name}-{number}")

    async def _work(self) -> None:
        while True:
            key = await self.queue.take()
            try:
                await self._handle(key)
            finally:
                self.queue.done(key)

    async def _handle(self, key: Hashable) -> None:
        name = self._controller.name
        written: list[Callable[[], Awaitable[bool]]] = []
        try:
            result = self._controller.reconcile(key)
            writes: Sequence[Write] = await result if inspect.isawaitable(result) else result
            for write in writes:
                await self._execute(key, write, written)
        except ApiError as error:
            if error.code in (404, 409) and self.queue.failures(key) < QUICK_RETRIES:
                self.metrics["conflicts"] += 1
                logger.debug("%s: %s was decided on old state: %s", name, key, error)
                self.queue.fail(key, QUICK_RETRY)
            else:
                self.metrics["failures"] += 1
                logger.warning("%s: %s: %s; again in %.1f s", name, key, error, self.queue.fail(key))
                if self._on_error is not None:
                    self._on_error(key, error)
        except Unreachable as error:
            self.metrics["failures"] += 1
            logger.info("%s: %s: %s; again in %.1f s", name, key, error, self.queue.fail(key))
        except Exception:
            self.metrics["failures"] += 1
            logger.exception("%s: %s failed; again in %.1f s", name, key, self.queue.fail(key))
        else:
            self.metrics["reconciled"] += 1
            self.queue.forget(key)
        for wait in written:
            await wait()

    async def _execute(self, key: Hashable, write: Write, written: list[Callable[[], Awaitable[bool]]]) -> None:
        match write:
            case After():
                self.queue.add_after(key, write.seconds)
            case Record():
                await self._recorder.record(write.kind, write.obj, write.type, write.reason, write.message)
            case Create():
                try:
                    obj = await self._client.create(write.kind, write.obj)
                except ApiError as error:
                    await self._record_refusal(key, write, error, written)
                    raise
                self._expect(write.kind, obj, written)
            case Patch():
                try:
                    obj = await self._client.patch(
                        write.kind,
                        write.name,
                        write.namespace or None,
                        write.body,
                        write.type,
                        write.subresource,
                        field_manager=self._controller.name if write.type == "apply" else None,
                        force=write.type == "apply",
                    )
                except ApiError as error:
                    if not (write.where_served and error.is_unknown_kind):
                        raise
                    logger.debug("%s/%s is not served here", write.kind.plural, write.subresource)
                    return
                self._expect(write.kind, obj, written)
            case Delete():
                await self._delete(write, written)

    async def _record_refusal(
        self, key: Hashable, write: Create, error: ApiError, written: list[Callable[[], Awaitable[bool]]]
    ) -> None:
        if error.reason == "AlreadyExists":
            return
        said = write.refused
        if said is not None:
            message = said.message.replace("{error}", str(error))
            await self._recorder.record(said.kind, said.obj, said.type, said.reason, message)
        patch = write.blame(str(error)) if write.blame is not None else None
        if patch is not None:
            try:
                await self._execute(key, patch, written)
            except ApiError as another:
                logger.debug("%s: the refusal could not be noted: %s", self._controller.name, another)

    def _expect(self, kind: Kind, obj: Any, written: list[Callable[[], Awaitable[bool]]]) -> None:
        written.extend(_arrival(cache, obj) for cache in self._caches.holding(kind))

    async def _delete(self, write: Delete, written: list[Callable[[], Awaitable[bool]]]) -> None:
        before = [
            (cache, known)
            for cache in self._caches.holding(write.kind)
            if (known := cache.get(write.namespace, write.name)) is not None
        ]
        try:
            answer = await self._client.delete(
                write.kind,
                write.name,
                write.namespace or None,
                uid=write.uid,
                resource_version=write.resource_version,
                grace=write.grace,
                propagation=write.propagation,
            )
        except ApiError as error:
            if error.code != 404:
                raise
            return
        left = meta(answer, "resourceVersion") if answer.get("kind") != "Status" else ""
        for cache, known in before:
            # Deleting what is being deleted already changes nothing, so nothing would arrive.
            if meta(known, "resourceVersion") != left:
                written.append(_departure(cache, known, revision(left)))


def _arrival(cache: Cache, obj: Any) -> Callable[[], Awaitable[bool]]:
    return lambda: cache.reached(obj, CATCH_UP)


def _departure(cache: Cache, known: Any, left: int) -> Callable[[], Awaitable[bool]]:
    """Waits until the object is gone, or is seen as the deletion left it, at revision ``left`` (0: it left nothing).

    Any change would not do: the next one to arrive may be one that was written before the deletion.
    """
    where = (meta(known, "namespace"), meta(known, "name"))

    def gone() -> bool:
        now = cache.get(*where)
        if now is None or meta(now, "uid") != meta(known, "uid"):
            return True
        return bool(left) and revision(meta(now, "resourceVersion")) >= left

    return lambda: cache.until(gone, CATCH_UP)
