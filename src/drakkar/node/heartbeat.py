"""Renews the leases of many nodes with one task and one heap of due times.

A node whose own lease has run out, because the process was stopped, the machine slept or the
server was away, is not renewed: others may have given its pods away. It is handed to
``expired`` instead, which makes it look at its pods first and then join again.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError
from drakkar.api.kinds import LEASE, NAMESPACE, NODE
from drakkar.api.meta import Object
from drakkar.api.names import NODE_LEASE_NAMESPACE
from drakkar.api.objects import owner_reference
from drakkar.client.client import Client
from drakkar.client.clock import timestamp
from drakkar.client.transport import Unreachable

logger = logging.getLogger(__name__)

#: Renewals under way at the same time.
CONCURRENCY = 16
#: Pause before a failed renewal is tried again, in seconds; longer for many nodes, but never longer than the period.
RETRY = 0.5
#: What a server in trouble is asked per second at most by all nodes of a process together, where their number allows.
RETRIES = 64
#: An answer is waited for as long as a period, or this many seconds where that is longer: a renewal that nobody
#: answers must not cost the lease.
SHORTEST_WAIT = 1.0


@dataclass(slots=True, eq=False)
class Beat:
    """One node's lease. ``live``: may be renewed; ``renewed``: monotonic time of the last renewal."""

    name: str
    live: bool = False
    renewed: float = field(default=float("-inf"))
    #: The Node that owns the lease, until the lease exists.
    owner: Object | None = None
    queued: bool = False
    #: The last renewal failed, and the log says so.
    missed: bool = False


class Heartbeats:
    """Times are in seconds: a lease lasts ``duration`` and is renewed every ``period``."""

    def __init__(
        self, client: Client, clock: Clock, *, period: float, duration: float, expired: Callable[[Beat], None]
    ):
        self._client = client
        self._clock = clock
        self._period = period
        self._duration = duration
        self._expired = expired
        self._due: list[tuple[float, int, Beat]] = []
        self._count = 0
        self._changed = asyncio.Event()
        self._slots = asyncio.Semaphore(CONCURRENCY)

    def is_current(self, beat: Beat) -> bool:
        """Whether the node holds its lease now, as far as it can know."""
        return beat.live and self._clock.monotonic() - beat.renewed < self._duration

    async def join(self, beat: Beat, node: Object) -> None:
        """Renews at once, whatever happened before, and from then on every period; raises what the server says."""
        beat.owner = node
        await self._renew(beat, max(self._period, SHORTEST_WAIT))
        beat.live = True
        if not beat.queued:
            beat.queued = True
            # Nodes that join together must not all renew together for ever: spread by name, not by chance.
            self._push(beat, self._period * (0.5 + sum(beat.name.encode()) % 64 / 128))

    async def run(self) -> None:
        """Renews until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                now = self._clock.monotonic()
                while self._due and self._due[0][0] <= now:
                    beat = heapq.heappop(self._due)[2]
                    beat.queued = False
                    if beat.live:
                        group.create_task(self._beat(beat), name=f"lease-{beat.name}")
                await self._sleep()

    async def _sleep(self) -> None:
        if not self._due:
            await self._changed.wait()
            return
        seconds = max(0.0, self._due[0][0] - self._clock.monotonic())
        sleep = asyncio.create_task(self._clock.sleep(seconds), name="lease-timer")
        changed = asyncio.create_task(self._changed.wait(), name="lease-changed")
        try:
            await asyncio.wait((sleep, changed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            changed.cancel()

    def _push(self, beat: Beat, seconds: float) -> None:
        self._count += 1
        heapq.heappush(self._due, (self._clock.monotonic() + seconds, self._count, beat))
        self._changed.set()

    async def _beat(self, beat: Beat) -> None:
        async with self._slots:
            if not beat.live:
                return
            if not self.is_current(beat):
                logger.info("node %s: its lease ran out; it looks at its pods before it joins again", beat.name)
                beat.live = False
                self._expired(beat)
                return
            pause = self._period
            rest = beat.renewed + self._duration - self._clock.monotonic()
            try:
                await self._renew(beat, min(max(self._period, SHORTEST_WAIT), rest))
            except (ApiError, Unreachable) as error:
                # Said once: a server that is away for an hour would fill the log with two lines a second.
                logger.log(
                    logging.DEBUG if beat.missed else logging.INFO,
                    "node %s: lease not renewed, tried again until it is: %s",
                    beat.name,
                    error,
                )
                beat.missed = True
                pause = min(max(RETRY, len(self._due) / RETRIES), self._period)
            else:
                if beat.missed:
                    logger.info("node %s: lease renewed again", beat.name)
                beat.missed = False
            if beat.live and not beat.queued:
                beat.queued = True
                self._push(beat, pause)

    async def _renew(self, beat: Beat, wait: float) -> None:
        """One renewal, answered within ``wait`` seconds; it counts from when it was sent."""
        sent = self._clock.monotonic()
        try:
            async with asyncio.timeout(wait):
                await self._write(beat)
        except TimeoutError as error:
            raise Unreachable(f"no answer within {wait:.1f} s") from error
        beat.renewed = sent

    async def _write(self, beat: Beat) -> None:
        spec: Object = {
            "renewTime": timestamp(self._clock.time(), micro=True),
            "holderIdentity": beat.name,
            "leaseDurationSeconds": max(1, round(self._duration)),
        }
        try:
            await self._client.patch(LEASE, beat.name, NODE_LEASE_NAMESPACE, {"spec": spec})
        except ApiError as error:
            if error.code != 404:
                raise
            await self._create(beat, spec)

    async def _create(self, beat: Beat, spec: Object) -> None:
        metadata: Object = {"name": beat.name, "namespace": NODE_LEASE_NAMESPACE}
        if beat.owner is not None:
            metadata["ownerReferences"] = [owner_reference(NODE, beat.owner, controller=False, block=False)]
        obj = {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}
        try:
            await self._client.create(LEASE, obj)
        except ApiError as error:
            if error.code != 404:
                raise
            # A server that has just been born has no namespace for leases yet.
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NODE_LEASE_NAMESPACE}}
            try:
                await self._client.create(NAMESPACE, namespace)
            except ApiError as exists:
                if exists.code != 409:
                    raise
            await self._client.create(LEASE, obj)
