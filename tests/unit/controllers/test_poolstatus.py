"""ResourcePoolStatusRequests: the numbers, what is wrong with a pool, and the end of a request."""

from __future__ import annotations

from typing import Any

from drakkar.api.kinds import DEVICETAINTRULE, RESOURCECLAIM, RESOURCEPOOLSTATUSREQUEST, RESOURCESLICE
from drakkar.controllers.poolstatus import PoolStatus
from tests.unit.controllers.objects import claim
from tests.unit.controllers.site import Site
from tests.unit.controllers.world import World


def build(world: World) -> list[Any]:
    return [PoolStatus(world.clock)]


def published(name: str, devices: Any, *, pool: str = "pool", count: int = 1, generation: int = 1, **spec: Any) -> Any:
    where = {"name": pool, "generation": generation, "resourceSliceCount": count}
    body = {
        "driver": "drv",
        "pool": where,
        "devices": list(devices),
        **({} if "nodeName" in spec else {"allNodes": True}),
    }
    return {"metadata": {"name": name}, "spec": {**body, **spec}}


def asked(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "r"}, "spec": {"driver": "drv", "limit": 100, **spec}}


def site(*slices: Any) -> Site:
    made = Site(build)
    for slice_ in slices:
        made.world.create(RESOURCESLICE, slice_)
    return made


def answer(where: Site, **spec: Any) -> Any:
    where.create(RESOURCEPOOLSTATUSREQUEST, asked(**spec))
    return where.world.read(RESOURCEPOOLSTATUSREQUEST, "r")["status"]


def test_counts() -> None:
    taint = {"key": "k", "effect": "NoSchedule"}
    mild = {"key": "k", "effect": "None"}
    devices = [{"name": f"d{n}"} for n in range(4)] + [
        {"name": "t", "taints": [taint]},
        {"name": "m", "taints": [mild]},
    ]
    where = site(published("old", [{"name": "x"}], generation=1), published("s", devices, generation=2, nodeName="n"))
    where.world.create(RESOURCECLAIM, claim("one", allocated=True, device="d0"))
    where.world.create(RESOURCECLAIM, claim("two", allocated=True, device="d0"))
    admin = claim("admin", allocated=True, device="d1")
    admin["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    where.world.create(RESOURCECLAIM, admin)
    spec = {"deviceSelector": {"pool": "pool", "device": "d3"}, "taint": {"key": "bad", "effect": "NoExecute"}}
    where.world.create(DEVICETAINTRULE, {"metadata": {"name": "rule"}, "spec": spec})
    found = answer(where)
    assert found["pools"] == [
        {
            "driver": "drv",
            "poolName": "pool",
            "generation": 2,
            "nodeName": "n",
            "resourceSliceCount": 1,
            "totalDevices": 6,
            "allocatedDevices": 1,
            "unavailableDevices": 2,
            "availableDevices": 3,
        }
    ]
    (entry,) = found["conditions"]
    assert (entry["type"], entry["reason"], entry["message"]) == (
        "Complete",
        "CalculationComplete",
        "Calculated status for 1 pools",
    )


def test_limit_and_pool_name() -> None:
    where = site(*[published(f"s{n}", [], pool=f"p{n}") for n in (2, 0, 1)])
    found = answer(where, limit=2)
    assert (found["poolCount"], [pool["poolName"] for pool in found["pools"]]) == (3, ["p0", "p1"])
    again = site(*[published(f"s{n}", [], pool=f"p{n}") for n in (2, 0, 1)])
    assert [pool["poolName"] for pool in answer(again, poolName="p2")["pools"]] == ["p2"]


def test_an_incomplete_pool_is_waited_for() -> None:
    where = site(published("a", [{"name": "d"}], count=2))
    assert answer(where) == {}
    where.world.create(RESOURCESLICE, published("b", [{"name": "e"}], count=2))
    where.rest()
    (pool,) = where.world.read(RESOURCEPOOLSTATUSREQUEST, "r")["status"]["pools"]
    assert (pool["totalDevices"], pool["resourceSliceCount"]) == (2, 2)


def test_an_incomplete_pool_is_told_in_the_end() -> None:
    where = site(published("a", [{"name": "d"}], count=2))
    assert answer(where) == {}
    where.harness.advance(6)
    found = where.world.read(RESOURCEPOOLSTATUSREQUEST, "r")["status"]
    assert found["pools"][0]["validationError"].startswith("PoolIncomplete:")
    assert "totalDevices" not in found["pools"][0]
    assert found["conditions"][0]["message"] == "Calculated status for 1 pools (1 incomplete)"


def part(name: str, kind: str | None, cost: str, attribute: str = "drv/type") -> dict[str, Any]:
    consumed = [{"counterSet": "c", "counters": {"memory": {"value": cost}}}]
    return {
        "name": name,
        "consumesCounters": consumed,
        **({"attributes": {attribute: {"string": kind}}} if kind else {}),
    }


def counters(size: str) -> list[Any]:
    return [{"name": "c", "counters": {"memory": {"value": size}}}]


def test_partitions() -> None:
    big = [part("b0", "big", "4Gi"), part("b1", "big", "4Gi")]
    small = [part(f"s{n}", "small", "1Gi", "type") for n in range(8)]
    shared = {
        "metadata": {"name": "c"},
        "spec": published("c", [], count=2)["spec"] | {"sharedCounters": counters("8Gi")},
    }
    where = site(shared, published("d", [*big, *small], count=2, partitionTypeAttribute="drv/type"))
    where.world.create(RESOURCECLAIM, claim(allocated=True, device="s0"))
    (pool,) = answer(where)["pools"]
    assert pool["partitionSummary"] == [
        {"attribute": "drv/type", "type": "big", "total": 2, "allocatable": 1},
        {"attribute": "drv/type", "type": "small", "total": 8, "allocatable": 7},
    ]


def test_partitions_that_do_not_add_up() -> None:
    where = site(published("d", [part("a", None, "1Gi")], sharedCounters=counters("8Gi")))
    assert "validationError" not in answer(where)["pools"][0]
    where = site(published("d", [part("a", None, "1Gi")], sharedCounters=counters("8Gi")))
    (pool,) = answer(where, defaultPartitionTypeAttribute="drv/type")["pools"]
    assert pool["validationError"].startswith("PartitionTypeMissing: device a")
    assert pool["totalDevices"] == 1
    parts = [part("a", "x", "1Gi"), part("b", "x", "2Gi")]
    where = site(published("d", parts, partitionTypeAttribute="drv/type"))
    assert answer(where)["pools"][0]["validationError"].startswith("PartitionCostMismatch:")
    many = [part(f"d{n}", f"t{n:02}", "1") for n in range(40)]
    where = site(published("d", many, partitionTypeAttribute="drv/type", sharedCounters=counters("99")))
    (pool,) = answer(where)["pools"]
    assert pool["validationError"].startswith("PartitionSummaryOverCap:")
    assert len(pool["partitionSummary"]) == 32


def test_shareable_devices() -> None:
    nic = {"allowMultipleAllocations": True, "capacity": {"bandwidth": {"value": "10G"}}}
    where = site(published("s", [{"name": "a", **nic}, {"name": "b", **nic}]))
    held = claim(allocated=True, device="a")
    held["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"] = {"bandwidth": "3G"}
    where.world.create(RESOURCECLAIM, held)
    (pool,) = answer(where)["pools"]
    assert pool["shareableSummary"] == {
        "fullyAvailableDevices": 1,
        "partiallyAvailableDevices": 1,
        "capacity": [{"name": "bandwidth", "total": "20G", "consumed": "3G", "available": "17G"}],
    }


def test_requests_end() -> None:
    where = site(published("s", []))
    assert answer(where)["poolCount"] == 1
    where.harness.advance(3590)
    assert where.world.read(RESOURCEPOOLSTATUSREQUEST, "r") is not None
    where.harness.advance(20)
    assert where.world.read(RESOURCEPOOLSTATUSREQUEST, "r") is None
