"""Logical devices of a TPU pod: shapes, counters, selectors, taints of lost hosts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from drakkar.api.meta import Object
from drakkar.api.resource import v1
from drakkar.api.resource.validation import validate_create
from drakkar.driver import Pool, check_pool, plan_pool
from drakkar.drivers.tpu import Host, tpu_pool
from drakkar.drivers.tpu.driver import host_of, pool_of, reachable
from drakkar.drivers.tpu.shapes import hosts_in_slices
from drakkar.sim.fleets import load_fleet

DRIVER = "tpu.drakkar.dev"


def ready_nodes() -> list[Object]:
    nodes = load_fleet("tpu-16").nodes()
    for node in nodes:
        node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    return nodes


def pool(nodes: list[Object], slices: list[v1.ResourceSlice] | None = None) -> Pool:
    complaints: list[str] = []
    found = pool_of("pod-0", nodes, slices or [], complaints.append)
    assert found is not None
    assert complaints == []
    return found


def devices(found: Pool) -> dict[str, v1.Device]:
    return {device.name: device for content in found.slices for device in content.devices}


def tainted(found: Pool) -> dict[str, list[str | None]]:
    return {name: [t.value for t in d.taints] for name, d in devices(found).items() if d.taints}


def published(found: Pool) -> list[v1.ResourceSlice]:

    writes: list[Any] = plan_pool(DRIVER, found, [], now=0.0)
    return [msgspec.convert(write.obj, v1.ResourceSlice) for write in writes]


def test_sixteen_hosts_offer_29_places():
    found = pool(ready_nodes())
    assert check_pool(found) == []
    sizes = Counter(device.attributes["topology"].string for device in devices(found).values())  # type: ignore[index]
    assert sizes == {"2x2": 16, "2x4": 8, "4x4": 4, "8x8": 1}
    assert tainted(found) == {}


def test_counters_and_devices_stand_in_two_slices():
    counters, logical = pool(ready_nodes()).slices
    assert len(counters.shared_counters[0].counters) == 16
    assert not counters.devices
    assert len(logical.devices) == 29


def test_a_device_names_its_hosts_and_takes_all_their_chips():
    device = devices(pool(ready_nodes()))["tpu-4x4-4-0"]
    (consumed,) = device.consumesCounters or ()
    assert {name: counter.value for name, counter in consumed.counters.items()} == {
        "host-2-0": "4",
        "host-3-0": "4",
        "host-2-1": "4",
        "host-3-1": "4",
    }
    selector = device.nodeSelector
    assert selector is not None
    (requirement,) = selector.nodeSelectorTerms[0].matchExpressions or ()
    assert (requirement.key, requirement.values) == (
        "kubernetes.io/hostname",
        ["host-2", "host-3", "host-6", "host-7"],
    )
    values = {name: a.int if a.int is not None else a.string for name, a in (device.attributes or {}).items()}
    assert values == {"topology": "4x4", "chips": 16, "hosts": 4, "x": 4, "y": 0, "pod": "pod-0"}
    assert device.capacity == {"chips": v1.DeviceCapacity(value="16")}


def test_the_server_accepts_what_is_published():
    nodes = ready_nodes()
    nodes[5]["status"]["conditions"][0]["status"] = "Unknown"
    for found in published(pool(nodes)):
        named = msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, name="s"))
        assert validate_create("ResourceSlice", named) == []


@pytest.mark.parametrize("how", ["unknown", "tainted", "deleting"])
def test_a_lost_host_taints_what_contains_it(how: str):
    nodes = ready_nodes()
    lost = nodes[5]  # x=1, y=1
    if how == "unknown":
        lost["status"]["conditions"][0]["status"] = "Unknown"
    elif how == "tainted":
        lost["spec"] = {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}
    else:
        lost["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not reachable(lost)
    assert tainted(pool(nodes)) == {
        "tpu-2x2-2-2": ["host-5"],
        "tpu-2x4-2-0": ["host-5"],
        "tpu-4x4-0-0": ["host-5"],
        "tpu-8x8-0-0": ["host-5"],
    }
    (taint,) = devices(pool(nodes))["tpu-4x4-0-0"].taints or ()
    assert (taint.key, taint.effect) == ("tpu.drakkar.dev/host-unreachable", "NoExecute")


def test_a_taint_is_one_update_of_one_slice():
    before = published(pool(ready_nodes()))
    nodes = ready_nodes()
    nodes[0]["status"]["conditions"] = []

    stored = [
        msgspec.structs.replace(s, metadata=msgspec.structs.replace(s.metadata, name=f"0000{i}-{DRIVER}-abcde"))
        for i, s in enumerate(before)
    ]
    assert len(plan_pool(DRIVER, pool(nodes, stored), stored, now=0.0)) == 1


def test_a_host_whose_node_is_gone_is_remembered_and_tainted():
    before = published(pool(ready_nodes()))
    rest = [node for node in ready_nodes() if node["metadata"]["name"] != "host-0"]
    assert tainted(pool(rest, before))["tpu-4x4-0-0"] == ["host-0"]
    assert len(devices(pool(rest, before))) == 29


def test_another_node_takes_the_place_of_one_that_is_gone():
    before = published(pool(ready_nodes()))
    nodes = ready_nodes()
    nodes[0]["metadata"]["name"] = "spare"
    nodes[0]["metadata"]["labels"]["kubernetes.io/hostname"] = "spare"
    found = pool(nodes, before)
    assert tainted(found) == {}
    assert hosts_in_slices(published(found))[0, 0].hostname == "spare"


def test_places_without_hosts_offer_nothing():
    names = set(devices(pool(ready_nodes()[1:])))
    assert not names & {"tpu-2x2-0-0", "tpu-2x4-0-0", "tpu-4x4-0-0", "tpu-8x8-0-0"}
    assert len(names) == 25


def test_wrong_labels_are_reported_and_left_out():
    nodes = ready_nodes()
    nodes[3]["metadata"]["labels"]["tpu.drakkar.dev/x"] = "east"
    nodes[4]["metadata"]["labels"] |= {"tpu.drakkar.dev/x": "0", "tpu.drakkar.dev/y": "0"}
    complaints: list[str] = []
    found = pool_of("pod-0", nodes, [], complaints.append)
    assert found is not None
    assert host_of(nodes[3]) is None
    assert len(complaints) == 2
    assert "node host-3" in complaints[0]
    assert "belongs to node host-0" in complaints[1]


def test_no_hosts_no_pool():
    assert pool_of("pod-0", [], [], print) is None


@pytest.mark.parametrize(("side", "sets"), [(4, 1), (8, 2), (16, 8)])
def test_devices_keep_to_two_counter_sets(side: int, sets: int):
    found = tpu_pool("p", [Host(x, y, f"h{x}-{y}") for x in range(side) for y in range(side)])
    assert check_pool(found) == []
    assert sum(len(content.shared_counters) for content in found.slices) == sets
    assert max(len(device.consumesCounters or ()) for device in devices(found).values()) <= 2
    assert all(len(content.devices) <= 64 for content in found.slices)


def test_overlapping_devices_cannot_both_be_drawn():
    found = pool(ready_nodes())
    limits = {name: int(c.value) for name, c in found.slices[0].shared_counters[0].counters.items()}
    for left in devices(found).values():
        for right in devices(found).values():
            drawn: Counter[str] = Counter()
            for device in (left, right):
                for consumed in device.consumesCounters or ():
                    drawn.update({name: int(c.value) for name, c in consumed.counters.items()})
            overlap = bool(set(_hosts(left)) & set(_hosts(right)))
            assert overlap == any(drawn[name] > limits[name] for name in drawn)


def _hosts(device: v1.Device) -> list[str]:
    assert device.nodeSelector is not None
    return (device.nodeSelector.nodeSelectorTerms[0].matchExpressions or [])[0].values or []
