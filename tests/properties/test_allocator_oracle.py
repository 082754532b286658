"""Mutated corpus scenarios: policy ``upstream`` against the oracle, answer for answer.

``DRAKKAR_FUZZ_SEED`` and ``DRAKKAR_FUZZ_COUNT`` (2,000 unless given; take more for a long run) choose the run;
a failure prints both and the scenario's number. The oracle is built where ``go`` is, or named by ``DRAKKAR_ORACLE``.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from drakkar.allocator import batch
from drakkar.inventory import Switches
from tests.properties.mutations import mutate
from tests.support.oracle import oracle_binary
from tests.support.shared import shared_path

SLOW_TO_ANSWER = ("hard", "limits")


def comparable(scenario: dict[str, Any]) -> bool:
    """Upstream's oldest variant visits pools in random order, so it answers for one pool only."""
    pools = {(s["spec"]["driver"], s["spec"]["pool"]["name"]) for s in scenario["resourceSlices"]}
    return len(pools) == 1 or Switches.from_names(scenario.get("features")).variant != "stable"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_mutated_scenarios_have_the_oracles_answers(tmp_path: Path) -> None:
    oracle = oracle_binary(tmp_path)
    seed = int(os.environ.get("DRAKKAR_FUZZ_SEED", "1"))
    number = int(os.environ.get("DRAKKAR_FUZZ_COUNT", "2000"))
    scenarios = {
        path.name.partition(".")[0]: [
            json.loads(line)["scenario"] for line in gzip.decompress(path.read_bytes()).splitlines()
        ]
        for path in sorted(shared_path("corpus/allocator").glob("*.gz"))
        if path.name.partition(".")[0] not in SLOW_TO_ANSWER
    }
    rnd = random.Random(seed)
    wanted: list[dict[str, Any]] = []
    while len(wanted) < number:
        scenario = mutate(scenarios, rnd)
        if comparable(scenario):
            scenario["id"] = f"{seed}/{len(wanted)}"
            wanted.append(scenario)
    lines = "\n".join(json.dumps(scenario) for scenario in wanted).encode()
    answers = subprocess.run([oracle, "batch"], input=lines, capture_output=True, check=True).stdout.splitlines()
    differences: list[str] = []
    for scenario, line in zip(wanted, answers, strict=True):
        theirs = json.loads(line)
        ours = batch.answer(scenario, "upstream")
        for mine, their in zip(ours["nodes"], theirs["nodes"], strict=True):
            their = {key: value for key, value in their.items() if key in ("node", "fits", "class", "allocations")}
            if their["class"] not in ("timeout", mine["class"]) or (
                their["class"] == "fits" and mine["allocations"] != their["allocations"]
            ):
                differences.append(f"{scenario['id']} {mine['node']}: {mine['class']}, oracle {their['class']}")
                if os.environ.get("DRAKKAR_FUZZ_SAVE"):
                    with open(os.environ["DRAKKAR_FUZZ_SAVE"], "w") as file:
                        json.dump({"scenario": scenario, "ours": mine, "theirs": their}, file)
    assert not differences, f"seed {seed}, count {number}: {differences}"
