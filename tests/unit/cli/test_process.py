"""Event loop and garbage collector of long-running commands."""

from __future__ import annotations

import asyncio
import gc
import sys

import pytest

from drakkar.cli import process


async def _loop() -> str:
    await asyncio.sleep(0)
    return type(asyncio.get_running_loop()).__module__


@pytest.mark.skipif(sys.platform == "win32" or sys.implementation.name != "cpython", reason="no uvloop there")
def test_commands_run_on_uvloop() -> None:
    assert process.run(_loop()).startswith("uvloop")


def test_without_uvloop_they_run_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert process.run(_loop()).startswith("asyncio")


def test_what_there_is_is_out_of_the_collectors_sight_until_it_has_had_its_day() -> None:
    threshold = gc.get_threshold()
    kept = [[number] for number in range(1000)]
    try:
        process.settle()
        assert gc.get_freeze_count() > len(kept)
        process.unsettle()
        assert gc.get_freeze_count() == 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
