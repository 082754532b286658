"""Objects of the API that a pod or a volume refers to, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drakkar.api.objects import pod_claim_names
from drakkar.api.tree import child, children, text

Object = dict[str, Any]


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


def secrets_of_persistent(volume: Object) -> Iterator[tuple[str, str]]:
    """Namespace and name of the secrets by which a node reaches a PersistentVolume, not those of its provisioner."""
    home = text(volume, "spec", "claimRef", "namespace")
    for kind, fields in _VOLUME_SECRETS.items():
        for field in fields:
            reference = child(volume, "spec", kind, field)
            if reference.get("name"):
                yield reference.get("namespace") or home, reference["name"]
    azure = child(volume, "spec", "azureFile")
    if azure.get("secretName"):
        yield azure.get("secretNamespace") or home, azure["secretName"]


#: Kind of a volume → fields that refer to secrets.
_VOLUME_SECRETS: Mapping[str, tuple[str, ...]] = {
    "csi": ("nodePublishSecretRef", "nodeStageSecretRef", "nodeExpandSecretRef"),
    **dict.fromkeys(("flexVolume", "cephfs", "cinder", "rbd", "iscsi", "scaleIO", "storageos"), ("secretRef",)),
}


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
        for kind, fields in _VOLUME_SECRETS.items():
            for field in fields:
                yield text(volume, kind, field, "name")
        yield text(volume, "azureFile", "secretName")
