"""The watcher of claims is not blind: forged states in which something is held twice or overdrawn are faults."""

from __future__ import annotations

from typing import Any

import msgspec

from drakkar.api.resource.v1 import ResourceClaim, ResourceSlice
from tests.support.revisions import Revisions
from tests.unit.scheduler.build import allocated, claim, node_slice, shape_slices
from tests.unit.scheduler.test_holders import share, shareable


def watcher(*slices: dict[str, Any]) -> Revisions:
    return Revisions(msgspec.convert(found, ResourceSlice) for found in slices)


def see(found: Revisions, obj: dict[str, Any], revision: int, event: str = "MODIFIED") -> None:
    changed = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(revision)}}
    found.see(event, msgspec.convert(changed, ResourceClaim))


def test_a_device_that_is_held_twice_for_one_revision_only() -> None:
    found = watcher(node_slice("n", 2))
    see(found, allocated(claim("a"), "n", "gpu-0"), 5)
    see(found, allocated(claim("b"), "n", "gpu-1"), 6)
    assert found.faults == []
    see(found, allocated(claim("c"), "n", "gpu-0"), 7)
    see(found, claim("c"), 8)
    assert found.faults == ["revision 7: ('n', 'gpu-0') belongs to default/a and default/c"]
    # Given back before it is given away again.
    see(found, allocated(claim("a"), "n", "gpu-0"), 9, "DELETED")
    see(found, allocated(claim("c"), "n", "gpu-0"), 10)
    assert len(found.faults) == 1
    assert (found.seen, found.allocations) == (6, 4)


def test_what_lasts_is_told_once() -> None:
    found = watcher(node_slice("n", 1))
    for revision, name in enumerate("ab", start=1):
        see(found, allocated(claim(name), "n", "gpu-0"), revision)
    see(found, allocated(claim("b"), "n", "gpu-0", reserved=("p",)), 3)
    assert len(found.faults) == 1


def test_capacities_and_counters_are_summed() -> None:
    nic = watcher(*shareable({"name": "nic", "capacity": {"bandwidth": {"value": "10"}}}))
    for revision, (name, amount) in enumerate((("a", "6"), ("b", "4"), ("c", "1")), start=1):
        see(nic, share(name, "nic", bandwidth=amount), revision)
    assert nic.faults == ["revision 3: capacity bandwidth of ('n', 'nic') is overdrawn"]
    shapes = watcher(*shape_slices({"left": ["a", "b"], "all": ["a", "b", "c"]}))
    see(shapes, allocated(claim("l"), "shapes", "left", nodes=("a", "b")), 1)
    see(shapes, allocated(claim("w"), "shapes", "all", nodes=("a", "b", "c")), 2)
    assert len(shapes.faults) == 2
