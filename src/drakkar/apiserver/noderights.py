"""What a node may read and write: what is its own, what pods bound to it refer to, lists narrowed to these.

A pod that a node shows for itself (a mirror pod) opens nothing, and may refer to nothing, since the node wrote it.
All functions answer with the reason for a refusal, which is empty where there is none.

Source: the node authorizer and the admission plugin NodeRestriction, as docs/reference/access-authn-authz/node of
Kubernetes describes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from drakkar.api.errors import ParseError
from drakkar.api.selectors import FieldSelector
from drakkar.api.tree import at, child, children, text, texts
from drakkar.apiserver.cache import State
from drakkar.apiserver.references import (
    accounts_of,
    claims_of,
    configmaps_of,
    secrets_of,
    secrets_of_persistent,
    volume_claims_of,
)
from drakkar.apiserver.routes import RequestInfo

Object = dict[str, Any]

MIRROR = "kubernetes.io/config.mirror"
_DRA = "resource.k8s.io"
_LEASES, _LEASE_NAMESPACE = ("coordination.k8s.io", "leases"), "kube-node-lease"
_CSINODES, _ATTACHMENTS = ("storage.k8s.io", "csinodes"), ("storage.k8s.io", "volumeattachments")
#: The ConfigMap of every namespace that agents mount into pods which do not name it; it holds nothing secret.
_ROOT_CA = "kube-root-ca.crt"
#: Fields of a pod's status by which others tell it its claims.
_CLAIM_STATUSES = ("resourceClaimStatuses", "extendedResourceClaimStatus", "nodeAllocatableResourceClaimStatuses")


def unreadable(state: State, node: str, info: RequestInfo) -> str:
    """Why the node may not get, list or watch this."""
    where = (info.group, info.resource)
    fields = _fields(info)
    name = info.name or (fields.exact("metadata.name") or "" if info.verb in ("list", "watch") else "")
    if where == ("", "nodes"):
        return "" if name == node else f'node "{node}" cannot read {_named("nodes", name)}, only its own Node object'
    if where in (_LEASES, _CSINODES):
        return _not_of_this_name(node, where, info.namespace, name)
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
    elif where == _ATTACHMENTS:
        if text(_object(state, "/storage.k8s.io/volumeattachments/", name), "spec", "nodeName") == node:
            return ""
    else:
        return ""
    return f'no relationship found between node "{node}" and this object'


def unwritable(state: State, node: str, info: RequestInfo) -> str:
    """Why the node may not write this, as far as the path tells; what it makes is looked at by `not_to_make`."""
    where = (info.group, info.resource)
    if where == ("", "nodes") and info.name and info.name != node:
        return f'node "{node}" is not allowed to modify node "{info.name}"'
    if where in (_LEASES, _CSINODES):
        return _not_of_this_name(node, where, info.namespace, info.name or node)
    if where == ("", "pods") and info.name:
        entry = state.tables["/core/pods/"].entries.get(f"{info.namespace}/{info.name}")
        bound = (entry.fields or {}).get("spec.nodeName", "") if entry is not None else node
        if bound != node:
            return f'node "{node}" can only {info.verb} pods with spec.nodeName set to itself'
    if where == (_DRA, "resourceslices") and info.name:
        entry = state.tables[f"/{_DRA}/resourceslices/"].entries.get(info.name)
        if entry is not None and (entry.fields or {}).get("spec.nodeName") != node:
            return f'node "{node}" can only {info.verb} resource slices of its own'
    return ""


def not_to_make(state: State, node: str, info: RequestInfo, name: str, obj: Mapping[str, Any]) -> str:
    """Why the node may not create this object, whose name is ``name`` (empty: it is to be made up)."""
    where = (info.group, info.resource)
    if where in (("", "nodes"), _LEASES, _CSINODES):
        own = name == node
    elif where in (("", "pods"), (_DRA, "resourceslices")):
        own = text(obj, "spec", "nodeName") == node
    else:
        own = True
    if not own:
        return f'node "{node}" can only create {info.resource} of its own'
    if where != ("", "pods") or info.subresource:
        return ""
    entry = state.tables["/core/nodes/"].entries.get(node)
    return _no_mirror(node, obj) or _wrong_owner(node, entry.uid if entry is not None else "", obj)


def no_token(state: State, node: str, namespace: str, account: str, spec: Mapping[str, Any]) -> str:
    """Why the node gets no token of this account; ``spec`` is that of the TokenRequest."""
    bound = child(spec, "boundObjectRef")
    name = bound.get("name") or ""
    table = state.tables["/core/pods/"]
    entry = table.entries.get(f"{namespace}/{name}")
    if bound.get("kind") != "Pod" or not name or not bound.get("uid"):
        return "node requested token not bound to a pod"
    if entry is None or entry.uid != bound["uid"]:
        return f"node requested token bound to a pod that does not exist: {namespace}/{name}"
    if (entry.fields or {}).get("spec.nodeName") != node:
        return "node requested token bound to a pod scheduled on a different node"
    pod = table.decode(entry)
    if _is_mirror(pod):
        return "node requested token bound to a mirror pod"
    if (text(pod, "spec", "serviceAccountName") or "default") != account:
        return "node requested token for a service account that is not the pod's"
    audiences = texts(spec, "audiences")
    if len(audiences) > 1:
        return "node may only request 0 or 1 audiences"
    audience = "".join(audiences)
    if audience not in _audiences_of(state, pod):
        return f'audience "{audience}" not found in pod spec volume'
    return ""


def node_changed(node: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Why the node may not change its Node so: labels that are not a node's, taints, owners. ``old`` is empty at first.

    With an owner that does not exist it would be collected, and come back without its taints and labels.
    """
    before, after = child(old, "metadata", "labels"), child(new, "metadata", "labels")
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    bad = sorted(key for key in changed if not _may_label(key))
    if bad:
        return f"is not allowed to modify labels: {', '.join(bad)}"
    if children(old, "metadata", "ownerReferences") != children(new, "metadata", "ownerReferences"):
        return f'node "{node}" is not allowed to modify ownerReferences'
    if old and children(old, "spec", "taints") != children(new, "spec", "taints"):
        return f'node "{node}" is not allowed to modify taints'
    return ""


def pod_changed(node: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Why the node may not change a pod so: which claims it has, whether it is a mirror pod, who selects it."""
    field = next((field for field in _CLAIM_STATUSES if at(old, "status", field) != at(new, "status", field)), "")
    if field:
        return f'node "{node}" cannot update status.{field}'
    if child(old, "metadata", "labels") != child(new, "metadata", "labels"):
        return f'node "{node}" cannot update labels through pod status'
    if _is_mirror(old) != _is_mirror(new):
        return f'node "{node}" cannot update the annotation "{MIRROR}"'
    return ""


_REFERENCES: Mapping[tuple[str, str], Callable[[Object], set[str]]] = {
    ("", "secrets"): secrets_of,
    ("", "configmaps"): configmaps_of,
    ("", "persistentvolumeclaims"): volume_claims_of,
    ("", "serviceaccounts"): accounts_of,
    (_DRA, "resourceclaims"): claims_of,
}


def _no_mirror(node: str, pod: Mapping[str, Any]) -> str:
    """Why a node may not create this pod: only mirror pods, which refer to no object of the API."""
    if not _is_mirror(pod):
        return f'pod does not have "{MIRROR}" annotation, node "{node}" can only create mirror pods'
    named = [resource for (_, resource), names in _REFERENCES.items() if names(dict(pod))]
    sources = [
        source for volume in children(pod, "spec", "volumes") for source in children(volume, "projected", "sources")
    ]
    named += [plural for kind, plural in _PROJECTED.items() if any(source.get(kind) for source in sources)]
    if children(pod, "spec", "resourceClaims"):
        named.append("resourceclaims")
    return f'node "{node}" can not create pods that reference {named[0]}' if named else ""


#: Sources of projected volumes by which a pod would get at objects or credentials; those that name an object are above.
_PROJECTED = {
    "serviceAccountToken": "serviceaccounts",
    "clusterTrustBundle": "clustertrustbundles",
    "podCertificate": "podcertificaterequests",
}


def _wrong_owner(node: str, uid: str, pod: Mapping[str, Any]) -> str:
    """Why this cannot be a pod of the node ``uid``: that alone owns it, lest the pod counts as one of a controller."""
    owners = children(pod, "metadata", "ownerReferences")
    if len(owners) != 1:
        return f'node "{node}" can only create pods with a single owner reference set to itself'
    (owner,) = owners
    if (owner.get("apiVersion"), owner.get("kind"), owner.get("name")) != ("v1", "Node", node):
        return f'node "{node}" can only create pods with an owner reference set to itself'
    if owner.get("controller") is not True:
        return f'node "{node}" can only create pods with a controller owner reference set to itself'
    if owner.get("blockOwnerDeletion"):
        return f'node "{node}" must not set blockOwnerDeletion on an owner reference'
    if not uid or owner.get("uid") != uid:
        return f'node "{node}" UID mismatch: expected {uid or "a Node that exists"}, got {owner.get("uid")}'
    return ""


def _is_mirror(pod: Mapping[str, Any]) -> bool:
    return MIRROR in child(pod, "metadata", "annotations")


def _not_of_this_name(node: str, where: tuple[str, str], namespace: str, name: str) -> str:
    """Why a lease or CSINode of this name is not the node's."""
    if where == _LEASES and (namespace != _LEASE_NAMESPACE or name != node):
        return f'node "{node}" can only access its own lease in the namespace {_LEASE_NAMESPACE}'
    if where == _CSINODES and name != node:
        return f'node "{node}" can only access CSINode with the same name as the requesting node'
    return ""


def _object(state: State, prefix: str, key: str) -> Object:
    """The object as it is, to read only; empty where there is none."""
    table = state.tables[prefix]
    entry = table.entries.get(key)
    return table.decode(entry) if entry is not None else {}


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
        return any(text(volume, "metadata", "name") == name for volume in _volumes_of(state, node))
    names = _REFERENCES[info.group, info.resource]
    public = (info.resource, name) == ("configmaps", _ROOT_CA)
    # Claims made for an ephemeral volume are named after pod and volume, so no pod says their names.
    said = "" if public or names is volume_claims_of else name
    pods = _pods_of(state, node, f"{info.namespace}/", said) if info.namespace else ()
    if any(public or name in names(pod) for pod in pods):
        return True
    wanted = (info.namespace, name)
    return names is secrets_of and any(wanted in secrets_of_persistent(found) for found in _volumes_of(state, node))


def _pods_of(state: State, node: str, start: str, said: str = "") -> Iterator[Object]:
    """Pods bound to the node whose key begins so, without those that the node wrote itself.

    ``said`` is a text that the pod must have somewhere: reading whole pods costs much more than finding it.
    """
    table, needle = state.tables["/core/pods/"], said.encode()
    for key in table.indexes["spec.nodeName"].get(node, set()):
        entry = table.entries[key]
        if key.startswith(start) and needle in entry.tail:
            pod = table.decode(entry)
            if not _is_mirror(pod):
                yield pod


def _volumes_of(state: State, node: str) -> Iterator[Object]:
    """The PersistentVolumes that claims of the node's pods are bound to."""
    for pod in _pods_of(state, node, ""):
        yield from _persistent_volumes_of(state, pod)


def _persistent_volumes_of(state: State, pod: Object) -> Iterator[Object]:
    """Those that the pod's claims are bound to. Both sides have to say so: who writes a claim may name any volume."""
    namespace = text(pod, "metadata", "namespace")
    for name in volume_claims_of(pod):
        claim = _object(state, "/core/persistentvolumeclaims/", f"{namespace}/{name}")
        volume = _object(state, "/core/persistentvolumes/", text(claim, "spec", "volumeName"))
        holder = child(volume, "spec", "claimRef")
        uid = text(claim, "metadata", "uid")
        if (holder.get("namespace"), holder.get("name")) == (namespace, name) and holder.get("uid") in (None, "", uid):
            yield volume


def _is_to_mount(state: State, pod: Object) -> bool:
    """Whether the pod is to have its account's token without having asked for it: it says so, or else the account."""
    said = at(pod, "spec", "automountServiceAccountToken")
    if said is None:
        key = f"{text(pod, 'metadata', 'namespace')}/{text(pod, 'spec', 'serviceAccountName') or 'default'}"
        said = at(_object(state, "/core/serviceaccounts/", key), "automountServiceAccountToken")
    return said is not False


def _audiences_of(state: State, pod: Object) -> set[str]:
    """For whom a node may get tokens of the pod's account; empty text: the API server itself.

    Source: KEP-4412 (ServiceAccountNodeAudienceRestriction).
    """
    found: set[str] = set()
    if _is_to_mount(state, pod):
        found.add("")  # Agents give a pod the usual token, also where its server has not put a volume for it.
    drivers = {text(volume, "spec", "csi", "driver") for volume in _persistent_volumes_of(state, pod)}
    for volume in children(pod, "spec", "volumes"):
        drivers.add(text(volume, "csi", "driver"))
        for source in children(volume, "projected", "sources"):
            if "serviceAccountToken" in source:
                found.add(text(source, "serviceAccountToken", "audience"))
    for driver in drivers - {""}:
        requests = children(_object(state, "/storage.k8s.io/csidrivers/", driver), "spec", "tokenRequests")
        found |= {text(request, "audience") for request in requests}
    return found


#: Labels of Kubernetes' own domains that an agent sets on its Node.
_NODE_LABELS = frozenset(
    {
        "kubernetes.io/arch",
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "beta.kubernetes.io/os",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
    }
)


def _may_label(key: str) -> bool:
    """Whether an agent may set this label on its own Node (plugin NodeRestriction)."""
    domain = key.rpartition("/")[0]
    if domain == "node-restriction.kubernetes.io" or domain.endswith(".node-restriction.kubernetes.io"):
        return False
    if not any(domain == own or domain.endswith(f".{own}") for own in ("kubernetes.io", "k8s.io")):
        return True
    allowed = ("kubelet.kubernetes.io", "node.kubernetes.io")
    return key in _NODE_LABELS or any(domain == own or domain.endswith(f".{own}") for own in allowed)
