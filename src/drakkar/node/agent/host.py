"""The agent's pods for its endpoint: logs from files, commands in containers, ports in the pods' networks."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from drakkar.api.meta import Object
from drakkar.node.agent import logs
from drakkar.node.agent.context import Paths
from drakkar.node.agent.streams import LogOptions, Session, StreamProblem, Wanted
from drakkar.node.agent.worker import Worker

#: The worker of a pod by namespace and name, or None.
FindWorker = Callable[[str, str], Worker | None]
_CLONE_NEWNET = 0x40000000


class AgentHost:
    """Implements `drakkar.node.agent.streams.PodHost`."""

    def __init__(self, find: FindWorker, every: Callable[[], list[Worker]], paths: Paths):
        self._find = find
        self._every = every
        self._paths = paths

    def pods(self) -> list[Object]:
        return [worker.current() for worker in self._every()]

    async def logs(self, namespace: str, pod: str, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        worker = self._worker(namespace, pod)
        slot = worker.slot(container)
        folder = self._paths.logs(worker.uid, container)
        number = slot.number - 1 if options.previous or slot.started_at is None else slot.number
        if options.previous and slot.last is None:
            raise StreamProblem(400, f'previous terminated container "{container}" in pod "{pod}" not found')
        if number < 0 or (slot.started_at is None and slot.last is None):
            reason = slot.waiting[0]
            raise StreamProblem(400, f'container "{container}" in pod "{pod}" is waiting to start: {reason}')
        return logs.read(folder / f"{number}.log", options, lambda: slot.number != number or not slot.running)

    async def exec(self, namespace: str, pod: str, container: str, command: Sequence[str], wanted: Wanted) -> Session:
        return await self._worker(namespace, pod).exec(container, command, wanted)

    async def attach(self, namespace: str, pod: str, container: str, wanted: Wanted) -> Session:
        return await self._worker(namespace, pod).attach(container)

    async def dial(self, namespace: str, pod: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        worker = self._worker(namespace, pod)
        network = worker.network_path()
        try:
            if network is None:
                return await asyncio.open_connection("127.0.0.1", port)
            made = await asyncio.to_thread(_connect_within, network, port)
            return await asyncio.open_connection(sock=made)
        except OSError as error:
            raise StreamProblem(500, f"port {port} of pod {pod}: {error.strerror or error}") from None

    def _worker(self, namespace: str, pod: str) -> Worker:
        found = self._find(namespace, pod)
        if found is None:
            raise StreamProblem(404, f'pod "{pod}" not found in namespace "{namespace}" on this node')
        return found


def _connect_within(network: Path, port: int) -> socket.socket:
    """A connection to a port of the loopback interface of a network namespace. Raises OSError."""
    # A thread that has entered another namespace serves nothing else afterwards.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_enter_and_connect, network, port).result()


def _enter_and_connect(network: Path, port: int) -> socket.socket:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(network, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)
    made = socket.create_connection(("127.0.0.1", port), timeout=10)
    made.setblocking(False)
    return made
