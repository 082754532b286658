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
