"""The pure rules of gate mode: whom it concerns, what a lift writes, what counts as lost, and patience."""

from __future__ import annotations

from typing import Any

import pytest

from drakkar.api.core.validation import pods as validation
from drakkar.api.faults import Faults
from drakkar.api.names import ALLOCATED_NODE, SCHEDULING_GATE
from drakkar.scheduler.gates import Loss, Strikes, is_decidable, is_gated, lifted_node, lifting, loss_of
from tests.unit.scheduler.build import allocated, claim, cluster, device_class, node, node_slice, pod, view

OURS = {"name": SCHEDULING_GATE}
OTHER = {"name": "example.com/quota"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HERE = {"key": "metadata.name", "operator": "In", "values": ["a"]}
ZONE = {"key": "zone", "operator": "In", "values": ["z"]}


def test_whom_it_concerns() -> None:
    assert is_decidable(pod("p", "c", schedulingGates=[OURS]))
    for made in (
        pod("p", "c"),
        pod("p", "c", schedulingGates=[OTHER]),
        pod("p", "c", schedulingGates=[OTHER, OURS]),
        pod("p", "c", node="a", schedulingGates=[OURS]),
    ):
        assert not is_decidable(made)
    assert is_gated(pod("p", "c", schedulingGates=[OTHER, OURS]))
    going = pod("p", "c", schedulingGates=[OURS])
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not is_decidable(going)


def test_who_counts_as_lifted() -> None:
    before = pod("p", "c", schedulingGates=[OURS])
    patch = lifting(before, "a")
    made = {"metadata": {**before["metadata"], **patch["metadata"]}, "spec": {**before["spec"], **patch["spec"]}}
    assert lifted_node(made) == "a"
    assert lifted_node({**made, "spec": {**made["spec"], "schedulingGates": [OURS]}}) == ""
    assert lifted_node({**made, "spec": {**made["spec"], "nodeName": "a"}}) == ""
    assert lifted_node({**made, "status": {"phase": "Failed"}}) == ""
    # The annotation says nothing of a pod that has not been narrowed: somebody copied it.
    assert lifted_node({**made, "spec": before["spec"]}) == ""
    copied = pod("p", "c")
    copied["metadata"]["annotations"] = {ALLOCATED_NODE: "a"}
    assert lifted_node(copied) == ""
    assert lifted_node({**made, "metadata": {**made["metadata"], "annotations": {ALLOCATED_NODE: "b"}}}) == ""


@pytest.mark.parametrize(
    ("terms", "narrowed"),
    [
        (None, [{"matchFields": [HERE]}]),
        ([{"matchExpressions": [ZONE]}], [{"matchExpressions": [ZONE], "matchFields": [HERE]}]),
        (
            [{"matchExpressions": [ZONE]}, {"matchFields": [{**HERE, "values": ["b"]}]}],
            [
                {"matchExpressions": [ZONE], "matchFields": [HERE]},
                {"matchFields": [{**HERE, "values": ["b"]}, HERE]},
            ],
        ),
        # A term without requirements matches no node; narrowed, it would match one.
        ([{}, {"matchExpressions": [ZONE]}], [{}, {"matchExpressions": [ZONE], "matchFields": [HERE]}]),
        ([{"matchFields": [HERE]}], [{"matchFields": [HERE]}]),
    ],
)
def test_a_lift_only_narrows(terms: Any, narrowed: Any) -> None:
    made = pod("p", "c", schedulingGates=[OURS])
    if terms is not None:
        made["spec"]["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    patch = lifting(made, "a")
    assert patch["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == narrowed
    assert patch["metadata"] == {"uid": "pod-p", "resourceVersion": "1", "annotations": {ALLOCATED_NODE: "a"}}
    new = {**made, "spec": {**made["spec"], **patch["spec"], "schedulingGates": []}}
    faults = Faults()
    validation.pod_update(faults, new, made)
    assert faults.found == []


def test_a_lift_takes_no_gate_but_ours() -> None:
    assert lifting(pod("p", schedulingGates=[OTHER, OURS]), "a")["spec"]["schedulingGates"] == [OTHER]
    assert lifting(pod("p", schedulingGates=[OURS]), "a")["spec"]["schedulingGates"] is None


def lost(made: dict[str, Any], *objects: dict[str, Any]) -> str:
    """The reason of what the pod, lifted for node a, has lost."""
    known = cluster(device_class(), node_slice("a", 1), made, *objects)
    if "a" in known.nodes:
        known.assume(view(made), "a", ())
    before = known.nodes["a"].used.copy() if "a" in known.nodes else None
    found = loss_of(known, view(made), "a")
    # Looking costs nothing: what the pod takes is booked as before.
    assert "a" not in known.nodes or known.nodes["a"].used == before
    return found.reason if found is not None else ""


def test_what_counts_as_lost() -> None:
    made = pod("p", "c")
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "3"}}
    held = allocated(claim("c"), "a", "gpu-0", reserved=("p",))
    here = node("a", cpu="4", pods="2")
    assert lost(made, here, held) == ""
    assert lost(made, held) == "NodeGone"
    assert lost(made, here) == "ClaimLost"
    assert lost(made, here, claim("c")) == "ClaimDeallocated"
    assert lost(made, here, allocated(claim("c"), "b", "gpu-0")) == "ClaimDeallocated"
    assert lost(made, node("a", cpu="2"), held) == "NodeUnfit"
    broken = node_slice("a", 1, taints=({"key": "k", "effect": "NoSchedule"},))
    assert lost(made, here, held, broken) == "DeviceTainted"
    thief = pod("thief", node="a")
    thief["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}}
    assert lost(made, here, held, thief) == "NodeUnfit"
    told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    assert lost({**made, "status": {"conditions": [told]}}, here, held) == "Unschedulable"
    assert lost({**made, "status": {"conditions": [{**told, "reason": "SchedulingGated"}]}}, here, held) == ""


def test_patience_grows_with_every_loss_of_an_owner() -> None:
    sudden, passing = Loss("NodeGone", ""), Loss("NodeUnfit", "", passing=True)
    strikes = Strikes(30)
    assert (strikes.wait("j", sudden, 0), strikes.wait("j", passing, 0)) == (0, 30)
    strikes.repaired("j", 100)
    # The other pods of the job, lost by the same event, are not made to wait for it.
    strikes.repaired("j", 100.1)
    assert (strikes.wait("j", sudden, 100.2), strikes.wait("j", passing, 100.2)) == (0, 30)
    assert (strikes.wait("j", sudden, 102), strikes.wait("j", passing, 102)) == (30, 60)
    strikes.repaired("j", 140)
    assert (strikes.wait("j", sudden, 150), strikes.wait("other", sudden, 150)) == (60, 0)
    for step in range(20):
        strikes.repaired("j", 1000 + 100 * step)
    assert strikes.wait("j", sudden, 4000) == 600
    strikes.succeeded("j")
    assert strikes.wait("j", sudden, 4000) == 0
