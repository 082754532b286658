"""Claims from templates, reservations, clean-up (spec/controllers.md 1)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from drakkar.api.kinds import POD, RESOURCECLAIM, RESOURCECLAIMTEMPLATE
from drakkar.client.writes import Create, Delete, Patch, Record
from drakkar.controllers.claims import Claims, claim_name_base
from tests.unit.controllers.objects import CONTROLLER, claim, pod, template
from tests.unit.controllers.world import Harness, World

FROM_TEMPLATE = [{"name": "dev", "resourceClaimTemplateName": "t"}]
FINALIZER = "resource.kubernetes.io/delete-protection"


def build(world: World) -> list[Any]:
    return [Claims(world, world.clock)]  # type: ignore[arg-type]


@pytest.fixture
def world() -> World:
    return World()


def owned(owner: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    reference = {"apiVersion": "v1", "kind": "Pod", "name": owner["metadata"]["name"], **CONTROLLER}
    reference["uid"] = owner["metadata"]["uid"]
    annotations = {"resource.kubernetes.io/pod-claim-name": "dev"}
    return {"ownerReferences": [reference], "annotations": annotations, **metadata}


def test_claim_is_made_from_template_and_noted(world: World) -> None:
    world.create(RESOURCECLAIMTEMPLATE, template())
    owner = world.create(POD, pod(claims=FROM_TEMPLATE))
    Harness(world, build).settle()
    (made,) = world.all(RESOURCECLAIM)
    assert made["metadata"]["name"].startswith("p-dev-")
    assert made["metadata"]["generateName"] == "p-dev-"
    assert made["metadata"]["labels"] == {"a": "b"}
    assert made["metadata"]["annotations"] == {"resource.kubernetes.io/pod-claim-name": "dev"}
    (reference,) = made["metadata"]["ownerReferences"]
    assert reference == {
        "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner["metadata"]["uid"],
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    status = world.read(POD, "p")["status"]
    assert status["resourceClaimStatuses"] == [{"name": "dev", "resourceClaimName": made["metadata"]["name"]}]


def test_writes_of_a_new_pod(world: World) -> None:
    world.create(RESOURCECLAIMTEMPLATE, template())
    world.create(POD, pod(claims=FROM_TEMPLATE))
    writes = Harness(world, build).reconcile(0, "pod:default/p")
    assert [type(write) for write in writes] == [Create, Patch]
    assert writes[0].refused.reason == "FailedResourceClaimCreation"
    assert writes[1].subresource == "status"


def test_nothing_for_named_claims_done_or_deleted_pods(world: World) -> None:
    world.create(RESOURCECLAIMTEMPLATE, template())
    world.create(POD, pod("a", claims=[{"name": "dev", "resourceClaimName": "c"}]))
    world.create(POD, pod("b", claims=FROM_TEMPLATE, phase="Succeeded"))
    gone = world.create(POD, pod("d", claims=FROM_TEMPLATE, node="n"))
    world.delete(Delete(POD, "default", "d", uid=gone["metadata"]["uid"]))
    Harness(world, build).settle()
    assert world.all(RESOURCECLAIM) == []


def test_entry_without_name_needs_no_claim(world: World) -> None:
    world.create(RESOURCECLAIMTEMPLATE, template())
    owner = pod(claims=FROM_TEMPLATE)
    owner["status"]["resourceClaimStatuses"] = [{"name": "dev"}]
    world.create(POD, owner)
    Harness(world, build).settle()
    assert world.all(RESOURCECLAIM) == []


def test_adopts_after_a_crash(world: World) -> None:
    world.create(RESOURCECLAIMTEMPLATE, template())
    owner = world.create(POD, pod(claims=FROM_TEMPLATE))
    world.create(RESOURCECLAIM, claim("orphan", **owned(owner)))
    Harness(world, build).settle()
    assert len(world.all(RESOURCECLAIM)) == 1
    assert world.read(POD, "p")["status"]["resourceClaimStatuses"][0]["resourceClaimName"] == "orphan"


@pytest.mark.parametrize("foreign", [False, True])
def test_lost_claim_is_made_anew(world: World, foreign: bool) -> None:
    world.create(RESOURCECLAIMTEMPLATE, template())
    owner = pod(claims=FROM_TEMPLATE)
    owner["status"]["resourceClaimStatuses"] = [{"name": "dev", "resourceClaimName": "lost"}]
    world.create(POD, owner)
    if foreign:
        world.create(RESOURCECLAIM, claim("lost"))
    Harness(world, build).settle()
    name = world.read(POD, "p")["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
    assert name.startswith("p-dev-")
    assert world.read(RESOURCECLAIM, name) is not None


def test_missing_template_leaves_event_and_appearing_heals(world: World) -> None:
    world.create(POD, pod(claims=FROM_TEMPLATE))
    harness = Harness(world, build)
    harness.settle()
    (event,) = world.events
    assert (event.type, event.reason) == ("Warning", "FailedResourceClaimCreation")
    assert event.message.startswith("PodResourceClaim dev: ")
    world.create(RESOURCECLAIMTEMPLATE, template())
    harness.settle()
    assert len(world.all(RESOURCECLAIM)) == 1


def test_admin_access_is_refused_while_off(world: World) -> None:
    world.create(RESOURCECLAIMTEMPLATE, template(adminAccess=True))
    world.create(POD, pod(claims=FROM_TEMPLATE))
    Harness(world, lambda w: [Claims(w, w.clock, admin_access=False)]).settle()  # type: ignore[arg-type]
    assert world.all(RESOURCECLAIM) == []
    assert [type(event) for event in world.events] == [Record]


def test_stale_cache_makes_no_second_claim(world: World) -> None:
    world.create(RESOURCECLAIMTEMPLATE, template())
    world.create(POD, pod(claims=FROM_TEMPLATE))
    harness = Harness(world, build)
    for write in harness.reconcile(0, "pod:default/p"):
        world.execute(write)
    harness.queues[0].add("pod:default/p")
    harness.work(0, "pod:default/p")  # the cache has seen neither claim nor status
    harness.settle()
    assert len(world.all(RESOURCECLAIM)) == 1


@pytest.mark.parametrize(
    ("owner", "entry", "base"),
    [
        ("p", "dev", "p-dev-"),
        ("a" * 60, "dev", "a" * 52 + "-de-"),
        ("a" * 40, "b" * 40, "a" * 27 + "-" + "b" * 27 + "-"),
    ],
)
def test_long_names_are_cut_in_proportion(owner: str, entry: str, base: str) -> None:
    assert claim_name_base(owner, entry) == base
    assert len(base) <= 58


def test_reserves_for_a_pod_that_bypassed_the_scheduler(world: World) -> None:
    world.create(RESOURCECLAIM, claim(allocated=True))
    owner = world.create(POD, pod(claims=[{"name": "x", "resourceClaimName": "c"}], node="n"))
    Harness(world, build).settle()
    reserved = world.read(RESOURCECLAIM, "c")["status"]["reservedFor"]
    assert reserved == [{"resource": "pods", "name": "p", "uid": owner["metadata"]["uid"]}]


def test_unallocated_claim_stays_unreserved(world: World) -> None:
    world.create(RESOURCECLAIM, claim())
    world.create(POD, pod(claims=[{"name": "x", "resourceClaimName": "c"}], node="n"))
    Harness(world, build).settle()
    assert "reservedFor" not in world.read(RESOURCECLAIM, "c")["status"]


def test_last_consumer_takes_the_allocation_along(world: World) -> None:
    one = world.create(POD, pod("one", node="n"))
    two = world.create(POD, pod("two", node="n"))
    reserved = [("one", one["metadata"]["uid"]), ("two", two["metadata"]["uid"])]
    world.create(RESOURCECLAIM, claim(allocated=True, reserved=reserved))
    harness = Harness(world, build)
    harness.settle()
    assert len(world.read(RESOURCECLAIM, "c")["status"]["reservedFor"]) == 2
    world.update(POD, "one", "default", lambda p: p["status"].update(phase="Failed"))
    harness.settle()
    status = world.read(RESOURCECLAIM, "c")["status"]
    assert [ref["name"] for ref in status["reservedFor"]] == ["two"]
    assert "allocation" in status
    world.delete(Delete(POD, "default", "two", grace=0))
    harness.settle()
    after = world.read(RESOURCECLAIM, "c")
    assert after["status"] == {}
    assert "finalizers" not in after["metadata"]


def test_stale_pod_cache_drops_nobody(world: World) -> None:
    """The claim names a pod that the cache has not seen: only the server may say that it is gone."""
    harness = Harness(world, build)
    new = world.create(POD, pod(node="n"))
    world.create(RESOURCECLAIM, claim(allocated=True, reserved=[("p", new["metadata"]["uid"])]))
    world.deliver((RESOURCECLAIM.group, RESOURCECLAIM.plural))
    assert harness.work(0, "claim:default/c") == []


def test_replaced_pod_loses_its_place(world: World) -> None:
    world.create(POD, pod(node="n"))
    world.create(RESOURCECLAIM, claim(allocated=True, reserved=[("p", "older")]))
    Harness(world, build).settle()
    assert world.read(RESOURCECLAIM, "c")["status"] == {}


def test_unknown_consumer_is_kept(world: World) -> None:
    body = claim(allocated=True)
    body["status"]["reservedFor"] = [{"apiGroup": "x.y", "resource": "things", "name": "t", "uid": "u"}]
    world.create(RESOURCECLAIM, body)
    Harness(world, build).settle()
    assert len(world.read(RESOURCECLAIM, "c")["status"]["reservedFor"]) == 1


def test_allocated_but_never_reserved_is_left_alone(world: World) -> None:
    world.create(RESOURCECLAIM, claim(allocated=True))
    harness = Harness(world, build)
    harness.advance(120)
    assert "allocation" in world.read(RESOURCECLAIM, "c")["status"]


def test_deleted_claim_goes_once_unreserved(world: World) -> None:
    world.create(RESOURCECLAIM, claim(allocated=True))
    world.delete(Delete(RESOURCECLAIM, "default", "c"))
    Harness(world, build).settle()
    assert world.read(RESOURCECLAIM, "c") is None


def test_finalizer_between_the_schedulers_writes_is_left_for_a_while(world: World) -> None:
    world.create(RESOURCECLAIM, claim(finalizers=[FINALIZER, "other"]))
    harness = Harness(world, build)
    harness.advance(29)
    assert world.read(RESOURCECLAIM, "c")["metadata"]["finalizers"] == [FINALIZER, "other"]
    harness.advance(2)
    assert world.read(RESOURCECLAIM, "c")["metadata"]["finalizers"] == ["other"]


def test_claim_of_a_done_pod_is_deleted(world: World) -> None:
    owner = world.create(POD, pod(claims=FROM_TEMPLATE, node="n", phase="Running"))
    uid = owner["metadata"]["uid"]
    world.create(RESOURCECLAIM, claim("mine", allocated=True, reserved=[("p", uid)], **owned(owner)))
    harness = Harness(world, build)
    harness.settle()
    world.update(POD, "p", "default", lambda p: p["status"].update(phase="Succeeded"))
    harness.settle()
    assert world.all(RESOURCECLAIM) == []


def test_claim_of_a_missing_pod_is_left_to_the_collector(world: World) -> None:
    owner = {"metadata": {"name": "gone", "uid": "u"}}
    world.create(RESOURCECLAIM, claim("mine", **owned(owner)))
    Harness(world, build).settle()
    assert len(world.all(RESOURCECLAIM)) == 1


@pytest.mark.parametrize("seed", range(40))
def test_any_order_any_crash_one_claim_per_entry(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    world.create(RESOURCECLAIMTEMPLATE, template())
    entries = [{"name": "a", "resourceClaimTemplateName": "t"}, {"name": "b", "resourceClaimTemplateName": "t"}]
    harness = Harness(world, build)
    for name in ("x", "y", "z"):
        world.create(POD, pod(name, claims=entries, node="n"))
    harness.settle_chaos(rng, crashes=5)
    assert len(world.all(RESOURCECLAIM)) == 6

    def allocate(c: dict[str, Any]) -> None:
        c["metadata"]["finalizers"] = [FINALIZER]
        result = {"request": "r", "driver": "drv", "pool": "pool", "device": "d"}
        c["status"] = {"allocation": {"devices": {"results": [result]}}}

    for name in [made["metadata"]["name"] for made in world.all(RESOURCECLAIM)]:
        world.update(RESOURCECLAIM, name, "default", allocate)
    harness.settle_chaos(rng, crashes=5)
    assert all(len(made["status"]["reservedFor"]) == 1 for made in world.all(RESOURCECLAIM))
    for name in ("x", "y", "z"):
        world.update(POD, name, "default", lambda p: p["status"].update(phase="Failed"))
    harness.settle_chaos(rng, crashes=5)
    assert world.all(RESOURCECLAIM) == []
