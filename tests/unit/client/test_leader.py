from __future__ import annotations

import asyncio
from typing import Any

from drakkar.api.kinds import LEASE
from drakkar.client import Client, Election, MemoryTransport, SystemClock, Unreachable
from tests.unit.client.fakeserver import FakeServer
from tests.unit.client.test_cache import until


class Cuttable(MemoryTransport):
    """A connection that can be cut."""

    cut = False

    async def request(self, request: Any) -> Any:
        if self.cut:
            raise Unreachable("cut")
        return await super().request(request)


class Candidate:
    def __init__(self, server: FakeServer, name: str):
        self.transport = Cuttable(server.handle)
        self.election = Election(
            Client(self.transport),
            SystemClock(),
            "scheduler",
            name,
            lease_duration=1,
            renew_deadline=0.3,
            retry_period=0.05,
        )
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


def test_one_works_and_hands_over_at_its_end() -> None:
    async def scenario() -> None:
        server = FakeServer()
        first = Candidate(server, "first")
        await until(lambda: first.works)
        second = Candidate(server, "second")
        await asyncio.sleep(0.3)
        assert not second.works
        await first.stop()
        assert server.get(LEASE, "scheduler", "kube-system")["spec"]["holderIdentity"] in ("", "second")
        await until(lambda: second.works, 0.9)
        assert server.get(LEASE, "scheduler", "kube-system")["spec"]["leaseTransitions"] == 1
        await second.stop()

    asyncio.run(scenario())


def test_a_leader_that_is_cut_off_stops_before_the_next_begins() -> None:
    async def scenario() -> None:
        server = FakeServer()
        first = Candidate(server, "first")
        await until(lambda: first.works)
        second = Candidate(server, "second")
        first.transport.cut = True
        await until(lambda: not first.works)
        assert not second.works
        await until(lambda: second.works, 3)
        first.transport.cut = False
        await asyncio.sleep(0.2)
        assert not first.works
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
