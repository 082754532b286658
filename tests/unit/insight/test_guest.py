"""A case as a guest: it gets its outcome beside others, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from drakkar.api import kinds, objects
from drakkar.api.errors import EnvironmentProblem
from drakkar.api.wire import Request, Response
from drakkar.apiserver import open_server
from drakkar.cli.plane import case_plane
from drakkar.client import Client, MemoryTransport
from drakkar.client.clock import SystemClock
from drakkar.insight import guest
from drakkar.insight.cases import Case, read_case
from drakkar.insight.guest import visit
from tests.support.eventually import memory_plane
from tests.unit.insight.test_cases import CLASS, NODE, SLICE, pod, template

EXPECT = {
    "pods": [
        {"name": "both", "scheduled": True, "node": ["n"]},
        {"name": "late", "scheduled": False, "reason": "in-use"},
    ]
}


def a_case(folder: Path, *workload: dict[str, Any]) -> Case:
    (folder / "cluster.yaml").write_text(yaml.safe_dump_all([NODE, CLASS, SLICE]))
    (folder / "workload.yaml").write_text(yaml.safe_dump_all(workload))
    (folder / "expect.yaml").write_text(yaml.safe_dump({"format": 1, **EXPECT}))
    return read_case(folder)


async def _left(client: Client) -> list[str]:
    listed = (kinds.POD, kinds.RESOURCECLAIM, kinds.RESOURCECLAIMTEMPLATE, kinds.NODE, kinds.DEVICECLASS)
    return [
        f"{kind.plural} {objects.key_of(obj)}"
        for kind in (*listed, kinds.RESOURCESLICE)
        for obj in (await client.list(kind)).items
    ]


def test_a_case_comes_and_goes_beside_what_is_there(tmp_path: Path) -> None:
    # The second pod is in a namespace that the case has by name.
    team = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
    moved = {**pod("late", 1), "metadata": {"name": "late", "namespace": "team"}}
    one = {**template(1), "metadata": {"name": "take-1", "namespace": "team"}}
    case = a_case(tmp_path, template(2), team, one, pod("both", 2), moved)

    async def play() -> None:
        async with case_plane() as client:
            # One of the same name that is not the case's: without a namespace rule it would count as the case's own.
            stranger = {"metadata": {"name": "both"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
            await client.create(kinds.POD, stranger, "default")
            for _ in range(2):
                result = await visit(client, case)
                assert result.misses == []
                assert await _left(client) == ["pods default/both"]

    asyncio.run(play())


def test_a_kind_that_the_cluster_does_not_serve_is_a_miss() -> None:
    group = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "g"}, "spec": {}}

    async def play() -> None:
        async with memory_plane() as server:

            async def handle(request: Request) -> Response:
                if request.path.startswith("/apis/scheduling.k8s.io/"):
                    return Response(404, {"content-type": "text/plain"}, b"404 page not found\n")
                return await server.transport.request(request)

            result = await visit(Client(MemoryTransport(handle)), Case("c", [], [group], {}))
            assert result.misses == ["PodGroup g: refused: 404 page not found"]

    asyncio.run(play())


def test_what_is_there_already_is_a_miss_and_stays(tmp_path: Path) -> None:
    case = a_case(tmp_path, template(2), template(1), pod("both", 2), pod("late", 1))

    async def play() -> None:
        async with case_plane() as client:
            await client.create(kinds.DEVICECLASS, CLASS)
            (miss,) = (await visit(client, case)).misses
            assert "DeviceClass c: refused" in miss
            assert "already exists" in miss
            assert await _left(client) == ["deviceclasses c"]

    asyncio.run(play())


def test_without_a_controller_for_claims_it_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest, "PATIENCE", 0.2)
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "mine", "finalizers": ["resource.kubernetes.io/delete-protection"]},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}},
    }
    case = a_case(tmp_path, claim)

    async def play() -> None:
        server = await open_server(None, clock=SystemClock())
        client = Client(MemoryTransport(server.handle, server.token("drakkar:admin", "system:masters")))
        try:
            with pytest.raises(EnvironmentProblem, match=r"ResourceClaim case-\w+/mine: still there .* claims"):
                await visit(client, case)
        finally:
            await server.close()

    asyncio.run(play())


def test_pods_get_the_scheduler_that_is_named_unless_they_name_one(tmp_path: Path) -> None:
    own = pod("both", 2)
    own["spec"]["schedulerName"] = "another"
    case = a_case(tmp_path, template(2), template(1), own, pod("late", 1))
    seen: dict[str, str] = {}

    async def play() -> None:
        async with case_plane() as client:
            create = client.create

            async def noted(kind: Any, obj: Any, namespace: str | None = None, **more: Any) -> Any:
                if kind == kinds.POD:
                    seen[obj["metadata"]["name"]] = obj["spec"]["schedulerName"]
                return await create(kind, obj, namespace, **more)

            client.create = noted  # type: ignore[method-assign]
            await visit(client, case, scheduler_name="drakkar")

    asyncio.run(play())
    assert seen == {"both": "another", "late": "drakkar"}
