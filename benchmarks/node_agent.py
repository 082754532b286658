"""Figures of the node agent: prepare through it for a driver without work of its own, and from claim to container.

    python benchmarks/node_agent.py [--claims N] [--pods N]

The first part is the agent's claim manager with its records on disk, over a real socket, against an API server in
memory. The second is a whole plane in one process: a pod with a claim from a template until its status says Running.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from drakkar.api.kinds import POD, RESOURCECLAIM
from drakkar.api.meta import Object
from drakkar.client.clock import SystemClock
from drakkar.node.agent import mounts
from drakkar.node.agent.claims import Claims
from drakkar.node.agent.health import DeviceHealths
from drakkar.node.agent.oci_runtime import OciRuntime
from drakkar.node.agent.plugins import Plugins
from drakkar.node.agent.process_runtime import ProcessRuntime
from drakkar.plugin.checkpoint import Checkpoints, boot_id
from tests.support.agents import cluster
from tests.support.eventually import eventually, memory_plane
from tests.unit.node.agent.test_plugins import DRIVER, FakeDriver
from tests.unit.node.agent.test_thin_path import Hello, gone, pod, prepare_cluster


def quantiles(seconds: list[float]) -> str:
    found = sorted(seconds)
    p99 = found[min(len(found) - 1, int(len(found) * 0.99))]
    return f"p50 {statistics.median(found) * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, max {found[-1] * 1000:.1f} ms"


async def allocated(client: Any, count: int) -> list[Object]:
    """Pods, each with a claim that is allocated and reserved for it; none of them needs to be real."""
    pods: list[Object] = []
    for number in range(count):
        name = f"c{number}"
        spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "x"}}]}}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": spec}
        made = await client.create(RESOURCECLAIM, {**body, "metadata": {"name": name, "namespace": "default"}})
        result = {"request": "r", "driver": DRIVER, "pool": "pool", "device": f"d{number}"}
        status = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": f"uid-{number}"}],
        }
        await client.patch(RESOURCECLAIM, name, "default", {"status": status}, subresource="status")
        assert made
        meta = {"name": name, "namespace": "default", "uid": f"uid-{number}"}
        pods.append({"metadata": meta, "spec": {"resourceClaims": [{"name": "r", "resourceClaimName": name}]}})
    return pods


async def prepares(root: Path, count: int) -> None:
    (root / "registry").mkdir()
    driver = FakeDriver(root, "driver")
    driver.start()
    async with memory_plane() as client:
        pods = await allocated(client, count)
        plugins = Plugins(
            root / "registry", SystemClock(), health=DeviceHealths(time.monotonic).heard, usable=lambda _, __: None
        )
        running = asyncio.create_task(plugins.run())
        await eventually(lambda: asyncio.sleep(0, plugins.drivers()), bool)
        claims = Claims(client, plugins, Checkpoints(root / "claims", boot=boot_id()))
        half = count // 2
        taken: list[float] = []
        for each in pods[:half]:
            begin = time.perf_counter()
            await claims.prepare(each)
            taken.append(time.perf_counter() - begin)
        print(f"prepare, one after the other ({half}): {quantiles(taken)}")
        slots = asyncio.Semaphore(16)

        async def one(each: Object) -> None:
            async with slots:
                await claims.prepare(each)

        begin, spent = time.perf_counter(), time.process_time()
        await asyncio.gather(*(one(each) for each in pods[half:]))
        wall, cpu = time.perf_counter() - begin, time.process_time() - spent
        rest = count - half
        each_ms = cpu / rest * 1000
        print(f"prepare, 16 at a time ({rest}): {rest / wall:.0f}/s, {each_ms:.2f} ms CPU each (driver included)")
        begin = time.perf_counter()
        await asyncio.gather(*(claims.unprepare(each["metadata"]["uid"]) for each in pods))
        print(f"unprepare, all at once ({count}): {count / (time.perf_counter() - begin):.0f}/s")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    driver.stop()


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
        asyncio.run(prepares(Path(folder), args.claims))
    for make, image in runtimes:
        with tempfile.TemporaryDirectory(prefix="dk") as folder, tempfile.TemporaryDirectory() as other:
            root = Path(folder)
            asyncio.run(starts(Path(other), root, lambda m=make, r=root: m(r), image, args.pods))
            mounts.unmount_below(root)


if __name__ == "__main__":
    main()
