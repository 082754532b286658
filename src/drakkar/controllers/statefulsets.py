"""StatefulSets: pods with names that stay, made and replaced in order.

Pod ``set-ordinal`` comes with a claim per volume claim template, ``template-set-ordinal``, which outlives
it. With ``OrderedReady`` one pod at a time is made, taken away or replaced, and only while all others are
healthy; with ``Parallel`` only updates wait for one another. Binding the claims is not ours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from drakkar.api.clock import Clock
from drakkar.api.kinds import CONTROLLERREVISION, PERSISTENTVOLUMECLAIM, POD, STATEFULSET
from drakkar.api.meta import Object
from drakkar.api.objects import (
    controller_of,
    is_deleting,
    key_of,
    labels_of,
    name_of,
    namespace_of,
    owner_reference,
    pod_is_done,
    split_key,
    uid_of,
)
from drakkar.api.tree import at, child, children, text
from drakkar.client.cache import Cache, Caches
from drakkar.client.writes import After, Create, Patch, Record, Write
from drakkar.controllers.common import Queue, Reader, owner_references, phase_of
from drakkar.controllers.revisions import History, history, surplus, template_of
from drakkar.controllers.workloads import (
    OWNING,
    REVISION_HASH,
    claim,
    delete,
    identity,
    is_active,
    is_ready,
    pod_of,
    scaled,
    selector_of,
    status_patch,
    until_available,
    wakes,
)

HASH_LABEL = "controller.kubernetes.io/hash"
POD_NAME = "statefulset.kubernetes.io/pod-name"
POD_INDEX = "apps.kubernetes.io/pod-index"
NUMBERS = ("replicas", "availableReplicas")
_NAME = re.compile(r"(.*)-([0-9]+)")


class StatefulSets:
    """The StatefulSet controller; keys are ``ns/name``."""

    name = "statefulset-controller"

    def __init__(self, reader: Reader, clock: Clock):
        self._reader = reader
        self._clock = clock

    def setup(self, caches: Caches, queue: Queue) -> None:
        """Subscribes to StatefulSets, their pods and revisions; claims are only looked up."""
        self._sets = caches.of(STATEFULSET)
        self._revisions = caches.of(CONTROLLERREVISION, indexes=OWNING)
        self._claims = caches.of(PERSISTENTVOLUMECLAIM)
        self._pods = caches.of(POD, indexes=OWNING)

        def changed(event: str, old: Object | None, new: Object | None) -> None:
            wakes(queue, STATEFULSET, self._sets, event, old, new)

        self._pods.subscribe(changed)
        self._revisions.subscribe(changed)
        self._sets.subscribe(lambda event, old, new: queue.add(key_of(new)) if event != "DELETED" else None)

    async def reconcile(self, key: str) -> list[Write]:
        """References, the revision, then claims and pods, then the status; raises ApiError."""
        owner = self._sets.get(*split_key(key))
        if owner is None or not selector_of(owner).requirements:
            return []
        pods, writes = await claim(
            self._reader,
            STATEFULSET,
            owner,
            POD,
            self._pods,
            adoptable=lambda pod: ordinal_of(owner, pod) is not None,
        )
        revisions, more = await claim(self._reader, STATEFULSET, owner, CONTROLLERREVISION, self._revisions)
        writes.extend(more)
        if is_deleting(owner):
            return writes
        found = history(STATEFULSET, owner, revisions, self._revisions, hash_label=HASH_LABEL)
        if found.writes:
            return [*writes, *found.writes]
        view = _Pass(owner, pods, found, self._claims, self._clock.time())
        return sorted([*writes, *view.writes()], key=lambda write: isinstance(write, Record))


def ordinal_of(owner: Object, pod: Object) -> int | None:
    """The ordinal in the pod's name, None when the name is not one of the set's."""
    match = _NAME.fullmatch(name_of(pod))
    if match is None or match[1] != name_of(owner):
        return None
    return int(match[2]) if match[2] == str(int(match[2])) else None


@dataclass(frozen=True, slots=True)
class _Slot:
    ordinal: int
    pod: Object | None


class _Pass:
    """One look at one StatefulSet."""

    def __init__(self, owner: Object, pods: Sequence[Object], found: History, claims: Cache, now: float):
        spec = child(owner, "spec")
        self.owner = owner
        self.spec = spec
        self.now = now
        self.claims = claims
        self.history = found
        self.update = found.current
        named = found.named(text(owner, "status", "currentRevision"))
        self.current = self.update if named is None else named
        replicas = spec.get("replicas")
        self.replicas: int = 1 if replicas is None else replicas
        self.start: int = at(spec, "ordinals", "start") or 0
        self.ordered = spec.get("podManagementPolicy") != "Parallel"
        self.rolling = text(spec, "updateStrategy", "type") != "OnDelete"
        self.partition: int = at(spec, "updateStrategy", "rollingUpdate", "partition") or 0
        self.min_ready: int = spec.get("minReadySeconds") or 0
        self.pods = [pod for pod in pods if ordinal_of(owner, pod) is not None]
        by_ordinal = {ordinal_of(owner, pod): pod for pod in self.pods}
        wanted = range(self.start, self.start + self.replicas)
        self.slots = [_Slot(ordinal, by_ordinal.get(ordinal)) for ordinal in wanted]
        condemned = [pod for pod in self.pods if ordinal_of(owner, pod) not in wanted]
        self.condemned = sorted(condemned, key=lambda pod: ordinal_of(owner, pod) or 0, reverse=True)
        self.events: list[Write] = []
        self.timers: list[float] = []

    def writes(self) -> list[Write]:
        """What has to happen now."""
        writes = self._step()
        if not writes:
            in_use = {name_of(self.current), *(_revision(pod) for pod in self.pods)}
            writes.extend(surplus(self.history, self.spec.get("revisionHistoryLimit"), in_use))
        patch = status_patch(STATEFULSET, self.owner, self._status(), always=NUMBERS)
        if patch is not None:
            writes.append(patch)
        if self.timers:
            writes.append(After(min(self.timers)))
        return [*writes, *self.events]

    def _step(self) -> list[Write]:
        writes: list[Write] = []
        for slot in self.slots:
            pod = slot.pod
            if pod is None:
                writes.extend(self._create(slot.ordinal))
                if self.ordered:
                    return writes
                continue
            if pod_is_done(pod):
                if not is_deleting(pod):
                    writes.append(self._delete(pod))
                if self.ordered:
                    return writes
                continue
            writes.extend(self._claims_of(slot.ordinal, pod))
            writes.extend(self._identify(slot.ordinal, pod))
            if self.ordered and not self._healthy(pod):
                return writes
        for pod in self.condemned:
            if is_deleting(pod):
                if self.ordered:
                    return writes
                continue
            unhealthy = next((other for other in self.condemned[::-1] if not self._healthy(other)), None)
            if self.ordered and not self._healthy(pod) and unhealthy is not pod:
                return writes
            writes.extend(self._release_claims(pod))
            writes.append(self._delete(pod))
            if self.ordered:
                return writes
        if not self.rolling or any(isinstance(write, Create) and write.kind is POD for write in writes):
            return writes
        return [*writes, *self._roll()]

    def _roll(self) -> list[Write]:
        """Replaces pods of another revision from the last one down to the partition."""
        knob = at(self.spec, "updateStrategy", "rollingUpdate", "maxUnavailable")
        most = max(1, scaled(1 if knob is None else knob, self.replicas, up=False))
        eligible = [slot for slot in self.slots if slot.pod is not None and slot.ordinal >= self.start + self.partition]
        room = most
        if most > 1:
            room -= sum(not self._healthy(slot.pod) for slot in self.slots if slot.pod is not None)
        writes: list[Write] = []
        for slot in reversed(eligible):
            pod = slot.pod
            assert pod is not None
            if _revision(pod) != name_of(self.update) and not is_deleting(pod):
                # One that is not healthy is no loss, and its repair may be what the update is.
                if room <= 0 and self._healthy(pod):
                    break
                room -= 1
                writes.append(self._delete(pod))
                if most == 1:
                    break
            elif most == 1 and not self._healthy(pod):
                break
        return writes

    def _healthy(self, pod: Object) -> bool:
        """Running, ready for long enough, and not asked to go."""
        if phase_of(pod) != "Running" or is_deleting(pod):
            return False
        rest = until_available(pod, self.min_ready, self.now)
        if rest:
            self.timers.append(rest)
        return rest == 0

    # writes

    def _record(self, type_: str, reason: str, message: str) -> Record:
        return Record(STATEFULSET, self.owner, type_, reason, message)

    def _delete(self, pod: Object) -> Write:
        message = f"delete Pod {name_of(pod)} in StatefulSet {name_of(self.owner)} successful"
        self.events.append(self._record("Normal", "SuccessfulDelete", message))
        return delete(POD, pod)

    def _create(self, ordinal: int) -> list[Write]:
        revision = self.current if self.rolling and ordinal < self.start + self.partition else self.update
        name = f"{name_of(self.owner)}-{ordinal}"
        labels = {POD_NAME: name, POD_INDEX: str(ordinal), REVISION_HASH: name_of(revision)}
        pod = pod_of(STATEFULSET, self.owner, template_of(revision), name, labels)
        spec = pod["spec"]
        spec["hostname"] = name
        if self.spec.get("serviceName"):
            spec["subdomain"] = self.spec["serviceName"]
        templates = [name_of(template) for template in children(self.spec, "volumeClaimTemplates")]
        if templates:
            volumes = [volume for volume in children(spec, "volumes") if volume["name"] not in templates]
            for template in templates:
                source = {"claimName": f"{template}-{name}", "readOnly": False}
                volumes.append({"name": template, "persistentVolumeClaim": source})
            spec["volumes"] = volumes
        where = f"in StatefulSet {name_of(self.owner)}"
        refused = self._record("Warning", "FailedCreate", f"create Pod {name} {where} failed error: {{error}}")
        self.events.append(self._record("Normal", "SuccessfulCreate", f"create Pod {name} {where} successful"))
        return [*self._claims_of(ordinal, None), Create(POD, pod, refused=refused)]

    def _claims_of(self, ordinal: int, pod: Object | None) -> list[Write]:
        """The claims of an ordinal that are missing; a running pod has what it needs."""
        writes: list[Write] = []
        if pod is not None and (phase_of(pod) != "Pending" or is_deleting(pod)):
            return writes
        for template in children(self.spec, "volumeClaimTemplates"):
            name = f"{name_of(template)}-{name_of(self.owner)}-{ordinal}"
            if self.claims.get(namespace_of(self.owner), name) is not None:
                continue
            pattern = child(template, "metadata")
            metadata: Object = {
                "name": name,
                "namespace": namespace_of(self.owner),
                "labels": {**child(pattern, "labels"), **child(self.spec, "selector", "matchLabels")},
            }
            if pattern.get("annotations"):
                metadata["annotations"] = pattern["annotations"]
            if text(self.spec, "persistentVolumeClaimRetentionPolicy", "whenDeleted") == "Delete":
                metadata["ownerReferences"] = [owner_reference(STATEFULSET, self.owner)]
            made = {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": metadata,
                "spec": child(template, "spec"),
            }
            message = f"create Claim {name} in StatefulSet {name_of(self.owner)}"
            refused = self._record("Warning", "FailedCreate", f"{message} failed error: {{error}}")
            writes.append(Create(PERSISTENTVOLUMECLAIM, made, refused=refused))
            self.events.append(self._record("Normal", "SuccessfulCreate", f"{message} success"))
        return writes

    def _release_claims(self, pod: Object) -> list[Write]:
        """With ``whenScaled: Delete`` the claims of a condemned pod go with it."""
        if text(self.spec, "persistentVolumeClaimRetentionPolicy", "whenScaled") != "Delete":
            return []
        writes: list[Write] = []
        for template in children(self.spec, "volumeClaimTemplates"):
            found = self.claims.get(namespace_of(pod), f"{name_of(template)}-{name_of(pod)}")
            if found is None or any(ref["uid"] == uid_of(pod) for ref in owner_references(found)):
                continue
            held = [ref for ref in owner_references(found) if ref["uid"] != uid_of(self.owner)]
            body = {
                "metadata": {
                    **identity(found),
                    "ownerReferences": [*held, owner_reference(POD, pod, controller=controller_of(found) is None)],
                }
            }
            writes.append(Patch(PERSISTENTVOLUMECLAIM, namespace_of(found), name_of(found), body))
        return writes

    def _identify(self, ordinal: int, pod: Object) -> list[Write]:
        """Labels by which an adopted pod is known as this one."""
        wanted = {POD_NAME: name_of(pod), POD_INDEX: str(ordinal)}
        if wanted.items() <= labels_of(pod).items():
            return []
        body = {"metadata": {"uid": uid_of(pod), "labels": wanted}}
        return [Patch(POD, namespace_of(pod), name_of(pod), body)]

    # status

    def _status(self) -> Object:
        alive = [pod for pod in self.pods if phase_of(pod) in ("Pending", "Running", "Unknown")]
        active = [pod for pod in alive if is_active(pod)]
        ready = [pod for pod in alive if phase_of(pod) == "Running" and is_ready(pod)]
        available = [pod for pod in ready if until_available(pod, self.min_ready, self.now) == 0]
        for pod in ready:
            rest = until_available(pod, self.min_ready, self.now)
            if rest:
                self.timers.append(rest)
        update, current = name_of(self.update), name_of(self.current)
        updated = sum(_revision(pod) == update for pod in active)
        old = sum(_revision(pod) == current for pod in active)
        if self.rolling and updated == len(ready) == len(alive) == self.replicas:
            current, old = update, updated
        return {
            "replicas": len(alive),
            "readyReplicas": len(ready),
            "availableReplicas": len(available),
            "currentReplicas": old,
            "updatedReplicas": updated,
            "currentRevision": current,
            "updateRevision": update,
            "collisionCount": self.history.collisions,
            "observedGeneration": at(self.owner, "metadata", "generation"),
        }


def _revision(pod: Object) -> str:
    return labels_of(pod).get(REVISION_HASH, "")
