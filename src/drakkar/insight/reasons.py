"""Why a pod is pending: the scheduler's own pure decision, asked again over a set of objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from drakkar.api import objects
from drakkar.api.meta import Object
from drakkar.api.resource import v1 as resource
from drakkar.scheduler.cluster import Cluster
from drakkar.scheduler.decide import Pending, decide
from drakkar.scheduler.pods import PodView


def cluster_of(found: Iterable[Object]) -> Cluster:
    """The scheduler's view of a set of v1 objects (JSON)."""
    cluster = Cluster()
    takers: dict[str, tuple[Any, Any]] = {
        "DeviceClass": (resource.DeviceClass, cluster.set_class),
        "DeviceTaintRule": (resource.DeviceTaintRule, cluster.set_taint_rule),
        "ResourceSlice": (resource.ResourceSlice, cluster.set_slice),
        "ResourceClaim": (resource.ResourceClaim, cluster.set_claim),
        "Node": (None, cluster.set_node),
        "Pod": (None, cluster.set_pod),
    }
    for obj in found:
        taker = takers.get(str(obj.get("kind")))
        if taker is not None:
            struct, take = taker
            take(obj if struct is None else msgspec.convert(obj, struct))
    return cluster


def why_pending(found: Iterable[Object], namespace: str, name: str, *, policy: str = "drakkar") -> Pending | None:
    """What keeps the pod from running; None: nothing does, or it has a node. Raises KeyError: no such pod."""
    listed = [*found]
    for obj in listed:
        if obj.get("kind") == "Pod" and (objects.namespace_of(obj), objects.name_of(obj)) == (namespace, name):
            decision = None if objects.pod_node(obj) else decide(cluster_of(listed), PodView.of(obj), policy=policy)
            return decision if isinstance(decision, Pending) else None
    raise KeyError(f"pod {namespace}/{name}")
