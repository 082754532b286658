"""Fleet files: the shipped one, placeholders, and messages for what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from drakkar.api.errors import UsageError
from drakkar.sim.fleets import fleet_names, load_fleet, parse_fleet

ROOT = Path(__file__).parents[3]


def document(**spec: object) -> dict[str, object]:
    return {"apiVersion": "drakkar.dev/v1alpha1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": spec}


def test_shipped_fleet_equals_the_example():
    shipped = ROOT / "src/drakkar/sim/fleets/tpu-16.yaml"
    assert shipped.read_text() == (ROOT / "examples/tpu/fleet/tpu-16.yaml").read_text()
    assert "tpu-16" in fleet_names()


def test_tpu_16_is_a_grid_of_sixteen_hosts():
    fleet = load_fleet("tpu-16")
    assert fleet.node_names() == [f"host-{i}" for i in range(16)]
    assert fleet.profiles() == ["tpu"]
    node = fleet.nodes()[6]
    labels = node["metadata"]["labels"]
    assert labels["kubernetes.io/hostname"] == "host-6"
    assert (labels["tpu.drakkar.dev/x"], labels["tpu.drakkar.dev/y"], labels["tpu.drakkar.dev/pod"]) == (
        "2",
        "1",
        "pod-0",
    )
    assert node["status"]["capacity"]["pods"] == "110"


def test_blocks_continue_past_the_first_grid():
    raw = document(
        nodeGroups=[{"name": "h", "count": 5, "grid": {"width": 2, "height": 2}, "labels": {"b": "{block}"}}]
    )
    assert [node["metadata"]["labels"]["b"] for node in parse_fleet(raw).nodes()] == ["0", "0", "0", "0", "1"]


def test_recorded_slices_are_filled_in_per_node():
    recorded = {
        "kind": "ResourceSlice",
        "metadata": {"name": "{node}-gpu"},
        "spec": {"nodeName": "{node}", "devices": []},
    }
    fleet = parse_fleet(document(nodeGroups=[{"name": "g", "count": 2, "slices": [recorded]}]))
    assert [s["spec"]["nodeName"] for s in fleet.resource_slices()] == ["g-0", "g-1"]


def test_a_file_without_a_folder_is_told_from_a_name():
    with pytest.raises(UsageError, match=r"choose one of .*tpu-16.*, or write \./README\.md for a file"):
        load_fleet("README.md")


def test_fault_becomes_an_annotation():
    fleet = parse_fleet(document(nodeGroups=[{"name": "g", "fault": "failed"}]))
    assert fleet.nodes()[0]["metadata"]["annotations"] == {"drakkar.dev/hollow": "failed"}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([], "the document is a list"),
        ({"apiVersion": "v1", "kind": "Fleet"}, "apiVersion is 'v1'"),
        (document(), "spec.nodeGroups is empty"),
        (document(nodeGroups=[{"name": "a", "cuont": 3}]), r"spec.nodeGroups\[0\].cuont is unknown"),
        (document(nodeGroups=[{"name": "a", "count": 0}]), r"spec.nodeGroups\[0\].count is 0"),
        (document(nodeGroups=[{"name": "a", "labels": {"x": True}}]), r"labels\[x\] is a bool"),
        (document(nodeGroups=[{"name": "a-{x}"}]), "placeholder that nothing fills"),
        (document(nodeGroups=[{"name": "a"}, {"name": "a"}]), "names node 'a' twice"),
        (document(nodeGroups=[{"name": "a", "fault": "sleepy"}]), "choose one of failed, slow"),
        (document(nodeGroups=[{"name": "a"}], slices=[{"kind": "Pod"}]), r"spec.slices\[0\].kind is 'Pod'"),
    ],
)
def test_messages_name_the_field(raw: object, words: str):
    with pytest.raises(UsageError, match=words):
        parse_fleet(raw, "my.yaml")


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(UsageError, match="tpu-16"):
        load_fleet("tpu-17")


def test_missing_file_is_a_usage_error(tmp_path: Path):
    with pytest.raises(UsageError, match="cannot be read"):
        load_fleet(tmp_path / "none.yaml")
