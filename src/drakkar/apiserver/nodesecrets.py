"""Which secrets a node may read: those that a pod bound to it names, and no list of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from drakkar.api.tree import at, children, text
from drakkar.apiserver.cache import State

Object = dict[str, Any]


def node_uses_secret(state: State, node: str, namespace: str, name: str) -> bool:
    """Whether a pod on the node names the secret."""
    table = state.tables["/core/pods/"]
    keys = table.indexes["spec.nodeName"].get(node, set())
    return any(name in secrets_of(table.decode(table.entries[key])) for key in keys if key.startswith(f"{namespace}/"))


def secrets_of(pod: Object) -> set[str]:
    """Names of all secrets that the pod's spec refers to."""
    spec = pod.get("spec") or {}
    names = {text(entry, "name") for entry in children(spec, "imagePullSecrets")}
    names |= set(_of_volumes(spec))
    for key in ("containers", "initContainers", "ephemeralContainers"):
        for container in children(spec, key):
            names |= {text(entry, "valueFrom", "secretKeyRef", "name") for entry in children(container, "env")}
            names |= {text(entry, "secretRef", "name") for entry in children(container, "envFrom")}
    return names - {""}


def _of_volumes(spec: Object) -> Iterator[str]:
    for volume in children(spec, "volumes"):
        yield text(volume, "secret", "secretName")
        for source in children(volume, "projected", "sources"):
            yield text(source, "secret", "name")
        for kind in ("csi", "flexVolume", "cephfs", "rbd", "iscsi", "scaleIO", "storageos", "azureFile"):
            for field in ("nodePublishSecretRef", "secretRef"):
                yield text(volume, kind, field, "name")
            named = at(volume, kind, "secretName")
            yield named if isinstance(named, str) else ""
