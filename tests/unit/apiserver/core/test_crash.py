"""A server that dies at a chosen write finds, restarted, everything it answered and nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from drakkar.apiserver.catalog import Catalog
from drakkar.apiserver.points import points_of
from drakkar.store.sqlite import SqliteBackend
from tests.unit.apiserver.core.serving import Api, Object
from tests.unit.apiserver.core.test_writes import claim, pod

_CHILD = """
import asyncio, sys
sys.path.insert(0, ".")
from drakkar.store.failpoints import Failpoints
from drakkar.store.sqlite import SqliteBackend
from tests.unit.apiserver.core.serving import Api
from tests.unit.apiserver.core.test_writes import PODS, pod

async def main():
    api = await Api.start(SqliteBackend(sys.argv[1]), Failpoints.from_environment())
    for name in ("a", "b", "c"):
        await api.post(PODS, pod(name))
        await api.post(f"{PODS}/{name}/binding", {"target": {"kind": "Node", "name": "n"}})
        print(name, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize(("phase", "bound"), [("before", ["a"]), ("after", ["a", "b"])])
def test_death_at_the_second_binding(tmp_path: Path, phase: str, bound: list[str]) -> None:
    path = tmp_path / "store.db"
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path)],
        env={**os.environ, "DRAKKAR_FAILPOINTS": f"binding:2:{phase}"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    assert child.stdout.split() == ["a"]

    async def look() -> list[Object]:
        api = await Api.start(SqliteBackend(path))
        found = await api.get("/api/v1/pods")
        await api.close()
        return found["items"]

    pods = asyncio.run(look())
    assert [item["metadata"]["name"] for item in pods] == ["a", "b"]
    assert [item["metadata"]["name"] for item in pods if item["spec"].get("nodeName")] == bound


def test_writes_are_named_by_what_they_change() -> None:
    catalog = Catalog()
    claims = catalog.stored["/resource.k8s.io/resourceclaims/"]
    pods = catalog.stored["/core/pods/"]
    slices = catalog.stored["/resource.k8s.io/resourceslices/"]
    old = claim("c")
    new = {**old, "status": {"allocation": {"devices": {}}, "reservedFor": [{"name": "p"}]}}
    assert points_of(claims, new, old) == ("claim-allocation", "reservation")
    assert points_of(claims, old, new) == ("deallocation", "reservation")
    assert points_of(pods, pod("p", nodeName="n"), pod("p")) == ("binding",)
    going = pod("p")
    going["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    assert points_of(pods, going, pod("p")) == ("eviction",)
    assert points_of(pods, None, None) == ("eviction",)
    tainted = {"spec": {"devices": [{"name": "x", "taints": [{"key": "k", "effect": "NoExecute"}]}]}}
    assert points_of(slices, tainted, {"spec": {"devices": [{"name": "x"}]}}) == ("taint",)
    assert points_of(slices, tainted, tainted) == ()
