"""The 64-chip story: a host dies, the job runs again on a healthy slice, whatever crashes on the way.

The controllers are the real ones; scheduler, driver and agents are a few lines each.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from drakkar.api.kinds import DEVICETAINTRULE, JOB, LEASE, NODE, POD, RESOURCECLAIM, RESOURCESLICE
from drakkar.client.clock import timestamp
from drakkar.client.writes import Delete
from drakkar.controllers.claims import Claims
from drakkar.controllers.garbage import Garbage
from drakkar.controllers.jobs import Jobs
from drakkar.controllers.nodeeviction import NodeEviction
from drakkar.controllers.nodelifecycle import NodeLifecycle
from drakkar.controllers.nodeloss import NodeLoss
from drakkar.controllers.tainteviction import TaintEviction
from tests.unit.controllers.objects import claim, job, lease, node
from tests.unit.controllers.world import Clock, Harness, World

FINALIZER = "resource.kubernetes.io/delete-protection"
HOSTS = [f"host-{number:02}" for number in range(16)]
#: 4x4 slices of four hosts each.
SLICES = {f"slice-{number}": HOSTS[4 * number : 4 * number + 4] for number in range(4)}
RUNNING = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def tolerations(seconds: int) -> list[dict[str, Any]]:
    """How long the pods stay on a node that is not heard of."""
    common = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
    return [{"key": f"node.kubernetes.io/{why}", **common} for why in ("unreachable", "not-ready")]


def build(world: World) -> list[Any]:
    clock = world.clock
    made: list[Any] = [
        Claims(world, clock),  # type: ignore[arg-type]
        TaintEviction(clock),
        Jobs(world, clock),  # type: ignore[arg-type]
        NodeLifecycle(world, clock),  # type: ignore[arg-type]
        NodeEviction(clock),
        NodeLoss(world, clock),  # type: ignore[arg-type]
        Garbage(world),  # type: ignore[arg-type]
    ]
    return made


class Fleet(World):
    """16 hosts, one claim for 16 chips, one job of 4 pods, and the parts around the controllers.

    ``taints``: whether the driver taints slices that have lost a host.
    """

    def __init__(self, *, taints: bool = True, **spec: Any) -> None:
        super().__init__(Clock())
        self.taints = taints
        self.dead: set[str] = set()
        for host in HOSTS:
            self.create(NODE, node(host))
            self.create(LEASE, lease(host))
        pool = {"name": "pool", "generation": 1, "resourceSliceCount": 1}
        body = {"driver": "drv", "pool": pool, "perDeviceNodeSelection": True, "devices": self._devices(set())}
        self.create(RESOURCESLICE, {"metadata": {"name": "s"}, "spec": body})
        self.create(RESOURCECLAIM, claim("chips"))
        template = job()["spec"]["template"]
        template["spec"] |= {
            "resourceClaims": [{"name": "chips", "resourceClaimName": "chips"}],
            "tolerations": tolerations(300 if taints else 20),
        }
        self.create(JOB, job(completionMode="Indexed", parallelism=4, completions=4, template=template, **spec))

    def step(self) -> bool:
        """Everything that scheduler, driver and agents would do now; whether there was anything."""
        before = self.revision
        self._driver()
        self._scheduler()
        self._agents()
        return self.revision != before

    def heartbeat(self) -> None:
        for host in HOSTS:
            if host not in self.dead:
                now = timestamp(self.clock.now, micro=True)
                self.update(LEASE, host, "kube-node-lease", lambda o, now=now: o["spec"].update(renewTime=now))

    def _driver(self) -> None:
        bad = {
            host
            for host in HOSTS
            if any(t["key"].endswith("unreachable") for t in self.read(NODE, host)["spec"].get("taints") or ())
        }
        devices = self._devices(bad if self.taints else set())
        if devices != self.read(RESOURCESLICE, "s", "")["spec"]["devices"]:
            self.update(RESOURCESLICE, "s", "", lambda s: s["spec"].update(devices=devices))

    def _devices(self, bad: set[str]) -> list[dict[str, Any]]:
        devices: list[dict[str, Any]] = []
        for name, hosts in SLICES.items():
            device: dict[str, Any] = {"name": name, "nodeSelector": _on(hosts)}
            if bad & set(hosts):
                key = "tpu.drakkar.dev/host-unreachable"
                device["taints"] = [{"key": key, "effect": "NoExecute", "timeAdded": timestamp(self.clock.now)}]
            devices.append(device)
        return devices

    def _scheduler(self) -> None:
        tainted = {d["name"] for d in self.read(RESOURCESLICE, "s", "")["spec"]["devices"] if d.get("taints")}
        tainted |= {rule["spec"]["deviceSelector"]["device"] for rule in self.all(DEVICETAINTRULE)}
        for pod in self.all(POD):
            name = pod["metadata"]["name"]
            if pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
                continue
            current = self.read(RESOURCECLAIM, "chips")
            allocation = current.get("status", {}).get("allocation")
            if allocation is None:
                chosen = next(s for s in SLICES if s not in tainted)
                self.update(RESOURCECLAIM, "chips", "default", lambda c, d=chosen: _allocate(c, d))
            else:
                chosen = allocation["devices"]["results"][0]["device"]
            if chosen in tainted:
                continue
            busy = {other["spec"].get("nodeName") for other in self.all(POD)}
            fit = (host for host in SLICES[chosen] if not self.read(NODE, host)["spec"].get("taints"))
            host = next((host for host in fit if host not in busy), None)
            if host is None:
                continue
            consumer = {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}
            self.update(
                RESOURCECLAIM,
                "chips",
                "default",
                lambda c, r=consumer: c["status"].update(reservedFor=[*c["status"].get("reservedFor", ()), r]),
            )
            self.update(POD, name, "default", lambda p, h=host: p["spec"].update(nodeName=h))

    def _agents(self) -> None:
        for pod in self.all(POD):
            host, name = pod["spec"].get("nodeName"), pod["metadata"]["name"]
            if not host or host in self.dead:
                continue
            phase = (pod.get("status") or {}).get("phase")
            if pod["metadata"].get("deletionTimestamp"):
                if phase != "Failed":
                    self.update(POD, name, "default", lambda p: p["status"].update(phase="Failed"))
                self.delete(Delete(POD, "default", name, uid=pod["metadata"]["uid"], grace=0))
            elif phase is None:
                ready = [{"type": "Ready", "status": "True"}]
                self.update(
                    POD, name, "default", lambda p, r=ready: p.update(status={"phase": "Running", "conditions": r})
                )

    def hosts_in_use(self) -> list[str]:
        return sorted(
            pod["spec"]["nodeName"]
            for pod in self.all(POD)
            if (pod.get("status") or {}).get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
        )


def _on(hosts: list[str]) -> dict[str, Any]:
    wanted = [{"key": "metadata.name", "operator": "In", "values": [host]} for host in hosts]
    return {"nodeSelectorTerms": [{"matchFields": [each]} for each in wanted]}


def _allocate(body: dict[str, Any], device: str) -> None:
    body["metadata"]["finalizers"] = [FINALIZER]
    result = {"request": "r", "driver": "drv", "pool": "pool", "device": device}
    body["status"] = {"allocation": {"devices": {"results": [result]}, "nodeSelector": _on(SLICES[device])}}


POLICY = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}


TOLD = {"podFailurePolicy": POLICY, "backoffLimit": 0}


@pytest.mark.parametrize(("spec", "taints"), [(TOLD, True), ({}, True), (TOLD, False)])
@pytest.mark.parametrize("seed", [None, *range(8)])
def test_a_host_dies_and_the_job_runs_again(seed: int | None, spec: dict[str, Any], taints: bool) -> None:
    """``taints``: by its driver; of a silent driver's devices the controllers find out by themselves."""
    world = Fleet(taints=taints, **spec)
    harness = Harness(world, build)
    rng = random.Random(seed)

    def settle() -> None:
        while True:
            if seed is None:
                harness.settle()
            else:
                harness.settle_chaos(rng, crashes=rng.randint(0, 6))
            if not world.step():
                return

    settle()
    assert world.hosts_in_use() == SLICES["slice-0"]
    first = {pod["metadata"]["uid"] for pod in world.all(POD)}
    harness.advance(10, settle)
    world.dead.add("host-01")
    died = world.clock.now
    while world.hosts_in_use() != SLICES["slice-1"] or first & {pod["metadata"]["uid"] for pod in world.all(POD)}:
        harness.advance(10, settle)
        world.heartbeat()
        # Each crash may cost one more grace, and some strike in this stretch.
        assert world.clock.now < died + ((61 if taints else 91) if seed is None else 600)
    harness.advance(1, settle)
    chips = world.read(RESOURCECLAIM, "chips")
    (result,) = chips["status"]["allocation"]["devices"]["results"]
    assert result["device"] == "slice-1"
    assert len(chips["status"]["reservedFor"]) == 4
    state = world.read(JOB, "j")["status"]
    assert state["active"] == state["ready"] == 4
    assert state.get("failed", 0) == (0 if spec else 4)
    assert not any(entry["type"] in ("Failed", "FailureTarget") for entry in state.get("conditions") or ())
    assert len(world.all(DEVICETAINTRULE)) == (0 if taints else 1)
    # Never were two slices held, nor pods on both.
    for plural, _, new in world.history:
        if plural == "resourceclaims" and new is not None and new["status"].get("reservedFor"):
            assert new["status"].get("allocation"), "reserved without an allocation"
