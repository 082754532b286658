"""Timestamps as the API writes them, from a clock; the text of a second is made once."""

from __future__ import annotations

import time

from drakkar.api.clock import Clock


def rfc3339(seconds: float) -> str:
    """``metav1.Time`` of a moment."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


class Stamps:
    """``metav1.Time`` of now."""

    def __init__(self, clock: Clock):
        self._clock = clock
        self._second = -1
        self._text = ""

    def now(self) -> str:
        second = int(self._clock.time())
        if second != self._second:
            self._second, self._text = second, rfc3339(second)
        return self._text
