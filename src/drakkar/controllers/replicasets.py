"""ReplicaSets: as many pods of one template as asked for.

Pods are claimed by selector and controller reference. What is one too many goes in the order of
:func:`~drakkar.controllers.workloads.expendable`; what is missing is made under names that follow from
the ReplicaSet, so that a create repeated on an old copy is refused and doubles nothing. A create that
the server refuses leaves condition ReplicaFailure, which the next success takes away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from drakkar.api.clock import Clock
from drakkar.api.kinds import POD, REPLICASET
from drakkar.api.meta import Object
from drakkar.api.objects import (
    condition,
    controller_of,
    is_deleting,
    key_of,
    labels_of,
    name_of,
    pod_is_done,
    pod_node,
    split_key,
    uid_of,
    with_condition,
)
from drakkar.api.tree import at, child, children
from drakkar.client.cache import Caches
from drakkar.client.clock import timestamp
from drakkar.client.writes import After, Create, Patch, Record, Write
from drakkar.controllers.common import BY_CONTROLLER, Queue, Reader
from drakkar.controllers.workloads import (
    OWNING,
    NameBook,
    born_to,
    claim,
    delete,
    expendable,
    gone,
    is_active,
    pod_of,
    selector_of,
    status_patch,
    tally,
    wakes,
)

#: Pods created or deleted in one go.
BURST = 500
REPLICA_FAILURE = "ReplicaFailure"


class ReplicaSets:
    """The ReplicaSet controller; keys are ``ns/name``."""

    name = "replicaset-controller"

    def __init__(self, reader: Reader, clock: Clock):
        self._reader = reader
        self._clock = clock
        self._books: dict[str, NameBook] = {}

    def setup(self, caches: Caches, queue: Queue) -> None:
        """Subscribes to ReplicaSets and pods."""
        self._sets = caches.of(REPLICASET, indexes=OWNING)
        self._pods = caches.of(POD, indexes=OWNING)

        def pod_changed(event: str, old: Object | None, new: Object | None) -> None:
            if new is not None and (uid := born_to(REPLICASET, event, new)):
                self._books.setdefault(uid, NameBook()).saw(name_of(new))
            wakes(queue, REPLICASET, self._sets, event, old, new)

        def set_changed(event: str, old: Object | None, new: Object | None) -> None:
            self._books.pop(gone(event, old, new), None)
            if event != "DELETED" and new is not None:
                queue.add(key_of(new))

        self._sets.subscribe(set_changed)
        self._pods.subscribe(pod_changed)

    async def reconcile(self, key: str) -> list[Write]:
        """References, then pods, then the status; raises ApiError when a live read fails."""
        owner = self._sets.get(*split_key(key))
        if owner is None or not selector_of(owner).requirements:
            return []
        claimed, writes = await claim(self._reader, REPLICASET, owner, POD, self._pods)
        active = [pod for pod in claimed if is_active(pod)]
        now = self._clock.time()
        # Refused creates keep the failure that stands in the status; the patch behind them takes it away.
        status = _status(owner, claimed, active, now)
        if not is_deleting(owner):
            writes.extend(self._scale(owner, claimed, active, now))
        patch = status_patch(REPLICASET, owner, status, always=("replicas",))
        if patch is not None:
            writes.append(patch)
        soonest = tally(active, at(owner, "spec", "minReadySeconds") or 0, now).soonest
        if soonest is not None:
            writes.append(After(soonest))
        return sorted(writes, key=lambda write: isinstance(write, Record))

    def _scale(self, owner: Object, claimed: Sequence[Object], active: Sequence[Object], now: float) -> list[Write]:
        wanted = at(owner, "spec", "replicas")
        missing = (1 if wanted is None else wanted) - len(active)
        writes: list[Write] = []
        if missing > 0:
            book = self._books.setdefault(uid_of(owner), NameBook())
            for name in book.free(owner, count=min(missing, BURST)):
                writes.append(
                    Create(
                        POD,
                        pod_of(REPLICASET, owner, child(owner, "spec", "template"), name),
                        refused=Record(REPLICASET, owner, "Warning", "FailedCreate", "Error creating: {error}"),
                        blame=lambda error: self._blame(owner, claimed, active, error),
                    )
                )
                writes.append(Record(REPLICASET, owner, "Normal", "SuccessfulCreate", f"Created pod: {name}"))
        elif missing < 0:
            neighbours = self._neighbours(owner)
            order = sorted(active, key=lambda pod: expendable(pod, neighbours[pod_node(pod)], now))
            for pod in order[: min(-missing, BURST)]:
                writes.append(delete(POD, pod))
                message = f"Deleted pod: {name_of(pod)}"
                writes.append(Record(REPLICASET, owner, "Normal", "SuccessfulDelete", message))
        return writes

    def _neighbours(self, owner: Object) -> Counter[str]:
        """Active pods by node, of this ReplicaSet and of its siblings under the same controller."""
        parent = controller_of(owner)
        siblings = self._sets.by(BY_CONTROLLER, parent["uid"]) if parent is not None else [owner]
        return Counter(
            pod_node(pod)
            for sibling in siblings
            for pod in self._pods.by(BY_CONTROLLER, uid_of(sibling))
            if is_active(pod)
        )

    def _blame(self, owner: Object, claimed: Sequence[Object], active: Sequence[Object], error: str) -> Patch | None:
        now = self._clock.time()
        status = _status(owner, claimed, active, now)
        failure = condition(owner, REPLICA_FAILURE) or {
            "type": REPLICA_FAILURE,
            "status": "True",
            "reason": "FailedCreate",
            "message": error,
            "lastTransitionTime": timestamp(now),
        }
        status["conditions"] = with_condition(status["conditions"], failure)
        return status_patch(REPLICASET, owner, status, always=("replicas",))


def _status(owner: Object, claimed: Sequence[Object], active: Sequence[Object], now: float) -> Object:
    """The status that the pods add up to, without a failure."""
    template = child(owner, "spec", "template", "metadata", "labels")
    count = tally(active, at(owner, "spec", "minReadySeconds") or 0, now)
    return {
        "replicas": len(active),
        "fullyLabeledReplicas": sum(labels_of(pod).items() >= template.items() for pod in active),
        "readyReplicas": count.ready,
        "availableReplicas": count.available,
        "terminatingReplicas": sum(is_deleting(pod) and not pod_is_done(pod) for pod in claimed),
        "observedGeneration": at(owner, "metadata", "generation"),
        "conditions": [
            entry for entry in children(owner, "status", "conditions") if entry.get("type") != REPLICA_FAILURE
        ],
    }
