"""What long-running commands do with their process: its event loop and its garbage collector."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`; on uvloop where that exists, on which connections cost less (not on Windows, not on PyPy)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def settle() -> None:
    """Takes what there is out of the collector's sight, and lets it look at the rest more seldom.

    To be called once the state of the server has been read: it stays, is large and would be looked at again and again.
    Without cycles it is freed all the same.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 50)


def unsettle() -> None:
    """Has the collector look at everything again, because much of it has had its day."""
    gc.unfreeze()
