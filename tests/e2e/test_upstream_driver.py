"""Upstream's test driver, in Go and unchanged, works with our agent and our API server."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.kinds import DAEMONSET, DEVICECLASS, POD, RESOURCECLAIMTEMPLATE, RESOURCESLICE, SERVICEACCOUNT, Kind
from drakkar.node.agent import mounts
from drakkar.node.agent.network import BridgeNetwork
from drakkar.node.agent.oci_runtime import OciRuntime
from drakkar.node.agent.process_runtime import ProcessRuntime
from drakkar.node.agent.runtime import Runtime
from tests.support.agents import NODE, Cluster, cluster
from tests.support.eventually import eventually
from tests.support.guard import guarded
from tests.support.upstream import binary
from tests.unit.node.agent.test_thin_path import gone, log, pod

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DRIVER = "test-driver.cdi.k8s.io"
_RBAC, _ROLES = "rbac.authorization.k8s.io", ("ClusterRole", "ClusterRoleBinding")


@pytest.fixture
def root(root: Path) -> Iterator[Path]:
    try:
        yield root
    finally:
        mounts.unmount_below(root)


async def _start(site: Cluster, root: Path, folder: Path) -> asyncio.subprocess.Process:
    (root / "plugins" / DRIVER).mkdir(parents=True, exist_ok=True)
    with (folder / "driver.log").open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            str(binary("dra-test-driver")),
            *("-v=5", "--kubeconfig", str(site.kubeconfig), "kubelet-plugin", "--node-name", NODE),
            *("--datadir", str(root / "plugins"), "--plugin-registration-path", str(root / "plugins_registry")),
            *("--cdi-dir", str(root / "cdi"), "--num-devices", "2"),
            stdout=output,
            stderr=output,
        )
    guarded(process.pid)
    return process


async def _prepare(site: Cluster) -> None:
    expression = f'device.driver == "{DRIVER}"'
    parameters = {"a": "b"}
    spec = {
        "selectors": [{"cel": {"expression": expression}}],
        "config": [{"opaque": {"driver": DRIVER, "parameters": parameters}}],
    }
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "test"}, "spec": spec}
    await site.client.create(DEVICECLASS, body)
    request = {"name": "r", "exactly": {"deviceClassName": "test"}}
    template = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    metadata = {"name": "hello", "namespace": "default"}
    await site.client.create(
        RESOURCECLAIMTEMPLATE,
        {**template, "metadata": metadata, "spec": {"spec": {"devices": {"requests": [request]}}}},
    )


MANIFEST = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: driver, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: driver}
rules:
- {apiGroups: [resource.k8s.io], resources: [resourceclaims], verbs: [get]}
- {apiGroups: [""], resources: [nodes], verbs: [get]}
- {apiGroups: [resource.k8s.io], resources: [resourceslices], verbs: [get, list, watch, create, update, patch, delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: driver}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: driver}
subjects: [{kind: ServiceAccount, name: driver, namespace: kube-system}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: driver, namespace: kube-system}
spec:
  selector: {matchLabels: {app: driver}}
  template:
    metadata: {labels: {app: driver}}
    spec:
      serviceAccountName: driver
      terminationGracePeriodSeconds: 2
      containers:
      - name: driver
        image: host
        command: [/driver]
        args: [-v=5, kubelet-plugin, --node-name=$(NODE_NAME), --datadir=ROOT/plugins, --num-devices=2,
               --plugin-registration-path=ROOT/plugins_registry, --cdi-dir=ROOT/cdi]
        env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        volumeMounts:
        - {name: binary, mountPath: /driver, readOnly: true}
        - {name: registry, mountPath: ROOT/plugins_registry}
        - {name: plugins, mountPath: ROOT/plugins}
        - {name: cdi, mountPath: ROOT/cdi}
      volumes:
      - {name: binary, hostPath: {path: BINARY, type: File}}
      - {name: registry, hostPath: {path: ROOT/plugins_registry}}
      - {name: plugins, hostPath: {path: ROOT/plugins}}
      - {name: cdi, hostPath: {path: ROOT/cdi, type: DirectoryOrCreate}}
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("runc") is None, reason="needs root and runc")
def test_upstreams_driver_runs_as_a_daemonset_of_the_node_it_serves(tmp_path: Path, root: Path) -> None:
    text = MANIFEST.replace("ROOT", str(root)).replace("BINARY", str(binary("dra-test-driver")))
    bridge = BridgeNetwork(root / "network", "", ("", 0)).bridge

    async def run() -> None:
        async with cluster(tmp_path, root, lambda: OciRuntime.open(root, None)) as site:
            site.bridge = True
            (root / "plugins" / DRIVER).mkdir(parents=True)
            await _prepare(site)
            agent = await site.start_agent()
            for item in yaml.safe_load_all(text):
                rbac = {name: Kind(_RBAC, "v1", name, f"{name.lower()}s", False) for name in _ROLES}
                kind = (
                    rbac.get(item["kind"]) or {"DaemonSet": DAEMONSET, "ServiceAccount": SERVICEACCOUNT}[item["kind"]]
                )
                await site.client.create(kind, item)

            async def slices() -> int:
                return len((await site.client.list(RESOURCESLICE)).items)

            await eventually(slices, lambda count: count > 0)
            await eventually(lambda: asyncio.sleep(0, agent.plugins.drivers()), lambda drivers: drivers == [DRIVER])
            body = pod("p", "env | grep '^claim_'; sleep 1000")
            body["spec"]["containers"][0]["image"] = "host"
            await site.client.create(POD, body)
            assert "_r=true" in await eventually(lambda: log(site, "p"), bool)
            # With an agent that starts anew, the driver's container is found again, and the pod can still be undone.
            await site.stop("agent")
            agent = await site.start_agent()
            await site.client.delete(POD, "p", "default")
            await eventually(lambda: gone(site, "p"), bool)
            assert agent.claims is not None
            assert agent.claims.records() == []
            await site.client.delete(DAEMONSET, "driver", "kube-system")
            await eventually(lambda: asyncio.sleep(0, agent.plugins.drivers()), lambda left: not left)
            await eventually(lambda: asyncio.to_thread(os.listdir, root / "pods"), lambda left: not left)

    try:
        asyncio.run(run())
    finally:
        subprocess.run(["ip", "link", "delete", bridge], check=False, capture_output=True)


def test_upstreams_driver_registers_publishes_prepares_and_comes_back(tmp_path: Path, root: Path) -> None:
    binary("dra-test-driver")
    as_root = os.geteuid() == 0 and shutil.which("runc") is not None

    def runtime() -> Runtime:
        return OciRuntime.open(root, None) if as_root else ProcessRuntime()

    async def run() -> None:
        async with cluster(tmp_path, root, runtime) as site:
            (root / "cdi").mkdir()
            await _prepare(site)
            agent = await site.start_agent(slice_patience=1.0)
            driver = await _start(site, root, tmp_path)

            async def slices() -> int:
                return len((await site.client.list(RESOURCESLICE)).items)

            await eventually(slices, lambda count: count > 0)
            await eventually(lambda: asyncio.sleep(0, agent.plugins.drivers()), lambda drivers: drivers == [DRIVER])
            body = pod("p", "env | sort | grep '^admin_\\|^claim_'; sleep 1000")
            body["spec"]["containers"][0]["image"] = "host"
            await site.client.create(POD, body)
            await eventually(lambda: site.pod("p"), lambda p: p["status"].get("phase") == "Running")
            # A variable for the request, and one from the class's parameters.
            given = await eventually(lambda: log(site, "p"), lambda text: text.count("\n") == 2)
            assert "_r=true" in given
            assert "admin_a=b" in given
            # Killed, it leaves its socket; half a minute (here a second) later its slices go, and come back with it.
            driver.send_signal(signal.SIGKILL)
            await driver.wait()
            await eventually(slices, lambda count: count == 0)
            driver = await _start(site, root, tmp_path)
            await eventually(slices, lambda count: count > 0)
            await site.client.delete(POD, "p", "default")
            await eventually(lambda: gone(site, "p"), bool)
            assert agent.claims is not None
            assert agent.claims.records() == []
            # This driver remembers in memory only, so what it made for p before its death stays; of q nothing does.
            left = set((root / "cdi").iterdir())
            body["metadata"]["name"] = "q"
            await site.client.create(POD, body)
            await eventually(lambda: site.pod("q"), lambda p: p["status"].get("phase") == "Running")
            assert set((root / "cdi").iterdir()) > left
            await site.client.delete(POD, "q", "default")
            await eventually(lambda: gone(site, "q"), bool)
            assert set((root / "cdi").iterdir()) == left
            driver.terminate()
            await driver.wait()
            await eventually(lambda: asyncio.sleep(0, agent.plugins.drivers()), lambda drivers: not drivers)

    asyncio.run(run())
