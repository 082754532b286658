"""Figures of the node agent: prepare through it, and from claim to container.

    python benchmarks/node_agent.py [--claims N] [--pods N]

The first part is the agent's claim manager with its records on disk, over a real socket: for a driver without work of
its own in the same process against an API server in memory, and for the example driver, a process of its own, both
against an API server over TLS. Each is asked for one claim after the other, then for sixteen at a time. The second part
is a whole plane in one process: a pod with a claim from a template until its status says Running.

Waits for the disk decide much of the wall time, so the first line says how long one takes: a new file and its name.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from drakkar.api.kinds import NODE, POD
from drakkar.api.meta import Object
from drakkar.client import Client
from drakkar.client.clock import SystemClock
from drakkar.client.kubeconfig import load
from drakkar.node.agent import mounts
from drakkar.node.agent.claims import Claims
from drakkar.node.agent.health import DeviceHealths
from drakkar.node.agent.oci_runtime import OciRuntime
from drakkar.node.agent.plugins import Plugins
from drakkar.node.agent.process_runtime import ProcessRuntime
from drakkar.plugin.checkpoint import Checkpoints, boot_id
from drakkar.plugin.files import write_atomically
from tests.support.agents import NODE as NODE_NAME
from tests.support.agents import allocated, cluster
from tests.support.eventually import eventually, memory_plane
from tests.unit.node.agent.test_plugins import DRIVER, FakeDriver
from tests.unit.node.agent.test_thin_path import Hello, gone, pod, prepare_cluster


def quantiles(seconds: list[float]) -> str:
    found = sorted(seconds)
    p99 = found[min(len(found) - 1, int(len(found) * 0.99))]
    return f"p50 {statistics.median(found) * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, max {found[-1] * 1000:.1f} ms"


def disk(folder: Path, count: int = 200) -> list[float]:
    """Seconds that the disk takes for a record: a new file and its name."""
    taken: list[float] = []
    for number in range(count):
        begin = time.perf_counter()
        write_atomically(folder / f"w{number}", b"x" * 500)
        taken.append(time.perf_counter() - begin)
    return taken


@dataclass
class Asked:
    """What a run measures."""

    title: str
    client: Client
    root: Path
    pods: list[Object]
    #: Processor time of the driver in seconds, where it is a process of its own.
    driver_cpu: Callable[[], float] = lambda: 0.0

    async def run(self) -> None:
        plugins = Plugins(
            self.root / "plugins_registry",
            SystemClock(),
            health=DeviceHealths(time.monotonic).heard,
            usable=lambda _, __: None,
        )
        running = asyncio.create_task(plugins.run())
        await eventually(lambda: asyncio.sleep(0, plugins.drivers()), bool, timeout=60)
        claims = Claims(self.client, plugins, Checkpoints(self.root / "claims", boot=boot_id()))
        half = len(self.pods) // 2
        taken: list[float] = []

        async def one(pod: Object) -> None:
            begin = time.perf_counter()
            await claims.prepare(pod)
            taken.append(time.perf_counter() - begin)

        slots = asyncio.Semaphore(16)

        async def some(pod: Object) -> None:
            async with slots:
                await one(pod)

        with self._measured("one after the other", taken, half):
            for pod in self.pods[:half]:
                await one(pod)
        with self._measured("16 at a time", taken, len(self.pods) - half):
            await asyncio.gather(*(some(pod) for pod in self.pods[half:]))
        begin = time.perf_counter()
        await asyncio.gather(*(claims.unprepare(pod["metadata"]["uid"]) for pod in self.pods))
        rate = len(self.pods) / (time.perf_counter() - begin)
        print(f"unprepare, {self.title}, all at once ({len(self.pods)}): {rate:.0f}/s")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    @contextlib.contextmanager
    def _measured(self, how: str, taken: list[float], count: int) -> Iterator[None]:
        taken.clear()
        begin, cpu, driver = time.perf_counter(), time.process_time(), self.driver_cpu()
        yield
        wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
        spent = f"processor {cpu / count * 1000:.2f} ms"
        if driver:
            spent += f" and {(self.driver_cpu() - driver) / count * 1000:.2f} ms in the driver"
        print(f"prepare, {self.title}, {how} ({count}): {quantiles(taken)}; {count / wall:.0f}/s; {spent}")


async def in_memory(root: Path, count: int) -> None:
    """A driver that answers and does nothing, in this process."""
    (root / "registry").mkdir()
    (root / "plugins_registry").symlink_to(root / "registry")
    driver = FakeDriver(root, "driver")
    driver.start()
    async with memory_plane() as client:
        await Asked(
            "driver in memory", client, root, [await allocated(client, f"c{number}", DRIVER) for number in range(count)]
        ).run()
    driver.stop()


async def framework(folder: Path, root: Path, count: int) -> None:
    """The example driver with records, CDI and metadata files, in a process of its own."""
    async with cluster(folder, root) as site:
        (root / "plugins_registry").mkdir()
        await site.stop("controllers")  # The pods of the claims are not there.
        await site.client.create(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE_NAME}})
        flags = ["--node-name", NODE_NAME, "--kubelet-root", str(root), "--cdi-dir", str(root / "cdi")]
        command = ["-m", "drakkar.cli", "driver", "run", "example", "--kubeconfig", str(site.kubeconfig), *flags]
        driver = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.DEVNULL)
        client = Client(load(site.kubeconfig).transport())
        try:
            pods = [await allocated(site.client, f"c{number}", "example.drakkar.dev") for number in range(count)]
            await Asked("example driver", client, root, pods, lambda: _cpu(driver.pid)).run()
        finally:
            await client.close()
            driver.kill()
            await driver.wait()


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def starts(folder: Path, root: Path, runtime: Any, image: str, count: int) -> None:
    async with cluster(folder, root, runtime) as site:
        await prepare_cluster(site)
        await site.start_agent()
        await site.start_driver(Hello(folder))
        taken: list[float] = []
        for number in range(count):
            body = pod(f"p{number}", "sleep 1000")
            body["spec"]["containers"][0]["image"] = image
            begin = time.perf_counter()
            await site.client.create(POD, body)
            await eventually(
                lambda n=number: site.pod(f"p{n}"), lambda p: p["status"].get("phase") == "Running", pause=0.005
            )
            taken.append(time.perf_counter() - begin)
            await site.client.delete(POD, f"p{number}", "default")
            await eventually(lambda n=number: gone(site, f"p{n}"), bool)
        name = type(site.runtime()).__name__
        print(f"pod with a claim, created until Running, {name} ({count}): {quantiles(taken)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--claims", type=int, default=400)
    parser.add_argument("--pods", type=int, default=10)
    args = parser.parse_args()
    runtimes: list[tuple[Any, str]] = [(lambda _: ProcessRuntime(), "any")]
    if os.geteuid() == 0 and shutil.which("runc"):
        runtimes.append((lambda root: OciRuntime.open(root, None), "host"))
    with tempfile.TemporaryDirectory(prefix="dk") as folder:
        print(f"a wait for the disk: {quantiles(disk(Path(folder)))}")
        asyncio.run(in_memory(Path(folder), args.claims))
    with tempfile.TemporaryDirectory(prefix="dk") as folder, tempfile.TemporaryDirectory() as other:
        asyncio.run(framework(Path(other), Path(folder), args.claims))
    for make, image in runtimes if args.pods else ():
        with tempfile.TemporaryDirectory(prefix="dk") as folder, tempfile.TemporaryDirectory() as other:
            root = Path(folder)
            asyncio.run(starts(Path(other), root, lambda m=make, r=root: m(r), image, args.pods))
            mounts.unmount_below(root)


if __name__ == "__main__":
    main()
