"""One of several replicas at work: election over a Lease.

Who holds the lease writes it anew every few seconds; who does not, watches how long the
record stays the same on its own clock, so clocks need not agree. A leader that cannot renew
stops its work before anybody else can take over. A paused process may still act late: writers
therefore check their preconditions all the same (see `drakkar.scheduler.commit`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError
from drakkar.api.kinds import LEASE
from drakkar.client.client import Client
from drakkar.client.clock import timestamp
from drakkar.client.transport import Unreachable

logger = logging.getLogger(__name__)

#: Seconds after which what keeps a replica from its lease is said again.
REMIND = 60.0
#: Seconds: after how long without renewal others take over; when the leader itself gives up; between attempts.
LEASE_DURATION, RENEW_DEADLINE, RETRY_PERIOD = 15.0, 10.0, 2.0


class Election:
    """A candidate for the lease ``namespace/name``; ``identity`` is unique among the replicas."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        name: str,
        identity: str,
        *,
        namespace: str = "kube-system",
        lease_duration: float = LEASE_DURATION,
        renew_deadline: float = RENEW_DEADLINE,
        retry_period: float = RETRY_PERIOD,
    ):
        self.leads = asyncio.Event()
        self._client = client
        self._clock = clock
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._lease_duration = lease_duration
        self._renew_deadline = renew_deadline
        self._retry_period = retry_period
        #: The record as last seen, and when (monotonic) it was first seen so.
        self._record: dict[str, Any] = {}
        self._since = 0.0
        #: Monotonic; when the last attempt was begun that took or renewed the lease.
        self._renewed = 0.0
        #: What went wrong the last time, and when that was said (monotonic).
        self._said, self._said_at = "", 0.0

    def is_sure(self) -> bool:
        """Whether nobody else can lead just now: also right in a process that has been stopped for a while."""
        return self.leads.is_set() and self._rest() > 0

    async def run(self, work: Callable[[], Awaitable[None]], lost: Callable[[], None] = lambda: None) -> None:
        """Does ``work`` whenever it leads, until ``work`` ends by itself or this is cancelled.

        ``lost`` is called when it has led and does so no longer.
        """
        while True:
            while not await self._attempt(self._renew_deadline / 2):
                await self._clock.sleep(self._pause())
            logger.info("%s leads %s/%s", self._identity, self._namespace, self._name)
            if await self._lead(work):
                return
            logger.warning("%s lost the lease %s/%s", self._identity, self._namespace, self._name)
            lost()

    def _pause(self) -> float:
        """Seconds until another look at a lease of somebody else's: often, and when it runs out, so that
        hardly more than its duration passes between the last sign of a leader and the next one's first.
        """
        rest = self._since + self._patience(self._record) - self._clock.monotonic()
        pause = self._retry_period / 4
        return min(pause, rest) if self._record.get("holderIdentity") and rest > 0 else pause

    def _patience(self, record: dict[str, Any]) -> float:
        return float(record.get("leaseDurationSeconds") or self._lease_duration)

    async def _lead(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Works while the lease is renewed; answers whether the work ended by itself."""
        self.leads.set()
        working = asyncio.ensure_future(work())
        renewing = asyncio.create_task(self._renew(), name=f"lease-{self._name}")
        try:
            await asyncio.wait((working, renewing), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return True
            return False
        finally:
            self.leads.clear()
            lost = renewing.done()
            for task in (working, renewing):
                task.cancel()
            await asyncio.gather(working, renewing, return_exceptions=True)
            if not lost:
                await self._step_down()

    async def _renew(self) -> None:
        """Renews until that has not worked for too long: nobody else may lead before."""
        while (rest := self._rest()) > 0:
            await self._clock.sleep(min(self._retry_period, rest))
            rest = self._rest()
            # One answer that does not come must not cost the whole term.
            if rest > 0 and await self._attempt(min(rest, self._renew_deadline / 2)):
                continue
            if self._record.get("holderIdentity") not in (None, self._identity):
                return

    def _rest(self) -> float:
        """Seconds until this one has to give up unless it renews."""
        return self._renewed + self._renew_deadline - self._clock.monotonic()

    async def _attempt(self, wait: float) -> bool:
        """Takes or renews the lease within ``wait`` seconds; a success counts from the time at which it was begun.

        False when somebody else has it, or the server cannot be asked.
        """
        started = self._clock.monotonic()
        try:
            async with asyncio.timeout(wait):
                taken = await self._take()
        except TimeoutError:
            self._say("no answer in time")
            return False
        if taken:
            self._renewed, self._said = started, ""
        return taken

    def _say(self, problem: str) -> None:
        """Logs why an attempt failed, once for what goes on: there are several attempts a second."""
        now = self._clock.monotonic()
        if problem != self._said or now - self._said_at >= REMIND:
            self._said, self._said_at = problem, now
            logger.info("lease %s/%s: %s", self._namespace, self._name, problem)

    async def _take(self) -> bool:
        try:
            try:
                lease: dict[str, Any] = await self._client.get(LEASE, self._name, self._namespace)
            except ApiError as error:
                if error.code != 404:
                    raise
                metadata = {"name": self._name, "namespace": self._namespace}
                await self._client.create(LEASE, {"metadata": metadata, "spec": (mine := self._mine({}))})
                self._record = mine
                return True
            spec = lease.get("spec") or {}
            if spec != self._record:
                self._record, self._since = spec, self._clock.monotonic()
            holder = spec.get("holderIdentity")
            silent = self._clock.monotonic() - self._since
            if holder and holder != self._identity and silent < self._patience(spec):
                self._said = ""
                return False
            metadata = {"resourceVersion": lease["metadata"]["resourceVersion"]}
            mine = self._mine(spec)
            await self._client.patch(LEASE, self._name, self._namespace, {"metadata": metadata, "spec": mine})
            # Until the next look this is the record: an old one would say of a failed look that others hold it.
            self._record = mine
            return True
        except (ApiError, Unreachable) as error:
            self._say(str(error))
            return False

    def _mine(self, before: dict[str, Any]) -> dict[str, Any]:
        now = timestamp(self._clock.time(), micro=True)
        took_over = before.get("holderIdentity") != self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._lease_duration)),
            "acquireTime": now if took_over else before.get("acquireTime", now),
            "renewTime": now,
            "leaseTransitions": (before.get("leaseTransitions") or 0) + (1 if took_over and before else 0),
        }

    async def _step_down(self) -> None:
        """Frees the lease at a regular end, so that the next leader need not wait."""
        try:
            async with asyncio.timeout(self._renew_deadline / 2):
                await self._free()
        except TimeoutError:
            logger.info("lease %s/%s was not freed: no answer", self._namespace, self._name)

    async def _free(self) -> None:
        try:
            lease: dict[str, Any] = await self._client.get(LEASE, self._name, self._namespace)
            if (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                metadata = {"resourceVersion": lease["metadata"]["resourceVersion"]}
                body = {"metadata": metadata, "spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
                await self._client.patch(LEASE, self._name, self._namespace, body)
        except (ApiError, Unreachable) as error:
            logger.info("lease %s/%s was not freed: %s", self._namespace, self._name, error)
