"""When a container that has ended may start again: at once after the first end, then later and later."""

from __future__ import annotations

#: Seconds before a container is started again: first pause and longest; a good run forgets the pauses.
FIRST_PAUSE, LONGEST_PAUSE, GOOD_RUN = 10.0, 300.0, 600.0


class BackOff:
    """The pauses of one container. Times are monotonic, in seconds."""

    def __init__(self) -> None:
        #: The pause before the next start.
        self.pause = 0.0
        self._longer = 0.0
        self._until = float("-inf")

    def ended(self, now: float, ran: float = 0.0) -> None:
        """An attempt has ended after ``ran`` seconds, or could not begin."""
        if ran >= GOOD_RUN:
            self._longer = 0.0
        self.pause = self._longer
        self._until = now + self.pause
        self._longer = min(max(self.pause * 2, FIRST_PAUSE), LONGEST_PAUSE)

    def left(self, now: float) -> float:
        """Seconds until it may start, none or less when it may now."""
        return self._until - now
