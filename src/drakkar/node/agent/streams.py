"""What an endpoint of an agent needs from whoever runs the pods: logs, commands in containers, ports.

The endpoint (:mod:`drakkar.node.agent.endpoint`) speaks HTTP and WebSocket; a :class:`PodHost` knows containers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from drakkar.api.meta import Object


class StreamProblem(Exception):
    """What was asked for cannot be had; ``code`` is the HTTP status, the message goes to the user."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Which part of a container's log, and whether to go on with it. ``since`` is a Unix time."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail: int | None = None
    since: float | None = None
    limit: int | None = None
    #: ``stdout``, ``stderr``, or empty for both.
    stream: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The streams that a client of exec or attach asks for; with a terminal, errors come as output."""

    stdin: bool = False
    stdout: bool = True
    stderr: bool = True
    tty: bool = False


class Session(Protocol):
    """A program whose streams a client holds. Channels are those of `drakkar.streaming.channels`."""

    async def read(self, channel: int) -> bytes:
        """The next piece of STDOUT or STDERR; empty at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """To the standard input; dropped when the program does not read any more."""
        ...

    async def close_stdin(self) -> None: ...

    def resize(self, columns: int, rows: int) -> None: ...

    async def wait(self) -> int:
        """The exit code, 128 + N for a program that signal N ended."""
        ...

    async def close(self) -> None:
        """The client is gone: a program started for it ends, one that was attached to goes on."""
        ...


class PodHost(Protocol):
    """The pods of one endpoint. Methods raise StreamProblem."""

    def pods(self) -> list[Object]:
        """All pods, with their status."""
        ...

    async def logs(self, namespace: str, pod: str, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        """The lines, in pieces; the problem comes before the first piece."""
        ...

    async def exec(
        self, namespace: str, pod: str, container: str, command: Sequence[str], wanted: Wanted
    ) -> Session: ...

    async def attach(self, namespace: str, pod: str, container: str, wanted: Wanted) -> Session: ...

    async def dial(self, namespace: str, pod: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to a port in the pod."""
        ...
