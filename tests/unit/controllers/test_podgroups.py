"""Claims of pod groups, and the protection of groups (spec/controllers.md 1.2 and 2)."""

from __future__ import annotations

from typing import Any

import pytest

from drakkar.api.kinds import POD, RESOURCECLAIM, RESOURCECLAIMTEMPLATE, RESOURCESLICE
from drakkar.client.writes import Delete
from drakkar.controllers.claims import Claims
from drakkar.controllers.podgroups import POD_GROUP, PodGroups
from drakkar.controllers.tainteviction import TaintEviction
from tests.unit.controllers.objects import claim, pod, slice_, template
from tests.unit.controllers.world import Harness, World

SHARED = {"name": "shared", "resourceClaimTemplateName": "t"}
OWN = {"name": "own", "resourceClaimTemplateName": "t"}


def build(world: World) -> list[Any]:
    claims: Any = Claims(world, world.clock, pod_groups=True)  # type: ignore[arg-type]
    return [claims, PodGroups(), TaintEviction(world.clock, pod_groups=True)]


def group() -> dict[str, Any]:
    meta = {"name": "g", "namespace": "default", "finalizers": ["scheduling.k8s.io/podgroup-protection"]}
    return {"metadata": meta, "spec": {"resourceClaims": [SHARED]}, "status": {}}


def member(name: str = "p", **rest: Any) -> dict[str, Any]:
    return pod(name, claims=[SHARED, OWN], schedulingGroup={"podGroupName": "g"}, **rest)


@pytest.fixture
def world() -> World:
    return World()


def test_one_claim_for_the_group_one_for_each_pod(world: World) -> None:
    world.create(RESOURCECLAIMTEMPLATE, template())
    harness = Harness(world, build)
    for name in ("p", "q"):
        world.create(POD, member(name))
    harness.settle()
    assert world.all(RESOURCECLAIM) == []  # whose claims these are, only the group can tell
    made = world.create(POD_GROUP, group())
    harness.settle()
    (shared,) = [c for c in world.all(RESOURCECLAIM) if c["metadata"]["name"].startswith("g-shared-")]
    (owner,) = shared["metadata"]["ownerReferences"]
    assert (owner["apiVersion"], owner["kind"]) == ("scheduling.k8s.io/v1beta1", "PodGroup")
    assert owner["uid"] == made["metadata"]["uid"]
    for name in ("p", "q"):
        statuses = world.read(POD, name)["status"]["resourceClaimStatuses"]
        entries = {entry["name"]: entry["resourceClaimName"] for entry in statuses}
        assert entries["shared"] == shared["metadata"]["name"]
        assert entries["own"].startswith(f"{name}-own-")


def test_group_holds_its_claim_until_the_last_pod_ended(world: World) -> None:
    made = world.create(POD_GROUP, group())
    world.create(POD, member(node="n", phase="Running"))
    body = claim(allocated=True)
    reference = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g"}
    body["status"]["reservedFor"] = [{**reference, "uid": made["metadata"]["uid"]}]
    world.create(RESOURCECLAIM, body)
    harness = Harness(world, build)
    world.delete(Delete(POD_GROUP, "default", "g"))
    harness.settle()
    assert world.read(POD_GROUP, "g") is not None
    assert world.read(RESOURCECLAIM, "c")["status"]["reservedFor"]
    world.update(POD, "p", "default", lambda p: p["status"].update(phase="Succeeded"))
    harness.settle()
    assert world.read(POD_GROUP, "g") is None
    assert world.read(RESOURCECLAIM, "c")["status"] == {}


def test_taint_evicts_the_pods_of_a_group(world: World) -> None:
    made = world.create(POD_GROUP, group())
    for name in ("p", "q"):
        world.create(POD, member(name, node="n", phase="Running"))
    body = claim(allocated=True)
    reference = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g"}
    body["status"]["reservedFor"] = [{**reference, "uid": made["metadata"]["uid"]}]
    world.create(RESOURCECLAIM, body)
    world.create(RESOURCESLICE, slice_(taints=[{"key": "bad", "effect": "NoExecute"}]))
    Harness(world, build).settle()
    assert all(p["metadata"].get("deletionTimestamp") for p in world.all(POD))


def test_claims_are_counted_by_state_and_source(world: World) -> None:
    world.create(RESOURCECLAIMTEMPLATE, template())
    harness = Harness(world, build)
    (claims, *_) = harness.controllers
    world.create(POD, pod("p", claims=[OWN]))
    world.create(RESOURCECLAIM, claim("plain", allocated=True))
    harness.settle()
    name = "resourceclaim_controller_resource_claims"
    assert claims.metrics_text().splitlines()[2:] == [
        f'{name}{{allocated="false",admin_access="false",source="resource_claim_template"}} 1',
        f'{name}{{allocated="true",admin_access="false",source=""}} 1',
    ]
