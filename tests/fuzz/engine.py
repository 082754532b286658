"""Random requests to a server without sockets, each answered by a success or a reasoned refusal.

After every write that was taken the object is read back in all versions and forms, since a body
that got stored must never harm a reader.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import resource
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from drakkar.api.wire import Request, Response
from drakkar.apiserver.catalog import Served
from tests.fuzz.inputs import Maker
from tests.unit.apiserver.core.serving import Api

Object = dict[str, Any]

#: Processor seconds that a single request may take; none of the bodies is larger than some kilobytes.
SLOW = 1.0
#: Seconds until a request counts as stuck. The server has no reason to wait for anything here.
PATIENCE = 10
#: What upstream answers with 500 and 504.
_BY_RULE = ("resourceVersion should not be set", "Too large resource version")
_FORMS = (
    "application/json",
    "application/yaml",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
)


@dataclass
class Report:
    """What came of a run."""

    requests: int = 0
    answers: Counter[int] = field(default_factory=Counter[int])
    faults: list[str] = field(default_factory=list[str])
    slowest: float = 0.0
    slowest_request: str = ""
    #: Largest resident size of the process, in MiB.
    memory: float = 0.0


class _Log(logging.Handler):
    """Keeps what the server logs about itself."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class Fuzzer:
    """One server, one source of chance."""

    def __init__(self, seed: int, kinds: tuple[str, ...] = ()):
        self.rng = random.Random(seed)
        self.maker = Maker(self.rng)
        self.targets = [one for one in self.maker.targets if not kinds or one.kind in kinds]
        self.report = Report()
        self.log = _Log()

    async def run(self, rounds: int, until: float | None = None) -> Report:
        """``rounds`` objects, or fewer when the processor time ``until`` has passed."""
        logger = logging.getLogger("drakkar")
        logger.addHandler(self.log)
        api = await Api.start()
        try:
            for number in range(rounds):
                if until is not None and time.process_time() > until:
                    break
                if number % 50 == 49:
                    # A fresh server, so that what was stored does not slow the rest down.
                    await api.close()
                    api = await Api.start()
                await self.round(api, self.rng.choice(self.targets), f"n{number}")
        finally:
            logger.removeHandler(self.log)
            await api.close()
        self.report.memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return self.report

    async def round(self, api: Api, served: Served, name: str) -> None:
        """One object: created, read in every form, watched, updated, patched and deleted."""
        collection = _collection(served)
        path = f"{collection}/{name}"
        rng = self.rng
        created = None
        for junk in (0.15, 0.03, 0.0):
            media, data = self.maker.body(self.maker.object(served, name, junk=junk))
            validation = rng.choice(("Strict", "Warn", "Ignore"))
            answer = await self.ask(api, "POST", collection, data, {"content-type": media}, fieldValidation=validation)
            if answer.status < 300:
                created = answer
                break
        if created is None:
            plain = json.dumps({"metadata": {"name": name}, **_sound(served)}).encode()
            await self.ask(api, "POST", collection, plain, {"content-type": "application/json"})
        await self.read(api, served, path, collection)
        subresources = ["", *(name for name in ("status", "scale", "finalize") if name in served.subresources)]
        for _ in range(3):
            at = path + "".join(f"/{sub}" for sub in [rng.choice(subresources)] if sub)
            current = await self.ask(api, "GET", path)
            obj = json.loads(current.body) if current.status == 200 else {"metadata": {"name": name}}
            if rng.random() < 0.3:
                media, data = self.maker.body(self.maker.object(served, name, junk=0.05))
                await self.ask(api, "PUT", at, data, {"content-type": media})
            else:
                media, data = self.maker.patch(served, obj)
                await self.ask(
                    api, "PATCH", at, data, {"content-type": media},
                    fieldManager=rng.choice(("a", "b")), force=rng.choice(("true", "false")),
                )  # fmt: skip
        await self.read(api, served, path, collection)
        media, data = self.maker.body({"apiVersion": "v1", "kind": "DeleteOptions", **_options(rng)})
        await self.ask(api, "DELETE", path, data, {"content-type": media})

    async def read(self, api: Api, served: Served, path: str, collection: str) -> None:
        """Every version of the object, and every form of its list and of its watch."""
        for other in self.maker.catalog.served.values():
            if other.stored is served.stored:
                await self.ask(api, "GET", path.replace(f"/{served.version}/", f"/{other.version}/", 1))
        for form in _FORMS:
            await self.ask(api, "GET", collection, accept=form)
        form = self.rng.choice((_FORMS[0], _FORMS[2], _FORMS[3]))
        answer = await self.ask(api, "GET", collection, accept=form, watch="1")
        if answer.stream is not None:
            stream = aiter(answer.stream)
            try:
                frame = await asyncio.wait_for(anext(stream, b""), 0.005)
                for line in frame.splitlines():
                    if json.loads(line)["type"] == "ERROR":
                        self.fault("watch ended in an error", "GET", collection, line)
            except TimeoutError:
                pass
            finally:
                await stream.aclose()  # type: ignore[attr-defined]

    async def ask(
        self, api: Api, method: str, path: str, body: bytes = b"", headers: Object | None = None,
        accept: str = "application/json", **query: str,
    ) -> Response:  # fmt: skip
        request = Request(method, path, tuple(query.items()), {"accept": accept, **(headers or {})}, body)
        before = time.process_time()
        try:
            response = await asyncio.wait_for(api.ask(request), PATIENCE)
        except TimeoutError:
            self.fault("no answer", method, path, body)
            raise
        spent = time.process_time() - before
        report = self.report
        report.requests += 1
        report.answers[response.status] += 1
        if spent > report.slowest:
            report.slowest, report.slowest_request = spent, f"{method} {path} {query} {body[:300]!r}"
        if spent > SLOW:
            self.fault(f"took {spent:.2f} s of processor time", method, path, body)
        if response.status >= 400:
            answer = json.loads(response.body)
            if answer.get("kind") != "Status" or not answer.get("message"):
                self.fault(f"no Status: {response.body[:200]!r}", method, path, body)
            if response.status >= 500 and not any(rule in answer["message"] for rule in _BY_RULE):
                self.fault(f"{response.status} {answer['message']}", method, path, body)
        if self.log.lines:
            self.fault(self.log.lines[-1], method, path, body)
            self.log.lines.clear()
        return response

    def fault(self, what: str, method: str, path: str, body: bytes) -> None:
        self.report.faults.append(f"{method} {path}\n{body[:2000]!r}\n{what}")


def _collection(served: Served) -> str:
    root = f"/apis/{served.group}/{served.version}" if served.group else f"/api/{served.version}"
    return f"{root}/namespaces/default/{served.plural}" if served.namespaced else f"{root}/{served.plural}"


def _sound(served: Served) -> Object:
    """What some kinds need before they are anything at all."""
    if served.kind == "Pod":
        return {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    return {}


def _options(rng: random.Random) -> Object:
    found: Object = {}
    if rng.random() < 0.5:
        found["gracePeriodSeconds"] = rng.choice((0, 1, -1, 2**63 - 1))
    if rng.random() < 0.3:
        found["propagationPolicy"] = rng.choice(("Orphan", "Foreground", "Background", "x"))
    if rng.random() < 0.2:
        found["preconditions"] = rng.choice(({}, {"uid": "x"}, {"resourceVersion": "1"}))
    if rng.random() < 0.1:
        found["dryRun"] = rng.choice((["All"], [], ["x"]))
    return found
