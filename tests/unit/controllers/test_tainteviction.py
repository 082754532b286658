"""Eviction from tainted devices (spec/controllers.md 3)."""

from __future__ import annotations

from typing import Any

import pytest

from drakkar.api.kinds import DEVICETAINTRULE, POD, RESOURCECLAIM, RESOURCESLICE
from drakkar.client.clock import timestamp
from drakkar.client.writes import After, Delete, Patch, Record
from drakkar.controllers.tainteviction import DEFERENCE, TaintEviction
from tests.unit.controllers.objects import claim, pod, slice_
from tests.unit.controllers.world import START, Harness, World

MESSAGE = "Device Taint manager: deleting due to NoExecute taint"


def build(world: World) -> list[Any]:
    return [TaintEviction(world.clock)]


def taint(effect: str = "NoExecute", at: float = 0.0, key: str = "bad", **rest: Any) -> dict[str, Any]:
    return {"key": key, "effect": effect, "timeAdded": timestamp(START + at), **rest}


def rule(name: str = "rule", effect: str = "NoExecute", **selector: str) -> dict[str, Any]:
    spec = {"deviceSelector": selector, "taint": taint(effect)}
    return {"metadata": {"name": name}, "spec": spec}


@pytest.fixture
def world() -> World:
    return World()


def start(world: World, *tolerations: dict[str, Any], pods: int = 1) -> Harness:
    """Pods that share a claim for the one device, and controllers at rest."""
    names = [f"p{number}" for number in range(pods)]
    made = [world.create(POD, pod(name, node="n", phase="Running")) for name in names]
    body = claim(allocated=True, reserved=[(p["metadata"]["name"], p["metadata"]["uid"]) for p in made])
    if tolerations:
        body["status"]["allocation"]["devices"]["results"][0]["tolerations"] = list(tolerations)
    world.create(RESOURCECLAIM, body)
    world.create(RESOURCESLICE, slice_())
    harness = Harness(world, build)
    harness.settle()
    return harness


def set_taints(world: World, *taints: dict[str, Any]) -> None:
    world.update(RESOURCESLICE, "s", "", lambda s: s["spec"]["devices"][0].update(taints=list(taints)))


def evicted(world: World) -> list[str]:
    return sorted(p["metadata"]["name"] for p in world.all(POD) if p["metadata"].get("deletionTimestamp"))


def test_all_pods_of_a_claim_go_at_once(world: World) -> None:
    harness = start(world, pods=4)
    assert evicted(world) == []
    set_taints(world, taint())
    harness.settle()
    assert evicted(world) == ["p0", "p1", "p2", "p3"]
    (condition,) = world.read(POD, "p0")["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("DisruptionTarget", "True")
    assert (condition["reason"], condition["message"]) == ("DeletionByDeviceTaintManager", MESSAGE)
    assert {(e.type, e.reason, e.message) for e in world.events} == {
        ("Normal", "DeviceTaintManagerEviction", "Marking for deletion")
    }


def test_writes_of_an_eviction(world: World) -> None:
    harness = start(world)
    set_taints(world, taint())
    world.deliver()
    writes = harness.reconcile(0, "pod:default/p0")
    assert [type(write) for write in writes] == [Patch, Delete, Record]
    assert writes[0].body["metadata"] == {"uid": writes[1].uid}
    assert writes[1].uid == world.read(POD, "p0")["metadata"]["uid"]


@pytest.mark.parametrize("effect", ["NoSchedule", "None", "Whatever"])
def test_other_effects_evict_nobody(world: World, effect: str) -> None:
    harness = start(world)
    set_taints(world, taint(effect))
    harness.settle()
    assert evicted(world) == []


def test_older_generation_does_not_count(world: World) -> None:
    harness = start(world)
    world.create(RESOURCESLICE, slice_("new", generation=2))
    set_taints(world, taint())
    harness.settle()
    assert evicted(world) == []
    world.delete(Delete(RESOURCESLICE, "", "new"))
    harness.settle()
    assert evicted(world) == ["p0"]


@pytest.mark.parametrize(
    ("toleration", "after"),
    [
        ({"operator": "Exists", "effect": "NoExecute"}, None),
        ({"key": "bad", "operator": "Equal", "value": "", "effect": "NoExecute"}, None),
        ({"key": "bad", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}, 60),
        ({"key": "bad", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": -5}, 0),
        ({"operator": "Exists"}, 0),  # without the effect it does not count here
        ({"key": "other", "operator": "Exists", "effect": "NoExecute"}, 0),
    ],
)
def test_tolerations(world: World, toleration: dict[str, Any], after: float | None) -> None:
    harness = start(world, toleration)
    set_taints(world, taint())
    if after is None:
        harness.advance(10_000)
        assert evicted(world) == []
        return
    if after:
        harness.advance(after - 1)
        assert evicted(world) == []
    harness.advance(1.5)
    assert evicted(world) == ["p0"]


def test_earliest_time_wins(world: World) -> None:
    short = {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 20}
    long = {"key": "b", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 90}
    harness = start(world, short, long)
    set_taints(world, taint(key="a", at=0), taint(key="b", at=-80))
    harness.advance(9)
    assert evicted(world) == []
    harness.advance(2)
    assert evicted(world) == ["p0"]


def test_cancelled(world: World) -> None:
    wait = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
    harness = start(world, wait)
    set_taints(world, taint())
    harness.advance(10)
    set_taints(world)
    harness.advance(100)
    assert evicted(world) == []
    assert [event.message for event in world.events] == ["Cancelling deletion"]


def test_unscheduled_and_unreserved_pods_stay(world: World) -> None:
    waiting = world.create(POD, pod("waiting"))
    world.create(POD, pod("bystander", node="n"))
    world.create(RESOURCECLAIM, claim(allocated=True, reserved=[("waiting", waiting["metadata"]["uid"])]))
    world.create(RESOURCESLICE, slice_(taints=[taint()]))
    harness = Harness(world, build)
    harness.settle()
    assert evicted(world) == []
    world.update(POD, "waiting", "default", lambda p: p["spec"].update(nodeName="n"))
    harness.settle()
    assert evicted(world) == ["waiting"]


def test_rule_evicts_even_without_the_slice_and_says_so_first(world: World) -> None:
    harness = start(world, pods=2)
    world.delete(Delete(RESOURCESLICE, "", "s"))
    world.create(DEVICETAINTRULE, rule(driver="drv", device="d"))
    harness.settle()
    assert evicted(world) == ["p0", "p1"]
    first = next(new for plural, _, new in world.history if plural == "devicetaintrules" and (new.get("status")))
    (condition,) = first["status"]["conditions"]
    assert (condition["status"], condition["reason"]) == ("True", "PodsPendingEviction")
    assert condition["message"] == "2 pods need to be evicted in 1 namespace."
    marks = [new for plural, _, new in world.history if plural == "pods" and new["metadata"].get("deletionTimestamp")]
    assert int(first["metadata"]["resourceVersion"]) < min(int(mark["metadata"]["resourceVersion"]) for mark in marks)
    harness.advance(11)
    (condition,) = world.read(DEVICETAINTRULE, "rule")["status"]["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "Completed")
    assert condition["message"] == "2 pods evicted since starting the controller."


def test_rule_status_is_no_veto(world: World) -> None:
    harness = start(world)
    world.create(DEVICETAINTRULE, rule(driver="drv"))
    world.deliver()
    (wait,) = harness.reconcile(0, "pod:default/p0")
    assert isinstance(wait, After)
    world.clock.now += 6
    assert isinstance(harness.reconcile(0, "pod:default/p0")[1], Delete)


def test_rule_without_effect_reports_once(world: World) -> None:
    harness = start(world, pods=2)
    world.create(DEVICETAINTRULE, rule(effect="None", pool="pool"))
    harness.settle()
    (condition,) = world.read(DEVICETAINTRULE, "rule")["status"]["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "NoEffect")
    assert condition["message"] == (
        "1 published device selected. 1 allocated device selected. 2 pods would be evicted in 1 namespace if the "
        "effect was NoExecute. This information will not be updated again. Recreate the DeviceTaintRule to trigger "
        "an update."
    )
    version = world.read(DEVICETAINTRULE, "rule")["metadata"]["resourceVersion"]
    world.delete(Delete(POD, "default", "p0", grace=0))
    harness.advance(60)
    assert world.read(DEVICETAINTRULE, "rule")["metadata"]["resourceVersion"] == version


@pytest.mark.parametrize(
    ("effect", "selector", "reason", "message"),
    [
        ("NoSchedule", {"driver": "drv"}, "OtherEffect", "Eviction only happens for the NoExecute effect."),
        ("NoExecute", {"driver": "elsewhere"}, "NotStarted", ""),
    ],
)
def test_rules_that_evict_nobody(
    world: World, effect: str, selector: dict[str, str], reason: str, message: str
) -> None:
    harness = start(world)
    world.create(DEVICETAINTRULE, rule(effect=effect, **selector))
    harness.settle()
    (condition,) = world.read(DEVICETAINTRULE, "rule")["status"]["conditions"]
    assert (condition["status"], condition["reason"], condition["message"]) == ("False", reason, message)
    assert evicted(world) == []


def test_rule_without_selector_selects_nothing(world: World) -> None:
    harness = start(world)
    body = rule()
    del body["spec"]["deviceSelector"]
    world.create(DEVICETAINTRULE, body)
    harness.settle()
    assert evicted(world) == []
    world.create(DEVICETAINTRULE, rule("all"))
    harness.settle()
    assert evicted(world) == ["p0"]


def beside(world: World) -> list[Any]:
    return [TaintEviction(world.clock, beside=True)]


def start_beside(world: World, pods: int = 1) -> Harness:
    start(world, pods=pods)
    harness = Harness(world, beside)
    harness.settle()
    return harness


def test_beside_another_controller_it_takes_what_that_one_leaves(world: World) -> None:
    harness = start_beside(world, pods=3)
    set_taints(world, taint())
    harness.advance(DEFERENCE - 0.1)
    assert evicted(world) == []
    world.delete(Delete(POD, "default", "p1"))
    harness.advance(0.2)
    assert evicted(world) == ["p0", "p1", "p2"]
    # One that goes already is told nothing.
    assert len(world.events) == 2
    assert "conditions" not in world.read(POD, "p1")["status"]


def test_beside_another_controller_it_waits_after_a_toleration_too(world: World) -> None:
    start(world, {"key": "bad", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60})
    harness = Harness(world, beside)
    set_taints(world, taint())
    harness.advance(61)
    assert evicted(world) == []
    harness.advance(DEFERENCE)
    assert evicted(world) == ["p0"]


def test_beside_another_controller_it_leaves_rules_and_what_is_taken_back_alone(world: World) -> None:
    harness = start_beside(world)
    made = world.create(DEVICETAINTRULE, rule())
    harness.advance(DEFERENCE / 2)
    world.delete(Delete(DEVICETAINTRULE, "", "rule"))
    harness.advance(100)
    assert evicted(world) == []
    assert world.events == []
    world.create(DEVICETAINTRULE, rule("another"))
    harness.advance(DEFERENCE + 0.1)
    assert evicted(world) == ["p0"]
    harness.advance(100)
    assert not made.get("status", {}).get("conditions")
    assert not world.read(DEVICETAINTRULE, "another", "").get("status", {}).get("conditions")
