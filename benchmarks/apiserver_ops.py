"""CPU time of the API server per operation, with 4 kB ResourceSlices; its memory and its start with many objects.

    python benchmarks/apiserver_ops.py [--objects 6000] [--only memory|tls|start]

Three parts. *memory*: requests go straight into the handler, so the figures are those of routing,
authentication, authorization, schema, validation, store, cache and watch. *tls*: a server in a
process of its own is asked over TLS, and the CPU time is that of its process. *start*: a server
is started over a store with 50,000 objects. The first line says how fast this machine is just now.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import multiprocessing
import os
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from drakkar.api.wire import Request
from drakkar.apiserver import open_pki, open_server, serve
from drakkar.apiserver.opening import open_store
from drakkar.client.clock import SystemClock

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
DEVICES = 15
#: Objects of the part *start*.
MANY = 50_000


def slice_of(number: int) -> dict[str, object]:
    """A ResourceSlice of about 4 kB."""
    devices = [
        {
            "name": f"gpu-{n}",
            "attributes": {
                "index": {"int": n},
                "model": {"string": "model-of-a-device-100-80gb"},
                "uuid": {"string": f"gpu-{number:08d}-{n:04d}-4f2e-9b1c-0123456789ab"},
                "driverVersion": {"version": "1.2.3"},
            },
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for n in range(DEVICES)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"slice-{number}"},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": f"node-{number % 500}",
            "pool": {"name": f"node-{number}", "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


class Report:
    """Prints one line per measurement."""

    def __init__(self, cpu: Callable[[], float]):
        self.cpu = cpu

    @contextlib.asynccontextmanager
    async def measure(self, name: str, count: int) -> AsyncIterator[None]:
        gc.collect()
        wall, used = time.perf_counter(), self.cpu()
        yield
        used, wall = self.cpu() - used, time.perf_counter() - wall
        self.line(name, used / count, count / wall)

    def line(self, name: str, used: float, rate: float) -> None:
        print(f"{name:<38} {used * 1e6:9.1f} us CPU {rate:10.0f} /s wall", flush=True)


Ask = Callable[[str, str, bytes, tuple[tuple[str, str], ...]], Awaitable[bytes]]


async def run(ask: Ask, objects: int, report: Report, parallel: int = 64) -> None:
    """All operations, through ``ask``."""
    encode = msgspec.json.encode
    bodies = [encode(slice_of(number)) for number in range(objects)]
    print(f"{objects} objects of {len(bodies[0])} bytes")

    async def each(work: Callable[[int], Awaitable[object]], count: int) -> None:
        numbers = iter(range(count))

        async def worker() -> None:
            for number in numbers:
                await work(number)

        await asyncio.gather(*(worker() for _ in range(parallel)))

    async with report.measure("create", objects):
        await each(lambda n: ask("POST", SLICES, bodies[n], ()), objects)
    async with report.measure("get", objects):
        await each(lambda n: ask("GET", f"{SLICES}/slice-{n}", b"", ()), objects)

    async def update(number: int) -> None:
        obj = json.loads(await ask("GET", f"{SLICES}/slice-{number}", b"", ()))
        obj["spec"]["pool"]["generation"] += 1
        await ask("PUT", f"{SLICES}/slice-{number}", encode(obj), ())

    async with report.measure("get + update (with client's JSON)", objects):
        await each(update, objects)
    claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"

    async def claim(number: int) -> None:
        requests = [{"name": "r", "exactly": {"deviceClassName": "gpu.example.com"}}]
        spec = {"devices": {"requests": requests}}
        await ask("POST", claims, encode({"metadata": {"name": f"c-{number}"}, "spec": spec}), ())

    async with report.measure("create claim", objects):
        await each(claim, objects)

    async def allocate(number: int) -> None:
        obj = claims_made[number]
        result = {"request": "r", "driver": "gpu.example.com", "pool": f"node-{number}", "device": "gpu-0"}
        obj["status"] = {"allocation": {"devices": {"results": [result]}}}
        await ask("PUT", f"{claims}/c-{number}/status", encode(obj), ())

    claims_made = {n: json.loads(await ask("GET", f"{claims}/c-{n}", b"", ())) for n in range(objects)}
    async with report.measure("update status of claim", objects):
        await each(allocate, objects)

    async def patch(number: int) -> None:
        await ask("PATCH", f"{claims}/c-{number}", encode({"metadata": {"labels": {"seen": str(number)}}}), ())

    async with report.measure("merge patch claim", objects):
        await each(patch, objects)
    for name, query, count in (
        (f"list all ({objects * (len(bodies[0]) + 170) / 1e6:.0f} MB)", (), 10),
        ("list limit=500", (("limit", "500"),), 50),
        ("list by spec.nodeName", (("fieldSelector", "spec.nodeName=node-7"),), 200),
    ):
        async with report.measure(name, count):
            for _ in range(count):
                await ask("GET", SLICES, b"", query)
    async with report.measure("delete", objects):
        await each(lambda n: ask("DELETE", f"{SLICES}/slice-{n}", b"", ()), objects)


Open = Callable[[], Awaitable[AsyncIterator[bytes]]]


async def fan_out(open_watch: Open, ask: Ask, report: Report, watchers: int = 100, writes: int = 300) -> None:
    """Many watches of one resource; what the writes cost without watches is taken off."""
    bodies = [msgspec.json.encode(slice_of(1_000_000 + number)) for number in range(2 * writes)]
    seen = 0

    async def watch(stream: AsyncIterator[bytes]) -> None:
        nonlocal seen
        async for chunk in stream:
            seen += chunk.count(b"\n")

    used = report.cpu()
    for body in bodies[:writes]:
        await ask("POST", SLICES, body, ())
    writing = report.cpu() - used
    tasks = [asyncio.create_task(watch(await open_watch())) for _ in range(watchers)]
    await asyncio.sleep(0.2)
    used, wall = report.cpu(), time.perf_counter()
    for body in bodies[writes:]:
        await ask("POST", SLICES, body, ())
    while seen < watchers * writes:
        await asyncio.sleep(0.001)
    used, wall = report.cpu() - used - writing, time.perf_counter() - wall
    events = watchers * writes
    report.line(f"event to each of {watchers} watchers", used / events, events / wall)
    for task in tasks:
        task.cancel()


async def in_process(args: argparse.Namespace, folder: Path) -> None:
    data = None if args.store == "memory" else folder
    server = await open_server(data, clock=SystemClock(), synchronous=args.synchronous)
    headers = {
        "authorization": f"Bearer {server.token('admin', 'system:masters')}",
        "content-type": "application/json",
        "accept": "application/json",
    }
    patching = {**headers, "content-type": "application/merge-patch+json"}
    gc.freeze()

    async def ask(method: str, path: str, body: bytes, query: tuple[tuple[str, str], ...]) -> bytes:
        request = Request(method, path, query, patching if method == "PATCH" else headers, body)
        response = await server.handle(request)
        assert response.status < 300, response.body
        return response.body

    async def watch() -> AsyncIterator[bytes]:
        response = await server.handle(
            Request("GET", SLICES, (("watch", "1"), ("resourceVersion", str(now()))), headers)
        )
        assert response.stream is not None
        return response.stream

    def now() -> int:
        return server.state.revision

    report = Report(time.process_time)
    await run(ask, args.objects, report)
    await fan_out(watch, ask, report)
    await server.close()


def _serve(folder: str, store: str, synchronous: str, pipe: Connection) -> None:
    async def main() -> None:
        server = await open_server(None if store == "memory" else folder, clock=SystemClock(), synchronous=synchronous)
        pki = open_pki(Path(folder) / "pki")
        serving = await serve(server, pki=pki)
        gc.freeze()
        pipe.send((serving.port, server.token("admin", "system:masters"), pki.ca_certificate.decode()))
        loop = asyncio.get_running_loop()
        while (await loop.run_in_executor(None, pipe.recv)) == "cpu":
            pipe.send(time.process_time())
        await serving.close()
        await server.close()

    try:
        import uvloop

        uvloop.run(main())
    except ImportError:
        asyncio.run(main())


async def over_http(args: argparse.Namespace, folder: Path) -> None:
    import aiohttp

    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(str(folder), args.store, args.synchronous, there)
    )
    process.start()
    port, token, authority = here.recv()

    def cpu() -> float:
        here.send("cpu")
        return here.recv()

    context = ssl.create_default_context(cadata=authority)
    base = f"https://127.0.0.1:{port}"
    connector = aiohttp.TCPConnector(limit=0, ssl=context)
    # Compression would be most of a list's cost; clients in one machine or rack do without.
    fixed = {"authorization": f"Bearer {token}", "accept-encoding": "identity"}
    async with aiohttp.ClientSession(connector=connector, headers=fixed) as session:

        async def ask(method: str, path: str, body: bytes, query: tuple[tuple[str, str], ...]) -> bytes:
            media = "application/merge-patch+json" if method == "PATCH" else "application/json"
            async with session.request(
                method, base + path, data=body or None, params=query, headers={"content-type": media}
            ) as response:
                answer = await response.read()
                assert response.status < 300, answer
                return answer

        async def watch() -> AsyncIterator[bytes]:
            found = json.loads(await ask("GET", SLICES, b"", (("limit", "1"),)))
            query = {"watch": "1", "resourceVersion": found["metadata"]["resourceVersion"]}
            response = await session.get(base + SLICES, params=query)
            return response.content.iter_any()

        await run(ask, args.objects, Report(cpu))
        await fan_out(watch, ask, Report(cpu))
    here.send("stop")
    process.join()


# Start.


async def fill(folder: Path, objects: int) -> None:
    """A store as a server leaves it."""
    from drakkar.store.base import Write

    backend = open_store(folder / "drakkar.db", synchronous="NORMAL")
    for begin in range(0, objects, 1000):
        batch: list[Write] = []
        for number in range(begin, min(begin + 1000, objects)):
            obj = slice_of(number)
            metadata = {
                "name": f"slice-{number}",
                "uid": f"00000000-0000-4000-8000-{number:012d}",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "generation": 1,
            }
            value = {
                "kind": "ResourceSlice",
                "apiVersion": obj["apiVersion"],
                "metadata": metadata,
                "spec": obj["spec"],
            }
            batch.append(Write(f"/resource.k8s.io/resourceslices//slice-{number}", 0, msgspec.json.encode(value)))
        await backend.commit(batch)
    await backend.close()


def resident() -> float:
    """Resident memory of this process in MB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _start(folder: str, began: float, pipe: Connection) -> None:
    async def main() -> None:
        server = await open_server(folder, clock=SystemClock())
        serving = await serve(server, pki=open_pki(Path(folder) / "pki"))
        pipe.send((time.time() - began, time.process_time(), resident()))
        await serving.close()
        await server.close()

    asyncio.run(main())


async def starting(folder: Path) -> None:
    """Seconds until a server over few and many objects listens, and its memory."""
    for objects in (0, MANY):
        data = folder / f"start-{objects}"
        await fill(data, objects)
        here, there = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_start, args=(str(data), time.time(), there))
        process.start()
        wall, used, size = here.recv()
        process.join()
        print(f"start with {objects} objects: {wall:.2f} s ({used:.2f} s CPU), {size:.0f} MB resident", flush=True)


def machine() -> float:
    """Nanoseconds of CPU per step of a fixed loop: compare figures of different runs by it."""
    began = time.process_time()
    total = 0
    for number in range(3_000_000):
        total += number & 7
    return (time.process_time() - began) / 3_000_000 * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--objects", type=int, default=6000)
    parser.add_argument("--store", choices=("memory", "sqlite"), default="sqlite")
    parser.add_argument("--synchronous", choices=("FULL", "NORMAL"), default="FULL")
    parser.add_argument("--only", choices=("memory", "tls", "start"))
    args = parser.parse_args()
    print(f"machine: {machine():.1f} ns per step")
    parts = {"memory": in_process, "tls": over_http, "start": lambda _args, folder: starting(folder)}
    for name, part in parts.items():
        if args.only in (None, name):
            print(f"-- {name}")
            with tempfile.TemporaryDirectory(prefix="drakkar-bench-", dir=os.environ.get("TMPDIR")) as folder:
                asyncio.run(part(args, Path(folder)))


if __name__ == "__main__":
    main()
