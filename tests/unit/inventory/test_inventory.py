"""Books are kept by events, in any order, and snapshots stay what they were."""

from __future__ import annotations

import random

import msgspec
import pytest

from drakkar.allocator import Fits, prepare
from drakkar.inventory import Inventory, Switches
from tests.support.allocation import (
    HOST,
    allocated,
    chosen,
    claim,
    device,
    device_class,
    error_class,
    inventory,
    on_hosts,
    published,
    request,
    solve,
    taint_rule,
)


def test_a_decision_counts_until_it_is_forgotten() -> None:
    books = inventory(published("a", [device("x")]))
    outcome = solve(books, claim(request()))
    assert isinstance(outcome, Fits)
    books.assume("uid-c", outcome.allocations[0])
    assert error_class(solve(books, claim(request()))) == "nofit"
    books.forget("uid-c")
    assert chosen(solve(books, claim(request()))) == ["x"]


def test_a_decision_seen_back_is_booked_once() -> None:
    books = inventory(published("a", [device("x")]))
    outcome = solve(books, claim(request()))
    assert isinstance(outcome, Fits)
    books.assume("uid-c", outcome.allocations[0])
    books.set_claim(claim(request()))  # an older version comes by: nothing is lost
    assert error_class(solve(books, claim(request()))) == "nofit"
    books.set_claim(allocated(claim(request()), outcome))
    books.forget("uid-c")
    assert error_class(solve(books, claim(request()))) == "nofit"
    books.set_claim(claim(request()))
    assert chosen(solve(books, claim(request()))) == ["x"]


def test_a_claim_of_the_same_name_replaces_the_old_one() -> None:
    books = inventory(published("a", [device("x")]))
    held = allocated(claim(request()), solve(books, claim(request())))
    books.set_claim(held)
    reborn = claim(request())
    books.set_claim(msgspec.structs.replace(reborn, metadata=msgspec.structs.replace(reborn.metadata, uid="new")))
    assert chosen(solve(books, claim(request()))) == ["x"]


def test_two_holders_of_one_device_are_both_counted() -> None:
    books = inventory(published("a", [device("x")]))
    outcome = solve(books, claim(request()))
    books.set_claim(allocated(claim(name="one"), outcome))
    books.set_claim(allocated(claim(name="two"), outcome))
    books.remove_claim("default", "one")
    assert error_class(solve(books, claim(request()))) == "nofit"
    books.remove_claim("default", "two")
    assert chosen(solve(books, claim(request()))) == ["x"]


def test_a_snapshot_does_not_change() -> None:
    books = inventory(published("a", [device("x")]))
    before = books.snapshot()
    outcome = solve(before, claim(request()))
    books.set_claim(allocated(claim(request()), outcome))
    books.remove_slice("a")
    books.remove_class("gpu")
    books.remove_node("n1")
    assert chosen(solve(before, claim(request()))) == ["x"]
    assert before.nodes == ("n1",)


def test_what_if_snapshots() -> None:
    books = inventory(published("a", [device("x"), device("y")]))
    start = books.snapshot()
    first = solve(start, claim(request()))
    assert isinstance(first, Fits)
    then = start.assume(first.allocations[0])
    assert chosen(solve(then, claim(request()))) == ["y"]
    assert chosen(solve(start, claim(request()))) == ["x"]
    assert chosen(solve(then.release(first.allocations[0]), claim(request()))) == ["x"]


def test_a_vanished_device_keeps_its_counters_under_policy_drakkar() -> None:
    counters = published("c", counters={"c": {"m": "1"}}, count=2)
    both = [device("x", draws={"c": {"m": "1"}}), device("y", draws={"c": {"m": "1"}})]
    books = inventory(counters, published("d", both, count=2))
    books.set_claim(allocated(claim(name="held"), solve(books, claim(request()))))
    books.set_slice(published("d", both[1:], count=2))
    assert chosen(solve(books, claim(request()))) == ["y"]
    assert error_class(solve(books, claim(request()), policy="drakkar")) == "nofit"
    books.remove_claim("default", "held")
    assert chosen(solve(books, claim(request()), policy="drakkar")) == ["y"]


def test_labels_and_selectors_meet_in_any_order() -> None:
    shared = published("a", [device("x")], nodeSelector=on_hosts("late"))
    books = inventory(shared)
    assert prepare(books.snapshot(), [claim(request())]).feasible().nodes == ()
    books.set_node("late", {HOST: "late"})
    assert prepare(books.snapshot(), [claim(request())]).feasible().nodes == ("late",)
    books.set_node("late", {HOST: "other"})
    assert prepare(books.snapshot(), [claim(request())]).feasible().nodes == ()


def test_an_unusable_node_selector_is_an_error_for_upstream_and_no_obstacle_for_drakkar() -> None:
    bad = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "rank", "operator": "Gt", "values": ["-1"]}]}]}
    books = inventory(published("a", [device("x")]), published("b", [device("y")], pool="q", nodeSelector=bad))
    assert error_class(solve(books, claim(request()))) == "node-selector"
    assert chosen(solve(books, claim(request()), policy="drakkar")) == ["x"]


def test_a_newer_generation_replaces_the_pool_when_it_is_whole() -> None:
    books = inventory(published("a", [device("old")]))
    books.set_slice(published("b", [device("new-0")], generation=2, count=2))
    assert error_class(solve(books, claim(request()))) == "nofit"
    books.set_slice(published("c", [device("new-1")], generation=2, count=2))
    assert chosen(solve(books, claim(request(count=2)))) == ["new-0", "new-1"]


def test_features_decide_how_shares_are_booked() -> None:
    shared = device("x", capacity={"bw": "10"}, allowMultipleAllocations=True)
    books = inventory(published("a", [shared]))
    held = allocated(claim(name="held"), solve(books, claim(request(capacity={"bw": "1"}))))
    books.set_claim(held)
    assert chosen(solve(books, claim(request(capacity={"bw": "1"})))) == ["x"]
    off = inventory(published("a", [shared]), held, switches=Switches(ConsumableCapacity=False))
    assert error_class(solve(off, claim(request()))) == "nofit"


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_events_does_not_matter(seed: int) -> None:
    nodes = [f"n{number}" for number in range(4)]
    slices = [published(f"s-{name}", [device("x"), device("y")], pool=name, nodeName=name) for name in nodes]
    slices.append(published("shared", [device("z")], pool="z", nodeSelector=on_hosts("n1", "n3")))
    reference = inventory(*slices, nodes=nodes)
    held = [
        allocated(claim(name=f"h{number}"), solve(reference, claim(request()), node=name))
        for number, name in enumerate(nodes[:2])
    ]
    events = [
        *[("slice", item) for item in slices],
        *[("node", name) for name in nodes],
        *[("claim", item) for item in held],
        ("rule", taint_rule("t", "k", pool="n3")),
        ("class", device_class()),
    ]
    random.Random(seed).shuffle(events)
    books = Inventory(Switches())
    for kind, item in events:
        if kind == "slice":
            books.set_slice(item)
        elif kind == "node":
            books.set_node(item, {HOST: item})
        elif kind == "claim":
            books.set_claim(item)
        elif kind == "rule":
            books.set_taint_rule(item)
        else:
            books.set_class(item)
        books.snapshot()
    assert chosen(solve(books, claim(request()), node="n0")) == ["y"]
    assert chosen(solve(books, claim(request(count=2)), node="n1")) == ["y", "z"]
    assert chosen(solve(books, claim(request(count=2)), node="n2")) == ["x", "y"]
    assert chosen(solve(books, claim(request()), node="n3")) == ["z"]
    assert set(prepare(books.snapshot(), [claim(request(count=2))]).feasible().nodes) == {"n1", "n2"}


@pytest.mark.parametrize("slices", [1, 2])
def test_devices_beside_their_counters_as_kubernetes_1_34_has_them(slices: int) -> None:
    """One slice is a way of its own through the books; upstream's allocator of 1.37 looks at no such device."""
    halves = [device(f"half-{number}", draws={"card": {"m": "2"}}) for number in range(3)]
    mixed = published("a", [*halves, device("plain")], counters={"card": {"m": "4"}}, count=slices)
    more = [published("b", [device("other", draws={"card": {"m": "1"}})], count=2)][: slices - 1]
    books = inventory(mixed, *more, switches=Switches(MixedSlices=True))
    assert chosen(solve(books, claim(request(count=3)))) == ["half-0", "half-1", "plain"]
    held = allocated(claim(name="held"), solve(books, claim(request(count=2))))
    books.set_claim(held)
    assert chosen(solve(books, claim(request()))) == ["plain"]
    assert error_class(solve(books, claim(request(count=2)))) == "nofit"
    books = inventory(mixed, *more)
    assert error_class(solve(books, claim(request(count=2)))) == "nofit"
