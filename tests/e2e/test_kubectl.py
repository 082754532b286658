"""Real kubectl drives the story: apply, wait, node fail, wait for recovery; and the daily verbs work."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.eventually import until
from tests.support.kubectl import Kubectl
from tests.support.plane import FAST, Up
from tests.support.shared import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLES = ROOT / "examples" / "tpu"
TRAINING = "batch.kubernetes.io/job-name=training"


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
    """What the command prints, findings of ``verify`` too."""
    command = [sys.executable, "-m", "drakkar.cli", *arguments, "--kubeconfig", str(up.kubeconfig)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 or arguments[0] == "verify", done.stdout + done.stderr
    return done.stdout


def _running(kubectl: Kubectl) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """The claim of the training job and its pods, once all four run where their devices are."""
    claim = _json(kubectl, "resourceclaim", "slice")
    pods = _json(kubectl, "pods", "-l", TRAINING)["items"]
    status = claim.get("status", {})
    whole = "allocation" in status and len(status.get("reservedFor", ())) == len(pods) == 4
    run = all(pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"] for pod in pods)
    return (claim, pods) if whole and run and {pod["spec"]["nodeName"] for pod in pods} == _hosts(claim) else None


def test_the_story(up: Up, kubectl: Kubectl) -> None:
    kubectl.run("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=120s")
    for name in ("deviceclass.yaml", "claim.yaml", "job.yaml"):
        assert "created" in kubectl.run("apply", "-f", str(EXAMPLES / name))
    assert "unchanged" in kubectl.run("apply", "-f", str(EXAMPLES / "job.yaml"))
    kubectl.run("wait", "--for=create", "pod", "-l", TRAINING, "--timeout=120s")
    kubectl.run("wait", "--for=condition=Ready", "pod", "-l", TRAINING, "--timeout=120s")
    # Which pods kubectl has seen is up to the Job's controller.
    claim, pods = until(lambda: _running(kubectl))
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert result["device"].startswith("tpu-4x4-")
    hosts = _hosts(claim)
    assert len(hosts) == 4

    victim = sorted(hosts)[0]
    assert victim in _drakkar(up, "node", "fail", victim)
    kubectl.run("wait", "--for=condition=Ready=Unknown", f"node/{victim}", "--timeout=120s")
    for pod in pods:
        kubectl.run("wait", "--for=delete", f"pod/{pod['metadata']['name']}", "--timeout=120s")
    kubectl.run("wait", "--for=create", "pod", "-l", TRAINING, "--timeout=120s")
    again, fresh = until(lambda: _running(kubectl))
    kubectl.run("wait", "--for=jsonpath={.status.ready}=4", "job/training", "--timeout=120s")
    assert victim not in _hosts(again)
    assert again["status"]["allocation"]["devices"]["results"][0]["device"] != result["device"]
    assert not {pod["metadata"]["uid"] for pod in fresh} & {pod["metadata"]["uid"] for pod in pods}
    slices = _json(kubectl, "resourceslices")["items"]
    tainted = {device["name"] for item in slices for device in item["spec"].get("devices", ()) if device.get("taints")}
    assert len(tainted) == 4
    assert result["device"] in tainted
    until(lambda: kubectl.run("get", "events"), lambda events: "DeviceTaintManagerEviction" in events)
    until(lambda: _drakkar(up, "verify"), lambda said: "0 findings" in said)
    _drakkar(up, "node", "recover", victim)
    kubectl.run("wait", "--for=condition=Ready", f"node/{victim}", "--timeout=120s")


def test_a_job_that_does_not_fit_says_why(up: Up, kubectl: Kubectl) -> None:
    kubectl.run("apply", "-f", str(EXAMPLES / "whole-pod-job.yaml"))
    selector = "batch.kubernetes.io/job-name=whole-pod"
    kubectl.run("wait", "--for=create", "pod", "-l", selector, "--timeout=120s")
    kubectl.run("wait", "--for=condition=PodScheduled=False", "pod", "-l", selector, "--timeout=120s")
    name = _json(kubectl, "pods", "-l", selector)["items"][0]["metadata"]["name"]
    kubectl.run("wait", "--for=create", "events", "--field-selector", f"involvedObject.name={name}", "--timeout=120s")
    described = until(lambda: kubectl.run("describe", "pod", name), lambda text: "FailedScheduling" in text)
    assert "0/16 nodes are available" in described
    kubectl.run("delete", "-f", str(EXAMPLES / "whole-pod-job.yaml"), "--timeout=120s")
    # The Job is gone when kubectl returns; its pods are the garbage collector's, a moment later.
    kubectl.run("wait", "--for=delete", "pod", "-l", selector, "--timeout=120s")
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
    for name in ("deviceclass.yaml", "claim.yaml", "job.yaml"):
        kubectl.run("apply", "-f", str(EXAMPLES / name))
    arguments = resource.split()
    # Some of them are made by controllers.
    until(lambda: kubectl.run("get", *arguments).splitlines()[0].split(), lambda header: header == columns.split())
    described = kubectl.run("describe", *arguments)
    assert "Name:" in described


def test_watch_shows_changes(kubectl: Kubectl) -> None:
    kubectl.run("create", "configmap", "there", "--from-literal=a=b")
    watching = kubectl.start("get", "configmaps", "-w", "--output-watch-events")
    try:
        assert watching.stdout is not None
        lines: list[str] = []
        for line in watching.stdout:
            lines.append(line)
            if " there " in line:
                break
        # Now it watches.
        kubectl.run("create", "configmap", "seen", "--from-literal=a=b")
        kubectl.run("delete", "configmap", "seen")
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
    kubectl.run("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=120s")
