"""The witness of the demo: which findings it waits for, and which it tells at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from drakkar.cli import observer
from drakkar.client import Client
from tests.support.eventually import memory_plane
from tests.unit.insight.test_verify import claim, device, node, pod, resource_slice


def cluster(*consumers: str, **more: dict[str, Any]) -> list[dict[str, Any]]:
    """A claim that is reserved for these pods, of which there is p1; it is sound for p1 alone."""
    counters = [{"name": "s", "counters": {"h1": {"value": "4"}}}]
    slices = [resource_slice("a", devices=[device("d1", "h1")]), resource_slice("b", sharedCounters=counters)]
    return [node("h1"), *slices, claim("c1", "d1", ["h1"], [*consumers]), pod("p1", "h1", "c1"), *more.values()]


@pytest.mark.parametrize(
    ("states", "told", "read"),
    [
        ([cluster("p1")], [], 1),
        ([cluster("p1", "gone"), cluster("p1", "gone"), cluster("p1")], [], 3),
        # What must never be is told, whatever else there is.
        ([cluster("p1", "gone", twice=claim("c2", "d1", ["h1"], [])), cluster("p1")], ["double-allocation"], 1),
    ],
)
def test_what_controllers_have_yet_to_do_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, states: list[list[dict[str, Any]]], told: list[str], read: int
) -> None:
    seen = iter(states)
    count = 0

    async def collect(client: Client) -> list[dict[str, Any]]:
        nonlocal count
        count += 1
        return next(seen)

    monkeypatch.setattr(observer, "collect", collect)

    async def ask(patience: float) -> list[str]:
        async with memory_plane() as client:
            return [finding.rule for finding in await observer.audit(client, patience)]

    found = asyncio.run(ask(60))
    assert found[: len(told)] == told
    assert bool(found) == bool(told)
    assert count == read


def test_what_does_not_pass_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def collect(client: Client) -> list[dict[str, Any]]:
        return cluster("p1", "gone")

    monkeypatch.setattr(observer, "collect", collect)

    async def ask() -> list[str]:
        async with memory_plane() as client:
            return [finding.rule for finding in await observer.audit(client, 0.3)]

    assert asyncio.run(ask()) == ["reserved-for-missing-pod"]
