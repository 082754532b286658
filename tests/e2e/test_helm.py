"""helm 4 installs, upgrades, rolls back and uninstalls a driver's chart, and waits for what it made."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.eventually import until
from tests.support.kubectl import Kubectl, helm_binary
from tests.support.plane import FAST, Up
from tests.support.recorded import commands, lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CHART = Path(__file__).parent / "chart"


class Helm:
    """helm against one kubeconfig, with folders of its own."""

    def __init__(self, kubeconfig: Path, home: Path):
        self.binary = helm_binary()
        self.env = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(home)}
        for name in ("CACHE", "CONFIG", "DATA"):
            self.env[f"HELM_{name}_HOME"] = str(home / f"helm-{name.lower()}")

    def ask(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.binary), *words],
            env=self.env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    def run(self, *words: str, ok: bool = True) -> str:
        done = self.ask(*words)
        assert (done.returncode == 0) == ok, f"helm {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("helm")
    with Up(folder / "data", "--fleet", "tpu-16", "--sync", "normal", *FAST) as running:
        # A DaemonSet has as many pods as there are nodes.
        Kubectl(running.kubeconfig, folder).run("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=120s")
        yield running


@pytest.fixture(scope="module")
def helm(up: Up, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(up.kubeconfig, tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def kubectl(up: Up, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    return Kubectl(up.kubeconfig, tmp_path_factory.mktemp("home"))


def _json(kubectl: Kubectl, *words: str) -> Any:
    return json.loads(kubectl.run("get", *words, "-o", "json"))


def test_recorded_commands(helm: Helm, tmp_path: Path) -> None:
    """helm prints what it printed against kube-apiserver 1.37."""
    chart = tmp_path / "chart"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: demo\nversion: 0.1.0\n")
    (chart / "values.yaml").write_text("v: one\n")
    (chart / "templates" / "cm.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: rel-cm}\ndata: {v: {{ .Values.v }}}\n"
    )
    for command in commands("helm"):
        done = helm.ask(*command.words, cwd=tmp_path)
        assert done.returncode == command.code, (command.name, done.stdout, done.stderr)
        assert lines(done.stdout) == lines(command.stdout), command.name
        assert lines(done.stderr) == lines(command.stderr), command.name


def test_a_drivers_chart(helm: Helm, kubectl: Kubectl) -> None:
    wait = ("--wait", "--timeout", "150s")
    assert "STATUS: deployed" in helm.run("install", "ex", str(CHART), *wait)
    deployment = _json(kubectl, "deployment", "ex-controller")
    assert deployment["status"]["readyReplicas"] == 2
    daemons = _json(kubectl, "daemonset", "ex-plugin")["status"]
    assert daemons["numberReady"] == daemons["desiredNumberScheduled"] == 16
    config = _json(kubectl, "configmap", "ex")["data"]
    assert config["kubeVersion"].startswith("v1.37.")
    assert (config["resourceApi"], config["parts"]) == ("true", "4")
    made = _json(kubectl, "partitioning", "ex", "--show-managed-fields")
    assert made["spec"] == {"parts": 4, "mode": "Static"}
    assert {entry["manager"] for entry in made["metadata"]["managedFields"]} == {"helm"}
    hooks = _json(kubectl, "configmaps")["items"]
    assert {item["metadata"]["name"] for item in hooks} >= {"ex-pre-install", "ex-post-install"}
    assert "not found" in kubectl.run("get", "job", "ex-check", ok=False)
    assert "yes" in kubectl.run(
        "auth", "can-i", "create", "resourceslices.resource.k8s.io", "--as=system:serviceaccount:default:ex"
    )

    new = ("--set", "replicas=3", "--set", "image=example.com/driver:2", "--set", "partitions=8")
    assert "REVISION: 2" in helm.run("upgrade", "ex", str(CHART), *new, *wait)
    deployment = _json(kubectl, "deployment", "ex-controller")
    assert deployment["status"]["updatedReplicas"] == deployment["status"]["readyReplicas"] == 3
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "example.com/driver:2"
    assert _json(kubectl, "partitioning", "ex")["spec"]["parts"] == 8

    refused = helm.run("upgrade", "ex", str(CHART), "--set", "partitions=99", ok=False)
    assert "spec.parts" in refused
    assert "less than or equal to 16" in refused
    assert _json(kubectl, "partitioning", "ex")["spec"]["parts"] == 8

    assert "Rollback was a success" in helm.run("rollback", "ex", "1", *wait)
    assert _json(kubectl, "deployment", "ex-controller")["status"]["readyReplicas"] == 2
    assert _json(kubectl, "configmap", "ex-pre-rollback")["data"] == {"revision": "1"}
    history = json.loads(helm.run("history", "ex", "-o", "json"))
    assert [entry["status"] for entry in history] == ["superseded", "superseded", "failed", "deployed"]

    # Somebody else's change is a conflict; helm takes it back when told to.
    kubectl.run("apply", "--server-side", "--force-conflicts", "--field-manager=someone", "-f", "-", stdin=_PARTS)
    conflict = helm.run("upgrade", "ex", str(CHART), ok=False)
    assert 'conflict with "someone"' in conflict
    assert ".spec.parts" in conflict
    helm.run("upgrade", "ex", str(CHART), "--force-conflicts")
    assert _json(kubectl, "partitioning", "ex")["spec"]["parts"] == 4

    assert 'release "ex" uninstalled' in helm.run("uninstall", "ex", *wait)
    kinds = "deployments,daemonsets,services,serviceaccounts,pods,poddisruptionbudgets"
    # helm waits for what the chart has; pods and replica sets are the garbage collector's, a moment later.
    until(
        lambda: {line.partition("/")[2] for line in kubectl.run("get", kinds, "-o", "name").splitlines()},
        lambda left: not any(name.partition("-")[0] == "ex" for name in left),
    )
    # What a chart has in crds/ stays.
    assert "No resources found" in kubectl.run("get", "partitionings")


_PARTS = """\
apiVersion: driver.example.com/v1
kind: Partitioning
metadata: {name: ex}
spec: {parts: 2}
"""
