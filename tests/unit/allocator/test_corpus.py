"""Policy ``upstream`` gives upstream's answers: every case of the allocator corpus, device for device."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from drakkar.allocator import batch
from tests.support.shared import shared_path

FAMILIES = (
    "admin", "alignment", "all-mode", "binding", "cel-errors", "config", "consumable", "count", "distinct-attribute",
    "features-off", "hard", "limits", "list-attributes", "match-attribute", "mig", "mixed", "multi-claim",
    "multi-request", "node-selector", "partition-capacity", "per-device-node", "pools", "prioritized", "selectors",
    "taints", "tpu-multihost",
)  # fmt: skip


def cases(family: str) -> list[dict[str, Any]]:
    data = gzip.decompress(shared_path(f"corpus/allocator/{family}.ndjson.gz").read_bytes())
    return [json.loads(line) for line in data.splitlines()]


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


@pytest.mark.parametrize("family", FAMILIES)
def test_every_answer_is_upstreams(family: str) -> None:
    wrong: list[str] = []
    for case in cases(family):
        scenario = case["scenario"]
        found = differences(batch.answer(scenario, "upstream"), case["answer"], scenario.get("known"))
        wrong += [f"{scenario['id']} {text}" for text in found]
    assert not wrong, f"{len(wrong)} differences, the first: {wrong[0]}"


@pytest.mark.parametrize("family", FAMILIES)
def test_policy_drakkar_fits_wherever_upstream_fits(family: str) -> None:
    """The repairs turn errors into answers; they do not take an answer away."""
    lost: list[str] = []
    for case in cases(family):
        answer = batch.answer(case["scenario"], "drakkar")
        for mine, their in zip(answer["nodes"], case["answer"]["nodes"], strict=True):
            if their["class"] == "fits" and not mine["fits"]:
                lost.append(f"{case['scenario']['id']} {mine['node']}: {mine['class']}")
    assert not lost, lost
