"""What a driver does with its slices while the kit tries it: who reads them is told of every write."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from dataclasses import dataclass, field

import msgspec

from drakkar.api.errors import ApiError
from drakkar.api.kinds import RESOURCESLICE
from drakkar.api.resource import v1
from drakkar.client import Client
from drakkar.client.transport import Unreachable

logger = logging.getLogger(__name__)

#: Pause in seconds before a broken watch is begun anew.
_PAUSE = 0.5
#: Seconds within which two changes are one.
_TOGETHER = 0.5
#: Needless writes within one run that may come from its start, and from that of another instance.
_LATE = 2
#: Starts with needless writes from which it is worth a remark.
_OFTEN = 3


@dataclass(frozen=True, slots=True)
class _Write:
    """One event: `life` counts the starts of the driver before it."""

    type: str
    slice: v1.ResourceSlice
    life: int
    time: float


@dataclass(slots=True)
class History:
    """Every write to the slices of one driver, in order."""

    writes: list[_Write] = field(default_factory=list[_Write])
    _life: int = 0
    #: UIDs of slices that the kit has deleted.
    _deleted: set[str] = field(default_factory=set[str])

    def started(self) -> None:
        """The driver starts (again)."""
        self._life += 1

    def deleted(self, uid: str) -> None:
        """The kit deletes a slice: its end is no fault of the driver."""
        self._deleted.add(uid)

    async def follow(self, client: Client, driver: str) -> None:
        """Watch until cancelled."""
        selector = f"spec.driver={driver}"
        while True:
            try:
                found = await client.list(RESOURCESLICE, field_selector=selector)
                self._note("ADDED", *found.items)
                async for event in client.watch(
                    RESOURCESLICE, field_selector=selector, resource_version=found.resource_version
                ):
                    if event.type in ("ADDED", "MODIFIED", "DELETED"):
                        self._note(event.type, event.object)
            except (ApiError, Unreachable) as error:
                logger.info("watch of the slices of %s: %s", driver, error)
            await asyncio.sleep(_PAUSE)

    def count(self, since: float) -> int:
        """Writes since then (monotonic seconds)."""
        return sum(write.time >= since for write in self.writes)

    def problems(self) -> list[str]:
        """What consumers of the slices could not make sense of, or had to do for nothing."""
        return [problem for pool in self._pools() for problem in pool.problems()]

    def remarks(self) -> list[str]:
        """What is merely a waste."""
        return [remark for pool in self._pools() for remark in pool.remarks()]

    def _pools(self) -> list[_PoolHistory]:
        found: dict[tuple[str, str], _PoolHistory] = {}
        for write in self.writes:
            spec = write.slice.spec
            key = spec.nodeName or "", spec.pool.name
            found.setdefault(key, _PoolHistory(spec.pool.name, self._deleted)).add(write)
        return [pool for _, pool in sorted(found.items())]

    def _note(self, kind: str, *slices: v1.ResourceSlice) -> None:
        self.writes += [_Write(kind, each, self._life, time.monotonic()) for each in slices]


class _PoolHistory:
    """The writes to one pool, judged one after the other."""

    def __init__(self, name: str, deleted: set[str]) -> None:
        self._name = name
        self._deleted = deleted
        self._state: dict[str, v1.ResourceSlice] = {}
        self._problems: dict[str, None] = {}
        #: Life of the driver → writes in it that changed nothing for anybody.
        self._idle: dict[int, int] = defaultdict(int)
        #: Contents and generation of the pool when it was complete last.
        self._whole: list[bytes] = []
        self._generation = 0
        #: The slice that changed last while the generation stayed, and when.
        self._changed: tuple[str, float] = ("", -_TOGETHER)

    def problems(self) -> list[str]:
        busy = [count for count in self._idle.values() if count > _LATE]
        more = [f"pool {self._name}: {max(busy)} writes within one run of the driver changed no device"] if busy else []
        return [*self._problems, *more]

    def remarks(self) -> list[str]:
        starts = sum(0 < count <= _LATE for count in self._idle.values())
        if starts < _OFTEN:
            return []
        return [
            f"pool {self._name}: {starts} starts of the driver raised the generation or wrote slices, for no change"
        ]

    def add(self, write: _Write) -> None:
        found, name, state = write.slice, write.slice.metadata.name, self._state
        before = state.get(name)
        if write.type == "DELETED":
            state.pop(name, None)
            if not state and found.metadata.uid not in self._deleted:
                self._tell(f"its last slice {name} was deleted, so for a time the node had no devices")
            return
        if before is not None and before.metadata.resourceVersion == found.metadata.resourceVersion:
            return  # The watch was begun anew.
        generation = found.spec.pool.generation
        newest = max((s.spec.pool.generation for s in state.values()), default=0)
        if generation < newest:
            self._tell(f"slice {name} was written with generation {generation}, the pool is at {newest} already")
        if before is not None and before.spec == found.spec:
            self._idle[write.life] += 1
        elif before is not None and generation == newest == self._generation and _content(before) != _content(found):
            other, when = self._changed
            if other not in ("", name) and write.time - when < _TOGETHER:
                self._tell(f"slices {other} and {name} changed together, and the generation stayed {generation}")
            self._changed = name, write.time
        state[name] = found
        self._look(write.life)

    def _look(self, life: int) -> None:
        """Remember the pool where it is complete: all slices of its newest generation are there."""
        newest = max(s.spec.pool.generation for s in self._state.values())
        mine = [s for s in self._state.values() if s.spec.pool.generation == newest]
        if any(s.spec.pool.resourceSliceCount != len(mine) for s in mine):
            return
        whole = sorted(map(_content, mine))
        if self._whole and newest > self._generation and whole == self._whole:
            self._idle[life] += 1
        self._whole, self._generation = whole, newest

    def _tell(self, problem: str) -> None:
        self._problems[f"pool {self._name}: {problem}"] = None


def _content(found: v1.ResourceSlice) -> bytes:
    """Devices and counters, without taints, which come and go by themselves."""
    devices = [msgspec.structs.replace(device, taints=None) for device in found.spec.devices or ()]
    return msgspec.json.encode([devices, found.spec.sharedCounters])
