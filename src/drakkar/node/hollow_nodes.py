"""The Node object of a hollow node, and what its status says: pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drakkar.api.declared import OUR_NODES
from drakkar.api.kinds import NODE
from drakkar.api.meta import Object
from drakkar.api.names import HOLLOW, LABEL_ARCH, LABEL_HOSTNAME, LABEL_OS, NODE_READY
from drakkar.api.objects import annotations_of, labels_of, name_of
from drakkar.api.tree import at, child
from drakkar.client.clock import timestamp
from drakkar.client.writes import Patch, Write
from drakkar.node.conditions import node_condition
from drakkar.version import NODE_VERSION, __version__

FAILED, SLOW = "failed", "slow"

_PRESSURES = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)


def fault_of(node: Object) -> str:
    """The fault that the Node's annotation asks for; empty for none."""
    return annotations_of(node).get(HOLLOW) or ""


def addresses(index: int) -> tuple[str, str]:
    """Address of the node with that number, and the first three bytes of its pods' addresses."""
    high, low = divmod(index, 256)
    return f"172.{16 + high // 256 % 16}.{high % 256}.{low}", f"10.{high % 256}.{low}"


def registration(manifest: Object) -> Object:
    """The Node to create."""
    metadata = dict(child(manifest, "metadata"))
    metadata["labels"] = wanted_labels(manifest)
    spec = dict(child(manifest, "spec"))
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec}


def wanted_labels(manifest: Object) -> dict[str, str]:
    """Labels of the manifest and those that every node gives itself."""
    return {LABEL_HOSTNAME: name_of(manifest), LABEL_OS: "linux", LABEL_ARCH: "amd64"} | labels_of(manifest)


def label_writes(node: Object, manifest: Object) -> list[Write]:
    """A patch when labels that the node gives itself are missing or differ."""
    have = labels_of(node)
    missing = {key: value for key, value in wanted_labels(manifest).items() if have.get(key) != value}
    return [Patch(NODE, "", name_of(node), {"metadata": {"labels": missing}})] if missing else []


@dataclass(frozen=True, slots=True)
class NodeEndpoint:
    """Where the API server reaches the agent of hollow nodes; they share one."""

    host: str
    port: int


def ready_write(node: Object, manifest: Object, index: int, now: float, endpoint: NodeEndpoint | None = None) -> Patch:
    """The patch that makes the node Ready and tells its capacity, its addresses and where its agent listens."""
    stamp = timestamp(now)
    ready = (NODE_READY, "True", "KubeletReady", "hollow node is posting ready status")
    entries = [ready, *((kind, "False", reason, message) for kind, reason, message in _PRESSURES)]
    address, _ = addresses(index)
    capacity = dict(child(manifest, "status", "capacity"))
    status: Object = {
        "capacity": capacity,
        "allocatable": dict(child(manifest, "status", "allocatable")) or capacity,
        "conditions": [
            node_condition(node, kind, state, reason, message, stamp=stamp) for kind, state, reason, message in entries
        ],
        "addresses": [
            {"type": "InternalIP", "address": address},
            {"type": "Hostname", "address": name_of(node)},
        ],
        "nodeInfo": _info(node),
        "declaredFeatures": at(manifest, "status", "declaredFeatures") or [*OUR_NODES],
    }
    if endpoint is not None:
        # The address of a hollow node is made up, the name of its endpoint is not: API servers try names first.
        status["addresses"].append({"type": "InternalDNS", "address": endpoint.host})
        status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": endpoint.port}}
    return Patch(NODE, "", name_of(node), {"status": status}, type="strategic", subresource="status")


def _info(node: Object) -> dict[str, Any]:
    labels = labels_of(node)
    return {
        "machineID": name_of(node),
        "systemUUID": name_of(node),
        "bootID": name_of(node),
        "kernelVersion": "hollow",
        "osImage": "hollow",
        "containerRuntimeVersion": f"hollow://{__version__}",
        "kubeletVersion": NODE_VERSION,
        "kubeProxyVersion": "",
        "operatingSystem": labels.get(LABEL_OS, "linux"),
        "architecture": labels.get(LABEL_ARCH, "amd64"),
    }
