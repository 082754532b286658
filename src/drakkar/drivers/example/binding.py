"""What attaches devices that have to be attached: the controller behind the profile `binding-conditions`.

It watches claims for results of this driver that wait for :data:`ATTACHED` and says, in the status of the claim, that
the device is there. On real hardware this is where a fabric manager would be called.
"""

from __future__ import annotations

from collections.abc import Sequence

from drakkar.api.clock import Clock
from drakkar.api.kinds import RESOURCECLAIM
from drakkar.api.meta import Condition
from drakkar.api.resource import v1
from drakkar.client.cache import Cache, Caches
from drakkar.client.clock import timestamp
from drakkar.client.queue import KeyQueue
from drakkar.client.writes import Patch, Write
from drakkar.driver.claimstatus import device_status
from drakkar.drivers.example.profiles import ATTACHED, NAME


class Attacher:
    """A controller for `drakkar.client.runner`; keys are namespace and name of claims."""

    def __init__(self, clock: Clock) -> None:
        self.name = f"{NAME}-attacher"
        self._clock = clock
        self._claims: Cache | None = None

    def setup(self, caches: Caches, queue: KeyQueue) -> None:
        """Watch claims."""
        self._claims = caches.of(RESOURCECLAIM)
        self._claims.subscribe(lambda _type, _old, new: queue.add((new.metadata.namespace, new.metadata.name)))

    def reconcile(self, key: tuple[str, str]) -> Sequence[Write]:
        """Say of every device that waits that it is attached."""
        claim: v1.ResourceClaim | None = self._claims.get(*key) if self._claims is not None else None
        if claim is None or claim.status.allocation is None:
            return []
        done = {
            (entry.pool, entry.device)
            for entry in claim.status.devices or ()
            if any(condition.type == ATTACHED for condition in entry.conditions or ())
        }
        waiting = [
            result
            for result in claim.status.allocation.devices.results or ()
            if result.driver == NAME and ATTACHED in (result.bindingConditions or ())
        ]
        if all((result.pool, result.device) in done for result in waiting):
            return []
        now = timestamp(self._clock.time())
        condition = Condition(type=ATTACHED, status="True", reason="Attached", lastTransitionTime=now)
        entries = [
            v1.AllocatedDeviceStatus(
                driver=NAME, pool=r.pool, device=r.device, shareID=r.shareID, conditions=[condition]
            )
            for r in waiting
        ]
        body = device_status(claim, entries)
        return [Patch(RESOURCECLAIM, *key, body, type="apply", subresource="status")]
