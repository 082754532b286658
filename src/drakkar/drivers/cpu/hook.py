"""A CDI hook (`createRuntime`) that puts a container on its processors: writes the cpuset of its cgroup.

Run by the container runtime with the container's state on standard input. Only the standard library: it starts for
every container.
"""

import argparse
import json
import sys
from pathlib import Path


def main(argv: list[str] | None = None, *, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns 1, and the runtime gives the container up, when the cpuset cannot be set."""
    parser = argparse.ArgumentParser(prog="drakkar-cpuset", description="put a container on processors")
    parser.add_argument("--cpus", required=True, help="list form, such as 2-5,8")
    parser.add_argument("--mems", default="", help="NUMA nodes to take memory from")
    args = parser.parse_args(argv)
    pid = json.load(sys.stdin)["pid"]
    try:
        folder = _folder((proc / str(pid) / "cgroup").read_text(), cgroups)
        # Memory first: a cgroup without NUMA nodes takes no processors (version 1).
        for name, value in (("cpuset.mems", args.mems), ("cpuset.cpus", args.cpus)):
            if value:
                _join(folder, name, value, cgroups)
    except (OSError, ValueError) as error:
        print(f"drakkar-cpuset: container {pid} is not put on processors {args.cpus}: {error}", file=sys.stderr)
        return 1
    return 0


def _folder(listing: str, cgroups: Path) -> Path:
    """The container's cgroup with a cpuset: version 2's only one, or that of the controller of version 1."""
    unified = ""
    for line in listing.splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpuset" in controllers.split(","):
            return cgroups / "cpuset" / path.lstrip("/")
        if not controllers:
            unified = path
    if not unified:
        raise ValueError("its cgroup has no cpuset controller")
    return cgroups / unified.lstrip("/")


def _join(folder: Path, name: str, value: str, cgroups: Path) -> None:
    """Several devices of one container add up: what an earlier hook wrote stays."""
    marker = folder / name
    if not marker.exists():
        raise ValueError(f"{marker} does not exist; is the cpuset controller enabled for it?")
    parent = (folder.parent / name).read_text().strip() if folder.parent != cgroups else ""
    before = marker.read_text().strip()
    # What is inherited is not a choice: a fresh cgroup is empty (version 2) or equal to its parent (version 1).
    mine = "" if before in ("", parent) else before
    marker.write_text(f"{mine},{value}" if mine else value)


if __name__ == "__main__":
    sys.exit(main())
