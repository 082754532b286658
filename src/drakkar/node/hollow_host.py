"""What the pods of hollow nodes answer to logs, exec and port-forward: the truth, which is that nothing runs there.

A hollow container has a log all the same: a line for its start and its end, and between them the lines of the
annotation ``drakkar.dev/log`` of its pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from drakkar.api.meta import Object
from drakkar.api.objects import annotations_of
from drakkar.api.tree import at, child, children, text
from drakkar.node.agent.logs import Line, chosen, rendered
from drakkar.node.agent.streams import LogOptions, Session, StreamProblem, Wanted
from drakkar.streaming import channels

LOG = "drakkar.dev/log"
#: Exit code of a command that cannot be executed, as shells have it.
CANNOT_EXECUTE = 126
#: Seconds between two looks at a pod whose log is followed.
_PAUSE = 0.25

#: A pod of these nodes by namespace and name, or None.
FindPod = Callable[[str, str], Object | None]


class HollowHost:
    """The pods that ``find`` and ``every`` know (implements `drakkar.node.agent.streams.PodHost`)."""

    def __init__(self, find: FindPod, every: Callable[[], list[Object]]):
        self._find = find
        self._every = every

    def pods(self) -> list[Object]:
        return self._every()

    async def logs(self, namespace: str, pod: str, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        status = self._status(namespace, pod, container)
        if options.previous:
            before = child(status, "lastState", "terminated")
            if not before:
                raise StreamProblem(400, f'previous terminated container "{container}" in pod "{pod}" not found')
            return _all(chosen(_ended_lines(container, before), options))
        waiting = child(status, "state", "waiting")
        if waiting:
            why = f"{waiting.get('reason', 'ContainerCreating')}"
            raise StreamProblem(400, f'container "{container}" in pod "{pod}" is waiting to start: {why}')
        return self._follow(namespace, pod, container, options)

    async def _follow(self, namespace: str, pod: str, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        lines = list(self._lines(namespace, pod, container))
        for piece in chosen(lines, options):
            yield piece
        seen = len(lines)
        while options.follow:
            found = self._find(namespace, pod)
            if found is None or not at(_status_of(found, container), "state", "running"):
                break
            await asyncio.sleep(_PAUSE)
        for line in list(self._lines(namespace, pod, container))[seen:]:
            yield rendered(line, options)

    def _lines(self, namespace: str, name: str, container: str) -> Iterator[Line]:
        pod = self._find(namespace, name)
        if pod is None:
            return
        status = _status_of(pod, container)
        started = text(status, "state", "running", "startedAt") or text(status, "state", "terminated", "startedAt")
        if not started:
            return
        yield Line(started, "stdout", f"hollow container {container} started; hollow nodes run no programs\n".encode())
        for line in annotations_of(pod).get(LOG, "").splitlines():
            yield Line(started, "stdout", f"{line}\n".encode())
        ended = child(status, "state", "terminated")
        if ended:
            yield from _ended_lines(container, ended)

    async def exec(self, namespace: str, pod: str, container: str, command: Sequence[str], wanted: Wanted) -> Session:
        self._running(namespace, pod, container)
        return _Refusal(f"drakkar: cannot execute {command[0]!r}: pod {pod} is hollow, it runs no programs\r\n", wanted)

    async def attach(self, namespace: str, pod: str, container: str, wanted: Wanted) -> Session:
        self._running(namespace, pod, container)
        return _Refusal(f"drakkar: nothing to attach to: pod {pod} is hollow, it runs no programs\r\n", wanted)

    async def dial(self, namespace: str, pod: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raise StreamProblem(400, f"port {port}: pod {pod} is hollow, it runs no programs that could listen")

    def _status(self, namespace: str, pod: str, container: str) -> Object:
        found = self._find(namespace, pod)
        if found is None:
            raise StreamProblem(404, f'pod "{pod}" not found in namespace "{namespace}" on this node')
        names = [entry["name"] for key in ("containers", "initContainers") for entry in children(found, "spec", key)]
        if container not in names:
            raise StreamProblem(404, f'container "{container}" not found in pod "{pod}"')
        status = _status_of(found, container)
        return status or {"state": {"waiting": {"reason": "ContainerCreating"}}}

    def _running(self, namespace: str, pod: str, container: str) -> None:
        if not at(self._status(namespace, pod, container), "state", "running"):
            raise StreamProblem(400, f'container "{container}" in pod "{pod}" does not run')


class _Refusal:
    """A session that says one line and ends (implements `Session`)."""

    def __init__(self, message: str, wanted: Wanted):
        self._channel = channels.STDERR if wanted.stderr and not wanted.tty else channels.STDOUT
        self._message = message.encode()

    async def read(self, channel: int) -> bytes:
        if channel != self._channel:
            return b""
        message, self._message = self._message, b""
        return message

    async def write(self, data: bytes) -> None:
        return

    async def close_stdin(self) -> None:
        return

    def resize(self, columns: int, rows: int) -> None:
        return

    async def wait(self) -> int:
        return CANNOT_EXECUTE

    async def close(self) -> None:
        return


def _status_of(pod: Object, container: str) -> Object:
    statuses = [*children(pod, "status", "containerStatuses"), *children(pod, "status", "initContainerStatuses")]
    return next((status for status in statuses if status.get("name") == container), {})


def _ended_lines(container: str, ended: Object) -> Iterator[Line]:
    message = f"hollow container {container} ended with exit code {ended.get('exitCode', 0)}\n"
    yield Line(text(ended, "finishedAt"), "stdout", message.encode())


async def _all(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
