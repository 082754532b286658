from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest

from drakkar.api.errors import EnvironmentProblem, UsageError
from drakkar.client.health import address_of, serving
from drakkar.scheduler.metrics import COUNTERS, exposition


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        (":10259", ("0.0.0.0", 10259)),
        ("[::1]:80", ("::1", 80)),
        ("0", None),
        ("", None),
    ],
)
def test_addresses(text: str, address: tuple[str, int] | None) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize("text", ["localhost", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:65536"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="use HOST:PORT"):
        address_of(text)


def test_what_is_answered() -> None:
    async def scenario() -> None:
        missing, refused = ["the state"], list[str]()
        async with (
            serving(("127.0.0.1", 0), lambda: "".join(missing), lambda: "x_total 1\n", lambda: "".join(refused)) as url,
            aiohttp.ClientSession() as session,
        ):

            async def get(path: str) -> tuple[int, str]:
                async with session.get(url + path) as answer:
                    return answer.status, await answer.text()

            assert await get("/healthz") == (200, "ok")
            assert await get("/readyz") == (503, "the state")
            missing.clear()
            assert await get("/readyz") == (200, "ok")
            refused.append("not allowed to list pods")
            assert await get("/readyz") == (200, "ok\nnot allowed to list pods")
            missing.append("the state")
            assert await get("/readyz") == (503, "the state\nnot allowed to list pods")
            assert await get("/metrics") == (200, "x_total 1\n")
            assert (await get("/secrets"))[0] == 404
            async with session.post(url + "/healthz") as answer:
                assert answer.status == 405

    asyncio.run(scenario())


def test_no_address_and_one_that_is_taken() -> None:
    async def scenario() -> None:
        async with serving(None, str, str) as url:
            assert url == ""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(EnvironmentProblem, match="cannot be bound"):
                async with serving(("127.0.0.1", taken.getsockname()[1]), str, str):
                    pass

    asyncio.run(scenario())


def test_every_sample_belongs_to_a_family() -> None:
    counters = {key: float(number) for number, key in enumerate(COUNTERS, start=1)}
    pending, judged = {"active": 1, "backoff": 2, "unschedulable": 3}, {"allowed": 4, "own": 5, "refused": 6}
    lines = exposition(counters, pending, judged, foreign=7, fences=8).splitlines()
    families = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    samples = [line for line in lines if not line.startswith("#")]
    assert {line.split("{")[0].split()[0].removesuffix("_sum").removesuffix("_count") for line in samples} == families
    assert 'scheduler_schedule_attempts_total{result="scheduled"} 3' in samples
    assert 'scheduler_pending_pods{queue="unschedulable"} 3' in samples
    assert 'drakkar_guard_allocations_total{outcome="refused"} 6' in samples
    assert 'drakkar_allocators{foreign="true"} 7' in samples
    assert len(samples) == len(set(samples))
