"""The manifests that the demo applies are those of the examples folder."""

from __future__ import annotations

from importlib.resources import files

import pytest

from drakkar.cli.demo import MANIFESTS
from tests.support.shared import ROOT


@pytest.mark.parametrize("name", MANIFESTS)
def test_shipped_manifests_equal_the_examples(name: str) -> None:
    shipped = files("drakkar.sim").joinpath("stories", "tpu", name).read_text()
    assert shipped == (ROOT / "examples" / "tpu" / name).read_text()
