"""Both schedulers at once on the same devices, on upstream's kube-apiserver with its controller manager.

Ours binds the pods with ``schedulerName: drakkar``, kube-scheduler all others. Together they want 1.2 times what there
is. With the webhook no device is held twice at any revision; a driver with a fence is ours alone.
``./do upstream`` builds the components and runs this.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import math
import random
import re
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from drakkar.api.kinds import (
    DEVICECLASS,
    NAMESPACE,
    NODE,
    POD,
    RESOURCECLAIM,
    RESOURCECLAIMTEMPLATE,
    RESOURCESLICE,
    Kind,
)
from drakkar.api.names import SCHEDULING_GATE
from drakkar.api.objects import condition, pod_node
from drakkar.api.resource.v1 import ResourceClaim, ResourceSlice
from drakkar.apiserver.tls import open_pki
from drakkar.cli import main
from drakkar.cli.target import connect
from drakkar.client import Client
from tests.support import chart
from tests.support.kubecluster import KubeCluster, kube_cluster
from tests.support.plane import Part
from tests.support.revisions import Revisions
from tests.support.upstream import Component
from tests.unit.deploy.test_manifests import objects
from tests.unit.scheduler.build import node
from tests.unit.scheduler.test_webhook import documented

pytestmark = [pytest.mark.upstream, pytest.mark.timeout(600)]

WEBHOOK = Kind(
    "admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", False
)
#: What its ServiceAccount is called where the manifests are applied.
OUR_USER = "system:serviceaccount:drakkar-system:drakkar-scheduler"
OURS, THEIRS = "drakkar", "default-scheduler"
NODES = ("a", "b", "c", "d", "e", "f")
SEEDS = range(10)
#: Each side wants this part of what there is.
DEMAND = 0.6


class Ours(Part):
    """``drakkar scheduler`` with the webhook, as a child process with the rights of its manifest."""

    def __init__(self, cluster: KubeCluster, mode: str, *more: str, pki: Path | None = None, at: str = "127.0.0.1"):
        pki = pki or cluster.pki
        certificate = ("--tls-cert", str(pki / "server.crt"), "--tls-key", str(pki / "server.key"))
        user = str(cluster.kubeconfig(OUR_USER, "system:serviceaccounts"))
        super().__init__(
            *("scheduler", "--kubeconfig", user, "--mode", mode, "--webhook", f"{at}:0", *certificate),
            *("--leader-elect-resource-namespace", "drakkar-system", *more),
        )

    def __exit__(self, *error: Any) -> None:
        # Hands its Lease over to the next test's.
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        super().__exit__(*error)

    async def url(self) -> str:
        return await self._told(r"admission webhook at (\S+)/")

    async def _told(self, pattern: str) -> str:
        async with asyncio.timeout(90):
            while (found := re.search(pattern, self.output)) is None:
                await asyncio.sleep(0.05)
        return found[1]

    async def metric(self, sample: str) -> float:
        """The value of one sample, labels included."""
        endpoint = await self._told(r"health and metrics at (\S+)")

        def read() -> str:
            with urllib.request.urlopen(f"{endpoint}/metrics", timeout=60) as answer:
                return answer.read().decode()

        (line,) = [line for line in (await asyncio.to_thread(read)).splitlines() if line.startswith(f"{sample} ")]
        return float(line.split()[-1])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeCluster]:
    # The server reaches Services at their endpoints, because nothing else leads to them here.
    folder = tmp_path_factory.mktemp("kube")
    with kube_cluster(folder, "--enable-aggregator-routing=true") as made, made.controller_manager():
        asyncio.run(_furnish(made))
        yield made


async def _furnish(cluster: KubeCluster) -> None:
    """Nodes without kubelets, and our account with the rights of the plain manifests."""
    rights = [obj for obj in objects("scheduler") if obj["kind"] in RBAC or obj["kind"] == "Namespace"]
    cluster.kubectl().run("apply", "-f", "-", stdin=yaml.safe_dump_all(rights))
    async with connect(cluster.kubeconfig()) as admin:
        for name in NODES:
            made = node(name, cpu="64", memory="64Gi", pods="500")
            del made["metadata"]["uid"]
            await admin.create(NODE, made)
            status = {**made["status"], "capacity": made["status"]["allocatable"]}
            await admin.patch(NODE, name, None, {"status": status}, subresource="status")


RBAC = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ServiceAccount")


@contextmanager
def kube_scheduler(cluster: KubeCluster) -> Iterator[Component]:
    """kube-scheduler that tries again soon after it was refused."""
    with cluster.scheduler(configuration={"podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 2}) as component:
        yield component
        component.check()


async def guarded(admin: Client, cluster: KubeCluster, ours: Ours) -> None:
    """The webhook's configuration of the how-to, for all drivers, in force."""
    configuration = documented(WEBHOOK.kind)
    (hook,) = configuration["webhooks"]
    hook["matchConditions"] = [c for c in hook["matchConditions"] if c["name"] != "drivers"]
    authority = base64.b64encode((cluster.pki / "ca.crt").read_bytes()).decode()
    hook["clientConfig"] = {"url": f"{await ours.url()}/guard", "caBundle": authority}
    await admin.create(WEBHOOK, configuration)


@dataclass
class Fleet:
    """Devices of one seed's own drivers: whole ones, partitions that share counters, and shares of a capacity."""

    seed: int
    #: Kind and pool → units that there are.
    free: Counter[tuple[str, str]] = field(default_factory=Counter)
    slices: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in NODES:
            self._publish("whole", name, 4, [{"name": f"gpu-{i}"} for i in range(4)])
            sizes = {"quarter": 2, "half": 4, "all": 8}
            parts = [
                {
                    "name": f"{size}-{i}",
                    "attributes": {"size": {"string": size}},
                    "consumesCounters": [{"counterSet": "card", "counters": {"memory": {"value": str(memory)}}}],
                }
                for size, memory in sizes.items()
                for i in range(8 // memory)
            ]
            self._publish("part", name, 8, parts, counters=[{"name": "card", "counters": {"memory": {"value": "8"}}}])
            policy = {"default": "1", "validRange": {"min": "1", "step": "1"}}
            capacity = {"bandwidth": {"value": "8", "requestPolicy": policy}}
            nic = {"name": "nic", "allowMultipleAllocations": True, "capacity": capacity}
            self._publish("share", name, 8, [nic])

    def driver(self, kind: str) -> str:
        return f"{kind}-{self.seed}.example.com"

    def _publish(
        self,
        kind: str,
        host: str,
        units: int,
        devices: list[dict[str, Any]],
        counters: list[dict[str, Any]] | None = None,
    ) -> None:
        pool = {"name": f"{host}-{kind}-{self.seed}", "generation": 1, "resourceSliceCount": 2 if counters else 1}
        self.free[kind, str(pool["name"])] = units
        spec = {"driver": self.driver(kind), "nodeName": host, "pool": pool}
        bodies: list[dict[str, Any]] = [{"devices": devices}, *([{"sharedCounters": counters}] if counters else [])]
        self.slices += [
            {
                "apiVersion": RESOURCESLICE.api_version,
                "kind": RESOURCESLICE.kind,
                "metadata": {"name": f"{pool['name']}-{number}"},
                "spec": {**spec, **body},
            }
            for number, body in enumerate(bodies)
        ]

    def classes(self) -> list[dict[str, Any]]:
        return [
            {
                "apiVersion": DEVICECLASS.api_version,
                "kind": DEVICECLASS.kind,
                "metadata": {"name": f"{kind}-{self.seed}"},
                "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{self.driver(kind)}'"}}]},
            }
            for kind in ("whole", "part", "share")
        ]

    def request(self, kind: str, units: int) -> dict[str, Any]:
        """The body of a request for so many units."""
        body: dict[str, Any] = {"deviceClassName": f"{kind}-{self.seed}"}
        if kind == "whole":
            return {**body, "count": units}
        if kind == "share":
            return {**body, "capacity": {"requests": {"bandwidth": str(units)}}}
        size = {2: "quarter", 4: "half", 8: "all"}[units]
        return {
            **body,
            "selectors": [{"cel": {"expression": f"device.attributes['{self.driver(kind)}'].size == '{size}'"}}],
        }

    def units(self, found: ResourceClaim) -> tuple[str, str, int]:
        """Kind, pool and units of an allocated claim."""
        assert found.status.allocation is not None
        results = found.status.allocation.devices.results or []
        kind = results[0].driver.partition("-")[0]
        if kind == "whole":
            return kind, results[0].pool, len(results)
        if kind == "share":
            return kind, results[0].pool, int((results[0].consumedCapacity or {})["bandwidth"])
        return kind, results[0].pool, {"quarter": 2, "half": 4, "all": 8}[results[0].device.partition("-")[0]]


#: Kind → units that a claim may want, the usual ones more often.
SIZES = {"whole": (1, 1, 2), "part": (2, 2, 2, 4, 8), "share": (1, 2, 3)}


def wishes(fleet: Fleet, rng: random.Random) -> list[tuple[str, str, int]]:
    """Scheduler, kind and units of every pod, in an order of its own."""
    found: list[tuple[str, str, int]] = []
    for kind in SIZES:
        for scheduler in (OURS, THEIRS):
            left = math.ceil(DEMAND * sum(units for (other, _), units in fleet.free.items() if other == kind))
            while left >= min(SIZES[kind]):
                units = rng.choice([size for size in SIZES[kind] if size <= left])
                left -= units
                found.append((scheduler, kind, units))
    rng.shuffle(found)
    return found


def pods_of(fleet: Fleet, namespace: str, wanted: list[tuple[str, str, int]]) -> Iterator[tuple[Kind, dict[str, Any]]]:
    """The template of every wish, and its pod."""
    for kind, units in sorted({(kind, units) for _, kind, units in wanted}):
        requests = [{"name": "r", "exactly": fleet.request(kind, units)}]
        yield (
            RESOURCECLAIMTEMPLATE,
            {
                "metadata": {"name": f"{kind}-{units}", "namespace": namespace},
                "spec": {"spec": {"devices": {"requests": requests}}},
            },
        )
    for number, (scheduler, kind, units) in enumerate(wanted):
        yield POD, pod_from(f"p{number:03}", namespace, scheduler, f"{kind}-{units}")


def pod_from(name: str, namespace: str, scheduler: str, template: str, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "schedulerName": scheduler,
            "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "d"}]}}],
            "resourceClaims": [{"name": "d", "resourceClaimTemplateName": template}],
            **spec,
        },
    }


async def make(admin: Client, *objects: tuple[Kind, dict[str, Any]]) -> None:
    """Creates objects, some at a time."""
    turn = asyncio.Semaphore(8)

    async def one(kind: Kind, obj: dict[str, Any]) -> None:
        async with turn:
            body = {"apiVersion": kind.api_version, "kind": kind.kind, **obj}
            await admin.create(kind, body, obj["metadata"].get("namespace"))

    await asyncio.gather(*(one(*entry) for entry in objects))


async def namespace_for(admin: Client, name: str) -> None:
    await make(admin, (NAMESPACE, {"metadata": {"name": name}}))
    # Pods are refused before the namespace has its service account.
    await until(lambda: exists(admin, name))


async def exists(admin: Client, namespace: str) -> bool:
    account = Kind("", "v1", "ServiceAccount", "serviceaccounts", True)
    return bool((await admin.list(account, namespace)).items)


async def until(holds: Any, timeout: float = 120) -> Any:
    async with asyncio.timeout(timeout):
        while not (found := await holds()):
            await asyncio.sleep(0.1)
    return found


async def contest(admin: Client, seed: int) -> tuple[Revisions, Counter[str], int]:
    """One seed: what was seen, the units that each side has bound in the end, and how many there are."""
    rng, fleet, namespace = random.Random(seed), Fleet(seed), f"seed-{seed}"
    wanted = wishes(fleet, rng)
    await namespace_for(admin, namespace)
    await make(admin, *((DEVICECLASS, obj) for obj in fleet.classes()))
    await make(admin, *pods_of(fleet, namespace, wanted))

    async def claims() -> list[ResourceClaim]:
        return (await admin.list(RESOURCECLAIM, namespace)).items

    async def pods() -> list[dict[str, Any]]:
        return (await admin.list(POD, namespace)).items

    async def all_claims() -> bool:
        return len(await claims()) == len(wanted)

    await until(all_claims)
    seen = Revisions(msgspec.convert(obj, ResourceSlice) for obj in fleet.slices)
    start = (await admin.list(RESOURCECLAIM, namespace)).resource_version
    following = asyncio.create_task(seen.follow(admin, namespace, start))
    # Everybody waits for devices; now they come.
    rng.shuffle(fleet.slices)
    await make(admin, *((RESOURCESLICE, obj) for obj in fleet.slices))
    names = [f"p{number:03}" for number in range(len(wanted))]
    units: Counter[str] = Counter()

    async def nothing_fits() -> bool:
        """Whether no pod that waits could have what it wants; counts what the others have."""
        bound = {obj["metadata"]["uid"]: obj["metadata"]["name"] for obj in await pods() if pod_node(obj)}
        left = dict(fleet.free)
        units.clear()
        held = [found for found in await claims() if found.status.allocation is not None]
        for found in held:
            kind, pool, amount = fleet.units(found)
            left[kind, pool] -= amount
            for name in (bound[entry.uid] for entry in found.status.reservedFor or () if entry.uid in bound):
                units[wanted[names.index(name)][0]] += amount
        most = {kind: max(room for (other, _), room in left.items() if other == kind) for kind in SIZES}
        waiting = [wish for name, wish in zip(names, wanted, strict=True) if name not in bound.values()]
        return len(held) == len(bound) and all(amount > most[kind] for _, kind, amount in waiting)

    await until(nothing_fits)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert following.cancelled(), following.exception()
    return seen, units, fleet.free.total()


async def extended(admin: Client) -> None:
    """kube-scheduler makes the claim behind an extended resource and allocates it at once."""
    await namespace_for(admin, "extended")
    selector = {"cel": {"expression": "device.driver == 'extended.example.com'"}}
    behind = {"selectors": [selector], "extendedResourceName": "example.com/gpu"}
    spec = {"driver": "extended.example.com", "nodeName": NODES[0], "devices": [{"name": "d"}]}
    spec["pool"] = {"name": "extended", "generation": 1, "resourceSliceCount": 1}
    amounts = {"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "1"}}
    containers = [{"name": "c", "image": "i", "resources": amounts}]
    await make(
        admin,
        (DEVICECLASS, {"metadata": {"name": "extended"}, "spec": behind}),
        (RESOURCESLICE, {"metadata": {"name": "extended"}, "spec": spec}),
        (POD, {"metadata": {"name": "p", "namespace": "extended"}, "spec": {"containers": containers}}),
    )

    async def bound() -> str:
        return pod_node(await admin.get(POD, "p", "extended"))

    await until(bound)


def test_with_the_guard_no_device_is_held_twice_at_any_revision(cluster: KubeCluster) -> None:
    async def story(ours: Ours) -> None:
        async with connect(cluster.kubeconfig()) as admin:
            await guarded(admin, cluster, ours)
            try:
                with kube_scheduler(cluster):
                    for seed in SEEDS:
                        seen, bound, total = await contest(admin, seed)
                        told = f"seed {seed}: {dict(bound)} of {total} units, {seen.seen} revisions"
                        print(told)
                        assert seen.faults == [], told
                        assert seen.allocations > 30, told
                        assert min(bound[OURS], bound[THEIRS]) >= 0.3 * total, told
                    await extended(admin)
                # Without contention this would show nothing; and we never had to give way.
                assert await ours.metric('drakkar_guard_allocations_total{outcome="refused"}') > 0
                assert await ours.metric("drakkar_scheduler_conflict_foreign_total") == 0
                assert await ours.metric('drakkar_allocators{foreign="true"}') == 1
            finally:
                await admin.delete(WEBHOOK, "drakkar-guard")

    with Ours(cluster, "own") as ours:
        asyncio.run(story(ours))
        verify = [sys.executable, "-m", "drakkar.cli", "verify", "--kubeconfig", str(cluster.kubeconfig())]
        verified = subprocess.run(verify, capture_output=True, text=True, timeout=180, check=False)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_without_the_guard_the_watcher_sees_what_nobody_refuses(cluster: KubeCluster) -> None:
    """And with it the same write is refused, with the names of device and holder."""
    held = {"request": "r", "driver": "forged.example.com", "pool": "forged", "device": "d"}
    body = json.dumps({"status": {"allocation": {"devices": {"results": [held]}}}})

    def allocate(name: str, *flags: str) -> str:
        """What is said when somebody gives the device to a claim; empty when that is done."""
        words = ("patch", "resourceclaim", name, "-n", "forged", "--subresource=status", "--type=merge", "-p", body)
        done = cluster.kubectl().ask(*words, *flags)
        return done.stderr if done.returncode else ""

    async def story(ours: Ours) -> None:
        async with connect(cluster.kubeconfig()) as admin:
            await namespace_for(admin, "forged")
            spec = {"driver": "forged.example.com", "allNodes": True, "devices": [{"name": "d"}]}
            spec["pool"] = {"name": "forged", "generation": 1, "resourceSliceCount": 1}
            await make(admin, (RESOURCESLICE, {"metadata": {"name": "forged"}, "spec": spec}))
            wish = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "any"}}]}}
            for name in "abc":
                await make(admin, (RESOURCECLAIM, {"metadata": {"name": name, "namespace": "forged"}, "spec": wish}))
            seen = Revisions([await admin.get(RESOURCESLICE, "forged")])
            start = (await admin.list(RESOURCECLAIM, "forged")).resource_version
            following = asyncio.create_task(seen.follow(admin, "forged", start))
            assert await asyncio.to_thread(allocate, "a") == ""
            await guarded(admin, cluster, ours)

            holder = "device d (driver forged.example.com, pool forged) is held by resourceclaim forged/a"

            async def refused() -> bool:
                """Until then the webhook is not in force, or the leader has not heard of the claim."""
                said = await asyncio.to_thread(allocate, "b", "--dry-run=server")
                return f'admission webhook "guard.drakkar.dev" denied the request: {holder}' in said

            await until(refused)
            assert holder in await asyncio.to_thread(allocate, "b")
            await admin.delete(WEBHOOK, "drakkar-guard")

            async def allowed() -> bool:
                return await asyncio.to_thread(allocate, "c") == ""

            await until(allowed)
            await until(lambda: shown(seen))
            assert [fault.partition(": ")[2] for fault in seen.faults] == [
                "('forged', 'd') belongs to forged/a and forged/c"
            ]
            following.cancel()
            await admin.delete(NAMESPACE, "forged")

    async def shown(seen: Revisions) -> bool:
        return bool(seen.faults)

    with Ours(cluster, "own") as ours:
        asyncio.run(story(ours))


def test_behind_a_fence_only_we_give_devices_away(cluster: KubeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """kube-scheduler gives none of them to its pods, and binds those that we have given some: pods of gate mode."""
    driver, namespace = "fenced.example.com", "fenced"

    def fence(*words: str) -> str:
        assert main(["fence", "--kubeconfig", str(cluster.kubeconfig()), *words]) == 0
        return capsys.readouterr().out

    async def furnish() -> None:
        async with connect(cluster.kubeconfig()) as admin:
            await namespace_for(admin, namespace)
            selector = {"cel": {"expression": f"device.driver == '{driver}'"}}
            wish = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "fenced"}}]}}
            await make(
                admin,
                (DEVICECLASS, {"metadata": {"name": "fenced"}, "spec": {"selectors": [selector]}}),
                (RESOURCECLAIMTEMPLATE, {"metadata": {"name": "t", "namespace": namespace}, "spec": {"spec": wish}}),
                *((POD, pod_from(f"ours-{n}", namespace, OURS, "t")) for n in range(2)),
                *((POD, pod_from(f"theirs-{n}", namespace, THEIRS, "t")) for n in range(4)),
                (POD, pod_from("gated", namespace, THEIRS, "t", schedulingGates=[{"name": SCHEDULING_GATE}])),
            )
            for name in NODES[:2]:
                pool = {"name": f"{name}-fenced", "generation": 1, "resourceSliceCount": 1}
                devices = [{"name": f"d{n}"} for n in range(2)]
                spec = {"driver": driver, "nodeName": name, "pool": pool, "devices": devices}
                await make(admin, (RESOURCESLICE, {"metadata": {"name": f"{name}-fenced"}, "spec": spec}))

    async def watch() -> None:
        async with connect(cluster.kubeconfig()) as admin:

            async def bound() -> set[str]:
                return {obj["metadata"]["name"] for obj in (await admin.list(POD, namespace)).items if pod_node(obj)}

            async def has(names: set[str]) -> bool:
                return await bound() == names

            mine = {"ours-0", "ours-1", "gated"}
            await until(lambda: has(mine))
            # Of four devices one is left; kube-scheduler has looked at it for all its pods, and says so.

            async def refused() -> bool:
                pods = (await admin.list(POD, namespace)).items
                told = [condition(obj, "PodScheduled") or {} for obj in pods if not pod_node(obj)]
                return all("cannot allocate all claims" in str(found.get("message")) for found in told)

            await until(refused)
            assert await bound() == mine
            assert f"{driver}: open" in await asyncio.to_thread(fence, "--remove", driver)

            async def one_more() -> bool:
                return len(await bound()) == 4

            await until(one_more)

    def climb() -> str:
        """What is said to a claim that tolerates every taint."""
        exactly = {"deviceClassName": "fenced", "tolerations": [{"operator": "Exists"}]}
        spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
        metadata = {"name": "climbing", "namespace": "default"}
        made = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}
        return cluster.kubectl().ask("create", "--dry-run=server", "-f", "-", stdin=json.dumps(made)).stderr

    async def refused_to_climb() -> bool:
        return "request r tolerates every taint" in await asyncio.to_thread(climb)

    assert f"{driver}: fenced" in fence(driver)
    policies = [
        obj
        for obj in chart.objects(chart.template("fence.classes={fenced}"))
        if obj["kind"].startswith("ValidatingAdmissionPolicy") and obj["metadata"]["name"] == "drakkar-fence"
    ]
    cluster.kubectl().run("apply", "-f", "-", stdin=yaml.safe_dump_all(policies))
    with Ours(cluster, "gate"), kube_scheduler(cluster):
        asyncio.run(furnish())
        asyncio.run(watch())
        asyncio.run(until(refused_to_climb))


def own_address() -> str:
    """An address of this machine that an EndpointSlice may have: not that of the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing.
            probe.connect(("192.0.2.1", 9))
            found = str(probe.getsockname()[0])
        except OSError:
            found = "127.0.0.1"
    return pytest.skip("this machine has no address but its loopback") if found.startswith("127.") else found


def test_the_service_leads_to_the_leader_and_then_to_the_next_one(cluster: KubeCluster, tmp_path: Path) -> None:
    """The chart's Service, rights and webhook; of two replicas the leader is killed."""
    address = own_address()
    pki = open_pki(tmp_path / "pki", ["drakkar-guard.drakkar-system.svc"])
    authority = base64.b64encode((pki.folder / "ca.crt").read_bytes()).decode()
    rendered = chart.objects(
        chart.template("scheduler.guard.enabled=true", "scheduler.mode=own", f"scheduler.webhook.caBundle={authority}")
    )
    mine = [obj for obj in rendered if obj["metadata"]["name"] == "drakkar-guard"]
    assert [obj["kind"] for obj in mine] == ["Role", "RoleBinding", "Service", WEBHOOK.kind]
    flags = ("--guard-service", "drakkar-system/drakkar-guard", "--pod-ip", address)
    lease = ("--leader-elect-lease-duration", "5")

    async def story(first: Ours, second: Ours) -> None:
        async with connect(cluster.kubeconfig()) as admin:
            await namespace_for(admin, "led")
            spec = {"driver": "led.example.com", "allNodes": True, "devices": [{"name": f"d{n}"} for n in range(2)]}
            spec["pool"] = {"name": "led", "generation": 1, "resourceSliceCount": 1}
            selector = {"cel": {"expression": "device.driver == 'led.example.com'"}}
            wish = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "led"}}]}}
            await make(
                admin,
                (RESOURCESLICE, {"metadata": {"name": "led"}, "spec": spec}),
                (DEVICECLASS, {"metadata": {"name": "led"}, "spec": {"selectors": [selector]}}),
                (RESOURCECLAIMTEMPLATE, {"metadata": {"name": "t", "namespace": "led"}, "spec": {"spec": wish}}),
                (RESOURCECLAIM, {"metadata": {"name": "theirs", "namespace": "led"}, "spec": wish}),
            )

            async def bound(name: str) -> str:
                return pod_node(await admin.get(POD, name, "led"))

            async def place(name: str) -> None:
                await make(admin, (POD, pod_from(name, "led", OURS, "t")))
                await until(lambda: bound(name))

            async def refused() -> bool:
                """Whether it is said to somebody who wants both devices that one is held."""
                results = [
                    {"request": "r", "driver": "led.example.com", "pool": "led", "device": f"d{n}"} for n in range(2)
                ]
                body = json.dumps({"status": {"allocation": {"devices": {"results": results}}}})
                words = ("patch", "resourceclaim", "theirs", "-n", "led", "--subresource=status", "--type=merge")
                done = await asyncio.to_thread(cluster.kubectl().ask, *words, "-p", body)
                assert done.returncode
                return "denied the request" in done.stderr and "is held by resourceclaim led/" in done.stderr

            leaders: list[Ours] = []
            for name in ("one", "two"):
                await place(name)
                replicas = [ours for ours in (first, second) if ours not in leaders]
                (leader,) = [ours for ours in replicas if await ours.metric("drakkar_leading")]
                leaders.append(leader)
                await until(refused)
                # It was asked about its own writes, too.
                assert await leader.metric('drakkar_guard_allocations_total{outcome="own"}') >= 1
                if name == "one":
                    leader.process.kill()
                    leader.process.wait()
            await admin.delete(NAMESPACE, "led")

    text = yaml.safe_dump_all(mine)
    with (
        Ours(cluster, "own", *flags, *lease, pki=pki.folder, at=address) as first,
        Ours(cluster, "own", *flags, *lease, pki=pki.folder, at=address) as second,
    ):
        cluster.kubectl().run("apply", "-f", "-", stdin=text)
        try:
            asyncio.run(story(first, second))
        finally:
            cluster.kubectl().run("delete", "-f", "-", stdin=text)


def test_pods_get_the_gate_of_the_chart(cluster: KubeCluster, tmp_path: Path) -> None:
    """The chart's Service and webhook, called by kube-apiserver; pods are created by dry run."""
    address = own_address()
    pki = open_pki(tmp_path / "pki", ["drakkar-gate.drakkar-system.svc"])
    authority = base64.b64encode((pki.folder / "ca.crt").read_bytes()).decode()
    rendered = chart.objects(
        chart.template("scheduler.webhook.enabled=true", f"scheduler.webhook.caBundle={authority}")
    )
    mine = [obj for obj in rendered if obj["metadata"]["name"] == "drakkar-gate"]
    assert [obj["kind"] for obj in mine] == ["Service", "MutatingWebhookConfiguration"]
    kubectl = cluster.kubectl()

    async def gates(namespace: str, *, claims: bool) -> list[str]:
        """Of a pod that can be created: not until the namespace has its account, and the server found the webhook."""
        pod = {"apiVersion": "v1", "kind": "Pod", **pod_from("p", namespace, "default-scheduler", "t")}
        if not claims:
            pod["spec"] = {"containers": [{"name": "c", "image": "i"}]}

        async def created() -> str:
            words = ("create", "--dry-run=server", "-o", "json", "-f", "-")
            return (await asyncio.to_thread(kubectl.ask, *words, stdin=json.dumps(pod))).stdout

        return [gate["name"] for gate in json.loads(await until(created))["spec"].get("schedulingGates", ())]

    def named(name: str, **labels: str) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}

    with Ours(cluster, "gate", pki=pki.folder, at=address) as ours:
        port = int(asyncio.run(ours.url()).rpartition(":")[2])
        # What the selector of the Service finds where pods run.
        found = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "drakkar-gate-here",
                "namespace": "drakkar-system",
                "labels": {"kubernetes.io/service-name": "drakkar-gate"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [{"name": "webhook", "port": port, "protocol": "TCP"}],
        }
        gated, others = named("gated", **{"drakkar.dev/gate": "enabled"}), named("others")
        text = yaml.safe_dump_all([gated, others, found, *mine])
        kubectl.run("apply", "-f", "-", stdin=text)
        try:

            async def asked() -> bool:
                return await gates("gated", claims=True) == [SCHEDULING_GATE]

            async def story() -> None:
                # The server hears of a new webhook a moment later.
                await until(asked)
                assert await gates("gated", claims=False) == []
                assert await gates("others", claims=True) == []

            asyncio.run(story())
        finally:
            kubectl.run("delete", "--wait=false", "-f", "-", stdin=text)
