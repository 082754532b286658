from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from drakkar.api.kinds import POD, RESOURCECLAIM
from drakkar.api.resource import v1
from drakkar.api.wire import Response
from drakkar.scheduler import Pending, Placement, decide
from drakkar.scheduler.extended import ExtendedClasses, make_extended
from tests.unit.scheduler.build import (
    allocated,
    claim,
    cluster,
    device_class,
    node,
    node_slice,
    pod,
    requesting,
    view,
)
from tests.unit.scheduler.test_scheduler import Running, node_of, server_with, until

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


def special(pod_name: str, *requests: tuple[str, int], allocated_on: str = "") -> dict[str, Any]:
    """The claim that an earlier attempt made for the extended resources of a pod."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod_name, "uid": f"pod-{pod_name}", "controller": True}
    made = claim(
        f"{pod_name}-extended-resources-x", annotations={"resource.kubernetes.io/extended-resource-claim": "true"}
    )
    made["metadata"]["ownerReferences"] = [owner]
    made["spec"]["devices"]["requests"] = [
        {"name": name, "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}}
        for name, count in requests
    ]
    if allocated_on:
        made = allocated(made, allocated_on, "gpu-0")
        made["status"]["allocation"]["devices"]["results"][0]["request"] = requests[0][0]
    return made


def test_a_claim_of_an_earlier_attempt_serves_again() -> None:
    left = special("p", ("container-0-request-0", 1), allocated_on="b")
    state = cluster(node("a"), node("b"), named_class("gpu", GPU), node_slice("a", 1), node_slice("b", 1), left)
    decision = decide(state, view(requesting("p", **{GPU: "1"})))
    assert isinstance(decision, Placement)
    assert (decision.node, decision.allocations) == ("b", ())
    assert [item.metadata.name for item in decision.joined] == ["p-extended-resources-x"]
    assert decision.extended is not None
    assert decision.extended.claim.metadata.name == "p-extended-resources-x"
    # One that was not allocated yet is.
    left = special("p", ("container-0-request-0", 1))
    state = cluster(node("a"), named_class("gpu", GPU), node_slice("a", 1), left)
    decision = decide(state, view(requesting("p", **{GPU: "1"})))
    assert isinstance(decision, Placement)
    assert [item.metadata.name for item, _ in decision.allocations] == ["p-extended-resources-x"]


def test_a_claim_that_asks_for_something_else_is_deleted() -> None:
    left = special("p", ("container-0-request-0", 2))
    state = cluster(node("a"), named_class("gpu", GPU), node_slice("a", 1), left)
    decision = decide(state, view(requesting("p", **{GPU: "1"})))
    assert isinstance(decision, Pending)
    assert decision.discard is not None
    assert decision.discard.metadata.name == "p-extended-resources-x"


def test_a_claim_that_serves_but_is_in_the_way_loses_its_devices() -> None:
    left = special("p", ("container-0-request-0", 1), allocated_on="b")
    state = cluster(
        node("a"), node("b", cpu="0"), named_class("gpu", GPU), node_slice("a", 1), node_slice("b", 1), left
    )
    decision = decide(state, view(requesting("p", cpu="1", **{GPU: "1"})))
    # The position of a request is that among all resources of its container: this one is for another pod spec.
    assert isinstance(decision, Pending)
    assert decision.discard is not None
    left = special("p", ("container-0-request-1", 1), allocated_on="b")
    left["metadata"]["resourceVersion"] = "2"
    state.set_claim(msgspec.convert(left, v1.ResourceClaim))
    decision = decide(state, view(requesting("p", cpu="1", **{GPU: "1"})))
    assert isinstance(decision, Pending)
    assert "Insufficient cpu" in decision.message
    # Only the devices are in the way, the claim itself serves on.
    assert decision.release is not None
    assert decision.discard is None


def test_several_resources_by_both_kinds_of_names() -> None:
    other = named_class("nic", "example.com/nic")
    made = pod("p")
    implicit = "deviceclass.resource.kubernetes.io/gpu"
    requests = {"cpu": "1", GPU: "1", implicit: "2", "example.com/nic": "1"}
    made["spec"]["containers"] = [{"name": "main", "resources": {"requests": requests}}]
    state = cluster(node("a"), named_class("gpu", GPU), other, node_slice("a", 5))
    decision = decide(state, view(made))
    assert isinstance(decision, Placement)
    assert decision.extended is not None
    asked = {
        r.name: (r.exactly.deviceClassName, r.exactly.count)
        for r in decision.extended.claim.spec.devices.requests or ()
        if r.exactly
    }
    assert asked == {
        "container-0-request-1": ("gpu", 2),
        "container-0-request-2": ("gpu", 1),
        "container-0-request-3": ("nic", 1),
    }
    assert sorted(m["resourceName"] for m in decision.extended.mappings) == sorted({*requests} - {"cpu"})
    [(_, allocation)] = decision.allocations
    assert len({result.device for result in allocation.devices.results or ()}) == 4


def specials(server: Any) -> list[dict[str, Any]]:
    return [obj for key, obj in server.objects.items() if key[0] == RESOURCECLAIM.path()]


@pytest.mark.parametrize("failing", ["status", "binding"])
def test_a_failed_write_leaves_one_claim_in_the_end(failing: str) -> None:
    async def scenario() -> None:
        server = server_with(node("a"), named_class("gpu", GPU), node_slice("a", 1), requesting("p", **{GPU: "1"}))
        failed = asyncio.Event()

        async def handle(request: Any) -> Any:
            if "/pods/p/" in request.path and request.path.endswith(failing) and not failed.is_set():
                failed.set()
                return Response(500, body=b"{}")
            return await server.handle(request)

        async with Running(server, handle):
            await until(lambda: node_of(server, "p"))
        assert failed.is_set()
        [made] = specials(server)
        assert made["status"]["reservedFor"][0]["uid"] == "pod-p"
        assert server.get(POD, "p")["status"]["extendedResourceClaimStatus"] == {
            "resourceClaimName": made["metadata"]["name"],
            "requestMappings": [{"containerName": "main", "resourceName": GPU, "requestName": "container-0-request-0"}],
        }

    asyncio.run(scenario())


def test_a_claim_that_lost_its_purpose_is_deleted() -> None:
    async def scenario() -> None:
        left = special("p", ("container-0-request-0", 1), allocated_on="a")
        left["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]
        server = server_with(
            node("a"), named_class("gpu", GPU), node_slice("a", 2), requesting("p", **{GPU: "2"}), left
        )
        async with Running(server):
            await until(lambda: node_of(server, "p"))
        [made] = specials(server)
        assert made["metadata"]["name"] != "p-extended-resources-x"

    asyncio.run(scenario())
