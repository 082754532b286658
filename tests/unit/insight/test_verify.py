"""Each rule of the audit: a cluster that keeps it, and one that breaks it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from drakkar.api.errors import UsageError
from drakkar.insight.verify import verify

Object = dict[str, Any]
HOSTS = {
    "nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["a"]}]}]
}


def cluster() -> list[Object]:
    """Two nodes, one pool with a counter for two chips, a claim for one of two overlapping devices, its pod."""

    def device(name: str, chips: int) -> Object:
        return {
            "name": name,
            "nodeSelector": HOSTS,
            "consumesCounters": [{"counterSet": "chips", "counters": {"a": {"value": str(chips)}}}],
            "capacity": {"bandwidth": {"value": "10G"}},
        }

    pool = {"name": "p", "generation": 2, "resourceSliceCount": 2}
    return [
        *(
            {"kind": "Node", "apiVersion": "v1", "metadata": {"name": n, "labels": {"kubernetes.io/hostname": n}}}
            for n in "ab"
        ),
        {
            "kind": "ResourceSlice",
            "apiVersion": "resource.k8s.io/v1",
            "metadata": {"name": "counters"},
            "spec": {
                "driver": "d",
                "pool": pool,
                "allNodes": True,
                "sharedCounters": [{"name": "chips", "counters": {"a": {"value": "2"}}}],
            },
        },
        {
            "kind": "ResourceSlice",
            "apiVersion": "resource.k8s.io/v1",
            "metadata": {"name": "devices"},
            "spec": {
                "driver": "d",
                "pool": pool,
                "perDeviceNodeSelection": True,
                "devices": [device("whole", 2), device("half", 1)],
            },
        },
        claim("c", "whole"),
        pod("x", "c", "a"),
    ]


def claim(name: str, device: str, consumers: tuple[str, ...] = ("x",)) -> Object:
    return {
        "kind": "ResourceClaim",
        "apiVersion": "resource.k8s.io/v1",
        "metadata": {
            "name": name,
            "namespace": "default",
            "finalizers": ["resource.kubernetes.io/delete-protection"],
            "annotations": {"drakkar.dev/pods-per-node": "1"},
        },
        "status": {
            "allocation": {
                "devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": device}]},
                "nodeSelector": HOSTS,
            },
            "reservedFor": [{"resource": "pods", "name": uid, "uid": uid} for uid in consumers],
        },
    }


def pod(name: str, claim_name: str, node: str) -> Object:
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"nodeName": node, "resourceClaims": [{"name": "r", "resourceClaimName": claim_name}]},
        "status": {"phase": "Running"},
    }


def rules(objects: list[Object]) -> list[str]:
    return [finding.rule for finding in verify(objects)]


def test_a_sound_cluster_has_no_findings() -> None:
    assert rules(cluster()) == []


def test_double_allocation_and_overdrawn_counter() -> None:
    twice = [*cluster(), claim("other", "whole", ())]
    assert rules(twice) == ["double-allocation"]
    overlap = [*cluster(), claim("other", "half", ())]
    (finding,) = verify(overlap)
    assert finding.rule == "overdrawn-counter"
    assert finding.message == "counter chips/a has 2, allocated devices draw 3"


def test_admin_access_and_shares_hold_nothing_twice() -> None:
    admin = claim("admin", "whole", ())
    admin["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    assert rules([*cluster(), admin]) == []
    shares = cluster()
    shares[4] = claim("c", "whole")
    for number, obj in enumerate((shares[4], claim("other", "whole", ()))):
        result = obj["status"]["allocation"]["devices"]["results"][0]
        result["shareID"] = f"0000000{number}-0000-0000-0000-000000000000"
        result["consumedCapacity"] = {"bandwidth": "6G"}
        if number:
            shares.append(obj)
    assert rules(shares) == ["overdrawn-capacity"]


def test_device_that_nobody_publishes() -> None:
    objects = cluster()
    objects[3]["spec"]["devices"].pop(0)
    assert rules(objects) == ["device-not-published"]


def test_pods_off_their_devices() -> None:
    objects = cluster()
    objects[5]["spec"]["nodeName"] = "b"
    (finding,) = verify(objects)
    assert finding.rule == "pod-off-its-devices"
    assert finding.object == "pod default/x"
    objects[5]["status"]["phase"] = "Failed"
    assert rules(objects) == []


def test_pods_without_reservation_and_per_node() -> None:
    objects = [*cluster(), pod("y", "c", "a")]
    assert rules(objects) == ["pod-without-reservation", "too-many-pods-per-node"]
    objects[4] = claim("c", "whole", ("x", "y"))
    assert rules(objects) == ["too-many-pods-per-node"]


def test_orphan_consumers() -> None:
    objects = cluster()
    objects[4] = claim("c", "whole", ("x", "gone"))
    assert rules(objects) == ["orphan-consumer"]


def test_claim_states() -> None:
    objects = cluster()
    objects[4]["metadata"]["finalizers"] = []
    assert rules(objects) == ["allocation-unprotected"]
    del objects[4]["status"]["allocation"]
    assert rules(objects) == ["reserved-not-allocated"]


def test_pool_states() -> None:
    objects = cluster()
    old = copy.deepcopy(objects[3])
    old["metadata"]["name"] = "old"
    old["spec"]["pool"]["generation"] = 1
    assert rules([*objects, old]) == ["stale-slice"]
    objects[2]["spec"]["pool"]["resourceSliceCount"] = 3
    assert rules(objects) == ["incomplete-pool"]
    clash = cluster()
    clash[3]["spec"]["devices"].append(clash[3]["spec"]["devices"][0])
    assert rules(clash) == ["identity-clash"]


def test_other_versions_and_unreadable_objects() -> None:
    objects = cluster()
    spec = objects[3]["spec"]
    objects[3]["apiVersion"] = "resource.k8s.io/v1beta1"
    spec["devices"] = [{"name": device.pop("name"), "basic": device} for device in spec["devices"]]
    assert rules(objects) == []
    objects[4]["spec"] = {"devices": {"requests": 7}}
    with pytest.raises(UsageError, match="ResourceClaim c"):
        verify(objects)
