"""Garbage collection by owner UID."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from drakkar.api.kinds import CONFIGMAP, DEPLOYMENT, JOB, NODE, POD, RESOURCECLAIM, RESOURCESLICE
from drakkar.client.writes import Delete
from drakkar.controllers.garbage import Garbage
from tests.unit.controllers.objects import claim, job, node, pod, slice_
from tests.unit.controllers.world import Harness, World, failure

SERVED = {"/apis/apps/v1": [{"kind": "Deployment", "name": "deployments", "namespaced": True}]}


class Server:
    """The world, and discovery."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.get = world.get

    async def send(self, method: str, path: str) -> Any:
        if path not in SERVED:
            raise failure(404, "NotFound", path)
        return SimpleNamespace(body=msgspec.json.encode({"resources": SERVED[path]}))


def build(world: World) -> list[Any]:
    return [Garbage(Server(world))]  # type: ignore[arg-type]


@pytest.fixture
def world() -> World:
    return World()


def owned_by(kind: Any, owner: dict[str, Any], *, block: bool = True) -> dict[str, Any]:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": block,
    }


def with_owner(obj: dict[str, Any], *references: dict[str, Any]) -> dict[str, Any]:
    obj["metadata"]["ownerReferences"] = list(references)
    return obj


def test_dependents_follow_in_the_background(world: World) -> None:
    owner = world.create(JOB, job())
    middle = world.create(POD, with_owner(pod(), owned_by(JOB, owner)))
    world.create(RESOURCECLAIM, with_owner(claim(), owned_by(POD, middle)))
    harness = Harness(world, build)
    harness.settle()
    assert len(world.all(RESOURCECLAIM)) == 1
    world.delete(Delete(JOB, "default", "j"))
    harness.settle()
    assert world.all(POD) == world.all(RESOURCECLAIM) == []


def test_owner_that_went_while_nobody_looked(world: World) -> None:
    world.create(POD, with_owner(pod(), owned_by(JOB, {"metadata": {"name": "j", "uid": "gone"}})))
    Harness(world, build).settle()
    assert world.all(POD) == []


def test_namesake_is_no_owner(world: World) -> None:
    world.create(JOB, job())
    world.create(POD, with_owner(pod(), owned_by(JOB, {"metadata": {"name": "j", "uid": "older"}})))
    Harness(world, build).settle()
    assert world.all(POD) == []


def test_owner_unseen_by_the_cache_is_asked_for(world: World) -> None:
    harness = Harness(world, build)
    owner = world.create(JOB, job())
    world.create(POD, with_owner(pod(), owned_by(JOB, owner)))
    world.deliver((POD.group, POD.plural))
    assert harness.work(0, "0:default/p") == []


def test_one_of_two_owners_is_enough(world: World) -> None:
    first = world.create(JOB, job("one"))
    second = world.create(JOB, job("two"))
    world.create(CONFIGMAP, with_owner({"metadata": {"name": "c"}}, owned_by(JOB, first), owned_by(JOB, second)))
    harness = Harness(world, build)
    world.delete(Delete(JOB, "default", "one"))
    harness.settle()
    (left,) = world.read(CONFIGMAP, "c")["metadata"]["ownerReferences"]
    assert left["name"] == "two"


def test_cluster_scoped_owner(world: World) -> None:
    owner = world.create(NODE, node())
    world.create(RESOURCESLICE, with_owner(slice_(), owned_by(NODE, owner)))
    harness = Harness(world, build)
    harness.settle()
    assert len(world.all(RESOURCESLICE)) == 1
    world.delete(Delete(NODE, "", "n"))
    harness.settle()
    assert world.all(RESOURCESLICE) == []


def test_namespaced_owner_of_a_cluster_scoped_object_is_an_error(world: World) -> None:
    world.create(RESOURCESLICE, with_owner(slice_(), owned_by(POD, {"metadata": {"name": "p", "uid": "u"}})))
    Harness(world, build).settle()
    assert len(world.all(RESOURCESLICE)) == 1
    assert [event.reason for event in world.events] == ["OwnerRefInvalidNamespace"]


def test_foreground_waits_for_blocking_dependents(world: World) -> None:
    owner = world.create(JOB, job())
    body = with_owner(pod(node="n", phase="Running"), owned_by(JOB, owner))
    world.create(POD, body)
    harness = Harness(world, build)
    world.delete(Delete(JOB, "default", "j", propagation="Foreground"))
    harness.settle()
    assert world.read(JOB, "j") is not None
    assert world.read(POD, "p")["metadata"]["deletionTimestamp"]
    world.delete(Delete(POD, "default", "p", grace=0))
    harness.settle()
    assert world.read(JOB, "j") is None


def test_orphans_stay(world: World) -> None:
    owner = world.create(JOB, job())
    world.create(POD, with_owner(pod(), owned_by(JOB, owner)))
    harness = Harness(world, build)
    world.delete(Delete(JOB, "default", "j", propagation="Orphan"))
    harness.settle()
    assert world.read(JOB, "j") is None
    assert "ownerReferences" not in world.read(POD, "p")["metadata"]


def test_owner_of_another_kind_is_found_by_discovery(world: World) -> None:
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "u", "controller": True}
    world.create(CONFIGMAP, with_owner({"metadata": {"name": "c"}}, reference))
    Harness(world, build).settle()
    assert world.all(CONFIGMAP) == []


def test_owner_of_another_kind_is_heard_of_when_it_goes(world: World) -> None:
    owner = world.create(DEPLOYMENT, {"metadata": {"name": "d", "namespace": "default"}})
    world.create(CONFIGMAP, with_owner({"metadata": {"name": "c"}}, owned_by(DEPLOYMENT, owner)))
    harness = Harness(world, lambda world: [Garbage(Server(world), [CONFIGMAP])])  # type: ignore[arg-type]
    harness.settle()
    assert len(world.all(CONFIGMAP)) == 1
    world.delete(Delete(DEPLOYMENT, "default", "d"))
    harness.settle()
    assert world.all(CONFIGMAP) == []


def test_owner_of_another_kind_is_asked_for_again_until_it_is_watched(world: World) -> None:
    owner = world.create(DEPLOYMENT, {"metadata": {"name": "d", "namespace": "default"}})
    world.create(CONFIGMAP, with_owner({"metadata": {"name": "c"}}, owned_by(DEPLOYMENT, owner)))
    harness = Harness(world, lambda world: [Garbage(Server(world), [CONFIGMAP])])  # type: ignore[arg-type]
    world.caches.of(DEPLOYMENT).synced.clear()
    harness.settle()
    # It goes before the watch has begun.
    world.caches.of(DEPLOYMENT).subscribers.clear()
    world.delete(Delete(DEPLOYMENT, "default", "d"))
    harness.settle()
    assert len(world.all(CONFIGMAP)) == 1
    harness.advance(1.0)
    assert world.all(CONFIGMAP) == []


def test_owner_of_an_unknown_kind_counts_as_alive(world: World) -> None:
    reference = {"apiVersion": "x.y/v1", "kind": "Thing", "name": "t", "uid": "u"}
    world.create(CONFIGMAP, with_owner({"metadata": {"name": "c"}}, reference))
    Harness(world, build).settle()
    assert len(world.all(CONFIGMAP)) == 1


@pytest.mark.parametrize("seed", range(20))
def test_only_what_lost_all_owners_goes(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    harness = Harness(world, build)
    owners = [world.create(JOB, job(f"j{n}")) for n in range(4)]
    kept: dict[str, set[str]] = {}
    for number in range(12):
        chosen = rng.sample(owners, rng.randint(1, 3))
        name = f"c{number}"
        kept[name] = {owner["metadata"]["name"] for owner in chosen}
        world.create(CONFIGMAP, with_owner({"metadata": {"name": name}}, *(owned_by(JOB, o) for o in chosen)))
    gone = {f"j{n}" for n in range(4) if rng.random() < 0.5}
    for name in gone:
        world.delete(Delete(JOB, "default", name, propagation=rng.choice(["Background", "Foreground"])))
    harness.settle_chaos(rng, crashes=3)
    left = {obj["metadata"]["name"] for obj in world.all(CONFIGMAP)}
    assert left == {name for name, names in kept.items() if names - gone}
    assert {obj["metadata"]["name"] for obj in world.all(JOB)} == {f"j{n}" for n in range(4)} - gone
