"""The stages of the search, and what happens without the solver."""

from __future__ import annotations

import random

import pytest
from benchmarks.allocator_irregular import cluster, problem

from drakkar.allocator import Fits, GaveUp, Problem, prepare, solver
from drakkar.allocator.model import build
from drakkar.allocator.search import BudgetSpent, Search
from drakkar.allocator.stages import first_solution
from tests.properties.test_allocator import NODES, wish, world
from tests.support.allocation import claim, device, inventory, published, request
from tests.support.extras import needs

#: A problem of 64 devices on which stage 2 does not end.
HARD = 1002


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the extra were not installed."""
    monkeypatch.setattr(solver, "available", lambda: False)


@pytest.mark.usefixtures("without")
def test_without_the_solver_the_search_gives_up_and_says_what_helps() -> None:
    slices, wanted = problem(random.Random(HARD), 64)
    outcome = prepare(cluster(slices), [wanted]).solve("n1", budget=1000)
    assert isinstance(outcome, GaveUp)
    assert outcome.reason.reason == "undecided"
    assert "drakkar[solver]" in outcome.reason.cure


def test_with_the_solver_it_ends() -> None:
    needs("highspy", "solver")
    slices, wanted = problem(random.Random(HARD), 64)
    assert isinstance(prepare(cluster(slices), [wanted]).solve("n1"), Fits)


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize("seed", range(12))
def test_solver_and_search_agree_on_irregular_problems(seed: int) -> None:
    needs("highspy", "solver")
    slices, wanted = problem(random.Random(seed), 24)
    for policy in ("drakkar", "upstream"):
        agree(prepare(cluster(slices), [wanted], policy, lambda: "share"), "n1")


def agree(found: Problem, node: str) -> str:
    """Sees to it that the model's first solution is the search's; answers how it ended."""
    task = found.task(node)
    model = build(task) if task.too_large is None and task.incomplete is None else None
    if model is None:
        return "no model"
    try:
        there = first_solution(task, budget=3000)
    except BudgetSpent:
        return "undecided"
    answer = solver.first(model)
    if there is None:
        assert answer is solver.Verdict.NONE
        return "no"
    assert isinstance(answer, solver.Choices)
    assert answer.first
    search = Search(task, 0, None)
    assert search.replay(answer.choices), "the search's rules refuse what the solver chose"
    mine, theirs = ([[(t.need, t.position) for t in one] for one in s.chosen] for s in (search, there))
    assert mine == theirs
    return "fits"


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize("policy", ["drakkar", "upstream"])
def test_solver_and_search_agree_on_everything_that_has_a_model(policy: str) -> None:
    """The worlds of the property tests: counters, shares, partitions, alternatives, what is held already."""
    needs("highspy", "solver")
    seen: dict[str, int] = {}
    for seed in range(40):
        rnd = random.Random(seed)
        books = inventory(*world(rnd), nodes=NODES)
        for number in range(6):
            wanted = [wish(rnd, 2 * number), wish(rnd, 2 * number + 1)]
            problem_ = prepare(books.snapshot(), wanted, policy, lambda: "share")
            kind = agree(problem_, rnd.choice(NODES))
            seen[kind] = seen.get(kind, 0) + 1
            outcome = prepare(books.snapshot(), wanted[:1], policy, lambda: "share").solve("n1")
            if isinstance(outcome, Fits):
                books.assume(f"held{number}", outcome.allocations[0])
    assert seen["fits"] > 50, seen
    assert seen["no"] > 50, seen


def test_mode_all_and_lists_have_the_model_that_they_can_have() -> None:
    needs("highspy", "solver")
    devices = [device(f"d{n}", attributes={"root": n % 2}, draws={"c": {"m": "1"}}) for n in range(4)]
    slices = [published("c", counters={"c": {"m": "4"}}, count=2), published("d", devices, count=2)]
    books = inventory(*slices)
    for wanted in (
        claim(request(count=0)),
        claim(request(count=0), request("q")),
        claim(request(count=2), constraints=[{"matchAttribute": "gpu.example.com/root"}]),
        claim(request(count=3), constraints=[{"matchAttribute": "gpu.example.com/root"}]),
        claim(request("a"), request("b"), constraints=[{"distinctAttribute": "gpu.example.com/root"}]),
    ):
        assert agree(prepare(books.snapshot(), [wanted], "drakkar", lambda: "share"), "n1") in ("fits", "no")
    admin = prepare(books.snapshot(), [claim(request(adminAccess=True))])
    assert build(admin.task("n1")) is None


def test_amounts_too_fine_for_doubles_have_no_model() -> None:
    devices = [device(f"d{n}", draws={"c": {"m": str(10**15 + n)}}) for n in range(3)]
    books = inventory(published("c", counters={"c": {"m": str(2 * 10**15)}}, count=2), published("d", devices, count=2))
    assert build(prepare(books.snapshot(), [claim(request())]).task("n1")) is None
