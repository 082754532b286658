"""``drakkar demo mesh`` on this machine: what the ranks measured, and that nothing stays when it ends, or is ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from drakkar.api.errors import EnvironmentProblem
from drakkar.cli import demo_mesh
from tests.support.kubectl import absent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not sys.platform.startswith("linux") or os.geteuid() != 0, reason="needs Linux and root"),
]


@pytest.fixture(autouse=True)
def machine() -> None:
    """Skips where a package is missing, fails where CI=true."""
    try:
        demo_mesh.check()
    except EnvironmentProblem as problem:
        absent(str(problem))


class Demo:
    """The command as a child; what it prints goes to a file, its own files to a folder."""

    def __init__(self, folder: Path, *arguments: str):
        self.folder = folder
        self.output = folder / "output"
        (folder / "tmp").mkdir()
        command = [sys.executable, "-m", "drakkar.cli", "demo", "mesh", "--logs", str(folder / "logs"), *arguments]
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                command, stdout=file, stderr=file, env={**os.environ, "TMPDIR": str(folder / "tmp")}
            )

    def until(self, words: str) -> None:
        deadline = time.monotonic() + 180
        while words not in self.output.read_text():
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.05)

    def left(self) -> list[str]:
        """What of it is still on the machine."""
        found = [str(path) for path in (self.folder / "tmp").iterdir()]
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(self.folder).encode() in path.read_bytes():
                    found.append(path.read_text())
            except OSError:
                continue
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        found += [line for line in mounts if str(self.folder) in line]
        return found + [name for name in os.listdir("/sys/class/net") if name.startswith("dkmesh")]


@pytest.fixture
def folder(root: Path) -> Path:
    """With a short path, since sockets lie below it."""
    return root


def test_all_pairs_are_uniform_with_the_domain_and_other_nodes_slow_without(folder: Path) -> None:
    demo = Demo(folder, "--megabytes", "1", "--json", str(folder / "figures.json"))
    code = demo.process.wait(360)
    said = demo.output.read_text()
    assert code == 0, said
    document = json.loads((folder / "figures.json").read_text())
    within, without = document["with"], document["without"]
    for run in (within, without):
        ranks = run["ranks"]
        assert len({rank["uuid"] for rank in ranks}) == 16
        assert sorted(rank["node"] for rank in ranks) == [f"mesh-{i // 4}" for i in range(16)]
        assert len({(rank["pod"], rank["node"]) for rank in ranks}) == 4
    # By what path, then how fast; medians, since single figures wander with the load of the machine.
    assert {way for i, row in enumerate(within["way"]) for j, way in enumerate(row) if i != j} == {"map"}
    assert set(_pairs(without, "way", across=True)) == {"mpi"}
    assert set(_pairs(without, "way", across=False)) == {"map"}
    same, far = (median(_pairs(within, "bandwidth", across=across)) for across in (False, True))
    assert 0.5 < far / same < 2
    assert median(_pairs(without, "bandwidth", across=True)) < 0.05 * same
    # A link of 1 Gbit/s, with the burst that its shaper lets through.
    assert max(_pairs(without, "bandwidth", across=True)) < 0.25
    assert {tuple(rank["access"].values()) for rank in within["ranks"]} == {
        ("", "No such device or address", "Operation not permitted")
    }
    assert {tuple(rank["access"].values()) for rank in without["ranks"]} == {
        ("No such file or directory", "No such file or directory", "Operation not permitted")
    }
    assert "there is no GPU and no NVLink" in said
    assert "ComputeDomain mesh: Ready, 4 nodes have joined, channel-0" in said
    assert len([line for line in said.splitlines() if line.startswith(" 3.3 ")]) == 4
    assert demo.left() == []


def _pairs(run: dict[str, Any], what: str, *, across: bool) -> list[Any]:
    nodes = [rank["node"] for rank in run["ranks"]]
    cells = [(i, j, cell) for i, row in enumerate(run[what]) for j, cell in enumerate(row) if i != j]
    return [cell for i, j, cell in cells if (nodes[i] != nodes[j]) == across]


def test_ctrl_c_ends_everything(folder: Path) -> None:
    demo = Demo(folder)
    demo.until("running: ")
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(60) == 130, demo.output.read_text()
    assert demo.left() == []


def test_a_killed_demo_ends_everything_but_its_folder(folder: Path) -> None:
    """The story hears of it; only the folder for the kubeconfig stays, whose owner is dead."""
    demo = Demo(folder)
    demo.until("are ready")
    assert demo.left() != []
    demo.process.kill()
    demo.process.wait()
    deadline = time.monotonic() + 60
    while [found for found in demo.left() if not found.startswith(str(folder / "tmp" / "drakkar-"))]:
        assert time.monotonic() < deadline, demo.left()
        time.sleep(0.1)
