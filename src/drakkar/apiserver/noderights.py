"""What a node may read: objects that pods bound to it refer to, and lists that are narrowed to what is its own.

A pod that a node shows for itself (a mirror pod) opens nothing, and may refer to nothing, since the node wrote it.

Source: the node authorizer and the admission plugin NodeRestriction, as docs/reference/access-authn-authz/node of
Kubernetes describes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from drakkar.api.errors import ParseError
from drakkar.api.objects import pod_claim_names
from drakkar.api.selectors import FieldSelector
from drakkar.api.tree import at, child, children, text
from drakkar.apiserver.cache import State
from drakkar.apiserver.routes import RequestInfo

Object = dict[str, Any]

MIRROR = "kubernetes.io/config.mirror"
_DRA = "resource.k8s.io"
#: The ConfigMap of every namespace that agents mount into pods which do not name it; it holds nothing secret.
_ROOT_CA = "kube-root-ca.crt"
#: Fields of a pod's status by which others tell it its claims.
_CLAIM_STATUSES = ("resourceClaimStatuses", "extendedResourceClaimStatus", "nodeAllocatableResourceClaimStatuses")


def unreadable(state: State, node: str, info: RequestInfo) -> str:
    """Why the node may not get, list or watch this; empty when it may."""
    where = (info.group, info.resource)
    fields = _fields(info)
    name = info.name or (fields.exact("metadata.name") or "" if info.verb in ("list", "watch") else "")
    if where == ("", "nodes"):
        return "" if name == node else f'node "{node}" cannot read {_named("nodes", name)}, only its own Node object'
    if where in (("", "pods"), (_DRA, "resourceslices")):
        if info.verb != "get" and fields.exact("spec.nodeName") == node:
            return ""
        if name and _is_bound(state, node, info, name):
            return ""
        if not name:
            return f'node "{node}" can only {info.verb} {info.resource} with the field selector spec.nodeName={node}'
    elif where in _REFERENCES or where == ("", "persistentvolumes"):
        if not name:
            said = "single objects that its pods refer to; select one by metadata.name"
            return f'node "{node}" can only {info.verb} {info.resource} that are {said}'
        if _is_referred_to(state, node, info, name):
            return ""
    else:
        return ""
    return f'no relationship found between node "{node}" and this object'


def no_mirror(node: str, pod: Mapping[str, Any]) -> str:
    """Why a node may not create this pod: only mirror pods, which refer to no object of the API."""
    if MIRROR not in child(pod, "metadata", "annotations"):
        return f'pod does not have "{MIRROR}" annotation, node "{node}" can only create mirror pods'
    named = [resource for (_, resource), names in _REFERENCES.items() if names(dict(pod))]
    if children(pod, "spec", "resourceClaims"):
        named.append("resourceclaims")
    return f'node "{node}" can not create pods that reference {named[0]}' if named else ""


def claims_changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The field of a pod's status that would give the pod other claims; empty when none does."""
    return next((field for field in _CLAIM_STATUSES if at(old, "status", field) != at(new, "status", field)), "")


def secrets_of(pod: Object) -> set[str]:
    """Names of all secrets that the pod's spec refers to."""
    names = {text(entry, "name") for entry in children(pod, "spec", "imagePullSecrets")}
    names |= set(_secrets_of_volumes(pod))
    return (names | set(_of_variables(pod, "secretKeyRef", "secretRef"))) - {""}


def configmaps_of(pod: Object) -> set[str]:
    """Names of all ConfigMaps that the pod's spec refers to."""
    names = set(_of_variables(pod, "configMapKeyRef", "configMapRef"))
    for volume in children(pod, "spec", "volumes"):
        names.add(text(volume, "configMap", "name"))
        names |= {text(source, "configMap", "name") for source in children(volume, "projected", "sources")}
    return names - {""}


def volume_claims_of(pod: Object) -> set[str]:
    """Names of the PersistentVolumeClaims of the pod's volumes, those made for it alone included."""
    names: set[str] = set()
    for volume in children(pod, "spec", "volumes"):
        names.add(text(volume, "persistentVolumeClaim", "claimName"))
        if volume.get("ephemeral"):
            names.add(f"{text(pod, 'metadata', 'name')}-{text(volume, 'name')}")
    return names - {""}


def claims_of(pod: Object) -> set[str]:
    """Names of the ResourceClaims of the pod, that for extended resources included."""
    extended = text(pod, "status", "extendedResourceClaimStatus", "resourceClaimName")
    return {name for name in (*pod_claim_names(pod).values(), extended) if name}


def accounts_of(pod: Object) -> set[str]:
    """Name of the pod's ServiceAccount, where it names one."""
    return {text(pod, "spec", "serviceAccountName")} - {""}


_REFERENCES: Mapping[tuple[str, str], Callable[[Object], set[str]]] = {
    ("", "secrets"): secrets_of,
    ("", "configmaps"): configmaps_of,
    ("", "persistentvolumeclaims"): volume_claims_of,
    ("", "serviceaccounts"): accounts_of,
    (_DRA, "resourceclaims"): claims_of,
}


def _fields(info: RequestInfo) -> FieldSelector:
    try:
        return FieldSelector.parse(info.field_selector)
    except ParseError:
        return FieldSelector()  # It narrows nothing; what reads the list refuses it.


def _named(plural: str, name: str) -> str:
    return f'"{name}"' if name else f"all {plural}"


def _is_bound(state: State, node: str, info: RequestInfo, name: str) -> bool:
    """Whether the pod or slice of this name is the node's."""
    if info.resource == "pods":
        entry = state.tables["/core/pods/"].entries.get(f"{info.namespace}/{name}")
    else:
        entry = state.tables[f"/{_DRA}/resourceslices/"].entries.get(name)
    return entry is not None and (entry.fields or {}).get("spec.nodeName") == node


def _is_referred_to(state: State, node: str, info: RequestInfo, name: str) -> bool:
    """Whether a pod on the node refers to the object of this name."""
    if info.resource == "persistentvolumes":
        return any(name == volume for volume in _volumes_of(state, node))
    names = _REFERENCES[info.group, info.resource]
    public = (info.resource, name) == ("configmaps", _ROOT_CA)
    # Claims made for an ephemeral volume are named after pod and volume, so no pod says their names.
    said = "" if public or names is volume_claims_of else name
    pods = _pods_of(state, node, f"{info.namespace}/", said) if info.namespace else ()
    return any(public or name in names(pod) for pod in pods)


def _pods_of(state: State, node: str, start: str, said: str = "") -> Iterator[Object]:
    """Pods bound to the node whose key begins so, without those that the node wrote itself.

    ``said`` is a text that the pod must have somewhere: reading whole pods costs much more than finding it.
    """
    table, needle = state.tables["/core/pods/"], said.encode()
    for key in table.indexes["spec.nodeName"].get(node, set()):
        entry = table.entries[key]
        if key.startswith(start) and needle in entry.tail:
            pod = table.decode(entry)
            if MIRROR not in child(pod, "metadata", "annotations"):
                yield pod


def _volumes_of(state: State, node: str) -> Iterator[str]:
    """Names of the PersistentVolumes that claims of the node's pods are bound to."""
    table = state.tables["/core/persistentvolumeclaims/"]
    for pod in _pods_of(state, node, ""):
        for claim in volume_claims_of(pod):
            entry = table.entries.get(f"{text(pod, 'metadata', 'namespace')}/{claim}")
            if entry is not None:
                yield text(table.decode(entry), "spec", "volumeName")


def _of_variables(pod: Object, single: str, whole: str) -> Iterator[str]:
    for key in ("containers", "initContainers", "ephemeralContainers"):
        for container in children(pod, "spec", key):
            for entry in children(container, "env"):
                yield text(entry, "valueFrom", single, "name")
            for entry in children(container, "envFrom"):
                yield text(entry, whole, "name")


def _secrets_of_volumes(pod: Object) -> Iterator[str]:
    for volume in children(pod, "spec", "volumes"):
        yield text(volume, "secret", "secretName")
        for source in children(volume, "projected", "sources"):
            yield text(source, "secret", "name")
        for kind in ("csi", "flexVolume", "cephfs", "rbd", "iscsi", "scaleIO", "storageos", "azureFile"):
            for field in ("nodePublishSecretRef", "secretRef"):
                yield text(volume, kind, field, "name")
            named = at(volume, kind, "secretName")
            yield named if isinstance(named, str) else ""
