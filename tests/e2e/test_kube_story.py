"""The 64-chip story on upstream's kube-apiserver, with our parts as processes, each with the rights of the chart.

``drakkar demo tpu --kubeconfig`` directs it and its observer decides; this starts the parts and reads the audit log.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from drakkar.api.tree import children, text
from drakkar.cli.target import connect
from drakkar.sim.fleets import load_fleet
from tests.e2e.test_replicas import LEASE_SECONDS, Replica
from tests.support import releases
from tests.support.eventually import eventually
from tests.support.kubeparts import ACCOUNT, EXAMPLES, Entry, Site, kube_site
from tests.support.plane import Part
from tests.support.silent import Watched, slice_file, workload
from tests.unit.driver.test_gates import POOL, Publishing

pytestmark = [pytest.mark.upstream, pytest.mark.timeout(600)]

#: Heartbeats that survive a busy machine, and a grace that does not make the story long; seconds.
LEASE, PERIOD, GRACE = "6", "0.5", "10"
LEASES = ("--leader-elect-resource-namespace", "drakkar-system")
OURS, HOLLOW = f"{ACCOUNT}drakkar-controllers", f"{ACCOUNT}drakkar-hollow-nodes"
DEVICE_TAINTS = "system:serviceaccount:kube-system:device-taint-eviction-controller"
NAMESPACE, REPLICAS, SILENT = "rules", "replicas", "silent"
HOSTS = load_fleet("tpu-16").nodes()
#: Seconds without a write that count as rest, and how often the author of an object may change in a story.
QUIET, TURNS = 4.0, 8

T = TypeVar("T")


@contextmanager
def with_hosts(folder: Path, *flags: str, authorizers: str = "Node,RBAC") -> Iterator[Site]:
    """A site with sixteen hollow hosts and the driver of their chips."""
    hollow = ("node", "hollow", "--fleet", "tpu-16", "--lease-duration", LEASE, "--lease-period", PERIOD)
    with (
        kube_site(folder, *flags, authorizers=authorizers) as made,
        made.part("hollow-nodes", *hollow),
        made.part("driver-tpu", "driver", "run", "tpu"),
    ):
        yield made


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Hollow nodes and the driver are the same for all stories."""
    with with_hosts(tmp_path_factory.mktemp("kube")) as made:
        yield made


def grant(site: Site, mode: str) -> None:
    site.grant(f"scheduler.mode={mode}", "controllers.only={eviction,node-loss}")


def scheduler(site: Site, mode: str) -> Part:
    grant(site, mode)
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
    command += ["--mode", mode, "--patience", "150"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    said = "\n".join((done.stdout, done.stderr, *(part.output for part in parts)))
    assert done.returncode == 0, said
    assert "every step was seen through the API; verify found nothing" in done.stdout
    assert site.refused() == []
    return done.stdout


def figures(output: str) -> str:
    return "; ".join(line for line in output.splitlines() if line.startswith(("from ", "whole demo")))


def alone(site: Site) -> Part:
    """All our controllers, in the place of kube-controller-manager."""
    return site.part("controllers-alone", "controllers", "--loss-by-silence", "--node-grace", GRACE)


def test_own_mode_with_our_controllers_alone(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    with alone(site) as controllers, scheduler(site, "own") as ours:
        output = play(site, "own", [controllers, ours])
    with capsys.disabled():
        print(f"\nown mode, our controllers alone: {figures(output)}")


def test_a_leader_is_killed_in_the_middle_of_its_work(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Sixteen pods for sixteen hosts' devices, half of them made when the leader has just been killed."""
    kubectl = site.kubectl
    kubectl.run("create", "namespace", REPLICAS)
    kubectl.run("apply", "-f", str(EXAMPLES.parent / "deviceclass.yaml"))
    grant(site, "own")
    before = len(site.written())
    account = site.account("scheduler")
    with (
        alone(site),
        Replica(account, "--mode", "own", *LEASES) as one,
        Replica(account, "--mode", "own", *LEASES) as two,
    ):
        until(site, lambda: kubectl.ask("get", "serviceaccount", "default", "-n", REPLICAS).returncode == 0)
        until(site, lambda: one.is_ready() and two.is_ready())
        by_pid = {str(replica.process.pid): replica for replica in (one, two)}
        leader = until(site, lambda: by_pid.get(holder(site)))
        kubectl.run("apply", "-f", "-", stdin=yaml.safe_dump_all(single_hosts(range(8))))
        until(site, lambda: bindings(site, before))
        assert "drakkar_leading 1" in leader.ask("/metrics")
        leader.process.kill()
        killed = time.time()
        kubectl.run("apply", "-f", "-", stdin=yaml.safe_dump_all(single_hosts(range(8, 16))))
        until(site, lambda: all(pod["spec"].get("nodeName") for pod in pods(site, REPLICAS)))
        # An answer is in the audit log only after the client has it.
        until(site, lambda: len(bindings(site, before)) >= 16)
        later = {f"host-{number}" for number in range(8, 16)}
        took = min(entry.at for entry in bindings(site, before) if entry.name in later) - killed
        assert holder(site) in by_pid.keys() - {str(leader.process.pid)}
        # Every pod was bound once, and every claim allocated once for all, each to another device.
        assert max(Counter(entry.name for entry in bindings(site, before)).values()) == 1
        claims = json.loads(kubectl.run("get", "resourceclaims", "-n", REPLICAS, "-o", "json"))["items"]
        devices = {claim["metadata"]["name"]: allocated(claim) for claim in claims}
        written = [
            (entry.name, allocated(entry.body))
            for entry in site.written()[before:]
            if entry.writes and entry.resource == "resourceclaims/status" and allocated(entry.body)
        ]
        # What was on its way when the leader was killed may be written without an answer.
        assert len(written) == len({*written}) >= 8
        assert {*written} <= {*devices.items()}
        assert len({*devices.values()}) == 16
        assert site.refused() == []
        kubectl.run("delete", "pods", "--all", "-n", REPLICAS, "--timeout=150s")
        kubectl.run("delete", "resourceclaims", "--all", "-n", REPLICAS, "--timeout=150s")
    with capsys.disabled():
        print(f"\nlease {LEASE_SECONDS:g} s: the next decision {took:.2f} s after the leader was killed")


def allocated(claim: Mapping[str, Any]) -> str:
    """The device of a claim, or of what was written about it; empty for none."""
    results = children(claim, "status", "allocation", "devices", "results")
    return results[0]["device"] if results else ""


def holder(site: Site) -> str:
    """Process id of the scheduler that leads; empty for none."""
    lease = ("get", "lease", "drakkar-scheduler-drakkar", "-n", "drakkar-system")
    identity = site.kubectl.ask(*lease, "-o", "jsonpath={.spec.holderIdentity}").stdout
    return identity.split("_")[1] if identity else ""


def bindings(site: Site, since: int) -> list[Entry]:
    return [entry for entry in site.written()[since:] if entry.resource == "pods/binding" and entry.writes]


def single_hosts(numbers: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Pods that each want the chips of one host."""
    expression = 'device.attributes["tpu.drakkar.dev"].topology == "2x2"'
    exactly = {"deviceClassName": "tpu.drakkar.dev", "selectors": [{"cel": {"expression": expression}}]}
    for number in numbers:
        metadata = {"name": f"host-{number}", "namespace": REPLICAS}
        devices = {"requests": [{"name": "chips", "exactly": exactly}]}
        yield {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": metadata,
            "spec": {"devices": devices},
        }
        spec = {
            "schedulerName": "drakkar",
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "c", "image": "i"}],
            "resourceClaims": [{"name": "chips", "resourceClaimName": metadata["name"]}],
        }
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("older", ["v1beta2", "v1beta1"])
def test_a_server_without_v1(older: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All components, the demo and its observer find the version that there is."""
    newer = ["v1", "v1beta2"][: 1 if older == "v1beta2" else 2]
    off = ",".join(f"resource.k8s.io/{version}=false" for version in newer)
    # The authorizer of nodes watches slices in v1: with it such a server is not ready.
    with with_hosts(tmp_path, f"--runtime-config={off}", authorizers="RBAC") as made:
        versions = made.kubectl.run("api-versions").split()
        assert [version for version in versions if version.startswith("resource.k8s.io/v1beta")][-1:] == [
            f"resource.k8s.io/{older}"
        ]
        assert "resource.k8s.io/v1" not in versions
        with alone(made) as controllers, scheduler(made, "own") as ours:
            output = play(made, "own", [controllers, ours])
            assert f"resourceslices: this server has them in resource.k8s.io/{older}" in ours.output
    with capsys.disabled():
        print(f"\n{older}: {figures(output)}")


def test_a_server_with_gates_off_gets_no_devices_that_would_be_given_out_wrongly(tmp_path: Path) -> None:
    names: list[str] = ["DRAPartitionableDevices", "DRAConsumableCapacity", "DRADeviceBindingConditions"]
    gates = dict.fromkeys(names, False)
    with kube_site(tmp_path, gates=gates) as made:
        for node in HOSTS:
            made.kubectl.run("create", "-f", "-", stdin=json.dumps(node))
        with made.part("driver-tpu", "driver", "run", "tpu") as driver:
            until(made, lambda: "may need feature gates" in driver.output)
        assert made.kubectl.run("get", "resourceslices", "-o", "name") == ""

        async def publish() -> None:
            async with connect(made.cluster.kubeconfig()) as client, Publishing(client, POOL) as at:
                found = await eventually(at.devices, bool)
                kept = [device.name for device in found]
                assert kept == ["plain", "sick", "watched", "shared", "listed"]
                assert list(found[-1].attributes or {}) == ["one"]
                assert all(device.allowMultipleAllocations is None for device in found)
                (problem,) = at.problems
                # Lists are off by default.
                assert all(gate in problem for gate in (*gates, "DRAListTypeAttributes"))
                assert "2 devices are not published" in problem

        asyncio.run(publish())


def test_own_mode_beside_kube_controller_manager(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as stack:
        controller_manager(site, stack)
        parts = [stack.enter_context(part) for part in (beside(site), scheduler(site, "own"))]
        output = play(site, "own", parts)
    with capsys.disabled():
        print(f"\nown mode, beside kube-controller-manager: {figures(output)}")


def test_a_driver_that_says_nothing_beside_kube_scheduler_and_controller_manager(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of ours but ``eviction,node-loss``: theirs allocate, bind, evict and make pods anew."""
    recorded = tmp_path / "slices.json"
    hosts = [node["metadata"]["name"] for node in HOSTS]
    slices = {f"slice-{first}": sorted(hosts[first : first + 4]) for first in range(0, 16, 4)}
    recorded.write_text(slice_file(slices))
    site.kubectl.run("create", "namespace", SILENT)
    job = Watched(site.kubectl, "training", SILENT)
    replay = ("driver", "run", "replay", "--cluster", "--slices", str(recorded))
    with ExitStack() as stack:
        controller_manager(site, stack)
        stack.enter_context(site.cluster.scheduler())
        stack.enter_context(beside(site))
        # Somebody else's driver: none of our accounts is its.
        with Part(*replay, "--kubeconfig", str(site.cluster.kubeconfig())):
            site.kubectl.run("apply", "-n", SILENT, "-f", "-", stdin=workload("training"))
            first = until(site, job.hosts)
        old = job.device()
        assert sorted(first.values()) == slices[old]
        before = len(site.written())
        lost, began = first["2"], time.monotonic()
        job.silence(lost)
        second = until(site, lambda: {} if lost in (now := job.hosts()).values() else now)
        took = time.monotonic() - began
        new = job.device()
        assert sorted(second.values()) == slices[new] != slices[old]
        assert job.rules() == [old]
        job.revive(lost)
        until(site, lambda: not job.rules())
        until(site, lambda: quiet(site))
        assert job.hosts() == second
        ours = [entry for entry in site.written()[before:] if entry.user == OURS and entry.writes]
        assert Counter((entry.verb, entry.resource) for entry in ours if entry.resource == "devicetaintrules") == {
            ("create", "devicetaintrules"): 1,
            ("delete", "devicetaintrules"): 1,
        }
        told = {entry.user for entry in site.written()[before:] if entry.resource == "devicetaintrules/status"}
        assert told <= {DEVICE_TAINTS}
        nobody_fights(site.written()[before:], {"devicetaintrules"})
        assert site.refused() == []
        site.kubectl.run("delete", "namespace", SILENT, "--timeout=90s", timeout=100)
    with capsys.disabled():
        print(f"\na driver that says nothing: {took:.0f} s from a host's death to four pods on another slice")


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
    if releases.emulated() or not rules_version(site):
        pytest.skip("upstream looks after no DeviceTaintRules here")
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
    # In Kubernetes 1.34 a rule has no status.
    told = set() if releases.release() == "1.34" else {DEVICE_TAINTS}
    assert {entry.user for entry in written if entry.resource == "devicetaintrules/status"} == told
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
    evictions = [entry.name for entry in written if entry.user == OURS and entry.verb == "delete" and entry.writes]
    assert sorted(evictions) == sorted(second)
    nobody_fights(written)
    assert site.refused() == []


def pods(site: Site, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
    return json.loads(site.kubectl.run("get", "pods", "-n", namespace, "-o", "json"))["items"]


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
    rule = {"apiVersion": rules_version(site), "kind": "DeviceTaintRule", "metadata": {"name": name}, "spec": spec}
    site.kubectl.run("create", "-f", "-", stdin=json.dumps(rule))


def rules_version(site: Site) -> str:
    """The version in which an older server has DeviceTaintRules; empty where it has none."""
    found = site.kubectl.run("api-resources", "--api-group=resource.k8s.io", "--no-headers").splitlines()
    return next((line.split()[-3] for line in found if line.startswith("devicetaintrules ")), "")


def quiet(site: Site) -> bool:
    """Whether nobody writes anything for some seconds, heartbeats aside: what keeps being overwritten never rests."""
    before = sum(entry.writes for entry in site.written())
    time.sleep(QUIET)
    return sum(entry.writes for entry in site.written()) == before


def nobody_fights(written: Sequence[Entry], also: Iterable[str] = ()) -> None:
    """Ours write no more than is theirs (``also``: in this story), tell nothing twice and take no turns with theirs."""
    ours = [entry for entry in written if entry.user == OURS and entry.writes]
    assert {entry.resource for entry in ours} <= {"pods", "pods/status", "events", *also}
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


def until(site: Site, found: Callable[[], T | None], timeout: float = 180) -> T:
    deadline = time.monotonic() + timeout
    while not (seen := found()):
        assert time.monotonic() < deadline, site.kubectl.run(
            "get", "pods,resourceclaims", "-n", NAMESPACE, "-o", "wide"
        )
        time.sleep(0.5)
    return seen
