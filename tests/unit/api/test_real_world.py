"""Every object of the real-world corpus is accepted or refused exactly as its expectation says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from drakkar.api.errors import FieldError
from drakkar.api.registry import ValidationContext, defaults_for, strategy_for, validator_for
from drakkar.api.resource.conversion import convert
from tests.support.shared import shared_path

NOW = "2026-01-01T00:00:00Z"


def objects(folder: Path) -> Iterator[dict[str, Any]]:
    for name in ("cluster.yaml", "workload.yaml"):
        with (folder / name).open() as file:
            yield from (obj for obj in yaml.load_all(file, yaml.CSafeLoader) if obj)


def looks_like_no_cel(expression: str) -> list[FieldError]:
    """Stands in for the CEL compiler: a lone equals sign is the one fault that the corpus has."""
    if " = " in expression:
        return [FieldError(type="FieldValueInvalid", field="", detail="compilation failed")]
    return []


@pytest.mark.parametrize("number", range(1, 28))
def test_refusals(number: int) -> None:
    folder = next(shared_path("corpus/real-world").glob(f"{number:02}-*"))
    with (folder / "expect.yaml").open() as file:
        expect = yaml.load(file, yaml.CSafeLoader)
    refused = {(entry["kind"], entry["name"]): entry["errors"] for entry in expect.get("invalid", [])}
    namespaces = {
        obj["metadata"]["name"]: obj["metadata"].get("labels", {})
        for obj in objects(folder)
        if obj["kind"] == "Namespace"
    }
    for obj in objects(folder):
        group, _, version = obj["apiVersion"].rpartition("/")
        validate = validator_for(group, obj["kind"])
        if validate is None:
            continue
        if obj["kind"] in ("ResourceClaim", "ResourceClaimTemplate", "Pod"):
            obj["metadata"].setdefault("namespace", "default")
        if defaults := defaults_for(obj["kind"], version):
            defaults(obj)
        if group == "resource.k8s.io":
            obj = convert(obj, obj["kind"], version, "v1")
        if strategy := strategy_for(group, obj["kind"]):
            strategy.prepare_create(obj, NOW)
        labels = namespaces.get(obj["metadata"].get("namespace", ""), {})
        ctx = ValidationContext(check_selector=looks_like_no_cel, namespace_labels=labels)
        found = [{"field": error.field, "type": error.type} for error in validate(obj, None, None, ctx)]
        assert found == refused.get((obj["kind"], obj["metadata"]["name"]), []), obj["metadata"]["name"]
