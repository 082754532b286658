from __future__ import annotations

from typing import Any

import msgspec

from drakkar.api.resource import v1
from drakkar.scheduler import Cluster
from tests.unit.scheduler.build import allocated, claim, cluster, node, shape_slices


def typed(obj: dict[str, Any]) -> v1.ResourceClaim:
    return msgspec.convert(obj, v1.ResourceClaim)


def rival(state: Cluster, name: str) -> str | None:
    return state.held_before(typed(claim(name)))


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


def test_shares_and_administrators_hold_nothing() -> None:
    admin, share = allocated(claim("admin"), "n", "gpu-0"), allocated(claim("share"), "n", "gpu-0")
    admin["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    share["status"]["allocation"]["devices"]["results"][0]["shareID"] = "2f4b"
    state = cluster(admin, share, allocated(claim("c"), "n", "gpu-0"))
    assert [rival(state, name) for name in ("admin", "share", "c")] == [None, None, None]


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
