"""Probes of a running container: by a command, HTTP or a connection; startup first, then liveness and readiness."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from drakkar.api.clock import Clock
from drakkar.api.meta import Object
from drakkar.api.tree import children
from drakkar.node.agent.streams import Session, StreamProblem, Wanted
from drakkar.streaming.channels import STDERR, STDOUT

#: Runs a command in the container.
Exec = Callable[[Sequence[str], Wanted], Awaitable[Session]]
#: Hears what a probe found: ``startup``, ``liveness`` or ``readiness``, whether it is well, and the words of a failure.
Found = Callable[[str, bool, str], None]

#: Bytes of a command's output that an event shows.
_SHOWN = 200
#: Answers that send the probe elsewhere, and how many of them are followed, as upstream's HTTP client has it.
_ELSEWHERE, _REDIRECTS = (301, 302, 303, 307, 308), 10


class Probes:
    """The probes of one attempt of a container. ``found`` hears of changes past the thresholds."""

    def __init__(self, container: Object, address: str, run: Exec, clock: Clock, found: Found):
        self._container = container
        self._address = address
        self._run = run
        self._clock = clock
        self._found = found

    async def run(self) -> None:
        """Probe until cancelled."""
        startup = self._container.get("startupProbe")
        if startup:
            await self._repeat("startup", startup, until_well=True)
        else:
            self._found("startup", True, "")
        others = [(name, self._container.get(f"{name}Probe")) for name in ("liveness", "readiness")]
        async with asyncio.TaskGroup() as group:
            for name, probe in others:
                if probe:
                    group.create_task(self._repeat(name, probe, until_well=False))
                elif name == "readiness":
                    self._found("readiness", True, "")

    async def _repeat(self, name: str, probe: Object, *, until_well: bool) -> None:
        await self._clock.sleep(probe.get("initialDelaySeconds") or 0)
        period = probe.get("periodSeconds") or 10
        needed = {True: probe.get("successThreshold") or 1, False: probe.get("failureThreshold") or 3}
        well, count = True, 0
        while True:
            problem = await self.once(probe)
            if (problem == "") == well:
                count += 1
            else:
                well, count = problem == "", 1
            if count == needed[well]:
                self._found(name, well, problem)
                if well and until_well:
                    return
            elif not well and count > needed[well]:
                self._found(name, False, problem)
                count = needed[well]
            await self._clock.sleep(period)

    async def once(self, probe: Object) -> str:
        """Probe once, or run a hook of the same form; what is wrong, empty when nothing is."""
        seconds = probe.get("timeoutSeconds") or 1
        try:
            async with asyncio.timeout(seconds):
                if probe.get("exec"):
                    return await self._command(probe["exec"].get("command") or [])
                if probe.get("httpGet"):
                    return await self._http(probe["httpGet"])
                if probe.get("tcpSocket"):
                    return await self._connect(probe["tcpSocket"])
        except TimeoutError:
            return f"no answer within {seconds} s"
        return "this kind of probe is not supported; use exec, httpGet or tcpSocket"

    async def _command(self, command: Sequence[str]) -> str:
        try:
            session = await self._run(command, Wanted(stdout=True, stderr=True))
        except StreamProblem as problem:
            return str(problem)
        try:
            out, err, code = await asyncio.gather(
                _text(session, STDOUT), _text(session, STDERR), asyncio.ensure_future(session.wait())
            )
        finally:
            await session.close()
        return "" if code == 0 else f"exit code {code}: {(out + err)[:_SHOWN].strip()}"

    async def _http(self, get: Object) -> str:
        import aiohttp
        from yarl import URL

        port = self._port(get["port"])
        host = get.get("host") or self._address
        url = f"{(get.get('scheme') or 'HTTP').lower()}://{host}:{port}/{(get.get('path') or '/').lstrip('/')}"
        headers = {header["name"]: header.get("value") or "" for header in get.get("httpHeaders") or ()}
        headers.setdefault("User-Agent", "kube-probe/1.37")
        try:
            async with aiohttp.ClientSession() as http:
                for _ in range(_REDIRECTS):
                    # Probes do not check certificates, as with upstream.
                    async with http.get(url, headers=headers, ssl=False, allow_redirects=False) as answer:
                        if answer.status not in _ELSEWHERE or "Location" not in answer.headers:
                            break
                        target = answer.url.join(URL(answer.headers["Location"]))
                        if target.host != answer.url.host:
                            # Well, as with upstream: a container must not choose whom the node talks to.
                            return ""
                        url = str(target)
                else:
                    return f"HTTP probe failed: stopped after {_REDIRECTS} redirects"
            if 200 <= answer.status < 400:
                return ""
            return f"HTTP probe failed with statuscode: {answer.status}"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return f'Get "{url}": {error}'

    async def _connect(self, socket: Object) -> str:
        try:
            _, writer = await asyncio.open_connection(socket.get("host") or self._address, self._port(socket["port"]))
        except OSError as error:
            return f"dial tcp: {error}"
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return ""

    def _port(self, port: int | str) -> int:
        if isinstance(port, int):
            return port
        named = {entry.get("name"): entry["containerPort"] for entry in children(self._container, "ports")}
        return named.get(port, 0)


async def _text(session: Session, channel: int) -> str:
    pieces: list[bytes] = []
    while piece := await session.read(channel):
        if sum(map(len, pieces)) < _SHOWN:
            pieces.append(piece)
    return b"".join(pieces).decode("utf-8", "replace")
