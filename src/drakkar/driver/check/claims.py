"""The claims that the kit tries a driver with, and whether an answer is the one that a claim asks for."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from drakkar.api.errors import ApiError
from drakkar.api.kinds import NAMESPACE, RESOURCECLAIM
from drakkar.api.meta import Object
from drakkar.api.resource import v1
from drakkar.client import Client
from drakkar.plugin import wire

#: A driver that is somebody else's, in claims of several drivers.
OTHER_DRIVER = "other.drakkar.dev"
#: Label of a namespace whose claims may have admin access.
_ADMIN_LABEL = "resource.kubernetes.io/admin-access"
#: Pool, device and share.
Key = tuple[str, str, str | None]


@dataclass(frozen=True, slots=True)
class Wish:
    """A device for a claim; `request` is `r0`, `r1` … by place unless named, with `/sub` for an alternative."""

    pool: str
    device: str
    request: str = ""
    driver: str = ""
    admin: bool = False


@dataclass(slots=True)
class Claims:
    """Makes claims in a namespace of its own, already allocated, and remembers what each was given."""

    client: Client
    namespace: str
    node_name: str
    driver: str
    #: Devices as they were published last, by pool and name.
    described: Mapping[tuple[str, str], v1.Device] = field(default_factory=dict[tuple[str, str], v1.Device])
    #: Claim → device of the driver → its main request.
    wanted: dict[wire.Claim, dict[Key, str]] = field(default_factory=dict[wire.Claim, dict[Key, str]])
    _count: int = 0

    async def make(
        self,
        wishes: Sequence[Wish],
        *,
        config: Object | None = None,
        foreign: Object | None = None,
        allocated: bool = True,
        name: str = "",
    ) -> wire.Claim:
        """A claim of these devices. `config` are parameters for the driver, `foreign` for another one."""
        wishes = [
            Wish(w.pool, w.device, w.request or f"r{i}", w.driver or self.driver, w.admin) for i, w in enumerate(wishes)
        ]
        if not self._count:
            await self._make_namespace()
        self._count += 1
        name = name or f"claim-{self._count}"
        made = await self.client.create(
            RESOURCECLAIM,
            {
                "apiVersion": v1.API_VERSION,
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"devices": {"requests": self._requests(wishes)}},
            },
        )
        results = [self._result(wish) for wish in wishes]
        if allocated:
            body = {"status": {"allocation": self._allocation(results, config, foreign)}}
            await self.client.patch(RESOURCECLAIM, name, self.namespace, body, subresource="status")
        claim = wire.Claim(self.namespace, made.metadata.uid, name)
        self.wanted[claim] = {
            (result["pool"], result["device"], result.get("shareID")): result["request"].partition("/")[0]
            for result in results
            if result["driver"] == self.driver
        }
        return claim

    async def forget(self, claim: wire.Claim) -> None:
        """Delete a claim for good."""
        self.wanted.pop(claim, None)
        body = {"status": {"allocation": None}}
        with contextlib.suppress(ApiError):
            await self.client.patch(RESOURCECLAIM, claim.name, claim.namespace, body, subresource="status")
        with contextlib.suppress(ApiError):
            await self.client.delete(RESOURCECLAIM, claim.name, claim.namespace)

    async def close(self) -> None:
        """Remove the namespace."""
        if self._count:
            with contextlib.suppress(ApiError):
                await self.client.delete(NAMESPACE, self.namespace)

    async def _make_namespace(self) -> None:
        metadata = {"name": self.namespace, "labels": {_ADMIN_LABEL: "true"}}
        with contextlib.suppress(ApiError):
            await self.client.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    def _requests(self, wishes: Sequence[Wish]) -> list[Object]:
        requests: dict[str, Object] = {}
        for wish in wishes or [Wish("", "", "r0")]:
            main, _, sub = wish.request.partition("/")
            exactly: Object = {"deviceClassName": self.driver, **({"adminAccess": True} if wish.admin else {})}
            if sub:
                requests[main] = {"name": main, "firstAvailable": [{"name": sub, "deviceClassName": self.driver}]}
            elif main in requests:
                requests[main]["exactly"]["count"] = requests[main]["exactly"].get("count", 1) + 1
            else:
                requests[main] = {"name": main, "exactly": exactly}
        return [*requests.values()]

    def _result(self, wish: Wish) -> dict[str, Any]:
        return {
            "request": wish.request,
            "driver": wish.driver,
            "pool": wish.pool,
            "device": wish.device,
            **({"adminAccess": True} if wish.admin else {}),
            **(self._share(wish.pool, wish.device) if wish.driver == self.driver else {}),
        }

    def _allocation(self, results: list[dict[str, Any]], config: Object | None, foreign: Object | None) -> Object:
        allocation: Object = {"devices": {"results": results}}
        configs = [
            {"source": "FromClaim", "opaque": {"driver": driver, "parameters": parameters}}
            for driver, parameters in ((self.driver, config), (OTHER_DRIVER, foreign))
            if parameters is not None
        ]
        if configs:
            allocation["devices"]["config"] = configs
        if self.node_name:
            selected = {"key": "metadata.name", "operator": "In", "values": [self.node_name]}
            allocation["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [selected]}]}
        return allocation

    def _share(self, pool: str, name: str) -> Object:
        """What a result says of a device that several claims may have: as much as who asks for nothing gets."""
        device = self.described.get((pool, name))
        if device is None or not device.allowMultipleAllocations:
            return {}
        consumed = {
            key: (capacity.requestPolicy.default if capacity.requestPolicy else None) or capacity.value
            for key, capacity in (device.capacity or {}).items()
        }
        return {"shareID": str(uuid.uuid4()), **({"consumedCapacity": consumed} if consumed else {})}


def judge_answer(wanted: Mapping[Key, str], devices: Sequence[wire.Device], *, shares: bool = True) -> list[str]:
    """What is wrong with a driver's answer for a claim of these devices; `shares`: the protocol knows share ids."""
    if not shares:
        wanted = {(pool, name, None): request for (pool, name, _), request in wanted.items()}
    problems: list[str] = []
    seen: set[Key] = set()
    for device in devices:
        key = (device.pool_name, device.device_name, device.share_id if shares else None)
        seen.add(key)
        request = wanted.get(key)
        if request is None:
            problems.append(_unknown(key, wanted))
        elif device.request_names and request not in device.request_names:
            names = ", ".join(device.request_names)
            problems.append(f"device {named(key)} is for request {request}, the answer says {names}")
        elif strange := [name for name in device.request_names if name not in wanted.values()]:
            problems.append(f"device {named(key)}: the claim has no request {', '.join(strange)}")
    missing = [named(key) for key in wanted if key not in seen]
    if missing:
        problems.append(f"the answer lacks {', '.join(missing)}")
    return problems


def _unknown(key: Key, wanted: Mapping[Key, str]) -> str:
    pool, name, share = key
    for other in wanted:
        if other[:2] == (pool, name):
            return f"device {pool}/{name}: the share id is {other[2] or 'none'}, the answer says {share or 'none'}"
    return f"the answer names {named(key)}, the claim was given {', '.join(map(named, wanted)) or 'nothing'}"


def named(key: Key) -> str:
    """A device in words."""
    pool, name, share = key
    return f"{pool}/{name}" + (f" (share {share})" if share else "")


def same_answer(left: wire.NodePrepareResourceResponse, right: wire.NodePrepareResourceResponse) -> bool:
    """Whether two answers say the same; the order of devices and names is nobody's business."""
    return left.error == right.error and _canonical(left.devices) == _canonical(right.devices)


def _canonical(devices: Sequence[wire.Device]) -> list[tuple[object, ...]]:
    return sorted(
        (d.pool_name, d.device_name, d.share_id or "", sorted(d.request_names), sorted(d.cdi_device_ids))
        for d in devices
    )


def shown(answer: wire.NodePrepareResourceResponse) -> str:
    """An answer in few words."""
    if answer.error:
        return f"error {answer.error!r}"
    return ", ".join(
        f"{d.pool_name}/{d.device_name} for {'+'.join(d.request_names) or 'all'} by {' '.join(d.cdi_device_ids) or '-'}"
        for d in answer.devices
    )
