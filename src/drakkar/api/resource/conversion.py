"""Conversion between the served versions of resource.k8s.io, on plain dicts, through the hub v1.

v1beta2 and v1alpha3 have the fields of v1. v1beta1 differs in three places: devices wrap
everything but the name in ``basic``, requests carry the fields of ``exactly`` beside their
name, and a slice's ``nodeName`` and ``allNodes`` use the zero value for "unset".

Source: spec/api.md section 7.
"""

from __future__ import annotations

from typing import Final

from drakkar.api.meta import Object
from drakkar.api.tree import child, children

GROUP: Final = "resource.k8s.io"

VERSIONS: Final[dict[str, tuple[str, ...]]] = {
    "ResourceSlice": ("v1", "v1beta2", "v1beta1"),
    "ResourceClaim": ("v1", "v1beta2", "v1beta1"),
    "ResourceClaimTemplate": ("v1", "v1beta2", "v1beta1"),
    "DeviceClass": ("v1", "v1beta2", "v1beta1"),
    "DeviceTaintRule": ("v1", "v1beta2", "v1alpha3"),
    "ResourcePoolStatusRequest": ("v1alpha3",),
}
"""Kind → the versions in which it is served, most preferred first; the first one is its hub."""

#: Members of a v1beta1 request that v1 keeps under ``exactly``.
_MAIN_FIELDS: Final = (
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "adminAccess",
    "tolerations",
    "capacity",
    "derivedAttributes",
)


def convert(obj: Object, kind: str, from_version: str, to_version: str) -> Object:
    """The same object in another version.

    The argument is not changed; parts that look the same in both versions are shared with
    the result. ValueError when the kind is not served in one of the versions.
    """
    for version in (from_version, to_version):
        if version not in VERSIONS.get(kind, ()):
            raise ValueError(f"{kind} of {GROUP} is not served in version {version!r}")
    result = dict(obj)
    result["apiVersion"] = f"{GROUP}/{to_version}"
    result["kind"] = kind
    if (from_version == "v1beta1") != (to_version == "v1beta1"):
        to_hub = from_version == "v1beta1"
        spec = child(result, "spec")
        if kind == "ResourceSlice" and spec:
            result["spec"] = _slice_to_hub(spec) if to_hub else _slice_to_v1beta1(spec)
        elif kind == "ResourceClaim" and spec:
            result["spec"] = _claim_spec(spec, to_hub)
        elif kind == "ResourceClaimTemplate" and spec.get("spec"):
            result["spec"] = {**spec, "spec": _claim_spec(child(spec, "spec"), to_hub)}
    return result


def _slice_to_hub(spec: Object) -> Object:
    result = dict(spec)
    if not result.get("nodeName"):
        result.pop("nodeName", None)
    if not result.get("allNodes"):
        result.pop("allNodes", None)
    if spec.get("devices") is not None:
        result["devices"] = [_device_to_hub(device) for device in children(spec, "devices")]
    return result


def _device_to_hub(device: Object) -> Object:
    result: Object = {key: value for key, value in device.items() if key != "basic"}
    for key, value in child(device, "basic").items():
        # Go copies maps over element by element, which makes an empty one absent.
        if not (key in ("attributes", "capacity", "nodeAllocatableResources") and not value):
            result[key] = value
    return result


def _slice_to_v1beta1(spec: Object) -> Object:
    result = dict(spec)
    if spec.get("devices") is not None:
        result["devices"] = [_device_to_v1beta1(device) for device in children(spec, "devices")]
    return result


def _device_to_v1beta1(device: Object) -> Object:
    basic: Object = {key: value for key, value in device.items() if key != "name"}
    return {"name": device.get("name", ""), "basic": basic}


def _claim_spec(spec: Object, to_hub: bool) -> Object:
    devices = child(spec, "devices")
    if devices.get("requests") is None:
        return spec
    change = _request_to_hub if to_hub else _request_to_v1beta1
    return {**spec, "devices": {**devices, "requests": [change(r) for r in children(devices, "requests")]}}


def _is_set(name: str, value: object) -> bool:
    if name in ("deviceClassName", "allocationMode", "count"):
        return bool(value)
    return value is not None


def _request_to_hub(request: Object) -> Object:
    main = {name: request[name] for name in _MAIN_FIELDS if _is_set(name, request.get(name))}
    result: Object = {key: value for key, value in request.items() if key not in _MAIN_FIELDS}
    if main:
        result["exactly"] = main
    return result


def _request_to_v1beta1(request: Object) -> Object:
    result: Object = {key: value for key, value in request.items() if key != "exactly"}
    result.update(child(request, "exactly"))
    result.setdefault("deviceClassName", "")
    return result
