"""Drakkar's parts in bad weather: refused, delayed, lost and repeated requests, broken and repeated watches.

``./do weather`` runs it longer, with other seeds and with what no server may do.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.kubecluster import kube_cluster
from tests.support.weather import Plane, embedded, weather

pytestmark = pytest.mark.timeout(600)


@pytest.mark.slow
def test_at_the_embedded_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        async with embedded(tmp_path) as plane:
            report = await weather(plane, tmp_path, seed=1, seconds=10, outage=2)
        assert not report.doubles, report.text()
        with capsys.disabled():
            print("\n" + report.text())

    asyncio.run(run())


@pytest.mark.upstream
def test_at_upstreams_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Gated pods are bound by upstream's own scheduler."""
    with kube_cluster(tmp_path) as cluster, cluster.scheduler():
        plane = Plane(cluster.kubeconfig, binder="default-scheduler")
        report = asyncio.run(weather(plane, tmp_path, seed=2, seconds=12))
    assert not report.doubles, report.text()
    with capsys.disabled():
        print("\n" + report.text())
