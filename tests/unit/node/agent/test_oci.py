"""Containers by runc, as root: devices by CDI, nothing without a claim, volumes, users, logs, crash and return."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.kinds import CONFIGMAP, POD
from drakkar.api.meta import Object
from drakkar.api.objects import condition_is
from drakkar.api.resource import v1
from drakkar.driver import AllocatedDevice, ContainerEdits
from drakkar.node.agent import mounts
from drakkar.node.agent.network import BridgeNetwork
from drakkar.node.agent.oci_runtime import OciRuntime
from drakkar.plugin.cdi import DeviceNode
from tests.support.agents import cluster
from tests.support.eventually import eventually
from tests.unit.node.agent.test_thin_path import Hello, gone, log, prepare_cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("runc") is None, reason="needs root and runc"),
]


@pytest.fixture
def root(root: Path) -> Iterator[Path]:
    try:
        yield root
    finally:
        mounts.unmount_below(root)


def pod(name: str, script: str, *, claim: bool = False, container: Object | None = None, **more: Any) -> Object:
    made: Object = {"name": "main", "image": "host", "command": ["sh", "-c", script], **(container or {})}
    spec: Object = {"containers": [made], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    spec["hostNetwork"] = True
    if claim:
        made["resources"] = {"claims": [{"name": "hello"}]}
        spec["resourceClaims"] = [{"name": "hello", "resourceClaimTemplateName": "hello"}]
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec | more}


def _groups(uid: str) -> list[Path]:
    """Control groups of a pod, under either version."""
    top = Path("/sys/fs/cgroup")
    return [*top.glob(f"drakkar/{uid}"), *top.glob(f"*/drakkar/{uid}")]


def ended(phase: str) -> Any:
    return lambda pod: pod["status"].get("phase") == phase


def test_a_container_with_its_device(tmp_path: Path, root: Path) -> None:
    async def run() -> None:
        async with cluster(tmp_path, root, lambda: OciRuntime.open(root, None)) as site:
            await prepare_cluster(site)
            await site.start_agent()
            driver = Hello(tmp_path)
            await site.start_driver(driver)
            script = "echo $HELLO; cat /device/data; id -u; touch /usr/here; trap 'exit 3' TERM; sleep 100 & wait"
            await site.client.create(POD, pod("with", script, claim=True))
            await site.client.create(POD, pod("without", "ls /device; test -e /usr/here; echo $? $HELLO"))
            assert await eventually(lambda: log(site, "with"), lambda text: text.count("\n") == 3) == (
                "d0\nfrom the device\n0\n"
            )
            await eventually(lambda: site.pod("without"), ended("Succeeded"))
            assert (await log(site, "without")).endswith("1\n")
            uid = (await site.pod("with"))["metadata"]["uid"]
            assert await asyncio.to_thread(_groups, uid)
            await site.client.delete(POD, "with", "default")
            await eventually(lambda: gone(site, "with"), bool)
            assert driver.unprepared == driver.prepared
            await eventually(lambda: asyncio.to_thread(os.listdir, root / "pods"), lambda left: len(left) == 1)
            assert await asyncio.to_thread(_groups, uid) == []

    asyncio.run(run())
    assert not Path("/usr/here").exists()


class Node(Hello):
    """Hands out a device node of this machine."""

    def __init__(self, folder: Path, host_path: str) -> None:
        super().__init__(folder)
        self.host_path = host_path

    def prepare(self, claim: v1.ResourceClaim, devices: Sequence[AllocatedDevice]) -> Sequence[ContainerEdits]:
        self.prepared.append(claim.metadata.uid)
        node = DeviceNode(path="/dev/mine", hostPath=self.host_path, permissions="r")
        return [ContainerEdits(deviceNodes=[node]) for _ in devices]


def test_only_who_has_the_claim_can_open_the_device(tmp_path: Path, root: Path) -> None:
    # Not one of those that every container may open.
    device = next((path for path in ("/dev/loop-control", "/dev/fuse", "/dev/net/tun") if Path(path).exists()), None)
    if device is None:
        pytest.skip("no device node here to hand out")
    numbers = f"{os.major(os.stat(device).st_rdev)} {os.minor(os.stat(device).st_rdev)}"

    async def run() -> None:
        async with cluster(tmp_path, root, lambda: OciRuntime.open(root, None)) as site:
            await prepare_cluster(site)
            await site.start_agent()
            await site.start_driver(Node(tmp_path, device))
            # Whoever may make nodes still cannot open them; ENXIO or success would mean that the filter let it through.
            rights = {"securityContext": {"capabilities": {"add": ["MKNOD"]}}}
            look = (
                "import os\n"
                "for path in ('/dev/mine', '/tmp/own'):\n"
                "    try: os.close(os.open(path, os.O_RDONLY)); print('open')\n"
                "    except OSError as error: print(error.errno)\n"
            )
            script = f'mknod /tmp/own c {numbers}; python3 -c "{look}"'
            for name, claim in (("with", True), ("without", False)):
                await site.client.create(POD, pod(name, script, claim=claim, container=rights))
                await eventually(lambda n=name: site.pod(n), ended("Succeeded"))
            assert (await log(site, "with")).split() == ["open", "open"]
            assert (await log(site, "without")).split() == [str(errno.ENOENT), str(errno.EPERM)]
            plain = "mknod /tmp/own c 1 3 2>/dev/null; echo $?"
            await site.client.create(POD, pod("plain", plain))
            await eventually(lambda: site.pod("plain"), ended("Succeeded"))
            assert (await log(site, "plain")).strip() == "1"

    asyncio.run(run())


def test_volumes_users_and_limits(tmp_path: Path, root: Path) -> None:
    async def run() -> None:
        async with cluster(tmp_path, root, lambda: OciRuntime.open(root, None)) as site:
            await site.start_agent()
            metadata = {"name": "conf", "namespace": "default"}
            data = {"a.txt": "content\n", "n": "7"}
            await site.client.create(
                CONFIGMAP, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
            )
            container = {
                "image": "host",
                "workingDir": "/tmp",
                "env": [{"name": "N", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "n"}}}],
                "volumeMounts": [
                    {"name": "conf", "mountPath": "/etc/conf"},
                    {"name": "memory", "mountPath": "/memory"},
                    {"name": "memory", "mountPath": "/own", "subPath": "deep/own"},
                    {"name": "machine", "mountPath": "/machine", "readOnly": True},
                ],
                "securityContext": {"runAsUser": 1234, "capabilities": {"drop": ["ALL"]}},
                "resources": {"limits": {"memory": "64Mi", "cpu": "500m"}},
            }
            volumes = [
                {"name": "conf", "configMap": {"name": "conf"}},
                {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                {"name": "machine", "hostPath": {"path": str(tmp_path), "type": "Directory"}},
            ]
            script = (
                "cat /etc/conf/a.txt; echo $N; id -u; grep CapEff /proc/self/status; pwd;"
                "touch /machine/x 2>/dev/null; echo $?; stat -f -c %T /memory;"
                "touch /etc/conf/x 2>/dev/null; echo $?; touch /own/x; ls /memory/deep/own;"
                "ls /var/run/secrets/kubernetes.io/serviceaccount;"
                " grep -c . /proc/1/stat; echo bye > /dev/termination-log"
            )
            await site.client.create(POD, pod("p", script, container=container, volumes=volumes))
            done = await eventually(
                lambda: site.pod("p"), lambda p: p["status"].get("phase") in ("Succeeded", "Failed")
            )
            assert done["status"]["phase"] == "Succeeded", await log(site, "p")
            assert (await log(site, "p")).split() == [
                *("content", "7", "1234", "CapEff:", "0000000000000000", "/tmp", "1", "tmpfs", "1", "x"),
                *("ca.crt", "namespace", "token", "1"),
            ]
            assert done["status"]["containerStatuses"][0]["state"]["terminated"]["message"] == "bye\n"

    asyncio.run(run())


def test_who_wants_too_much_memory_is_ended(tmp_path: Path, root: Path) -> None:
    async def run() -> None:
        async with cluster(tmp_path, root, lambda: OciRuntime.open(root, None)) as site:
            await site.start_agent()
            limits = {"resources": {"limits": {"memory": "32Mi"}}}
            script = "python3 -c 'x = bytearray(200 << 20)'; exit $?"
            await site.client.create(POD, pod("p", script, container=limits))
            done = await eventually(lambda: site.pod("p"), ended("Failed"))
            terminated = done["status"]["containerStatuses"][0]["state"]["terminated"]
            assert (terminated["reason"], terminated["exitCode"]) == ("OOMKilled", 137)

    asyncio.run(run())


def test_an_unknown_image_names_the_cure(tmp_path: Path, root: Path) -> None:
    async def run() -> None:
        async with cluster(tmp_path, root, lambda: OciRuntime.open(root, None)) as site:
            await site.start_agent()
            await site.client.create(POD, pod("p", "true", container={"image": "example.com/app:1"}))

            def waits(pod: Object) -> bool:
                statuses = pod["status"].get("containerStatuses") or [{}]
                return statuses[0].get("state", {}).get("waiting", {}).get("reason") == "ErrImagePull"

            waiting = await eventually(lambda: site.pod("p"), waits)
            message = waiting["status"]["containerStatuses"][0]["state"]["waiting"]["message"]
            assert "--config" in message
            await site.client.delete(POD, "p", "default")
            await eventually(lambda: gone(site, "p"), bool)
            await site.client.create(
                POD, pod("q", "", container={"image": "registry.k8s.io/pause:3.10", "command": []})
            )
            await eventually(lambda: site.pod("q"), ended("Running"))
            await site.client.delete(POD, "q", "default")
            await eventually(lambda: gone(site, "q"), bool)

    asyncio.run(run())


def test_pods_have_networks_of_their_own(tmp_path: Path, root: Path) -> None:
    bridge = BridgeNetwork(root / "network", "", ("", 0)).bridge

    async def run() -> None:
        async with cluster(tmp_path, root, lambda: OciRuntime.open(root, None)) as site:
            site.bridge = True
            await site.start_agent()
            serve = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=80)"
            probe = {"readinessProbe": {"httpGet": {"port": 80, "path": "/"}, "periodSeconds": 1}}
            container = {"command": ["python3", "-c", serve], **probe}
            await site.client.create(POD, pod("server", "", hostNetwork=False, container=container))
            ready = await eventually(lambda: site.pod("server"), lambda p: condition_is(p, "Ready"), timeout=30)
            address = ready["status"]["podIP"]
            assert address.startswith("10.88.")
            look = (
                "import urllib.request as u, ssl, os;"
                f"print(u.urlopen('http://{address}/').status);"
                "a='/var/run/secrets/kubernetes.io/serviceaccount/';"
                "c=ssl.create_default_context(cafile=a+'ca.crt');"
                "r=u.Request('https://%s:%s/version' % (os.environ['KUBERNETES_SERVICE_HOST'],"
                "os.environ['KUBERNETES_SERVICE_PORT']), headers={'Authorization':'Bearer '+open(a+'token').read()});"
                "print(u.urlopen(r, context=c).status)"
            )
            await site.client.create(
                POD, pod("client", "", hostNetwork=False, container={"command": ["python3", "-c", look]})
            )
            await eventually(lambda: site.pod("client"), lambda p: p["status"].get("phase") in ("Succeeded", "Failed"))
            assert await log(site, "client") == "200\n200\n"
            for name in ("server", "client"):
                await site.client.delete(POD, name, "default")
                await eventually(lambda n=name: gone(site, n), bool)
            assert await asyncio.to_thread(lambda: list((root / "network").glob("10.*"))) == []

    try:
        asyncio.run(run())
    finally:
        subprocess.run(["ip", "link", "delete", bridge], check=False, capture_output=True)


def test_a_new_agent_finds_its_containers(tmp_path: Path, root: Path) -> None:
    async def run() -> None:
        async with cluster(tmp_path, root, lambda: OciRuntime.open(root, None)) as site:
            await prepare_cluster(site)
            await site.start_agent()
            driver = Hello(tmp_path)
            await site.start_driver(driver)
            script = "while ! test -e /machine/end; do sleep 0.05; done; exit 5"
            volumes = [{"name": "machine", "hostPath": {"path": str(tmp_path)}}]
            mount = {"volumeMounts": [{"name": "machine", "mountPath": "/machine"}]}
            for name in ("stays", "ends", "goes"):
                body = pod(name, script, claim=True, container=mount, volumes=volumes)
                await site.client.create(POD, body)
            before = [await eventually(lambda n=n: site.pod(n), ended("Running")) for n in ("stays", "ends", "goes")]
            await site.stop("agent")
            # While nobody looks, one pod is forgotten by force.
            await site.client.delete(POD, "goes", "default", grace=0)
            await site.start_agent()
            now = await site.pod("stays")
            assert (
                now["status"]["containerStatuses"][0]["containerID"]
                == (before[0]["status"]["containerStatuses"][0]["containerID"])
            )
            assert now["status"]["containerStatuses"][0]["restartCount"] == 0
            await eventually(lambda: asyncio.sleep(0, len(driver.unprepared)), lambda count: count == 1)
            assert len(driver.prepared) == 3
            await site.stop("agent")
            (tmp_path / "end").touch()
            await asyncio.sleep(0.5)
            await site.start_agent()
            for name in ("stays", "ends"):
                done = await eventually(lambda n=name: site.pod(n), ended("Failed"))
                assert done["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 5
            assert sorted(driver.unprepared) == sorted(driver.prepared)

    asyncio.run(run())
