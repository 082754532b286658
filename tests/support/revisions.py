"""Looks at every revision of the claims on a server: whether two of them ever hold what only one can have."""

from __future__ import annotations

from collections.abc import Iterable

from drakkar.api.kinds import RESOURCECLAIM
from drakkar.api.objects import key_of, resource_version_of, uid_of
from drakkar.api.resource.v1 import AllocationResult, ResourceClaim, ResourceSlice
from drakkar.client import Client
from tests.support.checker import faults


class Revisions:
    """What claims have held, revision by revision. Names of pools have to be unique over all drivers."""

    def __init__(self, slices: Iterable[ResourceSlice] = ()):
        self.slices = [*slices]
        #: ``revision N: fault``; what lasts over several revisions is told once.
        self.faults: list[str] = []
        #: How many changes were looked at, and how many of them gave devices away.
        self.seen = self.allocations = 0
        self._held: dict[str, AllocationResult] = {}
        self._names: dict[str, str] = {}
        self._now: set[str] = set()

    def see(self, event: str, claim: ResourceClaim) -> None:
        """Takes over one event of the watch."""
        uid, allocation = uid_of(claim), claim.status.allocation if event != "DELETED" else None
        self.seen += 1
        self._names[uid] = key_of(claim)
        before = self._held.pop(uid, None)
        if allocation is not None:
            self._held[uid] = allocation
        if allocation == before:
            return
        self.allocations += allocation is not None
        found = {self._named(fault) for fault in faults(self.slices, self._held)}
        self.faults += [f"revision {resource_version_of(claim)}: {fault}" for fault in sorted(found - self._now)]
        self._now = found

    def _named(self, fault: str) -> str:
        for uid, name in self._names.items():
            fault = fault.replace(uid, name)
        return fault

    async def follow(self, client: Client, namespace: str, revision: str) -> None:
        """Watches from a revision on, until cancelled; a watch that ends by itself would have a gap and is an error."""
        events = client.watch(RESOURCECLAIM, namespace=namespace, resource_version=revision, timeout=600)
        async for event in events:
            if event.type != "BOOKMARK":
                self.see(event.type, event.object)
        raise AssertionError("the watch ended")
