from __future__ import annotations

from typing import Any

import msgspec

from drakkar.api.resource import v1
from drakkar.scheduler import Cluster, Pending, Placement, decide
from tests.unit.scheduler.build import (
    DRIVER,
    allocated,
    claim,
    cluster,
    device_class,
    node,
    node_slice,
    pod,
    requesting,
    shape_slices,
    view,
)

NO_EXECUTE = {"key": "host-unreachable", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
ONE_PER_NODE = {"drakkar.dev/pods-per-node": "1"}


def decided(state: Cluster, obj: dict[str, Any]) -> Placement | Pending:
    return decide(state, view(obj))


def placed(state: Cluster, obj: dict[str, Any]) -> Placement:
    decision = decided(state, obj)
    assert isinstance(decision, Placement), decision
    return decision


def pending(state: Cluster, obj: dict[str, Any]) -> Pending:
    decision = decided(state, obj)
    assert isinstance(decision, Pending), decision
    return decision


def devices(placement: Placement) -> list[str]:
    return [r.device for _, allocation in placement.allocations for r in allocation.devices.results or ()]


# plain pods


def test_a_pod_without_claims_goes_where_most_is_free() -> None:
    state = cluster(node("a", cpu="4"), node("b", cpu="4"), requesting("x", cpu="2") | {"spec": {"nodeName": "a"}})
    busy = requesting("busy", cpu="3")
    busy["spec"]["nodeName"] = "a"
    state.set_pod(busy)
    assert placed(state, requesting("p", cpu="1")).node == "b"


def test_every_refusal_is_counted() -> None:
    state = cluster(
        node("a", cpu="1"), node("b", cpu="1"), node("c", taints=({"key": "broken", "effect": "NoSchedule"},))
    )
    decision = pending(state, requesting("p", cpu="2"))
    assert decision.message == (
        "0/3 nodes are available: 1 node(s) had untolerated taint {broken: }, 2 Insufficient cpu."
    )
    assert decision.reason == "node-unfit"
    assert not decision.error


def test_no_nodes() -> None:
    assert pending(cluster(), pod("p")).message == "no nodes available to schedule pods"


# claims


def test_devices_are_allocated_where_they_are() -> None:
    state = cluster(node("a"), node("b"), device_class(), node_slice("b", 2), claim("c", 2))
    placement = placed(state, pod("p", "c"))
    assert placement.node == "b"
    assert sorted(devices(placement)) == ["gpu-0", "gpu-1"]


def test_a_first_alternative_elsewhere_beats_a_second_one_here() -> None:
    wanting = claim("c")
    [request] = wanting["spec"]["devices"]["requests"]
    del request["exactly"]
    request["firstAvailable"] = [
        {"name": name, "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
        for name, count in (("four", 4), ("two", 2), ("one", 1))
    ]
    state = cluster(node("a"), node("b"), node("c"), device_class(), wanting)
    for name, count in (("a", 1), ("b", 4), ("c", 2)):
        state.set_slice(msgspec.convert(node_slice(name, count), v1.ResourceSlice))
    first = placed(state, pod("p", "c"))
    assert (first.node, len(devices(first))) == ("b", 4)
    state.remove_node("b")
    second = placed(state, pod("p", "c"))
    assert (second.node, len(devices(second))) == ("c", 2)


def test_decisions_in_flight_count() -> None:
    state = cluster(node("a"), device_class(), node_slice("a", 1), claim("c"), claim("d"), pod("p", "c"), pod("q", "d"))
    first = placed(state, pod("p", "c"))
    state.assume(view(pod("p", "c")), first.node, first.allocations)
    refused = pending(state, pod("q", "d"))
    assert refused.reason == "in-use"
    assert "0/1 nodes are available: 1 cannot allocate all claims (in-use: " in refused.message
    sharing = pending(state, pod("r", "c"))
    assert "in the process of being allocated" in sharing.message
    assert sharing.passing
    state.forget(view(pod("p", "c")))
    assert placed(state, pod("q", "d")).node == "a"


def test_missing_deleted_and_foreign_claims() -> None:
    gone = claim("going")
    gone["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    state = cluster(node("a"), gone, claim("stolen"))
    assert "resourceclaim nowhere not found" in pending(state, pod("p", "nowhere")).message
    assert "is being deleted" in pending(state, pod("p", "going")).message
    templated = pod("p")
    templated["spec"]["resourceClaims"] = [{"name": "x", "resourceClaimTemplateName": "t"}]
    waiting = pending(state, templated)
    assert "ResourceClaim not created yet" in waiting.message
    assert waiting.reason == "claim-missing"
    templated["status"]["resourceClaimStatuses"] = [{"name": "x", "resourceClaimName": "stolen"}]
    assert "was not made for this pod" in pending(state, templated).message
    templated["status"]["resourceClaimStatuses"] = [{"name": "x"}]
    assert placed(state, templated).allocations == ()


def test_a_pod_joins_an_allocated_claim_where_its_devices_are() -> None:
    state = cluster(node("a"), node("b"), allocated(claim("c"), "b", "gpu-0"), pod("p", "c"))
    placement = placed(state, pod("p", "c"))
    assert placement.node == "b"
    assert [c.metadata.name for c in placement.joined] == ["c"]


def test_a_reserved_claim_is_continued() -> None:
    state = cluster(node("a"), node("b"), allocated(claim("c"), "b", "gpu-0", reserved=("p",)))
    placement = placed(state, pod("p", "c"))
    assert (placement.node, placement.joined, len(placement.held)) == ("b", (), 1)


def test_an_idle_claim_on_the_wrong_node_is_released() -> None:
    pinned = pod("p", "c", nodeSelector={"kubernetes.io/hostname": "a"})
    idle = cluster(node("a"), node("b"), allocated(claim("c"), "b", "gpu-0"), pinned)
    decision = pending(idle, pinned)
    assert decision.reason == "claim-on-other-node"
    assert "resourceclaim c not available on the node" in decision.message
    assert decision.release is not None
    used = cluster(node("a"), node("b"), allocated(claim("c"), "b", "gpu-0", reserved=("other",)))
    used.set_pod(pod("other", "c", node="b"))
    assert pending(used, pinned).release is None


def test_a_full_claim_takes_nobody() -> None:
    names = tuple(f"p{i}" for i in range(256))
    state = cluster(node("a"), allocated(claim("c"), "a", "gpu-0", reserved=names))
    assert pending(state, pod("late", "c")).reason == "reserved-full"
    assert placed(state, pod("p7", "c")).node == "a"


def test_an_unknown_class_is_named() -> None:
    state = cluster(node("a"), claim("c"))
    decision = pending(state, pod("p", "c"))
    assert "gpu" in decision.message
    assert decision.reason == "class-missing"


# taints


def test_no_consumer_is_added_to_a_tainted_device() -> None:
    state = cluster(node("a"), device_class(), node_slice("a", 1, taints=(NO_EXECUTE,)))
    for obj in (allocated(claim("c"), "a", "gpu-0", reserved=("old",)), pod("old", "c", node="a")):
        if obj["kind"] == "Pod":
            state.set_pod(obj)
        else:
            state.set_claim(msgspec.convert(obj, v1.ResourceClaim))
    decision = pending(state, pod("p", "c"))
    assert decision.reason == "tainted"
    assert "holds device gpu-0" in decision.message
    assert "host-unreachable:NoExecute" in decision.message
    assert decision.release is None
    # The last user ended and nobody is bound: what is left is in the way.
    state.remove_pod("pod-old")
    unreserved = msgspec.convert(
        allocated(claim("c"), "a", "gpu-0") | {"metadata": claim("c")["metadata"] | {"resourceVersion": "2"}},
        v1.ResourceClaim,
    )
    state.set_claim(unreserved)
    assert pending(state, pod("p", "c")).release is not None


def test_reservations_of_unbound_pods_do_not_keep_a_broken_device() -> None:
    state = cluster(
        node("a"),
        device_class(),
        node_slice("a", 1, taints=(NO_EXECUTE,)),
        allocated(claim("c"), "a", "gpu-0", reserved=("p", "q")),
        pod("p", "c"),
        pod("q", "c"),
    )
    assert pending(state, pod("p", "c")).release is not None
    unknown = cluster(
        node("a"),
        device_class(),
        node_slice("a", 1, taints=(NO_EXECUTE,)),
        allocated(claim("c"), "a", "gpu-0", reserved=("p", "stranger")),
        pod("p", "c"),
    )
    assert pending(unknown, pod("p", "c")).release is None


def test_taint_rules_count_and_tolerations_help() -> None:
    rule = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "r"},
        "spec": {"deviceSelector": {"driver": DRIVER}, "taint": {"key": "repair", "effect": "NoSchedule"}},
    }
    tolerant = allocated(claim("t"), "a", "gpu-1")
    tolerant["status"]["allocation"]["devices"]["results"][0]["tolerations"] = [{"operator": "Exists"}]
    state = cluster(node("a"), node_slice("a", 2), allocated(claim("c"), "a", "gpu-0"), tolerant, rule)
    assert pending(state, pod("p", "c")).reason == "tainted"
    assert placed(state, pod("p", "t")).node == "a"
    state.remove_taint_rule("r")
    assert placed(state, pod("p", "c")).node == "a"


# claims over several hosts

PAIRS = {"shape-0": ["h0", "h1"], "shape-1": ["h2", "h3"]}


def two_pairs(*more: dict[str, Any]) -> Cluster:
    hosts = [node(f"h{i}") for i in range(4)]
    return cluster(*hosts, device_class(), *shape_slices(PAIRS), *more)


def test_one_pod_per_node() -> None:
    shared = claim("c", annotations=ONE_PER_NODE)
    state = two_pairs(shared, pod("p0", "c"), pod("p1", "c"))
    first = placed(state, pod("p0", "c"))
    [(owner, allocation)] = first.allocations
    state.assume(view(pod("p0", "c")), first.node, first.allocations)
    assert allocation.nodeSelector is not None
    hosts = allocation.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].values  # type: ignore[index]
    shape = allocation.devices.results[0].device  # type: ignore[index]
    made = allocated(shared, "shapes", shape, nodes=tuple(hosts or ()), reserved=("p0",))
    made["metadata"]["resourceVersion"] = "2"
    state.set_claim(msgspec.convert(made, v1.ResourceClaim))
    state.settle(owner)
    second = placed(state, pod("p1", "c"))
    assert {first.node, second.node} == set(hosts or ())
    state.assume(view(pod("p1", "c")), second.node, ())
    state.set_pod(pod("p2", "c"))
    third = pending(state, pod("p2", "c"))
    assert "already had 1 pod(s) of claim c, which allows 1 per node" in third.message


def test_terminating_pods_still_take_their_place() -> None:
    going = pod("old", "c", node="h0")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    shared = allocated(claim("c", annotations=ONE_PER_NODE), "shapes", "shape-0", nodes=("h0", "h1"))
    state = two_pairs(shared, going, pod("p", "c"))
    assert placed(state, pod("p", "c")).node == "h1"
    done = going | {"status": {"phase": "Succeeded"}}
    state.set_pod(done)
    state.set_pod(pod("q", "c", node="h1"))
    assert placed(state, pod("p", "c")).node == "h0"


def test_a_shape_is_not_chosen_when_its_hosts_cannot_take_the_pods() -> None:
    state = two_pairs(claim("c", annotations=ONE_PER_NODE), pod("p0", "c"), pod("p1", "c"))
    state.set_node(node("h1", ready="Unknown"))
    placement = placed(state, pod("p0", "c"))
    assert devices(placement) == ["shape-1"]
    assert placement.node in ("h2", "h3")
    state.set_node(node("h3", taints=({"key": "broken", "effect": "NoSchedule"},)))
    decision = pending(state, pod("p0", "c"))
    assert "reach hosts with room for only 1 of the 2 pods of claim c" in decision.message


def test_a_nonsense_limit_is_an_obstacle() -> None:
    state = two_pairs(claim("c", annotations={"drakkar.dev/pods-per-node": "many"}), pod("p", "c"))
    assert "drakkar.dev/pods-per-node='many' is not a positive number" in pending(state, pod("p", "c")).message


def test_a_shape_with_all_its_hosts_fit_is_preferred_to_one_with_a_cordoned_host() -> None:
    state = two_pairs(claim("c", annotations=ONE_PER_NODE), pod("p0", "c"))
    state.set_node(node("h1", unschedulable=True))
    assert devices(placed(state, pod("p0", "c"))) == ["shape-1"]
    state.set_node(node("h3", unschedulable=True))
    # One pod waits, one host of each shape can take it: better than not to run at all.
    assert placed(state, pod("p0", "c")).node in ("h0", "h2")


def test_the_reason_is_one_of_nodes_that_the_pod_could_use() -> None:
    """Free devices on a node that the pod may not use are no reason, nor are those in use there."""
    held = allocated(claim("held"), "b", "gpu-0")
    world = (device_class(), node_slice("a", 1), node_slice("b", 1), held, claim("c"))
    on_b = {"nodeSelector": {"kubernetes.io/hostname": "b"}}
    refused = decide(cluster(node("a"), node("b"), *world), view(pod("p", "c", **on_b)))
    assert isinstance(refused, Pending)
    assert refused.reason == "in-use"
    assert "1 node(s) didn't match Pod's node affinity/selector" in refused.message
    assert "1 cannot allocate all claims (in-use" in refused.message
    # Nothing is published where it may run, however much is in use elsewhere.
    on_c = {"nodeSelector": {"kubernetes.io/hostname": "c"}}
    state = cluster(node("b"), node("c"), device_class(), node_slice("b", 1), held, claim("c"))
    refused = decide(state, view(pod("p", "c", **on_c)))
    assert isinstance(refused, Pending)
    assert refused.reason == "no-slice-of-driver"
    # No node at all: the rules of nodes are the reason.
    nowhere = {"nodeSelector": {"kubernetes.io/hostname": "x"}}
    refused = decide(state, view(pod("p", "c", **nowhere)))
    assert isinstance(refused, Pending)
    assert (refused.reason, refused.details) == ("node-unfit", None)


def test_an_allocated_claim_that_alone_is_in_the_way_is_the_reason() -> None:
    bound = allocated(claim("bound"), "a", "gpu-0", reserved=("other",))
    world = (
        node("a"),
        node("b"),
        device_class(),
        node_slice("b", 1),
        bound,
        claim("c"),
        pod("other", "bound", node="a"),
    )
    refused = decide(cluster(*world), view(pod("p", "bound", "c")))
    assert isinstance(refused, Pending)
    assert refused.reason == "claim-on-other-node"


def test_a_message_does_not_grow_with_the_cluster() -> None:
    tainted = [node(f"n{i}", taints=({"key": f"k{i}", "effect": "NoSchedule"},)) for i in range(100)]
    refused = decide(cluster(node("x", cpu="0"), node("y", cpu="0"), *tainted), view(requesting("p", cpu="1")))
    assert isinstance(refused, Pending)
    assert len(refused.message) < 1024
    assert refused.message.startswith("0/102 nodes are available: ")
    assert "2 Insufficient cpu" in refused.message
    assert refused.message.endswith(", 85 for other reasons.")
