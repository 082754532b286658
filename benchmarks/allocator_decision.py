"""How long one allocation decision takes, and how that compares with the upstream oracle.

    python benchmarks/allocator_decision.py [--oracle PATH] [--scenario FILE ...] [--repeat N]

Without arguments: the 64-chip decision (16 nodes, 29 logical devices, one claim for a 4x4 slice), which must
take less than a millisecond of processor time; exit status 1 when it does not. A decision is snapshot,
prepare, all feasible nodes, exact answer on the first of them. *First* counts everything that is worked out
once per claim template and node; *next* is a later claim of the same template, after the first was booked.
``--scenario`` adds files in the oracle's format (corpus/bench/make.py writes them); with ``--oracle`` the same
file is given to ``oracle sequence`` and the ratio of processor time per decision is printed (*next* on our side,
which always answers for all nodes; the oracle stops after ``--feasible`` fitting nodes).
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from drakkar.allocator import Fits, batch, prepare
from drakkar.api.resource.v1 import ResourceClaim
from drakkar.inventory import Inventory

LIMIT_MS = 1.0
HOST = "kubernetes.io/hostname"
DRIVER = "tpu.example.com"


def sixty_four_chips() -> dict[str, Any]:
    """Sixteen hosts with four chips each, published as logical slices 8x8, 4x4, 2x4 and 2x2."""
    hosts = [f"host-{number:02d}" for number in range(16)]
    sizes = (("8x8", 16), ("4x4", 4), ("2x4", 2), ("2x2", 1))
    devices: list[dict[str, Any]] = []
    for topology, width in sizes:
        for start in range(0, 16, width):
            mine = hosts[start : start + width]
            term = {"matchExpressions": [{"key": HOST, "operator": "In", "values": mine}]}
            devices.append(
                {
                    "name": f"slice-{topology}-{start // width}",
                    "attributes": {"topology": {"string": topology}, "chips": {"int": 4 * width}},
                    "nodeSelector": {"nodeSelectorTerms": [term]},
                    "consumesCounters": [{"counterSet": "hosts", "counters": {host: {"value": "4"} for host in mine}}],
                }
            )
    pool = {"name": "pod-0", "generation": 1, "resourceSliceCount": 2}
    counters = {"name": "hosts", "counters": {host: {"value": "4"} for host in hosts}}
    selector = f'device.attributes["{DRIVER}"].topology == "4x4"'
    request = {
        "name": "slice",
        "exactly": {
            "deviceClassName": "tpu",
            "allocationMode": "ExactCount",
            "count": 1,
            "selectors": [{"cel": {"expression": selector}}],
        },
    }
    return {
        "id": "64-chips",
        "deviceClasses": [
            {
                "metadata": {"name": "tpu"},
                "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
            }
        ],
        "resourceSlices": [
            {
                "metadata": {"name": "counters"},
                "spec": {"driver": DRIVER, "pool": pool, "allNodes": True, "sharedCounters": [counters]},
            },
            {
                "metadata": {"name": "devices"},
                "spec": {"driver": DRIVER, "pool": pool, "perDeviceNodeSelection": True, "devices": devices},
            },
        ],
        "nodes": [{"metadata": {"name": host, "labels": {HOST: host}}} for host in hosts],
        "claims": [
            {
                "metadata": {"name": f"c{number}", "namespace": "bench", "uid": f"uid-{number}"},
                "spec": {"devices": {"requests": [request]}},
            }
            for number in range(4)
        ],
    }


def decide(inventory: Inventory, claim: ResourceClaim) -> tuple[float, bool]:
    """Processor seconds of one decision, which is booked afterwards, and whether it fits."""
    started = time.process_time()
    problem = prepare(inventory.snapshot(), [claim])
    outcome = None
    for node in problem.feasible().nodes:
        outcome = problem.solve(node)
        if isinstance(outcome, Fits):
            break
    spent = time.process_time() - started
    if isinstance(outcome, Fits):
        inventory.assume(claim.metadata.uid, outcome.allocations[0])
        return spent, True
    return spent, False


def measure(scenario: dict[str, Any]) -> dict[str, float]:
    """One run over the claims of a scenario, one after the other; milliseconds."""
    started = time.process_time()
    inventory = batch.load(scenario)
    built = time.process_time() - started
    claims = batch.claims_of(scenario)
    started = time.process_time()
    times: list[float] = []
    placed = 0
    for claim in claims:
        spent, fits = decide(inventory, claim)
        times.append(spent * 1e3)
        placed += fits
    total = time.process_time() - started
    rest = times[1:] or times
    return {
        "build": built * 1e3,
        "first": times[0],
        "median": statistics.median(rest),
        "p99": sorted(rest)[int(len(rest) * 0.99)],
        "total": total * 1e3,
        "placed": placed,
        "claims": len(claims),
    }


def read(path: Path) -> dict[str, Any]:
    """A scenario file, perhaps compressed."""
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def ask_oracle(oracle: Path, path: Path, feasible: int) -> float:
    """Processor milliseconds per decision of the oracle, which stops after ``feasible`` fitting nodes."""
    command = [str(oracle), "sequence", "-feasible", str(feasible), str(path)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return 1e3 * found["cpuSeconds"] / found["steps"]


def show(name: str, figures: dict[str, float]) -> None:
    """One line of results."""
    sys.stdout.write(
        f"{name}: first {figures['first']:.3f} ms, next {figures['median']:.3f} ms (p99 {figures['p99']:.3f}), "
        f"build {figures['build']:.0f} ms, {figures['placed']:.0f}/{figures['claims']:.0f} placed "
        f"in {figures['total']:.0f} ms\n"
    )


def main() -> int:
    """Runs what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--oracle", type=Path)
    parser.add_argument("--scenario", type=Path, nargs="*", default=[])
    parser.add_argument("--feasible", type=int, nargs="*", default=[1])
    parser.add_argument("--repeat", type=int, default=40)
    options = parser.parse_args()
    scenario = sixty_four_chips()
    runs = [measure(scenario) for _ in range(options.repeat)]
    best = {key: min(run[key] for run in runs) for key in runs[0]}
    show("64-chips", best)
    for path in options.scenario:
        figures = measure(read(path))
        show(path.name, figures)
        if options.oracle:
            for feasible in options.feasible:
                theirs = ask_oracle(options.oracle, path, feasible)
                ratio = theirs / figures["median"]
                sys.stdout.write(
                    f"  oracle, {feasible} feasible nodes: {theirs:.2f} ms a decision, {ratio:.0f} times ours\n"
                )
    if best["first"] > LIMIT_MS:
        sys.stdout.write(f"64-chips: the first decision took more than {LIMIT_MS} ms\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
