"""The kill loop of a node: agent, drivers, monitors of containers and runc die at named points while pods come and go.

Each has somebody of its own who kills it, all at the same time: he lays a trap at a point (a file of that name, see
`drakkar.plugin.failpoints`), waits until somebody has died in it, starts that process again and lets pods come to where
they belong before the next one. `./do kill node` runs many rounds, `tests/e2e/test_node_kills.py` what CI has time for.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import itertools
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drakkar.api.kinds import DEVICECLASS, POD, RESOURCECLAIM, RESOURCECLAIMTEMPLATE, RESOURCESLICE
from drakkar.api.meta import Object
from drakkar.api.objects import pod_is_done, uid_of
from drakkar.node.agent import mounts, shim, shims
from drakkar.plugin import failpoints
from tests.support.agents import NODE, Cluster, cluster, end_containers
from tests.support.drivermain import Ledger
from tests.support.eventually import eventually
from tests.support.guard import guarded
from tests.support.shared import ROOT

#: Drivers by their kind (`tests.support.drivermain`): the driver's name.
DRIVERS = {"example": "example.drakkar.dev", "gpu": "gpu.drakkar.dev"}
#: Where the agent dies: at its own points, and while runc does what the agent has asked for.
IN_RUNC = ("agent-in-start", "agent-in-kill", "agent-in-delete")
#: Where runc dies: before it does anything, in the middle (in a hook), when all is done and nobody told.
RUNC = (
    "runc-create-before",
    "runc-create-hook",
    "runc-late-create-hook",
    "runc-create-after",
    "runc-start-before",
    "runc-start-after",
    "runc-kill-before",
    "runc-kill-after",
    "runc-delete-before",
    "runc-delete-hook",
    "runc-delete-after",
)
#: Where the monitor of a container dies: at its own points, and while runc makes the container for it.
MONITOR = (*shim.POINTS, "monitor-in-create", "monitor-in-late-create")
#: Points that a process comes to only when it starts.
AT_START = ("devices-discovered", "service-open")
#: Starts a process that dies.
Start = Callable[[], Awaitable[asyncio.subprocess.Process]]
#: Seconds until a point must have been met, else another one has its turn; and for pods to come to where they belong.
PATIENCE, CONVERGE = 20.0, 120.0

#: Stands before runc on the PATH of the agent. Where there is nothing to do, nobody dies.
_RUNC = """#!/bin/sh
root= verb= name= last=
for word; do
    case $word in create|start|kill|delete) [ -n "$verb" ] || verb=$word ;; esac
    [ "$last" != --root ] || root=$word
    [ "$last" != --all ] || name=$word
    last=$word
done
[ "$verb" = kill ] || name=$last
taken() { [ -e "TRAPS/$1" ] && { [ "$verb" = create ] || [ -e "$root/$name" ]; } && mv "TRAPS/$1" "TRAPS/$1.met"; }
if [ -n "$verb" ]; then
    if taken "runc-$verb-before" 2>/dev/null; then kill -9 $$; fi
    if taken "agent-in-$verb" 2>/dev/null; then kill -9 $PPID; fi
    if [ -e "TRAPS/runc-$verb-after" ]; then
        worth=$([ "$verb" = create ] || [ -e "$root/$name" ] && echo yes)
        PROGRAM "$@"
        code=$?
        if [ $code = 0 ] && [ "$worth" ] && mv "TRAPS/runc-$verb-after" "TRAPS/runc-$verb-after.met" 2>/dev/null; then
            kill -9 $$
        fi
        exit $code
    fi
fi
exec PROGRAM "$@"
"""
#: What runc runs in the middle of its steps.
_HOOK = """#!/bin/sh
taken() { [ -e "TRAPS/$1" ] && mv "TRAPS/$1" "TRAPS/$1.met" 2>/dev/null; }
if taken "runc-$1-hook"; then kill -9 $PPID; fi
if taken "monitor-in-$1"; then
    read -r _ _ _ parent _ < /proc/$PPID/stat
    kill -9 $parent
    sleep 0.2
fi
exit 0
"""


class Traps:
    """The folder in which one kind of process looks for traps."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def lay(self, point: str) -> None:
        (self.folder / point).touch()

    def sprung(self, point: str) -> bool:
        """Whether somebody has died there."""
        return (self.folder / f"{point}.met").exists()

    def clear(self, point: str) -> bool:
        """Take the trap away; whether somebody died in it after all."""
        (self.folder / point).unlink(missing_ok=True)
        met = self.sprung(point)
        (self.folder / f"{point}.met").unlink(missing_ok=True)
        return met


def lay_programs(folder: Path, traps: Path) -> None:
    """Write what stands between agent and runc: `bin/runc` and `hook`."""
    for name, text in (("bin/runc", _RUNC), ("hook", _HOOK)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("TRAPS", str(traps)).replace("PROGRAM", shutil.which("runc") or "/bin/false"))
        path.chmod(0o755)


class Killing:
    """Whose turn it is: every point of one kind of process, `rounds` times each, in an order of its own each round."""

    def __init__(self, points: Sequence[str], rounds: int, rng: random.Random):
        self._left = dict.fromkeys(points, rounds)
        self._rng = rng

    def __bool__(self) -> bool:
        return any(left > 0 for left in self._left.values())

    def turns(self) -> Iterator[str]:
        """Points, until each was met often enough; :meth:`met` says so."""
        while self:
            most = max(self._left.values())
            now = [point for point, left in self._left.items() if left == most]
            self._rng.shuffle(now)
            yield from now

    def met(self, point: str) -> None:
        self._left[point] -= 1


@dataclass
class Run:
    """One run; `kills` counts what really died, by point, `missed` the turns in which nobody came to the point."""

    seed: int
    folder: Path
    root: Path
    runtime: str
    rounds: int
    say: Callable[[str], None] = lambda text: None
    kills: Counter[str] = field(default_factory=Counter[str])
    missed: Counter[str] = field(default_factory=Counter[str])
    #: What is killed: any of "agent", "driver", "runtime".
    who: Sequence[str] = ("agent", "driver", "runtime")
    #: How many pods came and went, and how often one came to where it belongs.
    pods: int = 0
    arrivals: int = 0

    def points(self) -> dict[str, tuple[str, ...]]:
        """The points of this run, by what dies there."""
        runc = self.runtime == "oci"
        monitor = MONITOR if runc else shim.POINTS
        found = {
            "agent": (*failpoints.AGENT, *(IN_RUNC if runc else ())),
            "driver": failpoints.DRIVER,
            "runtime": (*monitor, *(RUNC if runc else ())),
        }
        return {who: found[who] for who in self.who}

    def run(self) -> None:
        """Kill everything; raises AssertionError when a device leaks, is given twice, or a pod does not converge."""
        self.rng = random.Random(self.seed)
        self.traps = {who: Traps(self.folder / "traps" / who) for who in ("node", *DRIVERS)}
        lay_programs(self.folder, self.traps["node"].folder)
        self.ledgers = {kind: Ledger(self.folder / kind) for kind in DRIVERS}
        self.started: dict[str, asyncio.subprocess.Process] = {}
        self.uids: list[str] = []
        self._over = False
        with _clean(self):
            asyncio.run(self._run())

    async def _run(self) -> None:
        async with cluster(self.folder, self.root) as site:
            self.site = site
            for name in DRIVERS.values():
                await _offer(site, name)
            (self.root / "plugins_registry").mkdir(parents=True, exist_ok=True)
            async with asyncio.TaskGroup() as group:
                killers = self._killers(group)
                lanes = [group.create_task(self._lane(number)) for number in range(4)]
                await asyncio.gather(*killers)
                self._over = True
                await asyncio.gather(*lanes)
                await self._nothing_is_left()
                for process in self.started.values():
                    process.kill()
                    await process.wait()

    def _killers(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        points = self.points()
        turns = {who: Killing(points.get(who, ()), self.rounds, self.rng) for who in ("agent", "driver", "runtime")}
        # A driver's points are shared by the two drivers.
        shared = turns["driver"].turns()
        return [
            group.create_task(self._kill("agent", turns["agent"], turns["agent"].turns(), "node", self._agent)),
            *(
                group.create_task(self._kill("driver", turns["driver"], shared, kind, lambda k=kind: self._driver(k)))
                for kind in DRIVERS
            ),
            group.create_task(self._kill("runtime", turns["runtime"], turns["runtime"].turns(), "node", None)),
        ]

    # Who dies.

    async def _kill(self, who: str, killing: Killing, turns: Iterator[str], traps: str, start: Start | None) -> None:
        """Kill one kind of process; `start` starts it again, None where others do."""
        process = await start() if start else None
        for point in turns:
            await self._progress()
            if point in AT_START and process and start:
                process.kill()
                await process.wait()
                self.traps[traps].lay(point)
                process = await start()
            else:
                self.traps[traps].lay(point)
            with suppress(AssertionError):
                await eventually(
                    lambda p=point: asyncio.to_thread(self.traps[traps].sprung, p), bool, timeout=PATIENCE, pause=0.05
                )
            if not self.traps[traps].clear(point):
                assert process is None or process.returncode is None, f"{who} ended by itself:\n{self._logs()}"
                self.missed[point] += 1
                self.say(f"  nobody came to {point}")
                continue
            killing.met(point)
            self.kills[f"{who}: {point}"] += 1
            self.say(f"  {traps if who == 'driver' else who} died at {point}")
            if process and start:
                await process.wait()
                assert process.returncode == -signal.SIGKILL, f"{who} ended by itself:\n{self._logs()}"
                process = await start()

    async def _progress(self) -> None:
        """Wait until a pod has come to where it belongs: a node of which all dies all the time runs none."""
        before = self.arrivals
        with suppress(AssertionError):
            await eventually(lambda: asyncio.sleep(0, self.arrivals), lambda now: now > before, timeout=PATIENCE)

    async def _agent(self) -> asyncio.subprocess.Process:
        env = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        where = (self.site.serving.url, str(self.folder / "pki"), str(self.root), self.runtime)
        return await self._spawn("agent", "tests.support.agentmain", where, "node", env)

    async def _driver(self, kind: str) -> asyncio.subprocess.Process:
        hook = str(self.folder / "hook") if self.runtime == "oci" else ""
        flags = ["--kubeconfig", str(self.site.kubeconfig), "--node-name", NODE, "--kubelet-root", str(self.root)]
        flags += ["--cdi-dir", str(self.root / "cdi"), "--health-period", "1"]
        words = (kind, str(self.folder / kind), hook, *flags)
        return await self._spawn(f"driver {kind}", "tests.support.drivermain", words, kind, {})

    async def _spawn(
        self, who: str, module: str, words: Sequence[str], traps: str, more: dict[str, str]
    ) -> asyncio.subprocess.Process:
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", **more}
        env[failpoints.VARIABLE] = str(self.traps[traps].folder)
        with (self.folder / f"{who}.log").open("ab") as log:
            command = (sys.executable, "-m", module, *words)
            process = await asyncio.create_subprocess_exec(*command, env=env, cwd=ROOT, stderr=log)
        guarded(process.pid)
        self.started[who] = process
        return process

    def _logs(self) -> str:
        return "\n".join(f"{who}:\n{(self.folder / f'{who}.log').read_text()[-3000:]}" for who in self.started)

    # Pods.

    async def _lane(self, lane: int) -> None:
        """Pods come and go: some end, some are deleted, some are forgotten by force; each comes to its end."""
        for number in itertools.count():
            if self._over:
                return
            name = f"p{lane}-{number}"
            ends = self.rng.random() < 0.4
            self.uids.append(uid_of(await self.site.client.create(POD, self._pod(name, ends))))
            early = self.rng.random() < 0.25
            if early:
                await asyncio.sleep(self.rng.random())
            else:
                await self._converges(name, self.site.pod, pod_is_done if ends else _runs_or_is_done)
            await self.site.client.delete(POD, name, "default", grace=0 if self.rng.random() < 0.2 else None)
            await self._converges(name, self._gone, bool)
            self.pods += 1

    async def _gone(self, name: str) -> bool:
        return not (await self.site.client.list(POD, "default", field_selector=f"metadata.name={name}")).items

    async def _converges(self, name: str, read: Callable[[str], Any], holds: Callable[[Any], object]) -> None:
        try:
            await eventually(lambda: read(name), holds, timeout=CONVERGE, pause=0.1)
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}: pod {name} does not converge: {error}\n{self._logs()}") from None
        self.arrivals += 1

    def _pod(self, name: str, ends: bool) -> Object:
        drivers = self.rng.choice((("example",), ("gpu",), ("example", "gpu")))
        script = self.rng.choice(("echo good", "exit 3")) if ends else "sleep 1000"
        container: Object = {"name": "main", "image": "host", "command": ["sh", "-c", script]}
        container["resources"] = {"claims": [{"name": kind} for kind in drivers]}
        spec: Object = {
            "containers": [container],
            "resourceClaims": [{"name": kind, "resourceClaimTemplateName": DRIVERS[kind]} for kind in drivers],
            "terminationGracePeriodSeconds": 1,
            "restartPolicy": "Never" if ends else self.rng.choice(("Never", "Always")),
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}

    # The end.

    async def _nothing_is_left(self) -> None:
        for kind, ledger in self.ledgers.items():
            assert not ledger.faults(), f"seed {self.seed}: {kind}: {ledger.faults()}"
            await self._becomes_empty(f"devices of {kind} in use", lambda ledger=ledger: ledger.held())
        client, root = self.site.client, self.root
        await eventually(lambda: client.list(RESOURCECLAIM), lambda found: not found.items, timeout=CONVERGE)
        for name in DRIVERS.values():
            folder = root / "plugins" / name
            await self._becomes_empty(f"records of {name}", lambda folder=folder: _names(folder / "claims"))
            await self._becomes_empty(f"metadata of {name}", lambda f=folder: _names(f / "dra-device-metadata"))
            await eventually(lambda name=name: self._published(name), bool, timeout=CONVERGE)
        for what in ("cdi", "pods", "claims", "s", "runc"):
            await self._becomes_empty(what, lambda what=what: _names(root / what))
        await self._becomes_empty("mounts", lambda: mounts.mounted_below(root))
        await self._becomes_empty("processes", lambda: _alive(root))
        await self._becomes_empty("partitions", lambda: _partitions(self.folder / "gpu" / "gpus"))
        await self._becomes_empty("control groups", lambda: _groups(self.uids))

    async def _becomes_empty(self, what: str, read: Callable[[], Any]) -> None:
        try:
            await eventually(lambda: asyncio.to_thread(read), lambda found: not found, timeout=CONVERGE, pause=0.2)
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}: {what} are left: {error}") from None

    async def _published(self, driver: str) -> bool:
        """Whether the driver's slices are one whole generation."""
        slices = [found for found in (await self.site.client.list(RESOURCESLICE)).items if found.spec.driver == driver]
        pools = {(s.spec.pool.name, s.spec.pool.generation, s.spec.pool.resourceSliceCount) for s in slices}
        return len(pools) == 1 and len(slices) == next(iter(pools))[2]


async def _offer(site: Cluster, driver: str) -> None:
    """A class and a template of the driver's name, for any device of it."""
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    head = {"apiVersion": "resource.k8s.io/v1"}
    spec: Object = {"selectors": [selector]}
    await site.client.create(DEVICECLASS, {**head, "kind": "DeviceClass", "metadata": {"name": driver}, "spec": spec})
    request = {"name": "r", "exactly": {"deviceClassName": driver}}
    if driver == DRIVERS["gpu"]:
        cut = 'device.attributes["gpu.drakkar.dev"].type == "mig"'
        request["exactly"] = {"deviceClassName": driver, "selectors": [{"cel": {"expression": cut}}]}
    metadata = {"name": driver, "namespace": "default"}
    spec = {"spec": {"devices": {"requests": [request]}}}
    template = {**head, "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": spec}
    await site.client.create(RESOURCECLAIMTEMPLATE, template)


def _runs_or_is_done(pod: Object) -> bool:
    return pod["status"].get("phase") == "Running" or pod_is_done(pod)


def _names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.is_dir() else []


def _alive(root: Path) -> list[str]:
    """Processes of containers and their monitors that are still there."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().decode("utf-8", "replace").replace("\0", " ")
            ours = str(root) in words and "tests.support" not in words
            if ours and shims.start_time(int(path.parent.name)):
                found.append(words)
    return found


def _partitions(folder: Path) -> list[str]:
    from drakkar.drivers.gpu.fake import FakeHardware

    return [instance.uuid for instance in FakeHardware(folder, count=2).state.instances]


def _groups(uids: Sequence[str]) -> list[str]:
    """Control groups of these pods, in version 1 and 2."""
    top = Path("/sys/fs/cgroup")
    tops = [top, *(path for path in top.iterdir() if path.is_dir())] if top.is_dir() else []
    return [str(path) for each in tops for uid in uids if (path := each / "drakkar" / uid).exists()]


@contextmanager
def _clean(run: Run) -> Iterator[None]:
    """After this nothing of a run goes on, also when it has failed."""
    try:
        yield
    finally:
        for process in run.started.values():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        end_containers(run.root)


def report(kills: Counter[str]) -> str:
    """A table of kills by point."""
    rows = [f"  {point:<32} {count:>4}" for point, count in sorted(kills.items())]
    return "\n".join([*rows, f"  {'all':<32} {sum(kills.values()):>4}"])


def versions(runtime: str) -> str:
    """What a result depends on."""
    words = [f"CPython {platform.python_version()}", f"Linux {platform.release()}"]
    if runtime == "oci":
        said = subprocess.run(["runc", "--version"], check=True, capture_output=True, text=True).stdout
        words.append(said.splitlines()[0].replace(" version", ""))
    return ", ".join(words)


def usual_runtime() -> str:
    """`oci` where that is possible."""
    return "oci" if os.geteuid() == 0 and shutil.which("runc") else "process"


def main() -> int:
    """Run until every point was met often enough, and print the report."""
    parser = argparse.ArgumentParser(description="kill agent, drivers, monitors and runc while pods come and go")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often each point is met (default 5)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the order and of what pods do")
    parser.add_argument("--runtime", choices=("oci", "process"), default=usual_runtime())
    parser.add_argument("--keep", action="store_true", help="keep the folders with the logs")
    args = parser.parse_args()
    with ExitStack() as stack:
        folder, root = (
            Path(
                tempfile.mkdtemp(prefix="dk")
                if args.keep
                else stack.enter_context(tempfile.TemporaryDirectory("", "dk"))
            )
            for _ in range(2)
        )
        run = Run(args.seed, Path(folder), Path(root), args.runtime, args.rounds, lambda text: print(text, flush=True))
        print(f"logs in {folder}", flush=True)
        run.run()
    print(f"{datetime.date.today()}, {versions(args.runtime)}, seed {args.seed}")
    print(report(run.kills))
    print(f"{run.pods} pods; not met in their turn: {dict(run.missed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
