"""Node life cycle, eviction by node taints, node loss."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from drakkar.api.kinds import LEASE, NODE, POD
from drakkar.client.clock import timestamp
from drakkar.client.writes import Delete
from drakkar.controllers.heartbeats import Heartbeats
from drakkar.controllers.nodeeviction import NodeEviction
from drakkar.controllers.nodelifecycle import NodeLifecycle
from drakkar.controllers.nodeloss import NodeLoss
from tests.unit.controllers.objects import lease, node, pod
from tests.unit.controllers.world import Harness, World

UNREACHABLE = {("node.kubernetes.io/unreachable", "NoSchedule"), ("node.kubernetes.io/unreachable", "NoExecute")}


def lifecycle(world: World) -> list[Any]:
    return [NodeLifecycle(world, world.clock)]  # type: ignore[arg-type]


def all_three(world: World) -> list[Any]:
    return [*lifecycle(world), NodeEviction(world.clock), NodeLoss(world, world.clock)]  # type: ignore[arg-type]


@pytest.fixture
def world() -> World:
    made = World()
    made.create(NODE, node())
    made.create(LEASE, lease())
    return made


def renew(world: World) -> None:
    world.update(LEASE, "n", "kube-node-lease", lambda o: o["spec"].update(renewTime=timestamp(world.clock.now)))


def report(world: World, status: str = "True") -> None:
    def change(obj: dict[str, Any]) -> None:
        obj["status"]["conditions"][0].update(status=status, lastHeartbeatTime=timestamp(world.clock.now))

    world.update(NODE, "n", "", change)


def ready(world: World) -> dict[str, Any]:
    return world.read(NODE, "n")["status"]["conditions"][0]


def taints(world: World) -> set[tuple[str, str]]:
    return {(t["key"], t["effect"]) for t in world.read(NODE, "n")["spec"].get("taints") or ()}


def test_silence_becomes_unknown_and_taints(world: World) -> None:
    harness = Harness(world, lifecycle)
    harness.advance(39.9)
    assert ready(world)["status"] == "True"
    harness.advance(0.1)
    assert (ready(world)["status"], ready(world)["reason"]) == ("Unknown", "NodeStatusUnknown")
    assert taints(world) == UNREACHABLE
    assert all(t["timeAdded"] for t in world.read(NODE, "n")["spec"]["taints"])


def test_heartbeats_keep_a_node(world: World) -> None:
    harness = Harness(world, lifecycle)
    for _ in range(20):
        harness.advance(10)
        renew(world)
    harness.settle()
    assert ready(world)["status"] == "True"
    assert taints(world) == set()


def test_node_status_is_a_heartbeat_too(world: World) -> None:
    harness = Harness(world, lifecycle)
    for _ in range(5):
        harness.advance(30)
        report(world)
    harness.settle()
    assert ready(world)["status"] == "True"


def test_restart_gives_full_grace(world: World) -> None:
    harness = Harness(world, lifecycle)
    harness.advance(39)
    harness.start()
    harness.advance(39)
    assert ready(world)["status"] == "True"
    harness.advance(1.1)
    assert ready(world)["status"] == "Unknown"


def test_skewed_clock_of_the_node_does_not_matter(world: World) -> None:
    harness = Harness(world, lifecycle)
    world.update(LEASE, "n", "kube-node-lease", lambda o: o["spec"].update(renewTime="1999-01-01T00:00:00Z"))
    harness.advance(39)
    assert ready(world)["status"] == "True"


def test_silent_watch_is_not_a_dead_node(world: World) -> None:
    """The lease moves but the cache does not hear of it: the live read saves the node."""
    heartbeats = Heartbeats(world, world.clock)  # type: ignore[arg-type]
    heartbeats.setup(world.caches)  # type: ignore[arg-type]
    world.clock.now += 39
    renew(world)
    world.clock.now += 1
    assert asyncio.run(heartbeats.silence("n")) == 40
    world.clock.now += 40
    assert asyncio.run(heartbeats.silence("n")) <= 0


def test_having_slept_is_not_a_dead_node(world: World) -> None:
    heartbeats = Heartbeats(world, world.clock)  # type: ignore[arg-type]
    heartbeats.setup(world.caches)  # type: ignore[arg-type]
    world.clock.now += 3600
    rest = asyncio.run(heartbeats.silence("n"))
    assert rest == 15
    world.clock.now += rest
    assert asyncio.run(heartbeats.silence("n")) <= 0


def test_only_the_agent_brings_it_back(world: World) -> None:
    harness = Harness(world, lifecycle)
    harness.advance(41)
    renew(world)
    harness.settle()
    assert taints(world) == UNREACHABLE
    report(world)
    harness.settle()
    assert taints(world) == set()
    harness.advance(39)
    assert ready(world)["status"] == "True"
    harness.advance(2)
    assert ready(world)["status"] == "Unknown"


def test_conditions_become_taints_and_foreign_taints_stay(world: World) -> None:
    harness = Harness(world, lifecycle)

    def change(obj: dict[str, Any]) -> None:
        obj["spec"] = {"unschedulable": True, "taints": [{"key": "mine", "effect": "NoSchedule"}]}
        obj["status"]["conditions"].append({"type": "DiskPressure", "status": "True"})

    world.update(NODE, "n", "", change)
    report(world, "False")
    harness.settle()
    assert taints(world) == {
        ("mine", "NoSchedule"),
        ("node.kubernetes.io/disk-pressure", "NoSchedule"),
        ("node.kubernetes.io/unschedulable", "NoSchedule"),
        ("node.kubernetes.io/not-ready", "NoSchedule"),
        ("node.kubernetes.io/not-ready", "NoExecute"),
    }


def test_new_node_keeps_its_taint_until_it_reports(world: World) -> None:
    fresh = node("fresh", taints=[{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}])
    fresh["status"] = {}
    world.create(NODE, fresh)
    harness = Harness(world, lifecycle)
    harness.advance(10)
    assert len(world.read(NODE, "fresh")["spec"]["taints"]) == 1
    harness.advance(31)
    (first, *_) = world.read(NODE, "fresh")["status"]["conditions"]
    assert (first["type"], first["status"], first["reason"]) == ("Ready", "Unknown", "NodeStatusNeverUpdated")


def test_pods_of_an_unreachable_node_are_not_ready(world: World) -> None:
    body = pod(node="n", phase="Running")
    body["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    world.create(POD, body)
    harness = Harness(world, lifecycle)
    harness.advance(41)
    (condition,) = world.read(POD, "p")["status"]["conditions"]
    assert condition["status"] == "False"


def test_pods_go_when_their_toleration_ends(world: World) -> None:
    waits = [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}]
    world.create(POD, pod("now", node="n", phase="Running"))
    world.create(POD, pod("later", node="n", phase="Running", tolerations=[{**waits[0], "tolerationSeconds": 300}]))
    world.create(POD, pod("never", node="n", phase="Running", tolerations=waits))
    harness = Harness(world, all_three)
    harness.advance(40)
    assert world.read(POD, "now") is None
    harness.advance(299)
    assert world.read(POD, "later") is not None
    harness.advance(2)
    assert world.read(POD, "later") is None
    assert world.read(POD, "never") is not None
    failed = [new for plural, _, new in world.history if plural == "pods" and new and new["metadata"]["name"] == "now"]
    assert failed[-1]["status"]["phase"] == "Failed"
    assert failed[-1]["status"]["conditions"][0]["reason"] == "DeletionByTaintManager"


def test_return_cancels_eviction(world: World) -> None:
    waits = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    world.create(POD, pod(node="n", phase="Running", tolerations=[{**waits, "tolerationSeconds": 300}]))
    harness = Harness(world, all_three)
    harness.advance(100)
    renew(world)
    report(world)
    harness.advance(9)
    assert "Cancelling deletion of Pod default/p" in [event.message for event in world.events]


def test_deleted_pod_of_a_living_node_is_the_agents(world: World) -> None:
    world.create(POD, pod(node="n", phase="Running"))
    harness = Harness(world, all_three)
    world.delete(Delete(POD, "default", "p"))
    for _ in range(10):
        harness.advance(10)
        renew(world)
    harness.settle()
    assert world.read(POD, "p") is not None


def test_pod_deleted_before_the_node_was_lost(world: World) -> None:
    world.create(POD, pod(node="n", phase="Running"))
    harness = Harness(world, all_three)
    world.delete(Delete(POD, "default", "p"))
    harness.advance(39.9)
    assert world.read(POD, "p") is not None
    harness.advance(0.1)
    assert world.read(POD, "p") is None


def test_silence_alone_is_no_loss_while_the_node_counts_as_ready(world: World) -> None:
    """Beside a controller manager with a longer grace: it has the first word about the node."""
    world.create(POD, pod(node="n", phase="Running"))
    harness = Harness(world, lambda w: [NodeLoss(w, w.clock)])  # type: ignore[arg-type]
    world.delete(Delete(POD, "default", "p"))
    harness.advance(49)
    assert world.read(POD, "p") is not None
    world.update(NODE, "n", "", lambda o: o["status"]["conditions"][0].update(status="Unknown"))
    harness.settle()
    assert world.read(POD, "p") is None


def test_finalizer_keeps_the_pod_but_it_has_failed(world: World) -> None:
    body = pod(node="n", phase="Running")
    body["metadata"]["finalizers"] = ["batch.kubernetes.io/job-tracking"]
    world.create(POD, body)
    harness = Harness(world, all_three)
    harness.advance(41)
    left = world.read(POD, "p")
    assert left["status"]["phase"] == "Failed"
    assert left["metadata"]["deletionTimestamp"]


def test_out_of_service_needs_no_silence(world: World) -> None:
    world.create(POD, pod(node="n", phase="Running"))
    harness = Harness(world, lambda w: [NodeLoss(w, w.clock, by_silence=False)])  # type: ignore[arg-type]
    world.delete(Delete(POD, "default", "p"))
    harness.advance(400)
    assert world.read(POD, "p") is not None
    mark = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}
    world.update(NODE, "n", "", lambda o: o["spec"].update(taints=[mark]))
    harness.settle()
    assert world.read(POD, "p") is None


def test_pods_of_a_node_that_does_not_exist(world: World) -> None:
    world.create(POD, pod(node="ghost", phase="Running"))
    harness = Harness(world, all_three)
    harness.advance(39)
    assert world.read(POD, "p") is not None
    harness.advance(1.1)
    assert world.read(POD, "p") is None


def test_deleted_pod_that_never_had_a_node(world: World) -> None:
    body = pod()
    body["metadata"]["finalizers"] = ["batch.kubernetes.io/job-tracking"]
    world.create(POD, body)
    world.delete(Delete(POD, "default", "p"))
    Harness(world, all_three).settle()
    assert world.read(POD, "p")["status"]["phase"] == "Failed"
