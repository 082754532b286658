"""Validation of config maps, secrets, quotas, limit ranges, volume claims, services and disruption budgets."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, Final

from drakkar.api import formats
from drakkar.api.core.validation.environment import PROTOCOLS
from drakkar.api.core.validation.pods import one_of
from drakkar.api.errors import ParseError
from drakkar.api.faults import Faults
from drakkar.api.meta import Object
from drakkar.api.metadata import check_labels
from drakkar.api.quantity import Quantity
from drakkar.api.resource.validation import shared
from drakkar.api.rules import ValidationContext, same_meaning
from drakkar.api.selectors import LabelSelector
from drakkar.api.tree import at, child, children, text, texts

#: What all values of a config map or secret may have together, in bytes.
DATA_MAX: Final = 1 << 20
_SEALED: Final = "field is immutable when `immutable` is set"
_NEEDED: Final = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
}
_ACCESS_MODES: Final = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
_SERVICE_TYPES: Final = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_LABEL_1035: Final = re.compile("[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_SERVICE_NAME_TEXT: Final = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)


def service_name(name: str) -> tuple[str, ...]:
    """Names of Services are names of hosts."""
    return () if _LABEL_1035.fullmatch(name) else (_SERVICE_NAME_TEXT,)


def validate_config_map(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a ConfigMap."""
    data, binary = child(obj, "data"), child(obj, "binaryData")
    size = 0
    for name, value in data.items():
        faults.check(f"data[{name}]", name, formats.config_key)
        if name in binary:
            faults.invalid(f"data[{name}]", name, "duplicate of key present in binaryData")
        size += len(str(value).encode())
    for name, value in binary.items():
        faults.check(f"binaryData[{name}]", name, formats.config_key)
        size += len(str(value)) * 3 // 4
    if size > DATA_MAX:
        faults.too_long("", DATA_MAX)
    _sealed(faults, obj, old, ("data", "binaryData"))


def validate_secret(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a Secret; its texts have become data already."""
    size = 0
    data = child(obj, "data")
    for name, value in data.items():
        faults.check(f"data[{name}]", name, formats.config_key)
        try:
            size += len(base64.b64decode(value or "", validate=True))
        except (binascii.Error, ValueError, TypeError):
            faults.invalid(f"data[{name}]", "<redacted>", "must be base64")
    if size > DATA_MAX:
        faults.too_long("data", DATA_MAX)
    kind = text(obj, "type")
    for name in _NEEDED.get(kind, ()):
        if name not in data:
            faults.required(f"data[{name}]")
    if kind == "kubernetes.io/basic-auth" and not {"username", "password"} & set(data):
        for name in ("username", "password"):
            faults.required(f"data[{name}]")
    if kind == "kubernetes.io/service-account-token" and not at(
        obj, "metadata", "annotations", "kubernetes.io/service-account.name"
    ):
        faults.required("metadata.annotations[kubernetes.io/service-account.name]")
    if old is not None and kind != text(old, "type"):
        faults.invalid("type", kind, shared.IMMUTABLE)
    _sealed(faults, obj, old, ("data",))


def _sealed(faults: Faults, obj: Object, old: Object | None, fields: tuple[str, ...]) -> None:
    if old is None or old.get("immutable") is not True:
        return
    if obj.get("immutable") is not True:
        faults.forbidden("immutable", _SEALED)
    for field in fields:
        if child(obj, field) != child(old, field):
            faults.forbidden(field, _SEALED)


def _amount(faults: Faults, path: str, spelled: Any) -> Quantity | None:
    try:
        amount = Quantity.parse(str(spelled))
    except ParseError as error:
        faults.invalid(path, spelled, str(error))
        return None
    if amount.sign() < 0:
        faults.invalid(path, str(spelled), "must be greater than or equal to 0")
    return amount


def validate_quota(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a ResourceQuota."""
    for name, spelled in child(obj, "spec", "hard").items():
        path = f"spec.hard[{name}]"
        faults.check(path, name, formats.qualified_name)
        _amount(faults, path, spelled)
    scopes = texts(obj, "spec", "scopes")
    known = (
        "BestEffort", "CrossNamespacePodAffinity", "NotBestEffort", "NotTerminating", "PriorityClass", "Terminating",
        "VolumeAttributesClass",
    )  # fmt: skip
    for scope in scopes:
        if scope not in known:
            faults.invalid("spec.scopes", scopes, "unsupported scope")
    for one, other in (("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")):
        if one in scopes and other in scopes:
            faults.invalid("spec.scopes", scopes, "conflicting scopes")
    for index, entry in enumerate(children(obj, "spec", "scopeSelector", "matchExpressions")):
        path = f"spec.scopeSelector.matchExpressions[{index}]"
        if text(entry, "scopeName") not in known:
            faults.invalid(f"{path}.scopeName", text(entry, "scopeName"), "unsupported scope")
        operator, values = text(entry, "operator"), texts(entry, "values")
        if operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
            faults.invalid(f"{path}.operator", operator, "not a valid selector operator")
        elif operator in ("In", "NotIn") and not values:
            faults.required(
                f"{path}.values", "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
            )
        elif operator in ("Exists", "DoesNotExist") and values:
            faults.invalid(
                f"{path}.values",
                values,
                "must be no value when `operator` is 'Exists' or 'DoesNotExist' for scope selector",
            )
    if old is not None and not same_meaning(texts(obj, "spec", "scopes"), texts(old, "spec", "scopes")):
        faults.invalid("spec.scopes", scopes, shared.IMMUTABLE)


def validate_limit_range(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a LimitRange."""
    seen: set[str] = set()
    for index, entry in enumerate(children(obj, "spec", "limits")):
        path, kind = f"spec.limits[{index}]", text(entry, "type")
        if kind not in ("Container", "PersistentVolumeClaim", "Pod"):
            faults.check(f"{path}.type", kind, formats.qualified_name)
            if "/" not in kind:
                faults.invalid(f"{path}.type", kind, "must be a standard limit type or fully qualified")
        if kind in seen:
            faults.duplicate(f"{path}.type", kind)
        seen.add(kind)
        if kind == "Pod":
            for field in ("default", "defaultRequest"):
                if entry.get(field):
                    faults.forbidden(f"{path}.{field}", "may not be specified when `type` is 'Pod'")
        read = {
            field: {
                name: amount
                for name, spelled in child(entry, field).items()
                if (amount := _amount(faults, f"{path}.{field}[{name}]", spelled)) is not None
            }
            for field in ("min", "max", "default", "defaultRequest", "maxLimitRequestRatio")
        }
        for lower, higher in (
            ("min", "max"), ("min", "defaultRequest"), ("defaultRequest", "max"), ("defaultRequest", "default"),
            ("min", "default"), ("default", "max"),
        ):  # fmt: skip
            for name in sorted(read[lower].keys() & read[higher].keys()):
                if read[higher][name] < read[lower][name]:
                    detail = f"{lower} value {read[lower][name]} is greater than {higher} value {read[higher][name]}"
                    faults.invalid(f"{path}.{lower}[{name}]", read[lower][name].canonical(), detail)
        for name, ratio in read["maxLimitRequestRatio"].items():
            if ratio < Quantity.from_int(1):
                detail = f"ratio {ratio} is less than 1"
                faults.invalid(f"{path}.maxLimitRequestRatio[{name}]", ratio.canonical(), detail)


def validate_volume_claim(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a PersistentVolumeClaim."""
    spec = child(obj, "spec")
    modes = texts(spec, "accessModes")
    if not modes:
        faults.required("spec.accessModes", "at least 1 access mode is required")
    for mode in modes:
        if mode not in _ACCESS_MODES:
            faults.not_supported("spec.accessModes", mode, _ACCESS_MODES)
    if "ReadWriteOncePod" in modes and len(modes) > 1:
        faults.forbidden("spec.accessModes", "may not use ReadWriteOncePod with other access modes")
    storage = at(spec, "resources", "requests", "storage")
    if storage is None:
        faults.required("spec.resources[storage]")
    else:
        amount = _amount(faults, "spec.resources[storage]", storage)
        if amount is not None and amount.sign() == 0:
            faults.invalid("spec.resources[storage]", storage, "must be greater than zero")
    if text(spec, "storageClassName"):
        faults.check("spec.storageClassName", text(spec, "storageClassName"), formats.dns_subdomain)
    one_of(faults, "spec.volumeMode", text(spec, "volumeMode"), ("Block", "Filesystem"))
    if old is not None:
        before = child(old, "spec")
        # A claim that is not bound yet may be bound, to one volume.
        free = () if text(before, "volumeName") else ("volumeName",)
        if _fixed(spec, free) != _fixed(before, free):
            detail = (
                "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound "
                "claims"
            )
            faults.forbidden("spec", detail)
        grown, was = at(spec, "resources", "requests", "storage"), at(before, "resources", "requests", "storage")
        if grown is not None and was is not None and Quantity.parse(str(grown)) < Quantity.parse(str(was)):
            faults.forbidden("spec.resources.requests.storage", "field can not be less than status.capacity")


def _fixed(spec: Object, free: tuple[str, ...]) -> Object:
    """What may not change of a claim."""
    return {
        field: value
        for field, value in spec.items()
        if field not in ("resources", "volumeAttributesClassName", *free) and value is not None
    }


def validate_service(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a Service; its addresses have been given to it."""
    spec = child(obj, "spec")
    kind, ports = text(spec, "type"), children(spec, "ports")
    one_of(faults, "spec.type", kind, _SERVICE_TYPES)
    one_of(faults, "spec.sessionAffinity", text(spec, "sessionAffinity"), ("ClientIP", "None"))
    headless = text(spec, "clusterIP") == "None"
    if not ports and not headless and kind != "ExternalName":
        faults.required("spec.ports")
    if kind == "ExternalName":
        if not text(spec, "externalName"):
            faults.required("spec.externalName")
        else:
            faults.check("spec.externalName", text(spec, "externalName"), formats.dns_subdomain)
        if text(spec, "clusterIP") not in ("", "None"):
            faults.forbidden("spec.clusterIPs[0]", "may not be set for ExternalName services")
    if headless and kind in ("NodePort", "LoadBalancer"):
        faults.invalid("spec.clusterIPs[0]", "None", f"may not be set to 'None' for {kind} services")
    _ports(faults, ports, kind)
    check_labels(faults, child(spec, "selector"), "spec.selector")
    if kind in ("NodePort", "LoadBalancer"):
        policy = text(spec, "externalTrafficPolicy")
        one_of(faults, "spec.externalTrafficPolicy", policy, ("Cluster", "Local"))
    if old is not None and kind == text(old, "spec", "type") and kind != "ExternalName":
        before = text(old, "spec", "clusterIP")
        if before and text(spec, "clusterIP") != before:
            faults.invalid("spec.clusterIPs[0]", text(spec, "clusterIP"), "may not change once set")


def _ports(faults: Faults, ports: list[Object], kind: str) -> None:
    names: set[str] = set()
    numbers: set[tuple[Any, str]] = set()
    for index, port in enumerate(ports):
        path, name = f"spec.ports[{index}]", text(port, "name")
        if not name:
            if len(ports) > 1:
                faults.required(f"{path}.name")
        else:
            faults.check(f"{path}.name", name, formats.dns_label)
            if name in names:
                faults.duplicate(f"{path}.name", name)
            names.add(name)
        number, protocol = port.get("port") or 0, text(port, "protocol")
        if not 1 <= number <= 65535:
            faults.invalid(f"{path}.port", number, "must be between 1 and 65535, inclusive")
        one_of(faults, f"{path}.protocol", protocol, PROTOCOLS)
        if (number, protocol) in numbers:
            faults.duplicate(path, {"port": number, "protocol": protocol})
        numbers.add((number, protocol))
        target = port.get("targetPort")
        if isinstance(target, int) and not 1 <= target <= 65535:
            faults.invalid(f"{path}.targetPort", target, "must be between 1 and 65535, inclusive")
        elif isinstance(target, str):
            faults.check(f"{path}.targetPort", target, formats.port_name)
        if port.get("nodePort") and kind not in ("NodePort", "LoadBalancer"):
            faults.forbidden(f"{path}.nodePort", "may not be used when `type` is 'ClusterIP'")


def count_or_share(faults: Faults, path: str, value: Any) -> None:
    """A number that is not negative, or a percentage."""
    if isinstance(value, int):
        if value < 0:
            faults.invalid(path, value, "must be greater than or equal to 0")
    elif not re.fullmatch("[0-9]+%", str(value)):
        faults.invalid(
            path,
            value,
            "a valid percent string must be a numeric string followed by an ending '%' "
            "(e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')",
        )


def validate_budget(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a PodDisruptionBudget."""
    spec = child(obj, "spec")
    least, most = spec.get("minAvailable"), spec.get("maxUnavailable")
    if least is not None and most is not None:
        faults.invalid("spec", None, "minAvailable and maxUnavailable cannot be both set")
    for field, value in (("minAvailable", least), ("maxUnavailable", most)):
        if value is None:
            continue
        count_or_share(faults, f"spec.{field}", value)
        if isinstance(value, str) and re.fullmatch("[0-9]+%", value) and int(value[:-1]) > 100:
            faults.invalid(f"spec.{field}", value, "must not be greater than 100%")
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy is not None:
        one_of(faults, "spec.unhealthyPodEvictionPolicy", policy, ("AlwaysAllow", "IfHealthyBudget"))
    try:
        LabelSelector.from_object(spec.get("selector"))
    except (ParseError, KeyError) as error:
        faults.invalid("spec.selector", spec.get("selector"), f"invalid label selector: {error}")
