"""Small objects for scheduler tests."""

from __future__ import annotations

from typing import Any

import msgspec

from drakkar.api.resource import v1
from drakkar.scheduler import Cluster, PodView

DRIVER = "gpu.example.com"

Taints = tuple[dict[str, str], ...]


def node(
    name: str, *, taints: Taints = (), ready: str = "True", unschedulable: bool = False, **allocatable: str
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"node-{name}", "labels": {"kubernetes.io/hostname": name}},
        "spec": {"taints": [*taints], "unschedulable": unschedulable},
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": ready}]},
    }


def pod(name: str, *claims: str, node: str = "", **spec: Any) -> dict[str, Any]:
    """A pod with one container that uses the named claims of its namespace."""
    body: dict[str, Any] = {"containers": [{"name": "main", "image": "x"}], **spec}
    if claims:
        body["resourceClaims"] = [{"name": claim, "resourceClaimName": claim} for claim in claims]
    if node:
        body["nodeName"] = node
    metadata = {"name": name, "namespace": "default", "uid": f"pod-{name}", "resourceVersion": "1"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body, "status": {}}


def requesting(name: str, *claims: str, **requests: str) -> dict[str, Any]:
    made = pod(name, *claims)
    made["spec"]["containers"][0]["resources"] = {"requests": requests}
    return made


def device_class(name: str = "gpu") -> dict[str, Any]:
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [selector]},
    }


def node_slice(node_name: str, devices: int, *, taints: Taints = ()) -> dict[str, Any]:
    listed = [{"name": f"gpu-{i}", "taints": [*taints]} if taints else {"name": f"gpu-{i}"} for i in range(devices)]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node_name}-gpus", "resourceVersion": "1"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node_name,
            "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
            "devices": listed,
        },
    }


def shape_slices(hosts_of: dict[str, list[str]]) -> list[dict[str, Any]]:
    """Logical devices over several hosts; each host's chips are one counter, which a shape takes whole."""
    hosts = sorted({host for names in hosts_of.values() for host in names})
    pool = {"name": "shapes", "generation": 1, "resourceSliceCount": 2}
    counters = [{"name": "hosts", "counters": {host: {"value": "4"} for host in hosts}}]
    devices = [
        {
            "name": name,
            "nodeSelector": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [*names]}]},
                ]
            },
            "consumesCounters": [{"counterSet": "hosts", "counters": {host: {"value": "4"} for host in names}}],
        }
        for name, names in hosts_of.items()
    ]
    base = {"driver": DRIVER, "pool": pool}
    common = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    return [
        {
            **common,
            "metadata": {"name": "counters", "resourceVersion": "1"},
            "spec": {**base, "allNodes": True, "sharedCounters": counters},
        },
        {
            **common,
            "metadata": {"name": "shapes", "resourceVersion": "1"},
            "spec": {**base, "perDeviceNodeSelection": True, "devices": devices},
        },
    ]


def claim(name: str, count: int = 1, *, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
    metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": f"claim-{name}", "resourceVersion": "1"}
    if annotations:
        metadata["annotations"] = annotations
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}},
    }


def allocated(
    made: dict[str, Any], pool: str, *devices: str, nodes: tuple[str, ...] = (), reserved: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The claim with devices of a pool, on ``nodes`` (default: the node of the pool's name), reserved for pods."""
    results = [{"request": "gpus", "driver": DRIVER, "pool": pool, "device": device} for device in devices]
    if nodes:
        term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [*nodes]}]}
    else:
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [pool]}]}
    allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    consumers = [{"resource": "pods", "name": name, "uid": f"pod-{name}"} for name in reserved]
    return {**made, "status": {"allocation": allocation, "reservedFor": consumers}}


def cluster(*objects: dict[str, Any]) -> Cluster:
    """A cluster that knows these objects."""
    made = Cluster()
    for obj in objects:
        match obj["kind"]:
            case "Node":
                made.set_node(obj)
            case "Pod":
                made.set_pod(obj)
            case "ResourceClaim":
                made.set_claim(msgspec.convert(obj, v1.ResourceClaim))
            case "ResourceSlice":
                made.set_slice(msgspec.convert(obj, v1.ResourceSlice))
            case "DeviceClass":
                made.set_class(msgspec.convert(obj, v1.DeviceClass))
            case "Namespace":
                made.set_namespace(obj)
            case "PersistentVolume":
                made.volumes.set_volume(obj)
            case "CSINode":
                made.volumes.set_csi_node(obj)
            case "PersistentVolumeClaim":
                made.volumes.set_claim(obj)
            case "DeviceTaintRule":
                made.set_taint_rule(msgspec.convert(obj, v1.DeviceTaintRule))
            case kind:
                raise AssertionError(kind)
    return made


def view(obj: dict[str, Any]) -> PodView:
    return PodView.of(obj)
