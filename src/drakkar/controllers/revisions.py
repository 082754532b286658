"""ControllerRevisions: what a DaemonSet or StatefulSet looked like before, for ``kubectl rollout undo``.

A revision holds the pod template as a patch of the workload; its name follows from that. Going back to
an old template takes up the old revision under a new number.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from drakkar.api.kinds import CONTROLLERREVISION, Kind
from drakkar.api.meta import Object
from drakkar.api.objects import annotations_of, name_of, namespace_of, owner_reference
from drakkar.api.rules import same_meaning
from drakkar.api.tree import at, child
from drakkar.client.cache import Cache
from drakkar.client.writes import Create, Patch, Write
from drakkar.controllers.workloads import delete, identity, status_patch, template_hash


@dataclass(frozen=True, slots=True)
class History:
    """The revisions of a workload, oldest first; the last one is the template of now."""

    revisions: Sequence[Object]
    #: What brings the server there; where there is something, only this is done in this pass.
    writes: Sequence[Write]
    #: What ``status.collisionCount`` has to be.
    collisions: int

    @property
    def current(self) -> Object:
        """The revision of the template of now, as it is or will be."""
        return self.revisions[-1]

    def named(self, name: str) -> Object | None:
        """The revision of this name."""
        return next((entry for entry in self.revisions if name_of(entry) == name), None)


def template_of(revision: Object) -> Object:
    """The pod template that the revision holds."""
    found = child(revision, "data", "spec", "template")
    return {key: value for key, value in found.items() if key != "$patch"}


def history(kind: Kind, owner: Object, revisions: Sequence[Object], cache: Cache, *, hash_label: str) -> History:
    """The history with the template of now as its last entry; ``cache`` tells which names are taken.

    A taken name is stepped over by ``status.collisionCount``, which is written before the revision is made.
    """
    counted: int = at(owner, "status", "collisionCount") or 0
    collisions = counted
    template = child(owner, "spec", "template")
    known = sorted(revisions, key=lambda entry: (entry.get("revision") or 0, name_of(entry)))
    number = (known[-1].get("revision") or 0) + 1 if known else 1
    same = [entry for entry in known if same_meaning(template_of(entry), template)]
    if same:
        found = same[-1]
        if found is known[-1]:
            return History(known, (), collisions)
        body = {"metadata": identity(found), "revision": number}
        patch = Patch(CONTROLLERREVISION, namespace_of(found), name_of(found), body)
        others = [entry for entry in known if entry is not found]
        return History([*others, {**found, "revision": number}], (patch,), collisions)
    while cache.get(namespace_of(owner), name := f"{name_of(owner)}-{template_hash(template, collisions)}"):
        collisions += 1
    made: Object = {
        "apiVersion": CONTROLLERREVISION.api_version,
        "kind": CONTROLLERREVISION.kind,
        "metadata": {
            "name": name,
            "namespace": namespace_of(owner),
            "labels": {**child(template, "metadata", "labels"), hash_label: template_hash(template, collisions)},
            "annotations": dict(annotations_of(owner)),
            "ownerReferences": [owner_reference(kind, owner)],
        },
        "data": {"spec": {"template": {**template, "$patch": "replace"}}},
        "revision": number,
    }
    writes: list[Write] = [Create(CONTROLLERREVISION, made)]
    if collisions != counted:
        patch = status_patch(kind, owner, {"collisionCount": collisions})
        writes = [*([patch] if patch is not None else ()), *writes]
    return History([*known, made], tuple(writes), collisions)


def surplus(found: History, limit: int | None, in_use: Collection[str]) -> list[Write]:
    """Deletes the oldest revisions beyond ``limit`` that no pod is of; ``in_use`` are names."""
    if limit is None:
        return []
    idle = [entry for entry in found.revisions[:-1] if name_of(entry) not in in_use]
    return [delete(CONTROLLERREVISION, entry) for entry in idle[: max(0, len(idle) - limit)]]
