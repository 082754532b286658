"""A refusal says at which stage it ended, with names, counts and a cure."""

from __future__ import annotations

import pytest

from drakkar.allocator import NoFit, Reason, explain, prepare
from tests.support.allocation import allocated, claim, device, inventory, published, ranked, request, solve

A = "gpu.example.com"


def why(books: object, *claims: object) -> Reason:
    outcome = solve(books, *claims, policy="drakkar")  # type: ignore[arg-type]
    assert isinstance(outcome, NoFit), outcome
    return outcome.reason


def counters_books(limit: str = "1") -> object:
    return inventory(
        published("c", counters={"set-0": {"m": limit}}, count=2),
        published("d", [device("x", draws={"set-0": {"m": "2"}})], count=2),
    )


SHARED = {"capacity": {"bw": "10"}, "allowMultipleAllocations": True}
CASES = {
    "no-slice-of-driver": (inventory(), claim(request()), ["gpu.example.com"]),
    "no-device-matches": (inventory(published("a", [device("x")])), claim(request(select="false")), ["1 devices"]),
    "cel-runtime-error": (
        inventory(published("a", [device("x")])),
        claim(request(select=f'device.attributes["{A}"].missing == 1')),
        ["missing"],
    ),
    "request-exceeds-device": (
        inventory(published("a", [device("x", **SHARED)])),
        claim(request(capacity={"bw": "11"})),
        ["bw=11", "x"],
    ),
    "tainted": (
        inventory(published("a", [device("x", taints=[{"key": "sick", "effect": "NoExecute"}])])),
        claim(request()),
        ["sick:NoExecute"],
    ),
    "not-enough-devices": (inventory(published("a", [device("x")])), claim(request(count=2)), ["2 devices", "1 of 1"]),
    "counters-exhausted": (counters_books(), claim(request()), ["set-0"]),
    "constraint-unsatisfied": (
        inventory(published("a", [device("x", attributes={"n": 0}), device("y", attributes={"n": 1})])),
        claim(request(count=2), constraints=[{"matchAttribute": f"{A}/n"}]),
        [f"{A}/n"],
    ),
    "claim-too-large": (
        inventory(published("a", [device(f"d{n}") for n in range(40)])),
        claim(request(count=33)),
        ["33", "32"],
    ),
}


@pytest.mark.parametrize("word", CASES)
def test_word_and_mentions(word: str) -> None:
    books, wanted, mentions = CASES[word]
    found = why(books, wanted)
    assert found.reason == word
    assert found.claim == "default/c"
    assert found.message.startswith("claim default/c")
    assert found.cure
    for text in mentions:
        assert text in found.message


def test_in_use_names_the_devices() -> None:
    books = inventory(published("a", [device("x")]))
    books.set_claim(allocated(claim(name="held"), solve(books, claim(request()))))
    found = why(books, claim(request()))
    assert (found.reason, found.funnel["matching"], found.funnel["free"]) == ("in-use", 1, 0)
    assert "x" in found.message


def test_capacity_that_is_left() -> None:
    books = inventory(published("a", [device("x", **SHARED)]))
    books.set_claim(allocated(claim(name="held"), solve(books, claim(request(capacity={"bw": "7"})))))
    found = why(books, claim(request(capacity={"bw": "5"})))
    assert found.reason == "capacity-exhausted"
    assert "bw of x (left 3)" in found.message


def test_of_alternatives_the_one_that_came_furthest() -> None:
    books = inventory(published("a", [device("x")]))
    found = why(books, claim(ranked("r", request("none", select="false"), request("two", 2))))
    assert (found.reason, found.request) == ("not-enough-devices", "r/two")


def test_requests_that_only_clash_together() -> None:
    books = inventory(published("a", [device("x")]))
    assert why(books, claim(request("a"), request("b"))).reason == "not-enough-devices"
    drawn = inventory(
        published("c", counters={"set-0": {"m": "2"}}, count=2),
        published("d", [device(n, draws={"set-0": {"m": "2"}}) for n in "xy"], count=2),
    )
    assert why(drawn, claim(request("a"), request("b"))).reason == "counters-exhausted"


def test_over_nodes_the_furthest_then_the_most() -> None:
    books = inventory(
        published("a", [device("x", attributes={"kind": "odd"})], pool="n1"),
        published("b", [device("x")], pool="n2", nodeName="n2"),
        published("c", [device("x")], pool="n3", nodeName="n3"),
        nodes=("n1", "n2", "n3", "n4"),
    )
    guarded = f'!has(device.attributes["{A}"].kind)'
    problem = prepare(books.snapshot(), [claim(request(count=2, select=guarded))])
    found = explain(problem, problem.snapshot.nodes)
    assert (found.reason, found.nodes) == ("not-enough-devices", 2)
    assert "2 of 4 nodes" in found.message


def test_a_kept_reason_names_the_claim_that_asks() -> None:
    books = inventory(published("a", [device("x")]))
    for name in ("first", "second"):
        outcome = prepare(books.snapshot(), [claim(request(count=2), name=name)]).feasible()
        assert outcome.refusal is not None
        assert outcome.refusal.claim == f"default/{name}"
