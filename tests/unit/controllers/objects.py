"""Objects for the tests of this room."""

from __future__ import annotations

from typing import Any

CONTROLLER = {"controller": True, "blockOwnerDeletion": True}


def pod(name: str = "p", *, claims: Any = (), node: str = "", phase: str = "", **spec: Any) -> dict[str, Any]:
    """A pod; ``claims`` are entries of spec.resourceClaims."""
    body: dict[str, Any] = {"containers": [{"name": "c", "image": "i"}], **spec}
    if claims:
        body["resourceClaims"] = list(claims)
    if node:
        body["nodeName"] = node
    status = {"phase": phase} if phase else {}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": body, "status": status}


def template(name: str = "t", **requests: Any) -> dict[str, Any]:
    exact = {"deviceClassName": "c", **requests}
    spec = {"devices": {"requests": [{"name": "r", "exactly": exact}]}}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"metadata": {"labels": {"a": "b"}}, "spec": spec},
    }


def claim(
    name: str = "c", *, allocated: bool = False, reserved: Any = (), device: str = "d", **metadata: Any
) -> dict[str, Any]:
    """A claim; ``reserved`` are (pod name, uid) pairs."""
    status: dict[str, Any] = {}
    if allocated:
        result = {"request": "r", "driver": "drv", "pool": "pool", "device": device}
        status["allocation"] = {"devices": {"results": [result]}}
        metadata.setdefault("finalizers", ["resource.kubernetes.io/delete-protection"])
    if reserved:
        status["reservedFor"] = [{"resource": "pods", "name": name, "uid": uid} for name, uid in reserved]
    return {
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}},
        "status": status,
    }


def slice_(name: str = "s", *, taints: Any = (), device: str = "d", generation: int = 1) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": device}
    if taints:
        entry["taints"] = list(taints)
    pool = {"name": "pool", "generation": generation, "resourceSliceCount": 1}
    return {"metadata": {"name": name}, "spec": {"driver": "drv", "pool": pool, "allNodes": True, "devices": [entry]}}


def node(name: str = "n", *, ready: str = "True", taints: Any = ()) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": ready, "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]
    spec = {"taints": list(taints)} if taints else {}
    return {"metadata": {"name": name}, "spec": spec, "status": {"conditions": conditions}}


def lease(name: str = "n", renewed: str = "2026-01-01T00:00:00.000000Z") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": {"renewTime": renewed}}


def job(name: str = "j", **spec: Any) -> dict[str, Any]:
    body = {
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": 6,
        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}},
        **spec,
    }
    return {"metadata": {"name": name, "namespace": "default"}, "spec": body, "status": {}}


def workload(name: str = "w", *, labels: Any = None, image: str = "i", **spec: Any) -> dict[str, Any]:
    """A ReplicaSet, Deployment, DaemonSet or StatefulSet, as far as they are alike."""
    labels = labels or {"app": name}
    pattern = {"metadata": {"labels": dict(labels)}, "spec": {"containers": [{"name": "c", "image": image}]}}
    body = {"selector": {"matchLabels": dict(labels)}, "template": pattern, **spec}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": body, "status": {}}
