"""Real kubectl and workloads: create, scale, set image, rollout status, history, undo and restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.eventually import until
from tests.support.kubectl import Kubectl
from tests.support.plane import FAST, Up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    folder: Path = tmp_path_factory.mktemp("workloads")
    with Up(folder / "data", "--fleet", "tpu-16", *FAST) as running:
        found = Kubectl(running.kubeconfig, tmp_path_factory.mktemp("home"))
        found.run("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=150s")
        yield found


def _json(kubectl: Kubectl, *arguments: str) -> Any:
    return json.loads(kubectl.run("get", *arguments, "-o", "json"))


def _status(kubectl: Kubectl, what: str) -> str:
    return kubectl.run("rollout", "status", what, "--timeout=150s")


def test_deployment(kubectl: Kubectl) -> None:
    kubectl.run("create", "deployment", "web", "--image=one", "--replicas=3")
    assert "successfully rolled out" in _status(kubectl, "deployment/web")
    kubectl.run("scale", "deployment/web", "--replicas=5")
    assert "successfully rolled out" in _status(kubectl, "deployment/web")
    assert "5/5" in kubectl.run("get", "deployment", "web")

    kubectl.run("set", "image", "deployment/web", "one=two")
    kubectl.run("annotate", "deployment/web", "kubernetes.io/change-cause=second")
    assert "successfully rolled out" in _status(kubectl, "deployment/web")
    # The cause is copied to the replica set by the controller.
    history = until(lambda: kubectl.run("rollout", "history", "deployment/web"), lambda text: "second" in text)
    assert "1 " in history
    assert "Image:\ttwo" in kubectl.run("rollout", "history", "deployment/web", "--revision=2")

    assert "rolled back" in kubectl.run("rollout", "undo", "deployment/web")
    assert "successfully rolled out" in _status(kubectl, "deployment/web")
    found = until(
        lambda: _json(kubectl, "deployment", "web"),
        lambda found: found["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "3",
    )
    assert found["spec"]["template"]["spec"]["containers"][0]["image"] == "one"

    kubectl.run("rollout", "restart", "deployment/web")
    assert "successfully rolled out" in _status(kubectl, "deployment/web")
    kubectl.run("rollout", "pause", "deployment/web")
    kubectl.run("rollout", "resume", "deployment/web")
    kubectl.run("wait", "--for=condition=Available", "deployment/web", "--timeout=150s")

    kubectl.run("delete", "deployment", "web", "--cascade=foreground", "--timeout=150s")
    assert "No resources found" in kubectl.run("get", "replicasets,pods", "-l", "app=web")


def _apply(kubectl: Kubectl, kind: str, name: str, **spec: Any) -> None:
    labels = {"app": name}
    pattern = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "one"}]}}
    manifest = {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": labels}, "template": pattern, **spec},
    }
    kubectl.run("apply", "-f", "-", stdin=json.dumps(manifest))


def test_daemonset(kubectl: Kubectl) -> None:
    _apply(kubectl, "DaemonSet", "agent", updateStrategy={"rollingUpdate": {"maxUnavailable": "50%"}})
    assert "successfully rolled out" in _status(kubectl, "daemonset/agent")
    nodes = _json(kubectl, "nodes")["items"]
    pods = _json(kubectl, "pods", "-l", "app=agent")["items"]
    assert sorted(p["spec"]["nodeName"] for p in pods) == sorted(n["metadata"]["name"] for n in nodes)
    kubectl.run("set", "image", "daemonset/agent", "c=two")
    assert "successfully rolled out" in _status(kubectl, "daemonset/agent")
    assert "2 " in kubectl.run("rollout", "history", "daemonset/agent")
    assert "rolled back" in kubectl.run("rollout", "undo", "daemonset/agent")
    assert "successfully rolled out" in _status(kubectl, "daemonset/agent")
    pods = _json(kubectl, "pods", "-l", "app=agent")["items"]
    assert {p["spec"]["containers"][0]["image"] for p in pods} == {"one"}
    kubectl.run("delete", "daemonset", "agent", "--cascade=foreground", "--timeout=150s")


def test_statefulset(kubectl: Kubectl) -> None:
    _apply(kubectl, "StatefulSet", "store", replicas=2, serviceName="store")
    kubectl.run("rollout", "status", "statefulset/store", "--timeout=150s")
    kubectl.run("scale", "statefulset/store", "--replicas=3")
    kubectl.run("rollout", "status", "statefulset/store", "--timeout=150s")
    pods = _json(kubectl, "pods", "-l", "app=store")["items"]
    assert [p["metadata"]["name"] for p in pods] == ["store-0", "store-1", "store-2"]
    kubectl.run("set", "image", "statefulset/store", "c=two")
    assert "complete" in kubectl.run("rollout", "status", "statefulset/store", "--timeout=150s")
    assert "rolled back" in kubectl.run("rollout", "undo", "statefulset/store")
    assert "complete" in kubectl.run("rollout", "status", "statefulset/store", "--timeout=150s")
    pods = _json(kubectl, "pods", "-l", "app=store")["items"]
    assert {p["spec"]["containers"][0]["image"] for p in pods} == {"one"}
