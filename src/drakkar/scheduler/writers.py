"""How many placements are written at a time: many, and one by one where the server takes none.

What is refused for all pods alike, by a missing right or a server in trouble, would otherwise be tried for each of them
as often as its own back-off allows, and thousands of pods have thousands of those.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError
from drakkar.client import Unreachable
from drakkar.client.access import missing_right

#: Failures in a row from which on writers go one by one.
TOLERATED = 8
#: First and longest pause between two of them then, in seconds; it doubles with every failure.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0


class Writers:
    """At most ``most`` at a time."""

    def __init__(self, clock: Clock, most: int):
        self._clock = clock
        self._slots = asyncio.Semaphore(most)
        self._single = asyncio.Lock()
        #: Failures since something went well last.
        self._failures = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """One turn to write; an exception that comes out of it tells how the server is."""
        async with self._slots:
            if self._failures < TOLERATED:
                with_others = True
            else:
                await self._single.acquire()
                with_others = False
            try:
                if self._failures >= TOLERATED:
                    exponent = min(self._failures - TOLERATED, 10)
                    await self._clock.sleep(min(FIRST_PAUSE * 2**exponent, LONGEST_PAUSE))
                yield
            except (ApiError, Unreachable) as error:
                if is_general(error):
                    self._failures += 1
                raise
            else:
                self._failures = 0
            finally:
                if not with_others:
                    self._single.release()


def is_general(error: ApiError | Unreachable) -> bool:
    """Whether the same would have happened to other writes of this kind."""
    if isinstance(error, Unreachable):
        return True
    return error.code in (401, 429) or error.code >= 500 or missing_right(error) is not None
