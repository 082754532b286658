"""Writers go one by one, and farther and farther apart, while the server takes nothing."""

from __future__ import annotations

import asyncio

from drakkar.api.errors import ApiError
from drakkar.client import SystemClock, Unreachable
from drakkar.scheduler.writers import LONGEST_PAUSE, TOLERATED, Writers, is_general


class Noting(SystemClock):
    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


def test_pods_that_all_fail_are_written_one_by_one() -> None:
    async def scenario() -> None:
        clock = Noting()
        turns = Writers(clock, 64)
        now = most = 0
        works = False

        async def write() -> None:
            nonlocal now, most
            try:
                async with turns.turn():
                    now += 1
                    most = max(most, now)
                    await asyncio.sleep(0)
                    now -= 1
                    if not works:
                        raise Unreachable("away")
            except Unreachable:
                pass

        await asyncio.gather(*(write() for _ in range(TOLERATED)))
        assert (most, clock.slept) == (TOLERATED, [])
        most = 0
        await asyncio.gather(*(write() for _ in range(20)))
        assert most == 1
        assert len(clock.slept) == 20
        assert clock.slept == sorted(clock.slept)
        assert clock.slept[-1] == LONGEST_PAUSE
        works = True
        await asyncio.gather(*(write() for _ in range(20)))
        most = 0
        await asyncio.gather(*(write() for _ in range(20)))
        assert most == 20

    asyncio.run(scenario())


def test_what_concerns_one_pod_only_slows_nobody() -> None:
    def error(code: int, message: str = "") -> ApiError:
        return ApiError({"code": code, "message": message})

    assert not any(is_general(error(code)) for code in (403, 404, 409, 422))
    assert all(is_general(error(code)) for code in (401, 429, 500, 503))
    refused = 'User "u" cannot create resource "pods/binding" in API group "" in the namespace "a"'
    assert is_general(error(403, refused))
