"""Selectors and tolerations."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from drakkar.api.errors import ParseError
from drakkar.api.meta import NodeSelector
from drakkar.api.resource.v1 import DeviceTaint, DeviceToleration
from drakkar.api.selectors import (
    FieldSelector,
    LabelSelector,
    listed_nodes,
    node_selector_matches,
    node_toleration_matches,
    tolerates,
    untolerated_node_taint,
)

IS_A = {"key": "metadata.name", "operator": "In", "values": ["a"]}
HOSTS = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["h1", "h2"]}
ZONE = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z"]}


@pytest.mark.parametrize(
    ("text", "labels", "matches"),
    [
        ("", {}, True),
        ("a", {"a": ""}, True),
        ("a", {}, False),
        ("!a", {}, True),
        ("!a", {"a": "1"}, False),
        ("a=b", {"a": "b"}, True),
        ("a==b", {"a": "c"}, False),
        ("a!=b", {}, True),
        ("a!=b", {"a": "b"}, False),
        ("a=", {"a": ""}, True),
        ("a in (b, c)", {"a": "c"}, True),
        ("a in (b,)", {"a": ""}, True),
        ("a notin (b)", {}, True),
        ("a notin (b)", {"a": "b"}, False),
        ("a>5", {"a": "6"}, True),
        ("a>5", {"a": "x"}, False),
        ("a<5", {"a": "4"}, True),
        (" x.io/a = b , !c ", {"x.io/a": "b"}, True),
        ("a=,b", {"a": "", "b": "1"}, True),
        ("in in (in)", {"in": "in"}, True),
    ],
)
def test_text_form(text: str, labels: dict[str, str], matches: bool) -> None:
    assert LabelSelector.parse(text).matches(labels) is matches


@pytest.mark.parametrize("text", ["a=b=c", "a,", "=a", "a b", "x in a", "x in (a", "a>b", "-a", "a/b/c", "a=(b)", ",a"])
def test_text_form_refuses(text: str) -> None:
    with pytest.raises(ParseError):
        LabelSelector.parse(text)


def test_object_form() -> None:
    assert LabelSelector.from_object({}).matches({})
    assert not LabelSelector.from_object(None).matches({})
    selector = LabelSelector.from_object(
        {
            "matchLabels": {"a": "1"},
            "matchExpressions": [
                {"key": "b", "operator": "NotIn", "values": ["2"]},
                {"key": "c", "operator": "DoesNotExist"},
            ],
        }
    )
    assert selector.matches({"a": "1"})
    assert not selector.matches({"a": "1", "b": "2"})
    assert not selector.matches({"a": "1", "c": ""})
    with pytest.raises(ParseError):
        LabelSelector.from_object({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]})


def test_field_selector() -> None:
    selector = FieldSelector.parse(r"spec.nodeName=,metadata.name!=a\,b,c==d\=e")
    assert selector.fields == ("spec.nodeName", "metadata.name", "c")
    assert selector.exact("c") == "d=e"
    assert selector.exact("metadata.name") is None
    assert selector.matches(lambda field: {"c": "d=e"}.get(field, ""))
    assert not selector.matches({"spec.nodeName": "", "metadata.name": "a,b", "c": "d=e"}.__getitem__)
    for text in ("a", "a=b=c", r"a=\x"):
        with pytest.raises(ParseError):
            FieldSelector.parse(text)


def node(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeSelectorTerms": list(terms)}


def need(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        (None, True),
        (node(), False),
        (node({}), False),
        (node({"matchFields": [need("metadata.name", "In", "n1")]}), True),
        (node({"matchFields": [need("metadata.name", "NotIn", "n1")]}), False),
        (node({"matchFields": [need("metadata.name", "In", "n2")]}, {"matchExpressions": [need("zone", "Exists")]}),
         True),
        (node({"matchExpressions": [need("slots", "Gt", "7"), need("slots", "Lt", "9")]}), True),
        (node({"matchExpressions": [need("slots", "Gt", "8")]}), False),
        (node({"matchExpressions": [need("slots", "Gt", "x")]}), False),
        (node({"matchExpressions": [need("zone", "Near", "a")]}), False),
        (node({"matchExpressions": [need("absent", "NotIn", "a"), need("absent", "DoesNotExist")]}), True),
    ],
)  # fmt: skip
def test_node_selector(selector: dict[str, Any] | None, matches: bool) -> None:
    labels = {"zone": "a", "slots": "8"}
    assert node_selector_matches(selector, labels, "n1") is matches
    if selector is not None:
        assert node_selector_matches(msgspec.convert(selector, NodeSelector), labels, "n1") is matches


@pytest.mark.parametrize(
    ("terms", "listed"),
    [
        ([], ([], [])),
        ([{"matchFields": [IS_A]}, {"matchExpressions": [HOSTS]}], (["a"], ["h1", "h2"])),
        ([{"matchFields": [IS_A], "matchExpressions": [HOSTS]}], (["a"], [])),
        ([{"matchExpressions": [ZONE, HOSTS]}], ([], ["h1", "h2"])),
        ([{"matchFields": [IS_A]}, {"matchExpressions": [ZONE]}], None),
        ([{"matchExpressions": [{**HOSTS, "operator": "NotIn"}]}], None),
        ([{"matchExpressions": [IS_A]}], None),
    ],
)
def test_nodes_that_a_selector_lists(terms: list[dict[str, Any]], listed: tuple[list[str], list[str]] | None) -> None:
    """A label that is spelled like the field lists nothing."""
    assert listed_nodes(msgspec.convert({"nodeSelectorTerms": terms}, NodeSelector)) == listed


@pytest.mark.parametrize(
    ("toleration", "matches"),
    [
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "key": "k"}, True),
        ({"operator": "Exists", "key": "other"}, False),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "operator": "Equal", "value": "w"}, False),
        ({"key": "k", "operator": "Like", "value": "v"}, False),
        ({"value": "v"}, True),
    ],
)
def test_device_toleration(toleration: dict[str, Any], matches: bool) -> None:
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    assert tolerates(toleration, taint) is matches
    assert tolerates(DeviceToleration(**toleration), DeviceTaint(**taint)) is matches


def test_node_taints() -> None:
    taints = [
        {"key": "soft", "effect": "PreferNoSchedule"},
        {"key": "level", "value": "5", "effect": "NoSchedule"},
    ]
    assert untolerated_node_taint(taints, []) == taints[1]
    assert untolerated_node_taint(taints, [{"key": "level", "operator": "Exists"}]) is None
    assert node_toleration_matches({"key": "level", "operator": "Gt", "value": "4"}, taints[1])
    assert not node_toleration_matches({"key": "level", "operator": "Lt", "value": "4"}, taints[1])
    assert not node_toleration_matches({"key": "level"}, taints[1])
