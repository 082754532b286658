"""Volumes as a rule of nodes: bound ones say where, everything else makes the pod wait and says why."""

from __future__ import annotations

from typing import Any

import pytest

from drakkar.scheduler import Pending, Placement, decide
from drakkar.scheduler.refusal import Cause
from tests.unit.scheduler.build import cluster, node, pod, view

ZONE = "topology.kubernetes.io/zone"


def using(name: str, claim: str = "data", where: str = "") -> dict[str, Any]:
    return pod(name, node=where, volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": claim}}])


def volume_claim(volume: str = "pv", phase: str = "Bound", **metadata: Any) -> dict[str, Any]:
    return {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "default", **metadata},
        "spec": {"volumeName": volume, "accessModes": ["ReadWriteOnce"]},
        "status": {"phase": phase},
    }


def volume(*nodes: str, **labels: str) -> dict[str, Any]:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [*nodes]}]}]
    spec = {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}} if nodes else {}
    return {"kind": "PersistentVolume", "metadata": {"name": "pv", "labels": labels}, "spec": spec}


def zoned(name: str, zone: str) -> dict[str, Any]:
    made = node(name)
    made["metadata"]["labels"][ZONE] = zone
    return made


def test_a_bound_volume_says_where() -> None:
    decision = decide(cluster(node("a"), node("b"), volume_claim(), volume("b")), view(using("p")))
    assert isinstance(decision, Placement)
    assert decision.node == "b"
    refused = decide(cluster(node("a"), volume_claim(), volume("b")), view(using("p")))
    assert isinstance(refused, Pending)
    assert refused.message == "0/1 nodes are available: 1 node(s) had volume node affinity conflict."
    assert refused.causes == {Cause.NODE, Cause.VOLUME}


def test_zones_of_a_volume() -> None:
    labels = {"failure-domain.beta.kubernetes.io/zone": "1__2"}
    for zone, fits in (("2", True), ("3", False)):
        decision = decide(cluster(zoned("a", zone), volume_claim(), volume(**labels)), view(using("p")))
        assert isinstance(decision, Placement) is fits
    # A cluster without zones is one place.
    assert isinstance(decide(cluster(node("a"), volume_claim(), volume(**labels)), view(using("p"))), Placement)


@pytest.mark.parametrize(
    ("objects", "obj", "words"),
    [
        ((), using("p"), 'persistentvolumeclaim "data" not found'),
        ((volume_claim("", "Pending"),), using("p"), "is not bound, and Drakkar's scheduler binds no volumes"),
        ((volume_claim(phase="Lost"),), using("p"), "has lost its volume"),
        ((volume_claim(deletionTimestamp="2026-01-01T00:00:00Z"),), using("p"), "is being deleted"),
        ((volume_claim(),), using("p"), 'persistentvolume "pv" of persistentvolumeclaim "data" not found'),
        ((), pod("p", volumes=[{"name": "v", "iscsi": {}}]), "is of kind iscsi"),
        ((), pod("p", volumes=[{"name": "v", "ephemeral": {}}]), 'persistentvolumeclaim "p-v" not found'),
    ],
)
def test_what_has_to_come_first(objects: tuple[dict[str, Any], ...], obj: dict[str, Any], words: str) -> None:
    decision = decide(cluster(node("a"), *objects), view(obj))
    assert isinstance(decision, Pending)
    assert words in decision.message
    assert decision.causes == {Cause.VOLUME}


def test_an_ephemeral_volume_has_to_be_the_pods_own() -> None:
    made = volume_claim(ownerReferences=[{"kind": "Pod", "uid": "another", "controller": True}])
    made["metadata"]["name"] = "p-v"
    obj = pod("p", volumes=[{"name": "v", "ephemeral": {}}])
    refused = decide(cluster(node("a"), made, volume()), view(obj))
    assert isinstance(refused, Pending)
    assert "was not created for the pod" in refused.message
    made["metadata"]["ownerReferences"][0]["uid"] = "pod-p"
    assert isinstance(decide(cluster(node("a"), made, volume()), view(obj)), Placement)


def test_a_volume_for_one_pod_only() -> None:
    alone = volume_claim()
    alone["spec"]["accessModes"] = ["ReadWriteOncePod"]
    state = cluster(node("a"), node("b"), alone, volume(), using("other", where="a"))
    refused = decide(state, view(using("p")))
    assert isinstance(refused, Pending)
    assert "ReadWriteOncePod and in use by pod other" in refused.message
    state.remove_pod("pod-other")
    assert isinstance(decide(state, view(using("p"))), Placement)


def test_volumes_that_need_nothing() -> None:
    volumes = [{"name": "v", "emptyDir": {}}, {"name": "w", "configMap": {"name": "x"}}, {"name": "x", "csi": {}}]
    assert isinstance(decide(cluster(node("a")), view(pod("p", volumes=volumes))), Placement)


def test_attach_limits_of_csi_drivers() -> None:
    def volume_of(number: int) -> list[dict[str, Any]]:
        claim, there = volume_claim(f"pv-{number}"), volume()
        claim["metadata"]["name"] = f"data-{number}"
        there["metadata"]["name"] = f"pv-{number}"
        there["spec"]["csi"] = {"driver": "csi.example.com", "volumeHandle": f"handle-{number}"}
        return [claim, there]

    limit = {"name": "csi.example.com", "allocatable": {"count": 2}}
    csi = {"kind": "CSINode", "metadata": {"name": "a"}, "spec": {"drivers": [limit, {"name": "other"}]}}
    volumes = [obj for number in range(3) for obj in volume_of(number)]
    there = [using(f"x-{number}", f"data-{number}", "a") for number in range(2)]
    state = cluster(node("a"), csi, *volumes, *there)
    refused = decide(state, view(using("p", "data-2")))
    assert isinstance(refused, Pending)
    assert refused.message == "0/1 nodes are available: 1 node(s) exceed max volume count."
    assert refused.causes == {Cause.NODE, Cause.VOLUME, Cause.ROOM}
    # A volume that is attached already needs no more.
    assert isinstance(decide(state, view(using("p", "data-1"))), Placement)
    state.remove_pod("pod-x-0")
    assert isinstance(decide(state, view(using("p", "data-2"))), Placement)
