"""StatefulSets: order, ordinals, claims, updates with a partition and the status."""

from __future__ import annotations

import random
from typing import Any

import pytest

from drakkar.api.kinds import CONTROLLERREVISION, PERSISTENTVOLUMECLAIM, POD, STATEFULSET
from drakkar.controllers.statefulsets import StatefulSets
from tests.unit.controllers.objects import pod, workload
from tests.unit.controllers.site import Site
from tests.unit.controllers.world import World

PARALLEL = {"podManagementPolicy": "Parallel"}


def build(world: World) -> list[Any]:
    return [StatefulSets(world, world.clock)]


def stateful(**spec: Any) -> dict[str, Any]:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}
    base = {"replicas": 3, "updateStrategy": rolling, "revisionHistoryLimit": 10, "serviceName": "svc"}
    return workload(**{**base, "podManagementPolicy": "OrderedReady", **spec})


def site(**spec: Any) -> Site:
    made = Site(build)
    made.create(STATEFULSET, stateful(**spec))
    return made


def images(where: Site) -> dict[str, str]:
    return {
        p["metadata"]["name"]: p["spec"]["containers"][0]["image"]
        for p in where.pods()
        if not p["metadata"].get("deletionTimestamp")
    }


def status(where: Site) -> Any:
    return where.read(STATEFULSET)["status"]


def test_one_after_the_other() -> None:
    where = site()
    assert [*images(where)] == ["w-0"]
    where.run()
    assert [*images(where)] == ["w-0", "w-1"]
    where.set("w-1", phase="Running", ready=False)
    where.rest()
    assert [*images(where)] == ["w-0", "w-1"]
    where.live()
    where.set("w-1", phase="Running")
    where.live()
    assert [*images(where)] == ["w-0", "w-1", "w-2"]
    made = where.read(POD, "w-1")
    assert (made["spec"]["hostname"], made["spec"]["subdomain"]) == ("w-1", "svc")
    assert made["metadata"]["labels"] == {
        "app": "w",
        "statefulset.kubernetes.io/pod-name": "w-1",
        "apps.kubernetes.io/pod-index": "1",
        "controller-revision-hash": status(where)["updateRevision"],
    }
    assert [status(where)[f] for f in ("replicas", "readyReplicas", "availableReplicas", "updatedReplicas")] == [3] * 4
    assert status(where)["currentRevision"] == status(where)["updateRevision"]


def test_scaling_down_goes_from_the_last() -> None:
    where = site()
    where.live()
    where.change(STATEFULSET, replicas=1)
    assert [*images(where)] == ["w-0", "w-1"]
    where.end("w-2")
    assert [*images(where)] == ["w-0"]
    where.live()
    assert status(where)["replicas"] == 1


def test_parallel_and_ordinals() -> None:
    where = site(**PARALLEL, ordinals={"start": 5})
    assert [*images(where)] == ["w-5", "w-6", "w-7"]
    where.change(STATEFULSET, replicas=1)
    assert [*images(where)] == ["w-5"]


def test_claims_come_with_the_pods_and_stay() -> None:
    templates = [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]
    where = site(**PARALLEL, replicas=2, volumeClaimTemplates=templates)
    claims = {c["metadata"]["name"]: c for c in where.world.all(PERSISTENTVOLUMECLAIM)}
    assert [*claims] == ["data-w-0", "data-w-1"]
    assert claims["data-w-0"]["metadata"]["labels"] == {"app": "w"}
    assert not claims["data-w-0"]["metadata"].get("ownerReferences")
    source = {"claimName": "data-w-0", "readOnly": False}
    assert where.read(POD, "w-0")["spec"]["volumes"] == [{"name": "data", "persistentVolumeClaim": source}]
    where.change(STATEFULSET, replicas=1)
    where.live()
    assert len(where.world.all(PERSISTENTVOLUMECLAIM)) == 2


def test_claims_that_go_with_set_or_pod() -> None:
    templates = [{"metadata": {"name": "data"}, "spec": {}}]
    policy = {"whenDeleted": "Delete", "whenScaled": "Delete"}
    where = site(**PARALLEL, replicas=2, volumeClaimTemplates=templates, persistentVolumeClaimRetentionPolicy=policy)
    where.run()
    (owner,) = where.read(PERSISTENTVOLUMECLAIM, "data-w-1")["metadata"]["ownerReferences"]
    assert owner["kind"] == "StatefulSet"
    where.change(STATEFULSET, replicas=1)
    (owner,) = where.read(PERSISTENTVOLUMECLAIM, "data-w-1")["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Pod", "w-1")


def test_update_from_the_last_one_down_to_the_partition() -> None:
    where = site()
    where.live()
    before = status(where)["currentRevision"]
    where.change(STATEFULSET, updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"partition": 1}})
    where.image(STATEFULSET, "new")
    assert [*images(where)] == ["w-0", "w-1"]
    where.end("w-2")
    assert images(where) == {"w-0": "i", "w-1": "i", "w-2": "new"}
    where.live()
    assert images(where) == {"w-0": "i", "w-1": "new", "w-2": "new"}
    assert (status(where)["currentRevision"], status(where)["currentReplicas"]) == (before, 1)
    assert status(where)["updatedReplicas"] == 2
    where.end("w-0")
    where.live()
    assert images(where)["w-0"] == "i"
    where.change(STATEFULSET, updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"partition": 0}})
    where.live()
    assert set(images(where).values()) == {"new"}
    assert status(where)["currentRevision"] == status(where)["updateRevision"] != before
    assert [entry["revision"] for entry in where.world.all(CONTROLLERREVISION)] == [1, 2]


def test_several_at_once_where_allowed() -> None:
    where = site(
        **PARALLEL, replicas=4, updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}}
    )
    where.live()
    where.image(STATEFULSET, "new")
    assert [*images(where)] == ["w-0", "w-1"]
    where.live()
    assert set(images(where).values()) == {"new"}


def test_a_broken_update_is_cured_by_the_next() -> None:
    where = site(**PARALLEL)
    where.live()
    where.image(STATEFULSET, "broken")
    where.end("w-2")
    where.set("w-2", phase="Running", ready=False)
    where.rest()
    assert images(where) == {"w-0": "i", "w-1": "i", "w-2": "broken"}
    where.image(STATEFULSET, "good")
    where.end("w-2")
    where.live()
    assert set(images(where).values()) == {"good"}


def test_on_delete() -> None:
    where = site(updateStrategy={"type": "OnDelete"})
    where.live()
    where.image(STATEFULSET, "new")
    where.live()
    assert set(images(where).values()) == {"i"}
    where.end("w-1")
    where.live()
    assert images(where) == {"w-0": "i", "w-1": "new", "w-2": "i"}


def test_a_failed_pod_is_made_again_under_its_name() -> None:
    where = site()
    where.live()
    uid = where.read(POD, "w-1")["metadata"]["uid"]
    where.set("w-1", phase="Failed")
    where.rest()
    where.live()
    assert where.read(POD, "w-1")["metadata"]["uid"] != uid
    assert len(images(where)) == 3


def test_min_ready_seconds() -> None:
    where = site(minReadySeconds=5)
    where.run()
    assert [*images(where)] == ["w-0"]
    where.harness.advance(6)
    assert [*images(where)] == ["w-0", "w-1"]


def test_only_orphans_of_its_names_are_taken_in() -> None:
    where = Site(build)
    for name in ("w-0", "w-x", "other-1"):
        body = pod(name)
        body["metadata"]["labels"] = {"app": "w"}
        where.world.create(POD, body)
    where.create(STATEFULSET, stateful(replicas=1))
    owned = [p["metadata"]["name"] for p in where.pods() if p["metadata"].get("ownerReferences")]
    assert owned == ["w-0"]
    assert where.read(POD, "w-0")["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "0"


@pytest.mark.parametrize("seed", range(8))
def test_chaos(seed: int) -> None:
    rng = random.Random(seed)
    where = Site(build)
    templates = [{"metadata": {"name": "data"}, "spec": {}}]
    where.world.create(STATEFULSET, stateful(**PARALLEL, volumeClaimTemplates=templates))
    where.harness.settle_chaos(rng, crashes=5)
    assert [*images(where)] == ["w-0", "w-1", "w-2"]
    assert len(where.world.all(PERSISTENTVOLUMECLAIM)) == 3
    assert len(where.world.all(CONTROLLERREVISION)) == 1
