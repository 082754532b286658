"""Agent, drivers, monitors and runc are killed at every named point; nothing leaks and pods come to their end."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra node")

from tests.support.nodekiller import Run, report, usual_runtime

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_killed_at_every_point(tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(seed=1, folder=tmp_path, root=root, runtime=usual_runtime(), rounds=1)
    run.run()
    with capsys.disabled():
        print(f"\nkills by point, {run.pods} pods:\n{report(run.kills)}")
    for who, points in run.points().items():
        for point in points:
            assert run.kills[f"{who}: {point}"] >= 1, point
