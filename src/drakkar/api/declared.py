"""Features of nodes that a pod relies on, and that a node declares in ``status.declaredFeatures`` (KEP-5328).

Pods need no tolerations or labels for them: what a pod needs can be seen in its spec, and the scheduler takes nodes
that declare it. Source: the declared features of Kubernetes 1.37.
"""

from __future__ import annotations

from typing import Final

from drakkar.api.meta import Object
from drakkar.api.tree import at, child, children

#: What our nodes declare. They skip operations that drivers say are not needed (``skipNodeOperations``), which the
#: allocator asks for device by device (spec/allocation.md); and they add what a container's devices bring of the
#: node's resources to its limits (``nodeAllocatableResources``), without which kube-apiserver takes no such slice.
OUR_NODES: Final = ("DRANodeAllocatableResources", "DRAOptionalNodeOperations")

_RESTART_ALL: Final = "RestartAllContainersOnContainerExits"
_USERS_ON_HOST: Final = "UserNamespacesHostNetworkSupport"
_BIND_OPTIONS: Final = "VolumeBindMountOptions"


def required_features(pod: Object) -> tuple[str, ...]:
    """What a node must declare to run the pod, in order of the names."""
    spec = child(pod, "spec")
    containers = [*children(spec, "containers"), *children(spec, "initContainers")]
    found: list[str] = []
    rules = (rule for container in containers for rule in children(container, "restartPolicyRules"))
    if any(rule.get("action") == "RestartAllContainers" for rule in rules):
        found.append(_RESTART_ALL)
    if spec.get("hostNetwork") and spec.get("hostUsers") is False:
        found.append(_USERS_ON_HOST)
    mounting = (*containers, *children(spec, "ephemeralContainers"))
    if any(at(mount, "bindMountOptions") for each in mounting for mount in children(each, "volumeMounts")):
        found.append(_BIND_OPTIONS)
    return tuple(found)
