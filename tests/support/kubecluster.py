"""A control plane of upstream's for tests: etcd and kube-apiserver, and the components that work at it.

``./do upstream`` builds the components (see :mod:`tests.support.upstream`). At a release before ours
(:mod:`tests.support.releases`) what our release has on by default is turned on as far as it exists there.
"""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from drakkar.api.features import GATES, Features
from drakkar.apiserver.tls import open_pki, write_kubeconfig, write_private
from tests.support import releases
from tests.support.etcd import Etcd, free_ports, running_etcd
from tests.support.kubectl import Kubectl
from tests.support.upstream import Component, gates_of

#: Gates of devices and groups that are off by default in 1.37; "Figures to compare with" of spec/upstream-peers.md.
OFF_BY_DEFAULT = (
    "DRADerivedAttributes",
    "DRADeviceCompatibilityGroups",
    "DRAListTypeAttributes",
    "DRANodeAllocatableResources",
    "DRAOptionalNodeOperations",
    "DRAPartitionableDevicesType",
    "DRAResourcePoolStatus",
    "DRAWorkloadResourceClaims",
    "GenericWorkload",
    "PodGroupPreemptionPolicy",
)


def _gates(component: str, gates: Mapping[str, bool]) -> list[str]:
    """Flags for these gates, and for the release under test."""
    release, emulated = releases.release(), releases.emulated()
    if release:
        # What it has not cannot be turned on; what cannot be turned off is a mistake that it tells.
        known = Features.known_to(release) if emulated else gates_of(component).keys()
        gates = {name: value for name, value in gates.items() if name in known or not value}
    text = ",".join(f"{name}={str(value).lower()}" for name, value in gates.items())
    return [
        *([f"--feature-gates={text}"] if text else []),
        *([f"--emulated-version={emulated}"] if emulated else []),
    ]


def _like_ours() -> dict[str, bool]:
    """Gates that are on by default in our release and off in the older one under test."""
    release = releases.release()
    if not release:
        return {}
    off = Features.known_to(release) - {gate for gate in GATES if gate in Features.profile(release)}
    if releases.emulated():
        # kube-scheduler of our release asks for rules in v1, which an emulated server has not, and then never begins.
        off -= {"DRADeviceTaintRules"}
    return {name: True for name in sorted(off) if name in Features.default()}


class KubeCluster:
    """A running kube-apiserver; its certificates and logs are in ``folder``. :func:`kube_cluster` makes one."""

    def __init__(
        self, folder: Path, etcd: Etcd, gates: Mapping[str, bool], flags: Sequence[str], authorizers: str, disabled: str
    ):
        self.folder = folder
        self._gates = gates
        self._pki = open_pki(folder / "pki")
        self._key_pair()
        (port,) = free_ports(1)
        self.url = f"https://127.0.0.1:{port}"
        pki = folder / "pki"
        self.server = Component(
            "kube-apiserver",
            folder,
            f"--etcd-servers={etcd.url.replace('etcd', 'http', 1)}",
            f"--secure-port={port}",
            *("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"),
            *(f"--authorization-mode={authorizers}", "--runtime-config=api/all=true"),
            *([f"--disable-admission-plugins={disabled}"] if disabled else []),
            *(f"--client-ca-file={pki / 'ca.crt'}", f"--tls-cert-file={pki / 'server.crt'}"),
            f"--tls-private-key-file={pki / 'server.key'}",
            *(
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={pki / 'sa.pub'}",
            ),
            f"--service-account-signing-key-file={pki / 'sa.key'}",
            "--service-cluster-ip-range=10.96.0.0/16",
            *_gates("kube-apiserver", gates),
            *flags,
        )

    def _key_pair(self) -> None:
        """The key that signs the tokens of service accounts."""
        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        write_private(self.folder / "pki" / "sa.key", private)
        write_private(self.folder / "pki" / "sa.pub", public)

    @property
    def pki(self) -> Path:
        """Where ca.crt, ca.key, server.crt and server.key are."""
        return self._pki.folder

    def kubeconfig(self, user: str = "drakkar:admin", *groups: str) -> Path:
        """A kubeconfig of this user by client certificate; of an administrator by default."""
        path = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        if not path.exists():
            groups = groups or (("system:masters",) if user == "drakkar:admin" else ())
            write_kubeconfig(path, self.url, self._pki, user=user, groups=groups)
        return path

    def kubectl(self) -> Kubectl:
        """kubectl as administrator."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        return Kubectl(self.kubeconfig(), home)

    def scheduler(self, *flags: str, configuration: Mapping[str, Any] | None = None) -> Component:
        """kube-scheduler without limits on its requests; ``configuration`` is laid over its configuration file."""
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {
                "kubeconfig": str(self.kubeconfig("system:kube-scheduler")),
                "qps": 5000,
                "burst": 5000,
            },
            "leaderElection": {"leaderElect": False},
            **(configuration or {}),
        }
        path = self.folder / "kube-scheduler.yaml"
        path.write_text(json.dumps(config))
        return Component(
            "kube-scheduler",
            self.folder,
            f"--config={path}",
            "--secure-port=0",
            *_gates("kube-scheduler", self._gates),
            *flags,
        )

    def controller_manager(self, *flags: str, controllers: str = "*,-node-lifecycle-controller") -> Component:
        """kube-controller-manager, by default without the controller that watches over nodes' heartbeats."""
        pki = self.folder / "pki"
        return Component(
            "kube-controller-manager",
            self.folder,
            f"--kubeconfig={self.kubeconfig('system:kube-controller-manager')}",
            *("--leader-elect=false", "--secure-port=0", "--use-service-account-credentials=true"),
            *(f"--root-ca-file={pki / 'ca.crt'}", f"--service-account-private-key-file={pki / 'sa.key'}"),
            *("--kube-api-qps=1000", "--kube-api-burst=2000", f"--controllers={controllers}"),
            *_gates("kube-controller-manager", self._gates),
            *flags,
        )

    def wait_ready(self, timeout: float = 60) -> None:
        """Until /readyz says ok; AssertionError with the server's log if it ends or does not get there."""
        context = ssl.create_default_context(cafile=str(self._pki.folder / "ca.crt"))
        deadline = time.monotonic() + timeout
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/readyz", context=context, timeout=5) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            self.server.check()
            assert time.monotonic() < deadline, f"kube-apiserver is not ready:\n{self.server.log[-4000:]}"
            time.sleep(0.1)


@contextmanager
def kube_cluster(
    folder: Path,
    *flags: str,
    gates: Mapping[str, bool] | None = None,
    authorizers: str = "Node,RBAC",
    disabled: str = "TaintNodesByCondition",
    untouched: bool = False,
) -> Iterator[KubeCluster]:
    """etcd and kube-apiserver, ready, with these flags and gates; skips where they are not there, fails where CI=true.

    ``disabled`` admission plugins: nodes made by hand have nobody who takes their first taint away.

    ``gates=dict.fromkeys(OFF_BY_DEFAULT, True)`` turns all on that devices and groups can use.
    ``untouched``: an older release has no other gates on than its own defaults and ``gates``.
    """
    with ExitStack() as stack:
        etcd = stack.enter_context(running_etcd(folder))
        cluster = KubeCluster(
            folder, etcd, {**({} if untouched else _like_ours()), **(gates or {})}, flags, authorizers, disabled
        )
        stack.enter_context(cluster.server)
        cluster.wait_ready()
        yield cluster
