"""The loop around the decision: from watch events to decisions, from decisions to writes.

Decisions are made one after the other on the state known here; their writes run beside each
other. What has been decided counts at once, through `Cluster.assume`, so the next decision
does not wait for the API. All state is rebuilt from the API after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError
from drakkar.api.groups import group_index
from drakkar.api.kinds import POD, PODGROUP, RESOURCECLAIM
from drakkar.api.meta import Object
from drakkar.api.names import (
    DEFAULT_SCHEDULER,
    POD_GROUP_SCHEDULED,
    POD_SCHEDULED,
    REASON_SCHEDULED,
    REASON_SCHEDULER_ERROR,
    REASON_UNSCHEDULABLE,
)
from drakkar.api.objects import (
    condition,
    key_of,
    name_of,
    namespace_of,
    pod_priority,
    resource_version_of,
    uid_of,
    with_condition,
)
from drakkar.api.resource import v1 as resource
from drakkar.api.tree import at
from drakkar.client import Caches, Client, EventRecorder, Unreachable, timestamp
from drakkar.scheduler.allocators import Allocators
from drakkar.scheduler.avoidance import Avoided, unprepared
from drakkar.scheduler.binding import BINDING_TIMEOUT
from drakkar.scheduler.cluster import Cluster
from drakkar.scheduler.commit import COME_BACK, Committer, Dropped, Lost, Result
from drakkar.scheduler.decide import Pending, Placement, Trail, decide
from drakkar.scheduler.equal import Kind, Verdicts, follow, in_line, kind_of
from drakkar.scheduler.events import ClusterEvents
from drakkar.scheduler.gangs import Gang, decide_gang, gang_of
from drakkar.scheduler.groups import group_obstacle, queue_key
from drakkar.scheduler.guard import Guard
from drakkar.scheduler.metrics import COUNTERS, exposition
from drakkar.scheduler.pods import PodView, claim_keys, is_waiting
from drakkar.scheduler.publisheddevices import DeviceId
from drakkar.scheduler.queue import SchedulingQueue
from drakkar.scheduler.refusal import Cause
from drakkar.scheduler.writers import Writers

logger = logging.getLogger(__name__)

#: Writes of one kind (claims, Bindings, reports) under way at the same time, at most. Each needs a connection, and
#: beginning one costs both sides as much as several requests do.
WRITERS = 16
#: Equal pods that are placed without a look at the watches in between, at most.
IN_LINE = 64
#: Pauses before the state of a group is written again that somebody else has changed, in seconds.
TELL_AGAIN_AFTER = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
#: Longest wait of a leader that ends for the allocations that it has allowed to others, in seconds.
HAND_OVER = 2.0


class Scheduler:
    """Gives pods their nodes and claims their devices.

    ``scheduler_names`` are the values of ``spec.schedulerName`` that are ours; None means every
    pod. ``binding_timeout`` is in seconds. ``caches`` may be shared with other parts of the process. ``guards`` says
    that others ask :attr:`guard` before they allocate: nothing is decided before it can answer.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        scheduler_names: set[str] | None = None,
        policy: str = "drakkar",
        binding_timeout: float = BINDING_TIMEOUT,
        caches: Caches | None = None,
        guards: bool = False,
    ):
        self.cluster = Cluster()
        self.cluster.binding_timeout = binding_timeout
        self.queue = SchedulingQueue(clock)
        self.ready = asyncio.Event()
        #: Plain counters; seconds are sums over decisions.
        self.metrics: dict[str, float] = dict.fromkeys(COUNTERS, 0)
        self._client = client
        self._clock = clock
        self._names = scheduler_names
        self._policy = policy
        self._own_caches = caches is None
        self._caches = caches or Caches(client)
        # Beside the cluster's own scheduler events have to tell who of the two speaks.
        self._recorder = EventRecorder(client, clock, min(scheduler_names) if scheduler_names else DEFAULT_SCHEDULER)
        self._pods = self._caches.of(POD)
        self._claims = self._caches.of(RESOURCECLAIM)
        self.guard = Guard(self.cluster, clock, find=self._claims.uid, freed=self._devices_returned)
        self._guards = guards
        self._allocators = Allocators()
        self._committer = self._make_committer()
        # Apart, because a server may take the one and refuse the other.
        self._claiming, self._binding, self._reporting = (Writers(clock, WRITERS) for _ in range(3))
        self._verdicts = Verdicts(self.queue.times)
        self._start = 0
        self._subscribed = False
        self._avoided = Avoided(self.cluster.inventory)
        self._readmissions: set[asyncio.Task[None]] = set()

    async def stand_by(self) -> None:
        """Follows the server's state without deciding anything, so that :meth:`run` can begin at once."""
        if not self._subscribed:
            self._subscribed = True
            self._subscribe()
        await self._caches.start()
        await self._caches.synced()
        self.ready.set()

    async def close(self) -> None:
        """Ends what :meth:`stand_by` began; :meth:`run` does so itself."""
        for task in self._readmissions:
            task.cancel()
        if self._own_caches:
            await self._caches.stop()

    def metrics_text(self) -> str:
        """The counters in Prometheus' text form."""
        foreign, fences = self._allocators.foreign(), len(self.cluster.fences)
        return exposition(self.metrics, self.queue.sizes(), self.guard.outcomes, foreign, fences)

    async def run(self) -> None:
        """Schedules until cancelled."""
        try:
            await self.stand_by()
            async with asyncio.TaskGroup() as group:
                group.create_task(self.queue.run_timers(), name="scheduling-queue")
                if self._guards:
                    await self._catch_up()
                    self.guard.opened.set()
                    group.create_task(self.guard.run(), name="guard")
                self._accompany(group)
                group.create_task(self._decide_all(group), name="scheduling")
        finally:
            if self.guard.opened.is_set():
                self.guard.opened.clear()
                # What was allowed is to be seen by whoever leads next.
                await self._claims.until(lambda: not self.guard.pending(), HAND_OVER)
            await self.close()

    async def expect_claim(self, uid: str, seconds: float) -> None:
        """Waits that long until the watch has shown a claim: some are allocated as soon as they are made."""
        await self._claims.until(lambda: self._claims.uid(uid) is not None, seconds)

    async def _catch_up(self) -> None:
        """Waits until the watch has shown every allocation that there is now: an earlier leader may have allowed it."""
        while True:
            try:
                for claim in (await self._client.list(RESOURCECLAIM)).items:
                    if not await self._claims.reached(claim, COME_BACK):
                        raise Lost(f"resourceclaim {key_of(claim)} does not come on the watch")
                return
            except (ApiError, Unreachable, Lost) as error:
                logger.warning("claims are not known well enough to judge allocations: %s; trying again", error)
                await self._clock.sleep(1.0)

    def _accompany(self, group: asyncio.TaskGroup) -> None:
        """Starts what else has to run beside the decisions."""

    def is_ours(self, pod: Object) -> bool:
        """Whether this scheduler decides about the pod."""
        name = at(pod, "spec", "schedulerName") or DEFAULT_SCHEDULER
        return self._names is None or name in self._names

    def waits(self, pod: Object) -> bool:
        """Whether the pod, if it is ours, can be decided now."""
        return is_waiting(pod)

    def _make_committer(self) -> Committer:
        return Committer(
            self._client, self.cluster, self._claims, self._clock, settled=self._on_settled, metrics=self.metrics
        )

    # from events to state

    def _subscribe(self) -> None:
        ClusterEvents(self.cluster, self.queue, self._avoided).subscribe(self._caches)
        self._claims.subscribe(self._on_claim)
        self._pods.subscribe(self._on_pod)

    def _on_claim(self, event: str, old: resource.ResourceClaim | None, claim: resource.ResourceClaim) -> None:
        held = old.status.allocation if old is not None else None
        if event == "DELETED":
            self.cluster.remove_claim(claim)
            self.guard.gone(claim)
            self._committer.forget(claim)
            self._allocators.note(claim, None)
        else:
            self.cluster.set_claim(claim)
            self.guard.seen(claim)
            self._allocators.note(claim, claim.status.allocation)
        if held is not None and (event == "DELETED" or claim.status.allocation is None):
            self._devices_returned({result.driver for result in held.devices.results or ()})
        if old is None or event == "DELETED" or old.status != claim.status or old.spec != claim.spec:
            self.queue.happened(Cause.CLAIM, claim=key_of(claim))

    def _on_pod(self, event: str, old: Object | None, pod: Object) -> None:
        uid = uid_of(pod)
        was = self.cluster.node_of(uid)
        changes = self.cluster.remove_pod(uid) if event == "DELETED" else self.cluster.set_pod(pod)
        if event == "DELETED" or not self.waits(pod) or not self.is_ours(pod):
            self.queue.remove(uid)
        elif self.cluster.node_of(uid):
            # Decided already; what comes in here is older than our Binding, or the binding is still on its way.
            pass
        elif old is None or not self.waits(old) or _matters(old) != _matters(pod) or uid not in self.queue:
            created: str = at(pod, "metadata", "creationTimestamp") or ""
            self.queue.add(uid, pod_priority(pod), created)
        if Cause.ROOM in changes and was:
            self._room_returned(pod)
        self.queue.all_happened(changes - {Cause.ROOM})
        for key in group_index(pod):
            if old is None or event == "DELETED" or self.waits(old) != self.waits(pod):
                self.queue.happened(Cause.GROUP, claim=queue_key(key))

    def _devices_returned(self, drivers: Iterable[str]) -> None:
        for driver in drivers:
            self.queue.happened(Cause.DEVICE, driver=driver)

    def _on_settled(self, claim: resource.ResourceClaim) -> None:
        # The watch told of the allocation before it was confirmed; only now others may join.
        self.queue.happened(Cause.CLAIM, claim=key_of(claim))

    def _room_returned(self, pod: Object) -> None:
        self.queue.happened(Cause.ROOM)
        # Limits per claim and node count pods that have not ended.
        for key in claim_keys(pod):
            self.queue.happened(Cause.CLAIM, claim=key)

    # from state to decisions

    async def _decide_all(self, group: asyncio.TaskGroup) -> None:
        while True:
            uid = await self.queue.take()
            obj = self._pods.uid(uid)
            if obj is None or not self.waits(obj) or self.cluster.node_of(uid):
                self.queue.remove(uid)
                continue
            pod = PodView.of(obj)
            gang = gang_of(self.cluster, pod, self._waiting_of_group(pod)) if pod.group else None
            if gang is not None and group_obstacle(self.cluster, pod) is None:
                self._decide_gang(gang, group)
            else:
                self._decide_equals(pod, group)
            # Watches have to be read between decisions.
            await asyncio.sleep(0)

    def _decide_equals(self, pod: PodView, group: asyncio.TaskGroup) -> None:
        """Decides about a pod, and about the next ones in line as long as they are equal to it and find a place."""
        trail = Trail()
        kind = self._settle(pod, group, trail)
        if kind is None or not trail.names or not in_line(pod, self.cluster):
            return
        for _ in range(IN_LINE):
            uid = self.queue.next()
            obj = self._pods.uid(uid) if uid is not None else None
            if uid is None or obj is None or not self.waits(obj) or self.cluster.node_of(uid):
                return
            other = PodView.of(obj)
            its_kind = kind_of(self.cluster, other)
            if its_kind is None or its_kind.key != kind.key:
                return
            placement = follow(self.cluster, other, trail, self._policy)
            if placement is None:
                return
            self.queue.hold(uid)
            self.metrics["answered_alike"] += 1
            self.cluster.assume(other, placement.node, placement.allocations)
            self._act(other, placement, group)

    def _settle(self, pod: PodView, group: asyncio.TaskGroup, trail: Trail) -> Kind | None:
        """Decides about one pod and has that carried out; answers the pod's kind, if it has equals."""
        kind, decision = self._decide(pod, trail)
        if isinstance(decision, Placement):
            self.cluster.assume(decision.footprint(pod), decision.node, decision.allocations)
        self._act(pod, decision, group)
        return kind

    def _waiting_of_group(self, pod: PodView) -> list[Object]:
        """The pods of the pod's group that are ours to decide now."""
        return [
            obj
            for obj in self.cluster.pods_of_group(pod.group_key)
            if self.waits(obj) and self.is_ours(obj) and not self.cluster.node_of(uid_of(obj))
        ]

    def _decide_gang(self, gang: Gang, group: asyncio.TaskGroup) -> None:
        started = self._clock.monotonic()
        now = self._clock.time()
        for pod in gang.waiting:
            self.queue.hold(pod.uid)
        try:
            found = decide_gang(self.cluster, gang, policy=self._policy, start=self._start, now=now)
        except Exception:
            logger.exception("deciding about pod group %s failed", gang.key)
            self.metrics["errors"] += 1
            for pod in gang.waiting:
                self.cluster.forget(pod)
                self.queue.retry(pod.uid)
            return
        self._start += len(gang.waiting)
        self.metrics["decisions"] += len(found.decisions)
        self.metrics["decision_seconds"] += self._clock.monotonic() - started
        for pod, decision in found.decisions:
            self._act(pod, decision, group)
        refused = [(pod, decision) for pod, decision in found.decisions if isinstance(decision, Pending)]
        if found.starts or not refused:
            told = ""
        elif self._is_quiet(*refused[0]):
            return
        else:
            told = refused[0][1].message
        group.create_task(self._tell_group(gang.key, found.starts, told), name=f"group-{gang.key}")

    def _is_quiet(self, pod: PodView, decision: Pending) -> bool:
        """Whether what keeps the pod is likely to be over before anybody has read of it."""
        return decision.passing or decision.patience > self.queue.waited(pod.uid)

    def _act(self, pod: PodView, decision: Placement | Pending | None, group: asyncio.TaskGroup) -> None:
        """Has a decision carried out; a placement is assumed already."""
        if decision is None:
            self.queue.retry(pod.uid)
        elif isinstance(decision, Placement):
            self.queue.happened(Cause.POD)
            group.create_task(self._carry_out(pod, decision), name=f"bind-{pod.key}")
        else:
            rest = decision.patience - self.queue.waited(pod.uid)
            quiet = self._is_quiet(pod, decision)
            if decision.error:
                self.queue.retry(pod.uid)
            else:
                self.queue.park(
                    pod.uid,
                    decision.causes,
                    decision.claims,
                    drivers=decision.drivers,
                    counts=not quiet,
                    longest=rest if rest > 0 else None,
                )
            if not quiet:
                group.create_task(self._report(pod, decision), name=f"report-{pod.key}")

    async def _tell_group(self, key: str, starts: bool, message: str) -> None:
        """Says in the group's status whether it could start; once it could, that stays.

        A group that starts is decided about once only: where somebody else has written to it in the meantime, an
        earlier call of this method for one, that is tried again on what the watch shows by then.
        """
        for pause in TELL_AGAIN_AFTER:
            group = self.cluster.groups.get(key)
            if group is None or await self._told(group, starts, message):
                return
            await self._clock.sleep(pause)

    async def _told(self, group: Object, starts: bool, message: str) -> bool:
        """Writes the condition; False where the group was changed after this version of it."""
        before = condition(group, POD_GROUP_SCHEDULED) or {}
        if before.get("status") == "True" or (not starts and before.get("message") == message):
            return True
        new = {
            "type": POD_GROUP_SCHEDULED,
            "status": "True" if starts else "False",
            "reason": REASON_SCHEDULED if starts else REASON_UNSCHEDULABLE,
            "message": message,
            "lastTransitionTime": timestamp(self._clock.time()),
        }
        metadata = {"uid": uid_of(group), "resourceVersion": resource_version_of(group)}
        conditions = with_condition(at(group, "status", "conditions"), new)
        body = {"metadata": metadata, "status": {"conditions": conditions}}
        try:
            await self._client.patch(PODGROUP, name_of(group), namespace_of(group), body, subresource="status")
        except (ApiError, Unreachable) as error:
            logger.info("pod group %s: its state was not written: %s", key_of(group), error)
            return not (isinstance(error, ApiError) and error.code == 409)
        return True

    def _decide(self, pod: PodView, trail: Trail) -> tuple[Kind | None, Placement | Pending | None]:
        started = self._clock.monotonic()
        kind: Kind | None = None
        try:
            kind = kind_of(self.cluster, pod)
            known = self._verdicts.recall(kind, pod) if kind is not None else None
            if known is not None:
                self.metrics["answered_alike"] += 1
                return kind, known
            now = self._clock.time()
            decision = decide(self.cluster, pod, policy=self._policy, start=self._start, now=now, trail=trail)
            if kind is not None and isinstance(decision, Pending):
                self._verdicts.remember(kind, decision)
        except Exception:
            # A fault in one decision must not stop all others.
            logger.exception("deciding about pod %s failed", pod.key)
            self.metrics["errors"] += 1
            return kind, None
        self._start += 1
        self.metrics["decisions"] += 1
        self.metrics["decision_seconds"] += self._clock.monotonic() - started
        return kind, decision

    # from decisions to writes

    async def _carry_out(self, pod: PodView, placement: Placement) -> None:
        try:
            async with self._claiming.turn():
                bindable, claims = await self._committer.write_claims(pod, placement)
            if not self._committer.is_prepared(claims):
                text = f"waiting for the devices of the pod to be prepared for node {placement.node}"
                await self._recorder.record(POD, pod.obj, "Normal", "BindingConditionsPending", text)
                bindable = await self._committer.nominate(bindable, placement.node)
                await self._prepared(claims)
            async with self._binding.turn():
                result = await self._committer.bind(bindable, placement.node, claims)
        except (Lost, ApiError, Unreachable) as error:
            await self._give_up(pod, placement, error)
        except Exception as error:
            logger.exception("binding pod %s failed", pod.key)
            await self._give_up(pod, placement, error)
        else:
            if result is Result.GONE:
                self.cluster.forget(pod)
                self.queue.remove(pod.uid)
                return
            self.queue.remove(pod.uid)
            await self._carried_out(pod, placement)

    async def _carried_out(self, pod: PodView, placement: Placement) -> None:
        self.metrics["scheduled"] += 1
        text = f"Successfully assigned {pod.key} to {placement.node}"
        await self._recorder.record(POD, pod.obj, "Normal", "Scheduled", text)

    async def _prepared(self, claims: Sequence[resource.ResourceClaim]) -> None:
        started = self._clock.monotonic()
        outcome = "prepare_failed"
        try:
            await self._committer.prepared(claims)
            outcome = "prepared"
        finally:
            self.metrics[outcome] += 1
            self.metrics["prepare_seconds"] += self._clock.monotonic() - started

    async def _give_up(self, pod: PodView, placement: Placement, error: Exception) -> None:
        logger.info("pod %s was not bound: %s", pod.key, error)
        self.metrics["lost"] += 1
        if placement.charge is not None:
            try:
                await self._committer.uncharge(pod)
            except (ApiError, Unreachable) as problem:
                # The next placement writes it anew, and nobody reads it of a pod that is not bound.
                logger.info("pod %s: costs of its devices were not taken back: %s", pod.key, problem)
        self.cluster.forget(pod)
        self.queue.retry(pod.uid)
        # What the decision had booked is free again for others.
        self._room_returned(pod.obj)
        self.queue.happened(Cause.DEVICE)
        if isinstance(error, Dropped):
            logger.warning("pod %s: %s", pod.key, error)
            await self._recorder.record(POD, pod.obj, "Warning", "FailedScheduling", str(error))

    async def _report(self, pod: PodView, pending: Pending) -> None:
        self.metrics["errors" if pending.error else "unschedulable"] += 1
        if pending.reason == "undecided":
            self.metrics["gave_up"] += 1
        try:
            if pending.release is not None:
                if pending.reason == "binding-failed":
                    self._avoid(pending.release)
                await self._release(pod, pending.release)
            if pending.discard is not None:
                await self._committer.discard(pending.discard)
            async with self._reporting.turn():
                told = await self._write_condition(pod, pending)
            if told:
                await self._recorder.record(POD, pod.obj, "Warning", "FailedScheduling", pending.message)
        except (ApiError, Unreachable) as error:
            logger.info("pod %s: why it waits was not written: %s", pod.key, error)
            self.queue.again(pod.uid)
        except Exception:
            logger.exception("reporting about pod %s failed", pod.key)

    async def _write_condition(self, pod: PodView, pending: Pending) -> bool:
        """Says in the pod's status why it waits; False when that is known, or the pod is no longer waiting."""
        reason = self._condition_reason(pod, pending)
        obj: Object | None = pod.obj
        while obj is not None and self.waits(obj):
            before = condition(obj, POD_SCHEDULED) or {}
            if (before.get("reason"), before.get("message")) == (reason, pending.message):
                return False
            since = before.get("lastTransitionTime") if before.get("status") == "False" else None
            new = {
                "type": POD_SCHEDULED,
                "status": "False",
                "reason": reason,
                "message": pending.message,
                "lastTransitionTime": since or timestamp(self._clock.time()),
            }
            # Conditional, because a pod that has been bound meanwhile must not be told that it waits.
            metadata = {"uid": pod.uid, "resourceVersion": resource_version_of(obj)}
            body = {"metadata": metadata, "status": {"conditions": [new]}}
            try:
                await self._client.patch(POD, pod.name, pod.namespace, body, "strategic", "status")
                return True
            except ApiError as error:
                if error.code != 409:
                    raise
                obj = await self._committer.pod_now(pod)
        return False

    def _condition_reason(self, pod: PodView, pending: Pending) -> str:
        """The reason of the condition ``PodScheduled`` of a pod that waits."""
        return REASON_SCHEDULER_ERROR if pending.error else REASON_UNSCHEDULABLE

    def _avoid(self, claim: resource.ResourceClaim) -> None:
        """Leaves the devices of the claim alone that could not be prepared, for a while."""
        for device in unprepared(claim):
            pause = self._avoided.add(device)
            logger.info("device %s could not be prepared; not chosen again for %.0f s", "/".join(device), pause)
            task = asyncio.create_task(self._admit_after(device, pause), name=f"avoid-{device.device}")
            self._readmissions.add(task)
            task.add_done_callback(self._readmissions.discard)

    async def _admit_after(self, device: DeviceId, pause: float) -> None:
        await self._clock.sleep(pause)
        if self._avoided.admit(device):
            self.queue.happened(Cause.DEVICE, driver=device.driver)

    async def _release(self, pod: PodView, claim: resource.ResourceClaim) -> None:
        try:
            if not await self._committer.void(pod):
                return
            await self._committer.release(claim)
        except ApiError as error:
            if error.code not in (404, 409):
                raise
            # It changed or went away: that wakes the pod, and the next decision sees why.
            return
        self.metrics["released"] += 1
        text = f"deallocation of ResourceClaim {name_of(claim)} completed"
        await self._recorder.record(POD, pod.obj, "Normal", "ClaimReleased", text)


def _matters(pod: Object) -> tuple[Any, ...]:
    """The parts of a pod whose change can make it fit."""
    status = pod.get("status") or {}
    return (
        pod.get("spec"),
        at(pod, "metadata", "labels"),
        status.get("resourceClaimStatuses"),
        status.get("extendedResourceClaimStatus"),
    )
