"""A server without sockets, for tests: ask it, get dicts."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

from drakkar.api.wire import Request, Response
from drakkar.apiserver import ApiServer
from drakkar.store import Backend, MemoryBackend
from drakkar.store.failpoints import Failpoints

Object = dict[str, Any]


class StoppedClock:
    """Time that passes only when told; sleepers wake in order."""

    def __init__(self, now: float = 1_800_000_000.0):
        self.now = now
        self._sleeping: list[tuple[float, asyncio.Future[None]]] = []

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleeping.append((self.now + seconds, future))
        await future

    async def pass_(self, seconds: float) -> None:
        """Lets time go by in steps of a second."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 1, end)
            due = [item for item in self._sleeping if item[0] <= self.now]
            self._sleeping = [item for item in self._sleeping if item[0] > self.now]
            for _, future in due:
                if not future.done():
                    future.set_result(None)
            for _ in range(3):
                await asyncio.sleep(0)


class Refused(Exception):
    """The server answered with a Status."""

    def __init__(self, status: Object):
        self.status = status
        self.code = status["code"]
        self.reason = status.get("reason", "")
        super().__init__(status.get("message", ""))


class Api:
    """One server and one identity."""

    def __init__(self, server: ApiServer, clock: StoppedClock, token: str):
        self.server = server
        self.clock = clock
        self.token = token

    @classmethod
    async def start(cls, backend: Backend | None = None, failpoints: Failpoints | None = None) -> Api:
        clock = StoppedClock()
        server = ApiServer(backend or MemoryBackend(), clock=clock, rng=random.Random(7), failpoints=failpoints)
        await server.start()
        return cls(server, clock, server.token("admin", "system:masters"))

    def as_user(self, name: str, *groups: str) -> Api:
        return Api(self.server, self.clock, self.server.token(name, *groups))

    async def close(self) -> None:
        await self.server.close()

    async def ask(self, request: Request) -> Response:
        headers = {"authorization": f"Bearer {self.token}", **request.headers}
        return await self.server.handle(
            Request(request.method, request.path, request.query, headers, request.body, request.peer)
        )

    async def send(self, method: str, path: str, body: Any = None, headers: Object | None = None) -> Object:
        path, _, text = path.partition("?")
        query = tuple((part.partition("=")[0], part.partition("=")[2]) for part in text.split("&") if part)
        data = b"" if body is None else json.dumps(body).encode()
        response = await self.ask(Request(method, path, query, headers or {}, data))
        found = json.loads(response.body)
        if response.status >= 400:
            raise Refused(found)
        return found

    async def get(self, path: str, **headers: str) -> Object:
        return await self.send("GET", path, None, headers)

    async def post(self, path: str, body: Any) -> Object:
        return await self.send("POST", path, body)

    async def put(self, path: str, body: Any) -> Object:
        return await self.send("PUT", path, body)

    async def patch(self, path: str, body: Any, kind: str = "merge") -> Object:
        media = "application/apply-patch+yaml" if kind == "apply" else f"application/{kind}-patch+json"
        return await self.send("PATCH", path, body, {"content-type": media})

    async def delete(self, path: str, body: Any = None) -> Object:
        return await self.send("DELETE", path, body)

    async def watch(self, path: str, accept: str = "application/json") -> Watcher:
        path, _, text = path.partition("?")
        query = tuple((part.partition("=")[0], part.partition("=")[2]) for part in text.split("&") if part)
        response = await self.ask(Request("GET", path, (("watch", "true"), *query), {"accept": accept}))
        if response.stream is None:
            raise Refused(json.loads(response.body))
        return Watcher(response.stream)


class Watcher:
    """Reads a watch frame by frame."""

    def __init__(self, stream: AsyncIterator[bytes]):
        self._stream = stream
        self._frames: list[Object] = []
        self._next: asyncio.Future[bytes] | None = None

    async def next(self, timeout: float = 60.0) -> Object | None:
        """The next frame, None at the end; TimeoutError when nothing comes."""
        while not self._frames:
            if self._next is None:
                self._next = asyncio.ensure_future(anext(self._stream, b""))
            chunk = await asyncio.wait_for(asyncio.shield(self._next), timeout)
            self._next = None
            if not chunk:
                return None
            self._frames += [json.loads(line) for line in chunk.splitlines()]
        return self._frames.pop(0)

    async def take(self, count: int) -> list[tuple[str, str]]:
        """Types and names of the next frames."""
        found: list[tuple[str, str]] = []
        for _ in range(count):
            frame = await self.next()
            assert frame is not None
            found.append((frame["type"], frame["object"]["metadata"].get("name", "")))
        return found

    async def quiet(self) -> bool:
        """Whether nothing comes."""
        try:
            return await self.next(0.05) is None
        except TimeoutError:
            return True
