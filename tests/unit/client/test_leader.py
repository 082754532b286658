from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from drakkar.api.kinds import LEASE
from drakkar.client import Client, Election, MemoryTransport, SystemClock, Unreachable
from tests.unit.client.fakeserver import FakeServer, failure


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

        await asyncio.wait_for(election.run(work), 60)
        assert not election.leads.is_set()

    asyncio.run(scenario())


class Mute(MemoryTransport):
    """A server that, while ``mute``, answers nothing at all."""

    mute = False

    async def request(self, request: Any) -> Any:
        if self.mute:
            await asyncio.Event().wait()
        return await super().request(request)


def quick(transport: Any, name: str) -> Election:
    client, clock = Client(transport), SystemClock()
    return Election(client, clock, "scheduler", name, lease_duration=0.6, renew_deadline=0.4, retry_period=0.05)


def test_unanswered_requests_cost_neither_candidates_their_turn_nor_others_theirs() -> None:
    async def scenario() -> None:
        server = FakeServer()
        silent, other = Mute(server.handle), Mute(server.handle)
        works: list[str] = []

        async def work(name: str) -> None:
            works.append(name)
            try:
                await asyncio.Event().wait()
            finally:
                works.remove(name)

        first = asyncio.create_task(quick(silent, "first").run(lambda: work("first")))
        async with asyncio.timeout(60):
            while works != ["first"]:
                await asyncio.sleep(0.01)
            other.mute = True
            second = asyncio.create_task(quick(other, "second").run(lambda: work("second")))
            await asyncio.sleep(0.02)
            # From now on the first hears nothing; what the second had asked before is never answered.
            silent.mute, other.mute = True, False
            while works != ["second"]:
                assert works in (["first"], [])
                await asyncio.sleep(0.01)
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)

    asyncio.run(scenario())


def test_one_refusal_after_a_takeover_costs_no_term() -> None:
    async def scenario() -> None:
        server, clock = FakeServer(), Virtual()
        first = Candidate(server, clock, "first")
        await clock.pass_by(1)
        second = Candidate(server, clock, "second")
        await clock.pass_by(5)
        first.transport.cut = True
        await clock.pass_by(20)
        assert second.works
        server.refuse = [failure(403, "Forbidden")]
        await clock.pass_by(2.5)
        assert not server.refuse
        assert second.works
        await first.stop()
        await second.stop()

    asyncio.run(scenario())


def test_a_leader_is_sure_as_long_as_it_renews_and_not_after_a_pause() -> None:
    async def scenario() -> None:
        server, clock = FakeServer(), Virtual()
        first = Candidate(server, clock, "first")
        assert not first.election.is_sure()
        # Far longer than one term.
        for _ in range(40):
            await clock.pass_by(1)
            assert first.election.is_sure()
        # A process that was stopped has not run yet when it is asked: nobody has told it that its time is over.
        clock.now += 10
        assert first.works
        assert not first.election.is_sure()
        await first.stop()

    asyncio.run(scenario())


def test_what_keeps_a_replica_from_its_lease_is_not_said_at_every_attempt(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        server, clock = FakeServer(), Virtual()
        first = Candidate(server, clock, "first")
        first.transport.cut = True
        await clock.pass_by(90)
        assert [record.getMessage() for record in caplog.records] == ["lease kube-system/scheduler: cut"] * 2
        first.transport.cut = False
        await clock.pass_by(30)
        assert first.works
        # Another time is another problem.
        first.transport.cut = True
        caplog.clear()
        # A read is repeated for a while, with pauses by chance, before it is given up.
        await clock.pass_by(50)
        assert [record.getMessage() for record in caplog.records].count("lease kube-system/scheduler: cut") == 1
        await first.stop()

    with caplog.at_level(logging.INFO, logger="drakkar.client.leader"):
        asyncio.run(scenario())
