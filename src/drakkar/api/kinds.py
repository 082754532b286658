"""Which resources exist: one small record per kind, used by server and clients alike.

``Kind`` names a resource in one API version. ``KINDS`` holds those that our components
speak; the API server serves many more from the discovery data it ships.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drakkar.api.resource import v1 as resource


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource of the API. ``type`` is the struct to decode into, or None for plain dicts."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool
    type: Any = None

    @property
    def api_version(self) -> str:
        """``v1`` or ``group/version``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of the collection, an object or its subresource; no namespace = all namespaces."""
        parts = ["/apis/" + self.group if self.group else "/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


def _core(kind: str, plural: str, namespaced: bool = True) -> Kind:
    return Kind("", "v1", kind, plural, namespaced)


NAMESPACE = _core("Namespace", "namespaces", False)
NODE = _core("Node", "nodes", False)
POD = _core("Pod", "pods")
CONFIGMAP = _core("ConfigMap", "configmaps")
SECRET = _core("Secret", "secrets")
SERVICEACCOUNT = _core("ServiceAccount", "serviceaccounts")
EVENT = Kind("", "v1", "Event", "events", True)
JOB = Kind("batch", "v1", "Job", "jobs", True)
REPLICASET = Kind("apps", "v1", "ReplicaSet", "replicasets", True)
DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments", True)
DAEMONSET = Kind("apps", "v1", "DaemonSet", "daemonsets", True)
STATEFULSET = Kind("apps", "v1", "StatefulSet", "statefulsets", True)
CONTROLLERREVISION = Kind("apps", "v1", "ControllerRevision", "controllerrevisions", True)
PERSISTENTVOLUME = _core("PersistentVolume", "persistentvolumes", False)
PERSISTENTVOLUMECLAIM = _core("PersistentVolumeClaim", "persistentvolumeclaims")
PODDISRUPTIONBUDGET = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", True)
RESOURCEQUOTA = _core("ResourceQuota", "resourcequotas")
CSINODE = Kind("storage.k8s.io", "v1", "CSINode", "csinodes", False)
PODGROUP = Kind("scheduling.k8s.io", "v1beta1", "PodGroup", "podgroups", True)
LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases", True)
RESOURCECLAIM = Kind("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", True, resource.ResourceClaim)
RESOURCECLAIMTEMPLATE = Kind(
    "resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates", True, resource.ResourceClaimTemplate
)
RESOURCESLICE = Kind("resource.k8s.io", "v1", "ResourceSlice", "resourceslices", False, resource.ResourceSlice)
DEVICECLASS = Kind("resource.k8s.io", "v1", "DeviceClass", "deviceclasses", False, resource.DeviceClass)
DEVICETAINTRULE = Kind("resource.k8s.io", "v1", "DeviceTaintRule", "devicetaintrules", False, resource.DeviceTaintRule)
RESOURCEPOOLSTATUSREQUEST = Kind(
    "resource.k8s.io", "v1alpha3", "ResourcePoolStatusRequest", "resourcepoolstatusrequests", False
)

KINDS: tuple[Kind, ...] = (
    NAMESPACE, NODE, POD, CONFIGMAP, SECRET, SERVICEACCOUNT, PERSISTENTVOLUME, PERSISTENTVOLUMECLAIM, EVENT, JOB, LEASE,
    REPLICASET, DEPLOYMENT, DAEMONSET, STATEFULSET, CONTROLLERREVISION, PODDISRUPTIONBUDGET, RESOURCEQUOTA,
    RESOURCECLAIM, RESOURCECLAIMTEMPLATE, RESOURCESLICE, DEVICECLASS, DEVICETAINTRULE, PODGROUP,
)  # fmt: skip
