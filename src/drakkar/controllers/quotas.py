"""ResourceQuotas: how much of each is used. What is charged for what stands in `drakkar.api.core.quota`.

Kinds are watched once a quota counts them, so a plane without quotas pays nothing. Keeping within the
limits is admission's duty; this controller corrects what it counted, after deletions above all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec

from drakkar.api.clock import Clock
from drakkar.api.core.quota import PODS, ExtendedNames, Source, grace_left, hard, sources, total
from drakkar.api.kinds import DEVICECLASS, RESOURCEQUOTA, Kind
from drakkar.api.meta import Object
from drakkar.api.objects import is_deleting, key_of, namespace_of, pod_is_done, split_key
from drakkar.api.tree import at, child
from drakkar.client.cache import Cache, Caches
from drakkar.client.writes import After, Write
from drakkar.controllers.common import Queue
from drakkar.controllers.discovery import Server, find_plural
from drakkar.controllers.workloads import status_patch

BY_NAMESPACE = "controllers/namespace"
#: Seconds that a kind may need to arrive, once a quota asks for it.
ARRIVAL = 10.0


def namespace_index(obj: Any) -> Iterable[str]:
    """The namespace."""
    return (namespace_of(obj),)


class Quotas:
    """The status of ResourceQuotas; keys are ``ns/name``."""

    name = "resourcequota-controller"

    def __init__(self, server: Server, clock: Clock):
        self._server = server
        self._clock = clock
        self._counted: dict[Source, Cache] = {}

    def setup(self, caches: Caches, queue: Queue) -> None:
        """Subscribes to quotas and device classes."""
        self._all, self._queue = caches, queue
        self._quotas = caches.of(RESOURCEQUOTA, indexes={BY_NAMESPACE: namespace_index})
        self._classes = caches.of(DEVICECLASS)
        self._quotas.subscribe(lambda event, old, new: queue.add(key_of(new)) if event != "DELETED" else None)
        self._classes.subscribe(self._class_changed)

    def _class_changed(self, event: str, old: Any, new: Any) -> None:
        if event == "MODIFIED" and old.spec.extendedResourceName == new.spec.extendedResourceName:
            return
        for quota in self._quotas:
            if any("/" in name and name.startswith("requests.") for name in child(quota, "spec", "hard")):
                self._queue.add(key_of(quota))

    def _listener(self, source: Source) -> Any:
        def changed(event: str, old: Any, new: Any) -> None:
            obj = new if new is not None else old
            if event == "MODIFIED" and _weight(old) == _weight(new):
                return
            for quota in self._quotas.by(BY_NAMESPACE, namespace_of(obj)):
                if any(source in sources(name) for name in child(quota, "spec", "hard")):
                    self._queue.add(key_of(quota))

        return changed

    async def reconcile(self, key: str) -> list[Write]:
        """The status; raises ApiError when discovery fails."""
        quota = self._quotas.get(*split_key(key))
        if quota is None or is_deleting(quota):
            return []
        wanted = dict.fromkeys(source for name in hard(quota) for source in sources(name))
        objects: list[tuple[Source, Object]] = []
        for source in wanted:
            cache = await self._cache(source)
            if cache is None:
                continue
            for obj in cache.by(BY_NAMESPACE, namespace_of(quota)):
                objects.append((source, obj if isinstance(obj, dict) else msgspec.to_builtins(obj)))
        now = self._clock.time()
        extended = ExtendedNames.of(self._classes)
        used = total(quota, objects, extended=extended, now=now)
        status = {
            "hard": dict(child(quota, "spec", "hard")),
            "used": {name: amount.canonical() for name, amount in used.items()},
        }
        patch = status_patch(RESOURCEQUOTA, quota, _with_departures(quota, status))
        rests = [rest for source, obj in objects if source == PODS and (rest := grace_left(obj, now)) is not None]
        rests = [rest for rest in rests if rest >= 0]
        writes: list[Write] = [patch] if patch is not None else []
        # A moment more: at the end itself the pod still counts.
        return [*writes, After(min(rests) + 0.01)] if rests else writes

    async def _cache(self, source: Source) -> Cache | None:
        """The objects of a kind, complete; None when the server has no such kind."""
        cache = self._counted.get(source)
        if cache is None:
            kind: Kind | None = await find_plural(self._server, *source)
            if kind is None or not kind.namespaced:
                return None
            cache = self._all.of(kind, indexes={BY_NAMESPACE: namespace_index})
            if source not in self._counted:
                self._counted[source] = cache
                cache.subscribe(self._listener(source))
        if not cache.synced.is_set():
            async with asyncio.timeout(ARRIVAL):
                await cache.synced.wait()
        return cache


def _weight(obj: Any) -> tuple[Any, ...]:
    """What decides the charge of an object that stays."""
    if not isinstance(obj, dict):
        return (obj.spec,)
    mappings = at(obj, "status", "extendedResourceClaimStatus")
    return obj.get("spec"), pod_is_done(obj), is_deleting(obj), mappings


def _with_departures(quota: Object, status: Object) -> Object:
    """The status as a merge patch, which has to name what is no longer there."""
    result: Object = {}
    for which, values in status.items():
        present = child(quota, "status", which)
        result[which] = {**dict.fromkeys(present.keys() - values.keys()), **values}
    return result
