"""kubectl 1.37 prints against this server what it printed against kube-apiserver 1.37.

All commands that were recorded are run again in their order, with files made from the recorded
bodies; exit status, output and errors must be the recorded ones, but for what
:mod:`tests.support.normal` replaces and for the differences listed here with their reason.
"""

from __future__ import annotations

import difflib
import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.kubectl import Kubectl
from tests.support.plane import Up
from tests.support.recorded import LIMIT, READS, Recorded, commands, lines, manifests, soon

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Not run: what is recorded says nothing about this server.
NOT_RUN = {
    "explain claim": "the documentation texts were not recorded; see test_explain in test_commands.py",
    "explain pod recursive": "the same",
    "explain bad": "the same",
    "logs no kubelet": "conversations with nodes have their own tests",
    "exec no kubelet": "the same",
    "attach no kubelet": "the same",
    "get --raw openapi index": "the documents are our own",
}

#: Run, and known to print something else.
DIFFERENT = {
    "create invalid (422)": "errors of selectors are in the words of our own CEL compiler",
    "create token": "a token is a token: nothing of it can be compared",
    "get pods --show-managed-fields -o yaml": "parts of the plane leave no managed fields until somebody applies",
    "get --raw /api/v1/namespaces/default/pods?limit=1": "the same; and members come in another order",
    "get leases -A": "the recording server held a lease for its own identity",
    "get podgroups": "pod groups of jobs are made behind gates that are off here",
    "get workloads.scheduling.k8s.io": "the same",
    "get -w json": "another certificate; and upstream describes its bundle in an annotation",
    "describe node tn-1": "nobody hints at the life of secrets (annotation node.alpha.kubernetes.io/ttl)",
    "can-i sub": "no reason is given with a refusal",
    "whoami": "another name; certificates leave no credential id",
    "version": "the version says that it is ours",
    "get --raw version": "the same",
    "api-versions": "lifecycle.k8s.io/v1alpha1 is served",
    "cluster-info": "recorded without TLS",
    "get --raw readyz": "the checks are our own",
    "get rc,svc": "the address of the Service is another one",
    "get all": "the same",
}

#: Lines that only one side has: what they contain, and why.
ONLY_RECORDED = {
    "WorkloadCreated": "pod groups of jobs are made behind gates that are off here",
    "PodGroupCreated": "the same",
}
ONLY_OURS = {
    "ResourceClaim not created yet": "upstream keeps such a pod out of its queue without a word",
}

EDITORS = {
    "edit producing an invalid document (422)": "sed -i -e '/^  k: v1/d' -e 's/^data:.*/data: k:.v9/'",
    "edit": "sed -i 's/k: v1/k: v9/'",
}

#: The single requests that were recorded before the deletes left these.
BETWEEN = [
    ("create configmap z1", "create configmap z2", "create configmap ssa", "create configmap gen-7lqt8"),
    ("delete configmap c3",),
]


def _patient(command: Recorded) -> tuple[str, ...]:
    """The words of the command; what came about within its time has more of it on a busy machine."""
    if command.code:
        return command.words
    return tuple(re.sub(r"^--timeout=\d+s$", "--timeout=90s", word) for word in command.words)


def _without(found: list[str], marks: dict[str, str]) -> list[str]:
    return [line for line in found if not any(mark in line for mark in marks)]


def _differences(command: Recorded, done: subprocess.CompletedProcess[str]) -> list[str]:
    found: list[str] = []
    if done.returncode != command.code:
        found.append(f"exit {done.returncode} instead of {command.code}")
    for what, ours, theirs in (("stdout", done.stdout, command.stdout), ("stderr", done.stderr, command.stderr)):
        got = _without(lines(ours[: len(theirs)] if len(theirs) >= LIMIT else ours), ONLY_OURS)
        want = _without(lines(theirs), ONLY_RECORDED)
        if command.words[0] == "events":
            # Sorted by time, and what happens within one second comes in any order.
            got, want = sorted(got), sorted(want)
        if len(theirs) >= LIMIT:
            got, want = got[: len(want) - 1], want[:-1]
        found += difflib.unified_diff(want, got, f"recorded {what}", f"our {what}", lineterm="", n=1)
    return found


def test_commands_print_what_they_printed(tmp_path: Path) -> None:
    recorded = commands("write", "read", "edit", "delete", "auth", "discovery")
    for name, manifest in manifests(recorded).items():
        (tmp_path / name).write_text(json.dumps(manifest))
    report: list[str] = []
    same = 0
    # The node of the recording has nobody behind it that renews a lease.
    with Up(tmp_path / "data", "--node-grace", "600", "--sync", "normal") as up:
        kubectl = Kubectl(up.kubeconfig, tmp_path)
        for command in recorded:
            if command.name in NOT_RUN:
                continue
            if command.name == "delete wait":
                for line in (line for group in BETWEEN for line in group):
                    kubectl.run(*line.split())
            words = _patient(command)

            def differences(command: Recorded = command, words: tuple[str, ...] = words) -> list[str]:
                done = kubectl.ask(*words, stdin=command.stdin, cwd=tmp_path, editor=EDITORS.get(command.name))
                return _differences(command, done)

            waits = command.words[0] in READS and "-w" not in words and command.name not in DIFFERENT
            found = soon(differences) if waits else differences()
            if bool(found) == (command.name in DIFFERENT):
                same += not found
            elif found:
                report += [f"### {command.name}: kubectl {' '.join(command.words)}", *found]
            else:
                report.append(f"### {command.name} no longer differs: its line in DIFFERENT has to go")
    assert not report, "\n".join(report)
    assert same >= 147
