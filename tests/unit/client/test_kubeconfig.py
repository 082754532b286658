from __future__ import annotations

import base64
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from drakkar.api.errors import EnvironmentProblem, UsageError
from drakkar.client import kubeconfig


def document(**user: Any) -> dict[str, Any]:
    ca = base64.b64encode(b"CA").decode()
    made: dict[str, Any] = {
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
    return made


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


def test_a_plugin_is_told_of_its_cluster_and_may_give_certificates(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    answer = {"status": {"clientCertificateData": "CERT", "clientKeyData": "KEY"}}
    plugin.write_text(f"#!/bin/sh\necho \"$KUBERNETES_EXEC_INFO\" > told\necho '{json.dumps(answer)}'\n")
    plugin.chmod(0o700)
    spec = {"command": "sh", "args": ["-c", f"cd {tmp_path} && ./plugin"], "provideClusterInfo": True}
    made = document(exec=spec)
    made["clusters"][0]["cluster"] |= {
        "tls-server-name": "api",
        "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}],
    }
    config = kubeconfig.load(written(tmp_path, made))
    assert (config.certificate, config.key, config.server_name) == (b"CERT", b"KEY", "api")
    told = json.loads((tmp_path / "told").read_text())["spec"]["cluster"]
    assert told == {
        "server": "https://localhost:6443",
        "tls-server-name": "api",
        "certificate-authority-data": base64.b64encode(b"CA").decode(),
        "config": {"audience": "x"},
    }
    plugin.write_text("#!/bin/sh\necho 'log in first' >&2; exit 1\n")
    with pytest.raises(EnvironmentProblem, match="log in first"):
        kubeconfig.load(written(tmp_path, made))
    plugin.write_text("#!/bin/sh\necho '{\"status\": {}}'\n")
    with pytest.raises(EnvironmentProblem, match=r"neither status\.token nor a client certificate"):
        kubeconfig.load(written(tmp_path, made))


def test_a_plugin_whose_answer_has_run_out_is_not_run_for_every_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {"status": {"token": "t", "expirationTimestamp": "2020-01-01T00:00:00Z"}}
    (tmp_path / "answer").write_text(json.dumps(answer))
    spec = {"command": "sh", "args": ["-c", f"cd {tmp_path}; echo x >> runs; cat answer"]}
    config = kubeconfig.load(written(tmp_path, document(exec=spec)))
    assert callable(config.token)
    assert [config.token() for _ in range(5)] == ["t"] * 5
    assert (tmp_path / "runs").read_text() == "x\n"
    monkeypatch.setattr(kubeconfig, "PLUGIN_PAUSE", 0.0)
    config.token()
    assert (tmp_path / "runs").read_text() == "x\nx\n"


def test_a_token_file_goes_before_a_token(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("new\n")
    config = kubeconfig.load(written(tmp_path, document(token="old", tokenFile="t")))
    assert callable(config.token)
    assert config.token() == "new"


@pytest.mark.parametrize("field", ["as", "username", "auth-provider"])
def test_who_somebody_is_is_never_left_out(tmp_path: Path, field: str) -> None:
    with pytest.raises(UsageError, match=rf"users\[u\]\.user\.{field} is not supported"):
        kubeconfig.load(written(tmp_path, document(token="t", **{field: "somebody"})))


def test_several_files_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that says something counts; paths are relative to the file that has them."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "ca.crt").write_bytes(folder.name.encode())
        (folder / "token").write_text(folder.name)
    one = document(token="x")
    one["clusters"][0]["cluster"] = {"server": "https://one", "certificate-authority": "ca.crt"}
    two = document(tokenFile="token")
    two["current-context"] = "away"
    two["contexts"].append({"name": "away", "context": {"cluster": "d", "user": "v"}})
    two["contexts"].append({"name": "mixed", "context": {"cluster": "c", "user": "v"}})
    two["clusters"].append({"name": "d", "cluster": {"server": "https://two", "certificate-authority": "ca.crt"}})
    two["users"].append({"name": "v", "user": {"tokenFile": "token"}})
    files = [written(first, one), tmp_path / "absent", written(second, two)]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, files)))

    def found(context: str | None) -> tuple[str, bytes | None, str]:
        config = kubeconfig.load(context=context)
        return config.server, config.ca, config.token() if callable(config.token) else config.token or ""

    assert found(None) == ("https://one", b"first", "x")
    assert found("away") == ("https://two", b"second", "second")
    assert found("mixed") == ("https://one", b"first", "second")
    with pytest.raises(UsageError, match="contexts has no entry named 'nowhere'"):
        kubeconfig.load(files, "nowhere")


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
