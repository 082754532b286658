"""Defaults and strategies of what users bring along beside workloads: services, storage, secrets, limits, rights.

The OpenAPI schemas do not list these defaults; upstream keeps them in Go code.

Source: fields of the Kubernetes 1.37 API; answers of kube-apiserver 1.37.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from drakkar.api.core.defaults import pod_template
from drakkar.api.features import Features
from drakkar.api.meta import Object
from drakkar.api.resource.strategy import drop_generation
from drakkar.api.rules import Defaults, Strategy
from drakkar.api.tree import at, child, children, text

_ALL: Final = Features.drakkar()
RBAC: Final = "rbac.authorization.k8s.io"
#: Seconds for which a client is sent to the same pod.
_STICKY: Final = 10800


def _fill(holder: Object, **members: Any) -> None:
    for field, value in members.items():
        if holder.get(field) is None or holder[field] == "":
            holder[field] = value


# Services and what stands behind them.


def service(obj: Object) -> None:
    """A Service; its addresses come from the server."""
    _fill(obj, spec={}, status={})
    _fill(obj["status"], loadBalancer={})
    spec = obj["spec"]
    _fill(spec, sessionAffinity="None", type="ClusterIP")
    if spec["sessionAffinity"] == "ClientIP":
        _fill(spec, sessionAffinityConfig={})
        _fill(spec["sessionAffinityConfig"], clientIP={})
        _fill(spec["sessionAffinityConfig"]["clientIP"], timeoutSeconds=_STICKY)
    for port in children(spec, "ports"):
        _fill(port, protocol="TCP")
        if not port.get("targetPort") and spec["type"] != "ExternalName":
            port["targetPort"] = port.get("port")
    if spec["type"] in ("NodePort", "LoadBalancer"):
        _fill(spec, externalTrafficPolicy="Cluster")
    if spec["type"] != "ExternalName":
        _fill(spec, internalTrafficPolicy="Cluster")
    if spec["type"] == "LoadBalancer":
        _fill(spec, allocateLoadBalancerNodePorts=True)


def endpoints(obj: Object) -> None:
    """Endpoints."""
    for subset in children(obj, "subsets"):
        for port in children(subset, "ports"):
            _fill(port, protocol="TCP")


def endpoint_slice(obj: Object) -> None:
    """An EndpointSlice."""
    for port in children(obj, "ports"):
        _fill(port, name="", protocol="TCP")


def network_policy(obj: Object) -> None:
    """A NetworkPolicy says which directions it is about, or rather its rules do."""
    spec = child(obj, "spec")
    if not spec:
        return
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    for rule in [*children(spec, "ingress"), *children(spec, "egress")]:
        for port in children(rule, "ports"):
            _fill(port, protocol="TCP")


def autoscaler(obj: Object) -> None:
    """A HorizontalPodAutoscaler of autoscaling/v2."""
    spec = child(obj, "spec")
    if not spec:
        return
    _fill(spec, minReplicas=1)
    if not spec.get("metrics"):
        target = {"type": "Utilization", "averageUtilization": 80}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]


# Storage.


def volume_claim(obj: Object) -> None:
    """A PersistentVolumeClaim."""
    _fill(obj, spec={}, status={})
    _fill(obj["spec"], volumeMode="Filesystem")
    _fill(obj["status"], phase="Pending")


def volume(obj: Object) -> None:
    """A PersistentVolume."""
    _fill(obj, spec={}, status={})
    _fill(obj["spec"], volumeMode="Filesystem", persistentVolumeReclaimPolicy="Retain")
    _fill(obj["status"], phase="Pending")


def storage_class(obj: Object) -> None:
    """A StorageClass."""
    _fill(obj, reclaimPolicy="Delete", volumeBindingMode="Immediate")


def csi_driver(obj: Object) -> None:
    """A CSIDriver."""
    _fill(obj, spec={})
    _fill(
        obj["spec"],
        attachRequired=True,
        podInfoOnMount=False,
        storageCapacity=False,
        fsGroupPolicy="ReadWriteOnceWithFSType",
        requiresRepublish=False,
        seLinuxMount=False,
        volumeLifecycleModes=["Persistent"],
    )


# Secrets and bounds.


def secret(obj: Object) -> None:
    """A Secret."""
    _fill(obj, type="Opaque")


def limit_range(obj: Object) -> None:
    """A LimitRange: bounds of containers stand in for defaults that are not said."""
    for entry in children(obj, "spec", "limits"):
        if text(entry, "type") != "Container":
            continue
        default = {**child(entry, "max"), **child(entry, "default")}
        request = {**default, **child(entry, "defaultRequest")}
        for name, amount in child(entry, "min").items():
            request.setdefault(name, amount)
        if default:
            entry["default"] = default
        if request:
            entry["defaultRequest"] = request


def replication_controller(obj: Object) -> None:
    """A ReplicationController takes labels and selector from its template."""
    _fill(obj, spec={}, status={})
    spec = obj["spec"]
    _fill(spec, replicas=1)
    labels = child(spec, "template", "metadata", "labels")
    if labels:
        if not spec.get("selector"):
            spec["selector"] = dict(labels)
        if not at(obj, "metadata", "labels"):
            obj.setdefault("metadata", {})["labels"] = dict(labels)
    if spec.get("template") is not None:
        pod_template(spec["template"])


# Rights.


def role_binding(obj: Object) -> None:
    """A RoleBinding or ClusterRoleBinding: users, groups and roles are of one API group."""
    if obj.get("roleRef") is not None:
        _fill(obj["roleRef"], apiGroup=RBAC)
    for subject in children(obj, "subjects"):
        if subject.get("kind") in ("User", "Group"):
            _fill(subject, apiGroup=RBAC)


DEFAULTS: Final[dict[tuple[str, str], Defaults]] = {
    ("Service", "v1"): service,
    ("Endpoints", "v1"): endpoints,
    ("EndpointSlice", "v1"): endpoint_slice,
    ("NetworkPolicy", "v1"): network_policy,
    ("HorizontalPodAutoscaler", "v2"): autoscaler,
    ("PersistentVolumeClaim", "v1"): volume_claim,
    ("PersistentVolume", "v1"): volume,
    ("StorageClass", "v1"): storage_class,
    ("CSIDriver", "v1"): csi_driver,
    ("Secret", "v1"): secret,
    ("LimitRange", "v1"): limit_range,
    ("ReplicationController", "v1"): replication_controller,
    ("RoleBinding", "v1"): role_binding,
    ("ClusterRoleBinding", "v1"): role_binding,
}
"""(kind, version) → what fills in its defaults."""


def _merge_texts(obj: Object) -> None:
    """``stringData`` is for writing only: it goes into ``data``."""
    plain: Object | None = obj.pop("stringData", None)
    if plain:
        encoded = {name: base64.b64encode(str(value).encode()).decode() for name, value in plain.items()}
        obj["data"] = {**child(obj, "data"), **encoded}


def _create_secret(obj: Object, now: str, features: Features = _ALL, /) -> None:
    _merge_texts(obj)
    drop_generation(obj, None)


def _update_secret(new: Object, old: Object, subresource: str | None, now: str, features: Features = _ALL, /) -> None:
    # Who leaves the type out of an update does not want to change it.
    if new.get("type") in (None, "", "Opaque") and old.get("type"):
        new["type"] = old["type"]
    _merge_texts(new)
    drop_generation(new, old)


STRATEGIES: Final[dict[tuple[str, str], Strategy]] = {
    ("", "Secret"): Strategy(prepare_create=_create_secret, prepare_update=_update_secret, reset_fields={}),
}
"""(group, kind) → its strategy."""
