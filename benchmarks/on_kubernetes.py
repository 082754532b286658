"""Pods scheduled per second on upstream's kube-apiserver: our scheduler in own mode and kube-scheduler, in turn.

    python benchmarks/on_kubernetes.py [--nodes 1000] [--devices 8] [--pods 500] [--rounds 2] [--classes plain,heavy]
    python benchmarks/on_kubernetes.py --only scale        our memory and decisions at 5,000 nodes
    python benchmarks/on_kubernetes.py --only failover     the leader is killed while it works

Needs upstream's components (``./do upstream`` builds them) and an etcd. Every pod has a claim of its own from a
template; 16 creates are under way at a time. On Kubernetes the claims are made by kube-controller-manager; one cluster
serves all rounds, the contenders take turns, and of the schedulers only one runs at a time. ``embedded`` is our
scheduler in ``drakkar up`` with our own controllers. All stores sync every write to a file in memory (/dev/shm): no
disk counts, and all promise the same.

Processor times are those of whole processes, from the first create until a second after the last pod was bound.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from drakkar.api.kinds import DEVICECLASS, NODE, POD, RESOURCECLAIM, RESOURCECLAIMTEMPLATE, RESOURCESLICE, Kind
from drakkar.api.objects import name_of, pod_node
from drakkar.cli.target import connect
from drakkar.client import Caches, Client
from drakkar.insight.dump import collect
from drakkar.insight.verify import verify
from tests.support.kubecluster import KubeCluster, kube_cluster
from tests.support.plane import Part, Up

DRIVER = "gpu.example.com"
NAME = "drakkar"
CONTENDERS = ("drakkar", "kube-scheduler", "embedded")
#: Creates under way at the same time.
WRITERS = 16
_TICK = 1 / os.sysconf("SC_CLK_TCK")

CLASSES: dict[str, list[str]] = {
    "plain": [],
    "cel": [f"device.driver == '{DRIVER}'"],
    "heavy": [
        f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].model == 'a100'"
        f" && device.capacity['{DRIVER}'].memory.compareTo(quantity('40Gi')) >= 0"
        f" && device.attributes['{DRIVER}'].firmware.isGreaterThan(semver('1.2.0'))"
    ],
}


def a_node(name: str) -> dict[str, Any]:
    """A node with more room than the pods need."""
    room = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    labels = {"kubernetes.io/hostname": name}
    conditions = [{"type": "Ready", "status": "True"}]
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": room, "allocatable": room, "conditions": conditions},
    }


def a_slice(node: str, devices: int, *, new: bool = True) -> dict[str, Any]:
    """The devices of one node, with firmware that the heavy class accepts, or too old for it."""
    attributes = {"model": {"string": "a100"}, "firmware": {"version": "1.4.2" if new else "1.1.9"}}
    device = {"attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}}
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"gpu-{number}", **device} for number in range(devices)],
    }
    return {"metadata": {"name": f"{node}-gpus"}, "spec": spec}


def a_pod(name: str, kind: str, scheduler: str) -> dict[str, Any]:
    """A pod with a claim from the template of a class."""
    resources = {"requests": {"cpu": "100m", "memory": "64Mi"}, "claims": [{"name": "gpu"}]}
    spec = {
        "schedulerName": scheduler,
        "containers": [{"name": "main", "image": "x", "resources": resources}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": kind}],
    }
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


async def together(works: list[Any]) -> None:
    """Runs them, :data:`WRITERS` at a time."""
    turn = asyncio.Semaphore(WRITERS)

    async def one(work: Any) -> None:
        async with turn:
            await work

    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(one(work))


async def populate(client: Client, nodes: int, devices: int, first: int = 0) -> None:
    """Nodes with their devices; on every fourth they have new firmware."""
    numbers = range(first, nodes)
    await together([client.create(NODE, a_node(f"node-{number}")) for number in numbers])
    await together(
        [client.create(RESOURCESLICE, a_slice(f"node-{number}", devices, new=number % 4 == 0)) for number in numbers]
    )


async def grant(client: Client) -> None:
    """The one right that our scheduler needs and kube-scheduler's role lacks where gangs are off."""
    group = "rbac.authorization.k8s.io"
    role = {
        "metadata": {"name": "podgroups"},
        "rules": [{"apiGroups": ["scheduling.k8s.io"], "resources": ["podgroups"], "verbs": ["get", "list", "watch"]}],
    }
    binding = {
        "metadata": {"name": "podgroups"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "podgroups"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "system:kube-scheduler"}],
    }
    await client.create(Kind(group, "v1", "ClusterRole", "clusterroles", False), role)
    await client.create(Kind(group, "v1", "ClusterRoleBinding", "clusterrolebindings", False), binding)


async def classes(client: Client) -> None:
    """A class and a template of its name for each kind of selector."""
    for name, expressions in CLASSES.items():
        selectors = [{"cel": {"expression": text}} for text in expressions]
        await client.create(DEVICECLASS, {"metadata": {"name": name}, "spec": {"selectors": selectors}})
        request = {"name": "gpu", "exactly": {"deviceClassName": name}}
        body = {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"spec": {"devices": {"requests": [request]}}},
        }
        await client.create(RESOURCECLAIMTEMPLATE, body, "default")


def processor_time(pid: int) -> float:
    """Seconds of a process with all its threads, since it began."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK


def memory(pid: int) -> tuple[float, float]:
    """Resident memory of a process in MB: now, and at its highest."""
    status = Path(f"/proc/{pid}/status").read_text()
    now, peak = (re.search(rf"{field}:\s+(\d+) kB", status) for field in ("VmRSS", "VmHWM"))
    assert now
    assert peak
    return int(now[1]) / 1e3, int(peak[1]) / 1e3


class Load:
    """Pods of one client, and which of them are bound."""

    def __init__(self, client: Client):
        self.client = client
        self.bound: set[str] = set()
        self._caches = Caches(client)
        self._changed = asyncio.Event()
        self._number = 0

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[Load]:
        """Follows the pods of the server within this block."""
        self._caches.of(POD).subscribe(self._on_pod)
        await self._caches.start()
        await self._caches.synced()
        try:
            yield self
        finally:
            await self._caches.stop()

    def _on_pod(self, event: str, _: Any, pod: dict[str, Any]) -> None:
        if pod_node(pod) and event != "DELETED":
            self.bound.add(name_of(pod))
            self._changed.set()

    async def place(self, count: int, kind: str, scheduler: str, *, timeout: float = 120) -> float:
        """Creates pods and waits until all are bound; seconds of wall time."""
        names = [f"p-{self._number + number}" for number in range(count)]
        self._number += count
        started = time.perf_counter()
        await together([self.client.create(POD, a_pod(name, kind, scheduler), "default") for name in names])
        await self.until_bound(names, timeout)
        return time.perf_counter() - started

    async def until_bound(self, names: list[str], timeout: float = 120) -> None:
        """Until all of these are bound."""
        wanted = set(names)
        async with asyncio.timeout(timeout):
            while not wanted <= self.bound:
                self._changed.clear()
                await self._changed.wait()

    async def clear(self) -> None:
        """Deletes all pods; until their claims are gone."""
        await together(
            [self.client.delete(POD, name_of(pod), "default", grace=0) for pod in (await self.client.list(POD)).items]
        )
        while (await self.client.list(RESOURCECLAIM)).items:
            await asyncio.sleep(0.2)


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement: pods a second, and milliseconds of processor time a pod by process."""

    rate: float
    spent: dict[str, float]

    @property
    def total(self) -> float:
        """Of all processes but the client, which is no part of what is compared."""
        return sum(value for name, value in self.spent.items() if name != "client")


async def measure(load: Load, pods: int, kind: str, scheduler: str, processes: Mapping[str, int]) -> Round:
    """One round; ``processes`` are those whose processor time counts."""
    # The first pod shows that the scheduler is there, and pays for what is worked out once.
    await load.place(1, kind, scheduler, timeout=20)
    await asyncio.sleep(0.5)
    before = {name: processor_time(pid) for name, pid in processes.items()}
    mine = time.process_time()
    wall = await load.place(pods, kind, scheduler)
    await asyncio.sleep(1)
    spent = {name: (processor_time(pid) - before[name]) / pods * 1e3 for name, pid in processes.items()}
    return Round(pods / wall, {**spent, "client": (time.process_time() - mine) / pods * 1e3})


@contextlib.contextmanager
def ours(cluster: KubeCluster, *flags: str) -> Iterator[Part]:
    """Our scheduler in own mode, a process of its own; all of its user's rights are those of kube-scheduler."""
    user = str(cluster.kubeconfig("system:kube-scheduler"))
    with Part("scheduler", "--mode", "own", "--scheduler-name", NAME, "--kubeconfig", user, *flags) as part:
        yield part


async def throughput(args: argparse.Namespace, folder: Path) -> dict[str, list[Round]]:
    """Rounds by scheduler and class."""
    rounds: dict[str, list[Round]] = {}
    async with contextlib.AsyncExitStack() as stack:
        cluster = stack.enter_context(kube_cluster(folder))
        manager = stack.enter_context(cluster.controller_manager())
        up = stack.enter_context(Up(folder / "embedded", "--node-grace", "100000"))
        loads: list[Load] = []
        for path in (cluster.kubeconfig(), up.kubeconfig):
            client = await stack.enter_async_context(connect(path))
            if path != up.kubeconfig:
                await grant(client)
            await populate(client, args.nodes, args.devices)
            await classes(client)
            loads.append(await stack.enter_async_context(Load(client).following()))
        kube, embedded = loads
        assert manager.process is not None
        assert cluster.server.process is not None
        assert up.process is not None
        servers = {
            "apiserver": cluster.server.process.pid,
            "controllers": manager.process.pid,
            "etcd": _pid_of_etcd(cluster),
        }
        for number in range(args.rounds):
            for kind in args.classes.split(","):
                # The order changes from round to round: whoever comes first meets smaller stores.
                for who in CONTENDERS[:: 1 if number % 2 == 0 else -1]:
                    if who == "embedded":
                        found = await measure(
                            embedded, args.pods, kind, "default-scheduler", {"the one process": up.process.pid}
                        )
                        await embedded.clear()
                    else:
                        found = await _beside(cluster, kube, args.pods, kind, who, servers)
                        await kube.clear()
                    rounds.setdefault(f"{who} {kind}", []).append(found)
                    _show(f"{who} {kind}", found)
    return rounds


async def _beside(
    cluster: KubeCluster, load: Load, pods: int, kind: str, who: str, servers: Mapping[str, int]
) -> Round:
    """One round of a scheduler that runs for its length."""
    name = NAME if who == "drakkar" else "default-scheduler"
    with ours(cluster, "--no-leader-elect") if who == "drakkar" else cluster.scheduler() as part:
        assert part.process is not None
        try:
            return await measure(load, pods, kind, name, {"scheduler": part.process.pid, **servers})
        except TimeoutError as error:
            said = part.output if isinstance(part, Part) else part.log
            raise SystemExit(f"{who} does not bind; the end of what it said:\n{said[-3000:]}") from error


def _pid_of_etcd(cluster: KubeCluster) -> int:
    """The child of this process that is the cluster's etcd."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if f"{cluster.folder}/etcd" in (entry / "cmdline").read_text():
                    return int(entry.name)
    raise AssertionError("no etcd")


def _show(name: str, found: Round) -> None:
    spent = " ".join(f"{process} {value:.1f}" for process, value in found.spent.items())
    print(f"{name:24} {found.rate:6.1f} pods/s; ms a pod: {spent}", flush=True)


def summary(rounds: dict[str, list[Round]]) -> None:
    """Medians, and ours against kube-scheduler's."""
    print("\nmedians")
    middle: dict[str, Round] = {}
    for name, found in rounds.items():
        spent = {process: median(one.spent[process] for one in found) for process in found[0].spent}
        middle[name] = Round(median(one.rate for one in found), spent)
        _show(name, middle[name])
    for kind in CLASSES:
        mine, theirs = middle.get(f"drakkar {kind}"), middle.get(f"kube-scheduler {kind}")
        if mine is not None and theirs is not None:
            part = mine.spent["scheduler"] / theirs.spent["scheduler"]
            inside = middle[f"embedded {kind}"]
            print(
                f"{kind}: {mine.rate / theirs.rate:.2f} times as many pods a second on the same server, "
                f"1/{1 / part:.1f} of the scheduler's processor time, {theirs.total / mine.total:.2f} times as many "
                f"pods for all of it; embedded {inside.rate / theirs.rate:.1f} times as many pods a second, "
                f"{theirs.total / inside.total:.1f} times as many for all processor time"
            )


def asked(part: Part, path: str) -> str:
    """What our scheduler answers at its own address."""
    match = re.search(r"health and metrics at (\S+)", part.output)
    assert match, part.output
    with urllib.request.urlopen(match[1] + path, timeout=10) as answer:
        return answer.read().decode()


def decisions(part: Part) -> tuple[float, float]:
    """How many decisions there were, and their seconds in all."""
    text = asked(part, "/metrics")
    found = re.findall(r"^scheduler_scheduling_attempt_duration_seconds_(?:sum|count) (\S+)", text, re.MULTILINE)
    seconds, count = map(float, found)
    return count, seconds


async def scale(args: argparse.Namespace, folder: Path) -> None:
    """Our memory and our decisions as the number of nodes grows; pods that differ, so that each needs a decision."""
    with kube_cluster(folder) as cluster, cluster.controller_manager():
        async with connect(cluster.kubeconfig()) as client, Load(client).following() as load:
            await grant(client)
            await classes(client)
            reached = 0
            for nodes in (1000, 5000):
                await populate(client, nodes, args.devices, reached)
                reached = nodes
                with ours(cluster, "--no-leader-elect") as part:
                    await load.place(1, "plain", NAME, timeout=90)
                    for kind in args.classes.split(","):
                        # The first pod of a class pays for what is worked out once.
                        await load.place(1, kind, NAME)
                        count, seconds = decisions(part)
                        spent, pods = processor_time(part.process.pid), args.pods // 5
                        for _ in range(pods):
                            await load.place(1, kind, NAME)
                        more, longer = decisions(part)
                        each = (processor_time(part.process.pid) - spent) / pods * 1e3
                        print(
                            f"{nodes} nodes x {args.devices}, {kind}, one pod at a time: {each:.1f} ms of processor "
                            f"time a pod, {(longer - seconds) / (more - count) * 1e6:.0f} us a decision",
                            flush=True,
                        )
                    now, peak = memory(part.process.pid)
                    print(f"{nodes} nodes x {args.devices}: {now:.0f} MB resident, {peak:.0f} MB at most", flush=True)
                await load.clear()


async def failover(args: argparse.Namespace, folder: Path) -> None:
    """The leader is killed amid pods: until the next is bound; nothing may be given twice."""
    with kube_cluster(folder) as cluster, cluster.controller_manager():
        user = str(cluster.kubeconfig())
        flags = ("scheduler", "--mode", "own", "--scheduler-name", NAME, "--kubeconfig", user)
        lease = 3.0
        async with connect(cluster.kubeconfig()) as client, Load(client).following() as load:
            await populate(client, args.nodes, args.devices)
            await classes(client)
            with contextlib.ExitStack() as stack:
                parts = [
                    stack.enter_context(Part(*flags, "--leader-elect-lease-duration", str(lease))) for _ in range(2)
                ]
                await load.place(5, "plain", NAME)
                while not all("metrics at" in part.output and asked(part, "/readyz") == "ok" for part in parts):
                    await asyncio.sleep(0.1)
                (leader,) = [part for part in parts if "drakkar_leading 1" in asked(part, "/metrics")]
                placing = asyncio.create_task(load.place(args.pods, "plain", NAME))
                first = len(load.bound)
                while len(load.bound) < first + args.pods // 4:
                    await asyncio.sleep(0.005)
                leader.process.kill()
                leader.process.wait()
                killed = time.perf_counter()
                # What the dead one had sent may still be on its way for a moment.
                await asyncio.sleep(0.5)
                seen = len(load.bound)
                while len(load.bound) == seen:
                    await asyncio.sleep(0.005)
                took = time.perf_counter() - killed
                await placing
                faults = verify(await collect(client))
        print(
            f"leader killed amid {args.pods} pods, lease of {lease:g} s: next pod bound after {took:.1f} s; "
            f"all are bound; {len(faults)} faults found by verify"
        )
        for fault in faults:
            print(f"  {fault}")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--pods", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--classes", default="plain,cel,heavy")
    parser.add_argument("--only", choices=("throughput", "scale", "failover"), default="throughput")
    args = parser.parse_args()
    where = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=where, prefix="drakkar-") as name:
        folder = Path(name)
        if args.only == "scale":
            asyncio.run(scale(args, folder))
        elif args.only == "failover":
            asyncio.run(failover(args, folder))
        else:
            summary(asyncio.run(throughput(args, folder)))


if __name__ == "__main__":
    main()
