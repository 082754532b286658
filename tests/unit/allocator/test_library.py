"""The library face: objects in, a decision out; and scenarios in the oracle's form."""

from __future__ import annotations

import msgspec
import pytest

import drakkar
from drakkar.allocator import Fits, batch
from drakkar.api.errors import UsageError
from tests.support.allocation import HOST, claim, device, device_class, published, request

NODE = {"kind": "Node", "metadata": {"name": "n1", "labels": {HOST: "n1"}}}


def plain(item: object) -> dict[str, object]:
    """The struct as JSON."""
    return msgspec.to_builtins(item)


def objects() -> list[object]:
    listed = {"kind": "List", "items": [{"kind": "ResourceSlice", **plain(published("s", [device("x")]))}]}
    return [NODE, device_class(), listed, {"kind": "ConfigMap", "metadata": {"name": "ignored"}}]


def test_snapshot_and_allocate() -> None:
    snapshot = drakkar.snapshot(objects())
    decision = drakkar.allocate(snapshot, [claim(request())])
    assert decision.node == "n1"
    assert isinstance(decision.outcome, Fits)
    again = drakkar.allocate(snapshot.assume(decision.outcome.allocations[0]), [claim(request())], node="n1")
    assert (again.node, type(again.outcome).__name__) == (None, "NoFit")
    assert drakkar.allocate(snapshot, []).outcome == Fits(())


def test_errors_name_object_and_field() -> None:
    with pytest.raises(UsageError, match=r"ResourceSlice 's' cannot be read: .*devices"):
        drakkar.snapshot([{"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {"devices": 1}}])
    snapshot = drakkar.snapshot(objects())
    with pytest.raises(UsageError, match="unknown policy 'best'"):
        drakkar.allocate(snapshot, [], policy="best")
    with pytest.raises(UsageError, match="node 'n9' is not in the snapshot"):
        drakkar.allocate(snapshot, [claim(request())], node="n9")


def test_claims_may_be_dicts() -> None:
    snapshot = drakkar.snapshot(objects())
    decision = drakkar.allocate(snapshot, [plain(claim(request()))])
    assert decision == drakkar.allocate(snapshot, [claim(request())])
    assert decision.node == "n1"


def test_what_is_no_claim_is_refused() -> None:
    snapshot = drakkar.snapshot(objects())
    with pytest.raises(UsageError, match=r"give a list, .*allocate\(snapshot, \[claim\]\)"):
        drakkar.allocate(snapshot, plain(claim(request())))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"claims\[1\] is a ResourceClaimTemplate, .* its spec\.spec"):
        drakkar.allocate(snapshot, [claim(request()), {"kind": "ResourceClaimTemplate", "spec": {}}])
    with pytest.raises(UsageError, match=r"claims\[0\] is a str, not a ResourceClaim"):
        drakkar.allocate(snapshot, ["c"])  # type: ignore[list-item]
    with pytest.raises(UsageError, match=r"ResourceClaim 'c' cannot be read: .*requests\[0\]\.exactly\.count"):
        wrong = {"name": "r", "exactly": {"count": "two"}}
        drakkar.allocate(snapshot, [{"metadata": {"name": "c"}, "spec": {"devices": {"requests": [wrong]}}}])


def test_items_of_a_typed_list_have_its_kind() -> None:
    """An API server leaves kind and apiVersion out of the items of a list."""
    items = [plain(published("s", [device("x")]))]
    typed = {"kind": "ResourceSliceList", "apiVersion": "resource.k8s.io/v1", "items": items}
    decision = drakkar.allocate(drakkar.snapshot([NODE, device_class(), typed]), [claim(request())])
    assert decision.node == "n1"


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(UsageError, match="object 's' has no kind"):
        drakkar.snapshot([plain(published("s", [device("x")]))])
    with pytest.raises(UsageError, match="a NoneType is no object"):
        drakkar.snapshot([None])


def test_other_versions_are_converted() -> None:
    spec = {
        "driver": "gpu.example.com",
        "nodeName": "n1",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "x", "basic": {"attributes": {"model": {"string": "a"}}}}],
    }
    old = {"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec}
    wanted = {"name": "r", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    wanted["selectors"] = [{"cel": {"expression": "device.attributes['gpu.example.com'].model == 'a'"}}]
    asked = {"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceClaim", "metadata": {"name": "c"}}
    asked["spec"] = {"devices": {"requests": [wanted]}}
    snapshot = drakkar.snapshot([NODE, device_class(), old])
    assert drakkar.allocate(snapshot, [asked]).node == "n1"
    with pytest.raises(UsageError, match=r"ResourceSlice 's' cannot be read: .*not served in version 'v9'"):
        drakkar.snapshot([{**old, "apiVersion": "resource.k8s.io/v9"}])


@pytest.mark.parametrize(("wanted", "names"), [("all", ["n1", "n2"]), ("any", ["n1"]), ("n2", ["n2"])])
def test_which_nodes_a_scenario_asks_for(wanted: str, names: list[str]) -> None:
    scenario = {
        "id": "s",
        "family": "f",
        "try": wanted,
        "deviceClasses": [plain(device_class())],
        "resourceSlices": [plain(published("s", [device("x")], allNodes=True))],
        "nodes": [{"metadata": {"name": name}} for name in ("n1", "n2")],
        "claims": [plain(claim(request()))],
        "comment": "ignored",
    }
    answer = batch.answer(scenario, "upstream")
    assert [entry["node"] for entry in answer["nodes"]] == names
    assert {key: answer[key] for key in ("id", "family", "channel")} == {
        "id": "s",
        "family": "f",
        "channel": "incubating",
    }
    assert answer["nodes"][0] == {
        "node": names[0],
        "fits": True,
        "class": "fits",
        "allocations": [
            {"devices": {"results": [{"request": "r", "driver": "gpu.example.com", "pool": "p", "device": "x"}]}}
        ],
    }
