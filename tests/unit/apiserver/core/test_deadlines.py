"""How long requests take at most, and reads that are ahead of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from drakkar.apiserver import deadlines
from drakkar.apiserver.deadlines import allotted
from drakkar.apiserver.status import StatusError
from drakkar.store.base import Answer, Write
from drakkar.store.memory import MemoryBackend
from tests.unit.apiserver.core.serving import Api
from tests.unit.apiserver.core.test_writes import CONFIGMAPS, play, refused


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", 60),
        ("0", 60),
        ("0s", 60),
        ("-5s", 60),
        ("5s", 5),
        ("1m", 60),
        ("59.5s", 59.5),
        ("2h45m", 60),
        ("1.5s500ms", 2),
        ("250us", 0.00025),
        (".5s", 0.5),
        ("1.s", 1),
    ],
)
def test_clients_may_ask_for_less_than_the_server_allows(text: str, seconds: float) -> None:
    assert allotted(text, 60.0) == seconds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("soon", 'invalid duration "soon"'),
        ("5", 'missing unit in duration "5"'),
        ("1d", 'unknown unit "d" in duration "1d"'),
        ("-", 'invalid duration "-"'),
        (".s", 'invalid duration ".s"'),
        ("9" * 60 + "h", "invalid duration"),
        ("9" * 5000 + "h", "invalid duration"),
        ("1m30", 'missing unit in duration "1m30"'),
    ],
)
def test_what_is_no_duration_is_refused(text: str, said: str) -> None:
    with pytest.raises(StatusError) as caught:
        allotted(text, 60.0)
    assert caught.value.code == 400
    assert caught.value.status["message"].startswith(f"invalid timeout specified in the request URL - time: {said}")


class Slow(MemoryBackend):
    """A store that keeps its answers back until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.held: asyncio.Event | None = None

    def commit(self, batch: Sequence[Write]) -> asyncio.Future[list[Answer]]:
        done = super().commit(batch)
        return done if self.held is None else asyncio.ensure_future(self._later(self.held, done))

    async def _later(self, held: asyncio.Event, done: asyncio.Future[list[Answer]]) -> list[Answer]:
        await held.wait()
        return await done


def test_a_write_that_takes_too_long_is_said_to() -> None:
    async def run() -> None:
        store = Slow()
        api = await Api.start(store)
        store.held = asyncio.Event()
        late = await refused(api.post(f"{CONFIGMAPS}?timeout=20ms", {"metadata": {"name": "a"}}))
        assert late.status == {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": "Timeout: request did not complete within requested timeout - context deadline exceeded",
            "reason": "Timeout",
            "details": {},
            "code": 504,
        }
        store.held.set()
        # It was on its way to the disk, and that is where it went.
        async with asyncio.timeout(60):
            while (await api.get(CONFIGMAPS))["items"] == []:
                await asyncio.sleep(0)
        bad = await refused(api.get(f"{CONFIGMAPS}?timeout=never"))
        assert (bad.code, bad.reason) == (400, "BadRequest")
        assert (await api.get(f"{CONFIGMAPS}/a?timeout=30s"))["metadata"]["name"] == "a"
        # What lasts has no deadline, and does not look at this one.
        watch = await api.watch(f"{CONFIGMAPS}?timeout=1ms")
        assert await watch.take(1) == [("ADDED", "a")]
        await asyncio.sleep(0.01)
        assert await watch.quiet()
        await api.close()

    asyncio.run(run())


READS = [
    f"{CONFIGMAPS}?resourceVersionMatch=NotOlderThan&resourceVersion=",
    f"{CONFIGMAPS}?limit=1&resourceVersion=",
    f"{CONFIGMAPS}/a?resourceVersion=",
]
INITIAL = f"{CONFIGMAPS}?sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion="


def test_reads_wait_for_a_revision_that_is_about_to_come() -> None:
    async def scene(api: Api) -> None:
        first = await api.post(CONFIGMAPS, {"metadata": {"name": "a"}})
        wanted = int(first["metadata"]["resourceVersion"]) + 2
        reads = [asyncio.ensure_future(api.get(f"{path}{wanted}")) for path in READS]
        watch = asyncio.ensure_future(api.watch(f"{INITIAL}{wanted}"))
        for value in "12":
            await asyncio.sleep(0.01)
            assert not any(read.done() for read in (*reads, watch))
            await api.patch(f"{CONFIGMAPS}/a", {"data": {"k": value}})
        lists = await asyncio.gather(*reads)
        assert [item["items"][0]["data"] for item in lists[:2]] == [{"k": "2"}] * 2
        assert lists[2]["data"] == {"k": "2"}
        frame = await (await watch).next()
        assert frame is not None
        assert frame["object"]["data"] == {"k": "2"}

    play(scene)


def test_a_revision_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "FUTURE_SECONDS", 0.02)

    async def scene(api: Api) -> None:
        created = await api.post(CONFIGMAPS, {"metadata": {"name": "a"}})
        now = int(created["metadata"]["resourceVersion"])
        for asked in [*(f"{path}{now + 5}" for path in READS), f"{INITIAL}{now + 5}&watch=true"]:
            answer = await refused(api.get(asked))
            assert (answer.code, answer.reason) == (504, "Timeout")
            assert answer.status["message"] == f"Timeout: Too large resource version: {now + 5}, current: {now}"
            assert answer.status["details"] == {
                "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
                "retryAfterSeconds": 1,
            }
        # A plain watch of the future waits for it in silence.
        watch = await api.watch(f"{CONFIGMAPS}?resourceVersion={now + 1}")
        for name in "bc":
            await api.post(CONFIGMAPS, {"metadata": {"name": name}})
        assert await watch.take(1) == [("ADDED", "c")]

    play(scene)
