"""From a driver's thread to the event loop that its client lives on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

#: Seconds for the API server within a call of the kubelet.
PATIENCE = 20.0


def on_loop(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], patience: float = PATIENCE) -> T:
    """Runs it there and waits for the outcome; raises TimeoutError after ``patience`` seconds."""
    return asyncio.run_coroutine_threadsafe(work, loop).result(patience)
