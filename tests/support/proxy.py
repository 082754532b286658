"""An API server behind bad weather: a proxy that refuses, delays, loses and repeats what passes through it.

Each component gets a door of its own, a plain HTTP address on loopback; behind it the proxy speaks to the real server
with the component's own certificate. What happens to a request follows from the seed, the door, the verb, the resource
and how many requests of that kind there were, so a run is as repeatable as its parts are. Every request is counted.

A server may do all of :data:`STORM`. :data:`BEYOND` has what none should: changes that a watch never tells, or tells
in the wrong order, lists of old states, and writes that are carried out long after their connection was cut.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import ssl
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from drakkar.api.times import parse_timestamp, timestamp
from drakkar.api.wire import Request
from drakkar.apiserver.routes import RequestInfo, parse

READS = ("get", "list", "watch")


@dataclass(frozen=True)
class Weather:
    """How likely what is: per request, and for ``watch_*`` per event of a watch. Times in seconds."""

    #: 409 to a write, which is not carried out.
    conflict: float = 0.0
    #: 429, every other time with Retry-After.
    throttled: float = 0.0
    #: 500 or 503 without carrying anything out; 500 after a write was carried out, as after a time-out of etcd.
    broken: float = 0.0
    broken_after: float = 0.0
    #: The connection is cut before, or after the request was carried out.
    cut: float = 0.0
    lost: float = 0.0
    #: The answer comes late, by up to ``lateness``; or never.
    late: float = 0.0
    lateness: float = 1.0
    never: float = 0.0
    #: How long the proxy holds what is never answered before it cuts the connection.
    patience: float = 8.0
    #: 401, as if the token had run out.
    unauthorized: float = 0.0
    #: The connection is cut, and the write is carried out up to ``lateness`` later.
    late_write: float = 0.0
    #: A list is answered from an earlier state.
    stale_list: float = 0.0
    #: Streaming lists are refused, as by servers that do not know them.
    streaming_lists: bool = True
    #: The stream ends before this event; an error says that the revision has expired.
    watch_cut: float = 0.0
    watch_expired: float = 0.0
    #: The event comes twice; after the next one; never.
    watch_twice: float = 0.0
    watch_swapped: float = 0.0
    watch_lost: float = 0.0


CALM = Weather()
STORM = Weather(
    conflict=0.06,
    throttled=0.06,
    broken=0.05,
    broken_after=0.03,
    cut=0.04,
    lost=0.04,
    late=0.1,
    never=0.005,
    unauthorized=0.02,
    watch_cut=0.02,
    watch_expired=0.01,
    watch_twice=0.03,
)
BEYOND = replace(STORM, late_write=0.03, stale_list=0.3, watch_swapped=0.02, watch_lost=0.01)


@dataclass
class Count:
    """What went through one door: by verb and resource, by fate, and how many in each second."""

    requests: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    fates: Counter[str] = field(default_factory=Counter[str])
    seconds: dict[tuple[str, str], Counter[int]] = field(
        default_factory=lambda: defaultdict[tuple[str, str], Counter[int]](Counter)
    )

    def peak(self, span: int = 5) -> tuple[float, tuple[str, str]]:
        """The most requests of one kind per second over ``span`` seconds, and of which kind."""
        return max(
            (
                (sum(counts[second + i] for i in range(span)) / span, kind)
                for kind, counts in self.seconds.items()
                for second in counts
            ),
            default=(0.0, ("", "")),
        )

    def since(self, moment: float) -> Counter[tuple[str, str]]:
        """Requests by kind since ``moment`` of the monotonic clock, in whole seconds."""
        return Counter(
            {
                kind: total
                for kind, counts in self.seconds.items()
                if (total := sum(number for second, number in counts.items() if second >= moment))
            }
        )


class Door:
    """Where one component meets the server; ``kubeconfig`` is for it. ``skew`` shifts its clock in leases, seconds."""

    def __init__(self, name: str, kubeconfig: Path, session: aiohttp.ClientSession, server: str, seed: int):
        self.name = name
        self.kubeconfig = kubeconfig
        self.weather = CALM
        self.skew = 0.0
        self.count = Count()
        self._session = session
        self._server = server
        self._seed = seed
        self._lists: dict[str, bytes] = {}
        self._later: set[asyncio.Task[None]] = set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One exchange."""
        try:
            return await self._answer(request)
        except ConnectionResetError:
            # The component has gone away meanwhile.
            return web.Response()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        asked = Request(request.method, request.path, tuple(request.query.items()))
        info = parse(asked, request.query)
        resource = info.resource + (f"/{info.subresource}" if info.subresource else "")
        kind = info.verb, resource or request.path
        self.count.requests[kind] += 1
        self.count.seconds[kind][int(time.monotonic())] += 1
        rng = random.Random(f"{self._seed} {self.name} {kind} {self.count.requests[kind]}")
        fate = self._fate(info, request, rng)
        if fate:
            self.count.fates[fate] += 1
        if fate == "cut":
            return _cut(request)
        if fate == "never":
            await asyncio.sleep(self.weather.patience)
            return _cut(request)
        if fate == "late":
            await asyncio.sleep(rng.random() * self.weather.lateness)
        if fate in _REFUSALS or fate == "throttled":
            return _refusal(fate, rng)
        if info.resource == "leases" and self.skew and info.verb in ("create", "patch"):
            body = _shifted(body, self.skew)
        if fate == "late_write":
            task = asyncio.create_task(self._write_later(request, body, rng.random() * self.weather.lateness))
            self._later.add(task)
            task.add_done_callback(self._later.discard)
            return _cut(request)
        if fate == "stale":
            return web.Response(body=self._lists[request.path_qs], content_type="application/json")
        if info.verb == "watch":
            return await self._watch(request, rng)
        async with self._forward(request, body) as answer:
            content = await answer.read()
            headers = {name: answer.headers[name] for name in ("Retry-After",) if name in answer.headers}
        if fate == "lost":
            return _cut(request)
        if fate == "broken_after":
            return _refusal(fate, rng)
        if info.verb == "list" and answer.status == 200:
            self._lists.setdefault(request.path_qs, content)
        media = answer.headers.get("Content-Type", "application/json")
        return web.Response(status=answer.status, body=content, headers={"Content-Type": media, **headers})

    def _fate(self, info: RequestInfo, request: web.Request, rng: random.Random) -> str:
        weather = self.weather
        writes = info.verb not in READS
        if info.verb == "watch" and not weather.streaming_lists and request.query.get("sendInitialEvents"):
            return "unknown_option"
        chances = {
            "conflict": weather.conflict if writes else 0.0,
            "throttled": weather.throttled,
            "broken": weather.broken,
            "unavailable": weather.broken,
            "broken_after": weather.broken_after if writes else 0.0,
            "cut": weather.cut,
            "lost": weather.lost if writes else 0.0,
            "late": weather.late,
            "never": weather.never,
            "unauthorized": weather.unauthorized,
            "late_write": weather.late_write if writes else 0.0,
            "stale": weather.stale_list if request.path_qs in self._lists else 0.0,
        }
        point = rng.random()
        for fate, chance in chances.items():
            point -= chance
            if point < 0:
                return fate
        return ""

    def _forward(self, request: web.Request, body: bytes) -> Any:
        kept = {"Accept", "Content-Type", "Authorization", "User-Agent"}
        headers = {name: value for name, value in request.headers.items() if name in kept}
        return self._session.request(
            request.method, f"{self._server}{request.path_qs}", headers=headers, data=body or None
        )

    async def _write_later(self, request: web.Request, body: bytes, seconds: float) -> None:
        await asyncio.sleep(seconds)
        async with self._forward(request, body) as answer:
            await answer.read()

    async def _watch(self, request: web.Request, rng: random.Random) -> web.StreamResponse:
        async with self._forward(request, b"") as answer:
            if answer.status != 200:
                return web.Response(status=answer.status, body=await answer.read(), content_type="application/json")
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            response.enable_chunked_encoding()
            await response.prepare(request)
            begun = not request.query.get("sendInitialEvents")
            held: list[bytes] = []
            async for line in answer.content:
                # What a streaming list begins with is a state, not changes.
                fate = self._fate_of_event(rng) if begun else ""
                begun = begun or b"initial-events-end" in line
                if fate:
                    self.count.fates[fate] += 1
                if fate == "watch_cut":
                    return _cut(request)
                if fate == "watch_expired":
                    status = json.loads(_status(410, "Expired", "too old resource version"))
                    await response.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
                    break
                if fate == "watch_lost":
                    continue
                if fate == "watch_swapped" and not held:
                    held.append(line)
                    continue
                lines = [line, line] if fate == "watch_twice" else [line]
                await response.write(b"".join([*lines, *held]))
                held.clear()
            await response.write_eof()
            return response

    def _fate_of_event(self, rng: random.Random) -> str:
        weather = self.weather
        point = rng.random()
        for fate in ("watch_cut", "watch_expired", "watch_twice", "watch_swapped", "watch_lost"):
            point -= getattr(weather, fate)
            if point < 0:
                return fate
        return ""


_REFUSALS = {
    "conflict": (409, "Conflict", "the object has been modified; please apply your changes to the latest version"),
    "broken": (500, "InternalError", "an error on the server"),
    "broken_after": (500, "InternalError", "etcdserver: request timed out"),
    "unavailable": (503, "ServiceUnavailable", "the server is currently unable to handle the request"),
    "unauthorized": (401, "Unauthorized", "Unauthorized"),
    "unknown_option": (422, "Invalid", "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch"),
}


def _status(code: int, reason: str, message: str) -> bytes:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}
    return json.dumps({**status, "message": message}).encode()


def _refusal(fate: str, rng: random.Random) -> web.Response:
    if fate == "throttled":
        headers = {"Retry-After": "1"} if rng.random() < 0.5 else {}
        body = _status(429, "TooManyRequests", "too many requests")
        return web.Response(status=429, body=body, content_type="application/json", headers=headers)
    code, reason, message = _REFUSALS[fate]
    return web.Response(status=code, body=_status(code, reason, message), content_type="application/json")


def _cut(request: web.Request) -> web.Response:
    """Resets the connection."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _shifted(body: bytes, seconds: float) -> bytes:
    """A Lease whose times are those of a clock that goes wrong by ``seconds``."""
    lease = json.loads(body)
    spec = lease.get("spec") or {}
    for name in ("renewTime", "acquireTime"):
        if spec.get(name):
            spec[name] = timestamp(parse_timestamp(spec[name]) + seconds, micro=True)
    return json.dumps(lease).encode()


class Proxy:
    """Doors to one API server; made by :func:`proxy`."""

    def __init__(self, seed: int, folder: Path):
        self.doors: dict[str, Door] = {}
        self._seed = seed
        self._folder = folder
        self._runners: list[web.AppRunner] = []
        self._sessions: list[aiohttp.ClientSession] = []

    async def door(self, name: str, credentials: Path) -> Door:
        """A door for the user of a kubeconfig with certificates."""
        config = yaml.safe_load(await asyncio.to_thread(credentials.read_text))
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        connector = aiohttp.TCPConnector(ssl=_context(cluster, user), limit=0)
        session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))
        self._sessions.append(session)
        path = self._folder / f"{name}.door"
        door = Door(name, path, session, cluster["server"], self._seed)
        application = web.Application(client_max_size=2**26)
        application.router.add_route("*", "/{path:.*}", door.answer)
        runner = web.AppRunner(
            application, access_log=None, handle_signals=False, handler_cancellation=True, shutdown_timeout=0.5
        )
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{port}"}
        config["users"][0]["user"] = {}
        await asyncio.to_thread(path.write_text, json.dumps(config))
        self.doors[name] = door
        return door

    def totals(self) -> dict[str, int]:
        """How many requests have gone through each door."""
        return {name: sum(door.count.requests.values()) for name, door in self.doors.items()}

    def weather(self, weather: Weather) -> None:
        """The same weather at all doors."""
        for door in self.doors.values():
            door.weather = weather

    async def close(self) -> None:
        """Closes all doors."""
        for runner in self._runners:
            await runner.cleanup()
        for session in self._sessions:
            await session.close()


def _context(cluster: Mapping[str, str], user: Mapping[str, str]) -> ssl.SSLContext:
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        for name in ("client-certificate-data", "client-key-data"):
            file.write(base64.b64decode(user[name]))
        file.flush()
        context.load_cert_chain(file.name)
    return context


@asynccontextmanager
async def proxy(seed: int, folder: Path) -> AsyncIterator[Proxy]:
    """A proxy whose doors are open as long as the block lasts."""
    made = Proxy(seed, folder)
    try:
        yield made
    finally:
        await made.close()
