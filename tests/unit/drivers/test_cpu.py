"""The driver for processors: topology, choice, claims on a node, and the hook that sets the cpuset."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.kinds import NODE, POD
from drakkar.drivers.cpu import hook
from drakkar.drivers.cpu.driver import CpuDriver
from drakkar.drivers.cpu.topology import Cpu, Topology, choose, format_cpus, parse_cpus, read_topology
from tests.support.drivers import driver_cluster

EXAMPLES = Path(__file__).parents[3] / "examples" / "cpu"


def machine(numa: int = 2, cores: int = 8, *, smt: bool = True, efficiency: int = 0) -> Topology:
    """Two threads a core, numbered as Linux does: first threads first; four cores share a cache."""
    cpus: list[Cpu] = []
    total = numa * cores
    for thread in range(2 if smt else 1):
        for core in range(total):
            kind = "efficiency" if core % cores >= cores - efficiency else "performance" if efficiency else "standard"
            cpus.append(
                Cpu(
                    id=thread * total + core,
                    core=(0, core),
                    socket=0,
                    numa=core // cores,
                    cache=str(core // 4),
                    kind=kind,
                )
            )
    return Topology(tuple(cpus), dict.fromkeys(range(numa), 16384))


@given(st.sets(st.integers(0, 300)))
def test_lists_of_processors_round_trip(cpus: set[int]) -> None:
    assert parse_cpus(format_cpus(cpus)) == cpus


def test_choice_takes_whole_cores_of_one_cache() -> None:
    cpus = machine().cpus
    near = [cpu for cpu in cpus if cpu.numa == 0]
    chosen = choose(near, 4)
    assert chosen is not None
    assert {cpu.id for cpu in chosen} == {0, 16, 1, 17}
    # One thread of core 0 is taken: its sibling is the last resort.
    chosen = choose([cpu for cpu in near if cpu.id != 0], 6)
    assert chosen is not None
    assert 16 not in {cpu.id for cpu in chosen}
    assert len({cpu.cache for cpu in chosen}) == 1
    assert choose(near, 17) is None


@given(st.lists(st.integers(1, 20), max_size=12))
def test_processors_are_never_given_twice(counts: list[int]) -> None:
    free = list(machine().cpus)
    for count in counts:
        chosen = choose(free, count)
        if chosen is None:
            assert len(free) < count
            continue
        assert len({cpu.id for cpu in chosen}) == count
        assert {cpu.id for cpu in chosen} <= {cpu.id for cpu in free}
        free = [cpu for cpu in free if cpu not in chosen]


def test_kinds_of_cores_are_groups_of_their_own() -> None:
    driver = CpuDriver(machine(1, 8, efficiency=4), reserved={0, 8})
    described = {device.name: device for device in driver.discover()}
    assert described.keys() == {"numa-0-performance", "numa-0-efficiency", "memory-0"}
    capacity = described["numa-0-performance"].capacity
    assert capacity is not None
    assert capacity["cpu"].value == "6"


@pytest.mark.parametrize(("mode", "expected"), [("grouped", [4, 4]), ("individual", [1, 1, 1, 1])])
def test_claims_get_processors_of_their_own_and_are_charged_once(root: Path, mode: str, expected: list[int]) -> None:
    async def story() -> None:
        def build(_node: str, _folder: Path) -> CpuDriver:
            return CpuDriver(machine(), mode=mode, reserved={0, 16})

        async with driver_cluster(root, {"n1": {"cpu": build}}) as cluster:
            await cluster.apply(EXAMPLES / f"{mode}.yaml")
            pods = await cluster.bound(2)
            given: list[set[int]] = []
            for claim in await cluster.claims():
                for edits in await cluster.prepare("n1", "cpu", claim):
                    for env in edits.env:
                        name, _, value = env.partition("=")
                        if name.startswith("CPUS_"):
                            given.append(parse_cpus(value))
                            (called,) = edits.hooks
                            assert (called.hookName, called.args[-2]) == ("createRuntime", f"--cpus={value}")
            assert sorted(len(cpus) for cpus in given) == expected
            assert sum(expected) == len(set().union(*given))
            assert not set().union(*given) & {0, 16}
            for pod in pods:
                (charged,) = pod["status"]["nodeAllocatableResourceClaimStatuses"]
                amounts = {entry["name"]: entry["quantity"] for entry in charged["mapping"]}
                assert amounts["cpu"] == ("4" if mode == "grouped" else "2")
            service = cluster.services["n1", "cpu"]
            driver = service.driver
            assert isinstance(driver, CpuDriver)
            again = CpuDriver(machine(), mode=mode)
            again.records = driver.records
            assert again.taken() == driver.taken()
            for claim in await cluster.claims():
                await cluster.unprepare("n1", "cpu", claim)
            assert driver.taken() == {}
            assert (await cluster.client.get(NODE, "n1"))["status"]["allocatable"]["cpu"] == "64"
            assert len((await cluster.client.list(POD)).items) == 2

    asyncio.run(story())


def test_topology_is_read_from_the_kernels_files(tmp_path: Path) -> None:
    def write(path: str, text: str) -> None:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    write("system/cpu/online", "0-1,3\n")
    write("cpu_core/cpus", "0-1\n")
    write("cpu_atom/cpus", "2-3\n")
    write("system/node/node0/cpulist", "0-1\n")
    write("system/node/node1/cpulist", "2-3\n")
    for node in (0, 1):
        write(f"system/node/node{node}/meminfo", f"Node {node} MemTotal:       1048576 kB\n")
    for cpu in (0, 1, 3):
        write(f"system/cpu/cpu{cpu}/topology/physical_package_id", "0")
        write(f"system/cpu/cpu{cpu}/topology/core_id", str(cpu // 2))
        write(f"system/cpu/cpu{cpu}/cache/index2/level", "2")
        write(f"system/cpu/cpu{cpu}/cache/index2/shared_cpu_list", "0-1" if cpu < 2 else "2-3")
    topology = read_topology(tmp_path)
    assert [(c.id, c.core, c.numa, c.kind, c.cache) for c in topology.cpus] == [
        (0, (0, 0), 0, "performance", "0-1"),
        (1, (0, 0), 0, "performance", "0-1"),
        (3, (0, 1), 1, "efficiency", "2-3"),
    ]
    assert topology.memory == {0: 1024, 1: 1024}


@pytest.mark.parametrize(
    ("listing", "folder"),
    [("0::/kubepods/c1\n", "kubepods/c1"), ("3:cpuset:/kubepods/c1\n0::/x\n", "cpuset/kubepods/c1")],
)
def test_the_hook_sets_the_cpuset_and_adds_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], listing: str, folder: str
) -> None:
    mine, parent = tmp_path / "cg" / folder, (tmp_path / "cg" / folder).parent
    mine.mkdir(parents=True)
    for place in (mine, parent):
        for name in ("cpuset.cpus", "cpuset.mems"):
            (place / name).write_text("0-31" if place == parent or "cpuset/" in folder else "")
    (tmp_path / "proc" / "77").mkdir(parents=True)
    (tmp_path / "proc" / "77" / "cgroup").write_text(listing)

    def call(cpus: str) -> int:
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"pid": 77})))
        return hook.main([f"--cpus={cpus}", "--mems=0"], proc=tmp_path / "proc", cgroups=tmp_path / "cg")

    assert call("2-3") == 0
    assert (mine / "cpuset.cpus").read_text() == "2-3"
    assert call("8") == 0
    assert (mine / "cpuset.cpus").read_text() == "2-3,8"
    (mine / "cpuset.mems").unlink()
    assert call("9") == 1
    assert "is not put on processors 9" in capsys.readouterr().err


def test_what_cannot_be_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from drakkar.drivers.cpu.command import main

    monkeypatch.setenv("KUBECONFIG", "/no-such-file")
    assert main(["--reserved", "2-", "--node-name", "n"]) == 2
    error: Any = capsys.readouterr().err
    assert "/no-such-file" in error or "--reserved" in error
