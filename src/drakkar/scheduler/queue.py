"""Which pod is looked at next, and when one that did not fit is worth another look.

A pod that did not fit is parked with the causes that could change its lot; it comes back
when one of them occurs, but not faster than its back-off allows. Higher priority goes first,
then the older pod.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from drakkar.api.clock import Clock
from drakkar.scheduler.refusal import Cause

#: First and longest back-off of a pod, in seconds; it doubles with every attempt.
FIRST_BACKOFF, LONGEST_BACKOFF = 0.05, 5.0
#: Parked pods are looked at again after this many seconds even if nothing seems to have happened.
PATIENCE = 60.0


class _Place(Enum):
    ACTIVE = 1
    DELAYED = 2
    PARKED = 3
    OUT = 4


@dataclass(slots=True)
class _Entry:
    uid: str
    order: tuple[int, str, int]
    place: _Place = _Place.ACTIVE
    #: Raised with every move, so that stale heap items are recognised.
    stamp: int = 0
    attempts: int = 0
    not_before: float = 0.0
    since: float = 0.0
    parked_at: float = 0.0
    causes: frozenset[Cause] = frozenset()
    claims: frozenset[str] = frozenset()
    #: Whose devices could help; None when anybody's.
    drivers: frozenset[str] | None = None
    woken: bool = False


class SchedulingQueue:
    """Pods waiting for a decision, by uid."""

    def __init__(self, clock: Clock):
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._active: list[tuple[tuple[int, str, int], int, str]] = []
        self._delayed: list[tuple[float, int, str]] = []
        self._parked: dict[str, None] = {}
        self._by_claim: dict[str, dict[str, None]] = {}
        self._by_cause: dict[Cause, dict[str, None]] = {cause: {} for cause in Cause}
        self._times: Counter[Cause] = Counter()
        self._count = 0
        self._some = asyncio.Event()
        self._timer = asyncio.Event()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, uid: str) -> bool:
        return uid in self._entries

    def sizes(self) -> dict[str, int]:
        """How many pods are where: to be decided, in their back-off, waiting for something to happen."""
        places = Counter(entry.place for entry in self._entries.values())
        return {
            "active": places[_Place.ACTIVE] + places[_Place.OUT],
            "backoff": places[_Place.DELAYED],
            "unschedulable": places[_Place.PARKED],
        }

    def add(self, uid: str, priority: int, created: str) -> None:
        """A pod that is new here, or has changed itself: looked at as soon as its back-off allows."""
        entry = self._entries.get(uid)
        if entry is None:
            self._count += 1
            entry = self._entries[uid] = _Entry(uid, (-priority, created, self._count))
            entry.since = self._clock.monotonic()
            self._activate(entry)
        elif entry.place is _Place.OUT:
            entry.woken = True
        elif entry.place is _Place.PARKED:
            self._wake(entry)

    def remove(self, uid: str) -> None:
        """The pod needs no decision any more."""
        entry = self._entries.pop(uid, None)
        if entry is not None:
            self._leave(entry)

    def waited(self, uid: str) -> float:
        """For how many seconds the pod has been here."""
        entry = self._entries.get(uid)
        return self._clock.monotonic() - entry.since if entry is not None else 0.0

    async def take(self) -> str:
        """The next pod; it comes back by `park` or `retry`, or leaves by `remove`."""
        while True:
            while self._active:
                _, stamp, uid = heapq.heappop(self._active)
                entry = self._entries.get(uid)
                if entry is not None and entry.place is _Place.ACTIVE and entry.stamp == stamp:
                    entry.place = _Place.OUT
                    entry.woken = False
                    return uid
            self._some.clear()
            await self._some.wait()

    def next(self) -> str | None:
        """The pod that :meth:`take` would give at once, if there is one; it stays where it is."""
        while self._active:
            _, stamp, uid = self._active[0]
            entry = self._entries.get(uid)
            if entry is not None and entry.place is _Place.ACTIVE and entry.stamp == stamp:
                return uid
            heapq.heappop(self._active)
        return None

    def hold(self, uid: str) -> bool:
        """Takes this pod out of turn, as :meth:`take` does with the next one; False: it is not here, or out already."""
        entry = self._entries.get(uid)
        if entry is None or entry.place is _Place.OUT:
            return False
        self._leave(entry)
        entry.place = _Place.OUT
        entry.woken = False
        return True

    def park(
        self,
        uid: str,
        causes: Iterable[Cause],
        claims: Iterable[str] = (),
        *,
        drivers: frozenset[str] | None = None,
        counts: bool = True,
        longest: float | None = None,
    ) -> None:
        """The pod did not fit. ``claims`` are the keys of its own claims, ``drivers`` those whose devices could help
        (None: any). Unless it ``counts``, no back-off begins. After ``longest`` seconds it is looked at again anyway.
        """
        entry = self._entries.get(uid)
        if entry is None:
            return
        if counts:
            self._tired(entry)
        if entry.woken:
            self._delay(entry)
            return
        entry.place = _Place.PARKED
        entry.parked_at = self._clock.monotonic()
        entry.causes = frozenset(causes)
        entry.claims = frozenset(claims)
        entry.drivers = drivers
        for cause in entry.causes:
            self._by_cause[cause][uid] = None
        self._parked[uid] = None
        for key in entry.claims:
            self._by_claim.setdefault(key, {})[uid] = None
        if longest is not None:
            item = (entry.parked_at + longest, entry.stamp, uid)
            heapq.heappush(self._delayed, item)
            if self._delayed[0] == item:
                self._timer.set()

    def retry(self, uid: str) -> None:
        """Something went wrong on the way: the pod is looked at again after its back-off."""
        entry = self._entries.get(uid)
        if entry is not None:
            self._tired(entry)
            self._delay(entry)

    def again(self, uid: str) -> None:
        """Looks at a parked pod again as soon as its back-off allows."""
        entry = self._entries.get(uid)
        if entry is not None and entry.place is _Place.PARKED:
            self._wake(entry)

    def happened(self, cause: Cause, *, claim: str | None = None, driver: str | None = None) -> None:
        """Wakes the parked pods that wait for ``cause``: for CLAIM those that use ``claim``, for DEVICE those whom
        devices of ``driver`` could help (None: of any driver).
        """
        self._times[cause] += 1
        waiting = self._by_cause[cause] if claim is None else self._by_claim.get(claim)
        for uid in [*waiting] if waiting else ():
            entry = self._entries[uid]
            if cause in entry.causes and (driver is None or entry.drivers is None or driver in entry.drivers):
                self._wake(entry)

    def all_happened(self, causes: Iterable[Cause]) -> None:
        """The same for several causes, for whoever waits for them."""
        for cause in causes:
            self.happened(cause)

    def times(self, cause: Cause) -> int:
        """How often the cause has occurred."""
        return self._times[cause]

    async def run_timers(self) -> None:
        """Brings delayed pods back when their time comes, until cancelled."""
        while True:
            self._timer.clear()
            now = self._clock.monotonic()
            while self._delayed and self._delayed[0][0] <= now:
                _, stamp, uid = heapq.heappop(self._delayed)
                entry = self._entries.get(uid)
                if entry is None or entry.stamp != stamp:
                    continue
                if entry.place is _Place.DELAYED:
                    self._activate(entry)
                elif entry.place is _Place.PARKED:
                    self._wake(entry)
            for uid in [*self._parked]:
                entry = self._entries[uid]
                if now - entry.parked_at < PATIENCE:
                    break
                self._wake(entry)
            pause = min(self._delayed[0][0] - now, PATIENCE / 4) if self._delayed else PATIENCE / 4
            sleep = asyncio.create_task(self._clock.sleep(pause), name="queue-timer")
            changed = asyncio.create_task(self._timer.wait(), name="queue-changed")
            try:
                await asyncio.wait((sleep, changed), return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleep.cancel()
                changed.cancel()

    def _tired(self, entry: _Entry) -> None:
        entry.attempts += 1
        pause = min(FIRST_BACKOFF * 2 ** min(entry.attempts - 1, 20), LONGEST_BACKOFF)
        entry.not_before = self._clock.monotonic() + pause

    def _leave(self, entry: _Entry) -> None:
        entry.stamp += 1
        if entry.place is _Place.PARKED:
            self._parked.pop(entry.uid, None)
            for cause in entry.causes:
                self._by_cause[cause].pop(entry.uid, None)
            for key in entry.claims:
                users = self._by_claim[key]
                users.pop(entry.uid, None)
                if not users:
                    del self._by_claim[key]

    def _wake(self, entry: _Entry) -> None:
        self._leave(entry)
        if entry.not_before <= self._clock.monotonic():
            self._activate(entry)
        else:
            self._delay(entry)

    def _activate(self, entry: _Entry) -> None:
        entry.stamp += 1
        entry.place = _Place.ACTIVE
        heapq.heappush(self._active, (entry.order, entry.stamp, entry.uid))
        self._some.set()

    def _delay(self, entry: _Entry) -> None:
        entry.stamp += 1
        entry.place = _Place.DELAYED
        heapq.heappush(self._delayed, (entry.not_before, entry.stamp, entry.uid))
        self._timer.set()
