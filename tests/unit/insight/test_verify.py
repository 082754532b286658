"""Each rule of the audit has a cluster that breaks it, made from one that is sound."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from drakkar.api.errors import UsageError
from drakkar.insight.verify import verify

Objects = dict[str, dict[str, Any]]

FINALIZER = "resource.kubernetes.io/delete-protection"


def node(name: str) -> dict[str, Any]:
    labels = {"kubernetes.io/hostname": name}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name, "labels": labels}}


def pod(name: str, node_name: str, claim: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"nodeName": node_name, "resourceClaims": [{"name": "c", "resourceClaimName": claim}]},
        "status": {"phase": "Running"},
    }


def claim(name: str, device: str, hosts: list[str], pods: list[str]) -> dict[str, Any]:
    requirement = {"key": "kubernetes.io/hostname", "operator": "In", "values": hosts}
    result = {"driver": "d.example.com", "pool": "p", "device": device, "request": "r"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "finalizers": [FINALIZER],
            "annotations": {"drakkar.dev/pods-per-node": "1"},
        },
        "spec": {},
        "status": {
            "allocation": {
                "devices": {"results": [result]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]},
            },
            "reservedFor": [{"resource": "pods", "name": p, "uid": f"uid-{p}"} for p in pods],
        },
    }


def resource_slice(name: str, generation: int = 1, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": "d.example.com",
            "pool": {"name": "p", "generation": generation, "resourceSliceCount": 2},
            "perDeviceNodeSelection": True,
            **spec,
        },
    }


def device(name: str, host: str, amount: str = "4") -> dict[str, Any]:
    consumes = [{"counterSet": "s", "counters": {host: {"value": amount}}}]
    return {"name": name, "nodeName": host, "consumesCounters": consumes, "capacity": {"mem": {"value": "8"}}}


@pytest.fixture
def sound() -> Objects:
    counters = {"h1": {"value": "4"}, "h2": {"value": "4"}}
    return {
        "h1": node("h1"),
        "h2": node("h2"),
        "counters": resource_slice("counters", sharedCounters=[{"name": "s", "counters": counters}]),
        "devices": resource_slice(
            "devices", devices=[device("d1", "h1"), device("d2", "h2"), device("spare", "h1", "1")]
        ),
        "c1": claim("c1", "d1", ["h1"], ["p1"]),
        "c2": claim("c2", "d2", ["h2"], ["p2"]),
        "p1": pod("p1", "h1", "c1"),
        "p2": pod("p2", "h2", "c2"),
    }


def test_a_sound_cluster_has_no_findings(sound: Objects):
    assert verify(sound.values()) == []


def results(objects: Objects, name: str) -> list[dict[str, Any]]:
    return objects[name]["status"]["allocation"]["devices"]["results"]


def _double(o: Objects) -> None:
    results(o, "c2")[0]["device"] = "d1"


def _overdrawn(o: Objects) -> None:
    results(o, "c1").append({"driver": "d.example.com", "pool": "p", "device": "spare", "request": "r2"})


def _over_capacity(o: Objects) -> None:
    o["devices"]["spec"]["devices"][0]["allowMultipleAllocations"] = True
    results(o, "c1")[0] |= {"shareID": "a", "consumedCapacity": {"mem": "9"}}


def _missing(o: Objects) -> None:
    results(o, "c1")[0]["device"] = "gone"


def _no_finalizer(o: Objects) -> None:
    o["c1"]["metadata"]["finalizers"] = []


def _not_allocated(o: Objects) -> None:
    del o["c1"]["status"]["allocation"]


def _crowd(o: Objects) -> None:
    o["c1"]["status"]["reservedFor"] *= 257


def _pod_gone(o: Objects) -> None:
    del o["p1"]


def _pod_replaced(o: Objects) -> None:
    o["p1"]["metadata"]["uid"] = "another"


def _pod_done(o: Objects) -> None:
    o["p1"]["status"]["phase"] = "Failed"


def _owned_by_other(o: Objects) -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p2", "uid": "uid-p2", "controller": True}
    o["c1"]["metadata"]["ownerReferences"] = [owner]


def _does_not_use(o: Objects) -> None:
    o["p1"]["spec"]["resourceClaims"] = []


def _orphan(o: Objects) -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "old", "uid": "uid-old", "controller": True}
    o["extra"] = claim("extra", "d1", ["h1"], [])
    o["extra"]["status"] = {}
    o["extra"]["metadata"]["ownerReferences"] = [owner]


def _claim_gone(o: Objects) -> None:
    del o["c1"]


def _not_reserved(o: Objects) -> None:
    o["c1"]["status"]["reservedFor"] = []


def _elsewhere(o: Objects) -> None:
    o["p1"]["spec"]["nodeName"] = "h2"


def _two_on_a_node(o: Objects) -> None:
    o["p3"] = pod("p3", "h1", "c1")
    o["c1"]["status"]["reservedFor"].append({"resource": "pods", "name": "p3", "uid": "uid-p3"})


def _stale(o: Objects) -> None:
    o["old"] = resource_slice("old", generation=0, devices=[device("d1", "h1")])


def _incomplete(o: Objects) -> None:
    o["devices"]["spec"]["pool"]["resourceSliceCount"] = 3
    o["counters"]["spec"]["pool"]["resourceSliceCount"] = 3


def _clash(o: Objects) -> None:
    o["twin"] = resource_slice("twin", devices=[device("d1", "h1")])
    for name in ("devices", "counters", "twin"):
        o[name]["spec"]["pool"]["resourceSliceCount"] = 3


def _unknown_counter(o: Objects) -> None:
    o["devices"]["spec"]["devices"].append(device("d9", "h9"))


@pytest.mark.parametrize(
    ("rule", "break_it", "where"),
    [
        ("double-allocation", _double, "ResourceClaim default/c2"),
        ("counters-overdrawn", _overdrawn, "pool d.example.com/p"),
        ("capacity-overdrawn", _over_capacity, "device d.example.com/p/d1"),
        ("device-missing", _missing, "ResourceClaim default/c1"),
        ("allocated-without-finalizer", _no_finalizer, "ResourceClaim default/c1"),
        ("reserved-not-allocated", _not_allocated, "ResourceClaim default/c1"),
        ("bound-without-allocation", _not_allocated, "Pod default/p1"),
        ("too-many-consumers", _crowd, "ResourceClaim default/c1"),
        ("reserved-for-missing-pod", _pod_gone, "ResourceClaim default/c1"),
        ("reserved-for-missing-pod", _pod_replaced, "ResourceClaim default/c1"),
        ("reserved-for-missing-pod", _pod_done, "ResourceClaim default/c1"),
        ("claim-of-another-pod", _owned_by_other, "ResourceClaim default/c1"),
        ("consumer-without-claim", _does_not_use, "ResourceClaim default/c1"),
        ("orphaned-claim", _orphan, "ResourceClaim default/extra"),
        ("pod-without-claim", _claim_gone, "Pod default/p1"),
        ("bound-without-reservation", _not_reserved, "Pod default/p1"),
        ("outside-node-selector", _elsewhere, "Pod default/p1"),
        ("too-many-pods-on-node", _two_on_a_node, "ResourceClaim default/c1"),
        ("stale-generation", _stale, "ResourceSlice old"),
        ("pool-incomplete", _incomplete, "pool d.example.com/p"),
        ("identity-clash", _clash, "device d.example.com/p/d1"),
        ("unknown-counter", _unknown_counter, "device d.example.com/p/d9"),
    ],
)
def test_rule(sound: Objects, rule: str, break_it: Callable[[Objects], None], where: str):
    broken = copy.deepcopy(sound)
    break_it(broken)
    assert where in [f.object for f in verify(broken.values()) if f.rule == rule]


def test_shares_of_one_device_are_no_double_allocation(sound: Objects):
    sound["devices"]["spec"]["devices"][0]["allowMultipleAllocations"] = True
    results(sound, "c1")[0] |= {"shareID": "a", "consumedCapacity": {"mem": "4"}}
    results(sound, "c2")[0] |= {"device": "d1", "shareID": "b", "consumedCapacity": {"mem": "4"}}
    assert {f.rule for f in verify(sound.values())} <= {"outside-node-selector"}


@pytest.fixture
def port(sound: Objects) -> Objects:
    """Both devices are functions of one port of 100G, whose whole bandwidth their claims share."""
    sound["counters"]["spec"]["sharedCounters"].append({"name": "p0", "counters": {"bandwidth": {"value": "100G"}}})
    for number, name in enumerate(("c1", "c2")):
        function = sound["devices"]["spec"]["devices"][number]
        function["allowMultipleAllocations"] = True
        function["attributes"] = {"drawn-from.drakkar.dev/bandwidth": {"string": "p0/bandwidth"}}
        function["capacity"]["bandwidth"] = {"value": "100G"}
        results(sound, name)[0] |= {"shareID": name, "consumedCapacity": {"bandwidth": "50G"}}
    return sound


def test_functions_that_share_a_port_are_sound(port: Objects):
    assert verify(port.values()) == []


def test_functions_that_take_more_than_their_port_has(port: Objects):
    results(port, "c2")[0]["consumedCapacity"]["bandwidth"] = "60G"
    (finding,) = verify(port.values())
    assert (finding.rule, finding.object) == ("counters-overdrawn", "pool d.example.com/p")
    assert "p0/bandwidth" in finding.message
    # Where nothing says how much was taken, it was all.
    del results(port, "c2")[0]["consumedCapacity"]
    assert [f.rule for f in verify(port.values())] == ["counters-overdrawn"]


def test_functions_that_are_gone_count_as_their_allocation_says(port: Objects):
    gone = port["devices"]["spec"]["devices"].pop(0)
    entry = {"driver": "d.example.com", "pool": "p", "device": gone["name"], "shares": {"bandwidth": "p0/bandwidth"}}
    entry["counters"] = {"s": {"h1": "4"}}
    parameters = {"apiVersion": "drakkar.dev/v1alpha1", "kind": "DrawnCounters", "devices": [entry]}
    config = {"source": "FromClass", "opaque": {"driver": "drakkar.dev", "parameters": parameters}}
    port["c1"]["status"]["allocation"]["devices"]["config"] = [config]
    assert [f.rule for f in verify(port.values())] == ["device-missing"]
    results(port, "c2")[0]["consumedCapacity"]["bandwidth"] = "60G"
    assert {f.rule for f in verify(port.values())} == {"device-missing", "counters-overdrawn"}
    del results(port, "c2")[0]["consumedCapacity"]["bandwidth"]
    results(port, "c2")[0] |= {"device": "spare", "consumedCapacity": {}}
    overdrawn = [f.message for f in verify(port.values()) if f.rule == "counters-overdrawn"]
    assert overdrawn == ["counter s/h1 holds 4; devices in use take 5"]


def test_a_function_that_names_no_counter_of_its_pool(port: Objects):
    attributes = port["devices"]["spec"]["devices"][0]["attributes"]
    attributes["drawn-from.drakkar.dev/bandwidth"] = {"string": "p1/bandwidth"}
    assert "unknown-counter" in {f.rule for f in verify(port.values())}


def test_administrative_access_holds_nothing(sound: Objects):
    results(sound, "c2")[0] |= {"device": "d1", "adminAccess": True}
    assert "double-allocation" not in {f.rule for f in verify(sound.values())}


def test_a_device_of_a_pool_that_is_being_rewritten_is_not_missing(sound: Objects):
    sound["devices"]["spec"]["pool"]["generation"] = 2
    assert "device-missing" not in {f.rule for f in verify(sound.values())}


def test_objects_of_old_versions_are_converted(sound: Objects):
    sound["c1"]["apiVersion"] = "resource.k8s.io/v1beta1"
    assert verify(sound.values()) == []


def test_an_unreadable_object_is_named():
    bad = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {"pool": 3}}
    with pytest.raises(UsageError, match="ResourceSlice s cannot be read"):
        verify([bad])
