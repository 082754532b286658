"""Upstream's kube-scheduler and kube-controller-manager at our API server, which runs none of ours.

Both are as upstream built them, at defaults, with the user names upstream gives them; ours are the server, the hollow
nodes and the device driver. ``./do upstream`` builds the two and runs this.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.kubectl import Kubectl
from tests.support.plane import FAST, Up
from tests.support.upstream import Component, token_kubeconfig

pytestmark = [pytest.mark.upstream, pytest.mark.timeout(600)]

USERS = {
    "kube-scheduler": "system:kube-scheduler",
    "kube-controller-manager": "system:kube-controller-manager",
}

NODES = 4

#: Hollow nodes with four chips each.
FLEET = {
    "apiVersion": "drakkar.dev/v1alpha1",
    "kind": "Fleet",
    "metadata": {"name": "four"},
    "spec": {
        "nodeGroups": [
            {
                "name": "host-{index}",
                "count": NODES,
                "capacity": {"cpu": "8", "memory": "16Gi", "pods": "110"},
                "slices": [
                    {
                        "apiVersion": "resource.k8s.io/v1",
                        "kind": "ResourceSlice",
                        "metadata": {"name": "{node}-chips"},
                        "spec": {
                            "driver": "chips.example.com",
                            "nodeName": "{node}",
                            "pool": {"name": "{node}", "generation": 1, "resourceSliceCount": 1},
                            "devices": [
                                {"name": f"chip-{index}", "attributes": {"index": {"int": index}}} for index in range(4)
                            ],
                        },
                    }
                ],
            }
        ]
    },
}

#: Every chip of the fleet.
CHIP = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "chip"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "chips.example.com"'}}]},
}

#: What a peer logs when the server misses something it needs: a permission, a kind, an encoding.
COMPLAINTS = re.compile(
    r"is forbidden|is invalid|could not find the requested resource|UnsupportedMediaType|unable to decode"
    r"|Failed to watch"
)


class Cluster:
    """kubectl at our server, and upstream's components beside it."""

    def __init__(self, kubectl: Kubectl, components: list[Component]):
        self.kubectl = kubectl
        self.components = components

    def apply(self, *objects: dict[str, Any]) -> None:
        """Apply manifests."""
        self.kubectl.run("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def list(self, kind: str, namespace: str, *arguments: str) -> list[dict[str, Any]]:
        """The objects of a kind in a namespace."""
        return json.loads(self.kubectl.run("get", kind, "-n", namespace, "-o", "json", *arguments))["items"]

    def until(
        self, kind: str, namespace: str, holds: Callable[[list[dict[str, Any]]], object], timeout: float = 150
    ) -> list[dict[str, Any]]:
        """The objects once this is true of them; AssertionError with them, and with a dead component's log."""
        deadline = time.monotonic() + timeout
        while True:
            found = self.list(kind, namespace)
            if holds(found):
                return found
            for component in self.components:
                component.check()
            assert time.monotonic() < deadline, f"still not so after {timeout} s: {json.dumps(found)[:6000]}"
            time.sleep(0.2)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("upstream")
    tokens = folder / "tokens.csv"
    tokens.write_text("".join(f"token-of-{name},{user},{name}\n" for name, user in USERS.items()))
    fleet = folder / "fleet.yaml"
    fleet.write_text(json.dumps(FLEET))
    with ExitStack() as stack:
        flags = ["--fleet", str(fleet), "--no-scheduler", "--no-controllers", "--token-auth-file", str(tokens)]
        up = stack.enter_context(Up(folder / "data", *flags, *FAST))
        common = ["--secure-port=0", "--v=2"]
        special = {
            "kube-scheduler": [],
            "kube-controller-manager": [
                "--use-service-account-credentials=true",
                f"--root-ca-file={folder / 'data' / 'pki' / 'ca.crt'}",
            ],
        }
        components: list[Component] = []
        for name in USERS:
            path = token_kubeconfig(up.kubeconfig, folder / f"{name}.kubeconfig", f"token-of-{name}")
            component = Component(name, folder, f"--kubeconfig={path}", *common, *special[name])
            components.append(stack.enter_context(component))
        kubectl = Kubectl(up.kubeconfig, tmp_path_factory.mktemp("home"))
        found = Cluster(kubectl, components)
        found.until("nodes", "", lambda nodes: len(nodes) == NODES and all(map(_ready, nodes)))
        found.apply(CHIP)
        found.until(
            "leases", "kube-system", lambda leases: USERS.keys() <= {each["metadata"]["name"] for each in leases}
        )
        yield found


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, with what upstream puts there; gone, with all in it, at the end."""
    name = request.node.name.removeprefix("test_").replace("_", "-")
    cluster.kubectl.run("create", "namespace", name)
    cluster.until("serviceaccounts", name, lambda found: [each["metadata"]["name"] for each in found] == ["default"])
    yield name
    cluster.kubectl.run("delete", "namespace", name, "--timeout=150s")


def _ready(node: dict[str, Any]) -> bool:
    return any((each["type"], each["status"]) == ("Ready", "True") for each in node["status"].get("conditions", []))


def _template(name: str, count: int = 1) -> dict[str, Any]:
    request = {"name": "chips", "exactly": {"deviceClassName": "chip", "count": count}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def _pod(name: str, namespace: str, claim: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "c", "image": "one"}
    body: dict[str, Any] = {"containers": [container], "terminationGracePeriodSeconds": 1, **spec}
    if claim:
        container["resources"] = {"claims": [{"name": "chips"}]}
        body["resourceClaims"] = [{"name": "chips", **claim}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": body}


def _running(count: int) -> Callable[[list[dict[str, Any]]], bool]:
    return lambda pods: [pod["status"].get("phase") for pod in pods] == ["Running"] * count


def _nothing(found: list[dict[str, Any]]) -> bool:
    return not found


def _devices(claim: dict[str, Any]) -> list[tuple[str, str, str]]:
    results = claim["status"]["allocation"]["devices"]["results"]
    return [(each["driver"], each["pool"], each["device"]) for each in results]


def test_every_namespace_gets_an_account_and_the_root_certificate(cluster: Cluster) -> None:
    cluster.kubectl.run("create", "namespace", "furnished")
    cluster.until("serviceaccounts", "furnished", lambda found: found)
    found = cluster.until("configmaps", "furnished", lambda found: found)
    assert [each["metadata"]["name"] for each in found] == ["kube-root-ca.crt"]
    assert "BEGIN CERTIFICATE" in found[0]["data"]["ca.crt"]
    # Deleted, they come back.
    cluster.kubectl.run("delete", "-n", "furnished", "serviceaccount/default", "configmap/kube-root-ca.crt")
    cluster.until("serviceaccounts", "furnished", lambda found: found)
    cluster.until("configmaps", "furnished", lambda found: found)
    cluster.kubectl.run("delete", "namespace", "furnished", "--timeout=150s")


def test_claims_from_templates(cluster: Cluster, namespace: str) -> None:
    names = [f"worker-{index}" for index in range(6)]
    claim = {"resourceClaimTemplateName": "two"}
    cluster.apply(
        {**_template("two", 2), "metadata": {"name": "two", "namespace": namespace}},
        *(_pod(name, namespace, claim) for name in names),
    )
    pods = cluster.until("pods", namespace, _running(len(names)))
    claims = {each["metadata"]["name"]: each for each in cluster.list("resourceclaims", namespace)}
    assert len(claims) == len(names)
    for pod in pods:
        (status,) = pod["status"]["resourceClaimStatuses"]
        made = claims[status["resourceClaimName"]]
        assert made["metadata"]["annotations"]["resource.kubernetes.io/pod-claim-name"] == "chips"
        assert [owner["uid"] for owner in made["metadata"]["ownerReferences"]] == [pod["metadata"]["uid"]]
        assert [user["uid"] for user in made["status"]["reservedFor"]] == [pod["metadata"]["uid"]]
        assert pod["spec"]["nodeName"]
    devices = [device for each in claims.values() for device in _devices(each)]
    assert len(devices) == len(set(devices)) == 2 * len(names)

    cluster.kubectl.run("delete", "pods", "--all", "-n", namespace, "--timeout=150s")
    cluster.until("resourceclaims", namespace, _nothing)


def test_a_shared_claim_is_free_again_after_its_last_pod(cluster: Cluster, namespace: str) -> None:
    spec = _template("", 1)["spec"]["spec"]
    cluster.apply(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "shared", "namespace": namespace},
            "spec": spec,
        },
        *(_pod(name, namespace, {"resourceClaimName": "shared"}) for name in ("one", "two")),
    )
    pods = cluster.until("pods", namespace, _running(2))
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 1
    (claim,) = cluster.list("resourceclaims", namespace)
    assert {user["name"] for user in claim["status"]["reservedFor"]} == {"one", "two"}
    cluster.kubectl.run("delete", "pod", "one", "-n", namespace, "--timeout=150s")
    (claim,) = cluster.until(
        "resourceclaims", namespace, lambda found: [len(each["status"]["reservedFor"]) for each in found] == [1]
    )
    assert _devices(claim)
    cluster.kubectl.run("delete", "pod", "two", "-n", namespace, "--timeout=150s")
    cluster.until("resourceclaims", namespace, lambda found: "allocation" not in found[0].get("status", {}))


def test_a_pod_waits_for_devices_that_are_held(cluster: Cluster, namespace: str) -> None:
    claim = {"resourceClaimTemplateName": "host"}
    here = {"nodeSelector": {"kubernetes.io/hostname": "host-3"}}
    cluster.apply(
        {**_template("host", 4), "metadata": {"name": "host", "namespace": namespace}},
        _pod("first", namespace, claim, **here),
    )
    cluster.until("pods", namespace, _running(1))
    cluster.apply(_pod("second", namespace, claim, **here))

    def told(pods: list[dict[str, Any]]) -> bool:
        return any(
            (each["type"], each["status"], each.get("reason")) == ("PodScheduled", "False", "Unschedulable")
            for pod in pods
            if pod["metadata"]["name"] == "second"
            for each in pod["status"].get("conditions", [])
        )

    cluster.until("pods", namespace, told)
    cluster.kubectl.run("delete", "pod", "first", "-n", namespace, "--timeout=150s")
    (pod,) = cluster.until("pods", namespace, _running(1))
    assert (pod["metadata"]["name"], pod["spec"]["nodeName"]) == ("second", "host-3")


def test_a_device_taint_evicts(cluster: Cluster, namespace: str) -> None:
    cluster.apply(
        {**_template("one"), "metadata": {"name": "one", "namespace": namespace}},
        _pod("victim", namespace, {"resourceClaimTemplateName": "one"}),
    )
    cluster.until("pods", namespace, _running(1))
    ((_, pool, device),) = _devices(cluster.list("resourceclaims", namespace)[0])
    cluster.apply(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceTaintRule",
            "metadata": {"name": "broken"},
            "spec": {
                "deviceSelector": {"driver": "chips.example.com", "pool": pool, "device": device},
                "taint": {"key": "example.com/broken", "effect": "NoExecute"},
            },
        }
    )
    try:
        cluster.until("pods", namespace, _nothing)
        cluster.until("resourceclaims", namespace, _nothing)
    finally:
        cluster.kubectl.run("delete", "devicetaintrule", "broken")


def test_deployment(cluster: Cluster, namespace: str) -> None:
    def rolled() -> None:
        told = cluster.kubectl.run("rollout", "status", "deployment/web", "-n", namespace, "--timeout=150s")
        assert "successfully rolled out" in told

    def in_namespace(*arguments: str) -> str:
        return cluster.kubectl.run(*arguments, "-n", namespace)

    in_namespace("create", "deployment", "web", "--image=one", "--replicas=3")
    rolled()
    in_namespace("scale", "deployment/web", "--replicas=5")
    rolled()
    assert "5/5" in in_namespace("get", "deployment", "web")
    in_namespace("set", "image", "deployment/web", "one=two")
    rolled()
    pods = cluster.until("pods", namespace, _running(5))
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"two"}
    in_namespace("rollout", "undo", "deployment/web")
    rolled()
    cluster.until("pods", namespace, lambda pods: {pod["spec"]["containers"][0]["image"] for pod in pods} == {"one"})
    in_namespace("delete", "deployment", "web", "--cascade=foreground", "--timeout=150s")
    assert cluster.list("replicasets", namespace) == []
    cluster.until("pods", namespace, _nothing)


def test_other_workloads(cluster: Cluster, namespace: str) -> None:
    labels = {"app": "x"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "one"}]}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    for kind, more in (("DaemonSet", {}), ("StatefulSet", {"replicas": 2, "serviceName": "x"})):
        body = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "set", "namespace": namespace}}
        cluster.apply({**body, "spec": {**spec, **more}})
        where = (f"{kind.lower()}/set", "-n", namespace)
        told = cluster.kubectl.run("rollout", "status", *where, "--timeout=150s")
        assert "roll" in told
        cluster.kubectl.run("delete", *where, "--timeout=150s")
        cluster.until("pods", namespace, _nothing)


def test_a_job_gives_its_devices_back(cluster: Cluster, namespace: str) -> None:
    pod = _pod("", namespace, {"resourceClaimTemplateName": "four"}, restartPolicy="Never")["spec"]
    cluster.apply(
        {**_template("four", 4), "metadata": {"name": "four", "namespace": namespace}},
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "work", "namespace": namespace},
            "spec": {
                # More than the four nodes hold at a time: the last ones need what the first ones gave back.
                "completions": 6,
                "parallelism": 6,
                "completionMode": "Indexed",
                "template": {"metadata": {"annotations": {"drakkar.dev/run-seconds": "1"}}, "spec": pod},
            },
        },
    )
    cluster.kubectl.run("wait", "--for=condition=Complete", "job/work", "-n", namespace, "--timeout=150s")
    (job,) = cluster.list("jobs", namespace)
    assert (job["status"]["succeeded"], job["status"]["completedIndexes"]) == (6, "0-5")
    cluster.until("resourceclaims", namespace, _nothing)


def test_garbage_collection(cluster: Cluster, namespace: str) -> None:
    def config(name: str, *owners: dict[str, Any]) -> dict[str, Any]:
        references = [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
                "blockOwnerDeletion": True,
            }
            for owner in owners
        ]
        metadata = {"name": name, "namespace": namespace, "ownerReferences": references}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}

    def named(name: str) -> dict[str, Any]:
        return json.loads(cluster.kubectl.run("get", "configmap", name, "-n", namespace, "-o", "json"))

    for way in ("background", "foreground", "orphan"):
        cluster.apply(config(f"owner-{way}"))
        cluster.apply(config(f"child-{way}", named(f"owner-{way}")))
        cluster.kubectl.run(
            "delete", "configmap", f"owner-{way}", "-n", namespace, f"--cascade={way}", "--timeout=150s"
        )
    left = cluster.until(
        "configmaps",
        namespace,
        lambda found: {each["metadata"]["name"] for each in found} == {"kube-root-ca.crt", "child-orphan"},
    )
    (orphan,) = (each for each in left if each["metadata"]["name"] == "child-orphan")
    assert "ownerReferences" not in orphan["metadata"]


def test_a_namespace_goes_with_all_in_it(cluster: Cluster) -> None:
    name = "going"
    cluster.kubectl.run("create", "namespace", name)
    cluster.until("serviceaccounts", name, lambda found: found)
    cluster.apply(
        {**_template("one"), "metadata": {"name": "one", "namespace": name}},
        _pod("pod", name, {"resourceClaimTemplateName": "one"}),
    )
    cluster.kubectl.run("create", "deployment", "web", "--image=one", "--replicas=2", "-n", name)
    cluster.kubectl.run("create", "secret", "generic", "word", "--from-literal=a=b", "-n", name)
    cluster.until("pods", name, _running(3))
    cluster.kubectl.run("delete", "namespace", name, "--timeout=150s")
    kinds = "pods,replicasets,deployments,resourceclaims,resourceclaimtemplates,secrets,configmaps,serviceaccounts"
    assert cluster.list(kinds, name) == []


def test_quota(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl.run("create", "quota", "few", "--hard=count/configmaps=2", "-n", namespace)
    cluster.until(
        "resourcequotas", namespace, lambda found: found[0].get("status", {}).get("used") == {"count/configmaps": "1"}
    )
    cluster.kubectl.run("create", "configmap", "second", "-n", namespace)
    told = cluster.kubectl.run("create", "configmap", "third", "-n", namespace, ok=False)
    assert "exceeded quota: few" in told


def test_no_peer_complains_about_the_server(cluster: Cluster) -> None:
    """Runs last: nothing the tests above made the peers do was refused, unknown or unreadable."""
    for component in cluster.components:
        component.check()
        complaints = [line for line in component.log.splitlines() if COMPLAINTS.search(line)]
        # Whoever comes too late to a namespace that is going is refused by every server.
        assert [line for line in complaints if "because it is being terminated" not in line] == []
