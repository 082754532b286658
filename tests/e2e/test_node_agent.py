"""The commands as a user gives them: up, token create, node run --join; kubectl runs pods on this machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.node.agent import mounts
from drakkar.node.agent.network import BridgeNetwork
from tests.support.agents import end_containers
from tests.support.guard import guarded
from tests.support.kubectl import Kubectl
from tests.support.plane import Up

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("runc") is None, reason="needs root and runc"),
]

POD = """
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {index.html: "hello from the volume"}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: host
    command: [sh, -c, "echo started; exec python3 -m http.server --directory /srv/www 80"]
    volumeMounts: [{name: www, mountPath: /srv/www}]
    readinessProbe: {httpGet: {port: 80, path: /index.html}, periodSeconds: 1}
  volumes:
  - {name: www, configMap: {name: conf}}
"""


class Agent:
    """``drakkar node run`` as a child process; its output goes to a file."""

    def __init__(self, root: Path, log: Path, *arguments: str):
        self.log = log
        command = [sys.executable, "-m", "drakkar.cli", "node", "run", "--name", "here", "--root", str(root)]
        command += ["--cdi-dir", str(root / "cdi"), *arguments]
        with log.open("ab") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        guarded(self.process.pid)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


@pytest.fixture
def root(root: Path) -> Iterator[Path]:
    try:
        yield root
    finally:
        end_containers(root)
        bridge = BridgeNetwork(root / "network", "", ("", 0)).bridge
        subprocess.run(["ip", "link", "delete", bridge], check=False, capture_output=True)


def _drakkar(*words: str, ok: bool = True) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "drakkar.cli", *words], capture_output=True, text=True, timeout=180, check=False
    )
    assert (done.returncode == 0) == ok, done.stdout + done.stderr
    return done.stdout + done.stderr


def _output(kubectl: Kubectl, *words: str) -> str:
    """What kubectl says, whether it succeeds or not."""
    done = subprocess.run(
        [str(kubectl.binary), *words], env=kubectl.env, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


def test_a_machine_joins_and_runs_pods(tmp_path: Path, root: Path) -> None:
    with Up(tmp_path / "data") as up:
        kubectl = Kubectl(up.kubeconfig, tmp_path)
        join = _drakkar("token", "create", "--kubeconfig", str(up.kubeconfig)).split("--join ")[1].strip()
        (tmp_path / "join").write_text(join)
        agent = Agent(root, tmp_path / "agent.log", "--join", str(tmp_path / "join"))
        try:
            kubectl.run("wait", "--for=create", "node/here", "--timeout=150s")
            kubectl.run("wait", "--for=condition=Ready", "node/here", "--timeout=150s")
            assert "Approved,Issued" in kubectl.run("get", "csr")
            kubectl.run("apply", "-f", "-", stdin=POD)
            kubectl.run("wait", "--for=condition=Ready", "pod/web", "--timeout=150s")
            assert kubectl.run("logs", "web").startswith("started\n")
            assert kubectl.run("exec", "web", "--", "cat", "/srv/www/index.html") == "hello from the volume"
            assert kubectl.run("exec", "web", "--", "hostname") == "web\n"
            kubectl.run("cp", str(tmp_path / "join"), "web:/tmp/copied")
            assert kubectl.run("exec", "web", "--", "cat", "/tmp/copied") == join
            forward = kubectl.start("port-forward", "web", ":80")
            try:
                assert forward.stdout is not None
                port = re.search(r"127\.0\.0\.1:(\d+)", forward.stdout.readline())
                assert port
                with urllib.request.urlopen(f"http://127.0.0.1:{port.group(1)}/index.html", timeout=60) as answer:
                    assert answer.read() == b"hello from the volume"
            finally:
                forward.terminate()
                forward.wait()
            # Ctrl-C ends the agent, not the containers; a new one needs no token any more.
            assert agent.stop() in (0, 1, 130, -signal.SIGINT)
            (state,) = root.glob("pods/*/containers/main/0/state.json")
            # Nor does one help who wants to be a node that there is.
            thief = ("--root", str(tmp_path / "thief"), "--join", str(tmp_path / "join"))
            assert "a bootstrap token makes new nodes only" in _drakkar(
                "node", "run", "--name", "here", *thief, ok=False
            )
            agent = Agent(root, tmp_path / "agent.log", "--kubeconfig", str(up.kubeconfig))
            late = "import urllib.request as u; u.urlopen('http://127.0.0.1/index.html?late')"
            deadline = time.monotonic() + 60
            while "?late" not in _output(kubectl, "logs", "web"):
                assert time.monotonic() < deadline, (tmp_path / "agent.log").read_text()
                _output(kubectl, "exec", "web", "--", "python3", "-c", late)
            assert state.exists()
            assert "another agent runs on this folder" in _drakkar(
                "node", "run", "--name", "here", "--root", str(root), "--kubeconfig", str(up.kubeconfig), ok=False
            )
            kubectl.run("delete", "pod", "web")
            deadline = time.monotonic() + 90
            while list((root / "pods").iterdir()):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert mounts.mounted_below(root) == []
        finally:
            if agent.process.poll() is None:
                agent.stop()


def test_what_cannot_be_is_said_before_anything_starts(tmp_path: Path) -> None:
    assert "refused as root" in _drakkar("node", "run", "--runtime", "process", ok=False)
    assert "neither a join text nor a file" in _drakkar(
        "node", "run", "--join", "nonsense", "--root", str(tmp_path), ok=False
    )
    assert "the text is damaged" in _drakkar("node", "run", "--join", "drakkar1.AAA", "--root", str(tmp_path), ok=False)
