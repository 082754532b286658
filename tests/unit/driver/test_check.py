"""The conformance kit finds what is wrong with a driver, and nothing where nothing is."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.errors import UsageError
from drakkar.api.kinds import NODE
from drakkar.cli import main as drakkar
from drakkar.driver import ContainerEdits, Driver, device
from drakkar.driver.check import CHECKS, Report, Subject, run_checks
from drakkar.driver.prepare import Preparer
from drakkar.driver.scaffold import scaffold
from drakkar.driver.service import DriverService
from drakkar.driver.settings import NodeSettings
from drakkar.plugin import wire
from drakkar.plugin.sockets import registration_socket
from tests.support.eventually import eventually, memory_plane

TUTORIAL = Path(__file__).parents[3] / "docs" / "tutorial" / "hello_driver.py"
RAW = Path(__file__).parents[2] / "support" / "rawdriver.py"


class Plain(Driver):
    name = "plain.example.com"

    def __init__(self) -> None:
        self.fault = ""

    def discover(self) -> list[Any]:
        return [*(device(f"d{i}") for i in range(3)), device("shared", capacity={"lanes": 4}, shared=True)]

    def prepare(self, claim: Any, devices: Any) -> list[ContainerEdits]:
        return [ContainerEdits(env=[f"X={found.name}"]) for found in devices]

    def health(self) -> Mapping[str, Any]:
        return {}


class Faulty(Preparer):
    """Breaks one rule at the socket, behind everything that the framework sees to."""

    fault = ""

    def prepare(self, claims: Any) -> Any:
        if self.fault == "raises for no claims" and not claims:
            raise RuntimeError("no claims")
        found = super().prepare(claims).claims
        for uid, answer in found.items():
            match self.fault:
                case "forgives everything" if answer.error:
                    found[uid] = wire.NodePrepareResourceResponse()
                case "names another device" if answer.devices:
                    found[uid] = wire.NodePrepareResourceResponse(
                        [wire.Device(d.request_names, d.pool_name, "other", d.cdi_device_ids) for d in answer.devices]
                    )
                case "says it is for another request" if answer.devices:
                    found[uid] = wire.NodePrepareResourceResponse(
                        [
                            wire.Device(["r0/first"], d.pool_name, d.device_name, d.cdi_device_ids)
                            for d in answer.devices
                        ]
                    )
                case "mixes claims up" if len(found) > 1 and answer.devices:
                    found[uid] = wire.NodePrepareResourceResponse(
                        [device for other in super().prepare(claims).claims.values() for device in other.devices]
                    )
                case "fails the whole call" if answer.error:
                    raise RuntimeError(answer.error)
                case "promises unknown edits" if answer.devices:
                    found[uid] = wire.NodePrepareResourceResponse(
                        [wire.Device(d.request_names, d.pool_name, d.device_name, ["a.b/c=d"]) for d in answer.devices]
                    )
        return wire.NodePrepareResourcesResponse(found)

    def unprepare(self, claims: Any) -> Any:
        if self.fault == "keeps everything":
            return wire.NodeUnprepareResourcesResponse({c.uid: wire.NodeUnprepareResourceResponse() for c in claims})
        if self.fault == "cannot undo twice":
            known = self.prepared()
            lost = {c.uid: wire.NodeUnprepareResourceResponse("unknown claim") for c in claims if c.uid not in known}
            done = super().unprepare([c for c in claims if c.uid in known]).claims
            return wire.NodeUnprepareResourcesResponse(lost | done)
        return super().unprepare(claims)


def kit(root: Path, monkeypatch: pytest.MonkeyPatch, fault: str = "") -> Report:
    monkeypatch.setattr(Faulty, "fault", fault)
    monkeypatch.setattr("drakkar.driver.service.Preparer", Faulty)
    # What the kit waits for, sooner.
    monkeypatch.setattr("drakkar.driver.health.REPEAT", 0.05)
    monkeypatch.setattr("drakkar.driver.check.published.STAYS", 0.05)

    async def run() -> Report:
        settings = NodeSettings("n1", root, root / "cdi")
        settings.registry.mkdir()
        async with memory_plane() as client:
            await client.create(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
            task = asyncio.create_task(DriverService(Plain(), client, client.clock, settings).run())
            socket = registration_socket(settings.registry, Plain.name)
            await eventually(lambda: asyncio.sleep(0, socket.exists()), bool)
            subject = Subject(
                kubelet_root=root, cdi_folder=settings.cdi_folder, client=client, node_name="n1", socket=socket
            )
            try:
                return await run_checks(subject)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    return asyncio.run(run())


def test_a_good_driver_breaks_no_rule(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = kit(root, monkeypatch)
    assert report.failed == []
    not_run = {f.check for f in report.findings if f.status != "ok"}
    assert not_run == {c.name for c in CHECKS if "command" in c.needs} | {"parameters"}
    total = f"{len(CHECKS) - len(not_run)} ok, 0 failed, {len(not_run)} not run"
    assert report.text().endswith(f"plain.example.com: {total}")


@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        ("raises for no claims", {"empty-call"}),
        ("forgives everything", {"unknown-claims", "replaced-claim", "one-bad-claim", "bad-config", "device-in-use"}),
        ("names another device", {"advertised-delivered"}),
        ("promises unknown edits", {"advertised-delivered", "parallel-claims"}),
        ("keeps everything", {"idempotent", "lost-claim"}),
        ("cannot undo twice", {"idempotent", "unknown-claims", "batch"}),
        ("says it is for another request", {"several-requests", "advertised-delivered"}),
        ("mixes claims up", {"batch"}),
        ("fails the whole call", {"bad-config"}),
    ],
)
def test_faults_are_found(root: Path, monkeypatch: pytest.MonkeyPatch, fault: str, broken: set[str]) -> None:
    assert broken <= {finding.check for finding in kit(root, monkeypatch, fault).failed}


def test_scaffold_writes_a_driver_and_refuses_what_would_not_work(tmp_path: Path) -> None:
    written = scaffold("npu.example.com", tmp_path / "npu")
    assert {path.name for path in written} >= {"driver.py", "test_driver.py", "rbac.yaml", "daemonset.yaml"}
    for path in written:
        text = path.read_text()
        assert "${" not in text
        if path.suffix == ".py":
            compile(text, path.name, "exec")
    with pytest.raises(UsageError, match="not empty"):
        scaffold("npu.example.com", tmp_path / "npu")
    with pytest.raises(UsageError, match="at most 55 characters before the first dot"):
        scaffold("x" * 56 + ".a.io", tmp_path / "other")
    for name in ("npu", "Npu.example.com", "x" * 60 + ".example.com"):
        with pytest.raises(UsageError, match="use one within a domain of yours"):
            scaffold(name, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["1.example.com", "3d-cards.example.com", "x" * 55 + ".a.io"])
def test_a_new_driver_has_names_that_kubernetes_takes(tmp_path: Path, name: str) -> None:
    scaffold(name, tmp_path)
    found = [
        manifest
        for path in (tmp_path / "manifests").iterdir()
        for manifest in yaml.safe_load_all(path.read_text())
        if manifest["kind"] in ("Service", "Deployment", "ServiceAccount", "DaemonSet")
    ]
    assert {"Service", "Deployment"} <= {manifest["kind"] for manifest in found}
    for manifest in found:
        assert re.fullmatch("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", manifest["metadata"]["name"])
    for path in tmp_path.glob("*.py"):
        compile(path.read_text(), path.name, "exec")


def test_every_rule_stands_in_the_reference() -> None:
    text = (TUTORIAL.parents[1] / "reference" / "driver-check.md").read_text().partition("| rule |")[2]
    assert [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")] == [c.name for c in CHECKS]


def test_the_tutorials_driver_is_short_and_stands_alone() -> None:
    text = TUTORIAL.read_text()
    assert len(text.splitlines()) <= 100
    assert "drakkar.drivers" not in text


@pytest.mark.slow
def test_the_tutorials_driver_passes_the_whole_kit(capsys: pytest.CaptureFixture[str]) -> None:
    assert drakkar(["driver", "check", "--command", f"{sys.executable} {TUTORIAL}"]) == 0
    # No device of its is shared, and no parameters are given.
    assert f"hello.example.com: {len(CHECKS) - 2} ok, 0 failed, 2 not run" in capsys.readouterr().out


@pytest.mark.slow
def test_a_new_driver_passes_the_whole_kit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert drakkar(["driver", "new", "npu.example.com"]) == 0
    assert drakkar(["driver", "check", "--command", f"{sys.executable} npu/driver.py"]) == 0
    assert f"npu.example.com: {len(CHECKS) - 2} ok, 0 failed, 2 not run" in capsys.readouterr().out


def test_what_is_missing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert drakkar(["driver", "check"]) == 2
    assert "--socket" in capsys.readouterr().err
    assert drakkar(["driver", "check", "--socket", "x", "--only", "nonsense"]) == 2
    assert "no such check" in capsys.readouterr().err


def _broken(folder: Path, prepare: str) -> str:
    """A command that runs a driver with this line in its `prepare`."""
    program = folder / "driver.py"
    program.write_text(
        f"import os, sys\nsys.path.insert(0, {str(TUTORIAL.parent)!r})\n"
        "from hello_driver import HelloDriver\nfrom drakkar.driver import main\n"
        f"class Broken(HelloDriver):\n    def prepare(self, claim, devices):\n        {prepare}\n"
        "raise SystemExit(main(Broken()))\n"
    )
    return f"{sys.executable} {program}"


@pytest.mark.slow
def test_a_driver_that_dies_is_said_and_started_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = _broken(tmp_path, "print('no firmware', flush=True); os._exit(3)")
    assert drakkar(["driver", "check", "--command", command, "--only", "idempotent,lost-claim,slices"]) == 1
    told = capsys.readouterr().out
    assert told.count("the driver ended by itself, with code 3; the last it said: no firmware") == 2
    assert "hello.example.com: 2 ok, 2 failed, 0 not run" in told


@pytest.mark.slow
def test_what_one_check_leaves_does_not_fail_the_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = _broken(tmp_path, "raise RuntimeError('no firmware')")
    assert drakkar(["driver", "check", "--command", command, "--only", "lost-claim,device-in-use,two-instances"]) == 1
    told = capsys.readouterr().out
    assert told.count("no firmware") == 3
    assert "is prepared for claim" not in told


def test_a_driver_that_does_not_start_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "driver.py").write_text("raise SystemExit('no hardware here')")
    assert drakkar(["driver", "check", "--command", f"{sys.executable} {tmp_path / 'driver.py'}"]) == 1
    told = capsys.readouterr().out
    assert "the driver ended with code 1 before it registered; the last it said: no hardware here" in told
    assert "0 ok, 1 failed" in told


def _raw(capsys: pytest.CaptureFixture[str], only: str, *fault: str) -> tuple[int, dict[str, tuple[str, str, str]]]:
    """The exit code for the raw driver with a fault, and status, message and cure by rule."""
    command = " ".join([sys.executable, str(RAW), *fault])
    code = drakkar(["driver", "check", "--command", command, "-o", "json", *(["--only", only] if only else [])])
    found = json.loads(capsys.readouterr().out)["findings"]
    return code, {each["check"]: (each["status"], each["message"], each["cure"]) for each in found}


@pytest.mark.slow
def test_a_driver_of_another_make_that_goes_by_the_boot_id_breaks_no_rule(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    code, found = _raw(capsys, "")
    assert code == 0, found
    status = {name: each[0] for name, each in found.items() if each[0] != "ok"}
    # It cannot read a file that is cut in half, and says so; where no other boot id can be shown, that is said.
    assert status.pop("torn-files") == "warning"
    assert status.pop("reboot", "warning") == "warning"
    assert set(status.values()) <= {"not run"}
    assert status.keys() == {
        "both-versions",
        "metadata-files",
        "parameters",
        "shared-device",
        *(status.keys() & {"growth"}),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "rule", "said"),
    [
        ("registers first", "listens-first", "nobody listened"),
        ("stale sockets", "stale-sockets", "the last it said: bind: address already in use"),
        ("no news", "health-repeats", "no second report within 2 s"),
        ("memory", "growth", "memory grows with every call"),
        ("gap", "slices-steady", "so for a time the node had no devices"),
        ("same sockets", "two-instances", "both instances use the same sockets"),
        ("forgets what it left", "crash-between", "files of the claim are left"),
    ],
)
def test_faults_that_show_over_time_are_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: str, rule: str, said: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setattr("drakkar.driver.check.survival.CALLING", 60.0)  # A busy machine makes as many calls.
    needed = {"health-repeats": "health-stream,", "slices-steady": "slices,crash-restart,"}.get(rule, "")
    _, found = _raw(capsys, needed + rule, *fault.split())
    status, message, cure = found[rule]
    assert (status, said in message, bool(cure)) == ("warning" if fault == "same sockets" else "failed", True, True), (
        found
    )
