"""Deployments: one ReplicaSet per pod template, and the way from one to the next.

Each pass makes at most one step: revision numbers, then the size of the new ReplicaSet, then that of the
old ones; the ReplicaSets' own status leads to the next pass. The revision of a Deployment lives in
annotations, so that ``kubectl rollout history`` and ``undo`` work.

The name of a ReplicaSet ends in a hash of its template. Where that name is taken by something else,
``status.collisionCount`` grows and goes into the hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drakkar.api.clock import Clock
from drakkar.api.kinds import DEPLOYMENT, POD, REPLICASET
from drakkar.api.meta import Object
from drakkar.api.objects import (
    annotations_of,
    condition,
    controller_of,
    is_deleting,
    key_of,
    name_of,
    namespace_of,
    owner_reference,
    pod_is_done,
    split_key,
    uid_of,
)
from drakkar.api.rules import same_meaning
from drakkar.api.tree import at, child, text, whole
from drakkar.client.cache import Caches
from drakkar.client.writes import After, Create, Patch, Record, Write
from drakkar.controllers.common import BY_CONTROLLER, Queue, Reader
from drakkar.controllers.deploymentstatus import (
    complete,
    paused_conditions,
    progress,
    remaining,
    stated,
    with_progressing,
)
from drakkar.controllers.workloads import (
    OWNING,
    POD_TEMPLATE_HASH,
    claim,
    delete,
    identity,
    scaled,
    selector_of,
    status_patch,
    template_hash,
    wakes,
)

REVISION = "deployment.kubernetes.io/revision"
REVISION_HISTORY = "deployment.kubernetes.io/revision-history"
DESIRED = "deployment.kubernetes.io/desired-replicas"
LARGEST = "deployment.kubernetes.io/max-replicas"
#: Annotations of a Deployment that its ReplicaSets do not take over.
OWN_ANNOTATIONS = frozenset(
    (
        "kubectl.kubernetes.io/last-applied-configuration",
        "deprecated.deployment.rollback.to",
        REVISION,
        REVISION_HISTORY,
        DESIRED,
        LARGEST,
    )
)
#: Characters of the list of former revisions.
HISTORY_LIMIT = 2000


class Deployments:
    """The Deployment controller; keys are ``ns/name``."""

    name = "deployment-controller"

    def __init__(self, reader: Reader, clock: Clock):
        self._reader = reader
        self._clock = clock

    def setup(self, caches: Caches, queue: Queue) -> None:
        """Subscribes to Deployments, ReplicaSets and pods."""
        self._deployments = caches.of(DEPLOYMENT)
        self._sets = caches.of(REPLICASET, indexes=OWNING)
        self._pods = caches.of(POD, indexes=OWNING)

        def set_changed(event: str, old: Object | None, new: Object | None) -> None:
            wakes(queue, DEPLOYMENT, self._deployments, event, old, new)

        def pod_changed(event: str, old: Object | None, new: Object | None) -> None:
            pod = new or old
            owner = controller_of(pod) if pod is not None else None
            if pod is None or owner is None or owner.get("kind") != REPLICASET.kind:
                return
            if event == "DELETED" or pod_is_done(pod):
                # Recreate waits for the last old pod to be gone, which no ReplicaSet tells.
                owning = self._sets.uid(owner["uid"])
                parent = controller_of(owning) if owning is not None else None
                if parent is not None and parent.get("kind") == DEPLOYMENT.kind:
                    queue.add(f"{namespace_of(pod)}/{parent['name']}")

        self._sets.subscribe(set_changed)
        self._pods.subscribe(pod_changed)
        self._deployments.subscribe(lambda event, old, new: queue.add(key_of(new)) if event != "DELETED" else None)

    async def reconcile(self, key: str) -> list[Write]:
        """See the class; raises ApiError when a live read fails."""
        deployment = self._deployments.get(*split_key(key))
        if deployment is None:
            return []
        if not selector_of(deployment).requirements:
            seen = {"observedGeneration": at(deployment, "metadata", "generation")}
            patch = status_patch(DEPLOYMENT, deployment, seen)
            return [patch] if patch is not None else []
        sets, writes = await claim(self._reader, DEPLOYMENT, deployment, REPLICASET, self._sets)
        now = self._clock.time()
        view = _Pass(deployment, sets, now, self._running(sets), self._taken)
        return sorted([*writes, *view.writes()], key=lambda write: isinstance(write, Record))

    def _running(self, sets: Sequence[Object]) -> dict[str, int]:
        """Pods that have not ended, those asked to go among them, by UID of their ReplicaSet."""
        return {
            uid_of(entry): sum(not pod_is_done(pod) for pod in self._pods.by(BY_CONTROLLER, uid_of(entry)))
            for entry in sets
        }

    def _taken(self, namespace: str, name: str) -> bool:
        return self._sets.get(namespace, name) is not None


def _replicas(obj: Object) -> int:
    found = at(obj, "spec", "replicas")
    return 1 if found is None else found


def _revision(obj: Object) -> int:
    return whole(annotations_of(obj).get(REVISION, "")) or 0


def _count(obj: Object, field: str) -> int:
    return at(obj, "status", field) or 0


def _created(obj: Object) -> tuple[str, str]:
    return text(obj, "metadata", "creationTimestamp"), name_of(obj)


class _Pass:
    """One look at one Deployment."""

    def __init__(self, deployment: Object, sets: Sequence[Object], now: float, running: dict[str, int], taken: Any):
        self.deployment = deployment
        self.now = now
        self.running = running
        self.taken = taken
        spec = child(deployment, "spec")
        self.spec = spec
        self.replicas = _replicas(deployment)
        self.rolling = text(spec, "strategy", "type") != "Recreate"
        knobs = child(spec, "strategy", "rollingUpdate")
        self.surge, self.max_unavailable = 0, 0
        if self.rolling:
            self.surge = scaled(knobs.get("maxSurge"), self.replicas, up=True)
            down = scaled(knobs.get("maxUnavailable"), self.replicas, up=False)
            # Neither more nor less than asked for would be a rollout that never moves.
            self.max_unavailable = min(1 if not self.surge and not down else down, self.replicas)
        sets = sorted(sets, key=_created)
        pattern = child(spec, "template")
        self.new = next((entry for entry in sets if _same_template(entry, pattern)), None)
        self.old = [entry for entry in sets if entry is not self.new]
        #: Sizes by UID, as this pass leaves them.
        self.sizes = {uid_of(entry): _replicas(entry) for entry in sets}
        self.out: list[Write] = []
        self.conditions: list[Object] = [*(at(deployment, "status", "conditions") or ())]

    @property
    def sets(self) -> list[Object]:
        return [*self.old, *([self.new] if self.new is not None else [])]

    def size(self, entry: Object) -> int:
        return self.sizes[uid_of(entry)]

    def total(self, sets: Sequence[Object]) -> int:
        return sum(self.size(entry) for entry in sets)

    def writes(self) -> list[Write]:
        """What has to happen now."""
        if is_deleting(self.deployment):
            return self._status(progressing=False)
        paused = bool(self.spec.get("paused"))
        self.conditions = paused_conditions(self.deployment, self.conditions, paused, self.now)
        if paused or self._is_scaling():
            if self._number(create=False):
                return self.out
            self._scale()
            if paused:
                self._clean_up()
            return [*self.out, *self._status(progressing=False)]
        if self.rolling:
            return self._roll()
        return self._recreate()

    # revisions

    def _number(self, *, create: bool) -> bool:
        """Brings the new ReplicaSet and the revision up to date; whether this pass ends with that."""
        number = max((_revision(entry) for entry in self.old), default=0) + 1
        if self.new is None:
            return create and self._make(number)
        entry = self.new
        annotations = self._annotations(entry, number)
        present = annotations_of(entry)
        ready_after = self.spec.get("minReadySeconds") or 0
        changed = {key: value for key, value in annotations.items() if present.get(key) != value}
        if changed or (at(entry, "spec", "minReadySeconds") or 0) != ready_after:
            body = {
                "metadata": {**identity(entry), "annotations": changed},
                "spec": {"minReadySeconds": ready_after or None},
            }
            self.out.append(Patch(REPLICASET, namespace_of(entry), name_of(entry), body))
            return True
        revision = present.get(REVISION, "")
        if annotations_of(self.deployment).get(REVISION) != revision:
            body = {"metadata": {**identity(self.deployment), "annotations": {REVISION: revision}}}
            self.out.append(Patch(DEPLOYMENT, namespace_of(self.deployment), name_of(self.deployment), body))
            return True
        if self._deadline() is not None and condition(self.deployment, "Progressing") is None:
            message = f'Found new replica set "{name_of(entry)}"'
            self.conditions = with_progressing(self.conditions, "True", "FoundNewReplicaSet", message, self.now)
        return False

    def _annotations(self, entry: Object | None, number: int) -> dict[str, str]:
        """Annotations of the new ReplicaSet: those of the Deployment, and its revision with the former ones."""
        result = {key: value for key, value in annotations_of(self.deployment).items() if key not in OWN_ANNOTATIONS}
        present = annotations_of(entry) if entry is not None else {}
        before = present.get(REVISION, "")
        known = whole(before)
        if known is None or known < number:
            result[REVISION] = str(number)
            if known is not None:
                former = [*filter(None, present.get(REVISION_HISTORY, "").split(",")), before]
                while len(former) > 1 and len(",".join(former)) > HISTORY_LIMIT:
                    former.pop(0)
                result[REVISION_HISTORY] = ",".join(former)
        return result

    def _bounds(self) -> dict[str, str]:
        return {DESIRED: str(self.replicas), LARGEST: str(self.replicas + self.surge)}

    def _make(self, number: int) -> bool:
        deployment, template = self.deployment, child(self.spec, "template")
        collisions = _count(deployment, "collisionCount")
        digest = template_hash(template, collisions)
        name = f"{name_of(deployment)}-{digest}"
        if self.taken(namespace_of(deployment), name):
            patch = status_patch(DEPLOYMENT, deployment, {"collisionCount": collisions + 1})
            if patch is not None:
                self.out.append(patch)
            return True
        pattern = child(template, "metadata")
        labels = {**child(pattern, "labels"), POD_TEMPLATE_HASH: digest}
        selector = child(self.spec, "selector")
        spec: Object = {
            "replicas": self._growth(0),
            "selector": {**selector, "matchLabels": {**child(selector, "matchLabels"), POD_TEMPLATE_HASH: digest}},
            "template": {**template, "metadata": {**pattern, "labels": labels}},
        }
        if self.spec.get("minReadySeconds"):
            spec["minReadySeconds"] = self.spec["minReadySeconds"]
        made: Object = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": name,
                "namespace": namespace_of(deployment),
                "labels": labels,
                "annotations": {**self._annotations(None, number), **self._bounds()},
                "ownerReferences": [owner_reference(DEPLOYMENT, deployment)],
            },
            "spec": spec,
        }
        refused = Record(
            DEPLOYMENT,
            deployment,
            "Warning",
            "ReplicaSetCreateError",
            f'Failed to create new replica set "{name}": {{error}}',
        )
        self.out.append(Create(REPLICASET, made, refused=refused, blame=self._blame(name)))
        if spec["replicas"]:
            message = f"Scaled up replica set {name} from 0 to {spec['replicas']}"
            self.out.append(Record(DEPLOYMENT, deployment, "Normal", "ScalingReplicaSet", message))
        if self._deadline() is not None:
            message = f'Created new replica set "{name}"'
            self.conditions = with_progressing(self.conditions, "True", "NewReplicaSetCreated", message, self.now)
            self.out.extend(self._status(progressing=False))
        return True

    def _blame(self, name: str) -> Any:
        if self._deadline() is None:
            return None
        conditions = self.conditions

        def blame(error: str) -> Patch | None:
            message = f'Failed to create new replica set "{name}": {error}'
            found = with_progressing(conditions, "False", "ReplicaSetCreateError", message, self.now)
            return status_patch(DEPLOYMENT, self.deployment, {"conditions": found})

        return blame

    # sizes

    def _resize(self, entry: Object, size: int, *, annotate: bool = True) -> bool:
        """Sets the size of a ReplicaSet; whether anything changes."""
        before = self.size(entry)
        bounds = {key: value for key, value in self._bounds().items() if annotations_of(entry).get(key) != value}
        if size == before and not (annotate and bounds):
            return False
        body: Object = {"metadata": identity(entry), "spec": {"replicas": size}}
        if bounds:
            body["metadata"] = {**identity(entry), "annotations": bounds}
        self.sizes[uid_of(entry)] = size
        # A second change of the same pass replaces the first, whose version would be old by then.
        self.out = [
            write
            for write in self.out
            if not (isinstance(write, Patch) and write.kind is REPLICASET and write.name == name_of(entry))
        ]
        self.out.append(Patch(REPLICASET, namespace_of(entry), name_of(entry), body))
        if size != before:
            way = "up" if size > before else "down"
            message = f"Scaled {way} replica set {name_of(entry)} from {before} to {size}"
            self.out.append(Record(DEPLOYMENT, self.deployment, "Normal", "ScalingReplicaSet", message))
        return size != before

    def _growth(self, size: int) -> int:
        """The size of the new ReplicaSet that the surge allows."""
        if not self.rolling:
            return self.replicas
        room = self.replicas + self.surge - self.total(self.sets)
        return size + max(0, min(room, self.replicas - size))

    def _is_scaling(self) -> bool:
        """Whether the Deployment was given another size since its ReplicaSets were sized."""
        for entry in self.sets:
            desired = whole(annotations_of(entry).get(DESIRED, ""))
            if self.size(entry) > 0 and desired is not None and desired != self.replicas:
                return True
        return False

    def _scale(self) -> None:
        """Another size, in the middle of a rollout shared out among all ReplicaSets in proportion."""
        active = [entry for entry in self.sets if self.size(entry) > 0]
        if len(active) <= 1:
            only = active[0] if active else self.new or max(self.old, key=_created, default=None)
            if only is not None:
                self._resize(only, self.replicas)
            return
        if self._saturated():
            for entry in self.old:
                if self.size(entry) > 0:
                    self._resize(entry, 0)
            return
        if not self.rolling:
            return
        allowed = self.replicas + self.surge if self.replicas > 0 else 0
        to_add = allowed - self.total(active)
        # The largest first; among equals the newest when growing, the oldest when shrinking.
        active.sort(key=_created, reverse=to_add > 0)
        active.sort(key=self.size, reverse=True)
        added = 0
        sizes: list[int] = []
        for entry in active:
            share = self._share(entry, to_add, added)
            sizes.append(self.size(entry) + share)
            added += share
        if to_add:
            sizes[0] = max(0, sizes[0] + to_add - added)
        for entry, size in zip(active, sizes, strict=True):
            self._resize(entry, size)

    def _share(self, entry: Object, to_add: int, added: int) -> int:
        size = self.size(entry)
        if not size or not to_add or to_add == added:
            return 0
        if self.replicas == 0:
            share = -size
        else:
            before = whole(annotations_of(entry).get(LARGEST, "")) or _count(self.deployment, "replicas")
            # Half is rounded away from zero, as upstream does it.
            share = int(size * (self.replicas + self.surge) / (before or 1) + 0.5) - size
        rest = to_add - added
        return min(share, rest) if to_add > 0 else max(share, rest)

    def _saturated(self) -> bool:
        if self.new is None:
            return False
        desired = annotations_of(self.new).get(DESIRED, "")
        return (
            desired == str(self.replicas)
            and self.size(self.new) == self.replicas
            and _count(self.new, "availableReplicas") == self.replicas
        )

    # strategies

    def _roll(self) -> list[Write]:
        if self._number(create=True) or self.new is None:
            return self.out
        size = self.replicas if self.size(self.new) > self.replicas else self._growth(self.size(self.new))
        if not self._resize(self.new, size, annotate=False):
            self._shrink_old()
        return self._finish()

    def _shrink_old(self) -> None:
        assert self.new is not None
        if not self.total(self.old):
            return
        least = self.replicas - self.max_unavailable
        missing = self.size(self.new) - _count(self.new, "availableReplicas")
        room = self.total(self.sets) - least - missing
        if room <= 0:
            return
        # Pods that are not available are no loss.
        for entry in self.old:
            broken = min(room, self.size(entry) - _count(entry, "availableReplicas"))
            if broken > 0:
                self._resize(entry, self.size(entry) - broken)
                room -= broken
        spare = sum(_count(entry, "availableReplicas") for entry in self.sets) - least
        for entry in self.old:
            if spare <= 0:
                break
            fewer = min(self.size(entry), spare)
            if fewer > 0:
                self._resize(entry, self.size(entry) - fewer)
                spare -= fewer

    def _recreate(self) -> list[Write]:
        if self._number(create=False):
            return self.out
        shrunk = [self._resize(entry, 0) for entry in self.old if self.size(entry) > 0]
        if shrunk or any(self.running[uid_of(entry)] for entry in self.old):
            return [*self.out, *self._status(progressing=True)]
        if self._number(create=True) or self.new is None:
            return self.out
        self._resize(self.new, self.replicas, annotate=False)
        return self._finish()

    def _finish(self) -> list[Write]:
        if complete(self.deployment, stated(self.deployment, self.sets, self.new, self.total(self.sets))):
            self._clean_up()
        return [*self.out, *self._status(progressing=True)]

    def _clean_up(self) -> None:
        """Deletes the oldest ReplicaSets beyond ``revisionHistoryLimit`` that are empty."""
        limit = self.spec.get("revisionHistoryLimit")
        old = [entry for entry in self.old if not is_deleting(entry)]
        if limit is None or len(old) <= limit:
            return
        for entry in sorted(old, key=_revision)[: len(old) - limit]:
            settled = (at(entry, "metadata", "generation") or 0) <= _count(entry, "observedGeneration")
            if settled and not _count(entry, "replicas") and not _replicas(entry):
                self.out.append(delete(REPLICASET, entry))

    # status

    def _deadline(self) -> int | None:
        deadline = self.spec.get("progressDeadlineSeconds")
        return None if deadline is None or deadline == 2**31 - 1 else deadline

    def _status(self, *, progressing: bool) -> list[Write]:
        deployment = self.deployment
        status = stated(deployment, self.sets, self.new, self.total(self.sets))
        status["conditions"] = progress(
            deployment, status, self.conditions, self.sets, self.new, self.replicas - self.max_unavailable,
            deadline=self._deadline(), judge=progressing, now=self.now,
        )  # fmt: skip
        patch = status_patch(DEPLOYMENT, deployment, status)
        writes: list[Write] = [patch] if patch is not None else []
        rest = remaining(deployment, status, self._deadline(), self.now) if progressing else None
        return [*writes, After(rest)] if rest is not None else writes


def _same_template(entry: Object, template: Object) -> bool:
    found = child(entry, "spec", "template")
    return same_meaning(_unhashed(found), _unhashed(template))


def _unhashed(template: Object) -> Object:
    pattern = child(template, "metadata")
    labels = {key: value for key, value in child(pattern, "labels").items() if key != POD_TEMPLATE_HASH}
    metadata = {key: value for key, value in pattern.items() if value not in (None, {}, [])}
    return {**template, "metadata": {**metadata, "labels": labels}}
