"""Best fit: what a partition spoils, on a node and among nodes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from benchmarks.allocator_bestfit import at_random, best, first, simulate, slices_of
from benchmarks.allocator_bestfit import claim_for as mig
from benchmarks.allocator_bestfit import fleet as migs

from drakkar.allocator import Fits, NoFit, allocate, prepare
from drakkar.allocator.api import add
from drakkar.allocator.fitness import blocks_of
from drakkar.allocator.hypothetical import hypothetical
from drakkar.api.resource.v1 import ResourceClaim
from drakkar.inventory import Inventory
from tests.properties.test_allocator import NODES, wish, world
from tests.support.allocation import chosen, claim, device, inventory, on_hosts, published, ranked, request, solve
from tests.support.checker import faults


def take(books: Inventory, wanted: ResourceClaim, node: str | None = None, uid: str = "") -> str:
    """Allocates and books; answers the node and the device."""
    decision = allocate(books.snapshot(), [wanted], node)
    assert isinstance(decision.outcome, Fits), decision
    books.assume(uid or wanted.metadata.uid, decision.outcome.allocations[0])
    (result,) = decision.outcome.allocations[0].devices.results or ()
    return f"{decision.node} {result.device}"


def test_small_partitions_go_where_they_spoil_least() -> None:
    books = migs(1)
    # First fit would put it on slices 0 to 3, which the only 4g needs.
    assert take(books, mig("3g.20gb", "a")) == "n000 gpu-0-3g-20gb-4"
    assert take(books, mig("4g.20gb", "b")) == "n000 gpu-0-4g-20gb-0"


def test_the_node_is_chosen_by_what_is_spoilt() -> None:
    books = migs(3)
    take(books, mig("3g.20gb", "a"), "n001")
    # n000 and n002 are whole; on n001 a small one spoils little.
    assert take(books, mig("2g.10gb", "b")).startswith("n001 ")
    assert take(books, mig("7g.40gb", "c")).startswith("n000 ")
    assert take(books, mig("7g.40gb", "d")).startswith("n002 ")
    assert isinstance(allocate(books.snapshot(), [mig("7g.40gb", "e")]).outcome, NoFit)
    # What is given back counts again.
    books.forget("c")
    assert take(books, mig("7g.40gb", "f")).startswith("n000 ")


def test_nodes_that_do_not_exist_come_last() -> None:
    books = migs(1)
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "tmpl", "labels": {}}}
    for made in hypothetical(node, slices_of("tmpl"), count=2):
        add(books, made)
    take(books, mig("1g.5gb", "a"), "tmpl+1")
    # A small partition spoils least beside the other one, but nobody should have to make a node for it.
    assert list(prepare(books.snapshot(), [mig("1g.5gb", "b")]).ranked()) == ["n000", "tmpl+1", "tmpl+0"]


def test_policy_upstream_takes_the_first() -> None:
    books = migs(2)
    problem = prepare(books.snapshot(), [mig("3g.20gb", "a")], "upstream")
    assert list(problem.ranked()) == ["n000", "n001"]
    assert chosen(problem.solve("n000")) == ["gpu-0-3g-20gb-0"]


def test_what_if_is_ranked_by_itself() -> None:
    books = migs(2)
    start = books.snapshot()
    outcome = prepare(start, [mig("1g.5gb", "a")]).solve("n001")
    assert isinstance(outcome, Fits)
    later = start.assume(outcome.allocations[0])
    assert next(iter(prepare(later, [mig("1g.5gb", "b")]).ranked())) == "n001"
    assert next(iter(prepare(start, [mig("1g.5gb", "b")]).ranked())) == "n000"


def test_a_multi_host_slice_breaks_the_smaller_rest() -> None:
    """Two pods of four hosts: one host is in use in the first, so the next single host comes from there."""
    hosts = [f"h{n}" for n in range(8)]
    slices = []
    for pod in (0, 1):
        mine = hosts[4 * pod : 4 * pod + 4]
        pairs = [mine[:2], mine[2:]]
        shapes = [[h] for h in mine] + pairs + [mine]
        devices = [
            device(
                f"{len(shape)}-{shape[0]}",
                attributes={"hosts": len(shape)},
                nodeSelector=on_hosts(*shape),
                draws={"chips": {h: "4" for h in shape}},
            )
            for shape in shapes
        ]
        fields: dict[str, Any] = {"pool": f"pod{pod}", "count": 2}
        slices.append(published(f"c{pod}", counters={"chips": {h: "4" for h in mine}}, allNodes=True, **fields))
        slices.append(published(f"d{pod}", devices, perDeviceNodeSelection=True, **fields))
    books = inventory(*slices, nodes=hosts)

    def wants(count: int, name: str) -> ResourceClaim:
        return claim(request(select=f'device.attributes["gpu.example.com"].hosts == {count}'), name=name)

    take(books, wants(1, "a"), "h5")
    assert take(books, wants(1, "b")) == "h4 1-h4"
    assert take(books, wants(2, "c"))[3:] == "2-h6"
    assert take(books, wants(4, "d"))[3:] == "4-h0"


def test_several_partitions_of_one_parent() -> None:
    """A constraint that all are of one GPU: the GPU that spoils less is taken, though the other comes first."""
    devices = [
        device(f"g{gpu}-{n}", attributes={"gpu": gpu, "size": size}, draws={f"g{gpu}": {"m": str(size)}})
        for gpu in (0, 1)
        for n, size in enumerate((1, 1, 1, 1, 4))
    ]
    books = inventory(
        published("c", counters={"g0": {"m": "4"}, "g1": {"m": "4"}}, count=2), published("d", devices, count=2)
    )
    small = 'device.attributes["gpu.example.com"].size == 1'
    used = solve(books, claim(request(select=small + ' && device.attributes["gpu.example.com"].gpu == 1')))
    assert isinstance(used, Fits)
    books.assume("used", used.allocations[0])
    together = [{"matchAttribute": "gpu.example.com/gpu"}]
    wanted = claim(request("a", 2, small), request("b", select=small), constraints=together)
    assert chosen(solve(books, wanted, policy="drakkar")) == ["g1-1", "g1-2", "g1-3"]
    assert chosen(solve(books, wanted)) == ["g0-0", "g0-1", "g0-2"]
    # Four do not fit there.
    wanted = claim(request("a", 4, small), constraints=together)
    assert chosen(solve(books, wanted, policy="drakkar")) == ["g0-0", "g0-1", "g0-2", "g0-3"]


def test_alternatives_keep_their_order() -> None:
    books = migs(1)
    large = ranked(
        "r", *[request(n, select=f'device.attributes["gpu.example.com"].profile == "{p}"', class_name="mig") for n, p in
               (("big", "7g.40gb"), ("small", "1g.5gb"))]
    )  # fmt: skip
    outcome = solve(books, claim(large), node="n000", policy="drakkar")
    assert isinstance(outcome, Fits)
    assert (outcome.allocations[0].devices.results or [])[0].request == "r/big"
    assert outcome.lost > 0


def test_equal_gpus_share_their_geometry() -> None:
    books = inventory(*slices_of("n1"), *slices_of("n2"), nodes=("n1", "n2"))
    found = [blocks_of(seen.view.base.form) for n in ("n1", "n2") for seen in books.snapshot().view(n).pools]
    assert len({id(block.geometry) for blocks in found for block in blocks}) == 1


def test_plain_devices_are_not_compared() -> None:
    books = inventory(published("s", [device("x"), device("y")]))
    problem = prepare(books.snapshot(), [claim(request())])
    assert list(problem.ranked()) == ["n1"]
    assert chosen(problem.solve("n1")) == ["x"]


@pytest.mark.parametrize("seed", range(5))
def test_rankings_kept_by_events_equal_fresh_ones(seed: int) -> None:
    rnd = random.Random(seed)
    slices = world(rnd)
    books, held = inventory(*slices, nodes=NODES), {}
    for number in range(20):
        wanted = wish(rnd, rnd.randint(0, 3))
        problem = prepare(books.snapshot(), [wanted], share_id=lambda: "s")
        names = list(problem.ranked())
        fresh = inventory(*slices, nodes=NODES)
        for uid, allocation in held.items():
            fresh.assume(uid, allocation)
        again = prepare(fresh.snapshot(), [wanted], share_id=lambda: "s")
        assert names == list(again.ranked())
        fitting = [name for name in problem.feasible().nodes if isinstance(problem.solve(name), Fits)]
        assert set(fitting) <= set(names) <= set(problem.feasible().nodes)
        if names and isinstance(outcome := problem.solve(names[0]), Fits):
            held[f"u{number}"] = outcome.allocations[0]
            books.assume(f"u{number}", outcome.allocations[0])
        elif held:
            uid = rnd.choice(sorted(held))
            del held[uid]
            books.forget(uid)
        assert not faults(slices, held)


def test_more_is_accepted_than_by_choosing_at_random() -> None:
    """The floor of the target, on a small fleet; benchmarks/allocator_bestfit.py measures large ones."""
    units = {
        name: simulate(16, 0.8, 500, 1, choose).units
        for name, choose in (("random", at_random(random.Random(1))), ("first", first), ("best", best))
    }
    assert units["best"] >= units["random"] + 0.05, units
    assert units["best"] >= units["first"], units
