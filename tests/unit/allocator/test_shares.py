"""Virtual functions with a share of their port's bandwidth (docs/decisions/0004-shares-of-a-parent.md)."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import msgspec
import pytest

from drakkar.allocator import Fits, NoFit, prepare
from drakkar.api.resource import v1
from drakkar.api.resource.drawn import function_of, port_counters, whole_port
from drakkar.inventory import Inventory, Snapshot
from tests.support.allocation import (
    allocated,
    chosen,
    claim,
    device,
    device_class,
    inventory,
    published,
    ranked,
    request,
    solve,
)
from tests.support.checker import faults

DRIVER = "nic.drakkar.dev"
CLASS = device_class("nic", f'device.driver == "{DRIVER}"')
VF = f'device.attributes["{DRIVER}"].kind == "vf"'
PF = f'device.attributes["{DRIVER}"].kind == "port"'


def span(value: str, low: str = "1G", default: str = "1G", step: str = "1G") -> v1.DeviceCapacity:
    """The bandwidth of one function."""
    policy = v1.CapacityRequestPolicy(default=default, validRange=v1.CapacityRequestPolicyRange(min=low, step=step))
    return v1.DeviceCapacity(value=value, requestPolicy=policy)


def adapter(
    functions: int = 4, bandwidth: str = "100G", most: str = "100G", ports: int = 1, whole: bool = True
) -> list[v1.ResourceSlice]:
    """A pool with ports and their functions on node ``n1``."""
    sets = [port_counters(f"p{n}", bandwidth, functions) for n in range(ports)]
    kind = {"kind": v1.DeviceAttribute(string="vf")}
    devices = [function_of(s, f"{s.name}-vf{n}", span(most), kind) for s in sets for n in range(functions)]
    if whole:
        devices += [whole_port(s, s.name, {"kind": v1.DeviceAttribute(string="port")}) for s in sets]
    raw = [msgspec.to_builtins(d) for d in devices]
    values = {s.name: {name: c.value for name, c in s.counters.items()} for s in sets}
    fields: dict[str, Any] = {"pool": "nics", "count": 2, "driver": DRIVER}
    return [published("counters", counters=values, **fields), published("devices", raw, **fields)]


def wants(*amounts: str, name: str = "c", select: str = VF) -> v1.ResourceClaim:
    """A claim for one function per amount."""
    return claim(
        *[
            request(f"r{n}", select=select, class_name="nic", **({"capacity": {"bandwidth": a}} if a else {}))
            for n, a in enumerate(amounts)
        ],
        name=name,
    )


def books(*objects: Any) -> Inventory:
    return inventory(CLASS, *(objects or adapter()))


def test_the_sum_of_the_shares_stays_within_the_port() -> None:
    outcome = solve(books(), wants("40G", "40G", "20G"), policy="drakkar")
    assert chosen(outcome) == ["p0-vf0", "p0-vf1", "p0-vf2"]
    refused = solve(books(), wants("40G", "40G", "21G"), policy="drakkar")
    assert isinstance(refused, NoFit)
    assert refused.reason.reason == "capacity-exhausted"
    # Upstream does not know what the attribute means, and keeps each function within its own limit only.
    assert len(chosen(solve(books(), wants("40G", "40G", "21G")))) == 3


def test_shares_count_across_claims_in_flight_and_written() -> None:
    state = books()
    first = wants("70G", name="a")
    outcome = solve(state, first, policy="drakkar")
    assert isinstance(outcome, Fits)
    state.assume("uid-a", outcome.allocations[0])
    for _ in range(2):
        refused = solve(state, wants("40G", name="b"), policy="drakkar")
        assert isinstance(refused, NoFit)
        assert refused.reason.reason == "capacity-exhausted"
        assert "bandwidth of p0 (left 30G)" in refused.reason.message
        assert refused.reason.funnel["capacity-left"] == 0
        assert chosen(solve(state, wants("30G", name="b"), policy="drakkar")) == ["p0-vf1"]
        state.set_claim(allocated(first, outcome))
    state.remove_claim("default", "a")
    assert chosen(solve(state, wants("100G", name="b"), policy="drakkar")) == ["p0-vf0"]


def test_what_if_counts_shares_and_leaves_no_trace() -> None:
    start: Snapshot = books().snapshot()
    outcome = solve(start, wants("70G"), policy="drakkar")
    assert isinstance(outcome, Fits)
    later = start.assume(outcome.allocations[0])
    assert isinstance(solve(later, wants("40G"), policy="drakkar"), NoFit)
    assert prepare(later, [wants("40G")]).feasible().nodes == ()
    assert isinstance(solve(start, wants("40G"), policy="drakkar"), Fits)
    assert isinstance(solve(later.release(outcome.allocations[0]), wants("100G"), policy="drakkar"), Fits)


@pytest.mark.parametrize("policy", ["drakkar", "upstream"])
def test_a_function_goes_to_one_claim_under_every_policy(policy: str) -> None:
    state = books(*adapter(functions=1, whole=False))
    outcome = solve(state, wants("1G", name="a"), policy=policy)
    assert isinstance(outcome, Fits)
    state.assume("uid-a", outcome.allocations[0])
    refused = solve(state, wants("1G", name="b"), policy=policy)
    assert isinstance(refused, NoFit)
    assert refused.reason.reason == ("in-use" if policy == "drakkar" else "capacity-exhausted")
    assert isinstance(solve(books(*adapter(functions=1, whole=False)), wants("1G", "1G"), policy=policy), NoFit)


@pytest.mark.parametrize("policy", ["drakkar", "upstream"])
def test_the_whole_port_and_its_functions_exclude_each_other(policy: str) -> None:
    state = books()
    outcome = solve(state, wants("", select=PF, name="a"), policy=policy)
    assert chosen(outcome) == ["p0"]
    assert isinstance(outcome, Fits)
    state.assume("uid-a", outcome.allocations[0])
    assert isinstance(solve(state, wants("1G", name="b"), policy=policy), NoFit)
    state.forget("uid-a")
    outcome = solve(state, wants("1G", name="b"), policy=policy)
    assert isinstance(outcome, Fits)
    state.assume("uid-b", outcome.allocations[0])
    assert isinstance(solve(state, wants("", select=PF, name="a"), policy=policy), NoFit)


def test_a_default_is_drawn_and_without_one_everything() -> None:
    state = books()
    outcome = solve(state, wants(""), policy="drakkar")
    assert isinstance(outcome, Fits)
    consumed = (outcome.allocations[0].devices.results or [])[0].consumedCapacity
    assert consumed == {"bandwidth": "1G", "function": "1"}
    state.assume("uid", outcome.allocations[0])
    assert isinstance(solve(state, wants("99G"), policy="drakkar"), Fits)
    assert isinstance(solve(state, wants("100G"), policy="drakkar"), NoFit)


def test_the_fullest_alternative_that_fits_is_taken() -> None:
    state = books()
    state.assume("uid", fitting(state, wants("70G")))
    two = ranked(
        "r",
        request("fast", class_name="nic", select=VF, capacity={"bandwidth": "40G"}),
        request("slow", class_name="nic", select=VF, capacity={"bandwidth": "10G"}),
    )
    outcome = solve(state, claim(two), policy="drakkar")
    assert isinstance(outcome, Fits)
    assert (outcome.allocations[0].devices.results or [])[0].request == "r/slow"


def fitting(state: Inventory, wanted: v1.ResourceClaim) -> v1.AllocationResult:
    outcome = solve(state, wanted, policy="drakkar")
    assert isinstance(outcome, Fits), outcome
    return outcome.allocations[0]


def test_a_function_that_vanishes_keeps_its_share() -> None:
    state = books()
    wanted = wants("70G", name="a")
    outcome = solve(state, wanted, policy="drakkar")
    state.set_claim(allocated(wanted, outcome))
    devices = adapter()[1]
    rest = msgspec.structs.replace(devices.spec, devices=(devices.spec.devices or [])[1:])
    state.set_slice(msgspec.structs.replace(devices, spec=rest))
    refused = solve(state, wants("40G"), policy="drakkar")
    assert isinstance(refused, NoFit)
    assert "bandwidth of p0 (left 30G)" in refused.reason.message
    state.remove_claim("default", "a")
    assert isinstance(solve(state, wants("100G"), policy="drakkar"), Fits)


@pytest.mark.parametrize("value", ["p0/speed", "other/bandwidth", "p0", "", "/", "p0/"])
def test_a_function_that_draws_on_nothing_known_is_not_given_out(value: str) -> None:
    slices = adapter(whole=False)
    text = msgspec.json.encode(slices[1]).decode().replace("p0/bandwidth", value)
    broken = msgspec.json.decode(text, type=v1.ResourceSlice)
    refused = solve(books(slices[0], broken), wants("1G"), policy="drakkar")
    assert isinstance(refused, NoFit)
    assert refused.reason.reason == "capacity-exhausted"
    assert "draws on a counter that its pool does not declare" in refused.reason.message


def test_mode_all_takes_the_shares_of_all() -> None:
    every = request("r", 0, select=VF, class_name="nic", capacity={"bandwidth": "25G"})
    assert len(chosen(solve(books(), claim(every), policy="drakkar"))) == 4
    every = request("r", 0, select=VF, class_name="nic", capacity={"bandwidth": "26G"})
    assert isinstance(solve(books(), claim(every), policy="drakkar"), NoFit)


def test_impossible_demands_on_equal_functions_end_early() -> None:
    """64 functions of 4 ports, 65 claims for one; 13 of 30G out of 4 times 100G."""
    state = books(*adapter(functions=16, ports=4, whole=False))
    for many in ([wants("1G", name=f"c{n}") for n in range(65)], [wants("30G", name=f"c{n}") for n in range(13)]):
        outcome = prepare(state.snapshot(), many).solve("n1", budget=5000)
        assert isinstance(outcome, NoFit)
        assert isinstance(prepare(state.snapshot(), many[:-1]).solve("n1", budget=5000), Fits)


def test_functions_keep_to_ports_that_are_in_use() -> None:
    """Best fit: a function on an idle port would make the whole port impossible."""
    on_second = f'{VF} && device.attributes["{DRIVER}"].port == "p1"'
    slices = adapter(functions=4, ports=2)
    for published_device in slices[1].spec.devices or []:
        assert published_device.attributes is not None
        published_device.attributes["port"] = v1.DeviceAttribute(string=published_device.name[:2])
    state = books(*slices)
    state.assume("a", fitting(state, wants("10G", select=on_second)))
    two = solve(state, wants("20G", "30G", name="b"), policy="drakkar")
    assert chosen(two) == ["p1-vf1", "p1-vf2"]
    assert isinstance(two, Fits)
    state.assume("b", two.allocations[0])
    # What does not fit there goes elsewhere.
    assert chosen(solve(state, wants("30G", "20G", name="c"), policy="drakkar")) == ["p1-vf3", "p0-vf0"]
    assert chosen(solve(state, wants("", select=PF, name="d"), policy="drakkar")) == ["p0"]
    assert chosen(solve(state, wants("10G", name="e"))) == ["p0-vf0"]


def test_a_device_with_a_share_out_is_not_given_whole() -> None:
    shared = device("x", allowMultipleAllocations=True)
    state = inventory(published("s", [shared]))
    outcome = solve(state, claim(request()), policy="drakkar")
    assert isinstance(outcome, Fits)
    state.assume("uid", outcome.allocations[0])
    state.set_slice(published("s", [device("x")]))
    assert chosen(solve(state, claim(request()))) == ["x"]
    refused = solve(state, claim(request()), policy="drakkar")
    assert isinstance(refused, NoFit)
    assert refused.reason.reason == "in-use"
    state.forget("uid")
    assert chosen(solve(state, claim(request()), policy="drakkar")) == ["x"]


def test_other_devices_of_the_pool_do_not_mind() -> None:
    fields: dict[str, Any] = {"pool": "nics", "driver": DRIVER, "count": 3}
    slices = [
        msgspec.structs.replace(
            s, spec=msgspec.structs.replace(s.spec, pool=msgspec.structs.replace(s.spec.pool, resourceSliceCount=3))
        )
        for s in adapter()
    ]
    state = books(*slices, published("more", [device("m", attributes={"kind": "mgmt"})], **fields))
    state.assume("uid", fitting(state, wants("100G")))
    assert chosen(
        solve(state, wants("", select=f'device.attributes["{DRIVER}"].kind == "mgmt"'), policy="drakkar")
    ) == ["m"]


@pytest.mark.parametrize("seed", range(40))
def test_against_all_choices_counted_out(seed: int) -> None:
    """Two ports of a few functions, some held: fits exactly when some distribution of the requests over ports does."""
    rnd = random.Random(seed)
    functions = rnd.randint(1, 3)
    slices = adapter(
        functions=functions, ports=2, bandwidth="10G", most=f"{rnd.randint(5, 10)}G", whole=rnd.random() < 0.5
    )
    most = int((slices[1].spec.devices or [])[0].capacity["bandwidth"].value[:-1])  # type: ignore[index]
    state = books(*slices)
    held: dict[str, v1.AllocationResult] = {}
    left, free = [10, 10], [functions, functions]
    for number in range(8):
        amounts = [rnd.randint(1, 6) for _ in range(rnd.randint(1, 3))]
        wanted = wants(*[f"{a}G" for a in amounts], name=f"c{number}")
        possible = (
            any(
                all(
                    sum(a for a, p in zip(amounts, ports, strict=True) if p == port) <= left[port]
                    and sum(p == port for p in ports) <= free[port]
                    for port in (0, 1)
                )
                for ports in product((0, 1), repeat=len(amounts))
            )
            and max(amounts) <= most
        )
        problem = prepare(state.snapshot(), [wanted])
        outcome = problem.solve("n1")
        assert isinstance(outcome, Fits) == possible, outcome
        if isinstance(outcome, Fits):
            assert problem.feasible().nodes == ("n1",)
            uid = wanted.metadata.uid
            held[uid] = outcome.allocations[0]
            state.assume(uid, held[uid])
        elif held:
            uid = rnd.choice(sorted(held))
            del held[uid]
            state.forget(uid)
        assert not faults(slices, held)
        left, free = [10, 10], [functions, functions]
        for allocation in held.values():
            for result in allocation.devices.results or ():
                left[int(result.device[1])] -= int((result.consumedCapacity or {})["bandwidth"][:-1])
                free[int(result.device[1])] -= 1
