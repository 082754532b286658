"""What the guard lets others write, and what it keeps in mind of that."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from drakkar.api.kinds import DEVICECLASS, NODE, POD, RESOURCECLAIM, RESOURCESLICE
from drakkar.api.resource import v1
from drakkar.client import Client, MemoryTransport, SystemClock
from drakkar.scheduler import Placement, PodView, Scheduler, decide
from drakkar.scheduler.cluster import Cluster
from drakkar.scheduler.commit import FATE
from drakkar.scheduler.guard import Guard
from drakkar.scheduler.webhook import review_allocation
from tests.unit.client.fakeserver import FakeServer
from tests.unit.scheduler.build import allocated, claim, cluster, device_class, node, node_slice, pod, shape_slices
from tests.unit.scheduler.test_holders import share, shareable, typed
from tests.unit.scheduler.test_scheduler import node_of, until


class Time:
    """A clock that is set."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class Site:
    """A guard over these objects."""

    def __init__(self, *objects: dict[str, Any]):
        self.clock = Time()
        self.freed: list[str] = []
        self.cluster: Cluster = cluster(*objects)
        self.claims = {obj["metadata"]["uid"]: typed(obj) for obj in objects if obj["kind"] == "ResourceClaim"}
        self.guard = Guard(self.cluster, self.clock, find=self.claims.get, freed=self.freed.extend)

    def ask(self, wanted: dict[str, Any], before: dict[str, Any] | None = None, **more: Any) -> str:
        """Somebody writes this state of a claim."""
        request = {
            "uid": "r",
            "operation": "UPDATE",
            "resource": {"group": "resource.k8s.io", "version": "v1", "resource": "resourceclaims"},
            "subResource": "status",
            "object": wanted,
            "oldObject": before or claim(wanted["metadata"]["name"]),
            **more,
        }
        response = review_allocation(self.guard, {"request": request})["response"]
        assert (response["uid"], response["allowed"]) == ("r", "status" not in response)
        return response.get("status", {}).get("message", "")

    def see(self, obj: dict[str, Any], revision: int) -> None:
        """The watch shows this state of a claim."""
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(revision)}}
        self.claims[obj["metadata"]["uid"]] = typed(obj)
        self.cluster.set_claim(typed(obj))
        self.guard.seen(typed(obj))

    def own(self, name: str) -> Placement:
        """Our decision about a pod of this name with a claim of this name."""
        view = PodView.of(pod(f"p-{name}", name))
        decision = decide(self.cluster, view)
        assert isinstance(decision, Placement), decision
        self.cluster.assume(view, decision.node, decision.allocations)
        return decision

    def written(self, name: str, placement: Placement) -> dict[str, Any]:
        """The claim as our write makes it."""
        status = {"allocation": msgspec.to_builtins(placement.allocations[0][1])}
        return {**claim(name), "status": status}


def site(devices: int = 1, *claims: dict[str, Any]) -> Site:
    return Site(node("n"), device_class(), node_slice("n", devices), *claims)


def test_a_held_device_is_refused_by_name() -> None:
    at = site(2, allocated(claim("a"), "n", "gpu-0"), claim("b"))
    said = at.ask(allocated(claim("b"), "n", "gpu-0"))
    assert said == "device gpu-0 (driver gpu.example.com, pool n) is held by resourceclaim default/a"
    assert at.ask(allocated(claim("b"), "n", "gpu-1")) == ""
    assert at.guard.outcomes == {"refused": 1, "allowed": 1}


def test_a_device_that_we_are_giving_away_is_refused_and_our_own_write_is_not() -> None:
    at = site(1, claim("a"), claim("b"))
    placement = at.own("a")
    said = at.ask(allocated(claim("b"), "n", "gpu-0"))
    assert said == "device gpu-0 (driver gpu.example.com, pool n) is being given to resourceclaim default/a"
    assert at.ask(at.written("a", placement)) == ""
    assert at.guard.outcomes == {"refused": 1, "own": 1}


def test_of_two_others_the_first_gets_it() -> None:
    at = site(1, claim("a"), claim("b"))
    assert at.ask(allocated(claim("a"), "n", "gpu-0")) == ""
    assert "is being given to resourceclaim default/a" in at.ask(allocated(claim("b"), "n", "gpu-0"))
    # Nor is it ours to decide about, long before the watch tells.
    assert not isinstance(decide(at.cluster, PodView.of(pod("p", "b"))), Placement)
    # The same writer may try again.
    assert at.ask(allocated(claim("a"), "n", "gpu-0")) == ""


def test_what_others_wrote_is_theirs_once_the_watch_shows_it() -> None:
    at = site(1, claim("a"), claim("b"))
    at.ask(allocated(claim("a"), "n", "gpu-0"))
    at.see(allocated(claim("a"), "n", "gpu-0"), 2)
    assert not at.guard.pending()
    assert "is held by" in at.ask(allocated(claim("b"), "n", "gpu-0"))
    # Given back, it is free.
    at.see(claim("a"), 3)
    assert at.ask(allocated(claim("b"), "n", "gpu-0")) == ""


def test_what_others_could_not_write_is_free_once_the_claim_has_changed() -> None:
    at = site(1, claim("a"), claim("b"))
    at.ask(allocated(claim("a"), "n", "gpu-0"))
    # An event that is no newer than the state that was asked about says nothing.
    at.see(claim("a"), 1)
    assert at.guard.pending()
    at.see(claim("a"), 2)
    assert not at.guard.pending()
    assert at.freed == ["gpu.example.com"]
    assert isinstance(decide(at.cluster, PodView.of(pod("p", "b"))), Placement)


def test_what_nobody_wrote_is_forgotten_after_a_while() -> None:
    at = site(1, claim("a"), claim("b"))
    at.ask(allocated(claim("a"), "n", "gpu-0"))
    at.clock.now = FATE - 1
    assert at.ask(allocated(claim("b"), "n", "gpu-0")) != ""
    at.clock.now = FATE
    assert at.ask(allocated(claim("b"), "n", "gpu-0")) == ""
    at.guard.gone(typed(claim("b")))
    assert not at.guard.pending()


def test_two_writers_of_one_claim_keep_both_their_devices() -> None:
    at = site(3, claim("a"), claim("b"))
    assert at.ask(allocated(claim("a"), "n", "gpu-0")) == ""
    assert at.ask(allocated(claim("a"), "n", "gpu-1")) == ""
    for device in ("gpu-0", "gpu-1"):
        assert at.ask(allocated(claim("b"), "n", device)) != ""
    # One of them has won; the other's device is free.
    at.see(allocated(claim("a"), "n", "gpu-1"), 2)
    assert at.ask(allocated(claim("b"), "n", "gpu-1")) != ""
    assert at.ask(allocated(claim("b"), "n", "gpu-0")) == ""


def test_a_write_of_ours_that_may_still_arrive_keeps_its_device() -> None:
    """The decision is void, for example because no answer came; the write has passed here all the same."""
    at = site(1, claim("a"), claim("b"))
    placement = at.own("a")
    at.ask(at.written("a", placement))
    at.cluster.forget(PodView.of(pod("p-a", "a")))
    assert at.ask(allocated(claim("b"), "n", "gpu-0")) != ""
    assert not isinstance(decide(at.cluster, PodView.of(pod("p", "b"))), Placement)
    at.see(claim("a"), 2)
    assert at.ask(allocated(claim("b"), "n", "gpu-0")) == ""
    # Without a write on its way the device is free at once.
    other = site(1, claim("a"), claim("b"))
    other.own("a")
    other.cluster.forget(PodView.of(pod("p-a", "a")))
    assert other.ask(allocated(claim("b"), "n", "gpu-0")) == ""


def test_a_write_that_the_server_will_refuse_takes_nothing() -> None:
    at = site(1, claim("a"), claim("b"))
    at.see(claim("a"), 7)
    assert at.ask(allocated(claim("a"), "n", "gpu-0")) == ""
    assert not at.guard.pending()


def test_a_dry_run_takes_nothing() -> None:
    at = site(1, allocated(claim("a"), "n", "gpu-0"), claim("b"))
    assert at.ask(allocated(claim("b"), "n", "gpu-0"), dryRun=True) != ""
    free = site(1, claim("a"), claim("b"))
    assert free.ask(allocated(claim("a"), "n", "gpu-0"), dryRun=True) == ""
    assert free.ask(allocated(claim("b"), "n", "gpu-0")) == ""


def test_what_allocates_nothing_passes() -> None:
    held = allocated(claim("a"), "n", "gpu-0")
    at = site(1, held, allocated(claim("b"), "n", "gpu-0"))
    reserved = allocated(claim("a"), "n", "gpu-0", reserved=("p",))
    reported = {**held, "status": {**held["status"], "devices": [{"driver": "d", "pool": "n", "device": "gpu-0"}]}}
    # Although the device is held twice: that is not this write's doing.
    for wanted in (claim("a"), reserved, reported):
        assert at.ask(wanted, held) == ""
    assert at.ask(held, subResource="") == ""
    assert at.guard.outcomes == {}


def test_administrators_are_let_through_and_hold_nothing() -> None:
    admin = allocated(claim("admin"), "n", "gpu-0")
    admin["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    at = site(1, allocated(claim("a"), "n", "gpu-0"), claim("admin"), claim("b"))
    assert at.ask(admin) == ""
    free = site(1, claim("admin"), claim("b"))
    assert free.ask(admin) == ""
    assert free.ask(allocated(claim("b"), "n", "gpu-0")) == ""


def test_shares_fit_or_not() -> None:
    device = {"name": "nic", "capacity": {"bandwidth": {"value": "10"}}}
    at = Site(*shareable(device), share("a", "nic", bandwidth="6"), claim("b"), claim("c"), claim("d"))
    assert at.ask(share("b", "nic", bandwidth="4")) == ""
    said = at.ask(share("c", "nic", bandwidth="1"))
    assert said == (
        "too little is left of capacity bandwidth for device nic (driver gpu.example.com, pool n): "
        "resourceclaim default/b has its share of it"
    )
    assert "is held by resourceclaim default/a" in at.ask(allocated(claim("d"), "n", "nic"))


def test_counters_suffice_or_not() -> None:
    shapes = shape_slices({"left": ["a", "b"], "right": ["c", "d"], "all": ["a", "b", "c", "d"]})
    at = Site(*shapes, allocated(claim("held"), "shapes", "left", nodes=("a", "b")), claim("w"))
    said = at.ask(allocated(claim("w"), "shapes", "all", nodes=("a", "b", "c", "d")))
    assert said == (
        "too little is left of counter hosts/a for device all (driver gpu.example.com, pool shapes): "
        "resourceclaim default/held has its share of it"
    )
    assert at.ask(allocated(claim("w"), "shapes", "right", nodes=("c", "d"))) == ""


def test_nothing_is_booked_for_claims_that_nobody_knows() -> None:
    """Whoever reaches the webhook may ask; what they make up must not keep devices from others."""
    at = site(1, claim("a"))
    forged = allocated(claim("forged"), "n", "gpu-0")
    assert at.ask(forged) == "resourceclaim default/forged is not known to Drakkar's leader yet; try again"
    other = {**forged, "metadata": {**claim("a")["metadata"], "uid": "another"}}
    assert "is not known" in at.ask(other, claim("a"))
    assert not at.guard.pending()
    assert at.ask(allocated(claim("a"), "n", "gpu-0")) == ""


def test_one_claim_keeps_few_devices_from_others() -> None:
    at = site(12, claim("a"))
    said = [at.ask(allocated(claim("a"), "n", f"gpu-{n}")) for n in range(12)]
    assert said == [""] * 8 + ["resourceclaim default/a is being allocated in 8 ways; try again"] * 4
    # Asked again, the same counts once.
    same = site(12, claim("a"))
    assert [same.ask(allocated(claim("a"), "n", "gpu-0")) for _ in range(12)] == [""] * 12


def test_what_cannot_be_read_is_refused() -> None:
    at = site()
    assert "cannot be read" in at.ask({"metadata": {"name": "a"}, "status": {"allocation": 3}}, claim("a"))
    assert "cannot be read" in at.ask({"metadata": 7}, claim("a"))


def test_the_scheduler_opens_its_guard_and_tells_it_what_the_watch_shows() -> None:
    async def scenario() -> None:
        server = FakeServer()
        for kind, obj in (
            (NODE, node("n")),
            (DEVICECLASS, device_class()),
            (RESOURCESLICE, node_slice("n", 1)),
            *((RESOURCECLAIM, claim(name)) for name in ("theirs", "ours")),
        ):
            server.put(kind, obj)
        scheduler = Scheduler(Client(MemoryTransport(server.handle)), SystemClock(), guards=True)
        running = asyncio.create_task(scheduler.run())
        await asyncio.wait_for(scheduler.guard.opened.wait(), 60)
        before = server.get(RESOURCECLAIM, "theirs")
        wanted = {**allocated(before, "n", "gpu-0")}
        request = {"resource": {"resource": "resourceclaims"}, "subResource": "status"}
        assert scheduler.guard.judge({**request, "object": wanted, "oldObject": before}) == ""
        # The pod finds no device, until the other one's write turns out not to have come about.
        server.put(POD, pod("p", "ours"))
        await until(lambda: server.get(POD, "p")["status"].get("conditions"))
        assert not node_of(server, "p")
        server.put(RESOURCECLAIM, before)
        await until(lambda: node_of(server, "p"))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert not scheduler.guard.opened.is_set()

    asyncio.run(scenario())


def test_fences_do_not_concern_us() -> None:
    taint = {"key": "drakkar.dev/managed", "effect": "NoSchedule"}
    rule = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "drakkar-fence-gpu.example.com"},
        "spec": {"deviceSelector": {"driver": "gpu.example.com"}, "taint": taint},
    }

    def is_placed(*objects: dict[str, Any]) -> bool:
        state = cluster(node("n"), device_class(), claim("a"), *objects)
        return isinstance(decide(state, PodView.of(pod("p", "a"))), Placement)

    assert is_placed(node_slice("n", 1), rule)
    assert is_placed(node_slice("n", 1, taints=(taint,)))
    # Another key, or an effect by which pods are evicted, does.
    other = {**rule, "spec": {**rule["spec"], "taint": {**taint, "key": "drakkar.dev/other"}}}
    assert not is_placed(node_slice("n", 1), other)
    assert not is_placed(
        node_slice("n", 1), {**rule, "spec": {**rule["spec"], "taint": {**taint, "effect": "NoExecute"}}}
    )
    # The same rule may become a fence, and stop being one.
    state = cluster(node("n"), device_class(), claim("a"), node_slice("n", 1), other)
    state.set_taint_rule(msgspec.convert(rule, v1.DeviceTaintRule))
    assert isinstance(decide(state, PodView.of(pod("p", "a"))), Placement)
    assert [*state.fences] == ["drakkar-fence-gpu.example.com"]
    state.set_taint_rule(msgspec.convert(other, v1.DeviceTaintRule))
    assert not isinstance(decide(state, PodView.of(pod("p", "a"))), Placement)
    assert not state.fences
