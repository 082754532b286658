"""Garbage collection: what nobody owns any more goes.

Owners are known by UID. An object goes when all its owners are gone, which a live GET has to
confirm, because a cache may simply not have seen an owner yet. Three ways to delete an owner:
in the background (its dependents go afterwards), in the foreground (finalizer
``foregroundDeletion``: blocking dependents first) and with orphans (finalizer ``orphan``: dependents
lose the reference and stay).

Owners of other kinds (custom resources above all) are asked for live at the path that discovery
names, and their kind is watched from then on; an owner that cannot be asked for counts as alive.

Source: spec/apiserver.md 5, Ownership.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from drakkar.api import names
from drakkar.api.kinds import (
    CONFIGMAP,
    CONTROLLERREVISION,
    DAEMONSET,
    DEPLOYMENT,
    DEVICECLASS,
    DEVICETAINTRULE,
    JOB,
    LEASE,
    NAMESPACE,
    NODE,
    PERSISTENTVOLUMECLAIM,
    POD,
    REPLICASET,
    RESOURCECLAIM,
    RESOURCECLAIMTEMPLATE,
    RESOURCESLICE,
    SECRET,
    SERVICEACCOUNT,
    STATEFULSET,
    Kind,
)
from drakkar.api.meta import Object
from drakkar.api.objects import finalizers_of, is_deleting, name_of, namespace_of, resource_version_of, uid_of
from drakkar.client.cache import Cache, Caches
from drakkar.client.writes import After, Delete, Patch, Record, Write
from drakkar.controllers.common import BY_OWNER, Queue, live, owner_index, owner_references
from drakkar.controllers.discovery import Server, find_kind

logger = logging.getLogger(__name__)

#: Kinds that own or are owned in our plane. Events have no owners and come in masses.
DEFAULT_KINDS: tuple[Kind, ...] = (
    POD, JOB, RESOURCECLAIM, RESOURCECLAIMTEMPLATE, RESOURCESLICE, DEVICECLASS, DEVICETAINTRULE,
    NODE, LEASE, CONFIGMAP, SECRET, SERVICEACCOUNT, NAMESPACE, PERSISTENTVOLUMECLAIM,
    REPLICASET, DEPLOYMENT, DAEMONSET, STATEFULSET, CONTROLLERREVISION,
)  # fmt: skip
#: UIDs of absent owners that are remembered.
REMEMBERED = 8192
#: Seconds until an owner is asked for again whose kind is not watched yet: it may go before the watch begins.
_AGAIN = 1.0


class Garbage:
    """The garbage collector over ``kinds``; keys are ``<number of the kind>:ns/name``."""

    name = "garbage-collector"

    def __init__(self, server: Server, kinds: Sequence[Kind] = DEFAULT_KINDS):
        self._server = server
        self._kinds = tuple(kinds)
        self._numbers = {(kind.group, kind.kind): number for number, kind in enumerate(self._kinds)}
        self._absent: OrderedDict[str, None] = OrderedDict()
        self._unknown: set[tuple[str, str]] = set()
        #: Caches of kinds that somebody's owner is of, beside ours.
        self._others: dict[Kind, Cache] = {}

    def setup(self, caches: Caches, queue: Queue) -> None:
        """Subscribes to every kind."""
        self._queue = queue
        self._all = caches
        # Listeners look into all caches, so all have to be there before the first one is called.
        self._caches: list[Cache] = [caches.of(kind, indexes={BY_OWNER: owner_index}) for kind in self._kinds]
        for number, cache in enumerate(self._caches):
            cache.subscribe(self._listener(number))

    def _listener(self, number: int) -> Any:
        def changed(event: str, old: Any, new: Any) -> None:
            if event == "MODIFIED" and not is_deleting(new) and _same_owners(old, new):
                return
            if old is not None and (event == "DELETED" or new is None or uid_of(old) != uid_of(new)):
                self._remember_absent(uid_of(old))
                self._wake_dependents(uid_of(old))
            if old is not None:
                # Owners that wait in the foreground may have lost the last dependent that held them.
                left = set() if new is None or event == "DELETED" else set(owner_index(new))
                for reference in owner_references(old):
                    if reference["uid"] not in left:
                        self._wake_owner(reference)
            if new is None or event == "DELETED":
                return
            if is_deleting(new) and self._waits(new) is not None:
                self._queue.add(self._key(number, new))
                self._wake_dependents(uid_of(new))
            elif owner_references(new) and not self._obviously_owned(new):
                self._queue.add(self._key(number, new))

        return changed

    def _watched(self, kind: Kind) -> bool:
        """Whether we hear of the end of owners of this kind; if not, we shall."""
        if (kind.group, kind.kind) in self._numbers:
            return True
        if kind not in self._others:
            self._others[kind] = self._all.of(kind)
            self._others[kind].subscribe(self._owner_changed)
        return self._others[kind].synced.is_set()

    def _owner_changed(self, event: str, old: Any, new: Any) -> None:
        if event == "DELETED" and old is not None:
            self._remember_absent(uid_of(old))
            self._wake_dependents(uid_of(old))

    @staticmethod
    def _key(number: int, obj: Any) -> str:
        return f"{number}:{namespace_of(obj)}/{name_of(obj)}"

    def _remember_absent(self, uid: str) -> None:
        self._absent[uid] = None
        while len(self._absent) > REMEMBERED:
            self._absent.popitem(last=False)

    def _dependents(self, uid: str) -> Iterator[tuple[int, Any]]:
        for number, cache in enumerate(self._caches):
            for obj in cache.by(BY_OWNER, uid):
                yield number, obj

    def _wake_dependents(self, uid: str) -> None:
        for number, obj in self._dependents(uid):
            self._queue.add(self._key(number, obj))

    def _wake_owner(self, reference: Object) -> None:
        number = self._number_of(reference)
        if number is None:
            return
        owner = self._caches[number].uid(reference["uid"])
        if owner is not None and self._waits(owner) is not None:
            self._queue.add(self._key(number, owner))

    def _number_of(self, reference: Object) -> int | None:
        group, _, _ = reference["apiVersion"].rpartition("/")
        return self._numbers.get((group, reference["kind"]))

    @staticmethod
    def _waits(obj: Any) -> str | None:
        """The finalizer by which a deleted object waits for its dependents."""
        for finalizer in (names.ORPHAN_DEPENDENTS, names.FOREGROUND_DELETION):
            if is_deleting(obj) and finalizer in finalizers_of(obj):
                return finalizer
        return None

    def _obviously_owned(self, obj: Any) -> bool:
        """Whether the caches know a living owner, so that nothing has to be asked."""
        for reference in owner_references(obj):
            number = self._number_of(reference)
            if number is None:
                return False
            owner = self._caches[number].uid(reference["uid"])
            if owner is None or self._waits(owner) is not None:
                return False
        return True

    async def reconcile(self, key: str) -> list[Write]:
        """See the class; raises ApiError when a live read fails."""
        number, _, where = key.partition(":")
        namespace, _, name = where.rpartition("/")
        kind, cache = self._kinds[int(number)], self._caches[int(number)]
        obj = cache.get(namespace, name)
        if obj is None:
            return []
        waits = self._waits(obj)
        if waits == names.ORPHAN_DEPENDENTS:
            return self._orphan(kind, obj)
        if waits == names.FOREGROUND_DELETION:
            return self._foreground(kind, obj)
        if is_deleting(obj):
            return []
        return await self._collect(kind, obj)

    def _orphan(self, kind: Kind, owner: Any) -> list[Write]:
        writes: list[Write] = []
        for number, dependent in self._dependents(uid_of(owner)):
            writes.append(_without_owners(self._kinds[number], dependent, {uid_of(owner)}))
        return [*writes, _without_finalizer(kind, owner, names.ORPHAN_DEPENDENTS)]

    def _foreground(self, kind: Kind, owner: Any) -> list[Write]:
        blocking = [
            (number, dependent)
            for number, dependent in self._dependents(uid_of(owner))
            if any(
                reference["uid"] == uid_of(owner) and reference.get("blockOwnerDeletion")
                for reference in owner_references(dependent)
            )
        ]
        if not blocking:
            return [_without_finalizer(kind, owner, names.FOREGROUND_DELETION)]
        for number, dependent in blocking:
            if not is_deleting(dependent):
                self._queue.add(self._key(number, dependent))
        return []

    async def _collect(self, kind: Kind, obj: Any) -> list[Write]:
        """Deletes an object without living owners; drops the dead ones' references from any other."""
        alive: list[Object] = []
        waiting: list[Object] = []
        dead: set[str] = set()
        again: list[Write] = []
        for reference in owner_references(obj):
            owner_kind = await self._kind_of(reference)
            if owner_kind is None:
                alive.append(reference)
                continue
            if owner_kind.namespaced and not kind.namespaced:
                message = f"ownerRef {reference['kind']}/{reference['name']} is namespaced, its dependent is not"
                return [Record(kind, obj, "Warning", "OwnerRefInvalidNamespace", message)]
            if not self._watched(owner_kind):
                again = [After(_AGAIN)]
            owner = await self._owner(owner_kind, reference, namespace_of(obj))
            if owner is None:
                dead.add(reference["uid"])
            elif self._waits(owner) == names.FOREGROUND_DELETION:
                waiting.append(reference)
            else:
                alive.append(reference)
        if alive:
            gone = dead | {reference["uid"] for reference in waiting}
            return [*([_without_owners(kind, obj, gone)] if gone else []), *again]
        if not dead and not waiting:
            return []
        foreground = bool(waiting) and any(True for _ in self._dependents(uid_of(obj)))
        return [
            Delete(
                kind,
                namespace_of(obj),
                name_of(obj),
                uid=uid_of(obj),
                # Somebody may be adding an owner at this moment.
                resource_version=resource_version_of(obj),
                propagation="Foreground" if foreground else "Background",
            )
        ]

    async def _owner(self, kind: Kind, reference: Object, namespace: str) -> Any | None:
        """The owner as the server has it; None when it is surely gone."""
        uid = reference["uid"]
        if uid in self._absent:
            return None
        number = self._numbers.get((kind.group, kind.kind))
        known = self._caches[number].uid(uid) if number is not None else None
        if known is not None and (not kind.namespaced or namespace_of(known) == namespace):
            return known
        found = await live(self._server, kind, namespace if kind.namespaced else "", reference["name"])
        if found is not None and uid_of(found) == uid:
            return found
        self._remember_absent(uid)
        return None

    async def _kind_of(self, reference: Object) -> Kind | None:
        """The kind of an owner, from our list or from discovery; None when the server does not know it."""
        number = self._number_of(reference)
        if number is not None:
            return self._kinds[number]
        version, kind = reference["apiVersion"], reference["kind"]
        if (version, kind) in self._unknown:
            return None
        found = await find_kind(self._server, version, kind)
        if found is not None:
            return found
        self._unknown.add((version, kind))
        logger.warning("owner %s %s is of a kind the server does not serve; its dependents stay", version, kind)
        return None


def _same_owners(old: Any, new: Any) -> bool:
    """Whether an update, most often a heartbeat, is of no interest here."""
    if uid_of(old) != uid_of(new):
        return False
    if isinstance(new, dict):
        return old["metadata"].get("ownerReferences") == new["metadata"].get("ownerReferences")
    return old.metadata.ownerReferences == new.metadata.ownerReferences


def _metadata(obj: Any) -> Object:
    return {"uid": uid_of(obj), "resourceVersion": resource_version_of(obj)}


def _without_owners(kind: Kind, obj: Any, gone: set[str]) -> Patch:
    left = [reference for reference in owner_references(obj) if reference["uid"] not in gone]
    body = {"metadata": {**_metadata(obj), "ownerReferences": left or None}}
    return Patch(kind, namespace_of(obj), name_of(obj), body)


def _without_finalizer(kind: Kind, obj: Any, finalizer: str) -> Patch:
    left = [entry for entry in finalizers_of(obj) if entry != finalizer]
    body = {"metadata": {**_metadata(obj), "finalizers": left or None}}
    return Patch(kind, namespace_of(obj), name_of(obj), body)
