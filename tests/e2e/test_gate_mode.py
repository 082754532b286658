"""Gate mode beside upstream's kube-scheduler: our server and controllers, ``drakkar scheduler`` with its webhook.

``./do upstream`` builds kube-scheduler and runs this.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.eventually import until
from tests.support.kubectl import Kubectl
from tests.support.plane import FAST, Part, Up
from tests.support.upstream import Component, token_kubeconfig
from tests.unit.scheduler.build import device_class, node, node_slice
from tests.unit.scheduler.test_webhook import documented

pytestmark = [pytest.mark.upstream, pytest.mark.timeout(400)]

NODES = ("a", "b", "c")


class Gate(Part):
    """``drakkar scheduler`` with the webhook, as a child process."""

    def __init__(self, kubeconfig: Path, pki: Path):
        certificate = ("--tls-cert", str(pki / "server.crt"), "--tls-key", str(pki / "server.key"))
        webhook = ("--webhook", "127.0.0.1:0", *certificate)
        super().__init__("scheduler", "--kubeconfig", str(kubeconfig), *webhook, "--leader-elect-lease-duration", "3")

    def url(self) -> str:
        found = re.search(r"admission webhook at (\S+)", self.output)
        return found[1] if found else ""


class Cluster:
    """kubectl at the server, and what runs beside it."""

    def __init__(self, folder: Path, up: Up, kubectl: Kubectl):
        self.folder = folder
        self.up = up
        self.kubectl = kubectl

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl.run("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def pods(self) -> list[dict[str, Any]]:
        return json.loads(self.kubectl.run("get", "pods", "-n", "training", "-o", "json"))["items"]

    def claims(self) -> list[dict[str, Any]]:
        return json.loads(self.kubectl.run("get", "resourceclaims", "-n", "training", "-o", "json"))["items"]

    def kube_scheduler(self) -> Component:
        path = token_kubeconfig(self.up.kubeconfig, self.folder / "kube-scheduler.kubeconfig", "token-of-scheduler")
        quick = ["--leader-elect=false", "--secure-port=0", "--v=2"]
        return Component("kube-scheduler", self.folder, f"--kubeconfig={path}", *quick)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    tokens = tmp_path / "tokens.csv"
    tokens.write_text("token-of-scheduler,system:kube-scheduler,kube-scheduler\n")
    with ExitStack() as stack:
        up = stack.enter_context(Up(tmp_path / "data", "--no-scheduler", "--token-auth-file", str(tokens), *FAST))
        kubectl = Kubectl(up.kubeconfig, tmp_path)
        made = Cluster(tmp_path, up, kubectl)
        pki = tmp_path / "data" / "pki"
        gate = stack.enter_context(Gate(up.kubeconfig, pki))
        url = until(gate.url, bool)
        configuration = documented()
        authority = base64.b64encode((pki / "ca.crt").read_bytes()).decode()
        configuration["webhooks"][0]["clientConfig"] = {"url": url, "caBundle": authority}
        labels = {"drakkar.dev/gate": "enabled"}
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "training", "labels": labels}}
        template = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "gpu", "namespace": "training"},
            "spec": {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": "gpu"}}]}}},
        }
        made.apply(space, configuration, device_class(), template)
        for name in NODES:
            host = node(name, cpu="4", memory="8Gi", pods="10")
            status = host.pop("status")
            del host["metadata"]["uid"]
            kubectl.run("create", "-f", "-", stdin=json.dumps(host))
            body = json.dumps({"status": {**status, "capacity": status["allocatable"]}})
            kubectl.run("patch", "node", name, "--subresource=status", "--type=merge", "-p", body)
            devices = node_slice(name, 1)
            del devices["metadata"]["resourceVersion"]
            made.apply(devices)
        yield made


def job(pods: int) -> dict[str, Any]:
    """A Job whose template knows nothing of Drakkar."""
    container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu"}], "requests": {"cpu": "1"}}}
    spec = {
        "restartPolicy": "Never",
        "containers": [container],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
        # What a silent node costs its pods is not the matter here.
        "tolerations": [
            {"operator": "Exists", "key": f"node.kubernetes.io/{why}"} for why in ("not-ready", "unreachable")
        ],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "training"},
        "spec": {"parallelism": pods, "completions": pods, "template": {"spec": spec}},
    }


def lifted(pod: dict[str, Any]) -> str:
    """The node for which the gate was lifted."""
    if pod["spec"].get("schedulingGates") or pod["metadata"].get("deletionTimestamp"):
        return ""
    return pod["metadata"].get("annotations", {}).get("drakkar.dev/allocated-node", "")


def test_upstreams_scheduler_binds_where_the_devices_are(cluster: Cluster) -> None:
    with cluster.kube_scheduler() as scheduler:
        cluster.apply(job(3))
        pods = until(cluster.pods, lambda pods: len(pods) == 3 and all(pod["spec"].get("nodeName") for pod in pods))
        assert {pod["spec"]["nodeName"] for pod in pods} == {*NODES}
        assert all(lifted(pod) == pod["spec"]["nodeName"] for pod in pods)
        held = {
            claim["status"]["reservedFor"][0]["uid"]: claim["status"]["allocation"]["devices"]["results"][0]["pool"]
            for claim in cluster.claims()
        }
        # The devices are those that we chose, and each pod is where its own are.
        assert held == {pod["metadata"]["uid"]: pod["spec"]["nodeName"] for pod in pods}
        scheduler.check()


def test_a_node_goes_before_upstreams_scheduler_binds(cluster: Cluster) -> None:
    cluster.apply(job(2))
    pods = until(cluster.pods, lambda pods: len(pods) == 2 and all(lifted(pod) for pod in pods))
    lost = lifted(pods[0])
    cluster.kubectl.run("delete", "node", lost)
    before = {pod["metadata"]["uid"] for pod in pods if lifted(pod) == lost}
    again = until(
        cluster.pods,
        lambda pods: sum(bool(lifted(p)) for p in pods) == 2 and not before & {p["metadata"]["uid"] for p in pods},
    )
    with cluster.kube_scheduler():
        bound = until(cluster.pods, lambda pods: len(pods) == 2 and all(pod["spec"].get("nodeName") for pod in pods))
    assert {p["metadata"]["uid"] for p in bound} == {p["metadata"]["uid"] for p in again}
    assert {p["spec"]["nodeName"] for p in bound} == {*NODES} - {lost}
