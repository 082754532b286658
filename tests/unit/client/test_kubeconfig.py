from __future__ import annotations

import base64
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from drakkar.api.errors import EnvironmentProblem, UsageError
from drakkar.client import kubeconfig


def document(**user: Any) -> dict[str, Any]:
    ca = base64.b64encode(b"CA").decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "there", "context": {"cluster": "nowhere", "user": "u"}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": "https://localhost:6443", "certificate-authority-data": ca}}],
        "users": [{"name": "u", "user": user}],
    }


def written(folder: Path, content: dict[str, Any]) -> Path:
    file = folder / "config"
    file.write_text(json.dumps(content))
    return file


def test_reads_context_cluster_and_user(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_bytes(b"KEY")
    certificate = base64.b64encode(b"CERT").decode()
    file = written(tmp_path, document(**{"client-certificate-data": certificate, "client-key": "key.pem"}))
    config = kubeconfig.load(file)
    assert (config.server, config.namespace) == ("https://localhost:6443", "team")
    assert (config.ca, config.certificate, config.key) == (b"CA", b"CERT", b"KEY")


def test_yaml_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\n"
        "clusters: [{name: c, cluster: {server: 'http://localhost:1'}}]\n"
    )
    monkeypatch.setenv("KUBECONFIG", str(file))
    config = kubeconfig.load()
    assert (config.server, config.token) == ("http://localhost:1", None)


@pytest.mark.parametrize(
    ("change", "context", "text"),
    [
        ({}, "there", "clusters has no entry named 'nowhere'"),
        ({}, "absent", "contexts has no entry named 'absent'"),
        ({"current-context": ""}, None, "has no current-context"),
        ({"clusters": [{"name": "c", "cluster": {}}]}, None, r"clusters\[c\].cluster.server is missing"),
    ],
)
def test_says_what_is_wrong(tmp_path: Path, change: dict[str, Any], context: str | None, text: str) -> None:
    file = written(tmp_path, document() | change)
    with pytest.raises(UsageError, match=text):
        kubeconfig.load(file, context)


def test_a_missing_file_is_a_problem_of_the_environment(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="cannot be read"):
        kubeconfig.load(tmp_path / "none")


def test_a_credential_plugin_gives_the_token(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text(
        '#!/bin/sh\necho "{\\"status\\": {\\"token\\": \\"$PREFIX-$1\\"}}"; test -n "$KUBERNETES_EXEC_INFO"\n'
    )
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    spec = {"command": "./plugin", "args": ["x"], "env": [{"name": "PREFIX", "value": "t"}]}
    config = kubeconfig.load(written(tmp_path, document(exec=spec)))
    assert callable(config.token)
    assert config.token() == "t-x"
    broken = document(exec={"command": "./absent", "installHint": "install it"})
    with pytest.raises(EnvironmentProblem, match="install it"):
        kubeconfig.load(written(tmp_path, broken))


def test_in_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(EnvironmentProblem, match="not running in a pod"):
        kubeconfig.in_cluster(tmp_path)
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "namespace").write_text("team")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    config = kubeconfig.in_cluster(tmp_path)
    assert (config.server, config.namespace) == ("https://[fd00::1]:443", "team")
    assert callable(config.token)
    assert config.token() == "secret"
