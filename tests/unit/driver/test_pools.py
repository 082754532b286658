"""Plans of writes for a pool: generations, names, times of taints, crashes in between."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from drakkar.api.meta import ObjectMeta, OwnerReference
from drakkar.api.resource import v1
from drakkar.client.writes import Create, Delete, Patch, Write
from drakkar.driver import (
    Pool,
    SliceContent,
    capacities,
    check_pool,
    consumes,
    counter_set,
    node_pool,
    plan_pool,
    split,
)

DRIVER = "d.example.com"
NOW = 1_000_000.0


class Server:
    """Applies writes to a list of slices, as the API would."""

    def __init__(self) -> None:
        self.slices: dict[str, v1.ResourceSlice] = {}
        self._number = itertools.count(1)

    def apply(self, writes: list[Write], most: int | None = None) -> None:
        for write in writes[:most]:
            number = str(next(self._number))
            if isinstance(write, Create):
                name = write.obj["metadata"]["generateName"] + number.zfill(5)
                metadata = ObjectMeta(name=name, uid=f"uid-{number}", resourceVersion=number)
                spec = msgspec.convert(write.obj["spec"], v1.ResourceSliceSpec)
                self.slices[name] = v1.ResourceSlice(metadata=metadata, spec=spec)
            elif isinstance(write, Patch):
                stored = self.slices[write.name]
                assert write.body["metadata"]["resourceVersion"] == stored.metadata.resourceVersion
                merged = {**msgspec.to_builtins(stored.spec), **write.body["spec"]}
                spec = msgspec.convert({k: v for k, v in merged.items() if v is not None}, v1.ResourceSliceSpec)
                metadata = msgspec.structs.replace(stored.metadata, resourceVersion=number)
                self.slices[write.name] = v1.ResourceSlice(metadata=metadata, spec=spec)
            elif isinstance(write, Delete):
                assert write.uid == self.slices[write.name].metadata.uid
                del self.slices[write.name]

    def plan(self, pool: Pool | None, now: float = NOW) -> list[Write]:
        return plan_pool(DRIVER, pool, [*self.slices.values()], now=now)

    def settle(self, pool: Pool | None, now: float = NOW) -> int:
        """Plans and applies until nothing is left to do; the number of writes."""
        total = 0
        for _ in range(10):
            writes = self.plan(pool, now)
            if not writes:
                return total
            total += len(writes)
            self.apply(writes)
        raise AssertionError("does not come to rest")

    def generations(self) -> set[int]:
        return {found.spec.pool.generation for found in self.slices.values()}


def device(name: str, *, taint: str = "", **fields: Any) -> v1.Device:
    taints = [v1.DeviceTaint(key="k", value=taint, effect="NoExecute")] if taint else None
    return v1.Device(name=name, taints=taints, **fields)


def pool(*contents: list[v1.Device], name: str = "p") -> Pool:
    return Pool(name=name, slices=tuple(SliceContent(devices=tuple(c)) for c in contents), all_nodes=True)


@pytest.fixture
def server() -> Server:
    return Server()


def test_a_new_pool_is_created_in_order(server: Server):
    server.settle(pool([device("a")], [device("b")]))
    names = sorted(server.slices)
    assert [name[:20] for name in names] == ["00000-d.example.com-", "00001-d.example.com-"]
    assert [server.slices[name].spec.devices[0].name for name in names] == ["a", "b"]  # type: ignore[index]
    assert {found.spec.pool for found in server.slices.values()} == {
        v1.ResourcePool(name="p", generation=1, resourceSliceCount=2)
    }


def test_what_is_right_is_left_alone(server: Server):
    server.settle(pool([device("a")], [device("b")]))
    assert server.plan(pool([device("a")], [device("b")])) == []


def test_one_changed_slice_keeps_the_generation(server: Server):
    server.settle(pool([device("a")], [device("b")]))
    assert server.settle(pool([device("a", taint="x")], [device("b")])) == 1
    assert server.generations() == {1}


def test_two_changed_slices_are_a_new_generation(server: Server):
    server.settle(pool([device("a")], [device("b")], [device("c")]))
    assert server.settle(pool([device("a2")], [device("b2")], [device("c")])) == 3
    assert server.generations() == {2}


def test_growing_and_shrinking_are_new_generations(server: Server):
    server.settle(pool([device("a")]))
    server.settle(pool([device("a")], [device("b")], [device("c")]))
    assert server.generations() == {2}
    server.settle(pool([device("a")], [device("b")]))
    assert server.generations() == {3}
    assert len(server.slices) == 2


def test_a_pool_without_devices_is_one_empty_slice(server: Server):
    server.settle(pool([device("a")], [device("b")]))
    server.settle(Pool(name="p", slices=(), all_nodes=True))
    assert [found.spec.devices for found in server.slices.values()] == [None]


def test_a_removed_pool_leaves_nothing(server: Server):
    server.settle(pool([device("a")], [device("b")]))
    server.settle(None)
    assert server.slices == {}


@pytest.mark.parametrize("most", range(5))
def test_a_crash_between_two_writes_heals(server: Server, most: int):
    server.settle(pool([device("a")], [device("b")], [device("c")]))
    wanted = pool([device("a2")], [device("b2")], [device("c2")], [device("d2")])
    server.apply(server.plan(wanted), most)
    server.settle(wanted)
    assert len(server.generations()) == 1
    found = [server.slices[name].spec.devices[0].name for name in sorted(server.slices)]  # type: ignore[index]
    assert found == ["a2", "b2", "c2", "d2"]


def test_foreign_names_and_doubles_are_replaced(server: Server):
    server.settle(pool([device("a")]))
    (name,) = server.slices
    original = server.slices[name]
    for other in ("old-style", name + "x"):
        metadata = msgspec.structs.replace(original.metadata, name=other, uid=other)
        server.slices[other] = msgspec.structs.replace(original, metadata=metadata)
    server.settle(pool([device("a")]))
    assert len(server.slices) == 1


def test_a_taint_keeps_its_time(server: Server):
    server.settle(pool([device("a", taint="x")]), now=NOW)
    (found,) = server.slices.values()
    time = found.spec.devices[0].taints[0].timeAdded  # type: ignore[index]
    assert time == "1970-01-12T13:46:40Z"
    assert server.plan(pool([device("a", taint="x")]), now=NOW + 100) == []
    server.settle(pool([device("a", taint="x"), device("b")]), now=NOW + 100)
    (found,) = server.slices.values()
    assert found.spec.devices[0].taints[0].timeAdded == time  # type: ignore[index]


def test_a_taint_that_comes_back_has_a_new_time(server: Server):
    server.settle(pool([device("a", taint="x")]), now=NOW)
    server.settle(pool([device("a")]), now=NOW)
    server.settle(pool([device("a", taint="x")]), now=NOW + 100)
    (found,) = server.slices.values()
    assert found.spec.devices[0].taints[0].timeAdded == "1970-01-12T13:48:20Z"  # type: ignore[index]


def test_a_higher_generation_of_the_driver_wins(server: Server):
    server.settle(pool([device("a")]))
    server.settle(msgspec_replace(pool([device("a")]), generation=7))
    assert server.generations() == {7}


def msgspec_replace(wanted: Pool, **changes: Any) -> Pool:
    from dataclasses import replace

    return replace(wanted, **changes)


def test_owner_gives_name_and_reference():
    owner = OwnerReference(apiVersion="v1", kind="Node", name="n1", uid="u", controller=True)
    (write,) = plan_pool(DRIVER, pool([device("a")]), [], now=NOW, owner=owner)
    assert isinstance(write, Create)
    assert write.obj["metadata"]["generateName"] == "00000-d.example.com-n1-"
    assert write.obj["metadata"]["ownerReferences"][0]["uid"] == "u"


def test_faults_that_the_server_does_not_see_are_named():
    twice = Pool(
        name="p",
        slices=(
            SliceContent(shared_counters=(counter_set("s", {"c": 1}), counter_set("s", {"c": 1}))),
            SliceContent(devices=(device("a"), device("a", consumesCounters=[consumes("s", {"d": 1})]))),
            SliceContent(devices=(device("b", consumesCounters=[consumes("t", {"c": 1})]),)),
        ),
    )
    problems = check_pool(twice)
    assert len(problems) == 4
    assert "counter set 's' is defined twice" in problems[0]
    assert "device 'a' exists twice" in problems[1]


def test_devices_are_split_by_the_limits():
    assert [len(run) for run in split(device(str(i)) for i in range(300))] == [128, 128, 44]
    tainted = [device(str(i), taint="x") for i in range(100)]
    assert [len(run) for run in split(tainted)] == [64, 36]


def test_quantities_are_written_as_the_server_keeps_them() -> None:
    drawn = consumes("s", {"memory": "2048Mi"})
    pool = node_pool(
        "n",
        [
            counter_set("s", {"memory": "4096Mi"}),
            device("d", capacity=capacities({"memory": "1024Mi"}), consumesCounters=[drawn]),
        ],
    )
    first, second = plan_pool("d.example", pool, [], now=0.0)
    assert isinstance(first, Create)
    assert isinstance(second, Create)
    assert first.obj["spec"]["sharedCounters"][0]["counters"]["memory"]["value"] == "4Gi"
    (described,) = second.obj["spec"]["devices"]
    assert described["capacity"]["memory"]["value"] == "1Gi"
    assert described["consumesCounters"][0]["counters"]["memory"]["value"] == "2Gi"


def test_zeros_are_written_out() -> None:
    # The API requires `min`, and clients that read the other two should not have to guess.
    span = v1.CapacityRequestPolicyRange(min="0", max="100")
    policy = v1.CapacityRequestPolicy(default="100", validRange=span)
    cores = v1.DeviceCapacity(value="100", requestPolicy=policy)
    described = device("d", capacity={"cores": cores, "decoders": v1.DeviceCapacity(value="0")})
    first, second = plan_pool(DRIVER, node_pool("n", [counter_set("s", {"decoders": 0}), described]), [], now=0.0)
    assert isinstance(first, Create)
    assert isinstance(second, Create)
    assert first.obj["spec"]["sharedCounters"][0]["counters"]["decoders"] == {"value": "0"}
    (written,) = second.obj["spec"]["devices"]
    assert written["capacity"]["decoders"] == {"value": "0"}
    assert written["capacity"]["cores"]["requestPolicy"]["validRange"] == {"min": "0", "max": "100"}


def test_what_a_slice_says_of_its_partitions_and_its_node_is_written(server: Server) -> None:
    content = SliceContent((device("a"),), partition_type_attribute="profile", skip_node_operations=("*",))
    server.settle(Pool("p", (content,), all_nodes=True))
    (found,) = server.slices.values()
    assert (found.spec.partitionTypeAttribute, found.spec.skipNodeOperations) == ("profile", ["*"])
    assert server.plan(Pool("p", (content,), all_nodes=True)) == []
