"""What the controllers of workloads (apps/v1) share: who owns what, names, templates, availability, numbers.

A workload owns what its selector matches and what carries its controller reference. Both can
change under its hands: labels are edited, references are dropped. :func:`claim` says which
objects count and which references have to be written.

Source: behaviour of kube-controller-manager 1.37.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from drakkar.api import names
from drakkar.api.kinds import POD, Kind
from drakkar.api.meta import Object
from drakkar.api.objects import (
    annotations_of,
    condition,
    condition_is,
    controller_of,
    is_deleting,
    labels_of,
    name_of,
    namespace_of,
    owner_reference,
    pod_is_done,
    resource_version_of,
    uid_of,
)
from drakkar.api.selectors import LabelSelector
from drakkar.api.tree import child, children, text
from drakkar.client.cache import Cache
from drakkar.client.clock import parse_timestamp
from drakkar.client.writes import Delete, Patch, Write
from drakkar.controllers.common import (
    ALPHABET,
    BY_CONTROLLER,
    Queue,
    Reader,
    controller_index,
    has_uid,
    phase_of,
    same,
    suffix,
)

POD_TEMPLATE_HASH = "pod-template-hash"
REVISION_HASH = "controller-revision-hash"
#: Index of objects without a controller, by namespace.
BY_ORPHANAGE = "controllers/orphans"


def orphan_index(obj: Object) -> Iterable[str]:
    """The namespace, for an object that nobody controls."""
    return () if controller_of(obj) is not None else (namespace_of(obj),)


#: What a cache needs whose objects are claimed.
OWNING = {BY_CONTROLLER: controller_index, BY_ORPHANAGE: orphan_index}


def selector_of(workload: Object) -> LabelSelector:
    """``spec.selector``; one that is absent or empty selects nothing."""
    return LabelSelector.from_object(child(workload, "spec", "selector") or None)


def wakes(queue: Queue, kind: Kind, owners: Cache, event: str, old: Object | None, new: Object | None) -> None:
    """Queues the workloads of ``kind`` that a change of one of their objects concerns."""
    for obj in (old, new):
        owner = controller_of(obj) if obj is not None else None
        if obj is not None and owner is not None and owner.get("kind") == kind.kind:
            queue.add(f"{namespace_of(obj)}/{owner['name']}")
    if new is None or event == "DELETED" or controller_of(new) is not None or is_deleting(new):
        return
    for owner in owners.list(namespace_of(new)):
        if selector_of(owner).matches(labels_of(new)):
            queue.add(f"{namespace_of(owner)}/{name_of(owner)}")


def born_to(kind: Kind, event: str, new: Object | None) -> str:
    """UID of the workload of ``kind`` whose object has just appeared; empty for any other change."""
    owner = controller_of(new) if event == "ADDED" and new is not None else None
    return owner["uid"] if owner is not None and owner.get("kind") == kind.kind else ""


def gone(event: str, old: Object | None, new: Object | None) -> str:
    """UID of a workload that went with this change, also for another one of its name; empty when it is still there."""
    if old is not None and (event == "DELETED" or new is None or uid_of(old) != uid_of(new)):
        return uid_of(old)
    return ""


async def claim(
    reader: Reader, kind: Kind, owner: Object, of: Kind, cache: Cache, *, adoptable: Any = None
) -> tuple[list[Object], list[Write]]:
    """The objects of ``cache`` that count as the owner's, and the references to write.

    Orphans that the selector matches are taken in, after a live look whether the owner is still the same
    one; what no longer matches is let go. ``adoptable`` may refuse an orphan.
    """
    selector = selector_of(owner)
    leaving = is_deleting(owner)
    mine: list[Object] = []
    writes: list[Write] = []
    for obj in cache.by(BY_CONTROLLER, uid_of(owner)):
        if selector.matches(labels_of(obj)):
            mine.append(obj)
        elif not leaving:
            left = [ref for ref in obj["metadata"]["ownerReferences"] if ref["uid"] != uid_of(owner)]
            writes.append(_references(of, obj, left))
    if leaving:
        return mine, writes
    orphans = [
        obj
        for obj in cache.by(BY_ORPHANAGE, namespace_of(owner))
        if not is_deleting(obj)
        and not (of is POD and pod_is_done(obj))
        and selector.matches(labels_of(obj))
        and (adoptable is None or adoptable(obj))
    ]
    if orphans and await has_uid(reader, kind, namespace_of(owner), name_of(owner), uid_of(owner)):
        for obj in orphans:
            held = children(obj, "metadata", "ownerReferences")
            writes.append(_references(of, obj, [*held, owner_reference(kind, owner)]))
            mine.append(obj)
    return mine, writes


def _references(kind: Kind, obj: Object, references: Sequence[Object]) -> Patch:
    body = {"metadata": {**identity(obj), "ownerReferences": [*references] or None}}
    return Patch(kind, namespace_of(obj), name_of(obj), body)


def identity(obj: Object) -> Object:
    """Metadata that makes a patch conditional on the object as it was read."""
    return {"uid": uid_of(obj), "resourceVersion": resource_version_of(obj)}


def status_patch(kind: Kind, obj: Object, wanted: Object, *, always: Collection[str] = ()) -> Patch | None:
    """A conditional patch of the fields of ``status`` that differ; None when none does.

    Zero, empty and absent are one, except for the numbers ``always``, which the API never leaves out.
    """
    present = child(obj, "status")
    changed = {
        key: value
        for key, value in wanted.items()
        if not same(present.get(key), value) or (key in always and key not in present)
    }
    if not changed:
        return None
    return Patch(
        kind, namespace_of(obj), name_of(obj), {"metadata": identity(obj), "status": changed}, "merge", "status"
    )


def delete(kind: Kind, obj: Object) -> Delete:
    """Deletes just this object, not a successor of its name."""
    return Delete(kind, namespace_of(obj), name_of(obj), uid=uid_of(obj))


@dataclass(slots=True)
class NameBook:
    """Names that follow from an owner, a slot and a number, each given once in the life of this process.

    The next name is the first that was never seen, so a create repeated on an old copy asks for the same
    name again and is refused.
    """

    _seen: set[str] = field(default_factory=set[str])
    _cursor: dict[str, int] = field(default_factory=dict[str, int])

    def saw(self, name: str) -> None:
        """Notes an object of the owner."""
        self._seen.add(name)

    def free(self, owner: Object, slot: str = "", count: int = 1) -> list[str]:
        """The next ``count`` names of the slot; asked again before they are seen, the same ones."""
        base = f"{name_of(owner)[:57]}-"
        number = self._cursor.get(slot, 0)
        while (name := base + suffix(uid_of(owner), slot, number)) in self._seen:
            self._seen.discard(name)
            number += 1
        self._cursor[slot] = number
        found: list[str] = []
        while len(found) < count:
            name = base + suffix(uid_of(owner), slot, number)
            if name not in self._seen:
                found.append(name)
            number += 1
        return found


def pod_of(kind: Kind, owner: Object, template: Object, name: str, labels: dict[str, str] | None = None) -> Object:
    """A pod of the template, controlled by ``owner``; ``labels`` come on top of the template's."""
    pattern = child(template, "metadata")
    metadata: Object = {
        "name": name,
        "namespace": namespace_of(owner),
        "labels": {**child(pattern, "labels"), **(labels or {})},
        "ownerReferences": [owner_reference(kind, owner)],
    }
    for field_ in ("annotations", "finalizers"):
        if pattern.get(field_):
            metadata[field_] = pattern[field_]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": dict(child(template, "spec"))}


def template_hash(template: Object, collisions: int = 0) -> str:
    """Ten characters that follow from the meaning of a pod template and the collisions met so far."""
    spelled = json.dumps(_meaning(template), sort_keys=True, separators=(",", ":")) + f"\0{collisions or 0}"
    number = int.from_bytes(hashlib.sha256(spelled.encode()).digest()[:8], "big")
    characters: list[str] = []
    for _ in range(10):
        number, digit = divmod(number, len(ALPHABET))
        characters.append(ALPHABET[digit])
    return "".join(characters)


def _meaning(value: Any) -> Any:
    """Without members that are null and without empty lists, which mean absent."""
    if isinstance(value, dict):
        return {key: _meaning(item) for key, item in value.items() if item is not None and item != []}
    if isinstance(value, list):
        return [_meaning(item) for item in value]
    return value


def scaled(value: Any, total: int, *, up: bool) -> int:
    """A number, or a percentage (``25%``) of ``total``, rounded up or down; an absent one is 0."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value
    share = int(str(value).rstrip("%")) * total
    return -(-share // 100) if up else share // 100


# Pods.


def is_active(pod: Object) -> bool:
    """Whether the pod counts as a replica: not ended and not asked to go."""
    return not pod_is_done(pod) and not is_deleting(pod)


def is_ready(pod: Object) -> bool:
    """Condition Ready."""
    return condition_is(pod, names.POD_READY)


def until_available(pod: Object, min_ready_seconds: int, now: float) -> float | None:
    """Seconds until the pod has been ready for long enough, 0 when it has, None while it is not ready."""
    if not is_ready(pod):
        return None
    since = (condition(pod, names.POD_READY) or {}).get("lastTransitionTime")
    if not min_ready_seconds or not since:
        return 0.0
    return max(0.0, parse_timestamp(since) + min_ready_seconds - now)


@dataclass(frozen=True, slots=True)
class Tally:
    """How many of some pods are ready and available, and when the next one becomes available (seconds)."""

    ready: int
    available: int
    soonest: float | None


def tally(pods: Iterable[Object], min_ready_seconds: int, now: float) -> Tally:
    """Counts pods that are active."""
    rests = [rest for pod in pods if (rest := until_available(pod, min_ready_seconds, now)) is not None]
    waiting = [rest for rest in rests if rest > 0]
    return Tally(len(rests), len(rests) - len(waiting), min(waiting, default=None))


_PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


def expendable(pod: Object, neighbours: int, now: float) -> tuple[Any, ...]:
    """Sort key: the pod to give up first is the smallest.

    Not bound, pending, not ready, cheap (``pod-deletion-cost``), crowded (``neighbours``: related pods on its
    node), ready since lately, often restarted, young. Times count by the power of two of their age.
    """
    ready = is_ready(pod)
    since = (condition(pod, names.POD_READY) or {}).get("lastTransitionTime") if ready else None
    restarts = max(
        (status.get("restartCount") or 0 for status in children(pod, "status", "containerStatuses")), default=0
    )
    return (
        bool(text(pod, "spec", "nodeName")),
        _PHASES.get(phase_of(pod), 2),
        ready,
        _cost(pod),
        -neighbours,
        _age(since, now),
        -restarts,
        _age(text(pod, "metadata", "creationTimestamp"), now),
        uid_of(pod),
    )


def _cost(pod: Object) -> int:
    try:
        return int(annotations_of(pod).get(DELETION_COST, "0"))
    except ValueError:
        return 0


def _age(since: str | None, now: float) -> int:
    seconds = now - parse_timestamp(since) if since else 0.0
    return int(math.log2(seconds * 1e9)) if seconds > 0 else -1
