"""Several servers over one store: following what all of them write, and reads that are never stale.

Each server's cache is fed by the store, its own writes included, so all caches go through the
same states in the same order, and revisions mean the same everywhere. A server may lag behind, though.
So before it looks at its cache for a request it asks the store how far it has to be
(:meth:`Peers.fresh`): the request then sees whatever was acknowledged to anybody before it came.
Requests that wait share one question, so it costs a round trip but hardly any work.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from bisect import insort

from drakkar.apiserver.cache import State
from drakkar.apiserver.commit import PeerCommitter
from drakkar.store.base import Compacted, SharedBackend, StoreFailed

_log = logging.getLogger(__name__)

#: Seconds that a request waits for the cache.
PATIENCE = 8.0


class Behind(Exception):
    """The cache did not get there in time: the store does not answer, or this server lags."""


class Peers:
    """Feeds the cache of one server from a store with several."""

    def __init__(self, backend: SharedBackend, state: State, committer: PeerCommitter):
        self._backend = backend
        self._state = state
        self._committer = committer
        committer.catch_up = lambda: asyncio.ensure_future(self.fresh())
        self._task: asyncio.Task[None] | None = None
        #: Those who wait for a revision, in its order; the number keeps futures from being compared.
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0
        #: Answered by the next question to the store, which has not been sent yet.
        self._question: asyncio.Future[int] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._answered = True

    @property
    def reachable(self) -> bool:
        """Whether the store answered the newest question; asks anew, for whoever looks next."""
        self._ask_soon()
        return self._answered

    def start(self, after: int) -> None:
        """Follows the store from revision ``after`` on."""
        self._task = asyncio.create_task(self._follow(after), name="apiserver peers")

    async def _follow(self, after: int) -> None:
        try:
            async with contextlib.aclosing(self._backend.feed(after)) as feed:
                async for progress in feed:
                    self._committer.take(progress)
                    self._wake()
            # The feed of a closed store ends.
        except Compacted as error:
            text = f"this server fell behind the others by more than the history that is kept, start it again: {error}"
            self._committer.fail(StoreFailed(text))
        except StoreFailed as error:
            self._committer.fail(error)
        except Exception as error:
            _log.exception("a write of a server could not be taken over")
            self._committer.fail(error)

    def _wake(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= self._state.revision:
            _, _, future = waiting.pop(0)
            if not future.done():
                future.set_result(None)

    async def reached(self, revision: int, patience: float = PATIENCE) -> None:
        """Ends when the cache has everything up to ``revision``. Raises Behind."""
        if self._state.revision >= revision:
            return
        if self._committer.failure is not None:
            raise Behind(str(self._committer.failure))
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        item = (revision, self._count, future)
        insort(self._waiting, item)
        try:
            async with asyncio.timeout(patience):
                await future
        except TimeoutError:
            text = f"this server has seen everything up to {self._state.revision} but not up to {revision}"
            raise Behind(text) from None
        finally:
            with contextlib.suppress(ValueError):
                self._waiting.remove(item)

    async def fresh(self) -> None:
        """Ends when the cache has everything that was acknowledged before the call. Raises Behind."""
        await self.reached(await asyncio.shield(self._ask_soon()))

    def _ask_soon(self) -> asyncio.Future[int]:
        if self._question is None:
            self._question = asyncio.get_running_loop().create_future()
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask(), name="apiserver freshness")
        return self._question

    async def _ask(self) -> None:
        """One question after the other; whoever comes while one is under way needs the next."""
        # A turn of the loop first: requests that came with the first one share its question.
        await asyncio.sleep(0)
        while (question := self._question) is not None:
            self._question = None
            try:
                question.set_result(await self._backend.latest())
                self._answered = True
            except BaseException as error:
                question.set_exception(Behind(str(error) or "the server stops"))
                question.exception()  # all who asked may have gone
                self._answered = False
                if not isinstance(error, StoreFailed):
                    self._asking = None
                    raise
        self._asking = None

    async def close(self) -> None:
        """Stops following."""
        for task in (self._task, self._asking):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
