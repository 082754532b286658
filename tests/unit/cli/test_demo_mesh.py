"""The mesh demo without its machines: what it needs, what it makes of figures, and what it takes away from the job."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from drakkar.api.errors import EnvironmentProblem
from drakkar.cli import demo_mesh, main
from drakkar.cli.demo_mesh_figures import Measurement, judge, measurement_of, short, summary, table
from drakkar.cli.demo_mesh_story import without_domain
from drakkar.cli.manifests import read_objects
from tests.support.shared import ROOT

NO_FILE, NO_DRIVER, REFUSED = "No such file or directory", "No such device or address", "Operation not permitted"


def measured(*, domain: bool, slow: float = 0.1, **access: str) -> Measurement:
    """Two nodes with two GPUs each: 10 GB/s within a node, and between them with the domain."""
    usual = {"fabric": "", "channel": NO_DRIVER, "forged": REFUSED}
    if not domain:
        usual |= {"fabric": NO_FILE, "channel": NO_FILE}
    ranks = [
        {"pod": f"w-{i // 2}", "node": f"n{i // 2}", "gpu": i % 2, "uuid": f"u{i}", "access": usual | access}
        for i in range(4)
    ]

    def cells(same: Any, far: Any, own: Any) -> list[list[Any]]:
        return [[own if i == j else same if i // 2 == j // 2 else far for j in range(4)] for i in range(4)]

    way = cells("map", "map" if domain else "mpi", "self")
    bandwidth, latency = cells(10.0, 9.0 if domain else slow, 5.0), cells(1.0, 1.1 if domain else 60.0, 0.0)
    document = {"ranks": ranks, "bytes": 1, "way": way, "bandwidth": bandwidth, "latency": latency}
    return measurement_of(document)


def test_what_is_as_the_claims_say() -> None:
    assert judge(measured(domain=True), measured(domain=False)) == []


@pytest.mark.parametrize(
    ("within", "without", "fault"),
    [
        ({"domain": False}, {"domain": False}, "8 pairs could not map each other's memory: ranks 0 to 2, 0 to 3"),
        ({"domain": True}, {"domain": True}, "8 pairs had the memory of another node"),
        ({"domain": False}, {"domain": False}, "between nodes only 0.01 of the speed within, below 0.5"),
        ({"domain": True}, {"domain": False, "slow": 2.0}, "between nodes 0.2 of the speed within, above 0.05"),
        ({"domain": True}, {"domain": False, "fabric": ""}, "without it: w-0 reached the fabric"),
        ({"domain": True}, {"domain": False, "forged": ""}, "without it: w-1 reached the fabric"),
        ({"domain": True, "channel": REFUSED}, {"domain": False}, f"w-0: /fabric , channel {REFUSED}"),
    ],
)
def test_what_is_not(within: dict[str, Any], without: dict[str, Any], fault: str) -> None:
    assert any(fault in found for found in judge(measured(**within), measured(**without)))


def test_tables_and_medians() -> None:
    run = measured(domain=False)
    assert table(run, run.bandwidth) == (
        "     0.0 0.1  1.0 1.1\n"
        " 0.0 5.0  10  .10 .10\n"
        " 0.1  10 5.0  .10 .10\n"
        "\n"
        " 1.0 .10 .10  5.0  10\n"
        " 1.1 .10 .10   10 5.0\n"
    )
    assert table(run, run.latency).splitlines()[1] == " 0.0   - 1.0   60  60"
    assert summary(run) == (
        "medians: within a node 10 GB/s, 1 µs; between nodes 0.1 GB/s, 60 µs; between to within 0.01"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.004, ".00"), (0.114, ".11"), (0.994, ".99"), (0.996, "1.0"), (9.94, "9.9"), (9.96, "10"), (999.4, "999"),
     (999.6, "1k"), (12345.0, "12k")],
)  # fmt: skip
def test_figures_are_short(value: float, text: str) -> None:
    assert short(value) == text


def test_the_other_job_lacks_the_channel_and_nothing_else() -> None:
    job = read_objects(ROOT / "examples" / "mesh" / "job.yaml")
    rest = without_domain(job)
    assert len(rest) == len(job) - 1
    (worker,) = (obj["spec"]["template"]["spec"] for obj in rest if obj["kind"] == "StatefulSet")
    (before,) = (obj["spec"]["template"]["spec"] for obj in job if obj["kind"] == "StatefulSet")
    assert [claim["name"] for claim in worker["resourceClaims"]] == ["gpus"]
    assert worker["containers"][0]["resources"] == {"claims": [{"name": "gpus"}]}
    assert [claim["name"] for claim in before["resourceClaims"]] == ["gpus", "channel"]
    worker["resourceClaims"] = before["resourceClaims"]
    worker["containers"][0]["resources"] = before["containers"][0]["resources"]
    assert rest == [obj for obj in job if obj["kind"] != "ComputeDomain"]


def program(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of root with everything; the folder of its programs."""
    pytest.importorskip("grpc", reason="needs the extra node")
    for name in ("runc", "ip", "tc", "unshare", "nsenter"):
        program(tmp_path, name, "")
    program(tmp_path, "mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
    monkeypatch.setattr(demo_mesh, "PYTHON", str(program(tmp_path, "python", "")))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_a_machine_that_has_everything(machine: Path) -> None:
    demo_mesh.check()


def test_all_that_is_missing_is_named_at_once(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("tc", "ip", "mpirun"):
        (machine / name).unlink()
    program(machine, "python", 'case "$2" in *mpi4py) exit 1;; esac')
    assert main(["demo", "mesh"]) == 2
    said = capsys.readouterr().err
    assert "drakkar: demo mesh: ip, tc, mpirun, " in said
    assert said.endswith("apt-get install --no-install-recommends iproute2 openmpi-bin python3-mpi4py\n")


def test_another_mpi_is_refused(machine: Path) -> None:
    program(machine, "mpirun", "echo 'mpirun (Open MPI) 5.0.7'")
    with pytest.raises(EnvironmentProblem, match=r"mpirun is 5\.0\.7; use Debian 12 or Ubuntu 24\.04"):
        demo_mesh.check()
    program(machine, "mpirun", "echo HYDRA build details:")
    with pytest.raises(EnvironmentProblem, match="mpirun is another MPI"):
        demo_mesh.check()


def test_it_takes_root(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(EnvironmentProblem, match=r"takes Linux and root; use sudo, or `drakkar demo tpu`"):
        demo_mesh.check()


def test_a_file_that_cannot_be_written_is_told_before_the_story(machine: Path, capsys: Any) -> None:
    assert main(["demo", "mesh", "--json", str(machine / "no" / "such")]) == 2
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


def test_a_folder_too_long_for_sockets_is_told_before_the_story(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    folder = machine / ("x" * 60)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert main(["demo", "mesh"]) == 2
    assert "is too long a path for sockets; set TMPDIR=/tmp" in capsys.readouterr().err
    assert [*folder.iterdir()] == []
