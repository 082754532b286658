"""The control plane is killed before and after each kind of write; the story still comes to its end."""

from __future__ import annotations

import pytest

from tests.support.killer import POINTS, report, run_rounds

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_killed_at_every_kind_of_write(capsys: pytest.CaptureFixture[str]) -> None:
    kills = run_rounds(range(1, 3), lambda text: None)
    with capsys.disabled():
        print("\nkills by point:\n" + report(kills))
    assert sum(kills.values()) >= 30
    for point in POINTS:
        assert kills[f"{point} before"] >= 1, point
        assert kills[f"{point} after"] >= 1, point
