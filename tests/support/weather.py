"""Bad weather: Drakkar's parts at work behind a proxy that loses, refuses and repeats, and a witness on its other side.

Two schedulers and two controllers as replicas, the hollow nodes of fleet ``tpu-16`` and the driver of their devices run
as commands, each through a door of its own (`tests.support.proxy`). Jobs with claims of their own and with claims that
their pods share come and go, pods are deleted, devices are tainted. The witness reads the server directly and checks
every revision of every claim. Then the weather clears, and everything has to end as if nothing had been.

``./do weather`` runs it for as long as one likes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from drakkar.api import kinds
from drakkar.api.errors import ApiError
from drakkar.api.names import TPU_DRIVER
from drakkar.api.objects import key_of, name_of, pod_is_done, pod_node, uid_of
from drakkar.api.resource.v1 import AllocationResult, Device, ResourceSlice
from drakkar.apiserver.tls import open_pki, write_kubeconfig
from drakkar.cli.target import connect
from drakkar.client import Caches, Client
from drakkar.insight.dump import collect
from drakkar.insight.verify import verify
from tests.support.checker import faults
from tests.support.plane import Part, Up
from tests.support.proxy import BEYOND, CALM, STORM, Door, Proxy, Weather, proxy
from tests.support.shared import ROOT

#: Longest time in seconds from the end of the bad weather until all work is done, and how much more for each second
#: that it lasted: jobs have queued up by then.
AFTERWARDS, AND_MORE = 120.0, 1.5
#: Most requests of one kind that one component may send per second, over five seconds. A quarter of a kube-scheduler's
#: default limit for all its requests together is what a component needs here.
HOT = 50.0
#: Most requests of one component per second when nothing happens any more: leases and watches.
IDLE = 12.0
#: What can happen to every request for a while.
OUTAGES = ("cut", "broken", "throttled", "unauthorized", "never")
LEASE = ("--leader-elect-lease-duration", "8", "--leader-elect-resource-namespace", "drakkar-system")
FLEET = "tpu-16"


@dataclass(frozen=True)
class Plane:
    """A server; ``kubeconfig`` gives credentials for a user and groups."""

    kubeconfig: Callable[..., Path]
    #: What binds the pods of other schedulers, if anything does.
    binder: str = "drakkar"


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[Plane]:
    """Our own server in a process of its own."""
    with ExitStack() as stack:
        up = await asyncio.to_thread(
            stack.enter_context, Up(folder / "data", "--no-scheduler", "--no-controllers", "--no-driver")
        )
        pki = open_pki(folder / "data" / "pki")
        server = yaml.safe_load(up.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]

        def kubeconfig(user: str, *groups: str) -> Path:
            path = folder / f"{user.replace(':', '-')}.kubeconfig"
            write_kubeconfig(path, server, pki, user=user, groups=groups)
            return path

        yield Plane(kubeconfig)


@dataclass
class Witness:
    """Sees every change at the server itself."""

    client: Client
    #: Devices that were recorded for two claims at a revision; those of them that two bound pods could use.
    found: list[str] = field(default_factory=list[str])
    used: list[str] = field(default_factory=list[str])
    changes: int = 0
    _bound: set[str] = field(default_factory=set[str])
    _consumers: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    _held: dict[str, AllocationResult] = field(default_factory=dict[str, AllocationResult])
    _slices: dict[str, ResourceSlice] = field(default_factory=dict[str, ResourceSlice])
    _gone: dict[tuple[str, str], Device] = field(default_factory=dict[tuple[str, str], Device])
    _double: bool = False

    async def follow(self) -> None:
        """Watches until cancelled."""
        caches = Caches(self.client)
        caches.of(kinds.RESOURCESLICE).subscribe(self._slice)
        caches.of(kinds.RESOURCECLAIM).subscribe(self._claim)
        caches.of(kinds.POD).subscribe(self._pod)
        try:
            await caches.start()
            await asyncio.Event().wait()
        finally:
            await caches.stop()

    def _slice(self, event: str, old: ResourceSlice | None, new: ResourceSlice) -> None:
        for device in new.spec.devices or ():
            self._gone[new.spec.pool.name, device.name] = device
        if event == "DELETED":
            self._slices.pop(name_of(new), None)
        else:
            self._slices[name_of(new)] = new

    def _pod(self, event: str, old: Any, new: Any) -> None:
        if event != "DELETED" and pod_node(new) and not pod_is_done(new):
            self._bound.add(uid_of(new))
            self._judge(f"pod {key_of(new)} is bound")
        else:
            self._bound.discard(uid_of(new))

    def _claim(self, event: str, old: Any, new: Any) -> None:
        self.changes += 1
        self._held.pop(uid_of(new), None)
        if event != "DELETED" and new.status.allocation is not None:
            self._held[uid_of(new)] = new.status.allocation
            self._consumers[uid_of(new)] = {entry.uid for entry in new.status.reservedFor or ()}
        self._judge(f"{key_of(new)} at revision {new.metadata.resourceVersion}")

    def _judge(self, what: str) -> None:
        # The newest counters of a pool; hosts do not come and go here, so one generation is as good as another.
        newest = {item.spec.pool.name: item.spec.pool.generation for item in self._slices.values()}
        for item in self._slices.values():
            newest[item.spec.pool.name] = max(newest[item.spec.pool.name], item.spec.pool.generation)
        current = [item for item in self._slices.values() if item.spec.pool.generation == newest[item.spec.pool.name]]
        wrong = [text for text in faults(current, self._held, self._gone) if "does not exist" not in text]
        if not wrong:
            self._double = False
            return
        if not self._double:
            self.found.append(f"{what}: {'; '.join(wrong)}")
        self._double = True
        held = {uid: allocation for uid, allocation in self._held.items() if self._consumers[uid] & self._bound}
        self.used += [f"{what}: {text}" for text in faults(current, held, self._gone) if "does not exist" not in text]


@dataclass
class Report:
    """How a run went."""

    seed: int
    seconds: float
    pods: int
    changes: int
    afterwards: float
    doors: dict[str, Door]
    idle: dict[str, float]
    doubles: list[str]
    last: str

    def text(self) -> str:
        """For people."""
        lines = [
            f"seed {self.seed}: {self.seconds:.0f} s of bad weather, {self.pods} pods, {self.changes} changes of "
            f"claims, all well {self.afterwards:.1f} s after it cleared"
        ]
        for name, door in self.doors.items():
            count = door.count
            peak, kind = count.peak()
            fates = ", ".join(f"{fate} {number}" for fate, number in count.fates.most_common())
            lines.append(
                f"  {name:<14} {sum(count.requests.values()):>6} requests, peak {peak:.1f}/s ({' '.join(kind)}), "
                f"idle {self.idle[name]:.1f}/s; {fates or 'nothing happened'}"
            )
        lines.append(f"  waited for last: {self.last[:300]}")
        lines += [f"  held twice: {text}" for text in self.doubles]
        return "\n".join(lines)


def template(name: str, chips: int) -> dict[str, Any]:
    """What a claim for that many chips asks."""
    cel = f'device.capacity["{TPU_DRIVER}"].chips.compareTo(quantity("{chips}")) == 0'
    exactly = {"deviceClassName": TPU_DRIVER, "selectors": [{"cel": {"expression": cel}}]}
    return {"devices": {"requests": [{"name": name, "exactly": exactly}]}}


def job(name: str, claim: dict[str, Any], *, pods: int, runs: str, gated: bool, scheduler: str) -> dict[str, Any]:
    """A Job; its pods end after ``runs`` seconds, or never where that is empty."""
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "schedulerName": scheduler,
        "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "chips"}]}}],
        "resourceClaims": [{"name": "chips", **claim}],
        "tolerations": [
            {"operator": "Exists", "key": f"node.kubernetes.io/{why}"} for why in ("not-ready", "unreachable")
        ],
    }
    if gated:
        spec["schedulingGates"] = [{"name": "drakkar.dev/allocation"}]
    annotations = {"drakkar.dev/run-seconds": runs} if runs else {}
    disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "completionMode": "Indexed",
            "completions": pods,
            "parallelism": pods,
            "backoffLimit": 1000,
            "podFailurePolicy": {"rules": [disrupted]},
            "template": {"metadata": {"annotations": annotations, "labels": {"job": name}}, "spec": spec},
        },
    }


class Day:
    """One run: what is there, what happens, and what has to be true in the end."""

    def __init__(self, plane: Plane, admin: Client, seed: int):
        self._plane = plane
        self._admin = admin
        self._rng = random.Random(seed)
        self._jobs: list[str] = []
        self.pods = 0
        #: What was waited for last.
        self.last = ""

    async def furnish(self) -> None:
        """Roles, the class of the devices, and templates."""
        for name in ("namespace", "scheduler", "driver-tpu"):
            for obj in yaml.safe_load_all((ROOT / "deploy" / f"{name}.yaml").read_text()):
                if obj and obj["kind"] in PLURALS:
                    await create(self._admin, obj)
        cel = {"cel": {"expression": f'device.driver == "{TPU_DRIVER}"'}}
        await self._admin.create(kinds.DEVICECLASS, {"metadata": {"name": TPU_DRIVER}, "spec": {"selectors": [cel]}})
        for chips in (4, 8):
            body = {"metadata": {"name": f"chips-{chips}"}, "spec": {"spec": template("chips", chips)}}
            await self._admin.create(kinds.RESOURCECLAIMTEMPLATE, body, "default")

    async def live(self, seconds: float) -> None:
        """Jobs come, pods go, devices are tainted, for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await self._new_job(len(self._jobs) + 1)
            await asyncio.sleep(self._rng.uniform(0.8, 2.0))
            what = self._rng.random()
            if what < 0.3:
                await self._delete_a_pod()
            elif what < 0.5:
                await self._taint_a_device(len(self._jobs))

    async def _new_job(self, number: int) -> None:
        name = f"job-{number}"
        rng = self._rng
        gated = rng.random() < 0.5
        scheduler = self._plane.binder if gated else "drakkar"
        runs = f"{rng.uniform(0.5, 2.5):.1f}"
        if number % 4 == 0:
            annotations = {"drakkar.dev/pods-per-node": "1"}
            claim = {"metadata": {"name": name, "annotations": annotations}, "spec": template("chips", 16)}
            await self._admin.create(kinds.RESOURCECLAIM, claim, "default")
            made = job(name, {"resourceClaimName": name}, pods=4, runs=runs, gated=gated, scheduler=scheduler)
        else:
            claim = {"resourceClaimTemplateName": f"chips-{rng.choice((4, 4, 8))}"}
            # One in eight stays until the end.
            runs = runs if number % 8 != 5 else ""
            pods = rng.randint(1, 4) if runs else 1
            made = job(name, claim, pods=pods, runs=runs, gated=gated, scheduler=scheduler)
        await self._admin.create(kinds.JOB, made)
        self._jobs.append(name)
        self.pods += made["spec"]["completions"]

    async def _delete_a_pod(self) -> None:
        pods = [pod for pod in (await self._admin.list(kinds.POD, "default")).items if not pod_is_done(pod)]
        if pods:
            victim = self._rng.choice(sorted(pods, key=name_of))
            with contextlib.suppress(ApiError):
                await self._admin.delete(kinds.POD, name_of(victim), "default", uid=uid_of(victim))

    async def _taint_a_device(self, number: int) -> None:
        held = [
            result
            for claim in (await self._admin.list(kinds.RESOURCECLAIM, "default")).items
            if claim.status.allocation is not None
            for result in claim.status.allocation.devices.results or ()
        ]
        if not held:
            return
        result = self._rng.choice(sorted(held, key=lambda one: (one.pool, one.device)))
        rule = {
            "metadata": {"name": f"broken-{number}"},
            "spec": {
                "deviceSelector": {"driver": result.driver, "pool": result.pool, "device": result.device},
                "taint": {"key": "example.com/broken", "effect": "NoExecute"},
            },
        }
        await self._admin.create(kinds.DEVICETAINTRULE, rule)
        await asyncio.sleep(1.5)
        await self._admin.delete(kinds.DEVICETAINTRULE, f"broken-{number}")

    async def end(self, timeout: float) -> float:
        """Waits until nothing is left to do; seconds that took. AssertionError with what is left."""
        started = time.monotonic()
        while True:
            left = await self._unfinished()
            self.last = left[0] if left else self.last
            if not left:
                return time.monotonic() - started
            if time.monotonic() - started > timeout:
                raise AssertionError("still not done:\n" + "\n".join(left))
            await asyncio.sleep(0.2)

    async def _unfinished(self) -> list[str]:
        left = []
        for obj in (await self._admin.list(kinds.JOB, "default")).items:
            status, spec = obj.get("status") or {}, obj["spec"]
            stays = not spec["template"]["metadata"].get("annotations")
            count = status.get("ready" if stays else "succeeded") or 0
            if count < spec["completions"]:
                left.append(f"job {name_of(obj)}: {count} of {spec['completions']}: {json.dumps(status)}")
        if left:
            for pod in (await self._admin.list(kinds.POD, "default")).items:
                if not pod_is_done(pod) and (pod.get("status") or {}).get("phase") != "Running":
                    left.append(f"pod {name_of(pod)} on {pod_node(pod) or 'no node'}: {json.dumps(pod['status'])}")
                    left.append(f"  {json.dumps([pod['spec'].get('schedulingGates'), pod['metadata']['annotations']])}")
            return left
        return [f"{one.rule}: {one.object}: {one.message}" for one in verify(await collect(self._admin))]


#: What deploy/ has that is neither a workload nor asks for one.
PLURALS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    **{
        kind: f"/apis/rbac.authorization.k8s.io/v1/{where}{kind.lower()}s"
        for kind, where in (
            ("ClusterRole", ""),
            ("ClusterRoleBinding", ""),
            ("Role", "namespaces/{namespace}/"),
            ("RoleBinding", "namespaces/{namespace}/"),
        )
    },
}


async def create(admin: Client, obj: dict[str, Any]) -> None:
    """Creates an object of :data:`PLURALS`."""
    path = PLURALS[obj["kind"]].format(namespace=obj["metadata"].get("namespace"))
    await admin.send("POST", path, body=json.dumps(obj).encode())


def account(name: str) -> tuple[str, ...]:
    """User and groups of a service account of ``deploy/``."""
    return f"system:serviceaccount:drakkar-system:drakkar-{name}", "system:serviceaccounts", "system:authenticated"


async def weather(
    plane: Plane,
    folder: Path,
    *,
    seed: int,
    seconds: float,
    storm: Weather = STORM,
    outage: float = 0.0,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """One run of :class:`Day` in this weather, with an outage of each kind that lasts ``outage`` seconds after it.

    AssertionError where something is lost, used twice or hot.
    """
    masters = "drakkar:weather", "system:masters"
    async with proxy(seed, folder) as made, connect(plane.kubeconfig(*masters)) as admin:
        day = Day(plane, admin, seed)
        await day.furnish()
        witness = Witness(admin)
        watching = asyncio.create_task(witness.follow(), name="witness")
        with ExitStack() as stack:
            try:
                parts = {
                    name: await _start(made, stack, name, plane.kubeconfig(*user), command)
                    for name, user, command in _commands(masters)
                }
                made.doors["scheduler-b"].skew = 3600.0
                made.doors["controllers-b"].skew = -3600.0
                made.doors["scheduler-b"].weather = replace(CALM, streaming_lists=False)
                await _at_work(parts)
                for name, door in made.doors.items():
                    door.weather = replace(storm, streaming_lists=name != "scheduler-b")
                say(f"seed {seed}: {seconds:.0f} s of bad weather")
                await day.live(seconds)
                for kind in OUTAGES if outage else ():
                    before = made.totals()
                    made.weather(replace(CALM, **{kind: 1.0}))
                    await day.live(outage)
                    rates = {name: round((total - before[name]) / outage) for name, total in made.totals().items()}
                    say(f"{outage:.0f} s in which everything is {kind}: requests per second {rates}")
                made.weather(CALM)
                say("it clears")
                try:
                    afterwards = await day.end(AFTERWARDS + AND_MORE * seconds)
                except AssertionError as error:
                    raise AssertionError(f"seed {seed}: {error}\nlogs are in {await _logs(folder, parts)}") from None
                for name, part in parts.items():
                    assert part.process.poll() is None, f"{name} has ended:\n{part.output[-6000:]}"
                idle = await _idle(made)
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
        doors = made.doors
    report = Report(seed, seconds, day.pods, witness.changes, afterwards, doors, idle, witness.found, day.last)
    assert not witness.used, f"seed {seed}: used twice: {witness.used}\n{report.text()}"
    for name, door in doors.items():
        peak, kind = door.count.peak()
        assert peak <= HOT, f"seed {seed}: {name} is hot: {peak:.0f} times {' '.join(kind)} a second\n{report.text()}"
        assert idle[name] <= IDLE, f"seed {seed}: {name} does not come to rest\n{report.text()}"
    return report


def _commands(masters: tuple[str, ...]) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    scheduler = ("scheduler", *LEASE)
    controllers = ("controllers", "--node-grace", "20", *LEASE)
    nodes = ("node", "hollow", "--fleet", FLEET, "--lease-period", "2", "--lease-duration", "8")
    return [
        ("scheduler-a", account("scheduler"), scheduler),
        ("scheduler-b", account("scheduler"), scheduler),
        ("controllers-a", masters, controllers),
        ("controllers-b", masters, controllers),
        ("nodes", masters, nodes),
        ("driver", account("driver-tpu"), ("driver", "run", "tpu")),
    ]


async def _start(made: Proxy, stack: ExitStack, name: str, credentials: Path, command: Sequence[str]) -> Part:
    door = await made.door(name, credentials)
    return stack.enter_context(Part(*command, "--kubeconfig", str(door.kubeconfig)))


async def _logs(folder: Path, parts: dict[str, Part]) -> Path:
    """Writes what the parts have said where it can be read."""
    for name, part in parts.items():
        await asyncio.to_thread((folder / f"{name}.log").write_text, part.output)
    return folder


async def _at_work(parts: dict[str, Part]) -> None:
    """Until the commands have been started; what they then do has to work in bad weather already."""
    waited = 0.0
    while not all("at work" in parts[name].output for name in ("scheduler-a", "scheduler-b", "controllers-a")):
        ended = [name for name, part in parts.items() if part.process.poll() is not None]
        assert not ended, "\n".join(parts[name].output for name in ended)
        assert waited < 120, "not at work within two minutes"
        await asyncio.sleep(0.1)
        waited += 0.1


async def _idle(made: Proxy, span: int = 6) -> dict[str, float]:
    """Requests per second of each component when nothing is left to do, and what was behind has been caught up on."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + AFTERWARDS
    await asyncio.sleep(2)
    while True:
        before, start = made.totals(), loop.time()
        await asyncio.sleep(span)
        passed = loop.time() - start
        rates = {name: (total - before[name]) / passed for name, total in made.totals().items()}
        if max(rates.values()) <= IDLE or loop.time() > deadline:
            return rates


async def _run(seeds: range, seconds: float, beyond: bool, outage: float) -> None:
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="drakkar-weather-") as name:
            folder = Path(name)
            async with embedded(folder) as plane:
                storm = BEYOND if beyond else STORM
                if beyond:
                    # What is never told comes to light when the state is read anew, which else is once an hour.
                    os.environ["DRAKKAR_RELIST_SECONDS"] = "10"
                report = await weather(plane, folder, seed=seed, seconds=seconds, storm=storm, outage=outage, say=_say)
                _say(report.text())
                assert beyond or not report.doubles, report.text()


def _say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    """Run as often and as long as asked."""
    parser = argparse.ArgumentParser(description="Drakkar's parts behind a proxy that loses, refuses and repeats")
    parser.add_argument("--seconds", type=float, default=60, metavar="N", help="of bad weather in each run (60)")
    parser.add_argument(
        "--seed", type=int, default=1, metavar="S", help="of the first run; a failing run names its own"
    )
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="how many (1)")
    parser.add_argument(
        "--beyond", action="store_true", help="also what no server may do: changes that a watch never tells, and others"
    )
    parser.add_argument(
        "--outages",
        type=float,
        default=0,
        metavar="N",
        help="then everything is cut, refused, … for N seconds each (0)",
    )
    args = parser.parse_args()
    asyncio.run(_run(range(args.seed, args.seed + args.runs), args.seconds, args.beyond, args.outages))
    return 0


if __name__ == "__main__":
    sys.exit(main())
