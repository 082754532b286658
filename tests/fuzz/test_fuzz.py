"""A bounded run of the fuzzer; ``./do fuzz`` is the unbounded one."""

from __future__ import annotations

import asyncio

import pytest

from tests.fuzz.engine import Fuzzer


def _run(seed: int, rounds: int) -> None:
    report = asyncio.run(Fuzzer(seed).run(rounds))
    assert not report.faults, f"seed {seed}, {len(report.faults)} faults, the first:\n{report.faults[0]}"
    # Most of what is sent has to get past the first look, or nothing is tried.
    assert report.answers[200] + report.answers[201] > report.requests / 2
    assert report.answers[201] >= rounds / 4
    assert report.answers[400] + report.answers[422] >= rounds / 2


def test_any_request_gets_an_answer() -> None:
    _run(5, 250)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_many_requests_get_an_answer() -> None:
    for seed in (50, 51, 52):
        _run(seed, 400)
