"""The scheduler records what devices draw from counters, so that a successor knows it."""

from __future__ import annotations

import asyncio

import msgspec

from drakkar.api.kinds import RESOURCECLAIM
from drakkar.api.resource import v1
from drakkar.scheduler import Placement, decide
from tests.unit.scheduler.build import claim, cluster, device_class, node, pod, shape_slices, view
from tests.unit.scheduler.test_commit import committing, started
from tests.unit.scheduler.test_scheduler import POD


def test_a_shape_that_vanishes_keeps_its_hosts_after_a_restart() -> None:
    hosts = [f"h{i}" for i in range(4)]
    shapes = shape_slices({"left": hosts[:2], "all": hosts, "right": hosts[2:]})
    fleet = [*(node(host) for host in hosts), device_class(), *shapes]

    async def written() -> dict[str, object]:
        server = started(claim("c"), pod("p", "c"))
        async with committing(server) as (state, committer):
            for obj in fleet[:-2]:
                state.set_node(obj) if obj["kind"] == "Node" else state.set_class(msgspec.convert(obj, v1.DeviceClass))
            for obj in shapes:
                state.set_slice(msgspec.convert(obj, v1.ResourceSlice))
            decision = decide(state, view(server.get(POD, "p")))
            assert isinstance(decision, Placement)
            await committer.write_claims(view(server.get(POD, "p")), decision)
        return server.get(RESOURCECLAIM, "c")

    held = asyncio.run(written())
    (result,) = held["status"]["allocation"]["devices"]["results"]  # type: ignore[index]
    assert result["device"] == "left"
    del shapes[1]["spec"]["devices"][0]
    decision = decide(cluster(*fleet, held, claim("d"), pod("q", "d")), view(pod("q", "d")))
    # "all" would be the first, were the hosts of "left" free; and nothing at all if nobody knew what "left" drew.
    assert isinstance(decision, Placement)
    (taken,) = decision.allocations[0][1].devices.results or ()
    assert taken.device == "right"
