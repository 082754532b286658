"""Two schedulers that both believe to lead: no device is used twice, no pod is stuck.

The network between them and the server loses time at every step, in both directions, by a
seeded dice; watches lag behind writes. What must hold is checked at the server, at every
Binding: the bind is the commit point.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest

from drakkar.api.kinds import DEVICECLASS, NODE, POD, RESOURCECLAIM, RESOURCESLICE
from drakkar.api.wire import Request, Response
from drakkar.client import Client, MemoryTransport, SystemClock, Unreachable
from drakkar.scheduler import Scheduler
from tests.unit.client.fakeserver import FakeServer
from tests.unit.scheduler.build import claim, device_class, node, node_slice, pod
from tests.unit.scheduler.test_scheduler import holders, node_of, until


class Checked(FakeServer):
    """Looks at every Binding."""

    faults: list[str]

    def _bind(self, key: tuple[str, str, str], old: dict[str, Any], body: dict[str, Any]) -> Response:
        response = super()._bind(key, old, body)
        if response.status == 201:
            self.faults += self.double_use()
            for entry in old["spec"].get("resourceClaims", ()):
                held = self.get(RESOURCECLAIM, entry["resourceClaimName"]).get("status", {})
                if old["metadata"]["uid"] not in [consumer["uid"] for consumer in held.get("reservedFor") or ()]:
                    self.faults.append(f"{key[2]} was bound without a reservation")
        return response

    def double_use(self) -> list[str]:
        """Devices that claims of two bound pods hold."""
        used = {
            entry["resourceClaimName"]
            for key, obj in self.objects.items()
            if key[0] == POD.path() and obj["spec"].get("nodeName")
            for entry in obj["spec"].get("resourceClaims", ())
        }
        return [f"{device} is used by {names}" for device, names in holders(self).items() if len({*names} & used) > 1]


class Slow(MemoryTransport):
    """Delays requests, answers and watch events; ``pause`` is the longest delay in seconds."""

    def __init__(self, server: FakeServer, rng: random.Random, pause: float):
        super().__init__(server.handle)
        self.rng = rng
        self.pause = pause

    async def wait(self) -> None:
        # Mostly quick, now and then for long: a paused process.
        longest = self.pause * (10 if self.rng.random() < 0.1 else 1)
        await asyncio.sleep(self.rng.random() * longest)

    async def request(self, request: Request) -> Response:
        await self.wait()
        response = await super().request(request)
        if response.stream is not None:
            response.stream = self.lagging(response.stream)
        else:
            await self.wait()
        return response

    async def lagging(self, stream: Any) -> Any:
        try:
            async for chunk in stream:
                await self.wait()
                yield chunk
        finally:
            await stream.aclose()


SEEDS = range(int(os.environ.get("RACES", "3")))
COUNT = 5


def contested(names: tuple[str, ...], make: type[Checked] = Checked) -> Checked:
    """Five pods with a claim each, four devices; the pods are meant for schedulers of these names in turn."""
    server = make()
    server.faults = []
    for kind, obj in (
        *((NODE, node(name)) for name in ("a", "b")),
        (DEVICECLASS, device_class()),
        *((RESOURCESLICE, node_slice(name, 2)) for name in ("a", "b")),
        *((RESOURCECLAIM, claim(f"c{i}")) for i in range(COUNT)),
        *((POD, pod(f"p{i}", f"c{i}", schedulerName=names[i % len(names)])) for i in range(COUNT)),
    ):
        server.put(kind, obj)
    return server


def bound(server: FakeServer) -> list[int]:
    return [i for i in range(COUNT) if (POD.path(), "default", f"p{i}") in server.objects and node_of(server, f"p{i}")]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("names", [("one",), ("one", "two")])
def test_two_leaders(names: tuple[str, ...], seed: int) -> None:
    """With one name both decide about the same pods, with two about different pods and the same devices."""

    async def scenario() -> None:
        rng = random.Random(seed)
        server = contested(names)
        transports = [Slow(server, rng, 0.003) for _ in range(2)]
        schedulers = [
            Scheduler(Client(transport), SystemClock(), scheduler_names={name})
            for transport, name in zip(transports, names * 2, strict=False)
        ]
        tasks = [asyncio.create_task(scheduler.run()) for scheduler in schedulers]
        await until(lambda: len(bound(server)) == 4)
        # A device is given back; where both serve the same pods, one of them dies before.
        if len(names) == 1:
            tasks.pop(rng.randrange(2)).cancel()
        gone = bound(server)[0]
        server.remove(POD, f"p{gone}")
        server.remove(RESOURCECLAIM, f"c{gone}")
        await until(lambda: len(bound(server)) == 4)
        assert server.faults == []
        assert all(len(claims) == 1 for claims in holders(server).values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scenario())


class Watched(Checked):
    """Looks at every revision."""

    def _store(self, key: tuple[str, str, str], event: str, obj: dict[str, Any]) -> dict[str, Any]:
        stored = super()._store(key, event, obj)
        self.faults += [f"{device} is held by {names}" for device, names in holders(self).items() if len(names) > 1]
        return stored


class Losing(MemoryTransport):
    """Cuts every other write of an allocation or Binding; the server carries it out a little later all the same."""

    def __init__(self, server: FakeServer, rng: random.Random):
        super().__init__(server.handle)
        self.rng = rng
        self.cut = 0
        self.late: set[asyncio.Task[Response]] = set()

    async def request(self, request: Request) -> Response:
        written = RESOURCECLAIM.plural in request.path or request.path.endswith("/binding")
        if request.method != "GET" and written and self.rng.random() < 0.5:
            self.cut += 1
            self.late.add(asyncio.create_task(self._carry_out(request)))
            raise Unreachable("cut")
        return await super().request(request)

    async def _carry_out(self, request: Request) -> Response:
        await asyncio.sleep(self.rng.random() * 0.3)
        return await super().request(request)


@pytest.mark.parametrize("seed", SEEDS)
def test_writes_that_are_carried_out_after_their_connection_was_cut(seed: int) -> None:
    async def scenario() -> None:
        server = contested(("one",), Watched)
        transport = Losing(server, random.Random(seed))
        task = asyncio.create_task(Scheduler(Client(transport), SystemClock(), scheduler_names={"one"}).run())
        await until(lambda: len(bound(server)) == 4)
        await asyncio.gather(*transport.late)
        assert transport.cut
        assert server.faults == []
        assert len(bound(server)) == 4
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())
