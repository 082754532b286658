"""``drakkar demo mesh``: four nodes with four GPUs each on this machine, in one NVLink domain and without it.

This process checks what the machine has and starts the story (`drakkar.cli.demo_mesh_story`) in namespaces of mounts
and processes of its own. So nothing outlives it: however the story ends, the kernel ends its processes and undoes its
mounts and networks. The story is told to stop when its standard input closes, which also happens when this process is
killed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

from drakkar.api.errors import EnvironmentProblem
from drakkar.cli.outputs import check_writable

#: The machine's own Python, which containers of image ``host`` have.
PYTHON = "/usr/bin/python3"
#: Program → Debian package.
_PROGRAMS = {
    "runc": "runc",
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mpirun": "openmpi-bin",
}
#: Module of the machine's own Python → Debian package.
_MODULES = {"mpi4py": "python3-mpi4py", "websocket": "python3-websocket"}
#: Longest path of the demo's folder: names of sockets below it, which have 61 bytes more, may have 105.
_LONGEST = 44
#: Seconds for the story to end when it is told to, before it is killed.
_PATIENCE = 30.0


def run(args: argparse.Namespace) -> int:
    """Run the story; 0 only if every pair was as the claims say."""
    check()
    check_writable("--json", args.json)
    folder = Path(tempfile.mkdtemp(prefix="drakkar-"))
    try:
        if len(os.fsencode(folder)) > _LONGEST:
            raise EnvironmentProblem(f"demo mesh: {folder.parent} is too long a path for sockets; set TMPDIR=/tmp")
        return _supervise(folder, args)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check() -> None:
    """Raises EnvironmentProblem that names all that is missing, and the cure."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise EnvironmentProblem(
            "demo mesh: makes containers and networks, which takes Linux and root; use sudo, or `drakkar demo tpu`, "
            "which needs neither"
        )
    if importlib.util.find_spec("grpc") is None:
        raise EnvironmentProblem("demo mesh: needs the package grpcio; pip install 'drakkar[node]'")
    missing = {program: package for program, package in _PROGRAMS.items() if shutil.which(program) is None}
    # Seen from a container, which has none of the places where this process may find more.
    for module, package in _MODULES.items():
        if subprocess.run([PYTHON, "-c", f"import {module}"], check=False, capture_output=True).returncode:
            missing[f"{PYTHON} -m {module}"] = package
    if missing:
        packages = " ".join(dict.fromkeys(missing.values()))
        raise EnvironmentProblem(
            f"demo mesh: {', '.join(missing)} missing; on Debian or Ubuntu: apt-get install --no-install-recommends "
            f"{packages}"
        )
    words = subprocess.run(["mpirun", "--version"], check=False, capture_output=True, text=True).stdout.split()
    version = words[3] if words[:2] == ["mpirun", "(Open"] and len(words) > 3 else "another MPI"
    if not version.startswith("4."):
        raise EnvironmentProblem(
            f"demo mesh: starts its ranks with Open MPI 4, and mpirun is {version}; use Debian 12 or Ubuntu 24.04"
        )


def _supervise(folder: Path, args: argparse.Namespace) -> int:
    options = {"folder": str(folder), "megabytes": args.megabytes, "patience": args.patience, "hold": args.hold}
    options |= {"json": os.path.abspath(args.json) if args.json else None, "logs": None}
    if args.logs:
        options["logs"] = os.path.abspath(args.logs)
    command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL", "--"]
    command += [sys.executable, "-m", "drakkar.cli.demo_mesh_story", json.dumps(options)]
    # In a group of its own, since a terminal sends Ctrl-C to all of one group.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    stopped = False
    late = threading.Timer(_PATIENCE, process.kill)
    late.daemon = True

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        assert process.stdin is not None
        if stopped:
            process.kill()
        else:
            stopped = True
            process.stdin.close()
            late.start()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = process.wait()
    finally:
        late.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
    # One that had to be killed says nothing.
    return 130 if stopped and code > 130 else code
