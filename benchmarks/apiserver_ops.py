"""CPU time of the API server per operation, with 4 kB ResourceSlices.

    python benchmarks/apiserver_ops.py [--objects 2000] [--store memory|sqlite] [--http]

Requests go straight into the handler, so the figures are those of the server alone: routing,
authentication, authorization, schema, validation, store, cache and watch. With ``--http`` a
server in a process of its own is asked over TLS, and the CPU time is that of this process.
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
from drakkar.apiserver import ApiServer, open_pki, open_server, serve
from drakkar.client.clock import SystemClock

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
DEVICES = 13


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
        print(f"{name:<34} {used / count * 1e6:9.1f} us CPU {count / wall:11.0f} /s wall")


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

    async def patch(number: int) -> None:
        await ask("PATCH", f"{claims}/c-{number}", encode({"metadata": {"labels": {"seen": str(number)}}}), ())

    async with report.measure("merge patch claim", objects):
        await each(patch, objects)
    for name, query, count in (
        ("list all", (), 10),
        ("list limit=500", (("limit", "500"),), 50),
        ("list by spec.nodeName", (("fieldSelector", "spec.nodeName=node-7"),), 200),
    ):
        async with report.measure(name, count):
            for _ in range(count):
                await ask("GET", SLICES, b"", query)
    async with report.measure("delete", objects):
        await each(lambda n: ask("DELETE", f"{SLICES}/slice-{n}", b"", ()), objects)


async def fan_out(server: ApiServer, ask: Ask, report: Report, watchers: int = 100, writes: int = 300) -> None:
    """Many watches of one resource."""
    token = server.token("admin", "system:masters")
    seen = 0

    async def watch() -> None:
        nonlocal seen
        request = Request("GET", SLICES, (("watch", "1"),), {"authorization": f"Bearer {token}"})
        response = await server.handle(request)
        assert response.stream is not None
        async for chunk in response.stream:
            seen += chunk.count(b"\n")

    tasks = [asyncio.create_task(watch()) for _ in range(watchers)]
    await asyncio.sleep(0.1)
    async with report.measure(f"event to {watchers} watchers", watchers * writes):
        for number in range(writes):
            await ask("POST", SLICES, msgspec.json.encode(slice_of(1_000_000 + number)), ())
        while seen < watchers * writes:
            await asyncio.sleep(0)
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

    report = Report(time.process_time)
    await run(ask, args.objects, report)
    await fan_out(server, ask, report)
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
    connector = aiohttp.TCPConnector(limit=64, ssl=context)
    async with aiohttp.ClientSession(connector=connector, headers={"authorization": f"Bearer {token}"}) as session:

        async def ask(method: str, path: str, body: bytes, query: tuple[tuple[str, str], ...]) -> bytes:
            media = "application/merge-patch+json" if method == "PATCH" else "application/json"
            async with session.request(
                method, base + path, data=body or None, params=query, headers={"content-type": media}
            ) as response:
                answer = await response.read()
                assert response.status < 300, answer
                return answer

        await run(ask, args.objects, Report(cpu))
    here.send("stop")
    process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--objects", type=int, default=2000)
    parser.add_argument("--store", choices=("memory", "sqlite"), default="sqlite")
    parser.add_argument("--synchronous", choices=("FULL", "NORMAL"), default="FULL")
    parser.add_argument("--http", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="drakkar-bench-", dir=os.environ.get("TMPDIR")) as folder:
        asyncio.run((over_http if args.http else in_process)(args, Path(folder)))


if __name__ == "__main__":
    main()
