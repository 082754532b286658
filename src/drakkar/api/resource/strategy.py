"""What the API server resets, keeps and prunes when objects of resource.k8s.io are written.

Objects are in the hub version. Fields of a disabled feature are dropped, unless the stored
object already uses that feature.

Source: spec/api.md 1.2, 3.7, 5.2 and 6.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from drakkar.api.features import Features
from drakkar.api.meta import Object
from drakkar.api.resource.validation.claims import device_key
from drakkar.api.resource.validation.slices import slice_warnings
from drakkar.api.rules import Strategy, same_meaning
from drakkar.api.tree import at, child, children

_ALL: Final = Features.drakkar()


# Pieces that several kinds share; exported for the strategies of other groups.


def count_generation(new: Object, old: Object | None) -> None:
    """``metadata.generation``: 1 on create, one more on each change of ``spec``."""
    metadata = new.setdefault("metadata", {})
    if old is None:
        metadata["generation"] = 1
        return
    before = at(old, "metadata", "generation") or 0
    metadata["generation"] = before + (not same_meaning(new.get("spec"), old.get("spec")))
    if not metadata["generation"]:
        del metadata["generation"]


def drop_generation(new: Object, old: Object | None) -> None:
    """For kinds that do not maintain a generation: what is stored stays, normally nothing."""
    keep(new.setdefault("metadata", {}), child(old, "metadata"), "generation")


def keep(new: Object, old: Object, *fields: str) -> None:
    """Make ``fields`` of ``new`` what they are in ``old``."""
    for field in fields:
        if old.get(field) is None:
            new.pop(field, None)
        else:
            new[field] = old[field]


def only_status(new: Object, old: Object) -> None:
    """For status endpoints: everything but ``status`` stays as stored."""
    asked = child(new, "metadata")
    metadata = dict(child(old, "metadata"))
    keep(metadata, asked, "resourceVersion", "managedFields")
    new["metadata"] = metadata
    keep(new, old, "spec")


# Features that are off.


@dataclass(frozen=True, slots=True)
class _Part:
    """Fields that belong to a feature: ``places`` yields (holder, field) pairs of an object."""

    gates: tuple[str, ...]
    places: Callable[[Object], Iterable[tuple[Object, str]]]


def _spec_fields(*fields: str) -> Callable[[Object], Iterable[tuple[Object, str]]]:
    return lambda obj: ((child(obj, "spec"), field) for field in fields)


def _device_fields(*fields: str) -> Callable[[Object], Iterable[tuple[Object, str]]]:
    return lambda obj: ((device, field) for device in children(obj, "spec", "devices") for field in fields)


def _partitions(obj: Object) -> Iterable[tuple[Object, str]]:
    yield from _spec_fields("sharedCounters", "perDeviceNodeSelection")(obj)
    yield from _device_fields("consumesCounters", "nodeName", "nodeSelector", "allNodes")(obj)


def _shareable(obj: Object) -> Iterable[tuple[Object, str]]:
    for device in children(obj, "spec", "devices"):
        yield device, "allowMultipleAllocations"
        for capacity in child(device, "capacity").values():
            yield capacity, "requestPolicy"


def _lists(obj: Object) -> Iterable[tuple[Object, str]]:
    for device in children(obj, "spec", "devices"):
        for attribute in child(device, "attributes").values():
            for field in ("ints", "bools", "strings", "versions"):
                yield attribute, field


def _groups(obj: Object) -> Iterable[tuple[Object, str]]:
    for device in children(obj, "spec", "devices"):
        for item in children(device, "consumesCounters"):
            yield item, "compatibilityGroups"


def _claim_devices(obj: Object) -> Object:
    inner = child(obj, "spec", "spec")
    return child(inner, "devices") if inner else child(obj, "spec", "devices")


def _request_fields(field: str, alternatives: bool = True) -> Callable[[Object], Iterable[tuple[Object, str]]]:
    def places(obj: Object) -> Iterable[tuple[Object, str]]:
        for request in children(_claim_devices(obj), "requests"):
            if request.get("exactly") is not None:
                yield request["exactly"], field
            if alternatives:
                for alternative in children(request, "firstAvailable"):
                    yield alternative, field

    return places


def _alternatives(obj: Object) -> Iterable[tuple[Object, str]]:
    return ((request, "firstAvailable") for request in children(_claim_devices(obj), "requests"))


def _amounts(obj: Object) -> Iterable[tuple[Object, str]]:
    yield from _request_fields("capacity")(obj)
    for constraint in children(_claim_devices(obj), "constraints"):
        yield constraint, "distinctAttribute"


def _result_fields(*fields: str) -> Callable[[Object], Iterable[tuple[Object, str]]]:
    return lambda obj: (
        (result, field) for result in children(obj, "status", "allocation", "devices", "results") for field in fields
    )


_BINDING: Final = ("DRADeviceBindingConditions", "DRAResourceClaimDeviceStatus")

_SLICE_PARTS: Final = (
    _Part(("DRAPartitionableDevices",), _partitions),
    _Part(("DRADeviceTaints",), _device_fields("taints")),
    _Part(_BINDING, _device_fields("bindsToNode", "bindingConditions", "bindingFailureConditions")),
    _Part(("DRAConsumableCapacity",), _shareable),
    _Part(("DRAListTypeAttributes",), _lists),
    _Part(("DRANodeAllocatableResources",), _device_fields("nodeAllocatableResources")),
    _Part(("DRADeviceCompatibilityGroups",), _groups),
    _Part(("DRAOptionalNodeOperations",), _spec_fields("skipNodeOperations")),
)
_CLAIM_PARTS: Final = (
    _Part(("DRAPrioritizedList",), _alternatives),
    _Part(("DRAAdminAccess",), _request_fields("adminAccess", alternatives=False)),
    _Part(("DRADeviceTaints",), _request_fields("tolerations")),
    _Part(("DRAConsumableCapacity",), _amounts),
    _Part(("DRADerivedAttributes",), _request_fields("derivedAttributes")),
)
_STATUS_PARTS: Final = (
    _Part(("DRAResourceClaimDeviceStatus",), lambda obj: [(child(obj, "status"), "devices")]),
    _Part(("DRAAdminAccess",), _result_fields("adminAccess")),
    _Part(_BINDING, _result_fields("bindingConditions", "bindingFailureConditions")),
    _Part(_BINDING, lambda obj: [(child(obj, "status", "allocation"), "allocationTimestamp")]),
    _Part(("DRAConsumableCapacity",), _result_fields("shareID", "consumedCapacity")),
    _Part(("DRAOptionalNodeOperations",), _result_fields("skipNodeOperations")),
)
_CLASS_PARTS: Final = (_Part(("DRAExtendedResource",), _spec_fields("extendedResourceName")),)
_PARTS_OF: Final[Mapping[str, tuple[_Part, ...]]] = {
    "ResourceSlice": _SLICE_PARTS,
    "ResourceClaim": (*_CLAIM_PARTS, *_STATUS_PARTS),
    "ResourceClaimTemplate": _CLAIM_PARTS,
    "DeviceClass": _CLASS_PARTS,
}


def _closed(parts: Iterable[_Part], old: Object | None, features: Features) -> Iterable[tuple[_Part, str]]:
    """Parts whose feature is off and not in use by the stored object, with a gate that is to blame."""
    if features is _ALL:
        return
    for part in parts:
        gate = next((gate for gate in part.gates if gate not in features), None)
        if gate is None:
            continue
        if old is not None and any(holder.get(field) is not None for holder, field in part.places(old)):
            continue
        yield part, gate


def _drop(parts: Iterable[_Part], new: Object, old: Object | None, features: Features) -> None:
    for part, _ in _closed(parts, old, features):
        for holder, field in list(part.places(new)):
            holder.pop(field, None)


def _dropped(
    main: Iterable[_Part], status: Iterable[_Part] = ()
) -> Callable[[Object, Object | None, str | None, Features], list[str]]:
    """Names of what :func:`_drop` takes away, for the client to know."""

    def dropped(new: Object, old: Object | None, subresource: str | None, features: Features) -> list[str]:
        said: dict[str, None] = {}
        for part, gate in _closed(status if subresource == "status" else main, old, features):
            for holder, field in part.places(new):
                if holder.get(field) is not None:
                    said[f'field "{field}" was dropped, because feature gate {gate} is off'] = None
        return list(said)

    return dropped


def lost_fields(sent: Object, stored: Object) -> dict[str, str]:
    """Fields of features that were sent and not stored, each with the gates that let a server keep it.

    For clients: ``stored`` is what the server answered to ``sent``, two objects of one kind in the hub version. Without
    a kind they are slices, or only the status of claims.
    """
    lost: dict[str, str] = {}
    for part in _PARTS_OF.get(sent.get("kind", ""), (*_SLICE_PARTS, *_STATUS_PARTS)):
        counts = [
            Counter(field for holder, field in part.places(obj) if holder.get(field) is not None)
            for obj in (sent, stored)
        ]
        for field in counts[0] - counts[1]:
            lost[field] = " and ".join(part.gates)
    return lost


# ResourceSlice


def _stamp(taint: Object, now: str) -> None:
    if not taint.get("timeAdded"):
        taint["timeAdded"] = now


def _stamp_devices(obj: Object, now: str) -> None:
    for device in children(obj, "spec", "devices"):
        for taint in children(device, "taints"):
            _stamp(taint, now)


def _create_slice(obj: Object, now: str, features: Features = _ALL, /) -> None:
    _drop(_SLICE_PARTS, obj, None, features)
    _stamp_devices(obj, now)
    count_generation(obj, None)


def _update_slice(new: Object, old: Object, subresource: str | None, now: str, features: Features = _ALL, /) -> None:
    _drop(_SLICE_PARTS, new, old, features)
    _stamp_devices(new, now)
    count_generation(new, old)


# ResourceClaim and ResourceClaimTemplate


def _create_claim(obj: Object, now: str, features: Features = _ALL, /) -> None:
    obj["status"] = {}
    drop_generation(obj, None)
    _drop(_CLAIM_PARTS, obj, None, features)


def _update_claim(new: Object, old: Object, subresource: str | None, now: str, features: Features = _ALL, /) -> None:
    if subresource == "status":
        only_status(new, old)
        _drop(_STATUS_PARTS, new, old, features)
        _prune_devices(new, old)
        return
    new["status"] = old.get("status") or {}
    drop_generation(new, old)
    _drop(_CLAIM_PARTS, new, old, features)


def _prune_devices(new: Object, old: Object) -> None:
    """Status of a device goes with its allocation."""
    status = child(new, "status")
    if not status.get("devices"):
        return
    results = {device_key(result) for result in children(status, "allocation", "devices", "results")}
    before = {device_key(result) for result in children(old, "status", "allocation", "devices", "results")}
    gone = before - results
    if not gone:
        return
    status["devices"] = [item for item in children(status, "devices") if device_key(item) not in gone]
    if not status["devices"]:
        del status["devices"]


def _create_template(obj: Object, now: str, features: Features = _ALL, /) -> None:
    drop_generation(obj, None)
    _drop(_CLAIM_PARTS, obj, None, features)


def _update_template(new: Object, old: Object, subresource: str | None, now: str, features: Features = _ALL, /) -> None:
    drop_generation(new, old)
    _drop(_CLAIM_PARTS, new, old, features)


# DeviceClass


def _create_class(obj: Object, now: str, features: Features = _ALL, /) -> None:
    _drop(_CLASS_PARTS, obj, None, features)
    count_generation(obj, None)


def _update_class(new: Object, old: Object, subresource: str | None, now: str, features: Features = _ALL, /) -> None:
    _drop(_CLASS_PARTS, new, old, features)
    count_generation(new, old)


# DeviceTaintRule


def _create_taint_rule(obj: Object, now: str, features: Features = _ALL, /) -> None:
    obj["status"] = {}
    if at(obj, "spec", "taint") is not None:
        _stamp(child(obj, "spec", "taint"), now)
    count_generation(obj, None)


def _update_taint_rule(
    new: Object, old: Object, subresource: str | None, now: str, features: Features = _ALL, /
) -> None:
    if subresource == "status":
        only_status(new, old)
        return
    new["status"] = old.get("status") or {}
    taint, before = child(new, "spec", "taint"), child(old, "spec", "taint")
    if taint:
        if taint.get("effect") != before.get("effect") and taint.get("timeAdded") == before.get("timeAdded"):
            taint["timeAdded"] = now
        _stamp(taint, now)
    count_generation(new, old)


# ResourcePoolStatusRequest


def _create_pool_request(obj: Object, now: str, features: Features = _ALL, /) -> None:
    obj.pop("status", None)
    drop_generation(obj, None)


def _update_pool_request(
    new: Object, old: Object, subresource: str | None, now: str, features: Features = _ALL, /
) -> None:
    if subresource == "status":
        only_status(new, old)
        return
    keep(new, old, "status")
    drop_generation(new, old)


STRATEGIES: Final[dict[str, Strategy]] = {
    "ResourceSlice": Strategy(
        prepare_create=_create_slice,
        prepare_update=_update_slice,
        warnings=slice_warnings,
        dropped=_dropped(_SLICE_PARTS),
    ),
    "ResourceClaim": Strategy(
        prepare_create=_create_claim, prepare_update=_update_claim, dropped=_dropped(_CLAIM_PARTS, _STATUS_PARTS)
    ),
    "ResourceClaimTemplate": Strategy(
        prepare_create=_create_template, prepare_update=_update_template, dropped=_dropped(_CLAIM_PARTS)
    ),
    "DeviceClass": Strategy(prepare_create=_create_class, prepare_update=_update_class, dropped=_dropped(_CLASS_PARTS)),
    "DeviceTaintRule": Strategy(
        prepare_create=_create_taint_rule,
        prepare_update=_update_taint_rule,
        conditional_versions=frozenset(("v1",)),
    ),
    "ResourcePoolStatusRequest": Strategy(
        prepare_create=_create_pool_request,
        prepare_update=_update_pool_request,
        conditional_versions=frozenset(("v1alpha3",)),
    ),
}
"""Kind → its strategy."""


def prepare_create(kind: str, obj: Any, now: str, features: Features = _ALL) -> None:
    """Reset what a client may not set, in place; ``now`` is RFC 3339 with seconds."""
    STRATEGIES[kind].prepare_create(obj, now, features)


def prepare_update(kind: str, new: Any, old: Any, subresource: str | None, now: str, features: Features = _ALL) -> None:
    """Carry over what this endpoint may not change, in place in ``new``."""
    STRATEGIES[kind].prepare_update(new, old, subresource, now, features)
