"""The 64-chip story on a cluster of the user's: what a step takes that was not seen."""

from __future__ import annotations

from drakkar.cli.demo import NEEDED, needed
from drakkar.insight.story import AFTER, BEFORE


def test_the_first_step_that_is_missing_names_the_part_that_takes_it() -> None:
    assert {*NEEDED} == {*BEFORE, *AFTER}
    assert needed([], "gate") == "all nodes are Ready: that takes hollow nodes: `drakkar node hollow --fleet tpu-16`"
    # A scheduler in own mode leaves gated pods alone, which nobody else tells.
    assert "must not run with --mode own" in needed(BEFORE[:2], "gate")
    assert "must not run" not in needed(BEFORE[:2], "own")
    assert "kube-controller-manager waits 50 s" in needed(BEFORE, "own")
    assert needed([*BEFORE, *AFTER], "gate") == ""
