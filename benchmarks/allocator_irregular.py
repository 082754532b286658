"""Random irregular problems on one node: several match constraints and a distinct over different attributes.

    python benchmarks/allocator_irregular.py [--count N]

No two devices are alike, so neither counting nor symmetry helps, and the general case is NP-hard (spec/engine.md
section 5.4). Prints processor times with the solver and without, and has rows for the table of the engine.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec

from drakkar.allocator import Fits, NoFit, Outcome, prepare, solver
from drakkar.api.resource.v1 import DeviceClass, ResourceClaim, ResourceSlice
from drakkar.inventory import Inventory, Snapshot

DRIVER = "gpu.example.com"


def problem(rnd: random.Random, devices: int) -> tuple[list[ResourceSlice], ResourceClaim]:
    """A node with ``devices`` devices (24 to 64), and a claim for about a third of them."""
    picks = max(6, devices * rnd.randint(28, 42) // 100)
    # Each attribute has its own number of values, so that problems lie on both sides of what is possible.
    spread = {"a": rnd.randint(2, 4), "b": rnd.randint(2, 4), "c": picks + rnd.randint(-1, picks // 2), "kind": 3}
    attributes = [{name: {"int": rnd.randrange(values)} for name, values in spread.items()} for _ in range(devices)]
    listed = [{"name": f"d{number:02}", "attributes": found} for number, found in enumerate(attributes)]
    published = {
        "metadata": {"name": "s"},
        "spec": {
            "driver": DRIVER,
            "nodeName": "n1",
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
            "devices": listed,
        },
    }
    requests: list[dict[str, Any]] = []
    left = picks
    while left > 0:
        count = min(left, rnd.randint(1, 4))
        left -= count
        kinds = rnd.sample(range(3), rnd.randint(1, 2))
        text = " || ".join(f'device.attributes["{DRIVER}"].kind == {kind}' for kind in kinds)
        exactly = {
            "deviceClassName": "gpu",
            "allocationMode": "ExactCount",
            "count": count,
            "selectors": [{"cel": {"expression": text}}],
        }
        requests.append({"name": f"r{len(requests)}", "exactly": exactly})
    names = [request["name"] for request in requests]
    rnd.shuffle(names)
    third = max(1, len(names) // 3)
    constraints = [
        {"matchAttribute": f"{DRIVER}/a", "requests": names[:third]},
        {"matchAttribute": f"{DRIVER}/b", "requests": names[third : 2 * third]},
        {"distinctAttribute": f"{DRIVER}/c"},
    ]
    claim = {
        "metadata": {"name": "c", "namespace": "default", "uid": "c"},
        "spec": {"devices": {"requests": requests, "constraints": constraints}},
    }
    return [msgspec.convert(published, ResourceSlice)], msgspec.convert(claim, ResourceClaim)


def cluster(slices: list[ResourceSlice]) -> Snapshot:
    """A snapshot with one node."""
    inventory = Inventory()
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    inventory.set_class(msgspec.convert({"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}}, DeviceClass))
    inventory.set_node("n1", {})
    for published in slices:
        inventory.set_slice(published)
    return inventory.snapshot()


def problems(count: int, devices: int | None, seed: int = 1) -> Iterator[tuple[Snapshot, ResourceClaim]]:
    """Seeded problems, of 24 to 64 devices unless told."""
    for number in range(count):
        rnd = random.Random(seed * 1000 + number)
        slices, claim = problem(rnd, devices or rnd.choice((24, 32, 40, 48, 56, 64)))
        yield cluster(slices), claim


NO_FIT_MS, NO_FIT_GOAL_MS = 200.0, 60.0
FIRST_MS, FIRST_GOAL_MS = 3000.0, 1000.0


@dataclass(slots=True)
class Times:
    """Milliseconds of processor time by how it ended."""

    fits: list[float] = field(default_factory=list[float])
    refused: list[float] = field(default_factory=list[float])
    undecided: list[float] = field(default_factory=list[float])

    def add(self, outcome: Outcome, took: float) -> None:
        """Counts one answer in."""
        kind = {Fits: self.fits, NoFit: self.refused}.get(type(outcome), self.undecided)
        kind.append(took)


def measure(count: int, devices: int | None) -> Times:
    """All problems answered once, inventory not counted."""
    found = Times()
    for snapshot, claim in problems(count, devices):
        asked = prepare(snapshot, [claim])
        started = time.process_time()
        outcome = asked.solve("n1") if asked.feasible().nodes else NoFit(asked.why(["n1"]))
        found.add(outcome, 1e3 * (time.process_time() - started))
    return found


def cell(times: list[float]) -> str:
    """How many, and how long at most."""
    return f"{len(times)}, at most {max(times):.0f} ms" if times else "0"


def state(worst: float, floor: float, goal: float) -> str:
    """Where the worst case stands."""
    return "goal met" if worst < goal else "floor met" if worst < floor else "**missed**"


def rows(count: int = 40) -> list[str]:
    """The lines of a section of the engine's page."""
    lines = [
        "\n## Irregular problems\n",
        f"{count} random problems of one node per line: two match constraints and a distinct over three attributes.",
        f"Targets for 64 devices: does not fit below {NO_FIT_MS:.0f} ms (goal {NO_FIT_GOAL_MS:.0f}), "
        f"fits below {FIRST_MS:.0f} ms (goal {FIRST_GOAL_MS:.0f}).\n",
        "| devices | solver | fits | does not fit | undecided |",
        "| --- | --- | --- | --- | --- |",
    ]
    kept = solver.available
    verdict = ""
    for devices in (32, 64):
        for extra in (True, False):
            if extra and not kept():
                lines.append(f"| {devices} | not installed | | | |")
                continue
            try:
                if not extra:
                    solver.available = cache(lambda: False)
                found = measure(count, devices)
            finally:
                solver.available = kept
            lines.append(
                f"| {devices} | {'yes' if extra else 'no'} | {cell(found.fits)} | {cell(found.refused)} "
                f"| {cell(found.undecided)} |"
            )
            if extra and devices == 64:
                first = state(max(found.fits, default=0), FIRST_MS, FIRST_GOAL_MS)
                none = state(max(found.refused, default=0), NO_FIT_MS, NO_FIT_GOAL_MS)
                verdict = f"64 devices with the solver: fits {first}, does not fit {none}."
    lines.append("\n" + verdict if kept() else "\nWithout the extra `solver` these targets are not met.")
    return lines


def main() -> None:
    """Prints the section."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=40, metavar="N", help="problems per line (40)")
    print("\n".join(rows(parser.parse_args().count)))


if __name__ == "__main__":
    main()
