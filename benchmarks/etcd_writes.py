"""Writes per second through servers on etcd, over TLS from several connections, and who spends the processor time.

    python benchmarks/etcd_writes.py [--servers 1] [--connections 64] [--writes 6000] [--plain]

Starts an etcd of its own (Debian: etcd-server), servers in processes of their own and a client in this one.
Each connection sends one request after the other. Three kinds of writes: creates of ConfigMaps of 300 bytes,
creates of ResourceSlices of 4 kB (all their rules checked) and patches of Leases. Wall time says little on a
busy machine; processor time of servers, etcd and client is given per write.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parent))
from apiserver_ops import SLICES, machine, slice_of

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
#: Seconds of processor time per tick in /proc.
_TICK = 1 / os.sysconf("SC_CLK_TCK")

Server = tuple[Connection, int, str]
Ask = tuple[str, str, bytes]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_etcd(binary: str, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """A member and the address for ``--store``."""
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    command = [binary, "--data-dir", str(folder), "--log-level", "error", "--name", "one"]
    command += ["--listen-client-urls", client, "--advertise-client-urls", client]
    command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}"]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdout=quiet, stderr=quiet), client.replace("http", "etcd")


async def serving(folder: str, store: str, plain: bool, pipe: Connection) -> None:
    """One server, until it is told to stop."""
    from drakkar.apiserver import open_pki, open_server, serve
    from drakkar.client.clock import SystemClock

    server = await open_server(None, clock=SystemClock(), store=store)
    listening = await serve(server, pki=None if plain else open_pki(folder))
    pipe.send((listening.port, server.token("admin", "system:masters")))
    loop = asyncio.get_running_loop()
    while (await loop.run_in_executor(None, pipe.recv)) == "cpu":
        pipe.send(time.process_time())
    await listening.close()
    await server.close()


def serve_process(folder: str, store: str, plain: bool, pipe: Connection) -> None:
    try:
        import uvloop

        uvloop.run(serving(folder, store, plain, pipe))
    except ImportError:
        asyncio.run(serving(folder, store, plain, pipe))


def processor_time(pid: int) -> float:
    """Seconds of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK


class Requester:
    """One connection, as bare as it can be: the client must not be what is measured."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str):
        self._reader, self._writer = reader, writer
        self._token = token

    async def send(self, method: str, path: str, body: bytes) -> None:
        media = "application/merge-patch+json" if method == "PATCH" else "application/json"
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._token}\r\n"
        self._writer.write(f"{head}Content-Type: {media}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        lines = answer.lower().split(b"\r\n")
        length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
        content = await self._reader.readexactly(length)
        if not answer.startswith(b"HTTP/1.1 20"):
            raise SystemExit(f"{method} {path}: {answer!r} {content[:300]!r}")


async def measure(args: argparse.Namespace, servers: list[Server], etcd: int) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connections: list[Requester] = []
    for at in range(args.connections):
        _, port, token = servers[at % len(servers)]
        opened = await asyncio.open_connection("127.0.0.1", port, ssl=None if args.plain else context)
        connections.append(Requester(*opened, token))

    def now() -> tuple[float, float, float, float]:
        used = 0.0
        for pipe, _, _ in servers:
            pipe.send("cpu")
            used += pipe.recv()
        return time.perf_counter(), used, processor_time(etcd), time.process_time()

    async def run(name: str, asks: Iterator[Ask], count: int) -> None:
        async def lane(requester: Requester) -> None:
            for ask in asks:
                await requester.send(*ask)

        before = now()
        await asyncio.gather(*(lane(requester) for requester in connections))
        wall, server, store, client = (after - then for after, then in zip(now(), before, strict=True))
        per = 1e6 / count
        print(
            f"{name:<28} {count / wall:7.0f} /s wall; CPU us per write: servers {server * per:6.0f}, "
            f"etcd {store * per:5.0f}, client {client * per:5.0f}; one core of server alone {count / server:6.0f} /s",
            flush=True,
        )

    encode, count, text = msgspec.json.encode, args.writes, "v" * 200
    maps = (("POST", CONFIGMAPS, encode({"metadata": {"name": f"c{n}"}, "data": {"k": text}})) for n in range(count))
    await run("create ConfigMap, 300 bytes", maps, count)
    slices = (("POST", SLICES, encode(slice_of(n))) for n in range(count // 2))
    await run("create ResourceSlice, 4 kB", slices, count // 2)
    for n in range(1000):
        body = encode({"metadata": {"name": f"lease-{n}"}, "spec": {"holderIdentity": "x"}})
        await connections[0].send("POST", LEASES, body)
    patches = (
        ("PATCH", f"{LEASES}/lease-{n % 1000}", encode({"spec": {"renewTime": f"2026-01-01T00:00:00.{n:06d}Z"}}))
        for n in range(count)
    )
    await run("merge patch Lease", patches, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--writes", type=int, default=6000)
    parser.add_argument("--plain", action="store_true", help="without TLS")
    args = parser.parse_args()
    binary = os.environ.get("DRAKKAR_ETCD") or shutil.which("etcd")
    if binary is None:
        print("nothing measured: etcd not found; install it (Debian: etcd-server) or name it in DRAKKAR_ETCD")
        return
    print(f"machine: {machine():.1f} ns per step; {args.servers} server(s), {args.connections} connections")
    with tempfile.TemporaryDirectory(prefix="drakkar-bench-") as folder:
        etcd, url = start_etcd(binary, Path(folder) / "etcd")
        spawn = multiprocessing.get_context("spawn")
        processes: list[BaseProcess] = []
        servers: list[Server] = []
        try:
            for at in range(args.servers):
                here, there = spawn.Pipe()
                process = spawn.Process(target=serve_process, args=(f"{folder}/pki-{at}", url, args.plain, there))
                process.start()
                processes.append(process)
                servers.append((here, *here.recv()))
            asyncio.run(measure(args, servers, etcd.pid))
            for pipe, _, _ in servers:
                pipe.send("stop")
            for process in processes:
                process.join(20)
        finally:
            for process in processes:
                process.kill()
            etcd.kill()
            etcd.wait()


if __name__ == "__main__":
    main()
