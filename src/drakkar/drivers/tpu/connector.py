"""Switches the fabric for claims, before their pods are bound.

Devices carry the binding condition :data:`LINKED`; a scheduler waits for it, and takes other devices where
:data:`UNLINKABLE` is reported (KEP-5007). What the fabric says it has linked is the only record, so that a controller
started anew undoes what claims that are gone have left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from drakkar.api.clock import Clock
from drakkar.api.kinds import RESOURCECLAIM
from drakkar.api.meta import Condition
from drakkar.api.names import TPU_DRIVER
from drakkar.api.resource import v1
from drakkar.client.cache import Cache, Caches
from drakkar.client.clock import timestamp
from drakkar.client.queue import KeyQueue
from drakkar.client.writes import After, Patch, Write
from drakkar.driver.claimstatus import device_status
from drakkar.drivers.tpu.fabric import Fabric, FabricError, Wiring, key_of, neighbours
from drakkar.drivers.tpu.shapes import LINKED, UNLINKABLE, Host, area_of

logger = logging.getLogger(__name__)

#: Key that is not a claim's: compare the fabric with all claims.
_SWEEP = ("", "")
#: Seconds after which a switch that failed to undo links is asked again.
_AGAIN = 10.0

#: Hosts of a TPU pod by place, as its slices tell.
Grid = Callable[[str], Mapping[tuple[int, int], Host]]


class Connector:
    """A controller for `drakkar.client.runner`; keys are namespace and name of claims."""

    def __init__(self, fabric: Fabric, grid: Grid, clock: Clock) -> None:
        self.name = f"{TPU_DRIVER}-links"
        self._fabric = fabric
        self._grid = grid
        self._clock = clock
        self._claims: Cache | None = None
        # What the fabric has linked; None until it has been asked.
        self._linked: dict[str, Wiring] | None = None
        # One change of the fabric at a time: a host must be free before it is linked anew.
        self._lock = asyncio.Lock()

    def setup(self, caches: Caches, queue: KeyQueue) -> None:
        """Watch claims."""
        self._claims = caches.of(RESOURCECLAIM, indexes={"linked": _keys})
        self._claims.subscribe(lambda _type, _old, new: queue.add((new.metadata.namespace, new.metadata.name)))
        queue.add(_SWEEP)

    async def reconcile(self, key: tuple[str, str]) -> Sequence[Write]:
        """Undo what nobody has any more, link what the claim has, and say in its status what came of it."""
        assert self._claims is not None
        claim: v1.ResourceClaim | None = self._claims.get(*key)
        async with self._lock:
            undone = await self._undo()
            entries = await self._link(claim) if claim is not None else []
        writes: list[Write] = [] if undone else [After(_AGAIN)]
        if claim is not None and entries:
            body = device_status(claim, entries)
            writes.append(Patch(RESOURCECLAIM, key[0], key[1], body, type="apply", subresource="status"))
        return writes

    async def _undo(self) -> bool:
        """Disconnect what no claim has; whether nothing is left of it."""
        assert self._claims is not None
        try:
            if self._linked is None:
                self._linked = dict(await asyncio.to_thread(self._fabric.connected))
            for gone in [wiring for key, wiring in self._linked.items() if not self._claims.by("linked", key)]:
                await asyncio.to_thread(self._fabric.disconnect, gone)
                del self._linked[gone.key]
                logger.info("device %s of TPU pod %s is unlinked: claim %s is gone", gone.device, gone.pod, gone.claim)
        except FabricError as error:
            logger.error("links of devices that nobody uses are still there: %s", error)
            return False
        return True

    async def _link(self, claim: v1.ResourceClaim) -> list[v1.AllocatedDeviceStatus]:
        """Link the claim's devices; the entries of its status, none where they are as they should be."""
        told = {
            (entry.pool, entry.device): {condition.type for condition in entry.conditions or ()}
            for entry in claim.status.devices or ()
            if entry.driver == TPU_DRIVER
        }
        entries: list[v1.AllocatedDeviceStatus] = []
        news = False
        for result in _ours(claim):
            condition = await self._condition(claim, result)
            news = news or condition.type not in told.get((result.pool, result.device), ())
            entries.append(
                v1.AllocatedDeviceStatus(
                    driver=TPU_DRIVER, pool=result.pool, device=result.device, conditions=[condition]
                )
            )
        return entries if news else []

    async def _condition(self, claim: v1.ResourceClaim, result: v1.DeviceRequestAllocationResult) -> Condition:
        now = timestamp(self._clock.time())
        try:
            wiring = wiring_of(claim.metadata.uid, result, self._grid(result.pool))
            if self._linked is None:
                raise FabricError("the fabric does not say what is linked")
            if wiring.key not in self._linked:
                await asyncio.to_thread(self._fabric.connect, wiring)
                self._linked[wiring.key] = wiring
                logger.info("device %s of TPU pod %s is linked", result.device, result.pool)
        except FabricError as error:
            logger.error("device %s of TPU pod %s is not linked: %s", result.device, result.pool, error)
            return Condition(
                type=UNLINKABLE, status="True", reason="FabricError", message=str(error), lastTransitionTime=now
            )
        return Condition(type=LINKED, status="True", reason="Linked", lastTransitionTime=now)


def wiring_of(claim: str, result: v1.DeviceRequestAllocationResult, grid: Mapping[tuple[int, int], Host]) -> Wiring:
    """The links of an allocated device, by the places of its hosts. Raises FabricError when a place is empty."""
    area = area_of(result.device)
    if area is None:
        raise FabricError(f"device {result.device} is not one of this driver's")
    like = next(iter(grid.values()), None)
    rows = [[grid.get(place) for place in row] for row in area.rows(like)] if like is not None else [[None]]
    names = [[host.hostname for host in row if host is not None] for row in rows]
    if any(host is None for row in rows for host in row):
        raise FabricError(f"TPU pod {result.pool} has not all hosts of {result.device} any more")
    hosts = [host for row in names for host in row]
    return Wiring(claim=claim, pod=result.pool, device=result.device, hosts=hosts, links=neighbours(names))


def _ours(claim: v1.ResourceClaim) -> list[v1.DeviceRequestAllocationResult]:
    """Devices of the claim that have to be linked."""
    results = claim.status.allocation.devices.results if claim.status.allocation else None
    return [
        result for result in results or () if result.driver == TPU_DRIVER and LINKED in (result.bindingConditions or ())
    ]


def _keys(claim: v1.ResourceClaim) -> list[str]:
    return [key_of(claim.metadata.uid, result.pool, result.device) for result in _ours(claim)]
