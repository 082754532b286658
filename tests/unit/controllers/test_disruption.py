"""PodDisruptionBudgets: what the numbers and the condition say."""

from __future__ import annotations

from typing import Any

import pytest

from drakkar.api.kinds import DEPLOYMENT, POD, PODDISRUPTIONBUDGET, REPLICASET
from drakkar.client.clock import timestamp
from drakkar.controllers.deployments import Deployments
from drakkar.controllers.disruption import Disruption
from drakkar.controllers.replicasets import ReplicaSets
from tests.unit.controllers.objects import pod, workload
from tests.unit.controllers.site import Site
from tests.unit.controllers.world import World


def build(world: World) -> list[Any]:
    return [Disruption(world.clock), ReplicaSets(world, world.clock), Deployments(world, world.clock)]


def budget(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "w"}}, **spec},
    }


def numbers(where: Site) -> tuple[int, ...]:
    status = where.read(PODDISRUPTIONBUDGET, "b")["status"]
    fields = ("expectedPods", "currentHealthy", "desiredHealthy", "disruptionsAllowed")
    return tuple(status[field] for field in fields)


def condition(where: Site) -> tuple[str, str]:
    (entry,) = where.read(PODDISRUPTIONBUDGET, "b")["status"]["conditions"]
    return entry["status"], entry["reason"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"minAvailable": 2}, (4, 4, 2, 2)),
        ({"minAvailable": "60%"}, (4, 4, 3, 1)),
        ({"maxUnavailable": 1}, (4, 4, 3, 1)),
        ({"maxUnavailable": "30%"}, (4, 4, 2, 2)),
        ({"maxUnavailable": 0}, (4, 4, 4, 0)),
        ({"minAvailable": 9}, (4, 4, 9, 0)),
    ],
)
def test_numbers(spec: dict[str, Any], expected: tuple[int, ...]) -> None:
    where = Site(build)
    where.create(REPLICASET, workload(replicas=4))
    where.create(PODDISRUPTIONBUDGET, budget(**spec))
    assert numbers(where)[1] == numbers(where)[3] == 0
    assert condition(where) == ("False", "InsufficientPods")
    where.run()
    assert numbers(where) == expected
    assert condition(where) == (("True", "SufficientPods") if expected[3] else ("False", "InsufficientPods"))
    assert where.read(PODDISRUPTIONBUDGET, "b")["status"]["observedGeneration"] == 1


def test_the_deployment_says_how_many() -> None:
    where = Site(build)
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2, "maxUnavailable": 0}}
    where.create(DEPLOYMENT, workload(replicas=4, strategy=strategy))
    where.create(PODDISRUPTIONBUDGET, budget(maxUnavailable="50%"))
    where.live()
    where.image(DEPLOYMENT, "new")
    assert len(where.pods()) == 6
    assert numbers(where) == (4, 4, 2, 2)
    where.change(DEPLOYMENT, replicas=8)
    assert numbers(where)[0] == 8


def test_a_granted_eviction_counts_until_it_is_void() -> None:
    where = Site(build)
    where.create(REPLICASET, workload(replicas=2))
    where.run()
    name = where.pods()[0]["metadata"]["name"]
    body = budget(minAvailable=1)
    body["status"] = {"disruptedPods": {name: timestamp(where.world.clock.now), "gone": "2026-01-01T00:00:00Z"}}
    where.create(PODDISRUPTIONBUDGET, body)
    assert numbers(where) == (2, 1, 1, 0)
    assert [*where.read(PODDISRUPTIONBUDGET, "b")["status"]["disruptedPods"]] == [name]
    where.harness.advance(125)
    assert numbers(where) == (2, 2, 1, 1)
    assert not where.read(PODDISRUPTIONBUDGET, "b")["status"].get("disruptedPods")
    assert "NotDeleted" in [event.reason for event in where.world.events]


def test_a_pod_whose_workload_has_no_size_permits_nothing() -> None:
    where = Site(build)
    body = pod("p")
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
    body["metadata"] |= {"labels": {"app": "w"}, "ownerReferences": [reference]}
    where.world.create(POD, body)
    where.create(PODDISRUPTIONBUDGET, budget(maxUnavailable=1))
    assert condition(where) == ("False", "SyncFailed")
    assert where.read(PODDISRUPTIONBUDGET, "b")["status"]["disruptionsAllowed"] == 0


def test_selectors() -> None:
    where = Site(build)
    where.create(POD, pod("p"))
    body = budget(minAvailable=1)
    body["spec"]["selector"] = {}
    where.create(PODDISRUPTIONBUDGET, body)
    assert numbers(where)[0] == 1
    where.change(PODDISRUPTIONBUDGET, "b", selector=None)
    assert numbers(where)[0] == 0
