"""The story's witness: it believes what it saw, and says what it did not see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from drakkar.api.resource import v1
from drakkar.insight.story import AFTER, BEFORE, TITLES, Cast, Story

CAST = Cast(nodes=4, pods=2)


def story() -> Story:
    ticks = iter(range(1000))
    return Story(replace(CAST), lambda: float(next(ticks)))


class Teller:
    """Feeds a story with the events of a small world: slices of two hosts out of four."""

    def __init__(self, told: Story):
        self.story = told
        self.revision = 0

    def meta(self, name: str, **more: Any) -> dict[str, Any]:
        self.revision += 1
        return {"name": name, "namespace": "default", "uid": name, "resourceVersion": str(self.revision), **more}

    def node(self, name: str, status: str = "True") -> None:
        conditions = [{"type": "Ready", "status": status}]
        metadata = self.meta(name, labels={f"{CAST.driver}/pod": "p"})
        self.story.node("MODIFIED", {"metadata": metadata, "status": {"conditions": conditions}})

    def slices(self, tainted: tuple[str, ...] = ()) -> None:
        devices = [
            {
                "name": name,
                "nodeSelector": _hosts(*hosts),
                "taints": [{"key": "k", "effect": "NoExecute"}] if name in tainted else None,
            }
            for name, hosts in (("left", ("a", "b")), ("right", ("c", "d")))
        ]
        spec = {
            "driver": CAST.driver,
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        }
        self.story.slice("MODIFIED", msgspec.convert({"metadata": self.meta("s"), "spec": spec}, v1.ResourceSlice))

    def claim(self, name: str, device: str = "", *hosts: str) -> None:
        result = {"request": "r", "driver": CAST.driver, "pool": "p", "device": device}
        status = {"allocation": {"devices": {"results": [result]}, "nodeSelector": _hosts(*hosts)}} if device else {}
        obj = msgspec.convert({"metadata": self.meta(name), "status": status}, v1.ResourceClaim)
        self.story.claim("MODIFIED", obj)

    def pod(self, job: str, name: str, node: str, event: str = "MODIFIED", **condition: str) -> None:
        meta = self.meta(name, labels={"batch.kubernetes.io/job-name": job})
        status = {"phase": "Running" if node else "Pending", "conditions": [condition] if condition else []}
        self.story.pod(event, {"metadata": meta, "spec": {"nodeName": node}, "status": status})

    def beginning(self) -> None:
        for name in "abcd":
            self.node(name)
        self.slices()
        self.claim("slice", "left", "a", "b")
        self.pod("training", "t0", "a")
        self.pod("training", "t1", "b")
        self.claim("second-slice", "right", "c", "d")
        self.pod("second", "s0", "c")
        self.pod("second", "s1", "d")
        self.pod("whole-pod", "w0", "", type="PodScheduled", status="False", reason="Unschedulable", message="why")

    def loss(self) -> None:
        self.node("a", "Unknown")
        self.slices(("left",))
        for name, node in (("t0", "a"), ("t1", "b")):
            self.pod("training", name, node, type="DisruptionTarget", status="True")
        for name, node in (("t0", "a"), ("t1", "b")):
            self.pod("training", name, node, "DELETED", type="DisruptionTarget", status="True")
        self.claim("slice")


def _hosts(*names: str) -> dict[str, Any]:
    requirement = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(names)}
    return {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}


def test_a_whole_story_has_no_faults() -> None:
    teller = Teller(story())
    teller.beginning()
    assert teller.story.missing(BEFORE) == []
    teller.loss()
    teller.node("a")
    teller.story.cast.may_return = True
    teller.claim("slice", "left", "a", "b")
    teller.pod("training", "n0", "a")
    teller.pod("training", "n1", "b")
    assert teller.story.missing(AFTER) == []
    assert teller.story.faults() == []


def test_what_was_not_seen_is_named() -> None:
    teller = Teller(story())
    teller.beginning()
    teller.loss()
    assert teller.story.faults() == [f"not seen: {TITLES[name]}" for name in ("claim-reallocated", "job-recovered")]


def test_two_pods_on_one_host_are_no_success() -> None:
    teller = Teller(story())
    for name in "abcd":
        teller.node(name)
    teller.slices()
    teller.claim("slice", "left", "a", "b")
    teller.pod("training", "t0", "a")
    teller.pod("training", "t1", "a")
    assert "job-running" not in teller.story.facts


def test_the_dead_host_must_not_be_chosen_again() -> None:
    teller = Teller(story())
    teller.beginning()
    teller.loss()
    teller.claim("slice", "left", "a", "b")
    assert "claim-reallocated" not in teller.story.facts


def test_charges_disturbance_and_wrong_order_are_faults() -> None:
    teller = Teller(story())
    teller.beginning()
    teller.loss()
    teller.story.job("MODIFIED", {"metadata": teller.meta("training"), "status": {"failed": 1}})
    teller.pod("second", "s1", "d", "DELETED")
    faults = " ".join(teller.story.faults())
    assert "counted as failures" in faults
    assert "was disturbed" in faults
    early = teller.story.facts["claim-freed"]
    teller.story.facts["claim-freed"] = type(early)("claim-freed", early.time, 1, "")
    assert any(fault.startswith("wrong order") for fault in teller.story.faults())
