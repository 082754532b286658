"""Our parts as child processes at a kube-apiserver, each with the account and the rights that the chart gives it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from drakkar.api.times import parse_timestamp
from tests.support import chart
from tests.support.kubecluster import KubeCluster, kube_cluster
from tests.support.plane import Part
from tests.support.shared import ROOT
from tests.support.upstream import token_kubeconfig

#: What of a manifest is rights; the rest would run pods.
RIGHTS = {"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
#: Who was the author of a write, by the last word of the user name, and whose heartbeats are no news.
ACCOUNT = f"system:serviceaccount:{chart.NAMESPACE}:"
EXAMPLES = ROOT / "examples" / "tpu" / "on-a-cluster"

#: Everything but reads that were allowed, with what was written; heartbeats of nodes and leaders left out.
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}]},
        {"level": "Metadata", "verbs": ["get", "list", "watch"]},
        {"level": "Request"},
    ],
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One answered request of the audit log; ``at`` is when it came in, in Unix seconds."""

    at: float
    user: str
    verb: str
    #: ``pods``, or ``pods/status``.
    resource: str
    namespace: str
    name: str
    code: int
    body: Mapping[str, Any]
    message: str

    @property
    def writes(self) -> bool:
        """Whether it changed something."""
        return (
            self.verb not in ("get", "list", "watch") and self.code < 300 and self.resource != "serviceaccounts/token"
        )


class Orderly(Part):
    """A part that is asked to end, so that it hands its lease over to who comes next."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        finally:
            super().__exit__(kind, error, trace)


class Site:
    """A kube-apiserver that keeps an audit log, and our parts at it."""

    def __init__(self, cluster: KubeCluster, audit: Path):
        self.cluster = cluster
        self.kubectl = cluster.kubectl()
        self._audit = audit

    def grant(self, *settings: str) -> None:
        """The rights that the chart gives with these settings, and those of the examples."""
        files = [chart.MANIFESTS / "namespace.yaml", *sorted(EXAMPLES.glob("*.yaml"))]
        texts = [*(file.read_text() for file in files), chart.template("drivers.tpu.enabled=true", *settings)]
        items = [obj for text in texts for obj in chart.objects(text) if obj["kind"] in RIGHTS]
        body = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        self.kubectl.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=body)

    def account(self, name: str) -> Path:
        """A kubeconfig with a token of a service account of the chart."""
        token = self.kubectl.run("-n", chart.NAMESPACE, "create", "token", f"drakkar-{name}").strip()
        return token_kubeconfig(self.cluster.kubeconfig(), self.cluster.folder / f"{name}.kubeconfig", token)

    def part(self, account: str, *command: str) -> Part:
        """``drakkar COMMAND`` with that account."""
        return Orderly(*command, "--kubeconfig", str(self.account(account)))

    def written(self) -> list[Entry]:
        """All of the audit log; its last line may be on its way yet."""
        whole, _, _ = self._audit.read_text().rpartition("\n")
        return [_entry(json.loads(line)) for line in whole.splitlines()]

    def refused(self) -> list[str]:
        """What our accounts asked for and had no right to."""
        return [
            f"{entry.user} {entry.verb} {entry.resource}: {entry.message}"
            for entry in self.written()
            if entry.user.startswith(ACCOUNT) and entry.code == 403 and "being terminated" not in entry.message
        ]


def _entry(event: Mapping[str, Any]) -> Entry:
    about = event.get("objectRef") or {}
    resource = about.get("resource", "")
    status = event.get("responseStatus") or {}
    return Entry(
        parse_timestamp(event["requestReceivedTimestamp"]),
        event["user"]["username"],
        event["verb"],
        f"{resource}/{about['subresource']}" if about.get("subresource") else resource,
        about.get("namespace", ""),
        about.get("name", ""),
        status.get("code", 0),
        event.get("requestObject") or {},
        status.get("message", ""),
    )


@contextmanager
def kube_site(
    folder: Path,
    *flags: str,
    gates: Mapping[str, bool] | None = None,
    authorizers: str = "Node,RBAC",
    untouched: bool = False,
) -> Iterator[Site]:
    """A site with the rights of gate mode beside kube-controller-manager; new nodes are tainted until ready.

    ``untouched`` as for :func:`~tests.support.kubecluster.kube_cluster`.
    """
    policy, log = folder / "audit.yaml", folder / "audit.log"
    policy.write_text(json.dumps(_AUDIT))
    audit = (f"--audit-policy-file={policy}", f"--audit-log-path={log}")
    with kube_cluster(
        folder, *audit, *flags, gates=gates, authorizers=authorizers, disabled="", untouched=untouched
    ) as cluster:
        site = Site(cluster, log)
        site.grant("controllers.only={eviction,node-loss}")
        yield site
