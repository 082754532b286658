"""Stores that give less than SQLite: a limit of sizes, revisions of a batch in any order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from drakkar.store import Conflict, MemoryBackend, Write
from tests.unit.apiserver.core.serving import Api, Refused

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


class _Backwards(MemoryBackend):
    """The last write of a batch gets the lowest revision."""

    value_limit = 4000

    def commit(self, batch: Sequence[Write]) -> asyncio.Future[list[int | Conflict]]:
        future = super().commit(batch[::-1])
        turned: asyncio.Future[list[int | Conflict]] = asyncio.get_running_loop().create_future()
        turned.set_result(future.result()[::-1])
        return turned


def test_a_batch_with_revisions_in_any_order() -> None:
    async def run() -> None:
        api = await Api.start(_Backwards())
        before = api.server.state.revision
        made = await asyncio.gather(*(api.post(CONFIGMAPS, {"metadata": {"name": f"c{n}"}}) for n in range(5)))
        revisions = [int(obj["metadata"]["resourceVersion"]) for obj in made]
        assert revisions != sorted(revisions), "the writes did not share a batch"
        table = api.server.state.tables["/core/configmaps/"]
        log = [change.revision for change in table.log if change.revision > before]
        assert log == sorted(revisions)
        assert api.server.state.revision == max(revisions)
        await api.close()

    asyncio.run(run())


def test_what_the_store_does_not_take_is_refused() -> None:
    async def run() -> None:
        api = await Api.start(_Backwards())
        with pytest.raises(Refused) as caught:
            await api.post(CONFIGMAPS, {"metadata": {"name": "large"}, "data": {"a": "x" * 5000}})
        assert caught.value.code == 413
        await api.post(CONFIGMAPS, {"metadata": {"name": "small"}})
        await api.close()

    asyncio.run(run())
