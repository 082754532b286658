"""Pods scheduled per second: the whole scheduler against the embedded API server in one process.

    python benchmarks/scheduler_throughput.py [--nodes 1000] [--devices 8] [--pods 500] [--waiting 0] [--json]

Every pod has one claim of its own for one device, made beforehand with the name that a template would give it, so that
no controller takes part. Printed are wall time and the processor time of the process, from the
moment the scheduler has its caches until the last pod that can be placed is bound: scheduler, client and server
share the process, therefore also the processor time spent in decisions alone (``decision``).
``--waiting`` adds pods that no device is left for; they are decided about again whenever something might help them.
With ``--backlog`` all pods are there before the scheduler starts: equal ones are then placed in one go.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

from drakkar.api.kinds import DEVICECLASS, NODE, POD, RESOURCECLAIM, RESOURCESLICE
from drakkar.api.objects import pod_node
from drakkar.apiserver import open_server
from drakkar.client import Caches, Client, MemoryTransport
from drakkar.client.clock import SystemClock
from drakkar.scheduler import Scheduler

DRIVER = "gpu.example.com"


def a_node(name: str) -> dict[str, Any]:
    """A node with more room than the pods need."""
    room = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    labels = {"kubernetes.io/hostname": name}
    status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def a_slice(node: str, devices: int) -> dict[str, Any]:
    """The devices of one node."""
    attributes = {"model": {"string": "a100"}, "memory": {"int": 80}}
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"gpu-{i}", "attributes": attributes} for i in range(devices)],
    }
    return {"metadata": {"name": f"{node}-gpus"}, "spec": spec}


def a_claim(name: str, count: int) -> dict[str, Any]:
    """A claim for so many devices."""
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
    requests = [{"name": "gpu", "exactly": exactly}]
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": {"requests": requests}}}


def a_pod(name: str, claim: str) -> dict[str, Any]:
    """A pod that uses the claim."""
    resources = {"requests": {"cpu": "100m", "memory": "64Mi"}, "claims": [{"name": "gpu"}]}
    spec = {
        "containers": [{"name": "main", "image": "x", "resources": resources}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
    }
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


async def measure(nodes: int, devices: int, pods: int, waiting: int, backlog: bool = False) -> dict[str, float]:
    """One run; processor and wall time in seconds."""
    server = await open_server(None, clock=SystemClock())
    client = Client(MemoryTransport(server.handle, server.token("drakkar:admin", "system:masters")))
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].memory >= 40"}}
    await client.create(DEVICECLASS, {"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}})
    for number in range(nodes):
        await client.create(NODE, a_node(f"node-{number}"))
        await client.create(RESOURCESLICE, a_slice(f"node-{number}", devices))
    for number in range(pods + waiting):
        await client.create(RESOURCECLAIM, a_claim(f"c-{number}", 1 if number < pods else devices + 1), "default")
    bound = asyncio.Event()
    seen: set[str] = set()

    def on_pod(_: str, __: Any, pod: dict[str, Any]) -> None:
        if pod_node(pod):
            seen.add(pod["metadata"]["name"])
            if len(seen) == pods:
                bound.set()

    caches = Caches(client)
    caches.of(POD).subscribe(on_pod)
    scheduler = Scheduler(
        Client(MemoryTransport(server.handle, server.token("system:kube-scheduler"))), SystemClock(), caches=None
    )
    await caches.start()

    async def create() -> None:
        for number in range(pods + waiting):
            await client.create(POD, a_pod(f"p-{number}", f"c-{number}"), "default")

    if backlog:
        await create()
    cpu, wall = time.process_time(), time.perf_counter()
    work = asyncio.create_task(scheduler.run())
    try:
        await scheduler.ready.wait()
        if not backlog:
            cpu, wall = time.process_time(), time.perf_counter()
            await create()
        created = time.process_time() - cpu
        await bound.wait()
        return {
            "wall": time.perf_counter() - wall,
            "cpu": time.process_time() - cpu,
            "creating": created,
            "decision": scheduler.metrics["decision_seconds"],
            "decisions": scheduler.metrics["decisions"],
            "alike": scheduler.metrics["answered_alike"],
        }
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await caches.stop()
        await server.close()


def main() -> None:
    """Measures once and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--pods", type=int, default=500)
    parser.add_argument("--waiting", type=int, default=0)
    parser.add_argument("--backlog", action="store_true", help="create the pods before the scheduler starts")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    args = parser.parse_args()
    found = asyncio.run(measure(args.nodes, args.devices, args.pods, args.waiting, args.backlog))
    if args.json:
        print(json.dumps(found))
        return
    print(f"{args.nodes} nodes x {args.devices} devices, {args.pods} pods placed, {args.waiting} that do not fit")
    print(f"wall {found['wall']:.2f} s: {args.pods / found['wall']:.0f} pods/s")
    print(
        f"processor {found['cpu']:.2f} s: {found['cpu'] / args.pods * 1e3:.2f} ms per pod, server and creation included"
    )
    print(f"decisions {found['decisions']:.0f}, {found['decision'] / max(1, found['decisions']) * 1e6:.0f} us each")


if __name__ == "__main__":
    main()
