"""Where policy ``drakkar`` departs from upstream: the rows of docs/deviations.md not covered by the vectors."""

from __future__ import annotations

from drakkar.allocator import Failed, Fits, NoFit, allocate, prepare
from drakkar.inventory import Switches
from tests.support.allocation import (
    chosen,
    claim,
    device,
    device_class,
    error_class,
    inventory,
    published,
    request,
    solve,
)


def reason(outcome: object) -> str:
    assert isinstance(outcome, NoFit), outcome
    return outcome.reason.reason


def test_a_selector_that_does_not_compile_matches_nothing() -> None:
    books = inventory(published("a", [device("x")]), device_class("odd", "1 + 1"))
    wanted = claim(request(class_name="odd"))
    assert error_class(solve(books, wanted)) == "cel-compile"
    assert reason(solve(books, wanted, policy="drakkar")) == "cel-runtime-error"


def test_mode_all_waits_for_the_pool_of_its_own_driver() -> None:
    books = inventory(published("a", [device("x")], count=2))
    assert error_class(solve(books, claim(request(count=0)))) == "all-incomplete-pool"
    assert reason(solve(books, claim(request(count=0)), policy="drakkar")) == "pool-incomplete"


def test_an_invalid_pool_is_left_out() -> None:
    books = inventory(published("a", [device("x"), device("x")]), published("b", [device("y")], pool="q"))
    assert chosen(solve(books, claim(request()), policy="drakkar")) == ["y"]
    outcome = solve(books, claim(request(count=2)), policy="drakkar")
    assert reason(outcome) == "not-enough-devices"


def test_an_error_on_one_node_leaves_the_others() -> None:
    """Upstream ends the attempt for all nodes; here the decision goes on."""
    broken = 'device.attributes["gpu.example.com"].n == 0'
    books = inventory(
        published("a", [device("x")], pool="n1"),
        published("b", [device("y", attributes={"n": 0})], pool="n2", nodeName="n2"),
        nodes=("n1", "n2"),
    )
    wanted = [claim(request(select=broken))]
    assert isinstance(allocate(books.snapshot(), wanted, policy="upstream").outcome, Failed)
    decision = allocate(books.snapshot(), wanted)
    assert decision.node == "n2"
    assert isinstance(decision.outcome, Fits)


def test_a_missing_class_is_an_error_under_both() -> None:
    for policy in ("upstream", "drakkar"):
        assert error_class(solve(inventory(), claim(request(class_name="none")), policy=policy)) == "class-missing"


def test_the_answer_comes_with_all_nodes_at_once() -> None:
    slices = [published(f"s{n}", [device("x")], pool=f"n{n}", nodeName=f"n{n}") for n in range(3)]
    books = inventory(*slices, nodes=("n0", "n1", "n2", "n3"))
    assert prepare(books.snapshot(), [claim(request())]).feasible().nodes == ("n0", "n1", "n2")
    first = allocate(books.snapshot(), [claim(request())])
    assert isinstance(first.outcome, Fits)
    books.assume("uid-c", first.outcome.allocations[0])
    assert prepare(books.snapshot(), [claim(request())]).feasible().nodes == ("n1", "n2")
    refused = prepare(books.snapshot(), [claim(request(count=2))]).feasible()
    assert refused.nodes == ()
    assert refused.refusal is not None
    assert (refused.refusal.reason, refused.refusal.nodes) == ("not-enough-devices", 3)


def test_a_derived_attribute_that_fails() -> None:
    books = inventory(
        published("a", [device("x", attributes={"n": 1}), device("y"), device("z", attributes={"n": 3})]),
        switches=Switches(DerivedAttributes=True),
    )
    odd = {"name": "gpu.example.com/odd", "expression": 'device.attributes["gpu.example.com"].n % 2'}
    wanted = claim(request(count=2, derivedAttributes=[odd]), constraints=[{"matchAttribute": odd["name"]}])
    assert error_class(solve(books, wanted)) == "cel-runtime"
    assert chosen(solve(books, wanted, policy="drakkar")) == ["x", "z"]


def test_a_pool_with_a_newer_generation_elsewhere_is_stale() -> None:
    """The node's own slice is complete by its own count, and the pool has moved on."""
    old = published("old", [device("x")], pool="p")
    new = published("new", [device("y")], pool="p", generation=2, nodeName="n2")
    books = inventory(old, new, nodes=("n1", "n2"))
    assert chosen(solve(books, claim(request()))) == ["x"]
    assert reason(solve(books, claim(request()), policy="drakkar")) == "no-slice-of-driver"
    # It is no obstacle either, and comes back when the newer generation goes.
    books.set_slice(published("other", [device("z")], pool="q"))
    assert chosen(solve(books, claim(request(count=0)), policy="drakkar")) == ["z"]
    books.remove_slice("new")
    assert chosen(solve(books, claim(request()), policy="drakkar")) == ["x"]


def test_slices_that_disagree_on_their_number_are_no_pool() -> None:
    slices = [published("a", [device("x")], count=2), published("b", [device("y")], count=1)]
    books = inventory(*slices)
    assert chosen(solve(books, claim(request()))) == ["x"]
    refused = solve(books, claim(request()), policy="drakkar")
    assert isinstance(refused, NoFit)
    assert "disagree on resourceSliceCount: [1, 2]" in refused.reason.message
    outcome = solve(books, claim(request(count=0)), policy="drakkar")
    assert reason(outcome) == "pool-incomplete"
    assert isinstance(outcome, NoFit)
    assert "disagree on resourceSliceCount: [1, 2]" in outcome.reason.message
    books.set_slice(published("b", [device("y")], count=2))
    assert chosen(solve(books, claim(request(count=2)), policy="drakkar")) == ["x", "y"]
