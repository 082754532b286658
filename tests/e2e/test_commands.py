"""kubectl's commands beside the recorded ones: ``commands.txt`` says what each has to print.

The file is a transcript: ``$ command``, what it prints, ``[n]`` for an exit status that is not 0. What only
reads is asked again for a while, until it prints that: controllers may have something to do yet. The
expectations were written from upstream's formats and rules, command by command; a change in it is a
change of what users see and has to be argued like one.
"""

from __future__ import annotations

import difflib
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kubectl import Kubectl
from tests.support.plane import FAST, Up
from tests.support.recorded import READS, lines, soon

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TRANSCRIPT = Path(__file__).with_name("commands.txt")

FILES = {
    "kustom/kustomization.yaml": """\
resources: [base.yaml]
namePrefix: k-
configMapGenerator:
- name: gen
  literals: [a=b]
""",
    "kustom/base.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: base}, data: {x: '1'}}",
    "prune1.yaml": """\
{apiVersion: v1, kind: ConfigMap, metadata: {name: keep, labels: {set: p}}, data: {a: '1'}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: gone, labels: {set: p}}, data: {a: '1'}}
""",
    "prune2.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: keep, labels: {set: p}}, data: {a: '2'}}",
    "pod.yaml": """\
apiVersion: v1
kind: Pod
metadata: {name: solo, labels: {app: solo}}
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: host-9}
  containers: [{name: c, image: one}]
""",
    "claim.yaml": """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c1}
spec:
  devices:
    requests: [{name: r, exactly: {deviceClassName: chips}}]
""",
    "class.yaml": """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: chips}
spec: {selectors: [{cel: {expression: 'true'}}]}
""",
    "roles.yaml": """\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: rr, namespace: default}
rules: [{apiGroups: [''], resources: [pods], verbs: [get, list]}]
""",
}


def transcript() -> Iterator[tuple[str, str]]:
    """Commands with what they print."""
    for block in ("\n" + TRANSCRIPT.read_text()).split("\n$ ")[1:]:
        command, _, output = block.partition("\n")
        yield command, output


def _printed(kubectl: Kubectl, command: str, folder: Path) -> str:
    """What the command prints, and its exit status where that is not 0."""
    assert command.startswith("kubectl ")
    done = subprocess.run(
        ["sh", "-c", shlex.quote(str(kubectl.binary)) + command.removeprefix("kubectl")],
        cwd=folder,
        env=kubectl.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
        check=False,
    )
    return done.stdout.rstrip("\n") + (f"\n[{done.returncode}]" if done.returncode else "")


def _differences(expected: str, printed: str) -> list[str]:
    found = difflib.unified_diff(
        lines(expected.strip("\n")), lines(printed.strip("\n")), "expected", "printed", lineterm="", n=1
    )
    return list(found)


def test_transcript(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    report: list[str] = []
    asked = 0
    with Up(tmp_path / "data", "--fleet", "tpu-16", "--sync", "normal", *FAST) as up:
        kubectl = Kubectl(up.kubeconfig, tmp_path)
        kubectl.run("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=90s")
        for command, expected in transcript():
            asked += 1

            def differences(command: str = command, expected: str = expected) -> list[str]:
                return _differences(expected, _printed(kubectl, command, tmp_path))

            # That of a rollout, too: asked early, it tells of each step first.
            reads = command.split()[1] in READS or command.startswith("kubectl rollout status ")
            if found := soon(differences) if reads else differences():
                report += [f"### {command}", *found]
    assert not report, "\n".join(report)
    assert asked >= 100
