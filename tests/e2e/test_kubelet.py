"""A real kubelet with containerd, at a real kube-apiserver, and drivers of ours.

Ours are the drivers and the scheduler; kube-controller-manager and kube-scheduler are upstream's. Drivers have no more
rights than ``deploy/`` gives them, by tokens that are bound to the node. ``./do kubelet`` runs this; it needs root.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.test_upstream_controllers import Cluster
from tests.support import kubelet
from tests.support.kubecluster import kube_cluster
from tests.support.kubectl import Kubectl
from tests.support.plane import Part
from tests.support.shared import ROOT
from tests.support.upstream import Component, token_kubeconfig

pytestmark = [pytest.mark.kubelet, pytest.mark.timeout(300)]

Object = dict[str, Any]

SYSTEM = "drakkar-system"
EXAMPLE, GPU, HELLO = "example.drakkar.dev", "gpu.drakkar.dev", "hello.example.com"
TUTORIAL = ROOT / "docs" / "tutorial" / "hello_driver.py"
GATES = {"ResourceHealthStatusMessage": True}
#: Major number of the vendor's devices; nothing serves it here, so that opening one that is allowed says ENXIO.
NVIDIA = 195


class Site(Cluster):
    """The cluster and its node."""

    def __init__(
        self, kubectl: Kubectl, components: list[Component], scheduler: Part, node: kubelet.Node, folder: Path
    ):
        super().__init__(kubectl, components)
        self.node = node
        self._scheduler = scheduler
        self._folder = folder

    def until(
        self, kind: str, namespace: str, holds: Callable[[list[Object]], object], timeout: float = 60
    ) -> list[Object]:
        """As every cluster's; what goes wrong is told with what our scheduler has said."""
        try:
            return super().until(kind, namespace, holds, timeout)
        except AssertionError as error:
            error.add_note(json.dumps([obj.get("status") for obj in self.list(kind, namespace)], indent=1)[-6000:])
            error.add_note(self._scheduler.output[-4000:])
            raise

    def get(self, kind: str, namespace: str, name: str) -> Object:
        """One object."""
        return json.loads(self.kubectl.run("get", kind, name, "-n", namespace, "-o", "json"))

    def driver_account(self, driver: str) -> Path:
        """A kubeconfig with what ``deploy/`` gives a driver; the tutorial's gets what the example driver has."""
        short, source = driver.partition(".")[0], "example" if driver == HELLO else driver.partition(".")[0]
        text = (ROOT / "deploy" / f"driver-{source}.yaml").read_text()
        text = text.replace(f"{source}.drakkar.dev", driver).replace(f"driver-{source}", f"driver-{short}")
        bound = ("--bound-object-kind", "Node", "--bound-object-name", kubelet.NODE)
        return account(self.kubectl, self._folder, text, f"drakkar-driver-{short}", *bound)

    def driver(self, name: str, *flags: str) -> Part:
        """A driver as a process of the machine."""
        settings = (f"--kubeconfig={self.driver_account(name)}", f"--node-name={kubelet.NODE}")
        folders = (f"--kubelet-root={self.node.kubelet_root}", f"--cdi-dir={self.node.cdi}", "--health-period=0.2")
        if name == HELLO:
            return Part(*settings, *folders, *flags, program=(str(TUTORIAL),))
        return Part("driver", "run", name.partition(".")[0], *settings, *folders, *flags)

    @contextmanager
    def serving(self, name: str, *flags: str) -> Iterator[Part]:
        """A driver, once it is registered and published; stopped as systemd or a kubelet would at the end."""
        with self.driver(name, *flags) as part:
            self.published(name)
            wait(lambda: "the kubelet registered driver" in part.output, part)
            yield part
            part.process.terminate()
            assert part.process.wait(20) == 0, part.output

    def published(self, driver: str, count: int = 1, timeout: float = 60) -> None:
        """Until so many slices of a driver are there."""
        self.until("resourceslices", "", lambda found: len(of_driver(found, driver)) == count, timeout)

    def running(self, namespace: str, *names: str) -> dict[str, Object]:
        """These pods, once they run."""
        self.until("pods", namespace, lambda pods: set(names) <= {name_of(pod) for pod in pods if runs(pod)})
        return {name_of(pod): pod for pod in self.list("pods", namespace) if name_of(pod) in names}

    def shell(self, namespace: str, pod: str, script: str, container: str = "main") -> str:
        """What a script says within a container, errors too, whatever its exit status."""
        return self.kubectl.run(
            "exec", "-n", namespace, pod, "-c", container, "--", "sh", "-c", f"({script}) 2>&1 || :"
        )

    def delete_pods(self, namespace: str, *names: str) -> None:
        """Delete pods (all by default) and wait until they are gone."""
        self.kubectl.run("delete", "pods", *(names or ("--all",)), "-n", namespace, "--timeout=60s", timeout=70)

    def events(self, namespace: str, reason: str) -> list[str]:
        """Messages of the events with this reason."""
        return [event["message"] for event in self.list("events", namespace) if event["reason"] == reason]


def account(kubectl: Kubectl, folder: Path, manifest: str, name: str, *flags: str) -> Path:
    """Apply a manifest, but for what would run, and make a kubeconfig with a token of the account that it brings."""
    objects = [obj for obj in yaml.safe_load_all(manifest) if obj and "template" not in obj.get("spec", {})]
    kubectl.run("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    token = kubectl.run("create", "token", name, "-n", SYSTEM, *flags)
    administrator = Path(kubectl.env["KUBECONFIG"])
    return token_kubeconfig(administrator, folder / f"{name}.kubeconfig", token.strip())


def wait(holds: Callable[[], object], part: Part, timeout: float = 60) -> None:
    """Until this is so; AssertionError with what the process has said."""
    deadline = time.monotonic() + timeout
    while not holds():
        assert part.process.poll() is None, part.output
        assert time.monotonic() < deadline, part.output
        time.sleep(0.1)


def name_of(obj: Object) -> str:
    return obj["metadata"]["name"]


def runs(pod: Object) -> bool:
    return pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


def of_driver(slices: list[Object], driver: str) -> list[Object]:
    return [each for each in slices if each["spec"]["driver"] == driver]


def adapted(path: str, namespace: str, scheduler: str = "drakkar") -> list[Object]:
    """Objects of an example, but for its class, with pods as this node can run them."""
    objects = [obj for obj in yaml.safe_load_all((ROOT / path).read_text()) if obj["kind"] != "DeviceClass"]
    for obj in objects:
        obj["metadata"]["namespace"] = namespace
        if obj["kind"] == "Pod":
            obj["spec"] |= {"hostNetwork": True, "schedulerName": scheduler, "terminationGracePeriodSeconds": 1}
            for container in obj["spec"]["containers"]:
                container |= {"image": kubelet.IMAGE, "imagePullPolicy": "Never"}
    return objects


def template(name: str, namespace: str, device_class: str, config: Sequence[Object] = (), **exactly: Any) -> Object:
    """A claim template for one request `device`."""
    request = {"name": "device", "exactly": {"deviceClassName": device_class, **exactly}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": [request], "config": list(config)}}},
    }


def pod(name: str, namespace: str, claim: str, scheduler: str = "drakkar", **spec: Any) -> Object:
    """A pod that waits, with a claim `device` from a template."""
    container = {
        "name": "main",
        "image": kubelet.IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "sleep 3600"],
        "resources": {"claims": [{"name": "device"}]},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "hostNetwork": True,
            "schedulerName": scheduler,
            "terminationGracePeriodSeconds": 1,
            "restartPolicy": "Never",
            "containers": [container],
            "resourceClaims": [{"name": "device", "resourceClaimTemplateName": claim}],
            **spec,
        },
    }


def health(pod: Object) -> list[Object]:
    """What the pod's status says of the devices of its first container."""
    return [
        resource
        for status in pod["status"].get("containerStatuses", ())
        for allocated in status.get("allocatedResourcesStatus", ())
        for resource in allocated["resources"]
    ]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Site]:
    why = kubelet.obstacle()
    if why is not None:
        pytest.skip(why)
    # A short path, because sockets lie there.
    folder = Path(tempfile.mkdtemp(prefix="dk"))
    flags = (*kubelet.kubelet_client(folder / "cluster"), "--enable-admission-plugins=NodeRestriction")
    try:
        with ExitStack() as stack:
            kube = stack.enter_context(kube_cluster(folder / "cluster", *flags, gates=GATES))
            components = [kube.server, kube.controller_manager(), kube.scheduler()]
            for component in components[1:]:
                stack.enter_context(component)
            kubectl = kube.kubectl()
            kubectl.run("create", "namespace", SYSTEM)
            manifest = (ROOT / "deploy" / "scheduler.yaml").read_text()
            user = account(kubectl, folder, manifest, "drakkar-scheduler")
            own = ("--mode", "own", "--metrics-bind-address", "0", "--leader-elect-resource-namespace", SYSTEM)
            scheduler = stack.enter_context(Part("scheduler", "--kubeconfig", str(user), *own))
            node = stack.enter_context(kubelet.node(folder, kube, GATES))
            site = Site(kubectl, [*components, node.containerd, node.kubelet], scheduler, node, folder)
            site.until("nodes", "", lambda nodes: [c for n in nodes for c in n["status"]["conditions"]
                                                   if (c["type"], c["status"]) == ("Ready", "True")])  # fmt: skip
            yield site
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def namespace(cluster: Site, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, with a default account; gone, with all in it, at the end."""
    name = request.node.name.removeprefix("test_").replace("_", "-")
    cluster.kubectl.run("create", "namespace", name)
    cluster.until("serviceaccounts", name, lambda found: found)
    yield name
    cluster.kubectl.run("delete", "namespace", name, "--timeout=90s", timeout=100)


def test_a_pod_has_its_gpu_and_no_other(cluster: Site, namespace: str) -> None:
    for index in range(2):
        cluster.node.make_device(f"/dev/nvidia{index}", NVIDIA, index)
    for minor, name in enumerate(("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"), 253):
        cluster.node.make_device(f"/dev/{name}", NVIDIA, minor)
    with cluster.serving(GPU, "--fake=a100", "--fake-count=2", "--mig=off"):
        cluster.apply(*adapted("examples/gpu/01-one-gpu.yaml", namespace))
        found = cluster.running(namespace, "one-gpu")["one-gpu"]
        (claim,) = cluster.list("resourceclaims", namespace)
        uid, (result,) = claim["metadata"]["uid"], claim["status"]["allocation"]["devices"]["results"]
        assert [user["uid"] for user in claim["status"]["reservedFor"]] == [found["metadata"]["uid"]]
        mine = int(result["device"].removeprefix("gpu-"))
        assert f"GPU_GPU_{mine}=GPU-" in cluster.kubectl.run("logs", "-n", namespace, "one-gpu")
        # Its own device may be opened, but nothing is behind it; the other is not there, and a node for it is no use.
        here = cluster.shell(namespace, "one-gpu", f"ls /dev/nvidia*; head -c1 /dev/nvidia{mine}")
        assert "No such device or address" in here
        assert f"/dev/nvidia{1 - mine}" not in here
        assert "Operation not permitted" in cluster.shell(
            namespace, "one-gpu", f"mknod /tmp/x c {NVIDIA} {1 - mine}; head -c1 /tmp/x"
        )
        # The application reads what it has from a file (KEP-5304).
        attributes = "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/gpu/gpu"
        told = cluster.shell(namespace, "one-gpu", f"cat {attributes}/{GPU}-metadata.json")
        assert json.loads(told)["requests"][0]["devices"][0]["name"] == result["device"]
        # The kubelet says how the device is by the name that the driver gave it for containerd.
        pods = cluster.until("pods", namespace, lambda pods: health(pods[0]))
        assert health(pods[0]) == [{"health": "Healthy", "resourceID": f"{GPU}/device={uid}-0"}]
        assert cluster.node.prepared() == [name_of(claim)]
        assert uid in str(list(cluster.node.cdi.iterdir()))
        cluster.delete_pods(namespace)
        cluster.until("resourceclaims", namespace, lambda claims: not claims)
        assert cluster.node.prepared() == []
        assert uid not in str(list(cluster.node.cdi.iterdir()))
        assert list((cluster.node.kubelet_root / "plugins" / GPU / "claims").iterdir()) == []
