"""A real kubelet with containerd, at a real kube-apiserver, and drivers of ours.

Ours are the drivers and the scheduler; kube-controller-manager and kube-scheduler are upstream's. Drivers have no more
rights than ``deploy/`` gives them, by tokens that are bound to the node. ``./do kubelet`` runs this; it needs root.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.e2e.test_upstream_controllers import Cluster
from tests.support import chart, kubelet
from tests.support.etcd import free_ports
from tests.support.kubecluster import KubeCluster, kube_cluster
from tests.support.plane import Part
from tests.support.shared import ROOT
from tests.support.upstream import Component, token_kubeconfig

pytestmark = [pytest.mark.kubelet, pytest.mark.timeout(300)]

Object = dict[str, Any]

EXAMPLE, GPU, CPU, HELLO = "example.drakkar.dev", "gpu.drakkar.dev", "cpu.drakkar.dev", "hello.example.com"
TUTORIAL = ROOT / "docs" / "tutorial" / "hello_driver.py"
GATES = {"ResourceHealthStatusMessage": True}
#: Major number of the vendor's devices; nothing serves it here, so that opening one that is allowed says ENXIO.
NVIDIA = 195


class Site(Cluster):
    """The cluster and its node."""

    def __init__(self, kube: KubeCluster, components: list[Component], scheduler: Part, node: kubelet.Node):
        super().__init__(kube.kubectl(), components)
        self.kube = kube
        self.node = node
        self._scheduler = scheduler

    def until(
        self, kind: str, namespace: str, holds: Callable[[list[Object]], object], timeout: float = 60
    ) -> list[Object]:
        """As every cluster's; what goes wrong is told with what our scheduler has said."""
        try:
            return super().until(kind, namespace, holds, timeout)
        except AssertionError as error:
            error.add_note(json.dumps([obj.get("status") for obj in self.list(kind, namespace)], indent=1)[-6000:])
            error.add_note(self.kubectl.run("get", "events", "-n", namespace or "default")[-6000:])
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
        return account(self.kube, text, f"drakkar-driver-{short}", *bound)

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

    def published(self, driver: str) -> None:
        """Until all slices of a driver are there, or as many as it had."""

        def complete(found: list[Object]) -> bool:
            mine = of_driver(found, driver)
            return bool(mine) and len(mine) == mine[0]["spec"]["pool"]["resourceSliceCount"]

        self.until("resourceslices", "", complete)

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


def account(kube: KubeCluster, manifest: str, name: str, *flags: str) -> Path:
    """Apply a manifest, but for what would run, and make a kubeconfig with a token of the account that it brings."""
    objects = [obj for obj in yaml.safe_load_all(manifest) if obj and "template" not in obj.get("spec", {})]
    kubectl = kube.kubectl()
    kubectl.run("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    token = kubectl.run("create", "token", name, "-n", chart.NAMESPACE, *flags)
    return token_kubeconfig(kube.kubeconfig(), kube.folder / f"{name}.kubeconfig", token.strip())


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


def template(
    name: str, namespace: str, device_class: str, config: list[Object] | None = None, **exactly: Any
) -> Object:
    """A claim template for one request `device`."""
    request = {"name": "device", "exactly": {"deviceClassName": device_class, **exactly}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": [request], "config": config or []}}},
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
            kube.kubectl().run("create", "namespace", chart.NAMESPACE)
            manifest = (ROOT / "deploy" / "scheduler.yaml").read_text()
            user = account(kube, manifest, "drakkar-scheduler")
            own = ("--mode", "own", "--metrics-bind-address", "0", "--leader-elect-resource-namespace", chart.NAMESPACE)
            scheduler = stack.enter_context(Part("scheduler", "--kubeconfig", str(user), *own))
            node = stack.enter_context(kubelet.node(folder, kube, GATES))
            site = Site(kube, [*components, node.containerd, node.kubelet], scheduler, node)
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


def test_health_is_in_the_pods_status(cluster: Site, namespace: str, tmp_path: Path) -> None:
    sick = {"key": f"{EXAMPLE}/unhealthy", "operator": "Exists", "effect": "NoExecute"}
    with cluster.serving(EXAMPLE, f"--faults={tmp_path}"):
        cluster.apply(
            template("stays", namespace, EXAMPLE, tolerations=[sick]),
            template("goes", namespace, EXAMPLE),
            pod("stays", namespace, "stays"),
            pod("goes", namespace, "goes"),
        )
        cluster.running(namespace, "stays", "goes")
        devices = {
            claim["metadata"]["ownerReferences"][0]["name"]: claim["status"]["allocation"]["devices"]["results"][0]
            for claim in cluster.list("resourceclaims", namespace)
        }

        def feels(name: str, state: str, message: str | None = None) -> None:
            said = {"health": state, **({"message": message} if message else {})}

            def told(pods: list[Object]) -> bool:
                return [
                    {key: value for key, value in each.items() if key != "resourceID"}
                    for found in pods
                    if name_of(found) == name
                    for each in health(found)
                ] == [said]

            cluster.until("pods", namespace, told)

        def condition(name: str) -> tuple[str, str] | None:
            for claim in cluster.list("resourceclaims", namespace):
                if claim["metadata"]["ownerReferences"][0]["name"] == name:
                    for device in claim["status"].get("devices", ()):
                        return next((c["status"], c["reason"]) for c in device["conditions"] if c["type"] == "Healthy")
            return None

        feels("stays", "Healthy")
        fault = tmp_path / devices["stays"]["device"]
        # Usable with less: the kubelet knows no such thing, the claim tells it.
        fault.write_text("Degraded a little slow")
        cluster.until("resourceclaims", namespace, lambda _: condition("stays") == ("False", "Degraded"))
        feels("stays", "Healthy", "a little slow")
        fault.write_text("Unhealthy fan stuck")
        feels("stays", "Unhealthy", "fan stuck")
        cluster.until("resourceclaims", namespace, lambda _: condition("stays") == ("False", "Unhealthy"))
        # The taint of a sick device evicts whoever does not put up with it: by kube-controller-manager.
        (tmp_path / devices["goes"]["device"]).write_text("Unhealthy smoke")
        cluster.until("pods", namespace, lambda pods: [name_of(found) for found in pods] == ["stays"])
        fault.unlink()
        feels("stays", "Healthy")
        cluster.until("resourceclaims", namespace, lambda _: condition("stays") == ("True", "Healthy"))
        cluster.delete_pods(namespace)


def test_an_upgrade_leaves_no_gap(cluster: Site, namespace: str) -> None:
    def slices() -> list[str]:
        return [each["metadata"]["uid"] for each in of_driver(cluster.list("resourceslices", ""), EXAMPLE)]

    with cluster.serving(EXAMPLE, "--instance-uid=11111111-1111-1111-1111-111111111111") as old:
        cluster.apply(template("one", namespace, EXAMPLE), *(pod(f"old-{i}", namespace, "one") for i in range(2)))
        cluster.running(namespace, "old-0", "old-1")
        before = slices()
        with cluster.serving(EXAMPLE, "--instance-uid=22222222-2222-2222-2222-222222222222"):
            cluster.apply(*(pod(f"both-{i}", namespace, "one") for i in range(2)))
            cluster.running(namespace, "both-0", "both-1")
            # Pods come while the old instance goes.
            cluster.apply(*(pod(f"new-{i}", namespace, "one") for i in range(2)))
            old.process.terminate()
            assert old.process.wait(20) == 0, old.output
            cluster.apply(pod("later", namespace, "one"))
            cluster.running(namespace, "later", *(f"{when}-{i}" for when in ("old", "both", "new") for i in range(2)))
            assert cluster.events(namespace, "FailedPrepareDynamicResources") == []
            assert slices() == before
            # A third one dies at once: the kubelet turns to the one before.
            with cluster.driver(EXAMPLE, "--instance-uid=33333333-3333-3333-3333-333333333333") as third:
                wait(lambda: "the kubelet registered driver" in third.output, third)
            cluster.apply(pod("after", namespace, "one"))
            cluster.running(namespace, "after")
            assert cluster.events(namespace, "FailedPrepareDynamicResources") == []
            # What the old one prepared, the new one undoes.
            cluster.delete_pods(namespace)
            assert cluster.node.prepared() == []
            assert list((cluster.node.kubelet_root / "plugins" / EXAMPLE / "claims").iterdir()) == []


def test_the_kubelet_starts_anew_while_a_pod_runs(cluster: Site, namespace: str) -> None:
    with cluster.serving(EXAMPLE) as driver:
        cluster.apply(template("one", namespace, EXAMPLE), pod("first", namespace, "one"))
        before = cluster.running(namespace, "first")["first"]
        old = [each["metadata"]["uid"] for each in of_driver(cluster.list("resourceslices", ""), EXAMPLE)]
        cluster.node.restart_kubelet()
        wait(lambda: driver.output.count("the kubelet registered driver") == 2, driver)
        # A kubelet that starts removes all slices of its node; the driver sees that and publishes anew.
        cluster.until("resourceslices", "", lambda found: [
            each["metadata"]["uid"] for each in of_driver(found, EXAMPLE) if each["metadata"]["uid"] not in old
        ])  # fmt: skip
        cluster.apply(pod("second", namespace, "one"))
        after = cluster.running(namespace, "first", "second")
        for found in (before, after["first"]):
            del found["status"]["containerStatuses"][0]["allocatedResourcesStatus"]
        assert after["first"]["status"]["containerStatuses"] == before["status"]["containerStatuses"]
        cluster.until("pods", namespace, lambda pods: all(map(health, pods)))
        assert len(cluster.node.prepared()) == 2
        cluster.delete_pods(namespace)
        assert cluster.node.prepared() == []


def test_a_driver_is_killed_and_comes_back(cluster: Site, namespace: str) -> None:
    with cluster.driver(EXAMPLE) as driver:
        cluster.published(EXAMPLE)
        one = template("one", namespace, EXAMPLE)
        cluster.apply(one, pod("first", namespace, "one"), pod("goes", namespace, "one"))
        cluster.running(namespace, "first", "goes")
        driver.process.send_signal(signal.SIGKILL)
        driver.process.wait()
        # Nobody can prepare, and nobody can undo: one pod waits for its start, one for its end.
        cluster.apply(pod("second", namespace, "one"))
        cluster.until("events", namespace, lambda _: cluster.events(namespace, "FailedPrepareDynamicResources"))
        cluster.kubectl.run("delete", "pod", "goes", "-n", namespace, "--wait=false")
        # The kubelet gives the driver half a minute, then its devices are gone.
        cluster.until("resourceslices", "", lambda found: not of_driver(found, EXAMPLE))
        left = {name_of(found): found for found in cluster.list("pods", namespace)}
        assert runs(left["first"])
        assert left["second"]["status"]["phase"] == "Pending"
        assert "deletionTimestamp" in left["goes"]["metadata"]
    with cluster.serving(EXAMPLE):
        cluster.until("pods", namespace, lambda pods: {name_of(each) for each in pods if runs(each)} == {
            "first", "second"} and len(pods) == 2)  # fmt: skip
        cluster.delete_pods(namespace)
        assert cluster.node.prepared() == []


def test_a_power_cut(cluster: Site, namespace: str) -> None:
    """Everything dies at once, what memory held is gone: pods come again with the devices that they had."""
    with cluster.driver(EXAMPLE) as driver:
        cluster.published(EXAMPLE)
        cluster.apply(template("one", namespace, EXAMPLE), pod("back", namespace, "one", restartPolicy="Always"))
        cluster.running(namespace, "back")
        before = cluster.shell(namespace, "back", "env | grep EXAMPLE_")
        driver.process.kill()
        cluster.node.reboot()
    with cluster.serving(EXAMPLE):
        cluster.until("pods", namespace, lambda pods: [
            status["restartCount"] for found in pods if runs(found) for status in found["status"]["containerStatuses"]
            if status["ready"]] == [1])  # fmt: skip
        assert cluster.shell(namespace, "back", "env | grep EXAMPLE_") == before
        cluster.delete_pods(namespace)
        assert cluster.node.prepared() == []
        assert list((cluster.node.kubelet_root / "plugins" / EXAMPLE / "claims").iterdir()) == []


def test_the_drivers_tutorial_with_kube_scheduler(cluster: Site, namespace: str) -> None:
    def config(language: str) -> list[Object]:
        parameters = {"apiVersion": f"{HELLO}/v1", "kind": "Greeting", "language": language}
        return [{"opaque": {"driver": HELLO, "parameters": parameters}}]

    with cluster.serving(HELLO):
        cluster.apply(
            template("norse", namespace, HELLO, config("is")),
            template("unknown", namespace, HELLO, config("xx")),
            pod("norse", namespace, "norse", "default-scheduler"),
            pod("unknown", namespace, "unknown", "default-scheduler"),
        )
        cluster.running(namespace, "norse")
        assert "GREETING=halló from greeter-" in cluster.shell(namespace, "norse", "env")
        cluster.until("events", namespace, lambda _: cluster.events(namespace, "FailedPrepareDynamicResources"))
        (said, *_) = cluster.events(namespace, "FailedPrepareDynamicResources")
        assert "language 'xx' is not known, choose one of en, no, is" in said
        cluster.delete_pods(namespace)
        assert cluster.node.prepared() == []


def test_shares_of_one_device(cluster: Site, namespace: str) -> None:
    share = {"requests": {"bandwidth": "40G"}}
    with cluster.serving(EXAMPLE, "--profile=consumable"):
        names = [f"share-{i}" for i in range(4)]
        cluster.apply(
            template("share", namespace, EXAMPLE, capacity=share), *(pod(n, namespace, "share") for n in names)
        )
        cluster.running(namespace, *names)
        # Four shares on two ports: each has its own entry on the node, though two are of one device.
        results = [claim["status"]["allocation"]["devices"]["results"][0]
                   for claim in cluster.list("resourceclaims", namespace)]  # fmt: skip
        assert len({result["shareID"] for result in results}) == 4
        assert {result["device"] for result in results} == {"port-0", "port-1"}
        for name in names:
            assert "bandwidth=40G" in cluster.shell(namespace, name, "env | grep EXAMPLE_PORT")
        cluster.until("pods", namespace, lambda pods: all(health(found) for found in pods))
        cluster.delete_pods(namespace)
        assert cluster.node.prepared() == []


def test_the_gpu_drivers_examples(cluster: Site, namespace: str) -> None:
    """Partitions that are cut at prepare, a GPU that two pods share, MPS, and no claim at all."""
    for index in range(4):
        cluster.node.make_device(f"/dev/nvidia{index}", NVIDIA, index)
        for profile, starts in ((9, (0, 4)), (19, range(7))):
            for start in starts:
                number = 100 * index + 10 * profile + start
                cluster.node.make_device(f"/dev/nvidia-caps/nvidia-cap{number}", NVIDIA + 1, number)
    for minor, name in enumerate(("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"), 253):
        cluster.node.make_device(f"/dev/{name}", NVIDIA, minor)
    whole = pod("extended", namespace, "")
    whole["spec"]["containers"][0]["resources"] = {"limits": {f"{GPU}/gpu": 1}}
    del whole["spec"]["resourceClaims"]
    with cluster.serving(GPU, "--fake=a100", "--fake-count=4", "--mig=dynamic"):
        cluster.apply(
            *adapted("examples/gpu/10-dynamic-mig.yaml", namespace),
            *adapted("examples/gpu/06-shared-by-pods.yaml", namespace),
            *adapted("examples/gpu/08-mps.yaml", namespace),
            whole,
        )
        cluster.running(namespace, "dynamic-mig", "shared-by-pods-1", "shared-by-pods-2", "mps-1", "mps-2", "extended")
        seen = cluster.shell(namespace, "dynamic-mig", "ls /dev/nvidia-caps; env")
        assert seen.count("=MIG-") == seen.count("nvidia-cap") == 3
        one, two = (cluster.shell(namespace, f"shared-by-pods-{i}", "env | grep =GPU-") for i in (1, 2))
        assert one == two
        cluster.shell(namespace, "mps-1", "echo 1 > /tmp/nvidia-mps/x")
        assert cluster.shell(namespace, "mps-2", "cat /tmp/nvidia-mps/x").strip() == "1"
        assert "=GPU-" in cluster.shell(namespace, "extended", "env")
        assert "nvidia" in cluster.shell(namespace, "extended", "ls /dev")
        state = json.loads((cluster.node.kubelet_root / "plugins" / GPU / "fake" / "state.json").read_text())
        assert len(state["instances"]) == 3
        # A kubelet of 1.37 tells the health of devices to containers that name a claim, and to no others.
        cluster.until(
            "pods", namespace, lambda pods: {name_of(each) for each in pods if not health(each)} == {"extended"}
        )
        cluster.delete_pods(namespace)
        assert cluster.node.prepared() == []
        state = json.loads((cluster.node.kubelet_root / "plugins" / GPU / "fake" / "state.json").read_text())
        assert (state["instances"], state["exclusive"], state["mps"]) == ([], [], {})


def test_the_conformance_kit_beside_the_kubelet(cluster: Site) -> None:
    with cluster.serving(EXAMPLE):
        socket = cluster.node.kubelet_root / "plugins_registry" / f"{EXAMPLE}-reg.sock"
        where = (f"--kubelet-root={cluster.node.kubelet_root}", f"--cdi-dir={cluster.node.cdi}")
        target = (f"--api={cluster.kube.kubeconfig()}", f"--node-name={kubelet.NODE}")
        with Part("driver", "check", f"--socket={socket}", *target, *where) as kit:
            assert kit.process.wait(90) == 0, kit.output
            wait_for = f"{EXAMPLE}: "
            assert wait_for in kit.output
            assert " 0 failed" in kit.output


def test_processors_by_a_hook_of_the_runtime(cluster: Site, namespace: str) -> None:
    """The runtime runs the driver's hook when it has made the container's control group."""
    with cluster.serving(CPU, "--mode=individual", "--no-node-allocatable"):
        cluster.apply(template("one", namespace, CPU), pod("pinned", namespace, "one"))
        cluster.running(namespace, "pinned")
        (claim,) = cluster.list("resourceclaims", namespace)
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        allowed = cluster.shell(namespace, "pinned", "grep Cpus_allowed_list /proc/1/status").split()[-1]
        assert allowed == result["device"].removeprefix("cpu-")
        cluster.delete_pods(namespace)
        assert cluster.node.prepared() == []


def daemonset(cluster: Site, port: int) -> list[Object]:
    """The chart's objects for the example driver, as this node can run them.

    The image is that of all pods, with this Python and its packages mounted; there is no network of pods, and no
    address of a Service for the API server. What the driver may and what it sees of the node is the chart's.
    """
    server = urlsplit(
        yaml.safe_load(Path(cluster.kubectl.env["KUBECONFIG"]).read_text())["clusters"][0]["cluster"]["server"]
    )
    folders = (f"kubeletRoot={cluster.node.kubelet_root}", f"cdiFolder={cluster.node.cdi}")
    off = ("scheduler.enabled=false", "controllers.enabled=false")
    example = ("drivers.example.enabled=true", f"drivers.example.metricsPort={port}")
    objects = chart.objects(chart.template(*off, *folders, *example))
    (workload,) = (obj for obj in objects if obj["kind"] == "DaemonSet")
    spec = workload["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    spec |= {"hostNetwork": True, "terminationGracePeriodSeconds": 5}
    container |= {"image": kubelet.IMAGE, "imagePullPolicy": "Never", "command": [sys.executable, "-m", "drakkar.cli"]}
    container["env"] += [
        {"name": name, "value": str(value)}
        for name, value in (
            ("KUBERNETES_SERVICE_HOST", server.hostname),
            ("KUBERNETES_SERVICE_PORT", server.port),
            ("PYTHONPATH", ROOT / "src"),
            ("PYTHONDONTWRITEBYTECODE", 1),
        )
    ]
    for number, path in enumerate(
        dict.fromkeys((sys.prefix, sys.base_prefix, str(ROOT / "src"), "/lib", "/lib64", "/usr/lib"))
    ):
        container["volumeMounts"].append({"name": f"python-{number}", "mountPath": path, "readOnly": True})
        spec["volumes"].append({"name": f"python-{number}", "hostPath": {"path": path, "type": "Directory"}})
    return objects


def test_a_driver_as_a_daemonset(cluster: Site, namespace: str) -> None:
    """As the chart deploys it, replaced by another of its pods while a pod of a user has a device."""

    def rolled() -> None:
        where = ("rollout", "status", "daemonset/drakkar-driver-example", "-n", chart.NAMESPACE, "--timeout=90s")
        assert "successfully rolled out" in cluster.kubectl.run(*where, timeout=100)

    def sockets() -> set[Path]:
        return set((cluster.node.kubelet_root / "plugins_registry").iterdir())

    known = sockets()
    first, second = free_ports(2)
    cluster.apply(*daemonset(cluster, first))
    try:
        rolled()
        cluster.published(EXAMPLE)
        cluster.apply(template("one", namespace, EXAMPLE), pod("old", namespace, "one"))
        cluster.running(namespace, "old")
        before = [each["metadata"]["uid"] for each in of_driver(cluster.list("resourceslices", ""), EXAMPLE)]
        cluster.apply(*daemonset(cluster, second))
        cluster.apply(*(pod(f"while-{i}", namespace, "one") for i in range(3)))
        rolled()
        cluster.apply(pod("new", namespace, "one"))
        cluster.running(namespace, "old", "new", *(f"while-{i}" for i in range(3)))
        assert "EXAMPLE_GPU_" in cluster.shell(namespace, "new", "env")
        assert cluster.events(namespace, "FailedPrepareDynamicResources") == []
        assert [each["metadata"]["uid"] for each in of_driver(cluster.list("resourceslices", ""), EXAMPLE)] == before
        cluster.until("pods", namespace, lambda pods: all(map(health, pods)))
        cluster.delete_pods(namespace)
        assert cluster.node.prepared() == []
    finally:
        cluster.kubectl.run(
            "delete", "daemonset/drakkar-driver-example", "-n", chart.NAMESPACE, "--timeout=60s", timeout=70
        )
    cluster.until("pods", chart.NAMESPACE, lambda pods: not pods)
    assert sockets() <= known
