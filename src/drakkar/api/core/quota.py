"""What objects cost under a ResourceQuota: pure, for the controller that counts and for admission.

A quota names resources in ``spec.hard``; each is charged by objects of one or two kinds (:func:`sources`).
:func:`usage` says what one object is charged for, :func:`applies` whether a quota's scopes take it in, and
:func:`exceeded` what a further charge would break.

Source: spec/controllers.md section 8; behaviour of kube-apiserver 1.37.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from drakkar.api import names
from drakkar.api.meta import Object
from drakkar.api.objects import annotations_of, name_of, pod_is_done, pod_qos_class, pod_requests
from drakkar.api.quantity import Quantity
from drakkar.api.times import parse_timestamp
from drakkar.api.tree import at, child, children, text, texts

Usage = dict[str, Quantity]
#: Group and plural name of a kind.
Source = tuple[str, str]

PODS: Source = ("", "pods")
CLAIMS: Source = ("resource.k8s.io", "resourceclaims")
VOLUMES: Source = ("", "persistentvolumeclaims")
SERVICES: Source = ("", "services")

#: Devices that a request for all of them is charged for: no claim can get more.
ALL_DEVICES = 32
_COMPUTE = ("cpu", "memory", "ephemeral-storage")
_COUNTED = ("configmaps", "secrets", "services", "replicationcontrollers", "resourcequotas", "persistentvolumeclaims")
_STORAGE_CLASS = ".storageclass.storage.k8s.io/"


def sources(resource: str) -> tuple[Source, ...]:
    """The kinds whose objects are charged to a resource of a quota; empty for one that nobody knows."""
    if resource.startswith("count/"):
        plural, _, group = resource.removeprefix("count/").partition(".")
        return ((group, plural),)
    if resource.endswith(names.QUOTA_CLASS_SUFFIX):
        return (CLAIMS,)
    if resource in ("services.loadbalancers", "services.nodeports"):
        return (SERVICES,)
    if resource == "requests.storage" or _STORAGE_CLASS in resource:
        return (VOLUMES,)
    if resource in _COUNTED:
        return (("", resource),)
    base = resource.removeprefix("requests.").removeprefix("limits.")
    if resource == "pods" or base in _COMPUTE or base.startswith("hugepages-"):
        return (PODS,)
    if resource.startswith("requests.") and "/" in base:
        return (PODS, CLAIMS)
    return ()


@dataclass(frozen=True, slots=True)
class ExtendedNames:
    """Extended resource names that device classes answer to."""

    #: Explicit name to class, and class to explicit name.
    classes: Mapping[str, str]
    names: Mapping[str, str]

    @staticmethod
    def of(classes: Iterable[Any]) -> ExtendedNames:
        """From DeviceClasses (structs). Of two with one name the later wins, then the smaller class name."""
        found: dict[str, str] = {}
        by_class: dict[str, str] = {}
        order = sorted(classes, key=lambda item: item.metadata.name, reverse=True)
        for item in sorted(order, key=lambda item: item.metadata.creationTimestamp or ""):
            explicit = item.spec.extendedResourceName
            if explicit:
                found[explicit] = item.metadata.name
                by_class[item.metadata.name] = explicit
        return ExtendedNames(found, by_class)


NO_NAMES = ExtendedNames({}, {})


def usage(source: Source, obj: Object, *, extended: ExtendedNames = NO_NAMES, now: float = 0.0) -> Usage:
    """What an object (a dict) of this kind is charged for; ``now`` is Unix time in seconds."""
    group, plural = source
    one = Quantity.from_int(1)
    charged: Usage = {f"count/{plural}.{group}" if group else f"count/{plural}": one}
    if source == PODS:
        if not _has_ended(obj, now):
            charged |= _pod(obj, extended)
    elif source == CLAIMS:
        charged |= _claim(obj, extended)
    elif not group and plural in _COUNTED:
        charged[plural] = one
        if source == SERVICES:
            charged |= _service(obj)
        elif source == VOLUMES:
            charged |= _volume(obj)
    return charged


def _has_ended(pod: Object, now: float) -> bool:
    """Whether a pod is charged for nothing but its existence: it ended, or should have by now."""
    if pod_is_done(pod):
        return True
    rest = grace_left(pod, now)
    return rest is not None and rest < 0


def grace_left(pod: Object, now: float) -> float | None:
    """Seconds for which a pod that was asked to go is still charged; None for all others."""
    asked, grace = at(pod, "metadata", "deletionTimestamp"), at(pod, "metadata", "deletionGracePeriodSeconds")
    if not asked or grace is None:
        return None
    return parse_timestamp(asked) + grace - now


def _pod(pod: Object, extended: ExtendedNames) -> Usage:
    charged: Usage = {"pods": Quantity.from_int(1)}
    by_claim = {
        entry.get("resourceName") for entry in children(pod, "status", "extendedResourceClaimStatus", "requestMappings")
    }
    for name, amount in pod_requests(pod).items():
        if name in _COMPUTE or name.startswith("hugepages-"):
            _add(charged, name, amount)
            _add(charged, f"requests.{name}", amount)
        elif "/" in name:
            _add(charged, f"requests.{name}", amount)
            implied = name.removeprefix(names.IMPLICIT_EXTENDED_RESOURCE_PREFIX)
            if implied != name:
                if implied in extended.names:
                    _add(charged, f"requests.{extended.names[implied]}", amount)
            elif name in extended.classes and name in by_claim:
                # Only what a claim stands for: a device plugin's devices are of no class.
                _add(charged, f"requests.{names.IMPLICIT_EXTENDED_RESOURCE_PREFIX}{extended.classes[name]}", amount)
    for name, amount in pod_requests(_with_limits_as_requests(pod)).items():
        if name in _COMPUTE:
            _add(charged, f"limits.{name}", amount)
    return charged


def _with_limits_as_requests(pod: Object) -> Object:
    """Limits add up over containers as requests do."""
    spec = child(pod, "spec")
    swapped: Object = {
        which: [_swapped(container) for container in children(spec, which)]
        for which in ("containers", "initContainers")
    }
    limits = at(spec, "resources", "limits")
    if limits:
        swapped["resources"] = {"requests": limits}
    return {"spec": swapped}


def _swapped(container: Object) -> Object:
    return {
        "restartPolicy": container.get("restartPolicy"),
        "resources": {"requests": child(container, "resources", "limits")},
    }


def _claim(claim: Object, extended: ExtendedNames) -> Usage:
    charged: Usage = {}
    for name, count in _devices(claim).items():
        amount = Quantity.from_int(count)
        _add(charged, name + names.QUOTA_CLASS_SUFFIX, amount)
        if annotations_of(claim).get(names.EXTENDED_RESOURCE_CLAIM) == "true":
            # The pod that the claim was made for is charged already.
            continue
        _add(charged, f"requests.{names.IMPLICIT_EXTENDED_RESOURCE_PREFIX}{name}", amount)
        if name in extended.names:
            _add(charged, f"requests.{extended.names[name]}", amount)
    return charged


def _devices(claim: Object) -> dict[str, int]:
    """Devices by class; of alternatives the dearest for each class."""
    total: dict[str, int] = {}
    for request in children(claim, "spec", "devices", "requests"):
        dearest: dict[str, int] = {}
        for entry in children(request, "firstAvailable") or [child(request, "exactly")]:
            count = ALL_DEVICES if entry.get("allocationMode") == "All" else entry.get("count") or 1
            name = text(entry, "deviceClassName")
            dearest[name] = max(dearest.get(name, 0), count)
        for name, count in dearest.items():
            if name:
                total[name] = total.get(name, 0) + count
    return total


def _service(service: Object) -> Usage:
    charged: Usage = {}
    kind, ports = text(service, "spec", "type"), children(service, "spec", "ports")
    if kind == "LoadBalancer":
        charged["services.loadbalancers"] = Quantity.from_int(1)
        without = at(service, "spec", "allocateLoadBalancerNodePorts") is False
        count = sum(bool(port.get("nodePort")) for port in ports) if without else len(ports)
        charged["services.nodeports"] = Quantity.from_int(count)
    elif kind == "NodePort":
        charged["services.nodeports"] = Quantity.from_int(len(ports))
    return charged


def _volume(volume: Object) -> Usage:
    one, charged = Quantity.from_int(1), Usage()
    class_ = text(volume, "spec", "storageClassName")
    if class_:
        charged[f"{class_}{_STORAGE_CLASS}persistentvolumeclaims"] = one
    asked = at(volume, "spec", "resources", "requests", "storage")
    if asked is not None:
        amount = Quantity.parse(str(asked))
        charged["requests.storage"] = amount
        if class_:
            charged[f"{class_}{_STORAGE_CLASS}requests.storage"] = amount
    return charged


def _add(total: Usage, name: str, amount: Quantity) -> None:
    total[name] = total[name] + amount if name in total else amount


# Scopes.


def applies(quota: Object, source: Source, obj: Object) -> bool:
    """Whether the scopes of a quota take the object in; without scopes they take in everything."""
    scopes: list[Object] = [{"scopeName": name, "operator": "Exists"} for name in texts(quota, "spec", "scopes")]
    scopes += children(quota, "spec", "scopeSelector", "matchExpressions")
    if source != PODS:
        return not scopes
    return all(_in_scope(scope, obj) for scope in scopes)


def _in_scope(scope: Object, pod: Object) -> bool:
    match scope["scopeName"]:
        case "Terminating":
            return at(pod, "spec", "activeDeadlineSeconds") is not None
        case "NotTerminating":
            return at(pod, "spec", "activeDeadlineSeconds") is None
        case "BestEffort":
            return pod_qos_class(pod) == "BestEffort"
        case "NotBestEffort":
            return pod_qos_class(pod) != "BestEffort"
        case "PriorityClass":
            name, values = text(pod, "spec", "priorityClassName"), texts(scope, "values")
            match scope["operator"]:
                case "In":
                    return name in values
                case "NotIn":
                    return name not in values
                case "Exists":
                    return bool(name)
                case _:
                    return not name
        case "CrossNamespacePodAffinity":
            return _crosses_namespaces(pod)
        case _:
            return False


def _crosses_namespaces(pod: Object) -> bool:
    for which in ("podAffinity", "podAntiAffinity"):
        affinity = child(pod, "spec", "affinity", which)
        terms = [*children(affinity, "requiredDuringSchedulingIgnoredDuringExecution")]
        for wish in children(affinity, "preferredDuringSchedulingIgnoredDuringExecution"):
            terms.append(child(wish, "podAffinityTerm"))
        if any(term.get("namespaces") or term.get("namespaceSelector") is not None for term in terms):
            return True
    return False


# Quotas.


def hard(quota: Object) -> Usage:
    """``spec.hard``, of resources that somebody is charged for."""
    found = child(quota, "spec", "hard")
    return {name: Quantity.parse(str(spelled)) for name, spelled in found.items() if sources(name)}


def total(
    quota: Object, objects: Iterable[tuple[Source, Object]], *, extended: ExtendedNames = NO_NAMES, now: float = 0.0
) -> Usage:
    """What the objects add up to, for each resource of the quota."""
    result: Usage = {name: Quantity.from_int(0) for name in hard(quota)}
    for source, obj in objects:
        if not applies(quota, source, obj):
            continue
        for name, amount in usage(source, obj, extended=extended, now=now).items():
            if name in result:
                result[name] = amount if not result[name] else result[name] + amount
    return result


def exceeded(quota: Object, used: Usage, more: Usage) -> str:
    """Why a further charge ``more`` is too much, in the words of kube-apiserver; empty when it is not."""
    limits = hard(quota)
    none = Quantity.from_int(0)
    broken = sorted(
        name
        for name, amount in more.items()
        if name in limits and amount > none and used.get(name, none) + amount > limits[name]
    )
    if not broken:
        return ""

    def spelled(amounts: Usage) -> str:
        return ",".join(f"{name}={amounts.get(name, none).canonical()}" for name in broken)

    return (
        f"exceeded quota: {name_of(quota)}, requested: {spelled(more)}, "
        f"used: {spelled(used)}, limited: {spelled(limits)}"
    )
