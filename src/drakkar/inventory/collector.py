"""The cyclic garbage collector stays out of the way while a fleet is read.

Entering thousands of objects makes hundreds of thousands of containers and no garbage, but the
collector looks at all of them again and again: more than half of the time that an index of a
large fleet took.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def paused() -> Generator[None, None, None]:
    """No cycles are looked for inside; the collector is as it was afterwards."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
