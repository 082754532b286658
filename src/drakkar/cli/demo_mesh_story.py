"""The story of the mesh demo, in namespaces of its own: plane, four nodes with their drivers, an MPI job, twice.

Run as ``python -m drakkar.cli.demo_mesh_story OPTIONS`` by `drakkar.cli.demo_mesh`, with OPTIONS in JSON; it ends when
its standard input closes. Agents and drivers are the commands that a user would give, each in a process of its own.
What happens goes through the API: nothing here places a pod or hands over a device.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from drakkar.api.errors import ApiError, DrakkarError, EnvironmentProblem
from drakkar.api.kinds import EVENT, JOB, NODE, POD, RESOURCECLAIM, RESOURCESLICE, STATEFULSET
from drakkar.api.meta import Object
from drakkar.api.objects import condition_is, name_of
from drakkar.cli import guarded
from drakkar.cli.demo_mesh_figures import Measurement, judge, measurement_of, summary, table
from drakkar.cli.demo_mesh_network import RATE, Machine, MeshNetwork, build
from drakkar.cli.logs import configure
from drakkar.cli.manifests import apply, read_objects
from drakkar.cli.plane import Plane, PlaneOptions
from drakkar.cli.target import connect
from drakkar.client import Client
from drakkar.drivers.computedomain.names import COMPUTEDOMAIN
from drakkar.drivers.computedomain.names import NAME as DOMAINS
from drakkar.drivers.gpu.devices import NAME as GPUS
from drakkar.node.agent import mounts

NODES = tuple(f"mesh-{number}" for number in range(4))
#: The clique that fake GB200 say they are on.
CLIQUE = "0b9c7d1e-5a52-4b7e-9c3a-6a1c2f0e7d11.0"
MANIFESTS = ("crd.yaml", "classes.yaml", "job.yaml")
PROGRAMS = ("launch.py", "enter.py", "measure.py")
#: Everything of the nodes lies in memory, as that of their GPUs has to.
_MEMORY = "2Gi"
#: Seconds between two looks at what is waited for, and for a part to end.
_LOOK, _END = 0.1, 10.0
_POD_LOG = "/api/v1/namespaces/default/pods/{}/log"
T = TypeVar("T")


class Options(msgspec.Struct, frozen=True):
    """What the user asked for; ``patience`` in seconds for each step."""

    folder: str
    megabytes: int
    patience: float
    hold: bool
    json: str | None = None
    logs: str | None = None


class Parts:
    """Processes of the demo; each writes a log of its own. None is to end before the demo does."""

    def __init__(self, logs: Path, kubeconfig: Path):
        self._logs = logs
        self._env = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        self._running: list[asyncio.subprocess.Process] = []
        self._watching: list[asyncio.Task[None]] = []
        #: Gets a DrakkarError when a part has ended.
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self, name: str, command: Sequence[str], machine: Machine | None = None) -> None:
        """Start a command of ours, on a machine of the mesh or on this one."""
        words = [sys.executable, "-m", "drakkar.cli", *command]
        with (self._logs / f"{name}.log").open("ab") as log:
            part = await asyncio.create_subprocess_exec(
                *(machine.enter(words) if machine else words),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                start_new_session=True,
            )
        self._running.append(part)
        self._watching.append(asyncio.create_task(self._watch(name, part), name=f"watch {name}"))

    async def _watch(self, name: str, part: asyncio.subprocess.Process) -> None:
        code = await part.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        lines = (self._logs / f"{name}.log").read_text(errors="replace").splitlines()
        if not self.failed.done():
            words = "\n".join(["; its log ends:", *lines[-3:]]) if lines else ""
            self.failed.set_exception(DrakkarError(f"{name} {how}{words}"))

    async def stop(self) -> None:
        """End all."""
        for task in self._watching:
            task.cancel()
        self.failed.cancel()
        for number in (signal.SIGTERM, signal.SIGKILL):
            alive = [part for part in self._running if part.returncode is None]
            for part in alive:
                with contextlib.suppress(ProcessLookupError):
                    part.send_signal(number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END):
                    await asyncio.gather(*(part.wait() for part in alive))


async def main(options: Options) -> int:
    """Tell the story until it is told or standard input closes."""
    teller = _Story(options)
    story = asyncio.create_task(teller.run(), name="story")
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_reader(0)
        story.cancel()

    loop.add_reader(0, stop)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        return await story
    except asyncio.CancelledError:
        return 130 if teller.held is None else teller.held


class _Story:
    def __init__(self, options: Options):
        self._options = options
        self._started = time.monotonic()
        self._folder = Path(options.folder)
        self._nodes = self._folder / "n"
        self._logs = Path(options.logs) if options.logs else self._folder / "logs"
        #: The code of a story that is told, whose nodes stay until the user ends them.
        self.held: int | None = None

    async def run(self) -> int:
        async with contextlib.AsyncExitStack() as stack:
            network = await asyncio.to_thread(self._lay_out)
            stack.callback(network.remove)
            self._tell(f"{len(NODES)} networks made, joined by links of {RATE}; starting the control plane")
            data = self._folder / "plane"
            data.mkdir()
            plane = await stack.enter_async_context(Plane(PlaneOptions(data=data, store="memory", listen=network.host)))
            self._tell(f"API server ready at {plane.url}")
            client = await stack.enter_async_context(connect(plane.kubeconfig))
            parts = Parts(self._logs, plane.kubeconfig)
            await stack.enter_async_context(self._cleared(parts))
            telling = asyncio.create_task(self._direct(client, parts, network, plane.kubeconfig), name="story told")
            failing = asyncio.create_task(plane.until(asyncio.Event()), name="plane")
            try:
                await asyncio.wait({telling, failing, parts.failed}, return_when=asyncio.FIRST_COMPLETED)
                # Where several have ended, the part is the cause.
                for one in (parts.failed, failing, telling):
                    if one.done():
                        one.result()
                return telling.result()
            finally:
                for task in (telling, failing):
                    task.cancel()
                await asyncio.gather(telling, failing, return_exceptions=True)

    async def _direct(self, client: Client, parts: Parts, network: MeshNetwork, kubeconfig: Path) -> int:
        await self._start_nodes(client, parts, network)
        within, without = await self._measure_both(client)
        code = self._report(within, without)
        if self._options.hold:
            print(f"\n  export KUBECONFIG={kubeconfig}\n\nThe nodes stay; Ctrl-C ends them.", flush=True)
            self.held = code
            await asyncio.Event().wait()
        return code

    def _tell(self, text: str) -> None:
        print(f"{time.monotonic() - self._started:6.2f} s  {text}", flush=True)

    # The machines.

    def _lay_out(self) -> MeshNetwork:
        self._nodes.mkdir()
        self._logs.mkdir(parents=True, exist_ok=True)
        try:
            mounts.tmpfs(self._nodes, _MEMORY)
        except mounts.MountProblem as error:
            raise EnvironmentProblem(f"demo mesh: {error}") from None
        return build(NODES)

    async def _start_nodes(self, client: Client, parts: Parts, network: MeshNetwork) -> None:
        for machine in network.machines:
            root = self._nodes / machine.name
            where = ["--root", str(root), "--cdi-dir", str(root / "cdi"), "--pod-cidr", machine.pods]
            await parts.start(f"agent-{machine.name}", ["node", "run", "--name", machine.name, *where], machine)
        for manifest in MANIFESTS[:-1]:
            for obj in read_objects(_file(manifest)):
                await apply(client, obj)
        await parts.start("computedomain", ["driver", "run", "computedomain", "--cluster"])
        words = f"the nodes are not ready (does a firewall stop what comes in by link {network.link}?)"
        await self._until(words, client, lambda: _all_ready(client, NODE), bool)
        self._tell(f"nodes {', '.join(NODES)} are ready, each an agent with runc in a network of its own")
        for machine in network.machines:
            root = self._nodes / machine.name
            gpus = self._nodes / f"{machine.name}-gpus"
            where = ["--node-name", machine.name, "--kubelet-root", str(root), "--cdi-dir", str(root / "cdi")]
            run = ["driver", "run"]
            fake = ["--fake", "gb200", "--mig", "off", "--fake-memory", str(gpus)]
            await parts.start(f"gpu-{machine.name}", [*run, "gpu", *where, *fake], machine)
            await _exists(gpus)
            fake = ["--clique", CLIQUE, "--fake-fabric", str(self._nodes / "fabric"), "--fake-gpus", str(gpus)]
            await parts.start(f"computedomain-{machine.name}", [*run, "computedomain", *where, *fake], machine)
        await self._until(
            "the drivers do not publish their devices",
            client,
            lambda: _devices(client),
            lambda found: found == (16, len(NODES)),
        )
        self._tell("drivers gpu and computedomain: 16 GPUs (fake GB200) and the channels of their one clique published")

    @contextlib.asynccontextmanager
    async def _cleared(self, parts: Parts) -> AsyncIterator[None]:
        """At the end no part and no container is left; the kernel would end them, but not remove control groups."""
        try:
            yield
        finally:
            await asyncio.shield(self._clear(parts))

    async def _clear(self, parts: Parts) -> None:
        from drakkar.node.agent.oci_runtime import OciRuntime

        await parts.stop()
        for name in NODES:
            runtime = OciRuntime.open(self._nodes / name, None)
            pods = self._nodes / name / "pods"
            await asyncio.gather(*(runtime.remove(identity, pods) for identity in await runtime.leftovers()))
        await asyncio.to_thread(mounts.discard, self._nodes)

    # The job.

    async def _measure_both(self, client: Client) -> tuple[Measurement, Measurement]:
        programs = {name: _file(name).read_text() for name in PROGRAMS}
        await apply(client, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mesh"}, "data": programs})
        job = read_objects(_file(MANIFESTS[-1]))
        for obj in job:
            if obj["kind"] == "Job":
                env = obj["spec"]["template"]["spec"]["containers"][0]["env"]
                next(entry for entry in env if entry["name"] == "MEGABYTES")["value"] = str(self._options.megabytes)
        self._tell("with the domain: four workers with four GPUs each and the channel of ComputeDomain mesh")
        within = await self._measure(client, job)
        self._tell("without it: the same workers without the claim of the channel")
        without = await self._measure(client, without_domain(job))
        return within, without

    async def _measure(self, client: Client, job: Sequence[Object]) -> Measurement:
        for obj in job:
            await apply(client, obj)
        await self._until("the workers do not run", client, lambda: _all_ready(client, POD, "job=mesh"), bool)
        pods = (await client.list(POD, "default", label_selector="job=mesh")).items
        places = ", ".join(f"{name_of(pod)} on {pod['spec']['nodeName']}" for pod in sorted(pods, key=name_of))
        self._tell(f"running: {places}")
        if any(obj["kind"] == COMPUTEDOMAIN.kind for obj in job):
            domain = await client.get(COMPUTEDOMAIN, "mesh", "default")
            message = domain["status"]["conditions"][0]["message"]
            self._tell(f"ComputeDomain mesh: {domain['status']['status']}, {message}, {domain['status']['channel']}")
        begun = time.monotonic()
        await self._until(
            "the ranks do not end",
            client,
            lambda: client.get(JOB, "launcher", "default"),
            lambda job: condition_is(job, "Complete") or condition_is(job, "Failed"),
        )
        measurement = await _result(client)
        pairs = len(measurement.ranks) ** 2
        self._tell(f"{len(measurement.ranks)} ranks have measured {pairs} pairs, in {time.monotonic() - begun:.1f} s")
        await self._take_away(client, job)
        return measurement

    async def _take_away(self, client: Client, job: Sequence[Object]) -> None:
        await client.delete(JOB, "launcher", "default", propagation="Background")
        await client.delete(STATEFULSET, "worker", "default", propagation="Background")

        async def left() -> int:
            return len((await client.list(POD, "default")).items)

        await self._until("the pods do not end", client, left, lambda count: count == 0)
        if any(obj["kind"] == COMPUTEDOMAIN.kind for obj in job):
            await client.delete(COMPUTEDOMAIN, "mesh", "default", propagation="Background")

        async def held() -> int:
            return len((await client.list(RESOURCECLAIM, "default")).items)

        await self._until("the claims do not end", client, held, lambda count: count == 0)

    async def _until(
        self,
        words: str,
        client: Client,
        read: Callable[[], Coroutine[Any, Any, T]],
        holds: Callable[[T], object],
    ) -> T:
        """Look until it holds. Raises DrakkarError with ``words`` and what the cluster complains of."""
        deadline = time.monotonic() + self._options.patience
        while True:
            found = await read()
            if holds(found):
                return found
            if time.monotonic() > deadline:
                said = await _complaints(client)
                raise DrakkarError(f"{words} after {self._options.patience:g} s{said}; --logs DIR keeps all logs")
            await asyncio.sleep(_LOOK)

    # The end.

    def _report(self, within: Measurement, without: Measurement) -> int:
        for words, run in (("with the domain", within), ("without it", without)):
            print(f"\n{words}: GB/s, from the GPU of a row (node.GPU) to that of a column\n{table(run, run.bandwidth)}")
            print(f"{words}: microseconds, one way\n{table(run, run.latency)}\n{words}: {summary(run)}")
        other = without.ranks[0].access
        print(
            f"\na worker without the channel: /fabric: {other.fabric}; the channel's device: {other.channel}; one made "
            f"by itself: {other.forged}"
        )
        print(_HONESTLY)
        faults = judge(within, without)
        if self._options.json:
            document = {"with": within, "without": without, "faults": faults}
            document["seconds"] = time.monotonic() - self._started
            Path(self._options.json).write_bytes(msgspec.json.encode(document))
        if faults:
            print("\nnot as the claims say:")
            for fault in faults:
                print(f"  {fault}")
            return 1
        print("\nall pairs are uniform with the domain; without it other nodes are slow, as the claims say")
        return 0


_HONESTLY = """
What this is: scheduling, claims, prepare, CDI, containers, their mounts and device filters, networks and MPI are real.
What it is not: there is no GPU and no NVLink. A file in memory stands for the memory of a GPU; who may map whose file
is decided by the claims. A copy is a memcpy on this machine, both ends of which share its memory, so GB/s and
microseconds say nothing about NVLink. Nodes are namespaces of one machine, their links are slowed down by tbf."""


def without_domain(job: Sequence[Object]) -> list[Object]:
    """The same job without the ComputeDomain, and without the claim of its channel in the workers."""
    rest = [copy.deepcopy(obj) for obj in job if obj["kind"] != COMPUTEDOMAIN.kind]
    for obj in rest:
        if obj["kind"] == STATEFULSET.kind:
            spec = obj["spec"]["template"]["spec"]
            spec["resourceClaims"] = [claim for claim in spec["resourceClaims"] if claim["name"] != "channel"]
            for container in spec["containers"]:
                claims = container["resources"]["claims"]
                container["resources"]["claims"] = [claim for claim in claims if claim["name"] != "channel"]
    return rest


async def _all_ready(client: Client, kind: Any, selector: str = "") -> bool:
    found = (await client.list(kind, "default" if kind.namespaced else None, label_selector=selector)).items
    return len(found) == len(NODES) and all(condition_is(obj, "Ready") for obj in found)


async def _devices(client: Client) -> tuple[int, int]:
    """How many GPUs are published, and how many nodes the clique has."""
    slices = (await client.list(RESOURCESLICE)).items
    gpus = sum(len(found.spec.devices) for found in slices if found.spec.driver == GPUS)
    channels = [device for found in slices if found.spec.driver == DOMAINS for device in found.spec.devices]
    return gpus, (channels[0].attributes["nodes"].int if channels else 0)


async def _launcher_log(client: Client) -> str:
    """Empty where there is none."""
    pods = (await client.list(POD, "default", label_selector="role=launcher")).items
    try:
        return (await client.send("GET", _POD_LOG.format(name_of(pods[0])))).body.decode(errors="replace")
    except (ApiError, IndexError):
        return ""


async def _result(client: Client) -> Measurement:
    log = await _launcher_log(client)
    for line in log.splitlines():
        if line.startswith("RESULT "):
            return measurement_of(json.loads(line.removeprefix("RESULT ")))
    raise DrakkarError(f"the ranks have measured nothing; the launcher's log ends:\n{log[-2000:]}")


async def _complaints(client: Client) -> str:
    """The last words of the launcher, else the last warnings of the cluster."""
    log = await _launcher_log(client)
    if log:
        return f"; the launcher's log ends:\n{log[-2000:]}"
    events = [event for event in (await client.list(EVENT)).items if event.get("type") == "Warning"]
    said = dict.fromkeys(f"{event['involvedObject']['name']}: {event['message']}" for event in events)
    return f": {'; '.join([*said][-4:])}" if said else ""


async def _exists(folder: Path) -> None:
    """Wait for what another part makes; its end is noticed elsewhere."""
    while not await asyncio.to_thread(folder.is_dir):
        await asyncio.sleep(_LOOK)


def _file(name: str) -> Path:
    return Path(str(files("drakkar.sim") / "stories" / "mesh" / name))


if __name__ == "__main__":
    configure("ERROR")
    told = msgspec.json.decode(sys.argv[1].encode(), type=Options)
    sys.exit(guarded(lambda: asyncio.run(main(told))))
