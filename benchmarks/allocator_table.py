"""The allocation engine against the upstream oracle: one run, one page, one plot.

    python benchmarks/allocator_table.py [--oracle-source FOLDER] [--scenarios FILE] [--quick] [--write]

Builds the oracle (``go build`` in a scratch copy of ``--oracle-source``, default ``$DRAKKAR_SHARED/oracle``), makes the
scenarios with ``--scenarios`` (default ``$DRAKKAR_SHARED/corpus/bench/make.py``), asks both sides one after the other,
compares the answers and prints processor times and ratios. ``--write`` also makes ``docs/performance-allocator.md`` and
``.svg``. Takes some minutes; ``--quick`` leaves 20,000 nodes out. What is measured stands in ``allocator_cases.py``.

The oracle's figure is ``sequence``'s processor time per claim; it stops at the first fitting node (or behind as many
as a case wants), the cheapest it can be asked for. Of two runs of each side the better one counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import allocator_bestfit
import allocator_cases as cases
import allocator_irregular

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("DRAKKAR_SHARED", ROOT.parent / "shared"))
SIZES = (100, 1000, 5000, 20000)
#: Parts of the page that need no oracle and come from other files.
SECTIONS: tuple[Callable[[], list[str]], ...] = (allocator_irregular.rows, allocator_bestfit.rows)


class Bench:
    """Both sides and the scratch folder between them."""

    def __init__(self, scratch: Path, source: Path, generator: Path) -> None:
        self.scratch, self.generator = scratch, generator
        self.make = cases.maker(generator)
        folder = scratch / "oracle"
        shutil.copytree(source, folder)
        subprocess.run(["go", "build", "-o", "oracle", "."], cwd=folder, check=True)
        self.oracle = folder / "oracle"

    def file(self, scenario: cases.Scenario) -> Path:
        """The scenario as a file for the oracle."""
        path = self.scratch / "scenario.json"
        path.write_text(json.dumps(scenario, separators=(",", ":")))
        return path

    def ask(self, *arguments: str) -> dict[str, Any]:
        """One JSON answer of the oracle."""
        found = subprocess.run([str(self.oracle), *arguments], capture_output=True, check=True)
        return json.loads(found.stdout)

    def sequence(self, path: Path, found: int = 1) -> tuple[float, list[cases.Chosen]]:
        """Milliseconds per claim of the oracle, and what it chose."""
        answer = self.ask("sequence", "-results", "-feasible", str(found), str(path))
        chosen = [
            tuple(
                (one["pool"], one["device"])
                for each in step.get("allocations") or ()
                for one in each["devices"]["results"]
            )
            for step in answer["placements"]
        ]
        return 1e3 * answer["cpuSeconds"] / answer["steps"], chosen


def more(value: float, floor: float, goal: float) -> str:
    """Where a value stands that should be large."""
    if value >= goal:
        return f"goal {goal:,.0f} met"
    return f"floor {floor:,.0f} met, goal {goal:,.0f} missed" if value >= floor else f"**floor {floor:,.0f} missed**"


def less(value: float, floor: float, goal: float, unit: str) -> str:
    """Where a value stands that should be small."""
    if value <= goal:
        return f"goal {goal:g} {unit} met"
    if value <= floor:
        return f"floor {floor:g} {unit} met, goal {goal:g} missed"
    return f"**floor {floor:g} {unit} missed**"


class Page:
    """The page as it comes to be."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, *lines: str) -> None:
        """Adds lines and shows them."""
        self.lines += lines
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()


def decisions(bench: Bench, page: Page) -> None:
    """One decision of each kind."""
    page.add(
        "## One decision\n",
        "| case | ours | policy `drakkar` | upstream | ratio | target |",
        "| --- | --- | --- | --- | --- | --- |",
    )
    firsts: list[str] = []
    for case in cases.CASES:
        scenario = case.build(bench.make)
        path = bench.file(scenario)
        mine: list[cases.Stream] = []
        theirs: list[float] = []
        for _ in range(case.rounds):
            mine.append(cases.stream(scenario, "upstream", case.found))
            took, chosen = bench.sequence(path, case.found)
            theirs.append(took)
            if mine[-1].chosen != chosen:
                raise SystemExit(f"{case.title}: other devices than upstream's were chosen")
        other = cases.stream(scenario, "drakkar", case.found)
        best, took = min(run.rest for run in mine), min(theirs)
        ratio = took / best
        page.add(
            f"| {case.title} | {1e3 * best:.0f} µs | {1e3 * other.rest:.0f} µs | {1e3 * took:,.0f} µs | {ratio:,.0f} "
            f"| {more(ratio, case.floor, case.goal)} |"
        )
        first, index = min(run.first for run in [*mine, other]), min(run.index for run in [*mine, other])
        firsts.append(f"| {case.title} | {index:.0f} ms | {first:.0f} ms | {less(first, 1000, 300, 'ms')} |")
    page.add(
        "\n## The first claim of a template, and the index\n",
        "The first claim of its kind: every selector reads every device, every node is looked at.\n",
        "| case | objects read into the index | first claim | target |",
        "| --- | --- | --- | --- |",
        *firsts,
    )
    found = cases.index(bench.make.gpu_cluster(nodes=5000, claims=1))
    page.add(
        f"\n5,000 decoded slices of 8 devices and their nodes entered: {found.build:.2f} s "
        f"({less(found.build, 1, 0.3, 's')}). One slice replaced, until a decision has looked at it: "
        f"{found.replaced:.2f} ms ({less(found.replaced, 2, 0.3, 'ms')})."
    )


def sizes(bench: Bench, page: Page, quick: bool) -> list[tuple[int, float, float]]:
    """Against the number of nodes; gives (nodes, ours, theirs) in milliseconds."""
    page.add(
        "\n## Against the number of nodes (one GPU)\n",
        "| nodes | ours | upstream | ratio | exact answers for all nodes, per node |",
        "| --- | --- | --- | --- | --- |",
    )
    points: list[tuple[int, float, float]] = []
    exact: list[float] = []
    for nodes in SIZES[:3] if quick else SIZES:
        scenario = bench.make.gpu_cluster(nodes=nodes, claims=60)
        mine = min(cases.stream(scenario, "upstream").rest for _ in range(2))
        theirs, _ = bench.sequence(bench.file(scenario))
        exact.append(cases.exact_everywhere(scenario))
        points.append((nodes, mine, theirs))
        page.add(f"| {nodes:,} | {1e3 * mine:.0f} µs | {theirs:.2f} ms | {theirs / mine:,.0f} | {exact[-1]:.1f} µs |")
    smallest, largest = points[0], points[-1]
    fabric = [1e3 * cases.stream(cases.fabric(bench.make, nodes), "drakkar").rest for nodes in (SIZES[0], SIZES[2])]
    beside = cases.what_if(bench.make.gpu_cluster(nodes=5000, claims=60))
    page.add(
        f"\nFrom {smallest[0]:,} to {largest[0]:,} nodes: {largest[1] / smallest[1]:.2f} times "
        f"(floor: below 2; {'met' if largest[1] < 2 * smallest[1] else '**missed**'}), exact answers per node "
        f"{exact[-1] / exact[0]:.2f} times ({'met' if exact[-1] < 2 * exact[0] else '**missed**'}).",
        f"One of 400 devices that all nodes can have: {fabric[0]:.0f} µs at {SIZES[0]:,} nodes, {fabric[1]:.0f} µs at "
        f"{SIZES[2]:,}.",
        f"What if: a claim decided beside the one before, nothing booked, 5,000 nodes of 8 GPUs: {beside:.0f} µs.",
        "Exact answers are asked for a template that is new to an index in use; the search runs once for nodes that "
        "are alike.",
    )
    return points


def streams(bench: Bench, page: Page) -> None:
    """Pods per second."""
    page.add(
        "\n## Pods per second\n",
        "One process, 5,000 nodes, each claim decided and booked; 1,000 claims behind the first, 60 for upstream.\n",
        "| case | ours | upstream | target |",
        "| --- | --- | --- | --- |",
    )
    for title, build, arguments, floor, goal in (
        ("(a) one GPU", bench.make.gpu_cluster, {}, 5000, 20_000),
        ("(c) MIG 3g.40gb", bench.make.mig_cluster, {"gpus": 1, "mix": "3g.40gb"}, 2000, 6000),
    ):
        scenario = build(nodes=5000, claims=1001, **arguments)
        mine = max(1e3 / cases.stream(scenario, "drakkar").mean for _ in range(2))
        scenario["claims"] = scenario["claims"][:60]
        theirs, _ = bench.sequence(bench.file(scenario))
        page.add(f"| {title} | {mine:,.0f} | {1e3 / theirs:,.0f} | {more(mine, floor, goal)} |")


def small(bench: Bench, page: Page) -> None:
    """One node, one call."""
    page.add(
        "\n## One small node, one call\n",
        "No scale to gain from. *Known template*: a later claim of its kind, after a change on the node. "
        "*New template*: a claim spec never seen, on an inventory in use. *All new*: an inventory just filled. "
        "Compiled expressions are known to both sides; upstream starts anew each time.",
        "Target: a known template is not slower than upstream; goal: twice as fast.\n",
        "| case | known template | new template | all new | upstream | target |",
        "| --- | --- | --- | --- | --- | --- |",
    )
    gpu = bench.make.gpu_cluster(nodes=2, claims=1)
    gpu["nodes"], gpu["resourceSlices"] = gpu["nodes"][1:], gpu["resourceSlices"][1:]
    unseen: list[float] = []
    fresh: list[float] = []
    for title, scenario in (
        ("one GPU of 8", gpu),
        ("twice GPU and NIC on one root", bench.make.alignment(nodes=1, claims=1)),
        ("MIG partition of 20", bench.make.mig_cluster(nodes=1, gpus=1, claims=1)),
    ):
        mine = cases.small(scenario)
        theirs = bench.ask("bench", "-n", "2000", str(bench.file(scenario)))["cpuNs"] / 1e3
        page.add(
            f"| {title} | {mine.known:.0f} µs | {mine.template:.0f} µs | {mine.fresh:.0f} µs | {theirs:.0f} µs "
            f"| {_against(mine.known, theirs)} |"
        )
        unseen.append(mine.template / theirs)
        fresh.append(mine.fresh / theirs)
    page.add(
        f"\nThe time for a new template is up to {max(unseen):.1f} times upstream's, that for an inventory just filled "
        f"up to {max(fresh):.1f} times."
    )


def _against(mine: float, theirs: float) -> str:
    if 2 * mine <= theirs:
        return "goal met"
    return "floor met, goal missed" if mine <= theirs else "**floor missed**"


def impossible(bench: Bench, page: Page) -> None:
    """What does not fit."""
    scenario = bench.make.gpu_cluster(nodes=5000, claims=20, count=9)
    mine = cases.stream(scenario, "drakkar")
    page.add(
        "\n## What does not fit\n",
        f"Nine GPUs on nodes of eight, 5,000 nodes: {1e3 * mine.rest:.0f} µs "
        f"({less(1e3 * mine.rest, 1000, 20, 'µs')}), {mine.first:.0f} ms the first time, reason included.\n",
        "Cases of one node on which upstream's search grows exponentially (it is given two seconds):\n",
        "| case | ours | upstream | target |",
        "| --- | --- | --- | --- |",
    )
    for name in cases.HARD:
        scenario = bench.make.MAKERS[f"hard-{name}"]()
        took, refused = cases.impossible(scenario)
        if not refused:
            raise SystemExit(f"hard-{name} fits, which it must not")
        found = bench.ask("bench", "-n", "1", "-timeout", "2s", str(bench.file(scenario)))
        theirs = "no answer" if "timeout" in found["classes"] else f"{found['cpuNs'] / 1e6:.1f} ms"
        page.add(f"| hard-{name} | {took:.2f} ms | {theirs} | {less(took, 20, 3, 'ms')} |")


def memory(bench: Bench, page: Page) -> None:
    """Memory of a large fleet."""
    found = cases.memory_apart(bench.generator)
    page.add(
        "\n## Memory\n",
        f"100,000 devices in 12,500 slices: {found['objects']:.0f} MB of decoded objects, and on top of them "
        f"{found['index']:.0f} MB of index ({less(found['index'], 150, 60, 'MB')}). The first decision adds "
        f"{found['decision']:.0f} MB.",
    )


def plot(points: list[tuple[int, float, float]]) -> str:
    """Both curves on logarithmic axes."""
    from math import log10

    def x(nodes: float) -> float:
        return 80 + 170 * (log10(nodes) - 2)

    def y(milliseconds: float) -> float:
        return 60 + 60 * (3 - log10(milliseconds))

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 440" font-family="sans-serif" font-size="13">',
        '<rect width="640" height="440" fill="white"/>',
        '<text x="80" y="30" font-size="15">Processor time of one decision against the number of nodes</text>',
    ]
    for power in range(-2, 4):
        parts.append(f'<line x1="80" y1="{y(10**power)}" x2="500" y2="{y(10**power)}" stroke="#ddd"/>')
        parts.append(f'<text x="72" y="{y(10**power) + 4}" text-anchor="end">{10.0**power:g} ms</text>')
    for nodes, _, _ in points:
        parts.append(f'<text x="{x(nodes):.0f}" y="385" text-anchor="middle">{nodes:,}</text>')
    parts.append('<text x="290" y="412" text-anchor="middle">nodes (8 GPUs each)</text>')
    for column, colour, label in ((1, "#0a7d4b", "Drakkar"), (2, "#b3401f", "upstream")):
        places = [(x(point[0]), y(point[column])) for point in points]
        path = " ".join(f"{left:.1f},{top:.1f}" for left, top in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{left:.1f}" cy="{top:.1f}" r="3.5" fill="{colour}"/>' for left, top in places]
        parts.append(f'<text x="{places[-1][0] + 12:.0f}" y="{places[-1][1] + 4:.0f}" fill="{colour}">{label}</text>')
    return "\n".join([*parts, "</svg>", ""])


HEAD = """# Speed of the allocation engine

Ours and upstream's allocator, measured in one run on one machine; processor time, garbage collection included.
Python {python} ({machine}), upstream `{upstream}`. Repeat it with

    python benchmarks/allocator_table.py --write

*Ours* is snapshot, all feasible nodes, exact answer on the first of them, and booking, under policy `upstream`; nodes
and devices must be the same as upstream's, or the run stops. It is the median of the claims behind the first.
*Upstream* is the first fitting node in list order, mean per claim. *Floor* and *goal* are the targets the engine was
built for. The fleets are uniform: nodes that are equal up to names share what is found out about one of them, so most
claims behind the first need no search. The garbage collector's first look at a new index is not counted.

![Time against nodes](performance-allocator.svg)

"""


def main() -> int:
    """Runs what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--oracle-source", type=Path, default=SHARED / "oracle")
    parser.add_argument("--scenarios", type=Path, default=SHARED / "corpus/bench/make.py")
    parser.add_argument("--quick", action="store_true", help="leave 20,000 nodes out")
    parser.add_argument("--write", action="store_true", help="write docs/performance-allocator.md and .svg")
    options = parser.parse_args()
    started = time.monotonic()
    page = Page()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch), options.oracle_source, options.scenarios)
        version = subprocess.run([str(bench.oracle), "version"], capture_output=True, check=True, text=True).stdout
        decisions(bench, page)
        points = sizes(bench, page, options.quick)
        streams(bench, page)
        small(bench, page)
        impossible(bench, page)
        memory(bench, page)
    for section in SECTIONS:
        page.add(*section())
    load, cores = os.getloadavg()[1], os.cpu_count()
    page.add(
        f"\nThe run took {(time.monotonic() - started) / 60:.0f} minutes; the machine has {cores} cores and had a load "
        f"of {load:.1f} at the end."
    )
    if options.write:
        head = HEAD.format(python=platform.python_version(), machine=platform.machine(), upstream=version.strip())
        (ROOT / "docs/performance-allocator.md").write_text(head + "\n".join(page.lines) + "\n")
        (ROOT / "docs/performance-allocator.svg").write_text(plot(points))
    return 0


if __name__ == "__main__":
    sys.exit(main())
