"""Pods for partitions go to the node on which they spoil least."""

from __future__ import annotations

from typing import Any

import msgspec
from benchmarks.allocator_bestfit import DRIVER, claim_for, slices_of

from drakkar.scheduler import Cluster, Placement, decide
from tests.unit.scheduler.build import cluster, node, pod, view

CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "mig"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}


def wanting(name: str, profile: str) -> list[dict[str, Any]]:
    """A pod with a claim for one partition."""
    made = msgspec.to_builtins(claim_for(profile, name))
    made |= {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    made["metadata"]["resourceVersion"] = "1"
    return [made, pod(f"p-{name}", name)]


def place(state: Cluster, name: str, host: str = "") -> str:
    obj = pod(f"p-{name}", name, **({"nodeSelector": {"kubernetes.io/hostname": host}} if host else {}))
    decision = decide(state, view(obj))
    assert isinstance(decision, Placement)
    state.assume(view(obj), decision.node, decision.allocations)
    return decision.node


def test_a_partition_goes_beside_others_and_leaves_whole_gpus_whole() -> None:
    gpus = [
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **msgspec.to_builtins(published)}
        for name in ("a", "b", "c")
        for published in slices_of(name)
    ]
    for published in gpus:
        published["metadata"]["resourceVersion"] = "1"
    wishes = [("x", "3g.20gb"), ("y", "7g.40gb"), ("z", "1g.5gb"), ("w", "7g.40gb")]
    objects = [obj for name, profile in wishes for obj in wanting(name, profile)]
    state = cluster(*(node(name) for name in ("a", "b", "c")), CLASS, *gpus, *objects)
    assert place(state, "x", "b") == "b"
    assert [place(state, name) for name in "zyw"] == ["b", "a", "c"]
