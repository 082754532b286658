"""Every recorded case, and our own, answered as upstream does: values, errors, places, types, costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drakkar.api.errors import UsageError
from drakkar.api.features import Features
from drakkar.cel import CompileError, EvaluationError, attribute_of, compile_derived, compile_selector
from drakkar.cel.cases import device_of, features_of, run_file
from tests.support.shared import shared_path

OWN = Path(__file__).parent / "cases"
#: Keys of a case that are expectations beside ``expect``.
EXTRA = ("outputType", "maxCost", "actualCost", "tooExpensiveAtCreate")


def _files() -> list[Path]:
    return sorted(shared_path("corpus/cel").glob("*.json")) + sorted(OWN.glob("*.json"))


def _difference(case: dict[str, Any], answer: dict[str, Any]) -> list[str]:
    wanted = {**case["expect"], **{key: case[key] for key in EXTRA if key in case}}
    found = {key: value for key, value in answer.items() if key not in ("id", "message")}
    if "error" in wanted and "error" in found:
        parts = set(wanted["error"]) | set(found["error"])
        if wanted["error"]["class"] == "syntax":
            parts = {"phase", "class"}
        found["error"] = {key: found["error"].get(key) for key in parts}
        wanted["error"] = {key: wanted["error"].get(key) for key in parts}
    keys = {"value", "error"} | set(wanted) | ({"tooExpensiveAtCreate"} if "maxCost" in case else set())
    return [
        f"{case['id']} {case['expression']}: {key} is {found.get(key)!r}, expected {wanted.get(key)!r}"
        for key in sorted(keys)
        if json.dumps(wanted.get(key), sort_keys=True) != json.dumps(found.get(key), sort_keys=True)
    ]


def test_every_case_is_answered_as_recorded() -> None:
    problems: list[str] = []
    for path in _files():
        cases = {case["id"]: case for case in json.loads(path.read_text())["cases"]}
        answers = list(run_file(path))
        assert len(answers) == len(cases)
        for answer in answers:
            problems += _difference(cases[answer["id"]], answer)
    assert not problems, "\n".join(problems)


def test_fast_evaluation_agrees_with_counting_evaluation() -> None:
    problems: list[str] = []
    for path in _files():
        content = json.loads(path.read_text())
        for case in content["cases"]:
            if case["expect"].get("error", {}).get("class") in ("cost-limit", "device-data"):
                continue
            device = device_of(content["devices"][case["device"]])
            derived = case.get("mode") == "derived"
            try:
                program = (compile_derived if derived else compile_selector)(
                    case["expression"],
                    environment=case.get("environment", "stored"),
                    features=features_of(case),
                    cost_limit=10**30,
                )
            except CompileError:
                continue
            try:
                value = program.value(device)
                result: Any = attribute_of(value) if derived else program.as_bool(value)
            except EvaluationError as error:
                result = (error.error_class, error.key)
            error = case["expect"].get("error")
            wanted = case["expect"].get("value") if error is None else (error["class"], error.get("key"))
            if result != wanted:
                problems.append(f"{case['id']} {case['expression']}: {result!r}, expected {wanted!r}")
    assert not problems, "\n".join(problems)


def test_a_file_that_is_no_case_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    path.write_text('{"cases": []}')
    with pytest.raises(UsageError, match="no case file"):
        list(run_file(path))


def test_an_unknown_device_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    path.write_text('{"devices": {}, "cases": [{"id": "x", "expression": "true", "device": "gpu9"}]}')
    with pytest.raises(UsageError, match="gpu9"):
        list(run_file(path))


def test_features_are_switched_per_case() -> None:
    assert features_of({}) is not None
    assert "DRAListTypeAttributes" not in features_of({"features": {"listTypeAttributes": False}})
    assert isinstance(features_of({}), Features)
