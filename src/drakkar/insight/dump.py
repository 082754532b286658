"""A set of objects, from a live API or a file, sorted by kind and decoded: what all insight starts from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any, TypeVar, cast

import msgspec

from drakkar.api.errors import ApiError, UsageError
from drakkar.api.kinds import (
    CSINODE,
    DEVICECLASS,
    DEVICETAINTRULE,
    NAMESPACE,
    NODE,
    PERSISTENTVOLUME,
    PERSISTENTVOLUMECLAIM,
    POD,
    PODGROUP,
    RESOURCECLAIM,
    RESOURCECLAIMTEMPLATE,
    RESOURCESLICE,
    Kind,
)
from drakkar.api.meta import Object
from drakkar.api.objects import key_of, name_of, namespace_of, pod_is_done, pod_node, uid_of
from drakkar.api.resource import v1
from drakkar.api.resource.conversion import convert
from drakkar.api.tree import children
from drakkar.client.client import Client

#: Kinds that insight reads, in the order in which :func:`collect` lists them.
READ: tuple[Kind, ...] = (
    NODE,
    DEVICECLASS,
    DEVICETAINTRULE,
    RESOURCESLICE,
    RESOURCECLAIMTEMPLATE,
    RESOURCECLAIM,
    POD,
)
#: Kinds that a placement can depend on besides; what an explanation needs is both.
DUMPED: tuple[Kind, ...] = (*READ, NAMESPACE, PERSISTENTVOLUME, PERSISTENTVOLUMECLAIM, PODGROUP, CSINODE)
#: Attempts to read a state that nobody changed meanwhile.
ATTEMPTS = 5

#: What kubectl keeps of a manifest.
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

T = TypeVar("T")
#: (driver, pool, device)
DeviceId = tuple[str, str, str]


class Dump:
    """Objects by kind. Objects of other kinds are ignored."""

    def __init__(self, objects: Iterable[Object]):
        self.nodes: dict[str, Object] = {}
        self.pods: dict[str, Object] = {}
        self.claims: dict[str, v1.ResourceClaim] = {}
        self.templates: dict[str, v1.ResourceClaimTemplate] = {}
        self.classes: dict[str, v1.DeviceClass] = {}
        self.slices: dict[str, v1.ResourceSlice] = {}
        self.rules: dict[str, v1.DeviceTaintRule] = {}
        places: dict[str, tuple[dict[str, Any], Any]] = {
            "Node": (self.nodes, None),
            "Pod": (self.pods, None),
            "ResourceClaim": (self.claims, v1.ResourceClaim),
            "ResourceClaimTemplate": (self.templates, v1.ResourceClaimTemplate),
            "DeviceClass": (self.classes, v1.DeviceClass),
            "ResourceSlice": (self.slices, v1.ResourceSlice),
            "DeviceTaintRule": (self.rules, v1.DeviceTaintRule),
        }
        for obj in objects:
            place = places.get(str(obj.get("kind", "")))
            if place is not None:
                table, struct = place
                decoded = obj if struct is None else _decode(obj, struct)
                table[_key(obj)] = decoded
        self.newest = self._newest_generations()
        #: Devices of the newest generation of each pool, and whether several slices publish one.
        self.devices: dict[DeviceId, tuple[v1.ResourceSlice, v1.Device]] = {}
        self.clashes: set[DeviceId] = set()
        for found in self.slices.values():
            if not self.is_newest(found):
                continue
            for device in found.spec.devices or ():
                identity = (found.spec.driver, found.spec.pool.name, device.name)
                if identity in self.devices:
                    self.clashes.add(identity)
                self.devices[identity] = (found, device)

    def _newest_generations(self) -> dict[tuple[str, str], int]:
        newest: dict[tuple[str, str], int] = {}
        for found in self.slices.values():
            pool = (found.spec.driver, found.spec.pool.name)
            newest[pool] = max(newest.get(pool, 0), found.spec.pool.generation)
        return newest

    def is_newest(self, found: v1.ResourceSlice) -> bool:
        """Whether the slice belongs to the newest generation of its pool that is here."""
        return found.spec.pool.generation == self.newest[found.spec.driver, found.spec.pool.name]

    def is_complete(self, driver: str, pool: str) -> bool:
        """Whether all slices of the newest generation are here."""
        found = [
            s
            for s in self.slices.values()
            if s.spec.driver == driver and s.spec.pool.name == pool and self.is_newest(s)
        ]
        return bool(found) and len(found) == found[0].spec.pool.resourceSliceCount

    def live_pods(self) -> list[Object]:
        """Pods that are bound and have not ended."""
        return [pod for pod in self.pods.values() if pod_node(pod) and not pod_is_done(pod)]


def results_of(claim: v1.ResourceClaim) -> list[v1.DeviceRequestAllocationResult]:
    """Devices allocated to the claim, one entry per result."""
    allocation = claim.status.allocation
    return [*(allocation.devices.results or ())] if allocation is not None else []


def device_of(result: v1.DeviceRequestAllocationResult) -> DeviceId:
    """Identity of the device of a result."""
    return result.driver, result.pool, result.device


async def collect(client: Client, kinds: Sequence[Kind] = READ) -> list[Object]:
    """All objects of these kinds, as dicts.

    The API has no list across kinds, so everything is read twice, and again when something changed in
    between; after :data:`ATTEMPTS` tries the last state is returned as it is. Raises ApiError; a kind that
    the server does not serve reads as empty.
    """
    state = await read(client, kinds)
    for _ in range(ATTEMPTS):
        again = await read(client, kinds)
        unchanged = _versions(again) == _versions(state)
        state = again
        if unchanged:
            break
    return state


async def read(client: Client, kinds: Sequence[Kind] = READ) -> list[Object]:
    """All objects of these kinds, kind after kind: no single moment where others write meanwhile."""
    objects: list[Object] = []
    for kind in kinds:
        try:
            listed = await client.list(kind)
        except ApiError as error:
            if error.code != 404:
                raise
            continue
        objects += [_to_object(kind, item) for item in listed.items]
    return objects


def _to_object(kind: Kind, item: Any) -> Object:
    # Items of a list need not say their kind, and structs leave out what has its default.
    return {"apiVersion": kind.api_version, "kind": kind.kind, **msgspec.to_builtins(item)}


def without_secrets(obj: Object) -> Object:
    """The object without what may be confidential and no decision depends on.

    Gone are the last applied manifest and the owners of fields, in pods the values of environment variables,
    commands and arguments, and everywhere the opaque parameters of drivers.
    """
    kept = deepcopy(obj)
    metadata = kept.get("metadata") or {}
    metadata.pop("managedFields", None)
    annotations = metadata.get("annotations") or {}
    annotations.pop(LAST_APPLIED, None)
    if not annotations:
        metadata.pop("annotations", None)
    if kept.get("kind") == "Pod":
        for field in ("initContainers", "containers", "ephemeralContainers"):
            for container in children(kept, "spec", field):
                for confidential in ("env", "envFrom", "command", "args", "lifecycle"):
                    container.pop(confidential, None)
                for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
                    container.pop(probe, None)
    _blank(kept)
    return kept


def _blank(value: Any) -> None:
    """Empties the parameters of every opaque configuration below ``value``."""
    if isinstance(value, dict):
        tree = cast("dict[str, Any]", value)
        opaque = tree.get("opaque")
        if isinstance(opaque, dict) and "parameters" in opaque:
            opaque["parameters"] = {}
        for member in tree.values():
            _blank(member)
    elif isinstance(value, list):
        for member in cast("list[Any]", value):
            _blank(member)


def _versions(objects: list[Object]) -> set[tuple[str, str]]:
    """Identity and version of all objects. Heartbeats change Nodes all the time and nothing that counts here."""
    return {
        (uid_of(obj), "" if obj["kind"] == "Node" else str(obj["metadata"].get("resourceVersion"))) for obj in objects
    }


def _key(obj: Object) -> str:
    """Like `key_of`; manifests without a namespace belong to ``default``."""
    if obj.get("kind") in ("Pod", "ResourceClaim", "ResourceClaimTemplate") and not namespace_of(obj):
        return f"default/{name_of(obj)}"
    return key_of(obj)


def _decode(obj: Object, struct: type[T]) -> T:
    version = str(obj.get("apiVersion", "")).rpartition("/")[2]
    kind = str(obj.get("kind"))
    try:
        if version != "v1":
            obj = convert(obj, kind, version, "v1")
        return msgspec.convert(obj, struct)
    except (msgspec.ValidationError, KeyError, ValueError) as error:
        raise UsageError(f"{kind} {_key(obj)} cannot be read: {error}; check its apiVersion and fields") from error
