"""Which API server, and as whom: kubeconfig files and the service account of a pod.

Only what a client needs is read: one context with its cluster and user. Credential plugins
(``exec``) are run as kubectl runs them, and again when their token expires. What changes under
a running program, tokens and certificates in files, is read again when a server refuses it.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drakkar.api.errors import EnvironmentProblem, UsageError
from drakkar.client.clock import parse_timestamp

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: Token files change under running programs; they are read again after this many seconds.
TOKEN_LIFE = 60.0


@dataclass(frozen=True, slots=True)
class Config:
    """How to reach one API server; ``token`` is a text or a function that gives the current one.

    ``identity`` says for people whose credentials these are and where they come from; ``reload`` reads certificate and
    key anew, where they are files.
    """

    server: str
    namespace: str = "default"
    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None
    token: str | Callable[[], str] | None = None
    insecure: bool = False
    identity: str = ""
    reload: Callable[[], tuple[bytes | None, bytes | None]] | None = None

    def transport(self, user_agent: str = "drakkar") -> Any:
        """An `HttpTransport` for this server, whichever versions of resource.k8s.io it has."""
        from drakkar.client.http import HttpTransport
        from drakkar.client.versions import Versions

        return Versions(
            HttpTransport(
                self.server,
                ca=self.ca,
                certificate=self.certificate,
                key=self.key,
                token=self.token,
                insecure=self.insecure,
                user_agent=user_agent,
                identity=self.identity,
                reload=self.reload,
            )
        )


def load(path: str | Path | None = None, context: str | None = None) -> Config:
    """Reads ``path`` (default ``$KUBECONFIG``, then ``~/.kube/config``) and takes ``context`` or the current one.

    Raises EnvironmentProblem when there is no file, UsageError when it does not say what is needed.
    """
    file = Path(path) if path else _default_file()
    try:
        text = file.read_text()
    except OSError as error:
        raise EnvironmentProblem(
            f"kubeconfig {file} cannot be read: {error.strerror}; name one by --kubeconfig"
        ) from error
    document = _parse(file, text)
    name = context or document.get("current-context")
    if not name:
        raise UsageError(f"kubeconfig {file} has no current-context; choose one by --context")
    entry = _named(file, document, "contexts", "context", name)
    cluster = _named(file, document, "clusters", "cluster", entry.get("cluster", ""))
    user = _named(file, document, "users", "user", entry["user"]) if entry.get("user") else {}
    server = cluster.get("server")
    if not server:
        raise UsageError(f"kubeconfig {file}: clusters[{entry.get('cluster')}].cluster.server is missing")
    where = file.parent
    token: str | Callable[[], str] | None = user.get("token")

    def pair() -> tuple[bytes | None, bytes | None]:
        return _data(file, user, "client-certificate", where), _data(file, user, "client-key", where)

    certificate, key = pair()
    if user.get("tokenFile") and not token:
        token = TokenFile(where / user["tokenFile"])
    elif user.get("exec"):
        plugin = ExecPlugin(user["exec"], where)
        certificate, key = plugin.certificate() or (certificate, key)
        token = plugin
    return Config(
        server=server,
        namespace=entry.get("namespace") or "default",
        ca=_data(file, cluster, "certificate-authority", where),
        certificate=certificate,
        key=key,
        token=token,
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        identity=f"user {entry.get('user', '')!r} of kubeconfig {file}",
        reload=pair if user.get("client-certificate") else None,
    )


def in_cluster(folder: Path = SERVICE_ACCOUNT) -> Config:
    """The configuration of a program that runs in a pod; raises EnvironmentProblem elsewhere."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not runs_in_pod(folder):
        raise EnvironmentProblem(
            "not running in a pod with a service account (KUBERNETES_SERVICE_HOST or its token is missing); "
            "name a kubeconfig by --kubeconfig or $KUBECONFIG"
        )
    namespace = folder / "namespace"
    return Config(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        ca=(folder / "ca.crt").read_bytes() if (folder / "ca.crt").exists() else None,
        token=TokenFile(folder / "token"),
        identity=f"the service account of this pod, token file {folder / 'token'}",
    )


def runs_in_pod(folder: Path = SERVICE_ACCOUNT) -> bool:
    """Whether this program runs in a pod with a service account."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and (folder / "token").exists()


class TokenFile:
    """A token that is rotated in its file; called, it gives the current one."""

    def __init__(self, path: Path):
        self._path = path
        self._token = ""
        self._read_at = -TOKEN_LIFE

    def __call__(self) -> str:
        now = time.monotonic()
        if now - self._read_at >= TOKEN_LIFE:
            try:
                self._token = self._path.read_text().strip()
            except OSError as error:
                raise EnvironmentProblem(f"token file {self._path} cannot be read: {error.strerror}") from error
            self._read_at = now
        return self._token

    def renew(self) -> None:
        """Makes the next call read the file: the server refused what it said before."""
        self._read_at = -TOKEN_LIFE


class ExecPlugin:
    """A credential plugin (``users[].user.exec``); called, it gives a token that is still valid."""

    def __init__(self, spec: dict[str, Any], folder: Path):
        self._spec = spec
        self._folder = folder
        self._status: dict[str, Any] = {}
        self._expires = 0.0

    def __call__(self) -> str:
        return self._current().get("token") or ""

    @property
    def slow(self) -> bool:
        """Whether the next call runs the plugin."""
        return not self._status or time.time() > self._expires - 10

    def renew(self) -> None:
        """Makes the next call run the plugin: the server refused what it said before."""
        self._status = {}

    def certificate(self) -> tuple[bytes, bytes] | None:
        """Client certificate and key, when the plugin gives these."""
        status = self._current()
        certificate, key = status.get("clientCertificateData"), status.get("clientKeyData")
        return (certificate.encode(), key.encode()) if certificate and key else None

    def _current(self) -> dict[str, Any]:
        # Ten seconds of grace: a token must not expire on its way.
        if self.slow:
            self._status = self._run()
            expires = self._status.get("expirationTimestamp")
            self._expires = parse_timestamp(expires) if expires else float("inf")
        return self._status

    def _run(self) -> dict[str, Any]:
        version = self._spec.get("apiVersion", "client.authentication.k8s.io/v1")
        info = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
        extra = {item["name"]: item["value"] for item in self._spec.get("env") or ()}
        command = self._spec.get("command", "")
        if "/" in command:
            command = str(self._folder / command)
        try:
            done = subprocess.run(
                [command, *(self._spec.get("args") or ())],
                env={**os.environ, **extra, "KUBERNETES_EXEC_INFO": json.dumps(info)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=60,
                check=True,
            )
            return json.loads(done.stdout)["status"]
        except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
            hint = self._spec.get("installHint") or "check that it is installed and logged in"
            raise EnvironmentProblem(f"credential plugin {command!r} failed: {error}; {hint}") from error


def _default_file() -> Path:
    listed = [part for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    return Path(listed[0]) if listed else Path.home() / ".kube" / "config"


def _parse(file: Path, text: str) -> dict[str, Any]:
    try:
        if text.lstrip().startswith("{"):
            document = json.loads(text)
        else:
            import yaml

            document = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except ValueError as error:
        raise UsageError(f"kubeconfig {file} is not JSON: {error}") from error
    except Exception as error:
        if type(error).__module__.startswith("yaml"):
            raise UsageError(f"kubeconfig {file} is not YAML: {error}") from error
        raise
    if not isinstance(document, dict):
        raise UsageError(f"kubeconfig {file} holds no mapping")
    return document


def _named(file: Path, document: dict[str, Any], section: str, field: str, name: str) -> dict[str, Any]:
    for entry in document.get(section) or ():
        if entry.get("name") == name:
            return entry.get(field) or {}
    raise UsageError(f"kubeconfig {file}: {section} has no entry named {name!r}")


def _data(file: Path, entry: dict[str, Any], field: str, folder: Path) -> bytes | None:
    """``<field>-data`` (base64), or the content of the file that ``<field>`` names, relative to the kubeconfig."""
    data = entry.get(f"{field}-data")
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise UsageError(f"kubeconfig {file}: {field}-data is not base64") from error
    if entry.get(field):
        source = folder / entry[field]
        try:
            return source.read_bytes()
        except OSError as error:
            raise EnvironmentProblem(f"{field} {source} cannot be read: {error.strerror}") from error
    return None
