"""Preferred constraints: kept where that is possible, on a node and among nodes."""

from __future__ import annotations

import json
import random
from itertools import combinations
from typing import Any

import msgspec
import pytest

from drakkar.allocator import Fits, allocate, prepare
from drakkar.allocator.wishes import kept, told, wishes_of
from drakkar.api.resource.v1 import ResourceClaim
from drakkar.inventory import Inventory
from tests.support.allocation import DRIVER, chosen, claim, device, inventory, published, request, solve

ANNOTATION = "drakkar.dev/preferred-constraints"


def preferring(wanted: ResourceClaim, *entries: dict[str, Any], text: str | None = None) -> ResourceClaim:
    """The claim with these preferred constraints."""
    annotations = {ANNOTATION: json.dumps(entries) if text is None else text}
    return msgspec.structs.replace(wanted, metadata=msgspec.structs.replace(wanted.metadata, annotations=annotations))


def match(name: str, weight: int = 1, *requests: str) -> dict[str, Any]:
    return {"matchAttribute": f"{DRIVER}/{name}", "weight": weight, "requests": list(requests)}


def distinct(name: str, weight: int = 1, *requests: str) -> dict[str, Any]:
    return {"distinctAttribute": f"{DRIVER}/{name}", "weight": weight, "requests": list(requests)}


def node(name: str, *devices: tuple[int, int]) -> Any:
    """A node whose devices have these values of ``root`` and ``numa``."""
    listed = [device(f"{name}-{n}", attributes={"root": r, "numa": m}) for n, (r, m) in enumerate(devices)]
    return published(f"s-{name}", listed, pool=name, nodeName=name)


def test_kept_where_possible_and_no_obstacle_otherwise() -> None:
    books = inventory(node("n1", (0, 0), (1, 0), (1, 1), (2, 1)))
    two = claim(request(count=2))
    assert chosen(solve(books, two, policy="drakkar")) == ["n1-0", "n1-1"]
    assert chosen(solve(books, preferring(two, match("root")), policy="drakkar")) == ["n1-1", "n1-2"]
    three = solve(books, preferring(claim(request(count=3)), match("root", 7)), policy="drakkar")
    assert chosen(three) == ["n1-0", "n1-1", "n1-2"]
    assert isinstance(three, Fits)
    assert three.unmet == 7
    # Upstream's policy reads no annotation.
    assert chosen(solve(books, preferring(two, match("root")))) == ["n1-0", "n1-1"]


def test_the_heavier_wish_wins() -> None:
    books = inventory(node("n1", (0, 0), (0, 1), (1, 0)))
    two = claim(request(count=2))
    assert chosen(solve(books, preferring(two, match("root", 1), match("numa", 2)), policy="drakkar")) == [
        "n1-0",
        "n1-2",
    ]
    assert chosen(solve(books, preferring(two, match("root", 2), match("numa", 1)), policy="drakkar")) == [
        "n1-0",
        "n1-1",
    ]


def test_the_node_on_which_more_is_kept_comes_first() -> None:
    books = inventory(node("n1", (0, 0), (1, 0)), node("n2", (0, 0), (0, 1)), nodes=("n1", "n2"))
    two = claim(request(count=2))
    assert allocate(books.snapshot(), [two]).node == "n1"
    assert allocate(books.snapshot(), [preferring(two, match("root"))]).node == "n2"
    assert allocate(books.snapshot(), [preferring(two, match("root", 1), match("numa", 2))]).node == "n1"
    problem = prepare(books.snapshot(), [preferring(two, match("root"))])
    assert list(problem.ranked()) == ["n2", "n1"]


def test_wishes_cover_the_requests_they_name() -> None:
    books = inventory(node("n1", (0, 0), (1, 0), (0, 1), (1, 1)))
    wanted = claim(request("a"), request("b"), request("c"))
    found = solve(
        books, preferring(wanted, match("root", 1, "a", "c"), distinct("root", 1, "a", "b")), policy="drakkar"
    )
    assert chosen(found) == ["n1-0", "n1-1", "n1-2"]
    found = solve(books, preferring(wanted, match("root", 1, "b", "c")), policy="drakkar")
    assert chosen(found) == ["n1-0", "n1-1", "n1-3"]


def test_claims_with_other_wishes_are_other_templates() -> None:
    books = inventory(node("n1", (0, 0), (1, 0), (1, 1)))
    snapshot, two = books.snapshot(), claim(request(count=2))
    for wishes, expected in (((), ["n1-0", "n1-1"]), ((match("root"),), ["n1-1", "n1-2"]), ((), ["n1-0", "n1-1"])):
        wanted = preferring(two, *wishes) if wishes else two
        assert chosen(prepare(snapshot, [wanted]).solve("n1")) == expected


def test_what_was_kept_is_told() -> None:
    books = inventory(node("n1", (0, 0), (1, 0)))
    wanted = preferring(claim(request(count=2)), match("numa", 5), match("root", 3), distinct("serial", 1))
    outcome = solve(books, wanted, policy="drakkar")
    assert isinstance(outcome, Fits)
    assert [holds for _, holds in kept(books.snapshot(), wanted, outcome.allocations[0])] == [True, False, False]
    assert told(books.snapshot(), wanted, outcome.allocations[0]) == [
        "prefers matchAttribute gpu.example.com/numa (weight 5): fulfilled",
        "prefers matchAttribute gpu.example.com/root (weight 3): not fulfilled",
        "prefers distinctAttribute gpu.example.com/serial (weight 1): not fulfilled",
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[", "expected"),
        ("3", "Expected `array`"),
        ("[{}]", "exactly one of"),
        ('[{"matchAttribute": "a/b", "distinctAttribute": "a/b"}]', "exactly one of"),
        ('[{"matchAttribute": "root"}]', "needs a domain"),
        ('[{"matchAttribute": "a/b", "weight": 0}]', "not between 1 and 100"),
        ('[{"matchAttribute": "a/b", "wieght": 2}]', "unknown field `wieght`"),
        ('[{"matchAttribute": "a/b", "requests": ["x"]}]', "no request 'x'"),
        (json.dumps([match("root")] * 9), "9 constraints, 8 are permitted"),
        ("[&a {matchAttribute: a/b}, *a]", "aliases are not permitted"),
        ("[" * 5000, "nested too deeply"),
        ("x" * 20_000, "longer than"),
    ],
)
def test_an_annotation_that_cannot_be_read_changes_nothing_and_is_told(text: str, complaint: str) -> None:
    books = inventory(node("n1", (0, 0), (1, 0), (1, 1)))
    wanted = preferring(claim(request(count=2)), text=text)
    outcome = solve(books, wanted, policy="drakkar")
    assert chosen(outcome) == ["n1-0", "n1-1"]
    assert isinstance(outcome, Fits)
    (line,) = told(books.snapshot(), wanted, outcome.allocations[0])
    assert line.startswith(f"annotation {ANNOTATION} is ignored: ")
    assert complaint in line


def test_yaml_is_read_too() -> None:
    found = wishes_of(preferring(claim(request()), text="- matchAttribute: a/b\n- {distinctAttribute: a/c, weight: 9}"))
    assert [str(wish) for wish in found.wishes] == ["distinctAttribute a/c (weight 9)", "matchAttribute a/b (weight 1)"]


@pytest.mark.parametrize("seed", range(25))
def test_wishes_never_cost_the_fit_and_the_heaviest_is_kept_if_it_can_be(seed: int) -> None:
    rnd = random.Random(seed)
    values = [(rnd.randrange(3), rnd.randrange(3)) for _ in range(rnd.randint(2, 6))]
    books: Inventory = inventory(node("n1", *values))
    count = rnd.randint(2, 3)
    entries = [match("root", 9), rnd.choice([match, distinct])("numa", 4)]
    outcome = solve(books, preferring(claim(request(count=count)), *entries), policy="drakkar")
    choices = list(combinations(values, count))
    assert isinstance(outcome, Fits) == bool(choices)
    if isinstance(outcome, Fits):
        roots = {values[int(name[3:])][0] for name in chosen(outcome)}
        possible = any(len({root for root, _ in choice}) == 1 for choice in choices)
        assert (len(roots) == 1) == possible

        def weight(choice: tuple[tuple[int, int], ...]) -> int:
            numa = {m for _, m in choice}
            second = len(numa) == (1 if "matchAttribute" in entries[1] else count)
            return (9 if len({r for r, _ in choice}) == 1 else 0) + (4 if second else 0)

        assert outcome.unmet == 13 - max(map(weight, choices))
