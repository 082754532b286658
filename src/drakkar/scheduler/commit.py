"""Writes a placement: claims first, the pod last.

The Binding is the commit point: no node starts a pod whose claims are not allocated and
reserved for it, and nothing before the Binding is noticed by anybody. So it is posted only
when every allocation has come back on the watch and no other claim held one of its devices
earlier; since a watch shows changes in the order in which they were made, all earlier writes
have come back by then. Killed between any two writes, the next run finds claims that are
allocated and a pod that is not bound, and continues from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec

from drakkar.api.claimcosts import CLAIM_COSTS
from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError, DrakkarError
from drakkar.api.kinds import POD, RESOURCECLAIM
from drakkar.api.names import DELETE_PROTECTION, POD_SCHEDULED, REASON_UNSCHEDULABLE
from drakkar.api.objects import (
    condition,
    finalizers_of,
    is_deleting,
    key_of,
    name_of,
    namespace_of,
    pod_node,
    resource_version_of,
    uid_of,
)
from drakkar.api.resource import v1 as resource
from drakkar.api.resource.strategy import lost_fields
from drakkar.api.tree import child
from drakkar.client import Cache, Client, Unreachable, timestamp
from drakkar.inventory.draws import recorded
from drakkar.scheduler.binding import Binding, binding_state, deadline
from drakkar.scheduler.claims import consumer_of, reserved_for, same_allocation
from drakkar.scheduler.cluster import Cluster
from drakkar.scheduler.decide import Placement
from drakkar.scheduler.pods import PodView, is_waiting

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Attempts of one conditional write on newer and newer state.
ATTEMPTS = 5
#: Longest wait for an own write on the watch, in seconds (spec/groups.md 3.2).
COME_BACK = 5.0
#: Annotation of a claim with which a later attempt or another leader went on: the version that it went on from.
CONFIRMED = "drakkar.dev/confirmed"
#: Of a pod that has not been told yet why it waits.
_DEALLOCATED = {
    "type": POD_SCHEDULED,
    "status": "False",
    "reason": REASON_UNSCHEDULABLE,
    "message": "its devices are taken back, to be chosen anew",
}
#: Seconds after which a server has given up a request that it never answered; kube-apiserver does so after 60.
FATE = 65.0
#: First and longest pause between two attempts to learn what has become of a write, in seconds; it doubles.
FIRST_LOOK, LONGEST_LOOK = 0.1, 2.0


class Lost(DrakkarError):
    """The decision cannot be carried out any more; a new one is needed."""


class Dropped(Lost):
    """The server does not keep what an allocation has to say: feature gates are off there."""


class Result(Enum):
    """How a commit ended."""

    BOUND = "bound"
    #: Somebody else bound the pod, or it is gone: nothing left to decide.
    GONE = "gone"


class Committer:
    """Carries out placements; one at a time per claim, any number of claims at a time."""

    def __init__(
        self,
        client: Client,
        cluster: Cluster,
        claims: Cache,
        clock: Clock,
        *,
        settled: Callable[[resource.ResourceClaim], None],
        metrics: dict[str, float],
    ):
        self._client = client
        self._cluster = cluster
        self._claims = claims
        self._clock = clock
        #: Called when an allocation is known to stand, so that other pods may join it.
        self._settled = settled
        #: One writer per claim: pods that join together would only conflict with each other.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        #: ``conflict_foreign`` counts allocations that gave way because another claim had been first.
        self._metrics = metrics
        #: Claims of groups that this process has written; claims as it has freed them, by uid.
        self._renewed: set[str] = set()
        self._released: dict[str, resource.ResourceClaim] = {}

    async def write_claims(self, pod: PodView, placement: Placement) -> tuple[PodView, list[resource.ResourceClaim]]:
        """Writes everything but the Binding; answers the pod as it is then, and its claims as the watch shows them.

        Raises Lost when a new decision is needed, ApiError and Unreachable as they come.
        """
        written: list[resource.ResourceClaim] = []
        special = placement.extended.claim if placement.extended is not None else None
        for claim, allocation in placement.allocations:
            if claim is special and not resource_version_of(claim):
                claim = special = await self._make(pod, claim, allocation)
            written.append(await self._allocate(pod, claim, allocation))
        for claim in placement.joined:
            await self._reserve(pod, claim)
        held = [await self._renew(pod, claim) for claim in placement.held]
        # Allocations of an earlier run, too, have to have won before the pod is bound.
        seen = [await self._confirm(pod, claim) for claim in (*written, *placement.joined, *held)]
        return await self._note(pod, placement, special), seen

    async def prepared(self, claims: Sequence[resource.ResourceClaim]) -> None:
        """Waits for the binding conditions of the claims' devices; raises Lost when they fail."""
        for claim in claims:
            timeout = self._cluster.binding_timeout
            rest = max(0.0, min(deadline(claim, timeout) - self._clock.time(), timeout))
            await self._claims.until(lambda claim=claim: self._state(claim)[0] is not Binding.WAITING, rest)
            state, text = self._state(claim)
            if state is not Binding.READY:
                raise Lost(text or f"resourceclaim {name_of(claim)} is gone")

    def is_prepared(self, claims: Sequence[resource.ResourceClaim]) -> bool:
        """Whether no device has a binding condition that is not fulfilled."""
        return all(self._state(claim)[0] is Binding.READY for claim in claims)

    def _state(self, claim: resource.ResourceClaim) -> tuple[Binding, str]:
        seen = self._claims.get(namespace_of(claim), name_of(claim))
        if seen is None or not _still(seen, claim):
            return Binding.FAILED, ""
        return binding_state(seen, self._clock.time(), self._cluster.binding_timeout)

    # claims

    async def _make(
        self, pod: PodView, draft: resource.ResourceClaim, allocation: resource.AllocationResult
    ) -> resource.ResourceClaim:
        """Creates the claim for extended resources."""
        body: dict[str, Any] = msgspec.to_builtins(draft)
        del body["metadata"]["uid"]
        made: resource.ResourceClaim = await self._client.create(RESOURCECLAIM, body)
        self._cluster.adopt(pod, uid_of(draft), made, allocation)
        return made

    async def _note(self, pod: PodView, placement: Placement, special: resource.ResourceClaim | None) -> PodView:
        """Says in the pod's status which claim serves which containers, and what the devices cost its node."""
        status: dict[str, Any] = {}
        if placement.extended is not None and special is not None:
            mappings = [*placement.extended.mappings]
            status["extendedResourceClaimStatus"] = {
                "resourceClaimName": name_of(special),
                "requestMappings": mappings,
            }
            names = {uid_of(placement.extended.claim): name_of(special)}
        else:
            names = {}
        if placement.charge is not None:
            status[CLAIM_COSTS] = placement.charge.status(names)
        elif child(pod.obj, "status").get(CLAIM_COSTS):
            status[CLAIM_COSTS] = []
        return await self._patch_status(pod, status) if status else pod

    async def uncharge(self, pod: PodView) -> None:
        """Takes back what :meth:`write_claims` said about costs: the pod does not go where they would arise."""
        fresh = await self.pod_now(pod)
        if fresh is not None and not pod_node(fresh) and child(fresh, "status").get(CLAIM_COSTS):
            await self._patch_status(PodView.of(fresh), {CLAIM_COSTS: []})

    async def nominate(self, pod: PodView, node: str) -> PodView:
        """Says in the pod's status where it is to run, while its devices are being prepared."""
        return await self._patch_status(pod, {"nominatedNodeName": node})

    async def _patch_status(self, pod: PodView, status: dict[str, Any]) -> PodView:
        metadata = {"uid": pod.uid, "resourceVersion": resource_version_of(pod.obj)}
        body = {"metadata": metadata, "status": status}
        fresh = await self._client.patch(POD, pod.name, pod.namespace, body, subresource="status")
        return PodView.of(fresh)

    async def discard(self, claim: resource.ResourceClaim) -> None:
        """Deletes a claim that serves nobody, its allocation first."""
        if claim.status.allocation is not None:
            claim = await self.release(claim)
        if DELETE_PROTECTION in finalizers_of(claim):
            kept = [name for name in finalizers_of(claim) if name != DELETE_PROTECTION]
            claim = await self._patch(claim, {"metadata": {"finalizers": kept}})
        await self._client.delete(RESOURCECLAIM, name_of(claim), namespace_of(claim), uid=uid_of(claim))

    async def _allocate(
        self, pod: PodView, claim: resource.ResourceClaim, allocation: resource.AllocationResult
    ) -> resource.ResourceClaim:
        """One status update with the allocation and the reservation, on a claim that has the finalizer."""
        definitions = self._cluster.inventory.snapshot().definitions(allocation)
        body: dict[str, Any] = msgspec.to_builtins(recorded(definitions, allocation))
        if any(result.bindingConditions for result in allocation.devices.results or ()):
            body.setdefault("allocationTimestamp", timestamp(self._clock.time()))
        for _ in range(ATTEMPTS):
            if claim.status.allocation is not None:
                if same_allocation(claim.status.allocation, allocation):
                    return await self._reserve(pod, claim)
                raise Lost(f"resourceclaim {name_of(claim)} got allocated elsewhere in the meantime")
            try:
                if DELETE_PROTECTION not in finalizers_of(claim):
                    finalizers = [*finalizers_of(claim), DELETE_PROTECTION]
                    claim = await self._patch(claim, {"metadata": {"finalizers": finalizers}})
                status = {"allocation": body, "reservedFor": self._consumers(claim, pod)}
                written = await self._until_known(lambda c=claim, s=status: self._patch(c, {"status": s}, "status"))
            except ApiError as error:
                if _is_denied(error):
                    # By the guard of a newer leader, most likely: the devices are somebody else's.
                    raise Lost(f"resourceclaim {name_of(claim)} was not allocated: {error}") from error
                claim = await self._newer(claim, error)
                continue
            await self._check_kept(written, status)
            return written
        raise Lost(f"resourceclaim {name_of(claim)} changes too fast to be allocated")

    async def _until_known(self, write: Callable[[], Awaitable[T]]) -> T:
        """Repeats a conditional write that may have been carried out or may yet be, until the server's answer says.

        Given up at once, the same devices would go to others while the first write is still on its way. Repeated, it
        either takes effect, and the first cannot any more, or conflicts with what the first has done.
        """
        until = self._clock.monotonic() + FATE
        pause = FIRST_LOOK
        while True:
            try:
                return await write()
            except (ApiError, Unreachable) as error:
                known = isinstance(error, ApiError) and error.code < 500
                if known or self._clock.monotonic() > until:
                    raise
                logger.info("a write may have been carried out, or not: %s; again in %.1f s", error, pause)
            await self._clock.sleep(pause)
            pause = min(pause * 2, LONGEST_LOOK)

    async def _check_kept(self, claim: resource.ResourceClaim, sent: dict[str, Any]) -> None:
        """Takes an allocation back that lost what keeps its devices from being used too early or by too many."""
        lost = lost_fields({"status": sent}, {"status": msgspec.to_builtins(claim.status)})
        # Only spares nodes work.
        lost.pop("skipNodeOperations", None)
        if lost:
            await self.release(claim)
            fields = ", ".join(f"{field} ({gates})" for field, gates in lost.items())
            raise Dropped(
                f"the server drops fields from the allocation of resourceclaim {name_of(claim)}, whose feature gates "
                f"are off: {fields}; turn them on at kube-apiserver, or take devices that do not need them"
            )

    async def _reserve(self, pod: PodView, claim: resource.ResourceClaim) -> resource.ResourceClaim:
        """Adds the pod to a claim whose allocation must stay what the decision saw."""
        decided = claim.status.allocation
        lock = self._locks.setdefault(uid_of(claim), asyncio.Lock())
        async with lock:
            claim = self._cluster.claim(key_of(claim)) or claim
            for _ in range(ATTEMPTS):
                if decided is None or not same_allocation(claim.status.allocation, decided):
                    raise Lost(f"the allocation of resourceclaim {name_of(claim)} changed in the meantime")
                if reserved_for(claim, pod):
                    return claim
                try:
                    return await self._patch(claim, {"status": {"reservedFor": self._consumers(claim, pod)}}, "status")
                except ApiError as error:
                    claim = await self._newer(claim, error)
        raise Lost(f"resourceclaim {name_of(claim)} changes too fast to be reserved")

    async def _renew(self, pod: PodView, claim: resource.ResourceClaim) -> resource.ResourceClaim:
        """Writes a claim that needs no writing, so that nobody who knows it only as it was can take it back now.

        A claim of a group once only: all its pods go on with it.
        """
        if all(entry.uid != pod.uid for entry in claim.status.reservedFor or ()):
            if uid_of(claim) in self._renewed:
                return claim
            self._renewed.add(uid_of(claim))
        decided = claim
        for _ in range(ATTEMPTS):
            try:
                return await self._patch(claim, {"metadata": {"annotations": {CONFIRMED: resource_version_of(claim)}}})
            except ApiError as error:
                claim = await self._newer(claim, error)
                if not _still(claim, decided) or not reserved_for(claim, pod):
                    raise Lost(f"resourceclaim {name_of(claim)} was taken back in the meantime") from error
        raise Lost(f"resourceclaim {name_of(claim)} changes too fast to be confirmed")

    async def stand(self, pod: PodView, claims: Sequence[resource.ResourceClaim]) -> None:
        """Sees to it that the claims stay as they are although the pod has changed; Lost when one has not.

        Somebody may have changed the pod in order to take them back.
        """
        for claim in claims:
            await self._confirm(pod, await self._renew(pod, claim))

    def _consumers(self, claim: resource.ResourceClaim, pod: PodView) -> list[dict[str, Any]]:
        present: list[dict[str, Any]] = msgspec.to_builtins(claim.status.reservedFor or [])
        return present if reserved_for(claim, pod) else [*present, consumer_of(self._cluster, claim, pod)]

    async def _newer(self, claim: resource.ResourceClaim, error: ApiError) -> resource.ResourceClaim:
        """The state that a write conflicted with; other errors go on."""
        if error.code != 409:
            raise error
        fresh: resource.ResourceClaim = await self._client.get(RESOURCECLAIM, name_of(claim), namespace_of(claim))
        self._cluster.note_written(fresh)
        if uid_of(fresh) != uid_of(claim) or is_deleting(fresh) or fresh.spec != claim.spec:
            raise Lost(f"resourceclaim {name_of(claim)} was deleted or replaced in the meantime") from error
        return fresh

    async def _patch(
        self, claim: resource.ResourceClaim, body: dict[str, Any], subresource: str | None = None
    ) -> resource.ResourceClaim:
        """A merge patch of exactly this state of the claim."""
        metadata = {"uid": uid_of(claim), "resourceVersion": resource_version_of(claim), **body.get("metadata", {})}
        fresh: resource.ResourceClaim = await self._client.patch(
            RESOURCECLAIM, name_of(claim), namespace_of(claim), {**body, "metadata": metadata}, subresource=subresource
        )
        self._cluster.note_written(fresh)
        return fresh

    async def _confirm(self, pod: PodView, claim: resource.ResourceClaim) -> resource.ResourceClaim:
        """Waits until the allocation is seen on the watch, and sees to it that it was the first."""
        # What the decision was made on may be older than our own last word about the claim.
        for written in (claim, self._released.pop(uid_of(claim), claim)):
            if not await self._claims.reached(written, COME_BACK):
                raise Lost(f"resourceclaim {name_of(claim)} did not come back on the watch within {COME_BACK:.0f} s")
        seen = self._claims.get(namespace_of(claim), name_of(claim))
        if seen is None or not _still(seen, claim):
            raise Lost(f"resourceclaim {name_of(claim)} lost its allocation in the meantime")
        rival = self._cluster.held_before(seen)
        if rival is not None:
            self._metrics["conflict_foreign"] += 1
            logger.warning("claim %s: a device was held by claim %s before, taking it back", key_of(claim), rival.uid)
            if all(entry.uid == pod.uid for entry in seen.status.reservedFor or ()) and await self.void(pod):
                await self.release(seen)
            raise Lost(f"a device of resourceclaim {name_of(claim)} had been given to another claim before")
        if self._cluster.settle(claim):
            self._settled(claim)
        return seen

    async def release(self, claim: resource.ResourceClaim) -> resource.ResourceClaim:
        """Takes the allocation of exactly this state of the claim back.

        Of a claim of a pod that is not bound, after :meth:`void`.
        """
        body = {"status": {"allocation": None, "reservedFor": None, "devices": None}}
        freed = self._released[uid_of(claim)] = await self._patch(claim, body, "status")
        return freed

    # the pod

    async def void(self, pod: PodView) -> bool:
        """Changes the pod, so that no Binding succeeds that was decided before; False when it is bound or gone.

        A scheduler that led before and was paused may be about to bind it.
        """
        obj: dict[str, Any] | None = pod.obj
        for _ in range(ATTEMPTS):
            if obj is None or pod_node(obj):
                return False
            told = condition(obj, POD_SCHEDULED) or _DEALLOCATED
            probed = timestamp(self._clock.time())
            if told.get("lastProbeTime") == probed:
                probed = timestamp(self._clock.time() + 1)
            metadata = {"uid": pod.uid, "resourceVersion": resource_version_of(obj)}
            body = {"metadata": metadata, "status": {"conditions": [{**told, "lastProbeTime": probed}]}}
            try:
                await self._client.patch(POD, pod.name, pod.namespace, body, "strategic", "status")
                return True
            except ApiError as error:
                if error.code not in (404, 409):
                    raise
                obj = await self.pod_now(pod)
        raise Lost(f"pod {pod.key} changes too fast for its devices to be taken back")

    def forget(self, claim: resource.ResourceClaim) -> None:
        """The claim is gone."""
        self._renewed.discard(uid_of(claim))
        self._released.pop(uid_of(claim), None)

    async def bind(self, pod: PodView, node: str, claims: Sequence[resource.ResourceClaim] = ()) -> Result:
        """Posts the Binding of exactly this state of the pod, or of a later one for which the claims still stand."""
        obj = pod.obj
        for attempt in (1, 2):
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {
                    "name": pod.name,
                    "namespace": pod.namespace,
                    "uid": pod.uid,
                    "resourceVersion": resource_version_of(obj),
                },
                "target": {"apiVersion": "v1", "kind": "Node", "name": node},
            }
            try:
                await self._until_known(lambda b=binding: self._client.create(POD, b, subresource="binding"))
                return Result.BOUND
            except ApiError as error:
                if error.code == 404:
                    return Result.GONE
                if error.code != 409:
                    raise
                fresh = await self.pod_now(pod)
                if fresh is None:
                    return Result.GONE
                if pod_node(fresh):
                    return Result.BOUND if pod_node(fresh) == node else Result.GONE
                if attempt == 2 or not is_waiting(fresh) or fresh.get("spec") != obj.get("spec"):
                    raise Lost(f"pod {pod.key} changed while it was bound") from error
                # Only its status or metadata changed.
                await self.stand(pod, claims)
                obj = fresh
        raise AssertionError("unreachable")

    async def pod_now(self, pod: PodView) -> dict[str, Any] | None:
        """The pod as the server has it; None when it is gone. Raises ApiError, Unreachable."""
        try:
            fresh = await self._client.get(POD, pod.name, pod.namespace)
        except ApiError as error:
            if error.code == 404:
                return None
            raise
        return fresh if uid_of(fresh) == pod.uid else None


def _is_denied(error: ApiError) -> bool:
    """Whether an admission webhook has refused the write; a missing right reads otherwise."""
    return "admission webhook" in str(error) and "denied the request" in str(error)


def _still(seen: resource.ResourceClaim, claim: resource.ResourceClaim) -> bool:
    """Whether the claim that is there is the same one, allocated as it was."""
    return uid_of(seen) == uid_of(claim) and same_allocation(seen.status.allocation, claim.status.allocation)
