"""Deployments: rollouts, revisions, pauses, deadlines and sizes in between."""

from __future__ import annotations

import random
from typing import Any

import pytest

from drakkar.api.kinds import DEPLOYMENT, POD, REPLICASET
from drakkar.controllers.deployments import Deployments
from drakkar.controllers.replicasets import ReplicaSets
from drakkar.controllers.workloads import template_hash
from tests.unit.controllers.objects import workload
from tests.unit.controllers.site import Site
from tests.unit.controllers.world import World

REVISION = "deployment.kubernetes.io/revision"


def build(world: World) -> list[Any]:
    return [ReplicaSets(world, world.clock), Deployments(world, world.clock)]


def deployment(**spec: Any) -> dict[str, Any]:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}
    base = {"replicas": 4, "strategy": rolling, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600}
    return workload(**{**base, **spec})


def site(**spec: Any) -> Site:
    made = Site(build)
    made.create(DEPLOYMENT, deployment(**spec))
    return made


def sets(where: Site) -> list[Any]:
    return sorted(where.world.all(REPLICASET), key=lambda s: int(s["metadata"]["annotations"][REVISION]))


def sizes(where: Site) -> list[int]:
    return [entry["spec"]["replicas"] for entry in sets(where)]


def conditions(where: Site) -> dict[str, tuple[str, str]]:
    found = where.read(DEPLOYMENT)["status"].get("conditions") or ()
    return {entry["type"]: (entry["status"], entry["reason"]) for entry in found}


def test_first_rollout() -> None:
    where = site()
    (made,) = sets(where)
    digest = made["metadata"]["labels"]["pod-template-hash"]
    assert made["metadata"]["name"] == f"w-{digest}"
    assert made["spec"]["selector"]["matchLabels"] == {"app": "w", "pod-template-hash": digest}
    assert made["spec"]["template"]["metadata"]["labels"]["pod-template-hash"] == digest
    assert made["metadata"]["annotations"] == {
        REVISION: "1",
        "deployment.kubernetes.io/desired-replicas": "4",
        "deployment.kubernetes.io/max-replicas": "5",
    }
    assert where.read(DEPLOYMENT)["metadata"]["annotations"][REVISION] == "1"
    assert conditions(where) == {
        "Available": ("False", "MinimumReplicasUnavailable"),
        "Progressing": ("True", "ReplicaSetUpdated"),
    }
    where.live()
    assert conditions(where) == {
        "Available": ("True", "MinimumReplicasAvailable"),
        "Progressing": ("True", "NewReplicaSetAvailable"),
    }
    status = where.read(DEPLOYMENT)["status"]
    assert [status[f] for f in ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")] == [4] * 4
    assert not status.get("unavailableReplicas")
    assert status["observedGeneration"] == 1
    (event,) = [event for event in where.world.events if event.reason == "ScalingReplicaSet"]
    assert event.message.endswith("from 0 to 4")


def test_rolling_update_keeps_to_its_bounds() -> None:
    where = site()
    where.live()
    most, least = 0, 4

    def watch(kind: Any, old: Any, new: Any) -> None:
        nonlocal most, least
        alive = [p for p in where.pods() if not p["metadata"].get("deletionTimestamp")]
        most = max(most, len(alive))
        least = min(least, len([p for p in alive if p["status"].get("phase") == "Running"]))

    where.world.watchers.append(watch)
    where.image(DEPLOYMENT, "new")
    assert sizes(where) == [3, 2]
    where.live()
    assert sizes(where) == [0, 4]
    assert (most, least) == (5, 3)
    assert {p["spec"]["containers"][0]["image"] for p in where.pods()} == {"new"}
    assert where.read(DEPLOYMENT)["metadata"]["annotations"][REVISION] == "2"


def test_undo_takes_the_old_set_up_again() -> None:
    where = site()
    where.live()
    old = sets(where)[0]["metadata"]["name"]
    where.image(DEPLOYMENT, "new")
    where.live()
    where.image(DEPLOYMENT, "i")
    where.live()
    assert [entry["metadata"]["name"] for entry in sets(where)][-1] == old
    assert sizes(where) == [0, 4]
    annotations = sets(where)[-1]["metadata"]["annotations"]
    assert (annotations[REVISION], annotations["deployment.kubernetes.io/revision-history"]) == ("3", "1")
    assert where.read(DEPLOYMENT)["metadata"]["annotations"][REVISION] == "3"


def test_annotations_go_to_the_new_set() -> None:
    where = Site(build)
    body = deployment()
    body["metadata"]["annotations"] = {
        "kubernetes.io/change-cause": "because",
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
    }
    where.create(DEPLOYMENT, body)
    annotations = sets(where)[0]["metadata"]["annotations"]
    assert annotations["kubernetes.io/change-cause"] == "because"
    assert "kubectl.kubernetes.io/last-applied-configuration" not in annotations


def test_recreate_waits_for_every_old_pod() -> None:
    where = site(strategy={"type": "Recreate"}, replicas=2)
    where.live()
    where.image(DEPLOYMENT, "new")
    assert sizes(where) == [0]
    assert all(p["metadata"].get("deletionTimestamp") for p in where.pods())
    first, second = (p["metadata"]["name"] for p in where.pods())
    where.end(first)
    assert sizes(where) == [0]
    where.end(second)
    assert sizes(where) == [0, 2]
    where.live()
    assert conditions(where)["Progressing"] == ("True", "NewReplicaSetAvailable")


def test_history_is_cut() -> None:
    where = site(revisionHistoryLimit=1, replicas=1)
    for image in ("b", "c", "d"):
        where.live()
        where.image(DEPLOYMENT, image)
    where.live()
    assert [entry["metadata"]["annotations"][REVISION] for entry in sets(where)] == ["3", "4"]


def test_paused_changes_nothing_but_size() -> None:
    where = site()
    where.live()
    where.change(DEPLOYMENT, paused=True)
    assert conditions(where)["Progressing"] == ("Unknown", "DeploymentPaused")
    where.image(DEPLOYMENT, "new")
    assert sizes(where) == [4]
    where.change(DEPLOYMENT, replicas=6)
    assert sizes(where) == [6]
    where.change(DEPLOYMENT, paused=None)
    where.live()
    assert sizes(where) == [0, 6]


def test_a_size_in_mid_rollout_is_shared_out() -> None:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 3, "maxUnavailable": 2}}
    where = site(replicas=10, strategy=rolling)
    where.live()
    where.image(DEPLOYMENT, "new")
    assert sizes(where) == [8, 5]
    where.change(DEPLOYMENT, replicas=15)
    assert sizes(where) == [11, 7]
    bounds = [entry["metadata"]["annotations"]["deployment.kubernetes.io/max-replicas"] for entry in sets(where)]
    assert bounds == ["18", "18"]
    where.change(DEPLOYMENT, replicas=0)
    assert sizes(where) == [0, 0]


def test_deadline() -> None:
    where = site(progressDeadlineSeconds=30)
    where.harness.advance(29)
    assert conditions(where)["Progressing"] == ("True", "ReplicaSetUpdated")
    where.harness.advance(5)
    assert conditions(where)["Progressing"] == ("False", "ProgressDeadlineExceeded")
    where.live()
    assert conditions(where)["Progressing"] == ("True", "NewReplicaSetAvailable")


def test_pods_that_never_became_ready_go_before_good_ones() -> None:
    where = site()
    where.live()
    where.image(DEPLOYMENT, "broken")
    for found in where.pods():
        if found["spec"]["containers"][0]["image"] == "broken":
            where.set(found["metadata"]["name"], phase="Running", ready=False)
    where.rest()
    assert sizes(where) == [3, 2]
    where.image(DEPLOYMENT, "good")
    assert sum(sizes(where)) == 5
    assert sizes(where)[0] == 3
    where.live()
    assert sizes(where) == [0, 0, 4]


def test_a_taken_name_is_a_collision() -> None:
    where = Site(build)
    body = deployment()
    digest = template_hash(body["spec"]["template"])
    stranger = workload(f"w-{digest}", labels={"app": "other"}, replicas=0)
    where.world.create(REPLICASET, stranger)
    where.create(DEPLOYMENT, body)
    assert where.read(DEPLOYMENT)["status"]["collisionCount"] == 1
    where.live()
    assert conditions(where)["Progressing"] == ("True", "NewReplicaSetAvailable")


def test_failures_of_the_set_are_the_deployments() -> None:
    where = site()
    (made,) = sets(where)
    entry = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "no"}
    where.world.tables[REPLICASET.group, REPLICASET.plural]["default", made["metadata"]["name"]]["status"][
        "conditions"
    ] = [entry]
    assert conditions(where).get("ReplicaFailure") is None
    where.harness.start()
    where.world.deliver()
    where.harness.work(1, "default/w")
    assert conditions(where)["ReplicaFailure"] == ("True", "FailedCreate")


@pytest.mark.parametrize("seed", range(10))
def test_chaos_ends_in_the_new_template(seed: int) -> None:
    rng = random.Random(seed)
    where = Site(build)
    where.world.create(DEPLOYMENT, deployment())
    where.harness.settle_chaos(rng, crashes=5)
    where.live()
    pattern = where.read(DEPLOYMENT)["spec"]["template"]
    pattern = {**pattern, "spec": {"containers": [{"name": "c", "image": "new"}]}}
    where.world.update(DEPLOYMENT, "w", "default", lambda obj: obj["spec"].update(template=pattern))
    for _ in range(12):
        where.harness.settle_chaos(rng, crashes=2)
        for found in where.pods():
            if found["metadata"].get("deletionTimestamp"):
                where.end(found["metadata"]["name"])
            elif found["status"].get("phase") != "Running":
                where.set(found["metadata"]["name"], phase="Running")
    where.live()
    assert sizes(where) == [0, 4]
    assert len(where.world.all(POD)) == 4
