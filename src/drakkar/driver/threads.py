"""From a driver's thread to the event loop that its client lives on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

#: Seconds for one answer of the API server within a call of the kubelet, which itself gives up after 45.
PATIENCE = 20.0


def on_loop(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], patience: float = PATIENCE) -> T:
    """Runs it there and waits for the outcome; what takes longer than ``patience`` seconds ends by TimeoutError."""
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result(patience)
    except TimeoutError:
        if future.done():
            raise  # The work's own.
        future.cancel()
        raise TimeoutError(f"the API server has not answered within {patience:g} s") from None
