"""Other pods as a rule of nodes: affinity, anti-affinity and topology spread, on the pure decision."""

from __future__ import annotations

from typing import Any

import pytest

from drakkar.scheduler import Pending, Placement, decide
from drakkar.scheduler.refusal import Cause
from tests.unit.scheduler.build import cluster, node, pod, view

HOST, ZONE = "kubernetes.io/hostname", "zone"
REQUIRED, PREFERRED = (f"{word}DuringSchedulingIgnoredDuringExecution" for word in ("required", "preferred"))


def zoned(name: str, zone: str) -> dict[str, Any]:
    made = node(name)
    made["metadata"]["labels"][ZONE] = zone
    return made


def labelled(obj: dict[str, Any], **labels: str) -> dict[str, Any]:
    obj["metadata"]["labels"] = labels
    return obj


def term(key: str, **extra: Any) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "db"}}, **extra}


def near(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAffinity": {REQUIRED: [*terms]}}


def away(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAntiAffinity": {REQUIRED: [*terms]}}


def spread(key: str, when: str = "DoNotSchedule", **extra: Any) -> dict[str, Any]:
    selector = {"matchLabels": {"app": "db"}}
    return {"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": when, "labelSelector": selector, **extra}


def place(state: Any, obj: dict[str, Any]) -> str:
    decision = decide(state, view(obj))
    return decision.node if isinstance(decision, Placement) else ""


ZONES = (zoned("a", "1"), zoned("b", "1"), zoned("c", "2"))


def db(name: str, where: str, **spec: Any) -> dict[str, Any]:
    return labelled(pod(name, node=where, **spec), app="db")


def test_near_means_the_same_value_of_the_label() -> None:
    state = cluster(*ZONES, db("db", "a"))
    assert place(state, pod("p", affinity=near(term(HOST)))) == "a"
    assert place(state, pod("p", affinity=near(term(ZONE)))) in ("a", "b")
    refused = decide(cluster(*ZONES), view(pod("p", affinity=near(term(ZONE)))))
    assert isinstance(refused, Pending)
    assert refused.message == "0/3 nodes are available: 3 node(s) didn't match pod affinity rules."
    assert refused.causes == {Cause.NODE, Cause.POD}


def test_the_first_of_a_group_joins_nobody() -> None:
    first = db("first", "", affinity=near(term(ZONE)))
    assert place(cluster(*ZONES), first) != ""
    # Not where the label is missing, though.
    assert place(cluster(node("x")), first) == ""


def test_an_existing_pod_has_to_match_all_terms() -> None:
    both = near(term(HOST), {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"tier": "x"}}})
    assert place(cluster(*ZONES, db("db", "a")), pod("p", affinity=both)) == ""
    one = labelled(pod("db", node="a"), app="db", tier="x")
    assert place(cluster(*ZONES, one), pod("p", affinity=both)) == "a"


def test_away_from_pods_and_pods_that_want_others_away() -> None:
    state = cluster(*ZONES, db("db", "a"))
    assert place(state, pod("p", affinity=away(term(ZONE)))) == "c"
    assert place(state, pod("p", affinity=away(term(HOST)))) in ("b", "c")
    state = cluster(*ZONES, pod("lonely", node="a", affinity=away(term(ZONE))))
    assert place(state, db("db", "")) == "c"
    assert place(state, pod("other")) != ""
    refused = decide(cluster(ZONES[0], pod("lonely", node="a", affinity=away(term(ZONE)))), view(db("db", "")))
    assert isinstance(refused, Pending)
    assert "existing pods anti-affinity rules" in refused.message
    state.remove_pod("pod-lonely")
    assert not state.repelling


def test_one_pod_per_host_by_anti_affinity_with_itself() -> None:
    state = cluster(*ZONES)
    for number in range(3):
        mine = db(f"db-{number}", "", affinity=away(term(HOST)))
        decision = decide(state, view(mine))
        assert isinstance(decision, Placement)
        state.set_pod(mine)
        state.assume(view(mine), decision.node, ())
    assert place(state, db("db-4", "", affinity=away(term(HOST)))) == ""


@pytest.mark.parametrize(
    ("extra", "fits"),
    [
        ({}, False),
        ({"namespaces": ["team"]}, True),
        ({"namespaceSelector": {}}, True),
        ({"namespaceSelector": {"matchLabels": {"kind": "prod"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"kind": "test"}}}, False),
    ],
)
def test_namespaces(extra: dict[str, Any], fits: bool) -> None:
    other = db("db", "a")
    other["metadata"]["namespace"] = "team"
    space = {"kind": "Namespace", "metadata": {"name": "team", "labels": {"kind": "prod"}}}
    state = cluster(*ZONES, other, space)
    assert (place(state, pod("p", affinity=near(term(HOST, **extra)))) == "a") is fits


def test_own_values_of_labels_narrow_a_term() -> None:
    old, new = labelled(pod("x", node="a"), app="db", version="1"), labelled(pod("y", node="c"), app="db", version="2")
    state = cluster(*ZONES, old, new)
    mine = labelled(pod("p", affinity=near(term(HOST, matchLabelKeys=["version"]))), version="2")
    assert place(state, mine) == "c"
    mine = labelled(pod("p", affinity=near(term(HOST, mismatchLabelKeys=["version"]))), version="2")
    assert place(state, mine) == "a"


def test_a_preferred_term_orders_nodes() -> None:
    wish = [{"weight": 10, "podAffinityTerm": term(HOST)}]
    state = cluster(*ZONES, db("db", "c"))
    assert place(state, pod("p", affinity={"podAffinity": {PREFERRED: wish}})) == "c"
    state = cluster(*ZONES, db("db", "a"), db("db2", "b"))
    assert place(state, pod("p", affinity={"podAntiAffinity": {PREFERRED: wish}})) == "c"


def test_pods_are_spread() -> None:
    state = cluster(*ZONES, db("x", "a"))
    mine = db("p", "", topologySpreadConstraints=[spread(ZONE)])
    assert place(state, mine) == "c"
    # A pod that the selector does not mean adds nothing.
    assert place(state, pod("q", topologySpreadConstraints=[spread(ZONE)])) != ""
    state = cluster(zoned("a", "1"), node("x"), db("x", "a"))
    refused = decide(state, view(db("p", "", topologySpreadConstraints=[spread(ZONE, minDomains=2)])))
    assert isinstance(refused, Pending)
    assert "1 node(s) didn't match pod topology spread constraints (missing required label)" in refused.message
    assert "1 node(s) didn't match pod topology spread constraints," in refused.message


def test_terminating_pods_do_not_count_in_the_spread() -> None:
    ending = db("x", "a")
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    state = cluster(zoned("a", "1"), zoned("c", "2"), ending, db("y", "c"))
    assert place(state, db("p", "", topologySpreadConstraints=[spread(ZONE)])) == "a"


@pytest.mark.parametrize(
    ("policies", "fits"),
    [
        ({}, True),
        ({"nodeAffinityPolicy": "Ignore"}, False),
        ({"nodeTaintsPolicy": "Honor"}, True),
    ],
)
def test_which_nodes_count_in_the_spread(policies: dict[str, str], fits: bool) -> None:
    # Zone 2 is out for the pod by its node selector; it must not hold zone 1 back, unless told to.
    state = cluster(zoned("a", "1"), zoned("c", "2"), db("x", "a"))
    mine = db("p", "", topologySpreadConstraints=[spread(ZONE, **policies)], nodeSelector={ZONE: "1"})
    assert (place(state, mine) == "a") is fits


def test_a_tainted_node_counts_unless_told_otherwise() -> None:
    broken = node("c", taints=({"key": "broken", "effect": "NoSchedule"},))
    broken["metadata"]["labels"][ZONE] = "2"
    state = cluster(zoned("a", "1"), broken, db("x", "a"))
    assert place(state, db("p", "", topologySpreadConstraints=[spread(ZONE)])) == ""
    assert place(state, db("p", "", topologySpreadConstraints=[spread(ZONE, nodeTaintsPolicy="Honor")])) == "a"


def test_a_soft_constraint_only_orders() -> None:
    state = cluster(*ZONES, db("x", "c"))
    assert place(state, db("p", "", topologySpreadConstraints=[spread(ZONE, "ScheduleAnyway")])) in ("a", "b")
    state = cluster(zoned("c", "2"), db("x", "c"))
    assert place(state, db("p", "", topologySpreadConstraints=[spread(ZONE, "ScheduleAnyway")])) == "c"
