"""What the demos apply is what lies in the examples folder."""

from __future__ import annotations

from importlib.resources import files

import pytest

from drakkar.cli import demo, demo_mesh_story
from tests.support.shared import ROOT

FILES = [("tpu", "tpu", name) for name in demo.MANIFESTS]
FILES += [("mesh", "mesh", "job.yaml"), ("mesh", "computedomain", "crd.yaml"), ("mesh", "gpu", "classes.yaml")]


@pytest.mark.parametrize(("story", "folder", "name"), FILES)
def test_shipped_manifests_equal_the_examples(story: str, folder: str, name: str) -> None:
    shipped = files("drakkar.sim").joinpath("stories", story, name).read_text()
    assert shipped == (ROOT / "examples" / folder / name).read_text()


@pytest.mark.parametrize("name", demo_mesh_story.PROGRAMS)
def test_programs_of_the_examples_are_those_that_ship(name: str) -> None:
    shipped = ROOT / "src" / "drakkar" / "sim" / "stories" / "mesh" / name
    assert (ROOT / "examples" / "mesh" / name).resolve() == shipped.resolve()
