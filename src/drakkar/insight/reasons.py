"""A set of objects, out of a file or a server, as the scheduler sees it: what its pure decision is asked over again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import msgspec

from drakkar.api import objects
from drakkar.api.errors import ParseError, UsageError
from drakkar.api.meta import Object
from drakkar.api.registry import defaults_for
from drakkar.api.resource import v1 as resource
from drakkar.api.resource.conversion import VERSIONS, convert
from drakkar.scheduler.cluster import Cluster

#: Kinds whose objects may stand in a file without a namespace; they are then in ``default``.
_NAMESPACED = ("Pod", "ResourceClaim", "ResourceClaimTemplate", "PersistentVolumeClaim", "PodGroup")
_TYPES: dict[str, Any] = {
    "DeviceClass": resource.DeviceClass,
    "DeviceTaintRule": resource.DeviceTaintRule,
    "ResourceSlice": resource.ResourceSlice,
    "ResourceClaim": resource.ResourceClaim,
    "ResourceClaimTemplate": resource.ResourceClaimTemplate,
}


def as_served(obj: Object) -> Object:
    """The object as an API server would give it out in v1: defaults, a namespace, an identity.

    Objects out of a real server come back as they are, apart from the version; those written by hand
    need no server to be explained. Raises UsageError for a version that is not known.
    """
    kind, version = str(obj.get("kind")), str(obj.get("apiVersion", "")).rpartition("/")[2]
    found = deepcopy(obj)
    with _readable(found):
        metadata = found.setdefault("metadata", {})
        if kind in _NAMESPACED:
            metadata.setdefault("namespace", "default")
        fill = defaults_for(kind, version)
        if fill is not None:
            fill(found)
        if kind in VERSIONS and version != "v1":
            found = convert(found, kind, version, "v1")
        if not metadata.get("uid"):
            metadata["uid"] = f"{kind}/{objects.key_of(found)}"
    return found


@contextmanager
def _readable(obj: Object) -> Iterator[None]:
    """Names the object of which a field is not what it should be: nobody has validated what stands in a file."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, ParseError) as error:
        metadata = obj.get("metadata")
        named = isinstance(metadata, dict) and "name" in metadata
        key = objects.key_of(obj) if named else "without a name"
        text = f"{type(error).__name__}: {error}" if not isinstance(error, ParseError) else str(error)
        raise UsageError(f"{obj.get('kind')} {key} cannot be read ({text}); compare it with its schema") from error


def decoded(obj: Object) -> Any:
    """An object as served, as a struct where its kind has one. Raises UsageError when it cannot be read."""
    struct = _TYPES.get(str(obj.get("kind")))
    if struct is None:
        return obj
    try:
        return msgspec.convert(obj, struct)
    except msgspec.ValidationError as error:
        raise UsageError(f"{obj['kind']} {objects.key_of(obj)} cannot be read: {error}") from error


def cluster_of(found: Iterable[Object]) -> Cluster:
    """The scheduler's view of a set of objects as served; other kinds are ignored."""
    cluster = Cluster()
    takers: dict[str, Any] = {
        "DeviceClass": cluster.set_class,
        "DeviceTaintRule": cluster.set_taint_rule,
        "ResourceSlice": cluster.set_slice,
        "ResourceClaim": cluster.set_claim,
        "Node": cluster.set_node,
        "Pod": cluster.set_pod,
        "Namespace": cluster.set_namespace,
        "PodGroup": cluster.set_group,
        "CSINode": cluster.volumes.set_csi_node,
        "PersistentVolume": cluster.volumes.set_volume,
        "PersistentVolumeClaim": cluster.volumes.set_claim,
    }
    for obj in found:
        taker = takers.get(str(obj.get("kind")))
        if taker is not None:
            with _readable(obj):
                taker(decoded(obj))
    return cluster
