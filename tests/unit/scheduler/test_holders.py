from __future__ import annotations

from typing import Any

import msgspec

from drakkar.api.resource import v1
from drakkar.scheduler import Cluster
from tests.unit.scheduler.build import allocated, claim, cluster, node, node_slice, shape_slices


def typed(obj: dict[str, Any]) -> v1.ResourceClaim:
    return msgspec.convert(obj, v1.ResourceClaim)


def rival(state: Cluster, name: str) -> str | None:
    found = state.held_before(typed(claim(name)))
    return found.uid if found is not None else None


def test_the_first_to_be_seen_holds_the_device() -> None:
    state = cluster(allocated(claim("a"), "n", "gpu-0"), allocated(claim("b"), "n", "gpu-1", "gpu-0"))
    assert (rival(state, "a"), rival(state, "b")) == (None, "claim-a")
    # Seen again it stays first; given back and taken again it is last.
    again = allocated(claim("a"), "n", "gpu-0")
    again["metadata"]["resourceVersion"] = "2"
    state.set_claim(typed(again))
    assert rival(state, "a") is None
    state.set_claim(typed(claim("a")))
    assert rival(state, "b") is None
    state.set_claim(typed(again))
    assert rival(state, "a") == "claim-b"
    state.remove_claim(typed(claim("b")))
    assert rival(state, "a") is None


def test_administrators_hold_nothing() -> None:
    admin = allocated(claim("admin"), "n", "gpu-0")
    admin["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    state = cluster(admin, allocated(claim("c"), "n", "gpu-0"))
    assert [rival(state, name) for name in ("admin", "c")] == [None, None]


def share(name: str, device: str, **consumed: str) -> dict[str, Any]:
    """A claim that holds a share."""
    made = allocated(claim(name), "n", device)
    made["status"]["allocation"]["devices"]["results"][0] |= {"shareID": name, "consumedCapacity": consumed}
    return made


def shareable(*devices: dict[str, Any], **counters: dict[str, dict[str, str]]) -> list[dict[str, Any]]:
    """The slices of pool ``n``."""
    slices = [node_slice("n", 0)]
    slices[0]["spec"]["devices"] = [{"allowMultipleAllocations": True, **device} for device in devices]
    if counters:
        slices.append(node_slice("n", 0))
        slices[1]["metadata"]["name"] = "counters"
        slices[1]["spec"]["sharedCounters"] = [{"name": n, "counters": found} for n, found in counters.items()]
        del slices[1]["spec"]["devices"]
    return slices


def test_shares_are_rivals_beyond_the_capacity() -> None:
    device = {"name": "nic", "capacity": {"bandwidth": {"value": "10"}}}
    state = cluster(
        *shareable(device),
        share("a", "nic", bandwidth="6"),
        share("b", "nic", bandwidth="4"),
        share("c", "nic", bandwidth="1"),
    )
    assert [rival(state, name) for name in "abc"] == [None, None, "claim-b"]
    state.remove_claim(typed(claim("b")))
    assert [rival(state, name) for name in "ac"] == [None, None]


def test_whole_and_share_of_one_device_are_rivals() -> None:
    state = cluster(
        *shareable({"name": "nic"}), share("a", "nic"), allocated(claim("b"), "n", "nic"), share("c", "nic")
    )
    assert [rival(state, name) for name in "abc"] == [None, "claim-a", "claim-b"]


def test_functions_of_one_port_are_rivals_beyond_its_bandwidth() -> None:
    functions = [
        {
            "name": f"vf{n}",
            "attributes": {"drawn-from.drakkar.dev/bandwidth": {"string": "p0/bandwidth"}},
            "capacity": {"bandwidth": {"value": "100"}},
            "consumesCounters": [{"counterSet": "p0", "counters": {"functions": {"value": "1"}}}],
        }
        for n in range(3)
    ]
    port = {"bandwidth": {"value": "100"}, "functions": {"value": "2"}}
    slices = shareable(*functions, p0=port)
    claims = [share("a", "vf0", bandwidth="60"), share("b", "vf1", bandwidth="60"), share("c", "vf2", bandwidth="40")]
    state = cluster(*slices, *claims)
    # c stays within the bandwidth beside a, but b was there before it, and so were two functions.
    assert [rival(state, name) for name in "abc"] == [None, "claim-a", "claim-b"]
    state.remove_claim(typed(claim("b")))
    assert rival(state, "c") is None


def test_shares_of_one_device_pay_its_counters_once() -> None:
    device = {
        "name": "nic",
        "capacity": {"bandwidth": {"value": "10"}},
        "consumesCounters": [{"counterSet": "p0", "counters": {"slots": {"value": "1"}}}],
    }
    slices = shareable(device, p0={"slots": {"value": "1"}})
    state = cluster(*slices, share("a", "nic", bandwidth="4"), share("b", "nic", bandwidth="4"))
    assert [rival(state, name) for name in "ab"] == [None, None]


def test_shapes_that_overlap_are_rivals() -> None:
    hosts = [f"h{i}" for i in range(4)]
    shapes = shape_slices({"left": hosts[:2], "right": hosts[2:], "all": hosts})
    state = cluster(
        *(node(host) for host in hosts),
        *shapes,
        allocated(claim("a"), "shapes", "left", nodes=("h0", "h1")),
        allocated(claim("b"), "shapes", "right", nodes=("h2", "h3")),
        allocated(claim("c"), "shapes", "all", nodes=tuple(hosts)),
    )
    assert [rival(state, name) for name in "abc"] == [None, None, "claim-a"]
