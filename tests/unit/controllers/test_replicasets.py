"""ReplicaSets: claims, numbers, the order in which pods go, and the status."""

from __future__ import annotations

import random
from typing import Any

import pytest

from drakkar.api.kinds import POD, REPLICASET
from drakkar.client.writes import Create, Patch
from drakkar.controllers.replicasets import ReplicaSets
from drakkar.controllers.workloads import scaled
from tests.unit.controllers.objects import pod, workload
from tests.unit.controllers.site import Site
from tests.unit.controllers.world import World


def build(world: World) -> list[Any]:
    return [ReplicaSets(world, world.clock)]


def site(**spec: Any) -> Site:
    made = Site(build)
    made.create(REPLICASET, workload(**{"replicas": 3, **spec}))
    return made


def status(where: Site) -> Any:
    return where.read(REPLICASET)["status"]


def names(where: Site) -> set[str]:
    return {found["metadata"]["name"] for found in where.pods()}


def test_pods_are_made_and_counted() -> None:
    where = site()
    assert len(where.pods()) == 3
    (reference,) = where.pods()[0]["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["controller"]) == ("ReplicaSet", True)
    assert where.pods()[0]["metadata"]["labels"] == {"app": "w"}
    assert status(where)["replicas"] == status(where)["fullyLabeledReplicas"] == 3
    assert status(where)["observedGeneration"] == 1
    assert not status(where).get("readyReplicas")
    where.run()
    assert (status(where)["readyReplicas"], status(where)["availableReplicas"]) == (3, 3)
    reasons = [event.reason for event in where.world.events]
    assert reasons == ["SuccessfulCreate"] * 3


def test_a_pod_that_ended_or_goes_is_replaced() -> None:
    where = site(replicas=2)
    where.run()
    first, second = sorted(names(where))
    where.set(first, phase="Failed")
    where.rest()
    assert len(where.pods()) == 3
    where.end(second)
    assert len([p for p in where.pods() if p["status"].get("phase") != "Failed"]) == 2
    assert second not in names(where)
    assert status(where)["replicas"] == 2


def test_min_ready_seconds_delay_availability() -> None:
    where = site(minReadySeconds=10)
    where.run()
    assert status(where)["readyReplicas"] == 3
    assert not status(where).get("availableReplicas")
    where.harness.advance(10)
    assert status(where)["availableReplicas"] == 3


def test_orphans_are_taken_in_and_strangers_let_go() -> None:
    where = Site(build)
    stray = pod("stray")
    stray["metadata"]["labels"] = {"app": "w", "more": "x"}
    where.world.create(POD, stray)
    where.create(REPLICASET, workload(replicas=2))
    assert len(where.pods()) == 2
    assert where.read(POD, "stray")["metadata"]["ownerReferences"][0]["name"] == "w"

    where.world.update(POD, "stray", "default", lambda p: p["metadata"].update(labels={"app": "other"}))
    where.rest()
    assert not where.read(POD, "stray")["metadata"].get("ownerReferences")
    assert len(where.pods()) == 3
    assert status(where)["replicas"] == 2


def test_a_foreign_pod_and_one_that_ended_are_not_taken_in() -> None:
    where = Site(build)
    foreign, ended = pod("foreign"), pod("ended", phase="Succeeded")
    for body in (foreign, ended):
        body["metadata"]["labels"] = {"app": "w"}
    foreign["metadata"]["ownerReferences"] = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
    ]
    where.world.create(POD, foreign)
    where.world.create(POD, ended)
    where.create(REPLICASET, workload(replicas=1))
    assert len(where.pods()) == 3


def test_the_least_useful_pods_go_first() -> None:
    where = site(replicas=5)
    worst = []
    made = sorted(names(where))
    where.set(made[1], phase="Pending")  # bound, but pending
    where.set(made[2], phase="Running", ready=False)
    where.set(made[3], phase="Running")
    where.harness.advance(3600)
    where.set(made[4], phase="Running")  # ready since lately
    where.rest()
    for size in (4, 3, 2, 1):
        before = {n for n in names(where) if not where.read(POD, n)["metadata"].get("deletionTimestamp")}
        where.change(REPLICASET, replicas=size)
        after = {n for n in names(where) if not where.read(POD, n)["metadata"].get("deletionTimestamp")}
        worst.extend(before - after)
    assert worst == [made[0], made[1], made[2], made[4]]
    assert status(where)["terminatingReplicas"] == 3


def test_deletion_cost_and_crowding() -> None:
    where = site(replicas=4)
    made = sorted(names(where))
    for name, node in zip(made, ("a", "a", "b", "c"), strict=True):
        where.set(name, phase="Running", node=node)
    cost = {"controller.kubernetes.io/pod-deletion-cost": "-5"}
    where.world.update(POD, made[3], "default", lambda p: p["metadata"].update(annotations=cost))
    where.change(REPLICASET, replicas=2)
    gone = {n for n in made if where.read(POD, n)["metadata"].get("deletionTimestamp")}
    assert made[3] in gone
    assert gone & {made[0], made[1]}


def test_a_refused_create_is_a_condition_until_one_succeeds() -> None:
    where = Site(build)
    owner = where.world.create(REPLICASET, workload(replicas=1))
    where.world.deliver()
    (create,) = [w for w in where.harness.reconcile(0, "default/w") if isinstance(w, Create)]
    assert create.blame is not None
    blame = create.blame("exceeded quota")
    assert isinstance(blame, Patch)
    (entry,) = blame.body["status"]["conditions"]
    assert (entry["type"], entry["reason"], entry["message"]) == ("ReplicaFailure", "FailedCreate", "exceeded quota")
    assert blame.body["metadata"]["resourceVersion"] == owner["metadata"]["resourceVersion"]
    where.world.patch(blame)
    where.world.deliver()
    (create,) = [w for w in where.harness.reconcile(0, "default/w") if isinstance(w, Create)]
    assert create.blame is not None
    assert create.blame("exceeded quota again") is None
    where.rest()
    assert not status(where).get("conditions")


def test_nothing_is_made_for_one_that_goes() -> None:
    where = Site(build)
    body = workload(replicas=2)
    body["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"]}
    where.create(REPLICASET, body)
    assert where.pods() == []


@pytest.mark.parametrize("seed", range(12))
def test_chaos_makes_no_pod_too_many(seed: int) -> None:
    rng = random.Random(seed)
    where = Site(build)
    most = 0

    def watch(kind: Any, old: Any, new: Any) -> None:
        nonlocal most
        most = max(most, len([p for p in where.pods() if not p["metadata"].get("deletionTimestamp")]))

    where.world.watchers.append(watch)
    where.world.create(REPLICASET, workload(replicas=5))
    where.harness.settle_chaos(rng, crashes=4)
    assert len(where.pods()) == most == 5
    where.world.update(REPLICASET, "w", "default", lambda obj: obj["spec"].update(replicas=2))
    where.harness.settle_chaos(rng, crashes=4)
    assert len(where.pods()) == 2
    assert status(where)["replicas"] == 2


def test_percentages() -> None:
    assert [scaled("25%", 10, up=up) for up in (True, False)] == [3, 2]
    assert scaled(4, 10, up=True) == 4
    assert scaled(None, 10, up=True) == 0
