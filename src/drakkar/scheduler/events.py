"""From what the watches tell of nodes, devices, volumes and groups to the state, and to the pods that it may help.

Pods and claims are the scheduler's own business: its decisions are about them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drakkar.api.kinds import (
    CSINODE,
    DEVICECLASS,
    DEVICETAINTRULE,
    NAMESPACE,
    NODE,
    PERSISTENTVOLUME,
    PERSISTENTVOLUMECLAIM,
    PODGROUP,
    RESOURCESLICE,
    Kind,
)
from drakkar.api.meta import Object
from drakkar.api.objects import key_of, labels_of, name_of
from drakkar.api.resource import v1 as resource
from drakkar.client import Caches
from drakkar.scheduler.avoidance import Avoided
from drakkar.scheduler.cluster import Cluster
from drakkar.scheduler.groups import queue_key
from drakkar.scheduler.queue import SchedulingQueue
from drakkar.scheduler.refusal import Cause


class ClusterEvents:
    """Feeds ``cluster``, and wakes pods in ``queue``; ``avoided`` forgets devices that are published anew."""

    def __init__(self, cluster: Cluster, queue: SchedulingQueue, avoided: Avoided):
        self._cluster = cluster
        self._queue = queue
        self._avoided = avoided

    def subscribe(self, caches: Caches) -> None:
        """Be told by these caches from now on."""
        subscriptions: dict[Kind, Callable[[str, Any, Any], None]] = {
            NODE: self._on_node,
            DEVICECLASS: self._on_class,
            RESOURCESLICE: self._on_slice,
            DEVICETAINTRULE: self._on_rule,
            NAMESPACE: self._on_namespace,
            PERSISTENTVOLUME: self._on_volume,
            PERSISTENTVOLUMECLAIM: self._on_volume_claim,
            PODGROUP: self._on_group,
            CSINODE: self._on_csi_node,
        }
        for kind, handler in subscriptions.items():
            caches.of(kind).subscribe(handler)

    def _on_node(self, event: str, _: Object | None, node: Object) -> None:
        if event == "DELETED":
            self._cluster.remove_node(name_of(node))
        else:
            self._queue.all_happened(self._cluster.set_node(node))

    def _on_namespace(self, event: str, old: Object | None, namespace: Object) -> None:
        if event == "DELETED":
            self._cluster.remove_namespace(name_of(namespace))
            return
        self._cluster.set_namespace(namespace)
        if old is not None and labels_of(old) != labels_of(namespace):
            self._queue.all_happened((Cause.POD, Cause.ROOM))

    def _on_group(self, event: str, _: Object | None, group: Object) -> None:
        if event == "DELETED":
            self._cluster.remove_group(group)
        else:
            self._cluster.set_group(group)
            self._queue.happened(Cause.GROUP, claim=queue_key(key_of(group)))

    def _on_csi_node(self, event: str, _: Object | None, obj: Object) -> None:
        if event == "DELETED":
            self._cluster.volumes.remove_csi_node(name_of(obj))
        else:
            self._cluster.volumes.set_csi_node(obj)
            self._queue.happened(Cause.VOLUME)

    def _on_volume(self, event: str, _: Object | None, volume: Object) -> None:
        if event == "DELETED":
            self._cluster.volumes.remove_volume(name_of(volume))
        else:
            self._cluster.volumes.set_volume(volume)
            self._queue.happened(Cause.VOLUME)

    def _on_volume_claim(self, event: str, _: Object | None, claim: Object) -> None:
        if event == "DELETED":
            self._cluster.volumes.remove_claim(claim)
        else:
            self._cluster.volumes.set_claim(claim)
            self._queue.happened(Cause.VOLUME)

    def _on_class(self, event: str, _: Any, item: resource.DeviceClass) -> None:
        if event == "DELETED":
            self._cluster.remove_class(item.metadata.name)
        else:
            self._cluster.set_class(item)
            self._queue.happened(Cause.DEVICE)

    def _on_slice(self, event: str, old: Any, item: resource.ResourceSlice) -> None:
        if event == "DELETED":
            self._cluster.remove_slice(item.metadata.name)
        else:
            self._cluster.set_slice(item)
        if old is None or event == "DELETED" or old.spec != item.spec:
            self._avoided.published(item.spec.driver, item.spec.pool.name)
        # Also when one goes: a pool with a slice too many is whole from then on.
        self._queue.happened(Cause.DEVICE, driver=item.spec.driver)

    def _on_rule(self, event: str, _: Any, item: resource.DeviceTaintRule) -> None:
        if event == "DELETED":
            self._cluster.remove_taint_rule(item.metadata.name)
        else:
            self._cluster.set_taint_rule(item)
        self._queue.happened(Cause.DEVICE)
