"""Defaults of resource.k8s.io, filled in in the version that the client speaks.

They run before conversion, because v1beta1 defaults a request only where it names a class:
there, main fields and ``firstAvailable`` stand side by side, and a default would turn a
clean alternative list into an invalid mixture. The default of a taint's ``timeAdded``
needs the time and therefore belongs to `drakkar.api.resource.strategy`.

Source: spec/api.md 3.7, 4.2, 4.3, 5.3 and 7.
"""

from __future__ import annotations

from drakkar.api.meta import Object
from drakkar.api.rules import Defaults
from drakkar.api.tree import children

POOL_STATUS_LIMIT = 100


def apply_defaults(version: str, kind: str, obj: Object) -> None:
    """Fill in what ``obj`` of this kind and version left out, in place; other kinds are left alone."""
    found = DEFAULTS.get((kind, version))
    if found is not None:
        found(obj)


# Members that upstream's types hold by value are always on the wire, be they empty.


def _ensure(holder: Object, field: str) -> Object:
    if holder.get(field) is None:
        holder[field] = {}
    return holder[field]


def _claim(obj: Object) -> None:
    _claim_spec(_ensure(obj, "spec"))
    _claim_status(obj)


def _claim_v1beta1(obj: Object) -> None:
    _claim_spec_v1beta1(_ensure(obj, "spec"))
    _claim_status(obj)


def _template(obj: Object) -> None:
    spec = _ensure(obj, "spec")
    _ensure(spec, "metadata")
    _claim_spec(_ensure(spec, "spec"))


def _template_v1beta1(obj: Object) -> None:
    spec = _ensure(obj, "spec")
    _ensure(spec, "metadata")
    _claim_spec_v1beta1(_ensure(spec, "spec"))


def _claim_spec(spec: Object) -> None:
    for request in children(_ensure(spec, "devices"), "requests"):
        if request.get("exactly") is not None:
            _request(request["exactly"])
        for alternative in children(request, "firstAvailable"):
            _request(alternative)


def _claim_spec_v1beta1(spec: Object) -> None:
    for request in children(_ensure(spec, "devices"), "requests"):
        if request.get("deviceClassName"):
            _request(request)
        else:
            _tolerations(request)
        for alternative in children(request, "firstAvailable"):
            _request(alternative)


def _request(request: Object) -> None:
    if not request.get("allocationMode"):
        request["allocationMode"] = "ExactCount"
    if request["allocationMode"] == "ExactCount" and not request.get("count"):
        request["count"] = 1
    _tolerations(request)


def _tolerations(holder: Object) -> None:
    for toleration in children(holder, "tolerations"):
        if not toleration.get("operator"):
            toleration["operator"] = "Equal"


def _claim_status(claim: Object) -> None:
    allocation = _ensure(claim, "status").get("allocation")
    if allocation is not None:
        for result in children(_ensure(allocation, "devices"), "results"):
            _tolerations(result)


def _class(obj: Object) -> None:
    _ensure(obj, "spec")


def _taint_rule(obj: Object) -> None:
    _ensure(obj, "status")


def _slice_v1beta1(obj: Object) -> None:
    for device in children(obj, "spec", "devices"):
        _ensure(device, "basic")


def _pool_status_request(obj: Object) -> None:
    spec = obj.get("spec")
    if spec is not None and spec.get("limit") is None:
        spec["limit"] = POOL_STATUS_LIMIT


DEFAULTS: dict[tuple[str, str], Defaults] = {
    ("ResourceClaim", "v1"): _claim,
    ("ResourceClaim", "v1beta2"): _claim,
    ("ResourceClaim", "v1beta1"): _claim_v1beta1,
    ("ResourceClaimTemplate", "v1"): _template,
    ("ResourceClaimTemplate", "v1beta2"): _template,
    ("ResourceClaimTemplate", "v1beta1"): _template_v1beta1,
    ("ResourceSlice", "v1beta1"): _slice_v1beta1,
    **{("DeviceClass", version): _class for version in ("v1", "v1beta2", "v1beta1")},
    **{("DeviceTaintRule", version): _taint_rule for version in ("v1", "v1beta2", "v1alpha3")},
    ("ResourcePoolStatusRequest", "v1alpha3"): _pool_status_request,
}
"""(kind, version) → what fills in its defaults."""
