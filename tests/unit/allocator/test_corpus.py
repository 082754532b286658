"""Policy ``upstream`` gives upstream's answers: every case of the allocator corpus, device for device."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from drakkar.allocator import Fits, batch, prepare
from drakkar.allocator.reasons import OTHER_WORDS, STAGES
from drakkar.inventory import Snapshot
from tests.support.shared import shared_path

FAMILIES = (
    "admin", "alignment", "all-mode", "binding", "cel-errors", "config", "consumable", "count", "distinct-attribute",
    "features-off", "hard", "limits", "list-attributes", "match-attribute", "mig", "mixed", "multi-claim",
    "multi-request", "node-selector", "partition-capacity", "per-device-node", "pools", "prioritized", "selectors",
    "taints", "tpu-multihost",
)  # fmt: skip

#: Words a refusal may use; error classes that have no word of their own appear as they are.
WORDS = {*STAGES, *OTHER_WORDS, "node-selector", "request-unknown", "constraint-unknown"}

#: Its selector runs into CEL's cost limit, which takes seconds.
EXPENSIVE = "cel-errors-0004"


def cases(family: str, expensive: bool = False) -> list[dict[str, Any]]:
    data = gzip.decompress(shared_path(f"corpus/allocator/{family}.ndjson.gz").read_bytes())
    found = [json.loads(line) for line in data.splitlines()]
    return [case for case in found if (case["scenario"]["id"] == EXPENSIVE) == expensive]


def differences(ours: dict[str, Any], theirs: dict[str, Any], known: bool | None) -> list[str]:
    found = [] if ours["channel"] == theirs["channel"] else [f"channel {ours['channel']} not {theirs['channel']}"]
    for mine, their in zip(ours["nodes"], theirs["nodes"], strict=True):
        their = {key: value for key, value in their.items() if key != "steps"}
        if their["class"] == "timeout":
            right = mine["class"] in ("fits", "nofit") and known in (None, mine["fits"])
        else:
            right = mine == their
        if not right:
            found.append(f"{mine['node']}: {mine} not {their}")
    return found


def wrong_answers(found: list[dict[str, Any]]) -> list[str]:
    wrong: list[str] = []
    for case in found:
        scenario = case["scenario"]
        texts = differences(batch.answer(scenario, "upstream"), case["answer"], scenario.get("known"))
        wrong += [f"{scenario['id']} {text}" for text in texts]
    return wrong


@pytest.mark.parametrize("family", FAMILIES)
def test_every_answer_is_upstreams(family: str) -> None:
    wrong = wrong_answers(cases(family))
    assert not wrong, f"{len(wrong)} differences, the first: {wrong[0]}"


@pytest.mark.slow
def test_the_expensive_selector_ends_in_an_error_too() -> None:
    assert not wrong_answers(cases("cel-errors", expensive=True))


def doubted(snapshot: Snapshot, node: str) -> bool:
    """Whether the node has a pool that is out of date or contradicts itself: only upstream uses it."""
    view = snapshot.view(node)
    return view.strict is not view


@pytest.mark.parametrize("family", FAMILIES)
def test_policy_drakkar_fits_wherever_upstream_fits(family: str) -> None:
    """The repairs turn errors into answers; they do not take an answer away, but for devices that are out of date."""
    lost: list[str] = []
    for case in cases(family):
        answer = batch.answer(case["scenario"], "drakkar")
        snapshot = batch.load(case["scenario"]).snapshot()
        for mine, their in zip(answer["nodes"], case["answer"]["nodes"], strict=True):
            if their["class"] == "fits" and not mine["fits"] and not doubted(snapshot, mine["node"]):
                lost.append(f"{case['scenario']['id']} {mine['node']}: {mine['class']}")
    assert not lost, lost


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("policy", ["upstream", "drakkar"])
def test_counting_excludes_no_node_that_fits(family: str, policy: str) -> None:
    wrong: list[str] = []
    for case in cases(family):
        scenario = case["scenario"]
        snapshot = batch.load(scenario).snapshot()
        problem = prepare(snapshot, batch.claims_of(scenario), policy)
        feasible = problem.feasible()
        wrong += [
            f"{scenario['id']} {name}"
            for name in snapshot.nodes
            if name not in feasible.nodes and isinstance(problem.solve(name), Fits)
        ]
        if not feasible.nodes:
            assert feasible.refusal is not None
            assert feasible.refusal.reason in WORDS
    assert not wrong, wrong
