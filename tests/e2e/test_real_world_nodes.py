"""Cases of the real-world corpus on real nodes: agents, drivers and containers, from registration to unprepare.

Every slice comes from a driver that registers with an agent, and every device is looked for in its container. Most
drivers are stand-ins with the recorded slices of the case. Where a driver of ours has the same devices under another
name, the case is played with that one, too; why not with the others stands at :data:`OURS`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.kinds import RESOURCESLICE
from drakkar.drivers.example import ExampleDriver
from drakkar.drivers.gpu.driver import GpuDriver
from drakkar.drivers.gpu.fake import FakeHardware
from drakkar.insight.cases import Case, read_case
from drakkar.node.agent.oci_runtime import OciRuntime
from drakkar.node.agent.process_runtime import ProcessRuntime
from drakkar.node.agent.runtime import Runtime
from tests.support.agents import NODE, cluster
from tests.support.casenodes import Inside, Kit, Played, Results, play_on_nodes
from tests.support.eventually import eventually
from tests.support.guard import guarded
from tests.support.shared import ROOT, shared_path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: Cases of hardware for which there are drivers, ours or others'.
HARDWARE = ("02", "05", "11", "12", "13", "15", "16", "17", "19", "23")
AS_ROOT = os.geteuid() == 0 and shutil.which("runc") is not None


def usual(root: Path) -> Runtime:
    """Containers by runc where that is possible, else processes."""
    return OciRuntime.open(root, None) if AS_ROOT else ProcessRuntime()


def processes(root: Path) -> Runtime:
    return ProcessRuntime()


def folder(number: str) -> Path:
    (found,) = shared_path("corpus/real-world").glob(f"{number}-*")
    return found


@pytest.mark.parametrize("number", HARDWARE)
def test_recorded_slices(number: str, tmp_path: Path, root: Path) -> None:
    played = asyncio.run(play_on_nodes(read_case(folder(number)), tmp_path, root, usual))
    assert played.misses == []
    assert played.by_hand == set()


def outcomes(folders: list[Path], place: Path, root: Path) -> dict[str, Played]:
    """Cases that miss something."""
    return {
        each.name: played
        for each in folders
        if (
            played := asyncio.run(play_on_nodes(read_case(each), place / each.name, root / each.name[:2], usual))
        ).misses
    }


@pytest.mark.timeout(600)
def test_recorded_slices_of_all_other_cases(tmp_path: Path, root: Path) -> None:
    folders = sorted(path.parent for path in shared_path("corpus/real-world").glob("*/expect.yaml"))
    others = [each for each in folders if each.name[:2] not in HARDWARE]
    assert len(others) >= 17
    assert outcomes(others, tmp_path, root) == {}


@pytest.mark.timeout(600)
def test_our_own_cases(tmp_path: Path, root: Path) -> None:
    folders = sorted(path.parent for path in (ROOT / "tests" / "cases").glob("*/expect.yaml"))
    assert len(folders) >= 25
    assert outcomes(folders, tmp_path, root) == {}


@pytest.mark.parametrize("number", ["05", "12", "19"])
def test_without_a_container_runtime(number: str, tmp_path: Path, root: Path) -> None:
    assert asyncio.run(play_on_nodes(read_case(folder(number)), tmp_path, root, processes)).misses == []


def test_the_command(tmp_path: Path, root: Path) -> None:
    """``drakkar driver run replay``, as a user starts it."""

    async def run() -> None:
        async with cluster(tmp_path, root) as site:
            agent = await site.start_agent()
            slices = str(folder("26") / "cluster.yaml")
            where = ("--node-name", NODE, "--kubelet-root", str(root), "--cdi-dir", str(root / "cdi"), "--withdraw")
            command = ("driver", "run", "replay", "--slices", slices, "--kubeconfig", str(site.kubeconfig), *where)
            driver = await asyncio.create_subprocess_exec(sys.executable, "-m", "drakkar.cli", *command)
            guarded(driver.pid)

            async def published() -> list[str]:
                return [found.spec.pool.name for found in (await site.client.list(RESOURCESLICE)).items]

            try:
                await eventually(published, lambda pools: pools == [NODE, NODE])
                await eventually(lambda: asyncio.sleep(0, agent.plugins.drivers()), bool)
                assert agent.plugins.drivers() == ["part.example.com"]
            finally:
                driver.terminate()
                ended = await driver.wait()
            assert ended == 0
            assert await published() == []

    asyncio.run(run())


def example(inside: Inside) -> list[str]:
    return [value for name, value in inside.env.items() if name.startswith("EXAMPLE_")]


def gpus(inside: Inside) -> list[str]:
    """By variables, and by device nodes where the container has some of its own."""
    names = [name.removeprefix("GPU_") for name in inside.env if name.startswith("GPU_")]
    nodes = sorted((inside.files / "dev").glob("nvidia[0-9]*")) if inside.isolated else []
    return [*names, *(path.name for path in nodes)]


def gpus_due(results: Results, isolated: bool) -> list[str]:
    names = [result.device.upper().replace("-", "_") for result in results]
    # gpu-0-mig-1g5gb-19-0: a partition is reached over the node of its GPU.
    nodes = {f"nvidia{result.device.split('-')[1]}" for result in results}
    return [*names, *(nodes if isolated else ())]


#: Number of a case: the words of the case that are other ones with our driver, and how that is started.
#:
#: 02, 15, 19: no driver of ours has that hardware (NICs by their RDMA names, QuickAssist, GPUs by cores).
#: 12: our channels belong to cliques, one for a whole job; here every node has one.
#: 13: our driver offers every GPU to containers and to machines; here each is for one of them.
#: 16: what the class takes by driver alone would be ports, too, with ours.
#: 17: a claim that names no amount takes the whole group there, and one processor with our policy.
OURS: Mapping[str, tuple[Mapping[str, str], Kit]] = {
    "05": (
        {"gpu.example.com": ExampleDriver.name},
        Kit(
            drivers=lambda node, place, slices: [ExampleDriver("plain")],
            seen=example,
            due=lambda results, _: [result.device for result in results],
        ),
    ),
    # Counter sets are called after the GPU.
    "11": (
        {"gpu.nvidia.com": GpuDriver.name, "-counter-set": ""},
        Kit(
            drivers=lambda node, place, slices: [GpuDriver(FakeHardware(place, "a100", 2, node=node), mig="dynamic")],
            seen=gpus,
            due=gpus_due,
        ),
    ),
    "23": (
        {"gpu.nvidia.com": GpuDriver.name},
        Kit(
            drivers=lambda node, place, slices: [GpuDriver(FakeHardware(place, "h100", 2, node=node), mig="dynamic")],
            seen=gpus,
            due=gpus_due,
        ),
    ),
}


def reworded(case: Case, words: Mapping[str, str]) -> Case:
    text = json.dumps([case.cluster, case.workload, case.expect])
    for theirs, ours in words.items():
        text = text.replace(theirs, ours)
    return Case(case.name, *json.loads(text))


@pytest.mark.parametrize("number", OURS)
def test_our_own_drivers(number: str, tmp_path: Path, root: Path) -> None:
    words, kit = OURS[number]
    case = reworded(read_case(folder(number)), words)
    assert asyncio.run(play_on_nodes(case, tmp_path, root, usual, kit)).misses == []
