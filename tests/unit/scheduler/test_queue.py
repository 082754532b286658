from __future__ import annotations

import asyncio

from drakkar.scheduler.queue import PATIENCE, SchedulingQueue
from drakkar.scheduler.refusal import Cause


class Manual:
    """Time that moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sleepers: list[tuple[float, asyncio.Event]] = []

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            return
        over = asyncio.Event()
        self.sleepers.append((self.now + seconds, over))
        await over.wait()

    async def pass_by(self, seconds: float) -> None:
        self.now += seconds
        for until, over in self.sleepers:
            if until <= self.now:
                over.set()
        for _ in range(5):
            await asyncio.sleep(0)


async def nothing_in(queue: SchedulingQueue) -> bool:
    try:
        await asyncio.wait_for(queue.take(), 0.01)
    except TimeoutError:
        return True
    return False


def test_priority_first_then_age() -> None:
    async def scenario() -> None:
        queue = SchedulingQueue(Manual())
        queue.add("young", 0, "2026-01-02T00:00:00Z")
        queue.add("old", 0, "2026-01-01T00:00:00Z")
        queue.add("important", 10, "2026-01-03T00:00:00Z")
        queue.add("gone", 10, "2026-01-01T00:00:00Z")
        queue.remove("gone")
        assert [await queue.take() for _ in range(3)] == ["important", "old", "young"]
        assert await nothing_in(queue)

    asyncio.run(scenario())


def test_parked_pods_come_back_for_their_cause_only() -> None:
    async def scenario() -> None:
        clock = Manual()
        queue = SchedulingQueue(clock)
        timers = asyncio.create_task(queue.run_timers())
        queue.add("a", 0, "")
        queue.add("b", 0, "")
        assert await queue.take() == "a"
        assert await queue.take() == "b"
        queue.park("a", {Cause.CLAIM}, {"default/x"})
        queue.park("b", {Cause.DEVICE, Cause.CLAIM}, {"default/y"})
        await clock.pass_by(1)
        queue.happened(Cause.NODE)
        queue.happened(Cause.CLAIM, claim="default/z")
        assert await nothing_in(queue)
        queue.happened(Cause.CLAIM, claim="default/x")
        assert await queue.take() == "a"
        queue.happened(Cause.DEVICE)
        assert await queue.take() == "b"
        assert queue.sizes()["unschedulable"] == 0
        timers.cancel()

    asyncio.run(scenario())


def test_a_parked_pod_is_looked_at_again_when_its_patience_ends() -> None:
    async def scenario() -> None:
        clock = Manual()
        queue = SchedulingQueue(clock)
        timers = asyncio.create_task(queue.run_timers())
        for uid in ("a", "b"):
            queue.add(uid, 0, "")
            assert await queue.take() == uid
            queue.park(uid, {Cause.CLAIM}, {f"default/{uid}"}, counts=False, longest=5)
        queue.happened(Cause.CLAIM, claim="default/b")
        assert await queue.take() == "b"
        queue.park("b", {Cause.CLAIM}, {"default/b"}, counts=False)
        await clock.pass_by(4.9)
        assert await nothing_in(queue)
        assert 4.8 < queue.waited("a") < 5
        await clock.pass_by(0.1)
        assert await queue.take() == "a"
        # The patience of the first time is not that of the second.
        assert await nothing_in(queue)
        timers.cancel()

    asyncio.run(scenario())


def test_backoff_grows_and_holds_back_woken_pods() -> None:
    async def scenario() -> None:
        clock = Manual()
        queue = SchedulingQueue(clock)
        timers = asyncio.create_task(queue.run_timers())
        queue.add("a", 0, "")
        for attempt in range(4):
            assert await queue.take() == "a"
            queue.park("a", set(Cause))
            queue.happened(Cause.NODE)
            assert await nothing_in(queue)
            await clock.pass_by(0.05 * 2**attempt)
        assert await queue.take() == "a"
        queue.retry("a")
        await clock.pass_by(5)
        assert await queue.take() == "a"
        timers.cancel()

    asyncio.run(scenario())


def test_a_pod_that_changes_during_its_decision_is_not_parked() -> None:
    async def scenario() -> None:
        clock = Manual()
        queue = SchedulingQueue(clock)
        timers = asyncio.create_task(queue.run_timers())
        queue.add("a", 0, "")
        assert await queue.take() == "a"
        queue.add("a", 0, "")
        queue.park("a", {Cause.CLAIM})
        await clock.pass_by(0.1)
        assert await queue.take() == "a"
        timers.cancel()

    asyncio.run(scenario())


def test_patience_ends() -> None:
    async def scenario() -> None:
        clock = Manual()
        queue = SchedulingQueue(clock)
        timers = asyncio.create_task(queue.run_timers())
        await asyncio.sleep(0)
        queue.add("a", 0, "")
        assert await queue.take() == "a"
        queue.park("a", {Cause.CLAIM})
        for _ in range(6):
            await clock.pass_by(PATIENCE / 4)
        assert await queue.take() == "a"
        timers.cancel()

    asyncio.run(scenario())


def test_devices_of_another_driver_wake_nobody() -> None:
    async def scenario() -> None:
        clock = Manual()
        queue = SchedulingQueue(clock)
        for uid, drivers in (("one", frozenset({"a.example.com"})), ("any", None)):
            queue.add(uid, 0, "")
            assert await queue.take() == uid
            queue.park(uid, {Cause.DEVICE}, drivers=drivers)
        await clock.pass_by(1)
        queue.happened(Cause.DEVICE, driver="b.example.com")
        assert await queue.take() == "any"
        assert await nothing_in(queue)
        queue.happened(Cause.DEVICE, driver="a.example.com")
        assert await queue.take() == "one"

    asyncio.run(scenario())
