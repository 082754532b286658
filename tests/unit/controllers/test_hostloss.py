"""Devices over several hosts whose driver says nothing when one of them is lost (`drakkar.controllers.hostloss`)."""

from __future__ import annotations

from typing import Any

import pytest

from drakkar.api.kinds import DEVICETAINTRULE, LEASE, NODE, POD, RESOURCECLAIM, RESOURCESLICE, Kind
from drakkar.api.names import TAINT_HOST_LOST
from drakkar.client.clock import timestamp
from drakkar.client.writes import Create, Delete, Record
from drakkar.controllers.hostloss import PATIENCE, PAUSE
from drakkar.controllers.nodelifecycle import NodeLifecycle
from drakkar.controllers.nodeloss import NodeLoss
from drakkar.controllers.tainteviction import TaintEviction
from tests.unit.controllers.objects import claim, lease, node, pod
from tests.unit.controllers.world import Clock, Harness, World, failure

HOSTS = ["h0", "h1", "h2", "h3"]
DEAD = "h3"
GRACE = 40.0
CLAIMS = [{"name": "x", "resourceClaimName": "c"}]
PER_NODE = {"drakkar.dev/pods-per-node": "1"}


def by_name(*hosts: str) -> dict[str, Any]:
    """A term for each: a field selector takes one value."""
    wanted = [{"key": "metadata.name", "operator": "In", "values": [host]} for host in hosts]
    return {"nodeSelectorTerms": [{"matchFields": [each]} for each in wanted]}


def by_label(key: str, *values: str) -> dict[str, Any]:
    wanted = {"key": key, "operator": "In", "values": list(values)}
    return {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}


class Site(World):
    """A claim over four hosts, a pod of it on each; then the last host's pod is replaced by one that waits."""

    def __init__(
        self,
        selector: dict[str, Any] | None = None,
        *,
        nodes: int = 8,
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = PER_NODE,
        tolerations: Any = (),
        published: bool = True,
    ) -> None:
        super().__init__(Clock())
        self.dead: set[str] = set()
        self.hosts = [f"h{number}" for number in range(nodes)]
        for host in self.hosts:
            made = node(host)
            own = labels if labels is not None and host in HOSTS else {}
            made["metadata"]["labels"] = {"kubernetes.io/hostname": host, **own}
            self.create(NODE, made)
            self.create(LEASE, lease(host))
        selector = by_name(*HOSTS) if selector is None else selector
        pods = [self.create(POD, pod(f"p{number}", node=host, claims=CLAIMS)) for number, host in enumerate(HOSTS)]
        body = claim("c", allocated=True, reserved=[(p["metadata"]["name"], p["metadata"]["uid"]) for p in pods])
        body["status"]["allocation"]["nodeSelector"] = selector
        body["status"]["allocation"]["devices"]["results"][0]["tolerations"] = list(tolerations)
        body["metadata"]["annotations"] = dict(annotations or {})
        self.create(RESOURCECLAIM, body)
        if published:
            pool = {"name": "pool", "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": "drv", "pool": pool, "nodeSelector": selector, "devices": [{"name": "d"}]}
            self.create(RESOURCESLICE, {"metadata": {"name": "s"}, "spec": spec})

    def beat(self) -> None:
        for host in self.hosts:
            if host not in self.dead and self.read(LEASE, host, "kube-node-lease"):
                now = timestamp(self.clock.now, micro=True)
                self.update(LEASE, host, "kube-node-lease", lambda o, now=now: o["spec"].update(renewTime=now))

    def pass_time(self, harness: Harness, seconds: float) -> None:
        """Time in which the living nodes are heard of."""
        end = self.clock.now + seconds
        while self.clock.now < end - 1e-6:
            self.beat()
            harness.advance(min(10.0, end - self.clock.now))

    def replace(self, name: str = "p3", **spec: Any) -> None:
        """The pod is gone and its successor waits."""
        uid = self.read(POD, name)["metadata"]["uid"]
        self.delete(Delete(POD, "default", name, grace=0))
        self.update(
            RESOURCECLAIM,
            "c",
            "default",
            lambda c: c["status"].update(reservedFor=[r for r in c["status"]["reservedFor"] if r["uid"] != uid]),
        )
        self.create(POD, pod(f"{name}-again", claims=CLAIMS, **spec))

    def lose(self, *hosts: str) -> None:
        self.dead |= set(hosts)

    def return_(self, host: str) -> None:
        self.dead.discard(host)
        self.update(NODE, host, "", lambda n: n["status"]["conditions"][0].update(status="True"))
        self.beat()

    def rules(self) -> list[dict[str, Any]]:
        return self.all(DEVICETAINTRULE)

    def leaving(self) -> list[str]:
        return sorted(p["metadata"]["name"] for p in self.all(POD) if p["metadata"].get("deletionTimestamp"))


def build(world: World, **settings: Any) -> list[Any]:
    return [NodeLifecycle(world, world.clock), NodeLoss(world, world.clock, **settings)]  # type: ignore[arg-type]


def stuck(site: Site, **settings: Any) -> Harness:
    """The last host is lost, and its pod's successor waits."""
    harness = Harness(site, lambda world: build(world, **settings))
    harness.settle()
    site.lose(DEAD)
    site.pass_time(harness, GRACE + 10)
    assert site.read(NODE, DEAD)["status"]["conditions"][0]["status"] == "Unknown"
    site.replace()
    return harness


def test_the_device_is_tainted_when_nobody_else_does_it() -> None:
    site = Site()
    harness = stuck(site)
    site.pass_time(harness, PATIENCE - 0.1)
    assert site.rules() == []
    site.pass_time(harness, 0.2)
    (rule,) = site.rules()
    assert rule["metadata"]["labels"] == {TAINT_HOST_LOST: "true"}
    assert rule["metadata"]["annotations"] == {"drakkar.dev/lost-host": DEAD}
    assert rule["spec"] == {
        "deviceSelector": {"driver": "drv", "pool": "pool", "device": "d"},
        "taint": {"key": "drakkar.dev/host-lost", "value": DEAD, "effect": "NoExecute"},
    }
    (event,) = [event for event in site.events if event.reason == "HostLost"]
    assert event.obj.metadata.name == "c"
    assert f"lost host {DEAD} of device d (driver drv, pool pool)" in event.message
    assert rule["metadata"]["name"] in event.message
    # Evicting is the work of whoever looks after tainted devices.
    assert site.leaving() == []
    site.pass_time(harness, 300)
    assert len(site.rules()) == 1


def test_with_eviction_all_holders_go_and_the_rule_stays_as_long_as_the_host_is_away() -> None:
    site = Site()
    harness = Harness(site, lambda world: [*build(world), TaintEviction(world.clock)])
    site.lose(DEAD)
    site.pass_time(harness, GRACE + 10)
    site.replace()
    site.pass_time(harness, PATIENCE + 1)
    assert site.leaving() == ["p0", "p1", "p2"]
    for name in ("p0", "p1", "p2"):
        site.delete(Delete(POD, "default", name, grace=0))
    site.update(RESOURCECLAIM, "c", "default", lambda c: c.update(status={}))
    site.pass_time(harness, 600)
    assert len(site.rules()) == 1
    site.return_(DEAD)
    site.pass_time(harness, GRACE / 2 - 1)
    assert len(site.rules()) == 1
    site.pass_time(harness, 2)
    assert site.rules() == []


def test_a_node_that_comes_and_goes_gets_its_devices_back_only_when_it_stays() -> None:
    site = Site()
    harness = stuck(site)
    site.pass_time(harness, PATIENCE + 1)
    for _ in range(5):
        site.return_(DEAD)
        site.pass_time(harness, GRACE / 2 - 5)
        site.lose(DEAD)
        site.update(NODE, DEAD, "", lambda n: n["status"]["conditions"][0].update(status="Unknown"))
        site.pass_time(harness, GRACE + 10)
        assert len(site.rules()) == 1


NOBODY = {"key": TAINT_HOST_LOST, "operator": "Exists", "effect": "NoExecute"}


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: Site(by_name(DEAD)), id="a device of one node"),
        pytest.param(lambda: Site({"nodeSelectorTerms": []}), id="a device of no node"),
        pytest.param(lambda: Site(by_name(*HOSTS, "h4")), id="a host is left"),
        pytest.param(lambda: Site(by_name("h0", "h1", "h2", "h4")), id="the lost host is none of its hosts"),
        pytest.param(lambda: Site(by_label("rack", "r"), labels={"rack": "other"}), id="labels that no host has"),
        pytest.param(lambda: Site(tolerations=[NOBODY]), id="a request that tolerates the loss"),
        pytest.param(lambda: Site(annotations={"drakkar.dev/pods-per-node": "2"}), id="hosts take another pod"),
    ],
)
def test_what_is_no_loss_of_the_device(make: Any) -> None:
    site = make()
    harness = stuck(site)
    site.pass_time(harness, 120)
    assert site.rules() == []


def test_devices_for_all_nodes_are_not_concerned() -> None:
    site = Site()
    site.update(RESOURCECLAIM, "c", "default", lambda c: c["status"]["allocation"].pop("nodeSelector"))
    harness = stuck(site)
    site.pass_time(harness, 120)
    assert site.rules() == []


def test_nobody_waits() -> None:
    """The pod of the lost host tolerates that, or its owner is content with fewer."""
    site = Site()
    harness = Harness(site, build)
    site.lose(DEAD)
    site.pass_time(harness, 400)
    assert site.rules() == []
    site.replace()
    site.delete(Delete(POD, "default", "p3-again", grace=0))
    site.pass_time(harness, 400)
    assert site.rules() == []


def test_a_pod_behind_somebody_elses_gate_does_not_wait_yet() -> None:
    site = Site()
    harness = Harness(site, build)
    site.lose(DEAD)
    site.pass_time(harness, GRACE + 10)
    site.replace(schedulingGates=[{"name": "example.com/later"}])
    site.pass_time(harness, 60)
    assert site.rules() == []
    site.update(
        POD, "p3-again", "default", lambda p: p["spec"].update(schedulingGates=[{"name": "drakkar.dev/allocation"}])
    )
    site.pass_time(harness, PATIENCE + 1)
    assert len(site.rules()) == 1


def test_pods_that_share_hosts_are_no_slice() -> None:
    """Without a limit per node two pods on one host show that any host of the device will do."""
    site = Site(annotations=None)
    site.update(POD, "p2", "default", lambda p: p["spec"].update(nodeName="h1"))
    harness = stuck(site)
    site.pass_time(harness, 120)
    assert site.rules() == []


@pytest.mark.parametrize(
    "selector",
    [
        by_label("kubernetes.io/hostname", *HOSTS),
        by_label("example.com/slice", "one"),
        by_name(*HOSTS),
    ],
)
@pytest.mark.parametrize("annotations", [None, PER_NODE])
def test_hosts_by_name_by_hostname_and_by_label(selector: dict[str, Any], annotations: dict[str, str] | None) -> None:
    site = Site(selector, labels={"example.com/slice": "one"}, annotations=annotations)
    harness = stuck(site)
    site.pass_time(harness, PATIENCE + 1)
    assert len(site.rules()) == 1


@pytest.mark.parametrize("selector", [by_name(*HOSTS), by_label("kubernetes.io/hostname", *HOSTS)])
def test_a_node_that_is_gone_for_good(selector: dict[str, Any]) -> None:
    """Its rule goes only with the device, and not before the claim has let go of it."""
    site = Site(selector)
    harness = Harness(site, build)
    site.lose(DEAD)
    site.delete(Delete(NODE, "", DEAD))
    site.replace()
    site.pass_time(harness, GRACE - 1)
    assert site.rules() == []
    site.pass_time(harness, PATIENCE + 2)
    assert len(site.rules()) == 1
    site.delete(Delete(RESOURCESLICE, "", "s"))
    site.pass_time(harness, 2 * PAUSE)
    assert len(site.rules()) == 1
    site.update(RESOURCECLAIM, "c", "default", lambda c: c.update(status={}))
    site.pass_time(harness, 2 * PAUSE)
    assert site.rules() == []


def test_a_node_that_is_gone_and_was_not_named_like_its_host() -> None:
    """While it was there it was known by its label; afterwards by nothing."""
    site = Site(by_label("kubernetes.io/hostname", "one", "two", "three", "four"))
    for host, hostname in zip(HOSTS, ("one", "two", "three", "four"), strict=True):
        site.update(NODE, host, "", lambda n, h=hostname: n["metadata"]["labels"].update({"kubernetes.io/hostname": h}))
    harness = stuck(site)
    site.pass_time(harness, PATIENCE + 1)
    site.delete(Delete(NODE, "", DEAD))
    site.update(RESOURCECLAIM, "c", "default", lambda c: c.update(status={}))
    site.pass_time(harness, 4 * PAUSE)
    assert [rule["metadata"]["annotations"]["drakkar.dev/lost-host"] for rule in site.rules()] == [DEAD]
    site.update(RESOURCESLICE, "s", "", lambda s: s["spec"].update(nodeSelector=by_name("h0", "h1")))
    site.pass_time(harness, 2 * PAUSE)
    assert site.rules() == []


def test_a_rule_of_a_device_that_has_other_hosts_now() -> None:
    site = Site()
    harness = stuck(site)
    site.pass_time(harness, PATIENCE + 1)
    site.update(RESOURCESLICE, "s", "", lambda s: s["spec"].update(nodeSelector=by_name("h0", "h1", "h2", "h5")))
    site.pass_time(harness, 2 * PAUSE)
    assert len(site.rules()) == 1
    site.update(RESOURCECLAIM, "c", "default", lambda c: c.update(status={}))
    site.pass_time(harness, 2 * PAUSE)
    assert site.rules() == []


def test_a_publisher_that_died_with_its_slices() -> None:
    site = Site(published=False)
    harness = stuck(site)
    site.pass_time(harness, PATIENCE + 1)
    assert len(site.rules()) == 1


def test_only_the_device_of_the_host_is_tainted() -> None:
    """A claim with a slice, a channel for everybody, a disk of one node, and a look at somebody else's slice."""
    site = Site()
    entry = {"request": "r", "driver": "drv"}
    others = [
        {**entry, "pool": "everywhere", "device": "channel"},
        {**entry, "pool": "h0", "device": "disk"},
        {**entry, "pool": "pool", "device": "other", "adminAccess": True},
    ]
    site.update(RESOURCECLAIM, "c", "default", lambda c: c["status"]["allocation"]["devices"]["results"].extend(others))
    for name, where in (("everywhere", {"allNodes": True}), ("h0", {"nodeName": "h0"})):
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        devices = [{"name": "channel" if name == "everywhere" else "disk"}]
        spec = {"driver": "drv", "pool": pool, "devices": devices, **where}
        site.create(RESOURCESLICE, {"metadata": {"name": name}, "spec": spec})
    harness = stuck(site)
    site.pass_time(harness, PATIENCE + 1)
    assert [rule["spec"]["deviceSelector"]["device"] for rule in site.rules()] == ["d"]


def test_hosts_that_devices_name_one_by_one() -> None:
    site = Site()
    selector = site.read(RESOURCESLICE, "s", "")["spec"].pop("nodeSelector")
    devices = [{"name": "d", "nodeSelector": selector}, {"name": "e", "nodeSelector": by_name("h4", "h5")}]
    site.update(RESOURCESLICE, "s", "", lambda s: s["spec"].update(perDeviceNodeSelection=True, devices=devices))
    harness = stuck(site)
    site.pass_time(harness, PATIENCE + 1)
    assert len(site.rules()) == 1


def test_a_driver_that_taints_is_left_to_itself() -> None:
    site = Site()
    harness = stuck(site)
    site.pass_time(harness, PATIENCE - 1)
    taints = [{"key": "drv/host", "effect": "NoExecute"}]
    site.update(RESOURCESLICE, "s", "", lambda s: s["spec"].update(devices=[{"name": "d", "taints": taints}]))
    site.pass_time(harness, 300)
    assert site.rules() == []


def test_a_rule_of_somebody_else_does_it_as_well() -> None:
    site = Site()
    spec = {"deviceSelector": {"driver": "drv"}, "taint": {"key": "k", "effect": "NoExecute"}}
    site.create(DEVICETAINTRULE, {"metadata": {"name": "theirs"}, "spec": spec})
    harness = stuck(site)
    site.pass_time(harness, 300)
    site.return_(DEAD)
    site.pass_time(harness, 300)
    assert [rule["metadata"]["name"] for rule in site.rules()] == ["theirs"]


def test_a_need_that_passes_is_forgotten() -> None:
    """A host is free for a moment, again and again: the patience begins anew."""
    site = Site(by_name(*HOSTS, "h4"))
    site.create(POD, pod("p4", node="h4", claims=CLAIMS))
    harness = stuck(site)
    for number in range(6):
        site.pass_time(harness, PATIENCE - 2)
        site.delete(Delete(POD, "default", "p4", grace=0))
        harness.settle()
        site.create(POD, pod("p4", node="h4", claims=CLAIMS))
        assert site.rules() == [], number
    site.pass_time(harness, PATIENCE + 1)
    assert len(site.rules()) == 1


def test_most_of_the_zone_is_not_ready() -> None:
    """Five of eight: more likely the network than the nodes. With the nodes comes the work."""
    site = Site()
    harness = Harness(site, build)
    site.lose(DEAD, "h4", "h5", "h6", "h7")
    site.pass_time(harness, GRACE + 10)
    site.replace()
    site.pass_time(harness, 300)
    assert site.rules() == []
    (event,) = [event for event in site.events if event.reason == "HostLost"]
    assert "most nodes of the cluster are not ready" in event.message
    site.return_("h7")
    site.pass_time(harness, PAUSE + PATIENCE + 1)
    assert len(site.rules()) == 1


def test_zones_are_judged_by_themselves() -> None:
    site = Site(nodes=12)
    for number, host in enumerate(site.hosts):
        zone = "a" if number < 8 else "b"
        site.update(
            NODE, host, "", lambda n, z=zone: n["metadata"]["labels"].update({"topology.kubernetes.io/zone": z})
        )
    harness = Harness(site, build)
    site.lose(DEAD, *site.hosts[8:])
    site.pass_time(harness, GRACE + 10)
    site.replace()
    site.pass_time(harness, PATIENCE + 1)
    assert len(site.rules()) == 1


def test_out_of_service_needs_no_silence() -> None:
    site = Site()
    harness = stuck(site, by_silence=False)
    site.pass_time(harness, 300)
    assert site.rules() == []
    mark = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}
    site.update(NODE, DEAD, "", lambda n: n["spec"].update(taints=[mark]))
    site.pass_time(harness, PATIENCE + 1)
    assert len(site.rules()) == 1
    site.return_(DEAD)
    site.pass_time(harness, 100)
    assert len(site.rules()) == 1
    site.update(NODE, DEAD, "", lambda n: n["spec"].update(taints=[]))
    site.pass_time(harness, GRACE / 2 + 1)
    assert site.rules() == []


@pytest.mark.parametrize("crash_after", [0, 1, 2])
def test_killed_between_the_writes(crash_after: int) -> None:
    """Two devices that lost a host: whatever was written, all holders are evicted and the claim is done with."""
    site = Site()
    second = {"request": "q", "driver": "drv", "pool": "pool", "device": "e"}
    site.update(RESOURCECLAIM, "c", "default", lambda c: c["status"]["allocation"]["devices"]["results"].append(second))
    site.update(RESOURCESLICE, "s", "", lambda s: s["spec"].update(devices=[{"name": "d"}, {"name": "e"}]))
    harness = Harness(site, lambda world: [*build(world), TaintEviction(world.clock)])
    site.lose(DEAD)
    site.pass_time(harness, GRACE + 10)
    site.replace()
    harness.settle()
    site.clock.now += PATIENCE
    site.deliver()
    harness.queues[1].add("claim:default/c")
    writes = harness.work(1, "claim:default/c", crash_after=crash_after)
    assert [type(write) for write in writes] == [Create, Create, Record]
    assert len(site.rules()) == min(crash_after, 2)
    site.pass_time(harness, GRACE + PATIENCE + 10)
    assert site.leaving() == ["p0", "p1", "p2"]


def test_two_replicas_write_one_rule() -> None:
    site = Site()
    harness = Harness(site, lambda world: [*build(world), NodeLoss(world, world.clock)])  # type: ignore[arg-type]
    site.lose(DEAD)
    site.pass_time(harness, GRACE + 10)
    site.replace()
    harness.settle()
    site.clock.now += PATIENCE
    # Both decide on the same old state.
    decided = [harness.reconcile(number, "claim:default/c") for number in (1, 2)]
    assert [type(write) for write in decided[0]] == [type(write) for write in decided[1]] == [Create, Record]
    assert decided[0][0].obj == decided[1][0].obj
    site.pass_time(harness, 60)
    assert len(site.rules()) == 1


class Old(Site):
    """A server without DeviceTaintRules."""

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Any:
        if kind is DEVICETAINTRULE:
            raise failure(404, "NotFound", "the server could not find the requested resource")
        return await super().get(kind, name, namespace)


def test_a_server_without_rules_has_the_holders_evicted_once(caplog: pytest.LogCaptureFixture) -> None:
    site = Old()
    harness = stuck(site)
    site.pass_time(harness, PATIENCE + 1)
    assert site.rules() == []
    assert site.leaving() == ["p0", "p1", "p2"]
    assert site.read(POD, "p0")["status"]["conditions"][0]["type"] == "DisruptionTarget"
    assert caplog.text.count("this server has no DeviceTaintRules") == 1
    # The same device again, with new holders: evicting them would lead nowhere.
    for name in ("p0", "p1", "p2"):
        site.delete(Delete(POD, "default", name, grace=0))
        site.create(POD, pod(f"{name}-again", node=HOSTS[int(name[1])], claims=CLAIMS))
    site.pass_time(harness, 300)
    assert site.leaving() == []
    # The host was back, and is lost again.
    site.return_(DEAD)
    site.pass_time(harness, 30)
    site.lose(DEAD)
    site.pass_time(harness, GRACE + PATIENCE + 10)
    assert site.leaving() == ["p0-again", "p1-again", "p2-again"]
