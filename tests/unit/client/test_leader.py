from __future__ import annotations

import asyncio
from typing import Any

from drakkar.api.kinds import LEASE
from drakkar.client import Client, Election, MemoryTransport, SystemClock, Unreachable
from tests.unit.client.fakeserver import FakeServer


class Cuttable(MemoryTransport):
    """A connection that can be cut."""

    cut = False

    async def request(self, request: Any) -> Any:
        if self.cut:
            raise Unreachable("cut")
        return await super().request(request)


class Virtual:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.sleepers: list[tuple[float, asyncio.Event]] = []

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        over = asyncio.Event()
        self.sleepers.append((self.now + seconds, over))
        await over.wait()

    async def pass_by(self, seconds: float) -> None:
        """In steps of half a second, with room for everybody to act in between."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            for until, over in self.sleepers:
                if until <= self.now:
                    over.set()
            self.sleepers = [entry for entry in self.sleepers if not entry[1].is_set()]
            for _ in range(40):
                await asyncio.sleep(0)


class Candidate:
    def __init__(self, server: FakeServer, clock: Virtual, name: str):
        self.transport = Cuttable(server.handle)
        self.election = Election(Client(self.transport, clock=clock), clock, "scheduler", name)
        self.works = False
        self.task = asyncio.create_task(self.election.run(self.work))

    async def work(self) -> None:
        self.works = True
        try:
            await asyncio.Event().wait()
        finally:
            self.works = False

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def lease(server: FakeServer) -> dict[str, Any]:
    return server.get(LEASE, "scheduler", "kube-system")["spec"]


def test_one_works_and_hands_over_at_its_end() -> None:
    async def scenario() -> None:
        server, clock = FakeServer(), Virtual()
        first = Candidate(server, clock, "first")
        await clock.pass_by(1)
        second = Candidate(server, clock, "second")
        await clock.pass_by(60)
        assert (first.works, second.works) == (True, False)
        await first.stop()
        assert lease(server)["holderIdentity"] == ""
        await clock.pass_by(3)
        assert second.works
        assert lease(server)["leaseTransitions"] == 1
        await second.stop()

    asyncio.run(scenario())


def test_a_leader_that_is_cut_off_stops_before_the_next_begins() -> None:
    async def scenario() -> None:
        server, clock = FakeServer(), Virtual()
        first = Candidate(server, clock, "first")
        await clock.pass_by(1)
        second = Candidate(server, clock, "second")
        await clock.pass_by(10)
        first.transport.cut = True
        both = False
        for _ in range(80):
            await clock.pass_by(0.5)
            both = both or (first.works and second.works)
        assert not both
        assert (first.works, second.works) == (False, True)
        first.transport.cut = False
        await clock.pass_by(30)
        assert (first.works, second.works) == (False, True)
        await first.stop()
        await second.stop()

    asyncio.run(scenario())


def test_work_that_ends_ends_the_election() -> None:
    async def scenario() -> None:
        election = Election(Client(MemoryTransport(FakeServer().handle)), SystemClock(), "x", "me")

        async def work() -> None:
            assert election.leads.is_set()

        await asyncio.wait_for(election.run(work), 2)
        assert not election.leads.is_set()

    asyncio.run(scenario())
