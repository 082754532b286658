"""The 64-chip story on upstream's kube-apiserver, with our parts as processes, each with the rights of the chart.

``drakkar demo tpu --kubeconfig`` directs it and its observer decides; this starts the parts and reads the audit log.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import pytest
import yaml

from drakkar.api.tree import text
from tests.support.kubeparts import ACCOUNT, EXAMPLES, Entry, Site, kube_site
from tests.support.plane import Part

pytestmark = [pytest.mark.upstream, pytest.mark.timeout(300)]

#: Heartbeats that survive a busy machine, and a grace that does not make the story long; seconds.
LEASE, PERIOD, GRACE = "4", "0.5", "6"
LEASES = ("--leader-elect-resource-namespace", "drakkar-system")
OURS, HOLLOW = f"{ACCOUNT}drakkar-controllers", f"{ACCOUNT}drakkar-hollow-nodes"
DEVICE_TAINTS = "system:serviceaccount:kube-system:device-taint-eviction-controller"
NAMESPACE = "rules"
#: Seconds without a write that count as rest, and how often the author of an object may change in a story.
QUIET, TURNS = 4.0, 8

T = TypeVar("T")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Hollow nodes and the driver are the same for all stories."""
    with kube_site(tmp_path_factory.mktemp("kube")) as made:
        hollow = ("node", "hollow", "--fleet", "tpu-16", "--lease-duration", LEASE, "--lease-period", PERIOD)
        with made.part("hollow-nodes", *hollow), made.part("driver-tpu", "driver", "run", "tpu"):
            yield made


def scheduler(site: Site, mode: str) -> Part:
    site.grant(f"scheduler.mode={mode}", "controllers.only={eviction,node-loss}")
    return site.part("scheduler", "scheduler", "--mode", mode, *LEASES)


def beside(site: Site) -> Part:
    """The two controllers that are made to run beside kube-controller-manager."""
    flags = ("--only", "eviction,node-loss", "--node-grace", GRACE, "--leader-elect-resource-name")
    return site.part("controllers", "controllers", *flags, "drakkar-controllers", *LEASES)


def controller_manager(site: Site, stack: ExitStack, controllers: str = "*") -> None:
    grace = (f"--node-monitor-grace-period={GRACE}s", "--node-monitor-period=1s")
    stack.enter_context(site.cluster.controller_manager(*grace, controllers=controllers))


def play(site: Site, mode: str, parts: list[Part]) -> str:
    command = [sys.executable, "-m", "drakkar.cli", "demo", "tpu", "--kubeconfig", str(site.cluster.kubeconfig())]
    command += ["--mode", mode, "--patience", "90"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    said = "\n".join((done.stdout, done.stderr, *(part.output for part in parts)))
    assert done.returncode == 0, said
    assert "every step was seen through the API; verify found nothing" in done.stdout
    assert site.refused() == []
    return done.stdout


def figures(output: str) -> str:
    return "; ".join(line for line in output.splitlines() if line.startswith(("from ", "whole demo")))


def test_own_mode_with_our_controllers_alone(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    alone = ("controllers", "--loss-by-silence", "--node-grace", GRACE)
    with site.part("controllers-alone", *alone) as controllers, scheduler(site, "own") as ours:
        output = play(site, "own", [controllers, ours])
    with capsys.disabled():
        print(f"\nown mode, our controllers alone: {figures(output)}")


def test_own_mode_beside_kube_controller_manager(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as stack:
        controller_manager(site, stack)
        parts = [stack.enter_context(part) for part in (beside(site), scheduler(site, "own"))]
        output = play(site, "own", parts)
    with capsys.disabled():
        print(f"\nown mode, beside kube-controller-manager: {figures(output)}")


@pytest.fixture(scope="module")
def gated(site: Site) -> Iterator[ExitStack]:
    """kube-scheduler and kube-controller-manager as upstream has them, ours beside; the stack may stop some of them."""
    with ExitStack() as stack:
        manager = stack.enter_context(ExitStack())
        controller_manager(site, manager)
        stack.enter_context(site.cluster.scheduler())
        for part in (beside(site), scheduler(site, "gate")):
            stack.enter_context(part)
        yield manager


def test_gate_mode_beside_kube_scheduler_and_controller_manager(
    site: Site, gated: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    before = len(site.written())
    output = play(site, "gate", [])
    written = site.written()[before:]
    bound = {entry.user for entry in written if entry.resource == "pods/binding" and entry.code < 300}
    assert bound == {"system:kube-scheduler"}
    nobody_fights(written)
    # The dead host's pod is what kube-controller-manager cannot let go of; the others end by themselves.
    (lost,) = {line.split()[2] for line in output.splitlines() if " dies: " in line}
    marked = [
        entry
        for entry in written
        if (entry.user, entry.resource) == (OURS, "pods/status") and entry.name.startswith("training")
    ]
    assert [text(entry.body, "status", "phase") for entry in marked] == ["Failed"], lost
    with capsys.disabled():
        print(f"\ngate mode: {figures(output)}")


def test_device_taint_rules_are_upstreams_as_long_as_it_looks_after_them(site: Site, gated: ExitStack) -> None:
    kubectl = site.kubectl
    kubectl.run("create", "namespace", NAMESPACE)
    kubectl.run("apply", "-f", str(EXAMPLES.parent / "deviceclass.yaml"))
    (claim, job) = (yaml.safe_load((EXAMPLES.parent / name).read_text()) for name in ("claim.yaml", "job.yaml"))
    job["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "drakkar.dev/allocation"}]
    kubectl.run("apply", "-n", NAMESPACE, "-f", "-", stdin=yaml.safe_dump_all([claim, job]))
    first = until(site, lambda: runs(site, set()))
    before = len(site.written())
    taint(site, "one")
    second = until(site, lambda: runs(site, first))
    until(site, lambda: quiet(site))
    written = site.written()[before:]
    assert {entry.user for entry in written if entry.resource == "devicetaintrules/status"} == {DEVICE_TAINTS}
    asked = {entry.user for entry in written if entry.verb == "delete" and entry.name in first}
    assert asked - {HOLLOW} == {DEVICE_TAINTS}
    assert [entry for entry in written if entry.user == OURS and entry.writes] == []
    nobody_fights(written)

    # Nobody else evicts: now it is the work of ours, and still not the rule's status.
    gated.close()
    controller_manager(site, gated, "*,-device-taint-eviction-controller")
    before = len(site.written())
    taint(site, "two")
    until(site, lambda: runs(site, second))
    until(site, lambda: quiet(site))
    written = site.written()[before:]
    assert {entry.user for entry in written if entry.resource == "devicetaintrules/status"} == set()
    evictions = [entry.name for entry in written if entry.user == OURS and entry.verb == "delete"]
    assert sorted(evictions) == sorted(second)
    nobody_fights(written)
    assert site.refused() == []


def pods(site: Site) -> list[dict[str, Any]]:
    return json.loads(site.kubectl.run("get", "pods", "-n", NAMESPACE, "-o", "json"))["items"]


def runs(site: Site, others: set[str]) -> set[str]:
    """Names of the four pods of the job once all run, and are none of ``others``."""
    found = pods(site)
    names = {pod["metadata"]["name"] for pod in found}
    indexes = {pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] for pod in found}
    all_run = all(pod["status"].get("phase") == "Running" for pod in found)
    return names if all_run and indexes == set("0123") and len(found) == 4 and not names & others else set()


def taint(site: Site, name: str) -> None:
    """A rule that evicts from the device that the claim holds now."""
    claim = json.loads(site.kubectl.run("get", "resourceclaim", "slice", "-n", NAMESPACE, "-o", "json"))
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    selector = {key: result[key] for key in ("driver", "pool", "device")}
    spec = {"deviceSelector": selector, "taint": {"key": "example.com/broken", "effect": "NoExecute"}}
    rule = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": name}, "spec": spec}
    site.kubectl.run("create", "-f", "-", stdin=json.dumps(rule))


def quiet(site: Site) -> bool:
    """Whether nobody writes anything for some seconds, heartbeats aside: what keeps being overwritten never rests."""
    before = sum(entry.writes for entry in site.written())
    time.sleep(QUIET)
    return sum(entry.writes for entry in site.written()) == before


def nobody_fights(written: Sequence[Entry]) -> None:
    """Ours write no more than is theirs, tell nothing twice, and take no turns with upstream's."""
    ours = [entry for entry in written if entry.user == OURS and entry.writes]
    assert {entry.resource for entry in ours} <= {"pods", "pods/status", "events"}
    assert [
        each for each, times in Counter((entry.verb, entry.resource, entry.name) for entry in ours).items() if times > 1
    ] == []
    told = Counter((text(entry.body, "involvedObject", "name"), text(entry.body, "reason")) for entry in ours)
    del told["", ""]
    assert [each for each, times in told.items() if times > 1] == []
    turns: dict[tuple[str, str, str], list[str]] = {}
    for entry in written:
        if entry.writes:
            writers = turns.setdefault((entry.resource, entry.namespace, entry.name), [])
            if writers[-1:] != [entry.user]:
                writers.append(entry.user)
    assert {where: writers for where, writers in turns.items() if len(writers) > TURNS} == {}


def until(site: Site, found: Callable[[], T], timeout: float = 90) -> T:
    deadline = time.monotonic() + timeout
    while not (seen := found()):
        assert time.monotonic() < deadline, site.kubectl.run(
            "get", "pods,resourceclaims", "-n", NAMESPACE, "-o", "wide"
        )
        time.sleep(0.5)
    return seen
