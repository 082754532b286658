"""The processors of a machine, read from `/sys/devices/system`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import msgspec


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    """One logical processor; `kind`: standard, performance or efficiency; `cache`: who shares the last one."""

    id: int
    core: tuple[int, int]
    socket: int
    numa: int
    cache: str = ""
    kind: str = "standard"


class Topology(msgspec.Struct, frozen=True):
    """Processors in the order of their numbers, memory of each NUMA node in MiB."""

    cpus: tuple[Cpu, ...]
    memory: dict[int, int] = {}


def read_topology(system: Path = Path("/sys/devices")) -> Topology:
    """What this machine has; processors that are offline are left out. Raises OSError."""
    base = system / "system/cpu"
    performance = _listed(system / "cpu_core/cpus")
    efficiency = _listed(system / "cpu_atom/cpus")
    nodes = {
        int(folder.name.removeprefix("node")): parse_cpus((folder / "cpulist").read_text())
        for folder in sorted((system / "system/node").glob("node[0-9]*"))
    }
    numa = {cpu: node for node, cpus in nodes.items() for cpu in cpus}
    found: list[Cpu] = []
    for number in sorted(parse_cpus((base / "online").read_text())):
        folder = base / f"cpu{number}"
        socket = _number(folder / "topology/physical_package_id")
        kind = "performance" if number in performance else "efficiency" if number in efficiency else "standard"
        found.append(
            Cpu(
                id=number,
                core=(socket, _number(folder / "topology/core_id")),
                socket=socket,
                numa=numa.get(number, 0),
                cache=_last_cache(folder),
                kind=kind,
            )
        )
    return Topology(tuple(found), {node: _memory(system / f"system/node/node{node}/meminfo") for node in nodes})


def parse_cpus(text: str) -> set[int]:
    """The kernel's list form: `0-3,8`. Raises ValueError."""
    found: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return found


def format_cpus(cpus: Iterable[int]) -> str:
    """The shortest list form."""
    runs: list[list[int]] = []
    for number in sorted(set(cpus)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def choose(free: Sequence[Cpu], count: int) -> list[Cpu] | None:
    """`count` processors close together: whole cores under as few caches as possible; None when there are too few.

    Whole free cores come first, so that claims share none; of caches the fullest that suffices, so that large
    claims find whole ones later.
    """
    if len(free) < count:
        return None
    groups: dict[str, list[Cpu]] = {}
    for cpu in free:
        groups.setdefault(cpu.cache, []).append(cpu)
    ordered = sorted(groups.values(), key=lambda group: (len(group) < count, _distance(len(group), count), group[0].id))
    chosen: list[Cpu] = []
    for group in ordered:
        chosen += _whole_cores_first(group, free)[: count - len(chosen)]
        if len(chosen) == count:
            break
    return chosen


def _distance(size: int, count: int) -> int:
    return size - count if size >= count else -size


def _whole_cores_first(group: Sequence[Cpu], free: Collection[Cpu]) -> list[Cpu]:
    siblings: dict[tuple[int, int], int] = {}
    for cpu in free:
        siblings[cpu.core] = siblings.get(cpu.core, 0) + 1
    return sorted(group, key=lambda cpu: (-siblings[cpu.core], cpu.core, cpu.id))


def _last_cache(folder: Path) -> str:
    levels = sorted((_number(index / "level"), index) for index in (folder / "cache").glob("index[0-9]*"))
    return (levels[-1][1] / "shared_cpu_list").read_text().strip() if levels else ""


def _memory(path: Path) -> int:
    for line in path.read_text().splitlines():
        if "MemTotal:" in line:
            return int(line.split()[-2]) // 1024
    return 0


def _listed(path: Path) -> set[int]:
    return parse_cpus(path.read_text()) if path.exists() else set()


def _number(path: Path) -> int:
    return int(path.read_text())
