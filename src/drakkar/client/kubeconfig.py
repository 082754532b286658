"""Which API server, and as whom: kubeconfig files and the service account of a pod.

Only what a client needs is read: one context with its cluster and user; what is set there and not known here is
refused, where leaving it out would mean another server or other rights. Several files are joined as kubectl joins them.
Credential plugins (``exec``) are run as kubectl runs them, and again when what they gave expires. What changes under
a running program, tokens and certificates in files, is read again when a server refuses it.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drakkar.api.errors import EnvironmentProblem, UsageError
from drakkar.client.clock import parse_timestamp

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: Token files change under running programs; they are read again after this many seconds.
TOKEN_LIFE = 60.0
#: Least seconds between two runs of a credential plugin whose answer was refused, or had run out when it came.
PLUGIN_PAUSE = 5.0
#: Name of the extension of a cluster that its credential plugins get as ``spec.cluster.config``.
_EXEC_EXTENSION = "client.authentication.k8s.io/exec"
#: Fields of a user that say who somebody is: without them requests would be those of another.
_UNKNOWN = ("as", "as-uid", "as-groups", "as-user-extra", "username", "password", "auth-provider")


#: Authority of the server, client certificate and key; PEM.
Material = tuple[bytes | None, bytes | None, bytes | None]


@dataclass(frozen=True, slots=True)
class Config:
    """How to reach one API server; ``token`` is a text or a function that gives the current one.

    ``identity`` says for people whose credentials these are and where they come from; ``reload`` gives authority,
    certificate and key anew, where they can change. ``server_name`` is what the server's certificate is for, if not
    its address; ``proxy`` goes before those that the environment names.
    """

    server: str
    namespace: str = "default"
    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None
    token: str | Callable[[], str] | None = None
    insecure: bool = False
    identity: str = ""
    reload: Callable[[], Material] | None = None
    server_name: str = ""
    proxy: str = ""

    def transport(self, user_agent: str = "drakkar") -> Any:
        """An `HttpTransport` for this server, whichever versions of resource.k8s.io it has."""
        from drakkar.client.http import HttpTransport
        from drakkar.client.proxies import proxy_for
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
                server_name=self.server_name,
                proxy=self.proxy or proxy_for(self.server, os.environ),
            )
        )


def load(path: str | Path | Sequence[Path] | None = None, context: str | None = None) -> Config:
    """Reads ``path`` (default ``$KUBECONFIG``, then ``~/.kube/config``) and takes ``context`` or the current one.

    Of several files the first one that says something about a name counts, and paths are relative to the file that
    has them. Raises EnvironmentProblem when there is no file, UsageError when it does not say what is needed.
    """
    files = [Path(path)] if isinstance(path, str | Path) else [*(path or default_files())]
    documents = [*_documents(files)]
    said = ", ".join(str(file) for file, _ in documents)
    named = (document.get("current-context") for _, document in documents)
    name = context or next(filter(None, named), None)
    if not name:
        raise UsageError(f"kubeconfig {said} has no current-context; choose one by --context")
    _, entry = _named(documents, "contexts", "context", name)
    cluster_file, cluster = _named(documents, "clusters", "cluster", entry.get("cluster", ""))
    file, user = _named(documents, "users", "user", entry["user"]) if entry.get("user") else (documents[0][0], {})
    server = cluster.get("server")
    if not server:
        raise UsageError(f"kubeconfig {cluster_file}: clusters[{entry.get('cluster')}].cluster.server is missing")
    for field in _UNKNOWN:
        if user.get(field):
            raise UsageError(
                f"kubeconfig {file}: users[{entry.get('user')}].user.{field} is not supported; use a token, tokenFile, "
                "client-certificate or exec"
            )
    token: str | Callable[[], str] | None = user.get("token")
    plugin: ExecPlugin | None = None
    if user.get("tokenFile"):
        # Goes before a token in the kubeconfig itself, which may be the one that was good when that was written.
        token = TokenFile(file.parent / user["tokenFile"])
    elif user.get("exec") and not token:
        about = _about(cluster_file, cluster) if user["exec"].get("provideClusterInfo") else None
        token = plugin = ExecPlugin(user["exec"], file.parent, about)

    def material() -> Material:
        ca = _data(cluster_file, cluster, "certificate-authority")
        made = plugin.certificate() if plugin is not None else None
        if made is not None:
            return ca, *made
        return ca, _data(file, user, "client-certificate"), _data(file, user, "client-key")

    ca, certificate, key = material()
    return Config(
        server=server,
        namespace=entry.get("namespace") or "default",
        ca=ca,
        certificate=certificate,
        key=key,
        token=token,
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        identity=f"user {entry.get('user', '')!r} of kubeconfig {file}",
        reload=material,
        server_name=cluster.get("tls-server-name") or "",
        proxy=cluster.get("proxy-url") or "",
    )


def _about(file: Path, cluster: dict[str, Any]) -> dict[str, Any]:
    """What a credential plugin is told about the cluster (``spec.cluster`` of an ExecCredential)."""
    fields = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url", "disable-compression")
    found = {field: cluster[field] for field in fields if cluster.get(field)}
    ca = _data(file, cluster, "certificate-authority")
    if ca:
        found["certificate-authority-data"] = base64.b64encode(ca).decode()
    for extension in cluster.get("extensions") or ():
        if extension.get("name") == _EXEC_EXTENSION:
            found["config"] = extension.get("extension")
    return found


def in_cluster(folder: Path = SERVICE_ACCOUNT) -> Config:
    """The configuration of a program that runs in a pod; raises EnvironmentProblem elsewhere."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not runs_in_pod(folder):
        raise EnvironmentProblem(
            "not running in a pod with a service account (KUBERNETES_SERVICE_HOST or its token is missing); "
            "name a kubeconfig by --kubeconfig or $KUBECONFIG"
        )
    namespace = folder / "namespace"

    def material() -> Material:
        return (folder / "ca.crt").read_bytes() if (folder / "ca.crt").exists() else None, None, None

    return Config(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        ca=material()[0],
        token=TokenFile(folder / "token"),
        identity=f"the service account of this pod, token file {folder / 'token'}",
        reload=material,
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
            if not self._token:
                raise EnvironmentProblem(f"token file {self._path} is empty")
            self._read_at = now
        return self._token

    def renew(self) -> None:
        """Makes the next call read the file: the server refused what it said before."""
        self._read_at = -TOKEN_LIFE


class ExecPlugin:
    """A credential plugin (``users[].user.exec``); called, it gives a token that is still valid.

    ``cluster`` is what a plugin with ``provideClusterInfo`` is told.
    """

    def __init__(self, spec: dict[str, Any], folder: Path, cluster: dict[str, Any] | None = None):
        self._spec = spec
        self._folder = folder
        self._cluster = cluster
        self._status: dict[str, Any] = {}
        self._expires = 0.0
        self._ran_at = float("-inf")

    def __call__(self) -> str:
        return self._current().get("token") or ""

    @property
    def slow(self) -> bool:
        """Whether the next call runs the plugin."""
        if not self._status:
            return True
        # Ten seconds of grace: a token must not expire on its way.
        return time.time() > self._expires - 10 and time.monotonic() - self._ran_at >= PLUGIN_PAUSE

    def renew(self) -> None:
        """Makes the next call run the plugin, unless it just did: the server refused what it said before."""
        if time.monotonic() - self._ran_at >= PLUGIN_PAUSE:
            self._status = {}

    def certificate(self) -> tuple[bytes, bytes] | None:
        """Client certificate and key, when the plugin gives these."""
        status = self._current()
        certificate, key = status.get("clientCertificateData"), status.get("clientKeyData")
        return (certificate.encode(), key.encode()) if certificate and key else None

    def _current(self) -> dict[str, Any]:
        if self.slow:
            self._status = self._run()
            expires = self._status.get("expirationTimestamp")
            self._expires = parse_timestamp(expires) if expires else float("inf")
            self._ran_at = time.monotonic()
        return self._status

    def _run(self) -> dict[str, Any]:
        version = self._spec.get("apiVersion", "client.authentication.k8s.io/v1")
        told = {"cluster": self._cluster} if self._cluster is not None else {}
        info = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False, **told}}
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
            status = json.loads(done.stdout)["status"]
            if not status.get("token") and not (status.get("clientCertificateData") and status.get("clientKeyData")):
                raise ValueError("its answer has neither status.token nor a client certificate with its key")
            return status
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError, AttributeError) as error:
            said = error.stderr.decode(errors="replace").strip() if isinstance(error, _FAILED) and error.stderr else ""
            hint = self._spec.get("installHint") or "check that it is installed and logged in"
            why = f"{error}: {said[-500:]}" if said else f"{error}"
            raise EnvironmentProblem(f"credential plugin {command!r} failed: {why}; {hint}") from error


_FAILED = (subprocess.CalledProcessError, subprocess.TimeoutExpired)


def default_files() -> list[Path]:
    """The files of ``$KUBECONFIG``, else ``~/.kube/config``; they may be absent."""
    listed = [Path(part).expanduser() for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    return listed or [Path.home() / ".kube" / "config"]


def _documents(files: Sequence[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The files that there are, parsed; some of several may be absent. Raises EnvironmentProblem if there is none."""
    there = [file for file in files if file.exists()] or files[:1]
    for file in there:
        try:
            text = file.read_text()
        except OSError as error:
            raise EnvironmentProblem(
                f"kubeconfig {file} cannot be read: {error.strerror}; name one by --kubeconfig"
            ) from error
        yield file, _parse(file, text)


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


def _named(
    documents: Sequence[tuple[Path, dict[str, Any]]], section: str, field: str, name: str
) -> tuple[Path, dict[str, Any]]:
    """The first entry with the name, and the file that has it. Raises UsageError."""
    for file, document in documents:
        for entry in document.get(section) or ():
            if entry.get("name") == name:
                return file, entry.get(field) or {}
    said = ", ".join(str(file) for file, _ in documents)
    raise UsageError(f"kubeconfig {said}: {section} has no entry named {name!r}")


def _data(file: Path, entry: Mapping[str, Any], field: str) -> bytes | None:
    """``<field>-data`` (base64), or the content of the file that ``<field>`` names, relative to the kubeconfig."""
    data = entry.get(f"{field}-data")
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise UsageError(f"kubeconfig {file}: {field}-data is not base64") from error
    if entry.get(field):
        source = file.parent / entry[field]
        try:
            return source.read_bytes()
        except OSError as error:
            raise EnvironmentProblem(f"{field} {source} cannot be read: {error.strerror}") from error
    return None
