from __future__ import annotations

from typing import Any

import pytest

from drakkar.scheduler.nodes import Node, free_share, preference, unfit
from drakkar.scheduler.pods import ports_clash
from drakkar.scheduler.refusal import Refusal
from tests.unit.scheduler.build import node, pod, requesting, view

NO_SCHEDULE = {"key": "broken", "effect": "NoSchedule"}


def said(refused: Refusal | None) -> str | None:
    return refused.text if refused is not None else None


def affinity(operator: str, *values: str, key: str = "kubernetes.io/hostname") -> dict[str, Any]:
    term = {"matchExpressions": [{"key": key, "operator": operator, "values": [*values]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


@pytest.mark.parametrize(
    ("obj", "where", "text"),
    [
        (pod("p"), node("n"), None),
        (pod("p"), node("n", taints=(NO_SCHEDULE,)), "node(s) had untolerated taint {broken: }"),
        (pod("p", tolerations=[{"key": "broken", "operator": "Exists"}]), node("n", taints=(NO_SCHEDULE,)), None),
        (pod("p"), node("n", taints=({"key": "x", "effect": "PreferNoSchedule"},)), None),
        (pod("p", nodeSelector={"zone": "a"}), node("n"), "node(s) didn't match Pod's node affinity/selector"),
        (pod("p", affinity=affinity("In", "n")), node("n"), None),
        (pod("p", affinity=affinity("NotIn", "n")), node("n"), "node(s) didn't match Pod's node affinity/selector"),
        (requesting("p", cpu="1500m"), node("n", cpu="1"), "Insufficient cpu"),
        (requesting("p", cpu="1500m"), node("n", cpu="1500m"), None),
        (requesting("p", memory="1Gi"), node("n", memory="1Gi", cpu="1"), None),
        (requesting("p", memory="1Gi"), node("n"), None),
        (requesting("p", **{"example.com/fpga": "1"}), node("n"), "Insufficient example.com/fpga"),
        (pod("p"), node("n", pods="0"), "Too many pods"),
    ],
)
def test_rules(obj: dict[str, Any], where: dict[str, Any], text: str | None) -> None:
    assert said(unfit(view(obj), Node.of(where))) == text


def test_a_cordoned_node_takes_no_pods() -> None:
    cordoned = node("n")
    cordoned["spec"]["unschedulable"] = True
    assert said(unfit(view(pod("p")), Node.of(cordoned))) == "node(s) were unschedulable"
    tolerant = pod("p", tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}])
    assert unfit(view(tolerant), Node.of(cordoned)) is None


_RULE = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}


@pytest.mark.parametrize(
    ("spec", "feature"),
    [
        ({"containers": [{"name": "c", "restartPolicyRules": [_RULE]}]}, "RestartAllContainersOnContainerExits"),
        ({"initContainers": [{"name": "c", "restartPolicyRules": [_RULE]}]}, "RestartAllContainersOnContainerExits"),
        ({"hostNetwork": True, "hostUsers": False}, "UserNamespacesHostNetworkSupport"),
        (
            {"containers": [{"name": "c", "volumeMounts": [{"name": "v", "bindMountOptions": ["noexec"]}]}]},
            "VolumeBindMountOptions",
        ),
    ],
)
def test_what_a_pod_relies_on_must_be_declared(spec: dict[str, Any], feature: str) -> None:
    relying = view(pod("p", **spec))
    where = node("n")
    assert said(unfit(relying, Node.of(where))) == "node(s) didn't match Pod's required features"
    where["status"]["declaredFeatures"] = ["Another", feature]
    assert unfit(relying, Node.of(where)) is None
    # Neither half of a need is one.
    for part in ({"hostNetwork": True}, {"hostUsers": False}, {"containers": [{"name": "c"}]}):
        assert unfit(view(pod("q", **part)), Node.of(node("n"))) is None


def test_pods_take_room_and_give_it_back() -> None:
    where = Node.of(node("n", cpu="2", pods="5"))
    where.place(view(requesting("a", cpu="1500m")))
    assert said(unfit(view(requesting("b", cpu="1")), where)) == "Insufficient cpu"
    where.displace("pod-a")
    assert unfit(view(requesting("b", cpu="1")), where) is None


def test_host_ports() -> None:
    def using(name: str, **port: Any) -> dict[str, Any]:
        made = pod(name)
        made["spec"]["containers"][0]["ports"] = [port]
        return made

    where = Node.of(node("n"))
    where.place(view(using("a", hostPort=80, hostIP="10.0.0.1")))
    assert (
        said(unfit(view(using("b", hostPort=80)), where))
        == "node(s) didn't have free ports for the requested pod ports"
    )
    assert unfit(view(using("b", hostPort=80, hostIP="10.0.0.2")), where) is None
    assert unfit(view(using("b", hostPort=80, protocol="UDP")), where) is None
    assert not ports_clash(frozenset(), frozenset({("", "TCP", 80)}))


def test_wishes_order_nodes() -> None:
    wish = {"weight": 7, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}
    wishing = view(pod("p", affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}))
    plain, fast = node("plain"), node("fast")
    fast["metadata"]["labels"]["disk"] = "ssd"
    assert preference(wishing, Node.of(fast)) == 7
    assert preference(wishing, Node.of(plain)) == 0
    reluctant = node("n", taints=({"key": "x", "effect": "PreferNoSchedule"},))
    assert preference(wishing, Node.of(reluctant)) == -100
    full, empty = Node.of(node("full", cpu="4")), Node.of(node("empty", cpu="4"))
    full.place(view(requesting("a", cpu="3")))
    assert free_share(wishing, empty) > free_share(wishing, full)
