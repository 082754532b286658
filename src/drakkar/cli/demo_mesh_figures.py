"""What the mesh demo makes of its measurements: tables, medians, and whether they are as the claims say. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import msgspec

#: Copies between nodes are at least so fast within a domain, against those within a node; only medians are steady on a
#: small machine (spec/node.md 4).
UNIFORM = 0.5
#: And at most so fast without one: over links of 1 Gbit/s.
SLOW = 0.05


class Access(msgspec.Struct, frozen=True):
    """What a container could do with the domain's memory, its channel, a node made by itself; empty: it could."""

    fabric: str
    channel: str
    forged: str


class Rank(msgspec.Struct, frozen=True):
    """Where a rank ran, and on which GPU."""

    pod: str
    node: str
    gpu: int
    uuid: str
    access: Access


class Measurement(msgspec.Struct, frozen=True):
    """One run: rows are senders, columns receivers. GB/s, microseconds; ``way`` is self, map or mpi."""

    ranks: list[Rank]
    bytes: int
    way: list[list[str]]
    bandwidth: list[list[float]]
    latency: list[list[float]]

    def pairs(self, figures: Sequence[Sequence[float]], *, across: bool) -> list[float]:
        """Figures of pairs on different nodes (``across``) or of different GPUs of one node."""
        return [
            figures[i][j]
            for i, sender in enumerate(self.ranks)
            for j, receiver in enumerate(self.ranks)
            if i != j and (sender.node != receiver.node) == across
        ]

    @property
    def ratio(self) -> float:
        """Median bandwidth between nodes against that within nodes."""
        return median(self.pairs(self.bandwidth, across=True)) / median(self.pairs(self.bandwidth, across=False))


def table(measurement: Measurement, figures: Sequence[Sequence[float]]) -> str:
    """Sender by receiver, two digits each; nodes are set apart."""
    names = [f"{_node(measurement, rank)}.{rank.gpu}" for rank in measurement.ranks]
    lines = ["     " + _line(measurement, names)]
    for number, row in enumerate(figures):
        if number and measurement.ranks[number].node != measurement.ranks[number - 1].node:
            lines.append("")
        cells = [short(value) if i != number or value else "-" for i, value in enumerate(row)]
        lines.append(f"{names[number]:>4} " + _line(measurement, cells))
    return "\n".join(lines) + "\n"


def short(value: float) -> str:
    """At most three characters with two digits: 0.11 is ``.11``, 12000 is ``12k``."""
    for limit, text in (
        (0.995, lambda v: f"{v:.2f}"[1:]),
        (9.95, lambda v: f"{v:.1f}"),
        (999.5, lambda v: f"{v:.0f}"),
    ):
        if value < limit:
            return text(value)
    return f"{value / 1000:.0f}k"


def summary(measurement: Measurement) -> str:
    """Medians within nodes and between them."""
    parts: list[str] = []
    for across, words in ((False, "within a node"), (True, "between nodes")):
        speed = median(measurement.pairs(measurement.bandwidth, across=across))
        time = median(measurement.pairs(measurement.latency, across=across))
        parts.append(f"{words} {speed:.3g} GB/s, {time:.2g} µs")
    return f"medians: {'; '.join(parts)}; between to within {measurement.ratio:.3g}"


def judge(within: Measurement, without: Measurement) -> list[str]:
    """What is not as the claims say; empty when all is."""
    faults: list[str] = []

    def check(name: str, run: Measurement, wrong: Callable[[int, int], bool], words: str) -> None:
        size = range(len(run.ranks))
        pairs = [f"{i} to {j}" for i in size for j in size if i != j and wrong(i, j)]
        if pairs:
            faults.append(f"{name}: {len(pairs)} pairs {words}: ranks {', '.join(pairs[:4])}")

    check("with the domain", within, lambda i, j: within.way[i][j] != "map", "could not map each other's memory")
    check(
        "without it",
        without,
        lambda i, j: (without.way[i][j] == "map") != (without.ranks[i].node == without.ranks[j].node),
        "had the memory of another node, or not that of their own",
    )
    if within.ratio < UNIFORM:
        faults.append(f"with the domain: between nodes only {within.ratio:.2g} of the speed within, below {UNIFORM:g}")
    if without.ratio > SLOW:
        faults.append(f"without it: between nodes {without.ratio:.2g} of the speed within, above {SLOW:g}")
    for rank in within.ranks:
        # A node without a driver behind it, that may be opened: "no such device or address".
        if rank.access.fabric or rank.access.channel != _NO_DRIVER:
            faults.append(f"with the domain: {rank.pod}: /fabric {rank.access.fabric}, channel {rank.access.channel}")
    for rank in without.ranks:
        if not (rank.access.fabric and rank.access.channel and rank.access.forged):
            faults.append(f"without it: {rank.pod} reached the fabric: {msgspec.to_builtins(rank.access)}")
    return faults


_NO_DRIVER = "No such device or address"


def measurement_of(document: Any) -> Measurement:
    """The JSON document that rank 0 prints. Raises msgspec.ValidationError."""
    return msgspec.convert(document, Measurement)


def _node(measurement: Measurement, rank: Rank) -> int:
    return list(dict.fromkeys(other.node for other in measurement.ranks)).index(rank.node)


def _line(measurement: Measurement, cells: Sequence[str]) -> str:
    parts: list[str] = []
    for number, cell in enumerate(cells):
        if number and measurement.ranks[number].node != measurement.ranks[number - 1].node:
            parts.append(" ")
        parts.append(f"{cell:>3} ")
    return "".join(parts).rstrip()
