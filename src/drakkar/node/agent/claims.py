"""Claims on this node: prepared before a pod's containers start, unprepared when its last pod here has ended.

What was asked of drivers stands on disk before they are asked, one small file per claim (`drakkar.plugin.checkpoint`),
so that after a crash, or when the claim or the driver's objects are gone, everything that may have been prepared is
unprepared (spec/kubelet-protocol.md sections 3 to 5).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from drakkar.api.errors import ApiError
from drakkar.api.kinds import RESOURCECLAIM
from drakkar.api.meta import Object
from drakkar.api.names import POD_CLAIM_NAME
from drakkar.api.objects import controller_of, key_of, namespace_of, pod_claim_names, uid_of
from drakkar.api.resource import v1
from drakkar.api.tree import children, text
from drakkar.client.client import Client
from drakkar.node.agent.plugins import Plugins
from drakkar.plugin import wire
from drakkar.plugin.checkpoint import Checkpoints, PreparedDevice, Record, Torn
from drakkar.plugin.failpoints import hit
from drakkar.plugin.files import Lasts
from drakkar.plugin.grpc_client import PluginError

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Records that are written at the same time; a journal takes several in one go.
_WRITERS = 16
_PREPARE, _UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"


class ClaimProblem(Exception):
    """A pod's claims cannot be prepared or unprepared now; the message goes into an event."""


class _OnNode(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent keeps of a claim beyond the driver-neutral record. ``skipped``: drivers that are not called."""

    pods: list[str]
    drivers: dict[str, list[PreparedDevice]]
    skipped: list[str] = []


@dataclass(frozen=True, slots=True)
class DeviceOnNode:
    """A prepared device, as pods and statuses show it."""

    driver: str
    device: PreparedDevice

    @property
    def resource_id(self) -> str:
        """Its name in a pod's status: its first CDI id, else where it is."""
        ids = self.device.cdiDeviceIDs
        return ids[0] if ids else f"{self.driver}/{self.device.poolName}/{self.device.deviceName}"


class Claims:
    """All claims of a node. ``checkpoints`` is a folder of the agent's own."""

    def __init__(self, client: Client, plugins: Plugins, checkpoints: Checkpoints):
        self._client = client
        self._plugins = plugins
        self._checkpoints = checkpoints
        self._records: dict[str, Record] = {}
        #: Claims that have been prepared since the machine was started; after that, drivers are asked again.
        self._fresh: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = {}
        # Of their own, so that records wait for the disk only, and not behind a container runtime at work.
        self._disk = ThreadPoolExecutor(_WRITERS, thread_name_prefix="claims")
        #: Called when devices have become free, for which other pods may be waiting.
        self.released: Callable[[], None] = lambda: None

    def load(self) -> None:
        """Read what stands on disk. Raises CheckpointError when a newer agent wrote it."""
        for uid, record in self._checkpoints.all().items():
            if isinstance(record, Torn):
                # Files are replaced whole, so this one was damaged. It names no claim that could be unprepared; a pod
                # that still uses it has it prepared again, which drivers must allow.
                logger.error("claim %s: %s; removed", uid, record.reason)
                self._checkpoints.remove(uid)
                continue
            self._records[uid] = record
            if record.state == "prepared" and self._checkpoints.of_this_boot(record):
                # The agent was away, not the machine: what drivers had set up is there.
                self._fresh.add(uid)

    def holders(self) -> set[str]:
        """UIDs of the pods for which claims are held here."""
        return {pod for record in self._records.values() for pod in _on_node(record).pods}

    def records(self) -> list[Record]:
        """What is held, for `/metrics` and tests."""
        return list(self._records.values())

    # Before the start of a pod.

    async def prepare(self, pod: Object) -> None:
        """Prepare all claims of the pod. Raises ClaimProblem; what was prepared by then stays until `unprepare`."""
        wanted = [await self._claim(pod, name) for name in self._names(pod)]
        if not wanted:
            return
        async with self._locked(claim.metadata.uid for claim in wanted):
            calls: dict[str, list[v1.ResourceClaim]] = {}
            for claim in wanted:
                record = await self._remember(claim, uid_of(pod))
                if record.state == "prepared" and claim.metadata.uid in self._fresh:
                    continue
                for driver in _called(claim, _PREPARE):
                    calls.setdefault(driver, []).append(claim)
            hit("claim-recorded")
            for driver, claims in calls.items():
                await self._prepare(driver, claims)
            hit("claim-answered")
            for claim in wanted:
                await self._finish(claim.metadata.uid)

    def _names(self, pod: Object) -> list[str]:
        names: list[str] = []
        for entry, name in pod_claim_names(pod).items():
            if name is None:
                raise ClaimProblem(f"claim {entry!r} has not been made from its template yet")
            names.append(name)
        extended = text(pod, "status", "extendedResourceClaimStatus", "resourceClaimName")
        return [*names, extended] if extended else names

    async def _claim(self, pod: Object, name: str) -> v1.ResourceClaim:
        """The claim, read live, if the pod may use it."""
        where = f"ResourceClaim {namespace_of(pod)}/{name}"
        try:
            claim: v1.ResourceClaim = await self._client.get(RESOURCECLAIM, name, namespace_of(pod))
        except ApiError as error:
            raise ClaimProblem(f"{where}: {error}") from None
        uid = claim.metadata.uid
        owner = controller_of(claim)
        group = text(pod, "spec", "schedulingGroup", "podGroupName")
        generated = POD_CLAIM_NAME in (claim.metadata.annotations or {})
        if (
            generated
            and owner is not None
            and owner.uid != uid_of(pod)
            and (owner.kind, owner.name) != ("PodGroup", group)
        ):
            raise ClaimProblem(f"{where} was not made for pod {key_of(pod)}: its owner is {owner.kind} {owner.name}")
        if not any(
            (ref.resource == "pods" and ref.uid == uid_of(pod))
            or (ref.resource == "podgroups" and bool(group) and ref.name == group)
            for ref in claim.status.reservedFor or ()
        ):
            raise ClaimProblem(f"pod {key_of(pod)} is not allowed to use {where}: it is not reserved for it")
        if claim.status.allocation is None:
            raise ClaimProblem(f"{where} is not allocated")
        same = (record for record in self._records.values() if record.claimUID != uid)
        if any((record.claimNamespace, record.claimName) == (namespace_of(pod), name) for record in same):
            raise ClaimProblem(f"{where}: an older claim of that name is not unprepared yet")
        for driver in _called(claim, _PREPARE):
            try:
                self._plugins.instance(driver)
            except PluginError as error:
                raise ClaimProblem(f"{where}: {error}") from None
        return claim

    async def _remember(self, claim: v1.ResourceClaim, pod_uid: str) -> Record:
        """The record with the pod among its holders, durable before any driver is called."""
        uid = claim.metadata.uid
        record = self._records.get(uid)
        if record is None:
            drivers: dict[str, list[PreparedDevice]] = {driver: [] for driver in _results(claim)}
            kept = _OnNode(pods=[pod_uid], drivers=drivers, skipped=_skipped(claim))
            record = Record(
                claimUID=uid,
                claimNamespace=claim.metadata.namespace,
                claimName=claim.metadata.name,
                state="prepare-started",
                bootID="",
            )
        else:
            kept = _on_node(record)
            if pod_uid in kept.pods:
                return record
            kept = msgspec.structs.replace(kept, pods=[*kept.pods, pod_uid])
        return await self._save(record, kept)

    async def _prepare(self, driver: str, claims: Sequence[v1.ResourceClaim]) -> None:
        asked = [wire.Claim(claim.metadata.namespace, claim.metadata.uid, claim.metadata.name) for claim in claims]
        try:
            answers = await self._plugins.call(driver, lambda found: found.client.prepare(found.service, asked))
        except PluginError as error:
            raise ClaimProblem(f"driver {driver}: {error}") from None
        problem = ""
        for claim in asked:
            answer = answers[claim.uid]
            if answer.error:
                problem = problem or f"driver {driver}: {answer.error}"
                continue
            devices = [
                PreparedDevice(
                    requestNames=device.request_names,
                    poolName=device.pool_name,
                    deviceName=device.device_name,
                    cdiDeviceIDs=device.cdi_device_ids,
                    shareID=device.share_id,
                )
                for device in answer.devices
            ]
            record = self._records[claim.uid]
            kept = _on_node(record)
            self._records[claim.uid] = _with(
                record, msgspec.structs.replace(kept, drivers={**kept.drivers, driver: devices})
            )
        if problem:
            raise ClaimProblem(problem)

    async def _finish(self, uid: str) -> None:
        record = self._records[uid]
        if record.state == "prepared" and uid in self._fresh:
            return
        # After a power cut drivers are asked again anyway, so the record before would do.
        done = msgspec.structs.replace(record, state="prepared")
        await self._save(done, _on_node(record), lasts=Lasts.OLD_OR_NEW)
        self._fresh.add(uid)
        hit("claim-prepared")

    # For the containers.

    def devices(self, pod: Object, claim_name: str, request: str = "") -> list[DeviceOnNode]:
        """The prepared devices of one of the pod's claims (name of the ResourceClaim), of one request or of all."""
        for record in self._records.values():
            if (record.claimNamespace, record.claimName) == (namespace_of(pod), claim_name):
                return [
                    DeviceOnNode(driver, device)
                    for driver, devices in _on_node(record).drivers.items()
                    for device in devices
                    if not request or not device.requestNames or request in device.requestNames
                ]
        return []

    def of_container(self, pod: Object, container: Object) -> dict[str, list[DeviceOnNode]]:
        """What a container gets, by the name that its status uses: ``claim:NAME`` or ``claim:NAME/REQUEST``."""
        names = pod_claim_names(pod)
        found: dict[str, list[DeviceOnNode]] = {}
        for entry in children(container, "resources", "claims"):
            claim = names.get(entry["name"])
            request = entry.get("request") or ""
            if claim:
                key = f"claim:{entry['name']}" + (f"/{request}" if request else "")
                found[key] = self.devices(pod, claim, request)
        extended = text(pod, "status", "extendedResourceClaimStatus", "resourceClaimName")
        for mapping in children(pod, "status", "extendedResourceClaimStatus", "requestMappings"):
            if mapping.get("containerName") == container["name"] and extended:
                request = mapping["requestName"]
                found[f"claim:{extended}/{request}"] = self.devices(pod, extended, request)
        return found

    def cdi_ids(self, pod: Object, container: Object) -> list[str]:
        """CDI ids for a container, each once, in the order of the claims."""
        devices = (item for items in self.of_container(pod, container).values() for item in items)
        return list(dict.fromkeys(identifier for item in devices for identifier in item.device.cdiDeviceIDs))

    def pods_with(self, driver: str) -> set[str]:
        """UIDs of the pods that hold devices of a driver."""
        kept = (_on_node(record) for record in self._records.values())
        return {pod for each in kept if driver in each.drivers for pod in each.pods}

    # After the end of a pod.

    async def unprepare(self, pod_uid: str) -> None:
        """Let go of all that the pod holds. Raises ClaimProblem when something is left to do."""
        held = [uid for uid, record in self._records.items() if pod_uid in _on_node(record).pods]
        if not held:
            return
        async with self._locked(held):
            last: list[Record] = []
            for uid in held:
                record = self._records.get(uid)
                if record is None:
                    continue
                kept = _on_node(record)
                others = [pod for pod in kept.pods if pod != pod_uid]
                if others:
                    await self._save(record, msgspec.structs.replace(kept, pods=others))
                else:
                    last.append(record)
            await self._unprepare(last)

    async def sweep(self, active: Collection[str]) -> list[str]:
        """Unprepare what only pods hold that are not active any more; words about what failed."""
        problems: list[str] = []
        for pod in self.holders() - set(active):
            try:
                await self.unprepare(pod)
            except ClaimProblem as problem:
                problems.append(str(problem))
        return problems

    async def _unprepare(self, records: Sequence[Record]) -> None:
        calls: dict[str, list[Record]] = {}
        for record in records:
            kept = _on_node(record)
            for driver in kept.drivers.keys() - set(kept.skipped):
                calls.setdefault(driver, []).append(record)
        failed: dict[str, str] = {}
        for driver, of_driver in calls.items():
            asked = [wire.Claim(each.claimNamespace, each.claimUID, each.claimName) for each in of_driver]
            try:
                answers = await self._plugins.call(
                    driver, lambda found, asked=asked: found.client.unprepare(found.service, asked)
                )
            except PluginError as error:
                failed |= {claim.uid: f"driver {driver}: {error}" for claim in asked}
                continue
            failed |= {uid: f"driver {driver}: {answer.error}" for uid, answer in answers.items() if answer.error}
        hit("unprepare-called")
        for record in records:
            if record.claimUID not in failed:
                await self._on_disk(partial(self._checkpoints.remove, record.claimUID))
                self._records.pop(record.claimUID, None)
                self._fresh.discard(record.claimUID)
                self._locks.pop(record.claimUID, None)
                hit("claim-forgotten")
        if len(failed) < len(records):
            self.released()
        if failed:
            raise ClaimProblem("; ".join(sorted(set(failed.values()))))

    async def _save(self, record: Record, kept: _OnNode, *, lasts: Lasts = Lasts.ALWAYS) -> Record:
        saved = await self._on_disk(partial(self._checkpoints.save, _with(record, kept), lasts=lasts))
        self._records[record.claimUID] = saved
        return saved

    async def _on_disk(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)

    @asynccontextmanager
    async def _locked(self, uids: Iterable[str]) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            # Always in the same order, so that two pods that share claims cannot wait for each other.
            for uid in sorted(set(uids)):
                await stack.enter_async_context(self._locks.setdefault(uid, asyncio.Lock()))
            yield


def _results(claim: v1.ResourceClaim) -> Mapping[str, list[v1.DeviceRequestAllocationResult]]:
    """The claim's devices by driver."""
    allocated = claim.status.allocation.devices if claim.status.allocation else None
    found: dict[str, list[v1.DeviceRequestAllocationResult]] = {}
    for result in (allocated.results if allocated else None) or ():
        found.setdefault(result.driver, []).append(result)
    return found


def _called(claim: v1.ResourceClaim, operation: str) -> list[str]:
    """The drivers that are called for this operation: those of which not every device skips it."""
    return [
        driver
        for driver, results in _results(claim).items()
        if not all({operation, "*"} & set(result.skipNodeOperations or ()) for result in results)
    ]


def _skipped(claim: v1.ResourceClaim) -> list[str]:
    return [driver for driver in _results(claim) if driver not in _called(claim, _UNPREPARE)]


def _on_node(record: Record) -> _OnNode:
    return msgspec.convert(record.driver, _OnNode)


def _with(record: Record, kept: _OnNode) -> Record:
    content: dict[str, Any] = msgspec.to_builtins(kept)
    return msgspec.structs.replace(record, driver=content)
