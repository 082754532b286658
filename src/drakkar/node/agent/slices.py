"""ResourceSlices of drivers that are not there: removed at the agent's start, and half a minute after a driver is lost.

Slices of other nodes and of no node are nobody's business here (spec/kubelet-protocol.md section 7).
"""

from __future__ import annotations

import asyncio
import logging

from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError
from drakkar.api.kinds import RESOURCESLICE
from drakkar.client.client import Client
from drakkar.client.transport import Unreachable

logger = logging.getLogger(__name__)

#: Seconds that a driver may be away before its slices go.
PATIENCE = 30.0
_FIRST_RETRY, _LONGEST_RETRY = 1.0, 300.0


class Slices:
    """Wipes the slices of one node."""

    def __init__(self, client: Client, clock: Clock, node: str, *, patience: float = PATIENCE):
        self._client = client
        self._clock = clock
        self._node = node
        self._patience = patience
        self._timers: dict[str, asyncio.Task[None]] = {}

    def usable(self, driver: str, usable: bool) -> None:
        """A driver can be called, or cannot any more."""
        if usable:
            timer = self._timers.pop(driver, None)
            if timer is not None:
                timer.cancel()
        elif driver not in self._timers:
            self._timers[driver] = asyncio.create_task(self._wipe_later(driver), name=f"wipe-{driver}")

    async def wipe(self, driver: str = "") -> None:
        """Delete the node's slices, of one driver or of all; tried until it works."""
        selector = f"spec.nodeName={self._node}" + (f",spec.driver={driver}" if driver else "")
        pause = _FIRST_RETRY
        while True:
            try:
                await self._client.send("DELETE", RESOURCESLICE.path(), {"fieldSelector": selector})
                return
            except (ApiError, Unreachable) as error:
                logger.warning("slices %s not deleted: %s", selector, error)
            await self._clock.sleep(pause)
            pause = min(pause * 2, _LONGEST_RETRY)

    async def _wipe_later(self, driver: str) -> None:
        await self._clock.sleep(self._patience)
        logger.info("driver %s has been away for %g s: its slices are removed", driver, self._patience)
        await self.wipe(driver)
        self._timers.pop(driver, None)

    async def close(self) -> None:
        """Stop all timers."""
        timers = list(self._timers.values())
        for timer in timers:
            timer.cancel()
        await asyncio.gather(*timers, return_exceptions=True)
