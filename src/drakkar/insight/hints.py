"""What stands beside the scheduler's decision about a pod: why it waits all the same, or what nobody has made."""

from __future__ import annotations

from collections.abc import Iterable

from drakkar.api import objects
from drakkar.api.core.strategy import GATED
from drakkar.api.meta import Object
from drakkar.api.names import ALLOCATION_LOST, DEFAULT_SCHEDULER, POD_SCHEDULED, SCHEDULING_GATE
from drakkar.api.tree import children, text
from drakkar.scheduler.cluster import Cluster
from drakkar.scheduler.gates import lifted_node
from drakkar.scheduler.pods import PodView


def unseen(pod: Object) -> list[str]:
    """Whether a pod that fits is one of which no scheduler has taken notice; of pods that an API server knows."""
    if not objects.uid_of(pod):
        return []
    told = objects.condition(pod, POD_SCHEDULED)
    if children(pod, "spec", "schedulingGates"):
        # The API server's own words, from the pod's creation.
        if told is None or told.get("message") == GATED:
            return [f"Drakkar has not looked at the pod yet: is a `drakkar scheduler` there that leads, for {_GATE}?"]
    elif told is None:
        name = text(pod, "spec", "schedulerName") or DEFAULT_SCHEDULER
        return [f"no scheduler has looked at the pod yet: is there one for schedulerName {name}?"]
    return []


_GATE = f"the gate {SCHEDULING_GATE} (--mode gate)"


def lifted(pod: Object) -> list[str]:
    """Of a pod whose gate Drakkar has lifted: who has to bind it, and whether its place was lost meanwhile."""
    node = lifted_node(pod)
    if not node:
        return []
    lost = objects.condition(pod, ALLOCATION_LOST)
    if lost is not None and lost.get("status") == "True":
        return [str(lost.get("message"))]
    name = text(pod, "spec", "schedulerName") or DEFAULT_SCHEDULER
    return [f"Drakkar has lifted its gate for node {node}: {name} has to bind it there"]


def missing_templates(listed: Iterable[Object], pod: Object) -> list[str]:
    """Templates that the pod names, that are not there, and of which no claim was made."""
    namespace = objects.namespace_of(pod)
    made = {entry["name"] for entry in children(pod, "status", "resourceClaimStatuses")}
    there = {objects.key_of(obj) for obj in listed if obj.get("kind") == "ResourceClaimTemplate"}
    wanted = [
        entry["resourceClaimTemplateName"]
        for entry in children(pod, "spec", "resourceClaims")
        if entry.get("resourceClaimTemplateName") and entry["name"] not in made
    ]
    return [
        f"there is no ResourceClaimTemplate {name} in namespace {namespace}: create it, or correct the pod"
        for name in dict.fromkeys(wanted)
        if f"{namespace}/{name}" not in there
    ]


def unknown_resources(cluster: Cluster, pod: PodView) -> list[str]:
    """Resources that the pod asks for and that nobody offers: no node, and no class of devices."""
    offered = {name for node in cluster.nodes.values() for name in node.allocatable}
    return [
        f"no node offers {name}, and no DeviceClass has it as extendedResourceName"
        for name in pod.requests
        if "/" in name and name not in offered and cluster.extended.behind(name) is None
    ]
