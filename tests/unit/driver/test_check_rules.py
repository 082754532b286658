"""What the conformance kit says of slices, answers, reports and files, without a driver."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.resource import v1
from drakkar.driver import device
from drakkar.driver.check import history as history_module
from drakkar.driver.check.claims import judge_answer, same_answer
from drakkar.driver.check.history import History
from drakkar.driver.check.rules import (
    complete,
    described,
    differences,
    judge_health,
    judge_mounts,
    judge_slices,
    judge_specs,
)
from drakkar.driver.metadata import IN_CONTAINER
from drakkar.plugin import cdi, wire
from drakkar.plugin.cdi import ContainerEdits, Mount

NODE_UID = "node-uid"


def a_slice(
    name: str = "s0", *, generation: int = 1, count: int = 1, revision: str = "1", **more: Any
) -> v1.ResourceSlice:
    spec: dict[str, Any] = {
        "driver": "d.example.com",
        "pool": {"name": "n1", "generation": generation, "resourceSliceCount": count},
        "nodeName": "n1",
        "devices": more.pop("devices", [{"name": f"{name}-d"}]),
        **more,
    }
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": NODE_UID}
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": revision, "ownerReferences": [owner]}
    return msgspec.convert({"metadata": metadata, "spec": spec}, v1.ResourceSlice)


@pytest.mark.parametrize(
    ("slices", "said"),
    [
        ([a_slice()], ""),
        ([a_slice("a", count=2), a_slice("b", count=2)], ""),
        ([a_slice("a", count=1), a_slice("b", count=1)], "resourceSliceCount says 1, generation 1 has 2 slices"),
        ([a_slice("a", count=2)], "resourceSliceCount says 2, generation 1 has 1 slices"),
        ([a_slice("a", count=2), a_slice("b", count=3)], "resourceSliceCount says 2 and 3"),
        ([a_slice("a"), a_slice("b", generation=2)], "a should be updated or deleted"),
        ([a_slice("a", count=2), a_slice("b", count=2, devices=[{"name": "a-d"}])], "device 'a-d' exists twice"),
        (
            [
                a_slice("a", count=2, devices=None, sharedCounters=[{"name": "c", "counters": {"m": {"value": "1"}}}]),
                a_slice(
                    "b",
                    count=2,
                    devices=[
                        {"name": "x", "consumesCounters": [{"counterSet": "c", "counters": {"m": {"value": "2"}}}]}
                    ],
                ),
            ],
            "device x takes 2 of counter c/m, which has 1: nobody can have it",
        ),
        (
            [a_slice(devices=[{"name": "x", "attributes": {"resource.kubernetes.io/pcieRoot": {"int": 1}}}])],
            "is of type int, everybody expects string",
        ),
        (
            [a_slice(devices=[{"name": "x", "attributes": {"resource.kubernetes.io/pcieRoot": {"string": "1"}}}])],
            "everybody expects pci",
        ),
        (
            [
                a_slice(
                    devices=[
                        {"name": "x", "attributes": {"size": {"int": 1}}},
                        {"name": "y", "attributes": {"size": {"string": "1"}}},
                    ]
                )
            ],
            "attribute size is of type int on device x and string on y",
        ),
        (
            [
                a_slice(
                    devices=[
                        {"name": "x", "attributes": {"size": {"int": 1}}},
                        {"name": "y", "attributes": {"size": {"ints": [1, 2]}}},
                    ]
                )
            ],
            "",
        ),
    ],
)
def test_slices(slices: Sequence[v1.ResourceSlice], said: str) -> None:
    problems = judge_slices(slices, NODE_UID)
    assert bool(problems) == bool(said), problems
    assert said in "\n".join(problems)


def test_slices_of_a_node_belong_to_it_and_others_to_nobody() -> None:
    assert "must be owned by its Node" in judge_slices([a_slice()], "another")[0]
    everywhere = a_slice(nodeName=None, allNodes=True)
    assert judge_slices([everywhere], "another") == []


def test_what_changed_of_hardware_that_did_not() -> None:
    def said(now: v1.Device) -> list[str]:
        before = a_slice(devices=msgspec.to_builtins([device("x", {"model": "a"}, {"memory": 1})]))
        return differences(described([before]), described([a_slice(devices=msgspec.to_builtins([now]))]))

    assert said(device("x", {"model": "a"}, {"memory": 1})) == []
    assert said(device("x", {"model": "b"}, {"memory": 2})) == [
        "device n1/x: capacity memory changed",
        "device n1/x: attributes model changed",
    ]
    assert said(device("y")) == ["device n1/x is not published any more"]


class Story(History):
    """A history that is told, at times of its own."""

    def tell(self, kind: str, found: v1.ResourceSlice, at: float = 0.0) -> None:
        self.writes.append(history_module._Write(kind, found, self._life, at))  # pyright: ignore[reportPrivateUsage]


def test_a_life_in_which_nothing_is_wrong() -> None:
    story = Story()
    for life in range(4):
        story.started()
        if not life:
            story.tell("ADDED", a_slice("a", count=2))
            story.tell("ADDED", a_slice("b", count=2))
    # One slice changes by itself; then a third comes, and all move to the next generation.
    story.tell("MODIFIED", a_slice("a", count=2, revision="2", devices=[{"name": "other"}]), 1)
    for name in "ab":
        story.tell("MODIFIED", a_slice(name, generation=2, count=3, revision="3"), 2)
    story.tell("ADDED", a_slice("c", generation=2, count=3), 2)
    # A kubelet deletes them all, and they come back.
    for name in "abc":
        story.deleted(f"uid-{name}")
        story.tell("DELETED", a_slice(name, generation=2, count=3), 3)
    story.tell("ADDED", a_slice("a", revision="9"), 4)
    assert story.problems() == story.remarks() == []


def test_what_is_wrong_in_the_life_of_a_pool() -> None:
    gap = Story()
    gap.tell("ADDED", a_slice())
    gap.tell("DELETED", a_slice())
    assert "its last slice s0 was deleted" in gap.problems()[0]

    back = Story()
    back.tell("ADDED", a_slice("a", generation=5))
    back.tell("ADDED", a_slice("b", generation=1))
    assert "written with generation 1, the pool is at 5 already" in back.problems()[0]

    busy = Story()
    for generation in range(1, 6):
        busy.tell("ADDED" if generation == 1 else "MODIFIED", a_slice(generation=generation, revision=str(generation)))
    assert busy.problems() == ["pool n1: 4 writes within one run of the driver changed no device"]

    torn = Story()
    for name in "ab":
        torn.tell("ADDED", a_slice(name, count=2))
    for name in "ab":
        torn.tell("MODIFIED", a_slice(name, count=2, revision="2", devices=[{"name": f"new-{name}"}]))
    assert torn.problems() == ["pool n1: slices a and b changed together, and the generation stayed 1"]

    starts = Story()
    for generation in range(1, 5):
        starts.started()
        starts.tell(
            "ADDED" if generation == 1 else "MODIFIED", a_slice(generation=generation, revision=str(generation))
        )
    assert starts.problems() == []
    assert "3 starts of the driver raised the generation" in starts.remarks()[0]


WANTED = {("p", "d", None): "r0", ("p", "e", "share"): "r1"}
RIGHT = [wire.Device(["r1"], "p", "e", ["v/c=e"], "share"), wire.Device(["r0"], "p", "d", ["v/c=d"])]


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (RIGHT, ""),
        ([wire.Device([], d.pool_name, d.device_name, [], d.share_id) for d in RIGHT], ""),
        (RIGHT[:1], "the answer lacks p/d"),
        ([*RIGHT, wire.Device(["r0"], "p", "x")], "the answer names p/x, the claim was given p/d, p/e (share share)"),
        ([RIGHT[0], wire.Device(["r0/sub"], "p", "d")], "device p/d is for request r0, the answer says r0/sub"),
        ([RIGHT[0], wire.Device(["r0", "r9"], "p", "d")], "device p/d: the claim has no request r9"),
        ([wire.Device(["r1"], "p", "e"), RIGHT[1]], "device p/e: the share id is share, the answer says none"),
    ],
)
def test_answers(devices: list[wire.Device], said: str) -> None:
    problems = judge_answer(WANTED, devices)
    assert bool(problems) == bool(said), problems
    assert said in "\n".join(problems)
    older = [wire.Device(d.request_names, d.pool_name, d.device_name) for d in RIGHT]
    assert judge_answer(WANTED, older, shares=False) == []
    assert same_answer(wire.NodePrepareResourceResponse(RIGHT), wire.NodePrepareResourceResponse(RIGHT[::-1]))
    assert not same_answer(wire.NodePrepareResourceResponse(RIGHT), wire.NodePrepareResourceResponse(error="x"))


def test_reports_of_health() -> None:
    def report(*devices: tuple[str, int]) -> wire.NodeWatchResourcesResponse:
        return wire.NodeWatchResourcesResponse(
            [wire.DeviceHealth(wire.DeviceIdentifier("p", name), state) for name, state in devices]
        )

    there = [("p", "a"), ("p", "b")]
    assert judge_health(report(("a", 1), ("b", 2)), there) == ([], [])
    assert judge_health(report(("a", 1)), there)[0] == ["the report must be complete, it lacks p/b"]
    assert "p/ghost" in judge_health(report(("a", 1), ("b", 1), ("ghost", 1)), there)[0][0]
    # What is sick may have been taken out of the slices.
    assert judge_health(report(("a", 1), ("b", 1), ("ghost", 2)), there) == ([], [])
    assert "none of [0, 1, 2]" in judge_health(report(("a", 7), ("b", 1)), there)[0][0]
    assert "stands twice" in judge_health(report(("a", 1), ("a", 1)), None)[0][0]
    late = wire.DeviceHealth(wire.DeviceIdentifier("p", "a"), 1, last_updated_time=1_700_000_000_000)
    assert "counts seconds since 1970" in judge_health(wire.NodeWatchResourcesResponse([late]), None)[1][0]


def test_files_that_a_driver_mounts(tmp_path: Path) -> None:
    path = tmp_path / "metadata.json"
    where = f"{IN_CONTAINER}/resourceclaims/c/r/d-metadata.json"
    edits = [ContainerEdits(mounts=[Mount(hostPath=str(path), containerPath=where)])]
    assert f"there is no {path}" in judge_mounts(edits, tmp_path)[0]
    assert judge_mounts(edits, tmp_path / "elsewhere") == []
    good = {"apiVersion": "metadata.resource.k8s.io/v1alpha1", "kind": "DeviceMetadata", "requests": [{"name": "r"}]}
    path.write_text(json.dumps(good, indent=2) + "\n" + json.dumps(good))
    assert judge_mounts(edits, tmp_path) == []
    for text, said in (("{", "no stream of JSON"), ("", "is empty"), ("[]", "not an object"), ("{}", "kind is None")):
        path.write_text(text)
        assert said in "\n".join(judge_mounts(edits, tmp_path))
    broken = tmp_path / "v.json"
    broken.write_text('{"cdiVersion": "0.5.0"}')
    cdi.write_spec(tmp_path, "good.json", cdi.build("v.io/c", [cdi.CdiDevice(name="x", containerEdits=edits[0])]))
    files = {name: b"" for name in ("v.json", "good.json", "gone.json")}
    assert [str(broken) in problem for problem in judge_specs(files, [], tmp_path)] == [True]
    assert judge_specs(files, ["v.json"], tmp_path) == []


def test_a_pool_is_complete_when_all_of_its_newest_generation_is_there() -> None:
    assert complete([a_slice("a", count=2), a_slice("b", count=2)])
    assert not complete([a_slice("a", count=2)])
    assert not complete([a_slice("a"), a_slice("b", generation=2)])
