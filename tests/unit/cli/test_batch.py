"""Input of ``allocate``, ``cel`` and ``verify`` that is none: exit 2 and what is wrong, no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drakkar.cli import main

DEVICE = {"driver": "d.example.com"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("x", "line 2: not valid JSON"),
        ("[1]", "line 2: a scenario is a JSON object"),
        ('{"scenario": 3}', "line 2: a scenario is a JSON object"),
        ('{"deviceClasses": 3}', "$.deviceClasses"),
        ('{"nodes": ["n"]}', "$.nodes[0]"),
        ('{"nodes": [{"metadata": {}}]}', "$.nodes[0].metadata"),
        ('{"claims": [{"spec": 1}]}', "$.claims[0].spec"),
        ('{"try": "n"}', "try names the node 'n'"),
    ],
)
def test_allocate_says_what_is_no_scenario(
    line: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "scenarios"
    path.write_text(f"{{}}\n{line}\n")
    assert main(["allocate", str(path)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("kind: Job", "JSON is malformed"),
        ({}, "`devices`"),
        ({"devices": 3, "cases": 4}, "$.devices"),
        ({"devices": {"a": {}}, "cases": []}, "lacks the field 'driver'"),
        ({"devices": {"a": {**DEVICE, "attributes": 1}}, "cases": []}, "$.attributes"),
        ({"devices": {"a": DEVICE}, "cases": [{"id": "one"}]}, "case 1 lacks device, expression"),
        (
            {"devices": {"a": DEVICE}, "cases": [{"id": "one", "device": "b", "expression": "true"}]},
            "case one: there is no device 'b'",
        ),
    ],
)
def test_cel_says_what_is_no_case_file(
    content: object, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cases.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    assert main(["cel", str(path)]) == 2
    assert words in capsys.readouterr().err


def test_verify_does_not_call_a_dump_without_content_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "dump.yaml"
    path.write_text("apiVersion: drakkar.dev/v1alpha1\nkind: Fleet\nmetadata: {name: f}\n")
    assert main(["verify", "-f", str(path)]) == 2
    assert "holds nothing to audit" in capsys.readouterr().err
    path.write_text("apiVersion: v1\nkind: Node\nmetadata: {name: n}\n")
    assert main(["verify", "-f", str(path)]) == 0
    assert capsys.readouterr().out == "1 object, 0 findings\n"
