"""Plain-text pictures for the terminal: the grid of hosts and the timeline."""

from __future__ import annotations

from collections.abc import Iterable

SIDE = 4


def grid(title: str, job: Iterable[str], other: Iterable[str], dead: str) -> str:
    """The 4×4 grid of hosts: ``##`` the job's, ``==`` another job's, ``××`` dead, ``··`` free."""
    mine, theirs = set(job), set(other)
    lines = [f"  {title}:  ## the job   == the second job   ×× dead   ·· free"]
    for row in range(SIDE):
        cells = []
        for column in range(SIDE):
            host = f"host-{row * SIDE + column}"
            mark = "××" if host == dead else "##" if host in mine else "==" if host in theirs else "··"
            cells.append(f"{host:>8} {mark}")
        lines.append("  " + "".join(cells))
    return "\n".join(lines) + "\n"


def timeline(steps: list[tuple[str, float]], started: float, killed: float) -> str:
    """One line per step: seconds from the start, and from the death of the host where it is later."""
    lines = []
    for title, moment in steps:
        after = f"death + {moment - killed:5.2f} s" if killed and moment >= killed else ""
        lines.append(f"  {moment - started:6.2f} s  {after:<16}  {title}")
    return "\n".join(lines)
