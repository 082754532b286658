"""What the table of the engine measures, on our side: scenarios, streams of claims, index, memory.

All times are processor time. See :mod:`allocator_table` for how to run it.
"""

from __future__ import annotations

import copy
import gc
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

import drakkar.cel
import drakkar.inventory.fleet
from drakkar.allocator import Fits, Outcome, batch, prepare
from drakkar.api.resource.v1 import DeviceClass, ResourceClaim, ResourceSlice
from drakkar.inventory import Inventory
from drakkar.inventory.collector import paused

#: Loaded before anything is measured: a scheduler has loaded them long ago.
LOADED = (drakkar.cel, drakkar.inventory.fleet)
NUMA = "example.com/numa"
Scenario = dict[str, Any]
#: Pool and device of each result of a claim.
Chosen = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Case:
    """A stream of equal claims, and the ratios that spec/engine.md section 10 asks for."""

    title: str
    build: Callable[[ModuleType], Scenario]
    floor: float
    goal: float
    #: How many fitting nodes are to be found per claim.
    found: int = 1
    #: Runs of each side; the better one counts.
    rounds: int = 2


def _numa(make: ModuleType) -> Scenario:
    """Eight GPUs and an adapter that must be on one NUMA node, which only every fourth node offers."""
    made = make.alignment(nodes=5000, gpus=8, nics=2, claims=0)
    for published in made["resourceSlices"]:
        whole = int(published["metadata"]["name"].split("-")[1]) % 4 == 3
        for place, device in enumerate(published["spec"]["devices"]):
            count = len(published["spec"]["devices"])
            device["attributes"][NUMA] = {"int": 0 if whole else 2 * place // count}
    made["claims"] = [
        make.claim(f"c-{number}", [make.request("g", "gpu", 8), make.request("n", "nic")], [{"matchAttribute": NUMA}])
        for number in range(60)
    ]
    return made


def _gpus(make: ModuleType) -> Scenario:
    return make.gpu_cluster(nodes=5000, claims=60)


CASES = (
    Case("(a) one GPU: class, model, memory; first fitting node", _gpus, 100, 300),
    Case("(a) the same; 500 fitting nodes found", _gpus, 30, 300, found=500),
    Case(
        "(b1) twice GPU and NIC on one PCIe root",
        lambda make: make.alignment(nodes=5000, claims=60),
        50,
        500,
    ),
    Case("(b2) 8 GPUs and NIC on one NUMA node, 3 of 4 nodes split", _numa, 50, 500),
    Case(
        "(c) MIG 3g.40gb, one GPU of 20 partitions a node",
        lambda make: make.mig_cluster(nodes=5000, gpus=1, claims=60, mix="3g.40gb"),
        30,
        150,
    ),
    Case(
        "(d) multi-host 4x4 slices, 5,008 nodes",
        lambda make: make.tpu_fleet(pods=313, claims=8, mix="4x4"),
        50,
        250,
        rounds=1,
    ),
)
HARD = ("pigeons", "claims", "late-miss", "halves", "match", "match-late", "counters", "mig", "distinct")


def maker(path: Path) -> ModuleType:
    """The generator of scenarios as a module."""
    spec = importlib.util.spec_from_file_location("make", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass
class Stream:
    """Milliseconds of processor time; ``rest`` is the median, ``mean`` the mean of all but the first claim."""

    index: float
    first: float
    rest: float
    mean: float
    chosen: list[Chosen]


def decide(inventory: Inventory, claim: ResourceClaim, policy: str, found: int = 1) -> Outcome | None:
    """One claim decided for the first node that fits, and booked; before that ``found`` fitting nodes are named."""
    problem = prepare(inventory.snapshot(), [claim], policy)
    for name in problem.feasible().nodes if found == 1 else problem.fitting(found)[:1]:
        outcome = problem.solve(name)
        if isinstance(outcome, Fits):
            inventory.assume(claim.metadata.uid, outcome.allocations[0])
            return outcome
    return None


def _chosen(outcome: Outcome | None) -> Chosen:
    if not isinstance(outcome, Fits):
        return ()
    results = [one for each in outcome.allocations for one in each.devices.results or ()]
    return tuple([(one.pool, one.device) for one in results])


def stream(scenario: Scenario, policy: str, found: int = 1) -> Stream:
    """All claims of a scenario, decided and booked one after the other."""
    # What the reader made is not the engine's; a server freezes it too.
    gc.collect()
    gc.freeze()
    started = time.process_time()
    inventory = batch.load(scenario)
    index = time.process_time() - started
    times: list[float] = []
    outcomes: list[Outcome | None] = []
    for claim in batch.claims_of(scenario):
        started = time.process_time()
        outcomes.append(decide(inventory, claim, policy, found))
        times.append(time.process_time() - started)
        if len(times) == 1:
            # The collector's first look at a new index belongs to the index and not to one of the claims behind it.
            gc.collect()
    gc.unfreeze()
    rest = times[1:] or times
    chosen = [_chosen(outcome) for outcome in outcomes]
    return Stream(1e3 * index, 1e3 * times[0], 1e3 * statistics.median(rest), 1e3 * statistics.mean(rest), chosen)


def exact_everywhere(scenario: Scenario) -> float:
    """Microseconds per node for exact answers on all nodes, for a template that is new to an index in use."""
    inventory = batch.load(scenario)
    claims = batch.claims_of(scenario)
    decide(inventory, claims[0], "drakkar")
    times: list[float] = []
    for number in range(3):
        spec = msgspec.to_builtins(claims[0])
        spec["spec"]["devices"]["requests"][0]["name"] = f"again{number}"
        problem = prepare(inventory.snapshot(), [msgspec.convert(spec, ResourceClaim)])
        started = time.process_time()
        problem.fitting()
        times.append(time.process_time() - started)
    return 1e6 * min(times) / len(scenario["nodes"])


def fabric(make: ModuleType, nodes: int) -> Scenario:
    """Four slices of 100 devices that every node can have."""
    slices = [
        make.slice_(
            f"fabric-{number}",
            make.GPU,
            "fabric",
            4,
            allNodes=True,
            devices=[
                {"name": f"gpu-{number}-{place}", "attributes": {"model": {"string": "H100"}}} for place in range(100)
            ],
        )
        for number in range(4)
    ]
    select = f'device.attributes["{make.GPU}"].model == "H100"'
    claims = [make.claim(f"c-{number}", [make.request("g", "gpu", 1, select)]) for number in range(60)]
    hosts = [make.node(f"node-{number:05d}") for number in range(nodes)]
    return make.scenario("fabric", [make.klass("gpu", make.GPU)], slices, hosts, claims)


def what_if(scenario: Scenario) -> float:
    """Microseconds per claim, each decided beside the one before (:meth:`Snapshot.assume`), nothing booked; median."""
    snapshot = batch.load(scenario).snapshot()
    times: list[float] = []
    for claim in batch.claims_of(scenario):
        started = time.process_time()
        problem = prepare(snapshot, [claim])
        outcome = problem.solve(next(iter(problem.feasible().nodes)))
        if not isinstance(outcome, Fits):
            raise SystemExit("the claims of the what-if measurement do not fit")
        snapshot = snapshot.assume(outcome.allocations[0])
        times.append(time.process_time() - started)
    return 1e6 * statistics.median(times[1:])


def impossible(scenario: Scenario) -> tuple[float, bool]:
    """Milliseconds for the answer to a scenario of one node that fits nothing, best of three fresh inventories."""
    best = float("inf")
    for _ in range(3):
        inventory = batch.load(scenario)
        claims = batch.claims_of(scenario)
        started = time.process_time()
        problem = prepare(inventory.snapshot(), claims)
        refused = not problem.fitting()
        best = min(best, time.process_time() - started)
        if not refused:
            return 1e3 * best, False
    return 1e3 * best, True


@dataclass
class Small:
    """Microseconds for one call on one small node."""

    #: Inventory just filled; expressions compiled before.
    fresh: float
    #: A template never seen, on an inventory in use.
    template: float
    #: A later claim of a known template, when something changed on the node.
    known: float


def small(scenario: Scenario) -> Small:
    """Medians over many calls for the first claim of a scenario of one node."""
    fresh: list[float] = []
    for _ in range(100):
        inventory = batch.load(scenario)
        claims = batch.claims_of(scenario)
        started = time.process_time()
        _answer(inventory, claims)
        fresh.append(time.process_time() - started)
    inventory = batch.load(scenario)
    _answer(inventory, claims)
    unseen: list[float] = []
    known: list[float] = []
    for number in range(200):
        spec = msgspec.to_builtins(claims[0])
        for request in spec["spec"]["devices"]["requests"]:
            request["name"] += f"-{number}"
        for constraint in spec["spec"]["devices"].get("constraints") or ():
            constraint["requests"] = [f"{name}-{number}" for name in constraint["requests"]]
        other = [msgspec.convert(spec, ResourceClaim)]
        started = time.process_time()
        _answer(inventory, other)
        unseen.append(time.process_time() - started)
        outcome = _answer(inventory, claims)
        if isinstance(outcome, Fits):
            inventory.assume("other", outcome.allocations[0])
            _answer(inventory, claims)
            inventory.forget("other")
        started = time.process_time()
        _answer(inventory, claims)
        known.append(time.process_time() - started)
    return Small(*[1e6 * statistics.median(times) for times in (fresh, unseen, known)])


def _answer(inventory: Inventory, claims: list[ResourceClaim]) -> Any:
    problem = prepare(inventory.snapshot(), claims, "upstream")
    outcome = None
    for name in problem.feasible().nodes:
        outcome = problem.solve(name)
    return outcome


@dataclass
class Index:
    """Seconds to enter a fleet, milliseconds until one replaced slice is in a decision."""

    build: float
    replaced: float


def filled(scenario: Scenario) -> tuple[Inventory, float, list[ResourceSlice]]:
    """An inventory of decoded objects, and the seconds that entering them took."""
    slices = [msgspec.convert(one, ResourceSlice) for one in scenario["resourceSlices"]]
    inventory = Inventory()
    for one in scenario["deviceClasses"]:
        inventory.set_class(msgspec.convert(one, DeviceClass))
    started = time.process_time()
    with paused():
        for node in scenario["nodes"]:
            inventory.set_node(node["metadata"]["name"], node["metadata"]["labels"])
        for one in slices:
            inventory.set_slice(one)
    return inventory, time.process_time() - started, slices


def index(scenario: Scenario) -> Index:
    """Times of the index."""
    gc.collect()
    gc.freeze()
    inventory, build, slices = filled(scenario)
    claim = batch.claims_of(scenario)[0]
    decide(inventory, claim, "drakkar")
    times: list[float] = []
    for one in slices[100:200]:
        changed = msgspec.to_builtins(one)
        changed["spec"]["devices"][0]["attributes"]["uuid"] = {"string": "exchanged"}
        new = msgspec.convert(changed, ResourceSlice)
        started = time.process_time()
        inventory.set_slice(new)
        prepare(inventory.snapshot(), [claim]).feasible()
        times.append(time.process_time() - started)
    gc.unfreeze()
    return Index(build, 1e3 * statistics.median(times))


def resident() -> float:
    """Megabytes of this process in memory."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("no VmRSS in /proc/self/status: memory can be measured on Linux only")


def memory(generator: Path) -> dict[str, float]:
    """Megabytes for 100,000 devices: decoded objects, the index on top of them, the first decision on top of that."""
    make = maker(generator)
    scenario = make.gpu_cluster(nodes=1, claims=1)
    classes = [msgspec.convert(one, DeviceClass) for one in scenario["deviceClasses"]]
    claim = batch.claims_of(scenario)[0]
    encoder, decoder = json.JSONEncoder(), msgspec.json.Decoder(ResourceSlice)
    del scenario
    before = resident()
    slices: list[ResourceSlice] = []
    for number in range(12_500):
        one = copy.deepcopy(_template(make))
        name = f"node-{number:05d}"
        one["metadata"]["name"], one["spec"]["nodeName"], one["spec"]["pool"]["name"] = f"gpus-{number:05d}", name, name
        for place, device in enumerate(one["spec"]["devices"]):
            device["attributes"]["uuid"] = {"string": f"GPU-{number:08x}-{place:04x}"}
        slices.append(decoder.decode(encoder.encode(one)))
    objects = resident()
    inventory = Inventory()
    for one in classes:
        inventory.set_class(one)
    for one in slices:
        inventory.set_node(one.spec.nodeName or "", {"kubernetes.io/hostname": one.spec.nodeName or ""})
        inventory.set_slice(one)
    indexed = resident()
    if decide(inventory, claim, "drakkar") is None:
        raise SystemExit("the claim of the memory measurement does not fit")
    return {"objects": objects - before, "index": indexed - objects, "decision": resident() - indexed}


_TEMPLATES: list[Scenario] = []


def _template(make: ModuleType) -> Scenario:
    if not _TEMPLATES:
        _TEMPLATES.append(make.gpu_nodes(2, 8)[1][1])
    return _TEMPLATES[0]


def memory_apart(generator: Path) -> dict[str, float]:
    """:func:`memory` in a process of its own."""
    command = [sys.executable, str(Path(__file__)), str(generator)]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(memory(Path(sys.argv[1]))) + "\n")
