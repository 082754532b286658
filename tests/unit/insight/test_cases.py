"""The case runner: real cases that come out as expected, and what it says when they do not."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from drakkar.api.errors import UsageError
from drakkar.api.features import Features
from drakkar.cli.plane import case_plane
from drakkar.insight import cases
from drakkar.insight.cases import CaseResult, run_case
from tests.support.eventually import memory_plane
from tests.support.shared import shared_path

NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
CLASS = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "c"}, "spec": {}}
SLICE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "s"},
    "spec": {
        "driver": "d.example.com",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "nodeName": "n",
        "devices": [{"name": "x", "attributes": {"root": {"string": "a"}}}, {"name": "y"}],
    },
}


def template(count: int) -> dict[str, Any]:
    request = {"name": "r", "exactly": {"deviceClassName": "c", "count": count}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": f"take-{count}"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def pod(name: str, count: int) -> dict[str, Any]:
    spec = {
        "containers": [{"name": "main", "image": "i", "resources": {"claims": [{"name": "e"}]}}],
        "resourceClaims": [{"name": "e", "resourceClaimTemplateName": f"take-{count}"}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def case(folder: Path, expect: dict[str, Any], *workload: dict[str, Any]) -> CaseResult:
    (folder / "cluster.yaml").write_text(yaml.safe_dump_all([NODE, CLASS, SLICE]))
    (folder / "workload.yaml").write_text(yaml.safe_dump_all(workload))
    (folder / "expect.yaml").write_text(yaml.safe_dump({"format": 1, **expect}))
    return asyncio.run(run_case(folder, plane_factory=case_plane))


@pytest.mark.parametrize(("name", "seed"), [("01", None), ("01", 3), ("05", 1), ("18", 2), ("21", None), ("27", None)])
def test_real_world(name: str, seed: int | None):
    (folder,) = shared_path("corpus/real-world").glob(f"{name}-*")
    result = asyncio.run(run_case(folder, shuffle_seed=seed, plane_factory=case_plane))
    assert result.misses == []
    assert result.ok


OWN = sorted((Path(__file__).parents[2] / "cases").glob("*/expect.yaml"))


@pytest.mark.parametrize("seed", [None, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("folder", [path.parent for path in OWN], ids=lambda folder: folder.name)
def test_cases_of_our_own(folder: Path, seed: int | None):
    assert asyncio.run(run_case(folder, shuffle_seed=seed, plane_factory=case_plane)).misses == []


def test_a_case_of_ones_own(tmp_path: Path):
    devices = [{"claim": "e", "request": "r", "driver": "d.example.com", "pool": ["p"], "count": 2}]
    expect = {
        "pods": [
            {"name": "both", "scheduled": True, "node": ["n"], "devices": devices},
            {"name": "late", "scheduled": False, "reason": "in-use", "mentions": ["r"]},
        ],
        "groups": [{"pods": ["both", "late"], "scheduledCount": 1}],
        "checks": [{"distinct": ["both", "late"]}],
    }
    assert case(tmp_path, expect, template(1), template(2), pod("both", 2), pod("late", 1)).misses == []


@pytest.mark.parametrize(
    ("expect", "words"),
    [
        ({"pods": [{"name": "both", "scheduled": False}]}, "pod both: runs on n"),
        ({"pods": [{"name": "both", "scheduled": True, "node": ["m"]}]}, "runs on n, expected ['m']"),
        ({"pods": [{"name": "both", "scheduled": True, "devices": []}]}, "pod both: has e/r: d.example.com/p/"),
        ({"pods": [{"name": "none", "scheduled": True}]}, "pod none: does not exist"),
        ({"pods": [{"name": "late", "scheduled": True}]}, "pod late: is pending"),
        ({"pods": [{"name": "late", "scheduled": False, "reason": "tainted"}]}, "because of in-use, expected tainted"),
        (
            {"pods": [{"name": "late", "scheduled": False, "reason": "in-use", "mentions": ["zebra"]}]},
            "does not mention ['zebra']",
        ),
        ({"groups": [{"pods": ["both", "late"], "scheduledCount": 2}]}, "1 started, expected 2"),
        ({"checks": [{"same": ["both", "late"]}]}, "should have the same devices"),
        (
            {"checks": [{"sameAttribute": {"pod": "both", "attribute": "root", "requests": ["r"]}}]},
            "sameAttribute root: values are",
        ),
        ({"invalid": [{"kind": "Pod", "name": "both", "errors": []}]}, "Pod both: accepted, should be invalid"),
        ({"refused": [{"kind": "Pod", "name": "both", "status": 403}]}, "Pod both: accepted, should be refused"),
    ],
)
def test_misses_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expect: dict[str, Any], words: str):
    # For those that never start.
    monkeypatch.setattr(cases, "GRACE", 0.2)
    result = case(tmp_path, expect, template(1), template(2), pod("both", 2), pod("late", 1))
    assert not result.ok
    assert any(words in miss for miss in result.misses), result.misses


def test_an_object_that_is_refused_unexpectedly_is_a_miss(tmp_path: Path):
    bad = {**pod("bad", 1), "spec": {"containers": []}}
    (miss,) = case(tmp_path, {}, bad).misses
    assert miss.startswith("Pod bad: refused:")


def test_what_the_server_drops_is_named_first():
    """Then nothing that comes out says anything about the case."""
    taints = [{"key": "k", "effect": "NoSchedule"}]
    published = {**SLICE, "spec": {**SLICE["spec"], "devices": [{"name": "x", "taints": taints}]}}
    named = {**CLASS, "spec": {"extendedResourceName": "example.com/x"}}
    tolerant = template(1)
    tolerant["spec"]["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] = [{"operator": "Exists"}]

    async def story() -> list[str]:
        gates = dict.fromkeys(("DRADeviceTaints", "DRADeviceTaintRules", "DRAExtendedResource"), False)
        async with memory_plane(Features.drakkar().with_(gates)) as client:
            return (await cases.play(cases.Case("c", [NODE, named, published], [tolerant], {}), client)).misses

    assert asyncio.run(story()) == [
        "DeviceClass c: this server drops extendedResourceName (feature gate DRAExtendedResource is off)",
        "ResourceSlice s: this server drops taints (feature gate DRADeviceTaints is off)",
        "ResourceClaimTemplate take-1: this server drops tolerations (feature gate DRADeviceTaints is off)",
    ]


@pytest.mark.parametrize(
    ("expect", "fault"),
    [
        ({"pod": []}, "unknown field `pod`"),
        ({"pods": [{"name": "p", "scheduled": True, "nodes": ["n"]}]}, r"unknown field `nodes` - at `\$.pods\[0\]`"),
        ({"pods": [{"name": "p"}]}, "missing required field `scheduled`"),
        ({"checks": [{}]}, r"checks\[0\] must have one of distinct"),
    ],
)
def test_a_misspelt_expectation_is_refused(tmp_path: Path, expect: dict[str, Any], fault: str):
    """Passed over, it would be an expectation that nothing can miss."""
    with pytest.raises(UsageError, match=fault):
        case(tmp_path, expect)


def test_words_are_looked_for_without_a_reason_and_one_node_may_stand_alone(tmp_path: Path):
    entry = {"name": "p", "scheduled": False, "mentions": ["zebra"]}
    assert "does not mention ['zebra']" in case(tmp_path, {"pods": [entry]}, template(3), pod("p", 3)).misses[0]
    # The node is n: its name is part of "next", but is not that node.
    found = case(tmp_path, {"pods": [{"name": "p", "scheduled": True, "node": "next"}]}, template(1), pod("p", 1))
    assert found.misses == ["pod p: runs on n, expected next"]


def test_a_folder_without_expectation_is_a_usage_error(tmp_path: Path):
    with pytest.raises(UsageError, match=r"expect\.yaml"):
        asyncio.run(run_case(tmp_path, plane_factory=case_plane))


def test_kinds_that_only_the_server_knows(tmp_path: Path):
    group = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "high"},
        "value": 1000,
    }
    limits = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l"}, "spec": {"limits": []}}
    important = pod("p", 1)
    important["spec"]["priorityClassName"] = "high"
    expect = {"pods": [{"name": "p", "scheduled": True}]}
    assert case(tmp_path, expect, group, limits, template(1), important).misses == []
    with pytest.raises(UsageError, match="v1 Ship: no such kind"):
        case(tmp_path, expect, {"apiVersion": "example.com/v1", "kind": "Ship", "metadata": {"name": "s"}})


def test_what_a_reason_must_not_mention(tmp_path: Path):
    entry = {"name": "p", "scheduled": False, "reason": "not-enough-devices", "mustNotMention": ["published"]}
    result = case(tmp_path, {"pods": [entry]}, template(3), pod("p", 3))
    assert len(result.misses) == 1
    assert "the reason mentions ['published']" in result.misses[0]


def test_the_case_of_the_how_to(tmp_path: Path):
    page = Path(__file__).parents[3] / "docs" / "how-to" / "your-own-case.md"
    files = re.findall(r"`two-gpus/(\S+)`:\n\n```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(files) == 3
    for name, text in files:
        (tmp_path / name).write_text(text)
    assert asyncio.run(run_case(tmp_path, plane_factory=case_plane)).misses == []
