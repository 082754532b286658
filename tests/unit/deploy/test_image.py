"""The recipe of the image: both ways to it agree, and what goes in is pinned."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tools import image

from drakkar.node.agent.images import Images, ImageSource, NodeConfig
from drakkar.node.imagewriter import Tree, write_image

ROOT = Path(__file__).resolve().parents[3]


def pins(name: str) -> dict[str, set[str]]:
    """Package to its versions, of which there is one per kind of platform; every one with hashes."""
    text = (ROOT / name).read_text()
    found: dict[str, set[str]] = {}
    for entry in re.split(r"\n(?=[a-z])", text):
        match = re.match(r"([a-z0-9-]+)==([^ ]+)", entry)
        assert match is not None, entry
        assert "--hash=sha256:" in entry
        found.setdefault(match[1], set()).add(match[2])
    return found


def test_locks_agree() -> None:
    tested, shipped, builds = map(pins, ("requirements.lock", "requirements.image.lock", "requirements.build.lock"))
    for name, versions in (*shipped.items(), *builds.items()):
        # What no test needs has no version there.
        assert versions == tested.get(name, versions), f"{name}: ./do lock"
    assert {"aiohttp", "grpcio", "nvidia-ml-py", "pyroute2", "highspy"} < {*shipped}
    assert not {"pytest", "ruff", "hatchling"} & {*shipped}


def test_the_containerfile_says_the_same() -> None:
    text = (ROOT / "Containerfile").read_text().rpartition("\nFROM ")[2]
    said = dict(re.findall(r"^([A-Z]+) (.+)$", text, re.MULTILINE))
    command = image.COMMAND
    assert json.loads(said["ENTRYPOINT"]) == [*command.entrypoint]
    assert json.loads(said["CMD"]) == [*command.arguments]
    assert dict(pair.split("=") for pair in said["ENV"].split()) == command.env
    assert (said["USER"], said["WORKDIR"]) == (command.user, command.folder)
    assert said["COPY"] == f"--from=build /{image.PREFIX} /{image.PREFIX}"
    user, _, group = command.user.partition(":")
    assert user.isdecimal()
    assert group.isdecimal()


def test_a_base_that_cannot_be_one_is_refused_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    staged: list[Path] = []
    monkeypatch.setattr(image, "stage", lambda folder, epoch: staged.append(folder))
    base, out = tmp_path / "base", str(tmp_path / "out")
    assert image.main(["--base", str(base), "--out", out]) == 2
    assert "no such file or folder; `skopeo copy" in capsys.readouterr().err
    (base / "usr/bin").mkdir(parents=True)
    assert image.main(["--base", str(base), "--out", out]) == 2
    python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"has no {python} (in usr/local/bin or usr/bin)" in capsys.readouterr().err
    assert staged == []
    (base / "usr/bin" / python).touch()
    assert image.main(["--base", str(base), "--out", out]) == 0
    assert len(staged) == 1


@pytest.mark.slow
def test_two_builds_of_this_tree_are_equal_and_run(tmp_path: Path) -> None:
    """Without the packages, which come from a package index; those of this Python serve instead."""
    pytest.importorskip("hatchling", reason="needs the group dev")
    base = tmp_path / "base"
    base.mkdir()
    digests = set[str]()
    for name in ("a", "b"):
        staged = tmp_path / f"staged-{name}"
        image.stage(staged, 1_700_000_000, packages=False)
        tree = Tree(staged, image.PREFIX)
        digests.add(write_image(tmp_path / name, base, [tree], image.COMMAND, name=name, epoch=1_700_000_000))
    # The name is in the index only.
    assert len(digests) == 1
    source = ImageSource(layout=str(tmp_path / "a"))
    config = NodeConfig(apiVersion="drakkar.dev/v1alpha1", kind="NodeConfig", images={"drakkar": source})
    made = Images(tmp_path / "images", config).get("drakkar")
    assert made.root is not None
    folder = made.root / image.PREFIX
    assert not list(folder.rglob("*.pyc"))
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    assert made.entrypoint[0] == "python3"
    where = subprocess.run(
        [sys.executable, "-c", "import drakkar.cli; print(drakkar.__file__)"], env=env, capture_output=True, text=True
    )
    assert Path(where.stdout.strip()) == folder / "drakkar" / "__init__.py", where.stderr
    words = [sys.executable, *made.entrypoint[1:], "scheduler", "--help"]
    said = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert "--leader-elect" in said.stdout
