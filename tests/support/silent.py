"""A driver that never says that a host is lost: slices of four hosts, published once, and a job that takes one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from drakkar.api.names import HOLLOW, JOB_COMPLETION_INDEX, LABEL_HOSTNAME, TAINT_HOST_LOST
from tests.support.kubectl import Kubectl

DRIVER, POOL = "slices.example.com", "pod-0"


def slice_file(slices: Mapping[str, Sequence[str]]) -> str:
    """What ``drakkar driver run replay`` publishes: a device for each slice, with its hosts."""
    devices: list[dict[str, Any]] = []
    for name, hosts in slices.items():
        wanted = {"key": LABEL_HOSTNAME, "operator": "In", "values": [*hosts]}
        devices.append({"name": name, "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}})
    pool = {"name": POOL, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "pool": pool, "perDeviceNodeSelection": True, "devices": devices}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    return json.dumps({**kind, "metadata": {"name": "recorded"}, "spec": spec})


def workload(name: str) -> str:
    """Class, claim and a job of four pods, each on a host of its own; they leave a lost host after a second."""
    dra = "resource.k8s.io/v1"
    by_driver = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    exactly = {"deviceClassName": DRIVER}
    labels = {"app": name}
    apart = {"topologyKey": LABEL_HOSTNAME, "labelSelector": {"matchLabels": labels}}
    stays = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{"key": f"node.kubernetes.io/{why}", **stays} for why in ("unreachable", "not-ready")],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
        "containers": [{"name": "c", "image": "i"}],
        "resourceClaims": [{"name": "slice", "resourceClaimName": name}],
    }
    disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    job = {
        "completionMode": "Indexed",
        "completions": 4,
        "parallelism": 4,
        "backoffLimitPerIndex": 0,
        "maxFailedIndexes": 0,
        "podFailurePolicy": {"rules": [disrupted]},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    devices = {"requests": [{"name": "slice", "exactly": exactly}]}
    items = [
        {"apiVersion": dra, "kind": "DeviceClass", "metadata": {"name": DRIVER}, "spec": {"selectors": [by_driver]}},
        {"apiVersion": dra, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": {"devices": devices}},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": job},
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


class Watched:
    """The job, as kubectl shows it."""

    def __init__(self, kubectl: Kubectl, name: str, namespace: str):
        self.kubectl = kubectl
        self._name, self._namespace = name, namespace

    def get(self, *what: str) -> Any:
        """Objects of the namespace."""
        return json.loads(self.kubectl.run("get", *what, "-n", self._namespace, "-o", "json"))

    def hosts(self) -> dict[str, str]:
        """Index to host of the four pods, once all run; empty before."""
        pods = [pod for pod in self.get("pods", "-l", f"app={self._name}")["items"] if _runs(pod)]
        found = {pod["metadata"]["labels"][JOB_COMPLETION_INDEX]: pod["spec"]["nodeName"] for pod in pods}
        return found if len(pods) == 4 and len({*found.values()}) == 4 and {*found} == set("0123") else {}

    def device(self) -> str:
        """The device of the claim; empty for none."""
        status = self.get("resourceclaim", self._name).get("status") or {}
        results = status.get("allocation", {}).get("devices", {}).get("results") or []
        return results[0]["device"] if results else ""

    def rules(self) -> list[str]:
        """Devices that are marked for a lost host."""
        items = self.get("devicetaintrules", "-l", TAINT_HOST_LOST)["items"]
        return [rule["spec"]["deviceSelector"]["device"] for rule in items]

    def failed(self) -> int:
        """How many pods the job counts against itself."""
        return self.get("job", self._name)["status"].get("failed", 0)

    def silence(self, node: str) -> None:
        """The hollow node dies."""
        self.kubectl.run("annotate", "node", node, f"{HOLLOW}=failed")

    def revive(self, node: str) -> None:
        """The hollow node is back."""
        self.kubectl.run("annotate", "node", node, f"{HOLLOW}-")


def _runs(pod: Mapping[str, Any]) -> bool:
    return pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
