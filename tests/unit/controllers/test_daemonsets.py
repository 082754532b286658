"""DaemonSets: which nodes, updates, revisions and the status."""

from __future__ import annotations

import random
from typing import Any

import pytest

from drakkar.api.kinds import CONTROLLERREVISION, DAEMONSET, NODE, POD
from drakkar.controllers.daemonsets import DaemonSets, target_node
from tests.unit.controllers.objects import node, workload
from tests.unit.controllers.site import Site
from tests.unit.controllers.world import World


def build(world: World) -> list[Any]:
    return [DaemonSets(world, world.clock)]


def daemons(**spec: Any) -> dict[str, Any]:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}
    return workload(**{"updateStrategy": rolling, "revisionHistoryLimit": 10, **spec})


def site(nodes: int = 3, **spec: Any) -> Site:
    made = Site(build)
    for number in range(nodes):
        made.world.create(NODE, node(f"n{number}"))
    made.create(DAEMONSET, daemons(**spec))
    return made


def on(where: Site) -> dict[str, str]:
    """Node -> image of its pod that is not asked to go."""
    return {
        target_node(p): p["spec"]["containers"][0]["image"]
        for p in where.pods()
        if not p["metadata"].get("deletionTimestamp")
    }


def numbers(where: Site) -> tuple[int, ...]:
    status = where.read(DAEMONSET)["status"]
    fields = ("desiredNumberScheduled", "currentNumberScheduled", "updatedNumberScheduled", "numberAvailable")
    return tuple(status.get(field) or 0 for field in fields)


def test_one_pod_per_node() -> None:
    where = site()
    assert sorted(on(where)) == ["n0", "n1", "n2"]
    made = where.pods()[0]
    (term,) = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [target_node(made)]}]}
    keys = {entry["key"].split("/")[1] for entry in made["spec"]["tolerations"]}
    assert keys == {
        "not-ready",
        "unreachable",
        "disk-pressure",
        "memory-pressure",
        "pid-pressure",
        "unschedulable",
    }
    (revision,) = where.world.all(CONTROLLERREVISION)
    digest = revision["metadata"]["labels"]["controller-revision-hash"]
    assert made["metadata"]["labels"]["controller-revision-hash"] == digest
    assert revision["data"]["spec"]["template"]["$patch"] == "replace"
    assert numbers(where) == (3, 3, 3, 0)
    where.run()
    assert numbers(where) == (3, 3, 3, 3)
    where.world.create(NODE, node("n3"))
    where.rest()
    assert "n3" in on(where)


def test_selector_and_taints_decide() -> None:
    where = Site(build)
    for name, labels, taints in (
        ("plain", {}, ()),
        ("good", {"disk": "ssd"}, ()),
        ("tainted", {"disk": "ssd"}, [{"key": "k", "effect": "NoSchedule"}]),
        ("cordoned", {"disk": "ssd"}, [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]),
    ):
        body = node(name, taints=taints)
        body["metadata"]["labels"] = labels
        where.world.create(NODE, body)
    made = daemons()
    made["spec"]["template"]["spec"]["nodeSelector"] = {"disk": "ssd"}
    where.create(DAEMONSET, made)
    assert sorted(on(where)) == ["cordoned", "good"]

    def taint(effect: str) -> Any:
        return lambda n: n["spec"].update(taints=[{"key": "k", "effect": effect}])

    where.live()
    where.world.update(NODE, "good", "", taint("NoSchedule"))
    where.rest()
    assert sorted(on(where)) == ["cordoned", "good"]
    assert where.read(DAEMONSET)["status"]["numberMisscheduled"] == 1
    where.world.update(NODE, "good", "", taint("NoExecute"))
    where.rest()
    assert sorted(on(where)) == ["cordoned"]


def test_a_failed_daemon_is_replaced_after_longer_and_longer_pauses() -> None:
    where = site(1)
    gone = []
    for pause in (0, 1, 2):
        (found,) = where.pods()
        where.set(found["metadata"]["name"], phase="Failed")
        if pause:
            where.harness.advance(pause - 0.6)
            assert [p["metadata"]["uid"] for p in where.pods()] == [found["metadata"]["uid"]]
            where.harness.advance(0.7)
        where.rest()
        (next_,) = where.pods()
        assert next_["metadata"]["uid"] != found["metadata"]["uid"]
        gone.append(found)
    assert [event.reason for event in where.world.events].count("FailedDaemonPod") == 3


def test_rolling_update_goes_node_by_node() -> None:
    where = site()
    where.run()
    where.image(DAEMONSET, "new")
    assert len(on(where)) == 2
    assert set(on(where).values()) == {"i"}
    (leaving,) = [p for p in where.pods() if p["metadata"].get("deletionTimestamp")]
    where.end(leaving["metadata"]["name"])
    assert sorted(on(where).values()) == ["i", "i", "new"]
    where.live()
    assert set(on(where).values()) == {"new"}
    assert numbers(where) == (3, 3, 3, 3)
    revisions = sorted(entry["revision"] for entry in where.world.all(CONTROLLERREVISION))
    assert revisions == [1, 2]
    where.image(DAEMONSET, "i")
    where.live()
    assert sorted(entry["revision"] for entry in where.world.all(CONTROLLERREVISION)) == [2, 3]
    assert set(on(where).values()) == {"i"}


def test_on_delete_waits_for_the_user() -> None:
    where = site(updateStrategy={"type": "OnDelete"})
    where.live()
    where.image(DAEMONSET, "new")
    assert set(on(where).values()) == {"i"}
    assert numbers(where) == (3, 3, 0, 3)
    where.end(where.pods()[0]["metadata"]["name"])
    assert sorted(on(where).values()) == ["i", "i", "new"]


def test_surge_starts_the_new_one_first() -> None:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    where = site(updateStrategy=rolling)
    where.live()
    where.image(DAEMONSET, "new")
    assert len(where.pods()) == 4
    assert not any(p["metadata"].get("deletionTimestamp") for p in where.pods())
    where.live()
    assert set(on(where).values()) == {"new"}
    assert len(where.pods()) == 3


def test_history_is_cut() -> None:
    where = site(1, revisionHistoryLimit=1)
    for image in ("a", "b", "c"):
        where.live()
        where.image(DAEMONSET, image)
    where.live()
    assert sorted(entry["revision"] for entry in where.world.all(CONTROLLERREVISION)) == [3, 4]


def test_an_unbound_pod_of_a_node_that_is_gone_goes() -> None:
    where = site(2)
    from drakkar.client.writes import Delete

    where.world.delete(Delete(NODE, "", "n0"))
    where.rest()
    assert sorted(on(where)) == ["n1"]


@pytest.mark.parametrize("seed", range(8))
def test_chaos(seed: int) -> None:
    rng = random.Random(seed)
    where = Site(build)
    for number in range(4):
        where.world.create(NODE, node(f"n{number}"))
    where.world.create(DAEMONSET, daemons())
    where.harness.settle_chaos(rng, crashes=5)
    assert sorted(on(where)) == ["n0", "n1", "n2", "n3"]
    assert len(where.world.all(POD)) == 4
    assert len(where.world.all(CONTROLLERREVISION)) == 1
