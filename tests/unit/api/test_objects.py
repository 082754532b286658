"""Helpers over objects."""

from __future__ import annotations

from typing import Any

import pytest

from drakkar.api import kinds, objects
from drakkar.api.meta import ObjectMeta, OwnerReference
from drakkar.api.resource.v1 import ResourceClaim
from drakkar.api.tree import whole

POD = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}}


def test_keys() -> None:
    assert objects.key_of(POD) == "n/p"
    assert objects.key_of({"metadata": {"name": "x"}}) == "x"
    assert objects.key_of(ResourceClaim(metadata=ObjectMeta(name="c", namespace="n"))) == "n/c"
    assert objects.split_key("n/p") == ("n", "p")
    assert objects.split_key("x") == ("", "x")


def test_owners() -> None:
    reference = objects.owner_reference(kinds.POD, POD)
    assert reference == {
        "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    other = objects.owner_reference(kinds.JOB, POD, controller=False, block=False)
    assert other == {"apiVersion": "batch/v1", "kind": "Job", "name": "p", "uid": "u"}
    assert objects.controller_of({"metadata": {"ownerReferences": [other, reference]}}) == reference
    assert objects.controller_of(POD) is None
    owner = OwnerReference(apiVersion="v1", kind="Pod", name="p", uid="u", controller=True)
    assert objects.controller_of(ResourceClaim(metadata=ObjectMeta(ownerReferences=[owner]))) == owner


def test_conditions() -> None:
    old = [{"type": "A", "status": "True", "lastTransitionTime": "1"}, {"type": "B", "status": "True"}]
    same = objects.with_condition(old, {"type": "A", "status": "True", "lastTransitionTime": "2", "reason": "R"})
    assert same[0] == {"type": "A", "status": "True", "lastTransitionTime": "1", "reason": "R"}
    flipped = objects.with_condition(old, {"type": "A", "status": "False", "lastTransitionTime": "2"})
    assert flipped[0]["lastTransitionTime"] == "2"
    added = objects.with_condition(None, {"type": "C", "status": "True"})
    assert objects.condition_is({"status": {"conditions": added}}, "C")
    assert objects.condition({"status": {"conditions": added}}, "D") is None
    assert len(old) == 2


def spec(**members: Any) -> dict[str, Any]:
    return {"spec": {"containers": [], **members}}


def needs(cpu: str, **members: Any) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu}}, **members}


@pytest.mark.parametrize(
    ("pod", "cpu"),
    [
        (spec(containers=[needs("1"), needs("500m")]), "1500m"),
        (spec(containers=[needs("1")], initContainers=[needs("3")]), "3"),
        (spec(containers=[needs("1")], initContainers=[needs("1", restartPolicy="Always"), needs("3")]), "4"),
        (spec(containers=[needs("1")], initContainers=[needs("3"), needs("1", restartPolicy="Always")]), "3"),
        (spec(containers=[needs("3")], initContainers=[needs("1", restartPolicy="Always")]), "4"),
        (spec(containers=[needs("1")], overhead={"cpu": "250m"}), "1250m"),
        (spec(containers=[needs("1")], resources={"requests": {"cpu": "2"}}, overhead={"cpu": "1"}), "3"),
    ],
)
def test_pod_requests(pod: dict[str, Any], cpu: str) -> None:
    assert objects.pod_requests(pod)["cpu"].canonical() == cpu


def test_claims_of_a_pod() -> None:
    pod = {
        "spec": {
            "resourceClaims": [
                {"name": "own", "resourceClaimName": "claim-1"},
                {"name": "made", "resourceClaimTemplateName": "t"},
                {"name": "open", "resourceClaimTemplateName": "t"},
                {"name": "none", "resourceClaimTemplateName": "t"},
            ]
        },
        "status": {"resourceClaimStatuses": [{"name": "made", "resourceClaimName": "p-made-x"}, {"name": "none"}]},
    }
    assert objects.pod_claim_names(pod) == {"own": "claim-1", "made": "p-made-x", "open": None}


@pytest.mark.parametrize(
    ("containers", "qos"),
    [
        ([{}], "BestEffort"),
        ([needs("1")], "Burstable"),
        (
            [{"resources": {"limits": {"cpu": "1", "memory": "1"}, "requests": {"cpu": "1", "memory": "1"}}}],
            "Guaranteed",
        ),
        ([{"resources": {"limits": {"cpu": "1", "memory": "1"}}}, {}], "Burstable"),
        ([{"resources": {"limits": {"example.com/gpu": "1"}}}], "BestEffort"),
    ],
)
def test_qos(containers: list[dict[str, Any]], qos: str) -> None:
    assert objects.pod_qos_class(spec(containers=containers)) == qos


@pytest.mark.parametrize(
    ("spelled", "number"),
    [("0", 0), ("17", 17), ("", None), ("-1", None), ("²", None), ("٣", None), ("9" * 5000, None)],
)
def test_whole_numbers_in_annotations(spelled: str, number: int | None) -> None:
    assert whole(spelled) == number
