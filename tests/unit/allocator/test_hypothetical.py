"""The library's how-to: its code runs as it stands there, on real and on hypothetical nodes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import drakkar
from drakkar.api.errors import UsageError
from drakkar.api.resource import v1
from drakkar.insight.reasons import decoded
from tests.unit.scheduler.build import claim, device_class, node, node_slice, pod

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "use-the-library.md"


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """What the functions on the page are, run as they are printed."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {"claim": decoded(claim("c"))}
    for block in blocks:
        exec(block.replace("objects = [...] ", "objects = [] "), names)
    return names


def claims(*names: str, count: int = 1) -> list[v1.ResourceClaim]:
    return [msgspec.convert(claim(name, count), v1.ResourceClaim) for name in names]


WORLD = [node("a"), device_class(), node_slice("a", 3)]


def test_how_many(page: dict[str, Any]) -> None:
    count, why = page["how_many"](WORLD, claims("c"))
    assert count == 3
    assert "in exclusive use" in why
    assert page["how_many"](WORLD, claims("c", "d"))[0] == 1
    assert page["how_many"](WORLD, claims("c"), most=2) == (2, "")


def test_nodes_to_add(page: dict[str, Any]) -> None:
    need = page["nodes_to_add"]
    template, slices = node("big"), [node_slice("big", 4)]
    pods = [claims(f"c{i}") for i in range(9)]
    assert need(WORLD, template, slices, pods[:3]) == 0
    assert need(WORLD, template, slices, pods) == 2
    # From zero: nothing is there but the class.
    assert need([device_class()], template, slices, pods) == 3
    assert need([device_class()], template, slices, [claims("c", count=5)]) is None


def test_would_start(page: dict[str, Any]) -> None:
    would = page["would_start"]
    world = [*WORLD, claim("c", 2), node("b", taints=({"key": "broken", "effect": "NoSchedule"},)), node_slice("b", 3)]
    assert would(world, pod("p", "c")) == ("a", "")
    taken = [*world[1:], node("a", taints=({"key": "broken", "effect": "NoSchedule"},))]
    assert would(taken, pod("p", "c"))[0] is None
    assert "untolerated taint {broken: }" in would(taken, pod("p", "c"))[1]


def test_claim_of_a_template(page: dict[str, Any]) -> None:
    template = {"metadata": {"name": "t", "namespace": "n"}, "spec": {"spec": claim("c", 2)["spec"]}}
    decision = drakkar.allocate(drakkar.snapshot(WORLD), [page["claim_of"](template)])
    assert decision.node == "a"


def test_hypothetical_nodes() -> None:
    made = [*drakkar.hypothetical(node("big"), [node_slice("big", 2)], count=2, labels={"pool": "x"})]
    assert [obj["metadata"]["name"] for obj in made if obj["kind"] == "Node"] == ["big+0", "big+1"]
    assert made[0]["metadata"]["labels"]["kubernetes.io/hostname"] == "big+0"
    assert made[0]["metadata"]["labels"]["pool"] == "x"
    decision = drakkar.allocate(drakkar.snapshot([*WORLD, *made]), claims("c", "d", count=2))
    assert not drakkar.is_hypothetical("a")
    assert decision.node is None
    decision = drakkar.allocate(drakkar.snapshot([device_class(), *made]), claims("c", count=2))
    assert decision.node == "big+0"
    assert drakkar.is_hypothetical(decision.node)
    # As structs, too, and the template is as it was.
    [again] = drakkar.hypothetical({"metadata": {"name": "big"}, "kind": "Node"}, count=1)
    assert again["metadata"]["name"] == "big+0"
    typed = msgspec.convert(node_slice("big", 1), v1.ResourceSlice)
    assert [*drakkar.hypothetical(node("big"), [typed])][1]["spec"]["nodeName"] == "big+0"


def test_slices_of_other_nodes_are_refused() -> None:
    with pytest.raises(UsageError, match="is for a, not for the template node big"):
        list(drakkar.hypothetical(node("big"), [node_slice("a", 1)]))
