"""Real kubectl drives the story: apply, wait, node fail, wait for recovery; and the daily verbs work."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kubectl import Kubectl
from tests.support.plane import FAST, Up
from tests.support.shared import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

EXAMPLES = ROOT / "examples" / "tpu"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("kubectl")
    with Up(folder / "data", "--fleet", "tpu-16", *FAST) as running:
        yield running


@pytest.fixture(scope="module")
def kubectl(up: Up, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    return Kubectl(up.kubeconfig, tmp_path_factory.mktemp("home"))


def _json(kubectl: Kubectl, *arguments: str) -> Any:
    return json.loads(kubectl.run("get", *arguments, "-o", "json"))


def _hosts(claim: dict[str, Any]) -> set[str]:
    (term,) = claim["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
    (requirement,) = term["matchExpressions"]
    return set(requirement["values"])


def _drakkar(up: Up, *arguments: str) -> str:
    command = [sys.executable, "-m", "drakkar.cli", *arguments, "--kubeconfig", str(up.kubeconfig)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout


def test_the_story(up: Up, kubectl: Kubectl) -> None:
    kubectl.run("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=30s")
    for name in ("deviceclass.yaml", "claim.yaml", "job.yaml"):
        assert "created" in kubectl.run("apply", "-f", str(EXAMPLES / name))
    assert "unchanged" in kubectl.run("apply", "-f", str(EXAMPLES / "job.yaml"))
    selector = "batch.kubernetes.io/job-name=training"
    kubectl.run("wait", "--for=create", "pod", "-l", selector, "--timeout=30s")
    kubectl.run("wait", "--for=condition=Ready", "pod", "-l", selector, "--timeout=30s")
    claim = _json(kubectl, "resourceclaim", "slice")
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert result["device"].startswith("tpu-4x4-")
    assert len(claim["status"]["reservedFor"]) == 4
    hosts = _hosts(claim)
    pods = _json(kubectl, "pods", "-l", selector)["items"]
    assert {pod["spec"]["nodeName"] for pod in pods} == hosts
    assert len(pods) == len(hosts) == 4

    victim = sorted(hosts)[0]
    assert victim in _drakkar(up, "node", "fail", victim)
    kubectl.run("wait", "--for=condition=Ready=Unknown", f"node/{victim}", "--timeout=30s")
    for pod in pods:
        kubectl.run("wait", "--for=delete", f"pod/{pod['metadata']['name']}", "--timeout=30s")
    kubectl.run("wait", "--for=create", "pod", "-l", selector, "--timeout=30s")
    kubectl.run("wait", "--for=jsonpath={.status.ready}=4", "job/training", "--timeout=30s")
    again = _json(kubectl, "resourceclaim", "slice")
    assert victim not in _hosts(again)
    assert again["status"]["allocation"]["devices"]["results"][0]["device"] != result["device"]
    fresh = _json(kubectl, "pods", "-l", selector)["items"]
    assert {pod["spec"]["nodeName"] for pod in fresh} == _hosts(again)
    assert not {pod["metadata"]["uid"] for pod in fresh} & {pod["metadata"]["uid"] for pod in pods}
    slices = _json(kubectl, "resourceslices")["items"]
    tainted = {device["name"] for item in slices for device in item["spec"].get("devices", ()) if device.get("taints")}
    assert len(tainted) == 4
    assert result["device"] in tainted
    events = kubectl.run("get", "events")
    assert "DeviceTaintManagerEviction" in events
    assert "0 findings" in _drakkar(up, "verify")
    _drakkar(up, "node", "recover", victim)
    kubectl.run("wait", "--for=condition=Ready", f"node/{victim}", "--timeout=30s")


def test_a_job_that_does_not_fit_says_why(up: Up, kubectl: Kubectl) -> None:
    kubectl.run("apply", "-f", str(EXAMPLES / "whole-pod-job.yaml"))
    selector = "batch.kubernetes.io/job-name=whole-pod"
    kubectl.run("wait", "--for=create", "pod", "-l", selector, "--timeout=30s")
    kubectl.run("wait", "--for=condition=PodScheduled=False", "pod", "-l", selector, "--timeout=30s")
    name = _json(kubectl, "pods", "-l", selector)["items"][0]["metadata"]["name"]
    kubectl.run("wait", "--for=create", "events", "--field-selector", f"involvedObject.name={name}", "--timeout=30s")
    described = kubectl.run("describe", "pod", name)
    assert "FailedScheduling" in described
    assert "0/16 nodes are available" in described
    kubectl.run("delete", "-f", str(EXAMPLES / "whole-pod-job.yaml"), "--timeout=30s")
    # The Job is gone when kubectl returns; its pods are the garbage collector's, a moment later.
    kubectl.run("wait", "--for=delete", "pod", "-l", selector, "--timeout=30s")
    assert "No resources found" in kubectl.run("get", "pods", "-l", selector)


@pytest.mark.parametrize(
    ("resource", "columns"),
    [
        ("nodes", "NAME STATUS ROLES AGE VERSION"),
        ("pods", "NAME READY STATUS RESTARTS AGE"),
        ("jobs", "NAME STATUS COMPLETIONS DURATION AGE"),
        ("events", "LAST SEEN TYPE REASON OBJECT MESSAGE"),
        ("resourceslices", "NAME NODE DRIVER POOL AGE"),
        ("resourceclaims", "NAME STATE AGE"),
        ("deviceclasses", "NAME AGE"),
        ("leases -n kube-node-lease", "NAME HOLDER AGE"),
        ("namespaces", "NAME STATUS AGE"),
    ],
)
def test_get_and_describe(kubectl: Kubectl, resource: str, columns: str) -> None:
    kubectl.run("apply", "-f", str(EXAMPLES / "deviceclass.yaml"))
    arguments = resource.split()
    header = kubectl.run("get", *arguments).splitlines()[0].split()
    assert header == columns.split()
    described = kubectl.run("describe", *arguments)
    assert "Name:" in described


def test_watch_shows_changes(kubectl: Kubectl) -> None:
    watching = kubectl.start("get", "configmaps", "-w", "--output-watch-events")
    try:
        kubectl.run("create", "configmap", "seen", "--from-literal=a=b")
        kubectl.run("delete", "configmap", "seen")
        assert watching.stdout is not None
        lines: list[str] = []
        for line in watching.stdout:
            lines.append(line)
            if line.startswith("DELETED") and " seen " in line:
                break
    finally:
        watching.kill()
        watching.wait()
    assert any(line.startswith("ADDED") and " seen " in line for line in lines)


def test_bad_input_names_the_field(kubectl: Kubectl) -> None:
    claim = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: bad}
spec:
  devices:
    requests:
    - name: r
      exactly: {deviceClassName: c, SELECT}
"""
    unknown = kubectl.run("apply", "-f", "-", stdin=claim.replace("SELECT", "cuont: 2"), ok=False)
    assert 'unknown field "spec.devices.requests[0].exactly.cuont"' in unknown
    negative = kubectl.run("apply", "-f", "-", stdin=claim.replace("SELECT", "count: -1"), ok=False)
    assert "spec.devices.requests[0].exactly.count" in negative
    broken = claim.replace("SELECT", 'selectors: [{cel: {expression: "device.driver == "}}]')
    cel = kubectl.run("apply", "-f", "-", stdin=broken, ok=False)
    assert "spec.devices.requests[0].exactly.selectors[0].cel.expression" in cel
    assert "compilation failed" in cel
    version = claim.replace("resource.k8s.io/v1", "resource.k8s.io/v7").replace("SELECT", "count: 1")
    assert "no matches for kind" in kubectl.run("apply", "-f", "-", stdin=version, ok=False)


def test_state_survives_a_restart(up: Up, kubectl: Kubectl) -> None:
    kubectl.run("create", "configmap", "kept", "--from-literal=a=b")
    before: Path = up.kubeconfig
    assert up.stop() == 0
    up.start()
    assert up.kubeconfig == before
    assert "kept" in kubectl.run("get", "configmaps")
    kubectl.run("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=30s")
