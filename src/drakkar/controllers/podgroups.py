"""Pod groups: what the other controllers read of them, and their protection.

A PodGroup holds claims for its pods, so it may not go before the last pod that belongs to
it has ended: the finalizer comes off only then.

Source: spec/controllers.md 2, spec/api.md 10.
"""

from __future__ import annotations

from drakkar.api import names
from drakkar.api.groups import group_index, group_of, matching_group_claim
from drakkar.api.kinds import POD
from drakkar.api.kinds import PODGROUP as POD_GROUP
from drakkar.api.meta import Object
from drakkar.api.objects import (
    finalizers_of,
    is_deleting,
    key_of,
    name_of,
    namespace_of,
    pod_is_done,
    split_key,
    uid_of,
)
from drakkar.client.cache import Caches
from drakkar.client.writes import Patch, Write
from drakkar.controllers.common import Queue

__all__ = ["BY_GROUP", "POD_GROUP", "PodGroups", "group_index", "group_of", "matching_group_claim"]

BY_GROUP = "controllers/podgroup"


class PodGroups:
    """Takes the protection off groups that are deleted and have no running pod left; keys are ``ns/name``."""

    name = "pod-groups"

    def setup(self, caches: Caches, queue: Queue) -> None:
        """Subscribes to groups and pods."""
        self._groups = caches.of(POD_GROUP)
        self._pods = caches.of(POD, indexes={BY_GROUP: group_index})

        def pod_changed(event: str, old: Object | None, new: Object | None) -> None:
            pod = new or old
            if pod is not None and (event == "DELETED" or pod_is_done(pod)):
                for key in group_index(pod):
                    queue.add(key)

        self._groups.subscribe(lambda event, old, new: queue.add(key_of(new)) if event != "DELETED" else None)
        self._pods.subscribe(pod_changed)

    def reconcile(self, key: str) -> list[Write]:
        """The finalizer off, conditional on what was looked at."""
        group = self._groups.get(*split_key(key))
        if group is None or not is_deleting(group) or names.POD_GROUP_PROTECTION not in finalizers_of(group):
            return []
        if any(not pod_is_done(pod) for pod in self._pods.by(BY_GROUP, key)):
            return []
        left = [finalizer for finalizer in finalizers_of(group) if finalizer != names.POD_GROUP_PROTECTION]
        version = group["metadata"]["resourceVersion"]
        body = {"metadata": {"uid": uid_of(group), "resourceVersion": version, "finalizers": left or None}}
        return [Patch(POD_GROUP, namespace_of(group), name_of(group), body)]
