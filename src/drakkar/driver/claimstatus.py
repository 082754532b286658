"""What a driver says about devices in use, in the status of their claims.

Server-side apply with a field manager per driver and node: nodes that share a claim, and other drivers, keep theirs.
Source: ResourceClaim `status.devices` (spec/api.md 6.3).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec

from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError
from drakkar.api.kinds import RESOURCECLAIM
from drakkar.api.meta import Condition, Object
from drakkar.api.resource import v1
from drakkar.client import Client
from drakkar.client.clock import timestamp
from drakkar.client.transport import Unreachable
from drakkar.driver.driver import Health
from drakkar.driver.prepare import Preparer
from drakkar.plugin.checkpoint import PreparedDevice, Record

logger = logging.getLogger(__name__)

#: Condition of a device in use: False for Degraded and Unhealthy, the reason is the state.
HEALTHY = "Healthy"
#: Attributes of a sick device in its metadata file.
STATE_ATTRIBUTE, MESSAGE_ATTRIBUTE = "drakkar.dev/health", "drakkar.dev/healthMessage"
#: Longest name of a field manager.
LONGEST_MANAGER = 128

_Key = tuple[str, str, str | None]


class ClaimStatus:
    """Writes entries of `status.devices` for one driver on one node."""

    def __init__(self, driver: str, node: str, client: Client, clock: Clock) -> None:
        self._driver = driver
        self._manager = f"{driver}-{node}"[:LONGEST_MANAGER]
        self._client = client
        self._clock = clock
        self._lock = asyncio.Lock()
        # What the holders of a device were told last, by claim UID, pool and device; None: not looked at yet.
        self._told: dict[tuple[str, str, str], Health] = {}

    async def write(self, claim: v1.ResourceClaim, entries: Sequence[v1.AllocatedDeviceStatus]) -> None:
        """Set these entries and keep the driver's others of this node. Raises ApiError, Unreachable."""
        now = timestamp(self._clock.time())
        mine = {_key(entry): _timed(entry, now) for entry in entries}
        async with self._lock:
            await self._client.patch(
                RESOURCECLAIM,
                claim.metadata.name,
                claim.metadata.namespace,
                device_status(claim, [*mine.values()]),
                type="apply",
                subresource="status",
                field_manager=self._manager,
                force=True,
            )

    async def tell_holders(self, preparer: Preparer, health: Callable[[str, str], Health]) -> None:
        """Bring claims and metadata files in line with the health of their devices; what fails is tried next time."""
        known: set[tuple[str, str, str]] = set()
        for uid, record in preparer.prepared().items():
            keys = {(uid, device.poolName, device.deviceName) for device in record.devices}
            known |= keys
            if uid in preparer.untold:
                # Whoever was told nothing takes devices for healthy; nothing has to be read to know that.
                preparer.untold.discard(uid)
                for key in keys:
                    self._told.setdefault(key, Health("Healthy"))
            news = [
                device
                for device in record.devices
                if self._told.get((uid, device.poolName, device.deviceName))
                != health(device.poolName, device.deviceName)
            ]
            if not news:
                continue
            try:
                await self._tell(preparer, record, news, health)
            except (ApiError, Unreachable, OSError) as error:
                if isinstance(error, ApiError) and error.code == 404:
                    continue  # It is about to be unprepared.
                name = f"{record.claimNamespace}/{record.claimName}"
                logger.warning("claim %s is not told how its devices are: %s", name, error)
                continue
            self._told |= {
                (uid, device.poolName, device.deviceName): health(device.poolName, device.deviceName)
                for device in record.devices
            }
        self._told = {key: value for key, value in self._told.items() if key in known}

    async def _tell(
        self,
        preparer: Preparer,
        record: Record,
        devices: Sequence[PreparedDevice],
        health: Callable[[str, str], Health],
    ) -> None:
        claim: v1.ResourceClaim = await self._client.get(RESOURCECLAIM, record.claimName, record.claimNamespace)
        if claim.metadata.uid != record.claimUID or claim.status.allocation is None:
            return
        ours = {(device.poolName, device.deviceName, device.shareID) for device in record.devices}
        entries = {
            _key(entry): entry
            for entry in claim.status.devices or ()
            if entry.driver == self._driver and _key(entry) in ours
        }
        changed = False
        for device in devices:
            key = (device.poolName, device.deviceName, device.shareID)
            state = health(device.poolName, device.deviceName)
            entry = entries.get(key) or v1.AllocatedDeviceStatus(
                driver=self._driver, pool=key[0], device=key[1], shareID=key[2]
            )
            said = next((c for c in entry.conditions or () if c.type == HEALTHY), None)
            if said is None and state.state == "Healthy":
                continue  # Nobody was ever told otherwise.
            new = _condition(state, said, timestamp(self._clock.time()))
            if new == said:
                continue
            others = [c for c in entry.conditions or () if c.type != HEALTHY]
            entries[key] = msgspec.structs.replace(entry, conditions=[*others, new])
            changed = True
            sick = state.state != "Healthy"
            await asyncio.to_thread(
                preparer.metadata.update,
                record.claimNamespace,
                record.claimName,
                device.poolName,
                device.deviceName,
                {
                    STATE_ATTRIBUTE: {"string": state.state} if sick else None,
                    MESSAGE_ATTRIBUTE: {"string": state.message[:64]} if sick and state.message else None,
                },
            )
        if changed:
            await self.write(claim, [*entries.values()])


def device_status(claim: v1.ResourceClaim, entries: Sequence[v1.AllocatedDeviceStatus]) -> Object:
    """What a driver applies to the status of exactly this claim: its entries of `status.devices`."""
    return {
        "apiVersion": v1.API_VERSION,
        "kind": "ResourceClaim",
        "metadata": {
            "name": claim.metadata.name,
            "namespace": claim.metadata.namespace,
            "uid": claim.metadata.uid,
        },
        "status": {"devices": [msgspec.to_builtins(entry) for entry in entries]},
    }


def _condition(health: Health, before: Condition | None, now: str) -> Condition:
    status = {"Healthy": "True", "Unknown": "Unknown"}.get(health.state, "False")
    since = before.lastTransitionTime if before is not None and before.status == status else now
    return Condition(type=HEALTHY, status=status, lastTransitionTime=since, reason=health.state, message=health.message)


def _timed(entry: v1.AllocatedDeviceStatus, now: str) -> v1.AllocatedDeviceStatus:
    conditions = [c if c.lastTransitionTime else msgspec.structs.replace(c, lastTransitionTime=now)
                  for c in entry.conditions or ()]  # fmt: skip
    return msgspec.structs.replace(entry, conditions=conditions or None)


def _key(entry: v1.AllocatedDeviceStatus) -> _Key:
    return entry.pool, entry.device, entry.shareID
