"""Gate mode: the claims of gated pods are allocated here, and the cluster's own scheduler binds the pods.

Claims are written as in own mode; in the place of the Binding comes one patch that narrows the pod to its node and
lifts the gate. A gate cannot be put back, so the pod is watched until somebody has bound it, and what is lost in
between is repaired (design.md 6): a pod with an owner is deleted, so that its owner makes a new one that is gated, and
a pod without is told the cure. Devices of pods that are gone are given back by the cluster's claim controller, because
they are reserved for these pods from the first write on. Killed anywhere, the next run finds gated pods with allocated
claims, and pods whose annotation names their node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError
from drakkar.api.kinds import POD
from drakkar.api.meta import Object
from drakkar.api.names import ALLOCATED_NODE, ALLOCATION_LOST, DISRUPTION_TARGET, REASON_SCHEDULING_GATED
from drakkar.api.objects import (
    annotations_of,
    condition,
    condition_is,
    controller_of,
    key_of,
    name_of,
    namespace_of,
    pod_node,
    resource_version_of,
    uid_of,
)
from drakkar.api.resource import v1 as resource
from drakkar.api.tree import at
from drakkar.client import Client, Unreachable, timestamp
from drakkar.scheduler.charges import charged
from drakkar.scheduler.commit import Committer, Lost, Result
from drakkar.scheduler.decide import Pending, Placement, Trail
from drakkar.scheduler.equal import Kind
from drakkar.scheduler.gates import (
    PATIENCE,
    REPLACED,
    Loss,
    Strikes,
    cure,
    extended_obstacle,
    is_decidable,
    is_due,
    is_gated,
    is_marked,
    lifted_node,
    lifting,
    loss_of,
    without_special_claim,
)
from drakkar.scheduler.pods import PodView
from drakkar.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)

#: Seconds between two looks at the pods whose gate has been lifted, as long as there are some; of more than
#: ``AT_ONCE`` pods each is looked at in proportion more seldom, so that a scheduler that binds nothing costs little.
LOOK, AT_ONCE = 0.25, 256
#: Seconds until a repair that failed is tried again, and at most: doubled with every failure.
AGAIN, AT_MOST = 1.0, 30.0

_RIGHTS = (
    "Gate mode needs the verbs patch and delete for pods beside the rights of own mode: add the ClusterRole "
    "drakkar-scheduler-gate of docs/how-to/beside-kube-scheduler.md, or run with --mode own"
)


class GateCommitter(Committer):
    """Carries out placements of gated pods by lifting the gate, all others by a Binding.

    ``binds`` says which gated pods have no other scheduler, so that they are bound here, too.
    """

    def __init__(self, *parts: Any, binds: Callable[[Object], bool], **settings: Any):
        super().__init__(*parts, **settings)
        self._binds = binds

    async def write_claims(self, pod: PodView, placement: Placement) -> tuple[PodView, list[resource.ResourceClaim]]:
        """As in own mode; the claim behind extended resources is none that we could make for another scheduler."""
        if is_gated(pod.obj) and placement.extended is not None:
            raise Lost(extended_obstacle({"of the pod"}))
        return await super().write_claims(pod, placement)

    async def bind(self, pod: PodView, node: str, claims: Sequence[resource.ResourceClaim] = ()) -> Result:
        """Lifts the gate; GONE when somebody else has done so, or the pod does not need it any more."""
        if not is_gated(pod.obj):
            return await super().bind(pod, node, claims)
        obj = pod.obj
        for _ in (1, 2):
            try:
                # Makes kube-scheduler look at this node first and keep its room free.
                nominated = (await self.nominate(PodView.of(obj), node)).obj
                freed = await self._client.patch(POD, pod.name, pod.namespace, lifting(nominated, node))
                if not self._binds(pod.obj):
                    return Result.BOUND
                return await super().bind(PodView.of(freed), node, claims)
            except ApiError as error:
                if error.code == 404:
                    return Result.GONE
                if error.code != 409:
                    raise
                fresh = await self.pod_now(pod)
                if fresh is None or not is_gated(fresh):
                    return Result.GONE
                if not is_decidable(fresh) or fresh.get("spec") != obj.get("spec"):
                    raise Lost(f"pod {pod.key} changed while its gate was lifted") from error
                await self.stand(pod, claims)
                obj = fresh
        raise Lost(f"pod {pod.key} changes too fast for its gate to be lifted")


class GateScheduler(Scheduler):
    """Decides about gated pods, whoever binds them, and about all pods of ``scheduler_names`` as own mode does.

    ``patience`` is how many seconds a loss that may pass by itself has to last before it is repaired.
    """

    def __init__(self, client: Client, clock: Clock, *, patience: float = PATIENCE, **settings: Any):
        super().__init__(client, clock, **settings)
        #: Pods whose gate is lifted and that nobody has bound yet: uid → what they have lost and when to repair that.
        self._lifted: dict[str, tuple[Loss, float] | None] = {}
        #: Pods that have been said to be lost and are still there: killed in between, or without the right to delete.
        self._marked: set[str] = set()
        self._some_lifted = asyncio.Event()
        #: Uid → how often its repair has failed, and when it is tried again (monotonic).
        self._failed: dict[str, tuple[int, float]] = {}
        self._strikes = Strikes(patience)

    def is_ours(self, pod: Object) -> bool:
        """Whether this scheduler decides about the pod: gated, or with our scheduler name."""
        return is_gated(pod) or super().is_ours(pod)

    def waits(self, pod: Object) -> bool:
        """Whether the pod can be decided now: no gate but ours."""
        return is_due(pod)

    def _make_committer(self) -> Committer:
        return GateCommitter(
            self._client,
            self.cluster,
            self._claims,
            self._clock,
            settled=self._on_settled,
            metrics=self.metrics,
            binds=super().is_ours,
        )

    def _accompany(self, group: asyncio.TaskGroup) -> None:
        group.create_task(self._watch_lifted(), name="lifted-pods")

    def _condition_reason(self, pod: PodView, pending: Pending) -> str:
        # This reason goes with the gate, and keeps others from taking the pod for one that needs more nodes.
        return REASON_SCHEDULING_GATED if is_gated(pod.obj) else super()._condition_reason(pod, pending)

    def _decide(self, pod: PodView, trail: Trail) -> tuple[Kind | None, Placement | Pending | None]:
        kind, decision = super()._decide(pod, trail)
        if decision is None or not is_gated(pod.obj):
            return kind, decision
        allowed = without_special_claim(self.cluster, pod, decision)
        if allowed is decision:
            return kind, decision
        trail.names = ()
        return None, allowed

    async def _tell_group(self, key: str, starts: bool, message: str) -> None:
        """A group starts when its pods are bound; of gated ones their own scheduler tells that."""
        if not any(is_gated(pod) or lifted_node(pod) for pod in self.cluster.pods_of_group(key)):
            await super()._tell_group(key, starts, message)

    async def _carried_out(self, pod: PodView, placement: Placement) -> None:
        if super().is_ours(pod.obj):
            await super()._carried_out(pod, placement)
            return
        self.metrics["lifted"] += 1
        what = f"Devices of {pod.key} are allocated on {placement.node}"
        if not pod.obj["spec"].get("resourceClaims"):
            what = f"{pod.key} has no claims, and room on {placement.node}"
        text = f"{what}; its scheduler may bind it"
        await self._recorder.record(POD, pod.obj, "Normal", "Allocated", text)

    async def _give_up(self, pod: PodView, placement: Placement, error: Exception) -> None:
        await super()._give_up(pod, placement, error)
        if is_gated(pod.obj) and isinstance(error, ApiError) and error.code == 403:
            text = f"{error}. {_RIGHTS}"
            logger.warning("pod %s: %s", pod.key, text)
            await self._recorder.record(POD, pod.obj, "Warning", "FailedScheduling", text)

    # pods between the lift and the Binding

    def _on_pod(self, event: str, old: Object | None, pod: Object) -> None:
        super()._on_pod(event, old, pod)
        uid = uid_of(pod)
        if event != "DELETED" and is_marked(pod) and controller_of(pod) is not None:
            self._marked.add(uid)
            self._some_lifted.set()
        else:
            self._marked.discard(uid)
        node = lifted_node(pod) if event != "DELETED" and not self.is_ours(pod) else ""
        if node:
            if not self.cluster.node_of(uid):
                # Lifted before this run began; it has its room as if it had been decided now.
                self.cluster.assume(PodView.of(pod).with_more(charged(pod)), node, ())
            self._lifted.setdefault(uid, None)
            self._some_lifted.set()
            return
        if uid not in self._marked:
            self._failed.pop(uid, None)
        if event != "DELETED" and pod_node(pod) and annotations_of(pod).get(ALLOCATED_NODE):
            self._strikes.succeeded(_owner(pod))
        if uid in self._lifted:
            del self._lifted[uid]
            if event != "DELETED" and not pod_node(pod):
                # On its way out: nobody binds it, and its room is free.
                self.cluster.forget(PodView.of(pod))
                self._room_returned(pod)

    async def _watch_lifted(self) -> None:
        while True:
            if not self._lifted and not self._marked:
                self._some_lifted.clear()
                await self._some_lifted.wait()
            await self._clock.sleep(LOOK * max(1.0, len(self._lifted) / AT_ONCE))
            # All before the first repair, so that what a job loses by one event is repaired together.
            for number, uid in enumerate([*self._lifted], 1):
                self._look_at(uid)
                if number % AT_ONCE == 0:
                    # Watches have to be read in between.
                    await asyncio.sleep(0)
            for uid in [*self._lifted, *self._marked]:
                times, due = self._failed.get(uid, (0, 0.0))
                if due > self._clock.monotonic():
                    continue
                # Unless it goes well.
                self._failed[uid] = times + 1, self._clock.monotonic() + min(AGAIN * 2**times, AT_MOST)
                try:
                    await self._repair(uid)
                    self._failed.pop(uid, None)
                except (ApiError, Unreachable) as error:
                    missing = _RIGHTS if isinstance(error, ApiError) and error.code == 403 else ""
                    pod = self._pods.uid(uid)
                    named = key_of(pod) if pod is not None else uid
                    logger.warning("pod %s: its loss was not repaired: %s. %s", named, error, missing)
                except Exception:
                    logger.exception("looking after pod %s failed", uid)

    def _look_at(self, uid: str) -> None:
        """Notes what a pod has lost, and when that is to be repaired (monotonic seconds)."""
        pod = self._pods.uid(uid)
        node = lifted_node(pod) if pod is not None else ""
        if pod is None or not node or uid not in self._lifted:
            # On its way out of here, by an event that has yet to come.
            return
        loss, known = loss_of(self.cluster, PodView.of(pod), node), self._lifted[uid]
        if loss is None:
            self._lifted[uid] = None
        elif known is not None and known[0].reason == loss.reason:
            self._lifted[uid] = loss, known[1]
        else:
            now = self._clock.monotonic()
            self._lifted[uid] = loss, now + self._strikes.wait(_owner(pod), loss, now)

    async def _repair(self, uid: str) -> None:
        """Replaces a pod whose loss has lasted, or tells of it; tells, too, when the loss is over."""
        pod = self._pods.uid(uid)
        if pod is not None and uid in self._marked:
            await self._delete(pod)
            return
        if pod is None or not lifted_node(pod) or uid not in self._lifted:
            return
        found = self._lifted[uid]
        if found is None:
            if condition_is(pod, ALLOCATION_LOST):
                text = f"it can run on node {lifted_node(pod)} again"
                await self._tell(pod, ALLOCATION_LOST, "False", "Recovered", text)
            return
        loss, due = found
        if self._clock.monotonic() < due:
            return
        if controller_of(pod) is not None:
            await self._replace(pod, loss)
            return
        told = condition(pod, ALLOCATION_LOST) or {}
        if (told.get("status"), told.get("reason")) != ("True", loss.reason):
            await self._tell(pod, ALLOCATION_LOST, "True", loss.reason, cure(loss, pod))
            self.metrics["reported"] += 1
            await self._recorder.record(POD, pod, "Warning", "AllocationLost", cure(loss, pod))

    async def _replace(self, pod: Object, loss: Loss) -> None:
        """Has the owner make the pod anew, unless it has been bound meanwhile.

        First one write of exactly the state that was seen says that the pod has failed by a disruption. From then on
        no node starts it, and Jobs can tell by it that the pod is no failure of their own; then it is deleted.
        """
        message = f"{loss.message}{REPLACED}"
        try:
            await self._tell(pod, DISRUPTION_TARGET, "True", loss.reason, message, phase="Failed")
        except ApiError as error:
            if error.code not in (404, 409):
                raise
            # It is gone, or has changed: the next look sees how.
            return
        self._strikes.repaired(_owner(pod), self._clock.monotonic())
        self.metrics["repaired"] += 1
        logger.info("pod %s: %s", key_of(pod), message)
        await self._recorder.record(POD, pod, "Warning", "AllocationLost", message)
        await self._delete(pod)

    async def _delete(self, pod: Object) -> None:
        """What fails here is tried again, by the mark on the pod."""
        try:
            await self._client.delete(POD, name_of(pod), namespace_of(pod), uid=uid_of(pod))
        except ApiError as error:
            if error.code not in (404, 409):
                raise

    async def _tell(self, pod: Object, kind: str, status: str, reason: str, message: str, **more: Any) -> None:
        """Writes a condition, and what else its status is to say, onto exactly this state of the pod."""
        state = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": timestamp(self._clock.time()),
        }
        body = {
            "metadata": {"uid": uid_of(pod), "resourceVersion": resource_version_of(pod)},
            "status": {"conditions": [state], **more},
        }
        await self._client.patch(POD, name_of(pod), namespace_of(pod), body, "strategic", "status")


def _owner(pod: Object) -> str:
    """Uid of the pod's controller; the pod's own without one."""
    owner = controller_of(pod)
    return at(owner, "uid") if owner is not None else uid_of(pod)
