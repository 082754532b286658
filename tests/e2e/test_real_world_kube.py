"""All cases of the real-world corpus, and our own, on upstream's kube-apiserver: the outcomes are those of our plane.

Our scheduler works in own mode beside upstream's kube-controller-manager, which makes and clears the claims. The cases
come one after the other to the same cluster.

On an older release (:mod:`tests.support.releases`) a case may miss only what that server drops or does not know, and
says so; with all gates on, and with the gates that are on there by themselves.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from drakkar.cli.target import connect
from drakkar.insight.cases import read_case
from drakkar.insight.dump import READ, read
from drakkar.insight.guest import visit
from tests.support import releases
from tests.support.kubecluster import OFF_BY_DEFAULT, KubeCluster, kube_cluster
from tests.support.kubeparts import Site
from tests.support.plane import Part
from tests.support.shared import ROOT, shared_path

pytestmark = [pytest.mark.upstream, pytest.mark.timeout(900)]

SCHEDULER = "drakkar"


#: What a case says that needs more than an older server has.
LACKING = re.compile(
    r"this server drops \w+ \(feature gate|refused: (the server could not find the requested resource|.* not found$)"
    r"|strict decoding error: unknown field|must reference a counterSet defined in the ResourceSlice sharedCounters"
    # Kubernetes 1.34 wants what later servers refuse: devices beside counters.
    r"|ResourceSlice both: accepted, should be invalid"
)


@pytest.fixture(scope="module", params=[True, False] if releases.release() else [True], ids=lambda on: f"gates-{on}")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeCluster]:
    gates = dict.fromkeys(OFF_BY_DEFAULT, True) if request.param else {}
    folder = tmp_path_factory.mktemp("kube")
    with kube_cluster(folder, gates=gates, untouched=not request.param) as cluster:
        user = str(cluster.kubeconfig("system:kube-scheduler"))
        if releases.release():
            # What a server does not serve its own role for schedulers does not name; the chart's does.
            site = Site(cluster, folder / "audit.log")
            site.grant("scheduler.mode=own")
            user = str(site.account("scheduler"))
        scheduler = ("scheduler", "--mode", "own", "--scheduler-name", SCHEDULER, "--no-leader-elect")
        with cluster.controller_manager() as manager, Part(*scheduler, "--kubeconfig", user) as part:
            yield cluster
            manager.check()
            assert part.process.poll() is None, part.output


async def misses(cluster: KubeCluster, folders: list[Path]) -> dict[str, list[str]]:
    """What each case misses that misses anything; AssertionError when one has left something behind."""
    found: dict[str, list[str]] = {}
    async with connect(cluster.kubeconfig()) as client:
        for folder in folders:
            result = await visit(client, read_case(folder), scheduler_name=SCHEDULER)
            if not result.ok:
                found[folder.name] = result.misses
        assert [obj for obj in await read(client, READ) if obj["kind"] != "ResourceClaimTemplate"] == []
    return found


@pytest.mark.parametrize(("root", "count"), [("real-world", 27), ("own", 25)])
def test_every_case_has_its_outcome(
    cluster: KubeCluster, root: str, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    where = shared_path("corpus/real-world") if root == "real-world" else ROOT / "tests" / "cases"
    folders = sorted(path.parent for path in where.glob("*/expect.yaml"))
    assert len(folders) >= count
    missed = asyncio.run(misses(cluster, folders))
    lacking = {name for name, said in missed.items() if releases.release() and any(map(LACKING.search, said))}
    with capsys.disabled():
        print(f"\n{root}: {len(folders) - len(missed)} of {len(folders)} cases as expected")
        for name in sorted(lacking):
            print(f"  {name}: {next(each for each in missed[name] if LACKING.search(each))}")
    assert {name: said for name, said in missed.items() if name not in lacking} == {}
