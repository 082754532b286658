"""The conformance vectors of the allocation rules, one test each, under policy ``upstream``."""

from __future__ import annotations

import pytest

from drakkar.allocator import Failed, Fits
from tests.support.allocation import (
    allocated,
    chosen,
    claim,
    device,
    device_class,
    error_class,
    inventory,
    on_hosts,
    published,
    ranked,
    request,
    solve,
    taint_rule,
)


def gpus(count: int, **fields: object) -> list[dict[str, object]]:
    return [device(f"gpu-{number}", **fields) for number in range(count)]


def test_pools_then_slices_then_devices_in_order() -> None:
    books = inventory(
        published("b", gpus(2), pool="b"),
        published("y2", [device("low")], pool="a", count=2),
        published("y10", [device("high")], pool="a", count=2),
    )
    assert chosen(solve(books, claim(request(count=3)))) == ["high", "low", "gpu-0"]


def test_pools_with_binding_conditions_come_last() -> None:
    books = inventory(
        published("bound", [device("b", bindingConditions=["ready"])], driver="aaa", pool="x"),
        published("plain", [device("p")], driver="gpu.x", pool="x"),
        device_class("any", "true"),
    )
    assert chosen(solve(books, claim(request(count=2, class_name="any")))) == ["p", "b"]


def test_a_device_name_twice_spoils_the_pool_on_this_node_only() -> None:
    books = inventory(published("s", [device("d"), device("d")]))
    outcome = solve(books, claim(request()))
    assert isinstance(outcome, Failed)
    assert (outcome.error_class, outcome.node_only) == ("pool-invalid", True)


def test_an_incomplete_pool_matters_to_mode_all_only() -> None:
    books = inventory(published("a", gpus(1)), published("o", gpus(1), driver="other", pool="o", count=2))
    assert chosen(solve(books, claim(request()))) == ["gpu-0"]
    assert error_class(solve(books, claim(request(count=0)))) == "all-incomplete-pool"
    assert chosen(solve(books, claim(request(count=0)), policy="drakkar")) == ["gpu-0"]


def test_mode_all_without_a_match_does_not_fit() -> None:
    assert error_class(solve(inventory(published("a", gpus(2))), claim(request(count=0, select="false")))) == "nofit"


@pytest.mark.parametrize("count", [0, 33])
def test_more_than_32_results_are_an_error(count: int) -> None:
    books = inventory(published("a", gpus(33)))
    assert error_class(solve(books, claim(request(count=count)))) == "too-many-devices"
    outcome = solve(books, claim(request(count=count)), policy="drakkar")
    assert error_class(outcome) == "nofit"
    assert outcome.reason.reason == "claim-too-large"  # type: ignore[union-attr]


def test_mode_all_against_a_constraint() -> None:
    books = inventory(published("a", [device("x", attributes={"n": 0}), device("y", attributes={"n": 1})]))
    both = claim(request(count=0), constraints=[{"matchAttribute": "gpu.example.com/n"}])
    assert error_class(solve(books, both)) == "all-constraint"
    assert error_class(solve(books, both, policy="drakkar")) == "nofit"


def test_a_selector_error_shows_when_the_search_gets_there() -> None:
    broken = 'device.attributes["gpu.example.com"].n == 0'
    books = inventory(published("a", [device("x", attributes={"n": 0}), device("y")]))
    assert chosen(solve(books, claim(request(select=broken)))) == ["x"]
    assert error_class(solve(books, claim(request(count=2, select=broken)))) == "cel-runtime"
    held = allocated(claim(name="held"), solve(books, claim(request(select=broken))))
    books.set_claim(held)
    assert error_class(solve(books, claim(request(select=broken)))) == "cel-runtime"
    assert error_class(solve(books, claim(request(select=broken)), policy="drakkar")) == "nofit"


def test_a_device_with_an_empty_attribute_fails_every_expression() -> None:
    books = inventory(published("a", [device("x", attributes={"n": {}}), device("y")]))
    assert error_class(solve(books, claim(request()))) == "cel-runtime"
    assert chosen(solve(books, claim(request()), policy="drakkar")) == ["y"]


def test_taint_effects() -> None:
    books = inventory(
        published(
            "a",
            [
                device("x", taints=[{"key": "k", "effect": "NoSchedule"}]),
                device("y", taints=[{"key": "k", "effect": "Unknown"}]),
            ],
        )
    )
    assert chosen(solve(books, claim(request()))) == ["y"]
    tolerant = request(count=2, tolerations=[{"key": "k", "operator": "Exists"}])
    assert chosen(solve(books, claim(tolerant))) == ["x", "y"]


def test_a_taint_rule_acts_by_name_and_needs_a_selector() -> None:
    books = inventory(published("a", gpus(2)), taint_rule("r", "k", device="gpu-0"))
    assert chosen(solve(books, claim(request()))) == ["gpu-1"]
    books.remove_taint_rule("r")
    assert chosen(solve(books, claim(request()))) == ["gpu-0"]


def test_the_first_alternative_that_works() -> None:
    books = inventory(published("a", gpus(1)))
    either = claim(ranked("r", request("big", 2), request("small", 1)))
    outcome = solve(books, either)
    assert chosen(outcome) == ["gpu-0"]
    assert isinstance(outcome, Fits)
    assert [result.request for result in outcome.allocations[0].devices.results or ()] == ["r/small"]


def test_one_overdrawn_counter_blocks_the_pool_for_upstream_only() -> None:
    counters = {"c0": {"m": "1"}, "c1": {"m": "1"}}
    books = inventory(
        published("c", counters=counters, count=2),
        published(
            "d",
            [device("big", draws={"c0": {"m": "1"}}), device("ok", draws={"c1": {"m": "1"}})],
            count=2,
        ),
    )
    books.set_claim(allocated(claim(name="held"), solve(books, claim(request()))))
    books.set_slice(published("c", counters={**counters, "c0": {"m": "0"}}, count=2))
    assert error_class(solve(books, claim(request()))) == "nofit"
    assert chosen(solve(books, claim(request()), policy="drakkar")) == ["ok"]


def test_administrator_access_takes_a_device_in_use() -> None:
    books = inventory(published("a", gpus(1)))
    books.set_claim(allocated(claim(name="held"), solve(books, claim(request()))))
    assert error_class(solve(books, claim(request()))) == "nofit"
    assert chosen(solve(books, claim(request(adminAccess=True)))) == ["gpu-0"]


def test_administrator_access_pays_counters_under_policy_upstream() -> None:
    books = inventory(
        published("c", counters={"c": {"m": "1"}}, count=2),
        published("d", [device("x", draws={"c": {"m": "1"}})], count=2),
    )
    books.set_claim(allocated(claim(name="held"), solve(books, claim(request()))))
    assert error_class(solve(books, claim(request(adminAccess=True)))) == "nofit"
    assert chosen(solve(books, claim(request(adminAccess=True)), policy="drakkar")) == ["x"]


def test_administrator_access_before_a_regular_claim() -> None:
    books = inventory(published("a", gpus(1)))
    admin, regular = claim(request(adminAccess=True), name="admin"), claim(request(), name="regular")
    assert error_class(solve(books, admin, regular)) == "nofit"
    assert chosen(solve(books, regular, admin)) == ["gpu-0", "gpu-0"]
    assert chosen(solve(books, admin, regular, policy="drakkar")) == ["gpu-0", "gpu-0"]


def test_shares_of_a_device_pay_its_counters_once() -> None:
    books = inventory(
        published("c", counters={"c": {"m": "1"}}, count=2),
        published(
            "d",
            [device("x", draws={"c": {"m": "1"}}, capacity={"bw": "10"}, allowMultipleAllocations=True)],
            count=2,
        ),
    )
    half = request(capacity={"bw": "5"})
    outcome = solve(books, claim(half, name="a"), claim(half, name="b"))
    assert chosen(outcome) == ["x", "x"]
    assert error_class(solve(books, *(claim(half, name=name) for name in "abc"))) == "nofit"


def test_multi_host_devices_exclude_each_other_by_counters() -> None:
    books = inventory(
        published("c", counters={"hosts": {name: "4" for name in ("n1", "n2", "n3")}}, count=2, allNodes=True),
        published(
            "d",
            [
                device("a", nodeSelector=on_hosts("n1", "n2"), draws={"hosts": {"n1": "4", "n2": "4"}}),
                device("b", nodeSelector=on_hosts("n2", "n3"), draws={"hosts": {"n2": "4", "n3": "4"}}),
            ],
            count=2,
            perDeviceNodeSelection=True,
        ),
        nodes=("n1", "n2", "n3"),
    )
    first = solve(books, claim(request()))
    assert chosen(first) == ["a"]
    assert isinstance(first, Fits)
    selector = first.allocations[0].nodeSelector
    assert selector is not None
    assert [r.values for r in selector.nodeSelectorTerms[0].matchExpressions or ()] == [["n1", "n2"]]
    books.set_claim(allocated(claim(name="held"), first))
    assert error_class(solve(books, claim(request()), node="n3")) == "nofit"
    books.remove_claim("default", "held")
    assert chosen(solve(books, claim(request()), node="n3")) == ["b"]


def test_the_first_device_that_is_large_enough_not_the_smallest() -> None:
    books = inventory(
        published("a", [device("large", capacity={"m": "80Gi"}), device("small", capacity={"m": "40Gi"})])
    )
    assert chosen(solve(books, claim(request(capacity={"m": "30Gi"})))) == ["large"]


def test_an_amount_that_cannot_be_counted() -> None:
    policy = {"value": "10Gi", "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}}
    books = inventory(published("a", [device("x", capacity={"m": policy}, allowMultipleAllocations=True)]))
    assert error_class(solve(books, claim(request(capacity={"m": "9E"})))) == "capacity-value"
    assert error_class(solve(books, claim(request(capacity={"m": "9E"})), policy="drakkar")) == "nofit"


def test_no_claims_and_no_requests() -> None:
    books = inventory()
    assert solve(books) == Fits(())
    assert isinstance(solve(books, claim()), Fits)


def test_a_search_that_fails_meets_the_error_of_a_later_alternative() -> None:
    """Counting alone shows that nothing fits, but upstream gets to the alternative whose selector fails."""
    broken = request("bad", select='device.attributes["gpu.example.com"].missing == "x"')
    wanted = claim(ranked("f", request("good"), broken), request("many", 4))
    books = inventory(published("a", [device("x", attributes={"n": 1}), device("y", attributes={"n": 2})]))
    assert error_class(solve(books, wanted)) == "cel-runtime"
    assert error_class(solve(books, wanted, policy="drakkar")) == "nofit"
