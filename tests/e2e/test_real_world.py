"""All cases of the real-world corpus, through the API server, the controllers and the scheduler."""

from __future__ import annotations

import asyncio

import pytest

from drakkar.cli.plane import case_plane
from drakkar.insight.cases import run_case
from tests.support.shared import shared_path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.mark.parametrize("seed", [None, 11])
def test_every_case_has_its_outcome(seed: int | None) -> None:
    folders = sorted(path.parent for path in shared_path("corpus/real-world").glob("*/expect.yaml"))
    assert len(folders) == 27
    misses = {
        folder.name: result.misses
        for folder in folders
        if not (result := asyncio.run(run_case(folder, shuffle_seed=seed, plane_factory=case_plane))).ok
    }
    assert misses == {}
