"""A server with one node and one pod whose containers are programs of this machine, for tests of streaming."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from drakkar.api.kinds import NODE, POD
from drakkar.api.meta import Object
from drakkar.apiserver import ApiServer, Pki, Serving, open_pki, open_server, serve, write_kubeconfig
from drakkar.apiserver.streaming.agents import Agents
from drakkar.client import Client, MemoryTransport
from drakkar.client.clock import SystemClock
from drakkar.node.agent.endpoint import Endpoint
from drakkar.node.agent.logs import Line, chosen, rendered
from drakkar.node.agent.processes import LocalProcess
from drakkar.node.agent.streams import LogOptions, Session, StreamProblem, Wanted

LINES = [Line(f"2026-01-01T00:00:0{n}Z", "stderr" if n == 2 else "stdout", f"line {n}\n".encode()) for n in range(5)]


class LocalHost:
    """Runs commands here; its log has five lines and, followed, a sixth."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.port = 0

    def pods(self) -> list[Object]:
        return []

    async def logs(self, namespace: str, pod: str, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        if options.previous:
            raise StreamProblem(400, f'previous terminated container "{container}" in pod "{pod}" not found')
        return self._lines(options)

    async def _lines(self, options: LogOptions) -> AsyncIterator[bytes]:
        for piece in chosen(LINES, options):
            yield piece
        if options.follow:
            await asyncio.sleep(0.3)
            yield rendered(Line("2026-01-01T00:00:09Z", "stdout", b"later\n"), options)

    async def exec(self, namespace: str, pod: str, container: str, command: Sequence[str], wanted: Wanted) -> Session:
        try:
            return await LocalProcess.start(command, wanted, cwd=self.folder)
        except OSError as error:
            raise StreamProblem(500, f"cannot start {command[0]!r}: {error.strerror}") from None

    async def attach(self, namespace: str, pod: str, container: str, wanted: Wanted) -> Session:
        return await self.exec(namespace, pod, container, ["cat"], wanted)

    async def dial(self, namespace: str, pod: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port or port)


@dataclass
class Site:
    """What a test talks to."""

    server: ApiServer
    serving: Serving
    pki: Pki
    endpoint: Endpoint
    host: LocalHost
    kubeconfig: Path


@contextlib.asynccontextmanager
async def site(folder: Path) -> AsyncIterator[Site]:
    """A started server, an agent's endpoint for the node ``here``, and the running pod ``web``, container ``main``."""
    server = await open_server(None, clock=SystemClock())
    pki = open_pki(folder / "pki")
    server.agents = Agents(pki.agents_context())
    serving = await serve(server, pki=pki)
    host = LocalHost(folder)
    endpoint = Endpoint(host, pki.agent_context("test", ["127.0.0.1"]), clock=time.time)
    await endpoint.start()
    kubeconfig = folder / "kubeconfig"
    write_kubeconfig(kubeconfig, serving.url, pki)
    client = Client(MemoryTransport(server.handle, server.token("admin", "system:masters")))
    try:
        await client.create(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "here"}})
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": endpoint.port}},
        }
        await client.patch(NODE, "here", None, {"status": status}, subresource="status")
        for name, node in (("web", "here"), ("homeless", "")):
            spec: Object = {"containers": [{"name": "main", "image": "x"}]} | ({"nodeName": node} if node else {})
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}
            await client.create(POD, pod)
        running = {"phase": "Running"}
        await client.patch(POD, "web", "default", {"status": running}, subresource="status")
        yield Site(server, serving, pki, endpoint, host, kubeconfig)
    finally:
        await serving.close()
        await endpoint.close()
        await server.close()


def client_context(pki: Pki, folder: Path, user: str, *groups: str) -> ssl.SSLContext:
    """TLS of a client with a certificate of this user."""
    certificate, key = pki.client(user, groups)
    (folder / "c.crt").write_bytes(certificate)
    (folder / "c.key").write_bytes(key)
    context = ssl.create_default_context(cadata=pki.ca_certificate.decode())
    context.load_cert_chain(folder / "c.crt", folder / "c.key")
    return context


@contextlib.contextmanager
def in_thread(folder: Path) -> Iterator[Site]:
    """The same in a thread of its own, for tests that wait for programs."""
    import threading

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="site")
    thread.start()
    held = site(folder)
    try:
        yield asyncio.run_coroutine_threadsafe(held.__aenter__(), loop).result(60)
    finally:
        asyncio.run_coroutine_threadsafe(held.__aexit__(None, None, None), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()
