from __future__ import annotations

from typing import Any

import msgspec

from drakkar.api.resource import v1
from drakkar.scheduler import Pending, Placement, decide
from drakkar.scheduler.extended import ExtendedClasses, make_extended
from tests.unit.scheduler.build import cluster, device_class, node, node_slice, pod, requesting, view

GPU = "example.com/gpu"


def named_class(name: str, resource_name: str, created: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    made = device_class(name)
    made["metadata"]["creationTimestamp"] = created
    made["spec"]["extendedResourceName"] = resource_name
    return made


def typed(obj: dict[str, Any]) -> v1.DeviceClass:
    return msgspec.convert(obj, v1.DeviceClass)


def test_which_class_is_behind_a_name() -> None:
    classes = ExtendedClasses()
    for obj in (
        named_class("old", GPU),
        named_class("new-b", GPU, "2026-02-01T00:00:00Z"),
        named_class("new-a", GPU, "2026-02-01T00:00:00Z"),
    ):
        classes.set(typed(obj))
    assert classes.behind(GPU) == "new-a"
    assert classes.behind("deviceclass.resource.kubernetes.io/old") == "old"
    assert classes.behind("example.com/fpga") is None
    classes.remove("new-a")
    classes.remove("new-b")
    assert classes.behind(GPU) == "old"


def test_containers_get_their_own_requests() -> None:
    made = pod("p")
    made["spec"]["containers"] = [
        {"name": "one", "resources": {"requests": {GPU: "2", "cpu": "1"}}},
        {"name": "two", "resources": {"requests": {GPU: "1"}}},
    ]
    extended = make_extended(view(made), {GPU: "gpu"})
    requests = {r.name: r.exactly.count for r in extended.claim.spec.devices.requests or () if r.exactly}
    assert requests == {"container-0-request-1": 2, "container-1-request-0": 1}
    assert extended.mappings == (
        {"containerName": "one", "resourceName": GPU, "requestName": "container-0-request-1"},
        {"containerName": "two", "resourceName": GPU, "requestName": "container-1-request-0"},
    )
    [owner] = extended.claim.metadata.ownerReferences or ()
    assert (owner.uid, owner.controller) == ("pod-p", True)


def test_init_containers_borrow_from_those_that_start_later() -> None:
    made = pod("p")
    made["spec"]["initContainers"] = [
        {"name": "prepare", "resources": {"requests": {GPU: "3"}}},
        {"name": "check", "resources": {"requests": {GPU: "1"}}},
    ]
    made["spec"]["containers"] = [{"name": "main", "resources": {"requests": {GPU: "2"}}}]
    extended = make_extended(view(made), {GPU: "gpu"})
    requests = {r.name: r.exactly.count for r in extended.claim.spec.devices.requests or () if r.exactly}
    assert requests == {"container-0-request-0": 1, "container-2-request-0": 2}
    assert [(m["containerName"], m["requestName"]) for m in extended.mappings] == [
        ("main", "container-2-request-0"),
        ("prepare", "container-2-request-0"),
        ("check", "container-2-request-0"),
        ("prepare", "container-0-request-0"),
    ]


def test_devices_stand_in_where_the_node_offers_none() -> None:
    state = cluster(node("a"), node("b"), named_class("gpu", GPU), node_slice("b", 1))
    decision = decide(state, view(requesting("p", **{GPU: "1"})))
    assert isinstance(decision, Placement)
    assert decision.node == "b"
    assert decision.extended is not None
    too_many = decide(state, view(requesting("p", **{GPU: "2"})))
    assert isinstance(too_many, Pending)
    assert "cannot allocate all claims for example.com/gpu (not-enough-devices: " in too_many.message


def test_a_node_that_offers_the_resource_itself_is_used_as_ever() -> None:
    state = cluster(node("a", **{GPU: "4"}), node("b"), named_class("gpu", GPU))
    decision = decide(state, view(requesting("p", **{GPU: "3"})))
    assert isinstance(decision, Placement)
    assert (decision.node, decision.extended) == ("a", None)
    state.assume(view(requesting("p", **{GPU: "3"})), "a", ())
    refused = decide(state, view(requesting("q", **{GPU: "3"})))
    assert isinstance(refused, Pending)
    assert "1 Insufficient example.com/gpu" in refused.message
    assert "no-slice-of-driver" in refused.message
    state.remove_node("a")
    assert state.offers[GPU] == 0
