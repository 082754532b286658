"""The guard: whether somebody else may give a claim the devices that they chose for it.

Nothing in the API keeps two schedulers from allocating one device to two claims. A validating webhook on
``resourceclaims/status`` does: the leader judges every allocation before it is stored, by what the watch shows and by
what is still on its way. What it allows is on its way from then on, so neither a decision of ours nor the next
question gives away the same device before the watch has shown the write.

An allowed write is conditional on the state of the claim that was asked about. So the next change of the claim on the
watch either is that write or makes it impossible; where none comes, the server has given the request up after
:data:`~drakkar.scheduler.commit.FATE`. The leader alone may judge: it alone knows its decisions (spec/groups.md 3).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from drakkar.api.clock import Clock
from drakkar.api.meta import Object
from drakkar.api.objects import key_of, uid_of
from drakkar.api.resource import v1 as resource
from drakkar.api.tree import child, text
from drakkar.scheduler.claims import same_allocation
from drakkar.scheduler.cluster import Cluster, version
from drakkar.scheduler.commit import FATE
from drakkar.scheduler.holders import Rival

#: Allocations of one claim that may be on their way at a time.
MOST_ADMITTED = 8


@dataclass(slots=True)
class _Admission:
    """An allocation that somebody may be writing just now."""

    number: int
    #: Of the state that it replaces.
    version: int
    #: Monotonic seconds.
    until: float
    allocation: resource.AllocationResult
    #: Whether the cluster counts it; one of ours is counted as decided as long as the decision stands.
    booked: bool = False


class Guard:
    """Judges allocations for one leader. ``find`` gives a claim by uid; ``freed`` is told drivers with free devices."""

    def __init__(
        self, cluster: Cluster, clock: Clock, *, find: Callable[[str], Any], freed: Callable[[set[str]], None]
    ):
        #: Set while this scheduler knows enough to judge.
        self.opened = asyncio.Event()
        #: ``allowed``, ``refused``, ``own`` → how many allocations.
        self.outcomes: Counter[str] = Counter()
        self._cluster = cluster
        self._clock = clock
        self._find = find
        self._freed = freed
        #: Claim uid → what it may be given just now.
        self._admitted: dict[str, list[_Admission]] = {}
        self._some_admitted = asyncio.Event()
        self._count = 0
        cluster.forgetting = self._forgotten

    def judge(self, request: Object) -> str:
        """Why the ``request`` of an AdmissionReview is refused; empty where it is allowed."""
        if text(request, "resource", "resource") != "resourceclaims" or request.get("subResource") != "status":
            return ""
        try:
            claim = msgspec.convert(child(request, "object"), resource.ResourceClaim)
            before = msgspec.convert(child(request, "oldObject"), resource.ResourceClaim)
        except msgspec.ValidationError as error:
            return f"the resourceclaim cannot be read: {error}"
        uid, wanted = uid_of(claim), claim.status.allocation
        if wanted is None or same_allocation(wanted, before.status.allocation):
            return ""
        known = self._cluster.claim(key_of(claim))
        if known is None or uid_of(known) != uid:
            # Nothing is booked for a claim that somebody has made up.
            self.outcomes["refused"] += 1
            return f"resourceclaim {key_of(claim)} is not known to Drakkar's leader yet; try again"
        self._expire()
        # Booked since it was decided, so nothing that was allowed since can have taken its devices.
        own = same_allocation(wanted, self._cluster.decided(uid))
        rival = None if own else self._cluster.rival(uid, wanted)
        refusal = self._told(rival) if rival is not None else ""
        if len(self._admitted.get(uid, ())) >= MOST_ADMITTED:
            refusal = refusal or f"resourceclaim {key_of(claim)} is being allocated in {MOST_ADMITTED} ways; try again"
        if refusal:
            self.outcomes["refused"] += 1
            return refusal
        self.outcomes["own" if own else "allowed"] += 1
        if not request.get("dryRun"):
            self._admit(known, version(before), wanted, booked=not own)
        return ""

    def _told(self, rival: Rival) -> str:
        claim = self._find(rival.uid)
        holder = f"resourceclaim {key_of(claim)}" if claim is not None else f"the resourceclaim with uid {rival.uid}"
        device = f"device {rival.device.device} (driver {rival.device.driver}, pool {rival.device.pool})"
        if rival.short:
            return f"too little is left of {rival.short} for {device}: {holder} has its share of it"
        if claim is not None and claim.status.allocation is None:
            return f"{device} is being given to {holder}"
        return f"{device} is held by {holder}"

    def _admit(
        self, known: resource.ResourceClaim, replaces: int, allocation: resource.AllocationResult, *, booked: bool
    ) -> None:
        uid, until = uid_of(known), self._clock.monotonic() + FATE
        if version(known) > replaces:
            # The server will find that the claim has changed, and not write.
            return
        for admission in self._admitted.get(uid, ()):
            if admission.version == replaces and same_allocation(admission.allocation, allocation):
                admission.until = until
                return
        self._count += 1
        self._admitted.setdefault(uid, []).append(_Admission(self._count, replaces, until, allocation, booked))
        if booked:
            self._cluster.admit(uid, self._count, allocation)
        self._some_admitted.set()

    def _forgotten(self, uid: str) -> None:
        """A decision of ours is void, but its write may be on its way all the same."""
        for admission in self._admitted.get(uid, ()):
            if not admission.booked:
                admission.booked = True
                self._cluster.admit(uid, admission.number, admission.allocation)

    # what has become of it

    def seen(self, claim: resource.ResourceClaim) -> None:
        """The watch shows this state of a claim, and the cluster knows it already."""
        if uid_of(claim) in self._admitted:
            self._dismiss(uid_of(claim), lambda admission: admission.version < version(claim))

    def gone(self, claim: resource.ResourceClaim) -> None:
        """The claim has been deleted."""
        if uid_of(claim) in self._admitted:
            self._dismiss(uid_of(claim), lambda _: True)

    def pending(self) -> bool:
        """Whether something that was allowed has not been seen yet."""
        return bool(self._admitted)

    def _expire(self) -> None:
        now = self._clock.monotonic()
        for uid in [*self._admitted]:
            self._dismiss(uid, lambda admission: admission.until <= now)

    def _dismiss(self, uid: str, over: Callable[[_Admission], bool]) -> None:
        ended = [admission for admission in self._admitted[uid] if over(admission)]
        left = [admission for admission in self._admitted[uid] if admission not in ended]
        if not ended:
            return
        if left:
            self._admitted[uid] = left
        else:
            del self._admitted[uid]
        booked = [admission for admission in ended if admission.booked]
        for admission in booked:
            self._cluster.dismiss(uid, admission.number)
        if booked:
            self._freed({result.driver for found in booked for result in found.allocation.devices.results or ()})

    async def run(self) -> None:
        """Forgets what nobody wrote, until cancelled."""
        while True:
            if not self._admitted:
                self._some_admitted.clear()
                await self._some_admitted.wait()
            earliest = min(admission.until for found in self._admitted.values() for admission in found)
            await self._clock.sleep(max(0.0, earliest - self._clock.monotonic()))
            self._expire()
