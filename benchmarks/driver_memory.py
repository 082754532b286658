"""Resident memory of our drivers as processes: registered at an agent, published, and asked a few hundred times.

    python benchmarks/driver_memory.py [DRIVER …]

Hardware is the fake one, except for `cpu`, which reads this machine. `tutorial` is the driver of the tutorial. Figures
are VmRSS and its part that is the process's own (RssAnon); shared libraries are the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from drakkar.api.kinds import LEASE
from drakkar.plugin import wire
from drakkar.plugin.grpc_client import SocketClient
from drakkar.plugin.sockets import dra_socket
from tests.support.agents import NODE, Cluster, cluster
from tests.support.eventually import eventually
from tests.support.shared import ROOT

#: Seconds for a driver to be registered or, without sockets, to lead.
PATIENCE = 60.0
#: Calls of the kubelet before memory is read.
CALLS = 300


def commands(folder: Path) -> dict[str, tuple[str, list[str]]]:
    """Driver → its name (empty: it serves no node) and its command."""
    run = ["-m", "drakkar.cli", "driver", "run"]
    return {
        "tutorial": ("hello.example.com", [str(ROOT / "docs" / "tutorial" / "hello_driver.py")]),
        "example": ("example.drakkar.dev", [*run, "example"]),
        "gpu": ("gpu.drakkar.dev", [*run, "gpu", "--fake", "h100", "--mig", "dynamic"]),
        "nic": ("nic.drakkar.dev", [*run, "nic", "--fake"]),
        "cpu": ("cpu.drakkar.dev", [*run, "cpu"]),
        "computedomain": (
            "computedomain.drakkar.dev",
            [*run, "computedomain", "--clique", "c", "--fake-fabric", str(folder / "fabric")],
        ),
        "tpu": ("", [*run, "tpu"]),
    }


def memory(pid: int) -> tuple[float, float]:
    """Resident memory of a process, and how much of it is its own, in MB."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    whole, own = (int(lines[key].split()[0]) * 1024 / 1e6 for key in ("VmRSS", "RssAnon"))
    return whole, own


@contextlib.contextmanager
def _ended(process: asyncio.subprocess.Process) -> Iterator[None]:
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)


async def measure(site: Cluster, folder: Path, driver: str) -> tuple[float, float]:
    """Start a driver, let it work a little, and read its memory."""
    name, command = commands(folder)[driver]
    config = folder / "kubeconfig.json"
    # As in a pod, where no YAML is read.
    config.write_text(json.dumps(yaml.safe_load(site.kubeconfig.read_text())))
    flags = ["--kubeconfig", str(config)]
    if name:
        flags += ["--node-name", NODE, "--kubelet-root", str(site.root), "--cdi-dir", str(site.root / "cdi")]
    log = folder / f"{driver}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, *flags, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, stderr=output
        )
    with _ended(process):
        if name:
            assert site.agent is not None
            plugins = site.agent.plugins
            await eventually(lambda: asyncio.sleep(0, plugins.drivers()), lambda found: name in found, timeout=PATIENCE)
            async with SocketClient(dra_socket(site.root / "plugins" / name)) as kubelet:
                for number in range(CALLS):
                    await kubelet.prepare(wire.DRA_V1, [wire.Claim("default", f"uid-{number}", f"c{number}")])
        else:
            await eventually(
                lambda: site.client.list(LEASE, field_selector="metadata.name=tpu-driver"),
                lambda found: found.items,
                timeout=PATIENCE,
            )
        await asyncio.sleep(2)
        found = memory(process.pid)
    await process.wait()
    return found


async def measured(folder: Path, root: Path, drivers: list[str]) -> dict[str, tuple[float, float]]:
    """Driver → its memory in MB, whole and own."""
    async with cluster(folder, root) as site:
        await site.start_agent()
        return {driver: await measure(site, folder, driver) for driver in drivers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drivers", nargs="*", metavar="DRIVER", help=f"of {', '.join(commands(Path()))}; default: all")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dk") as root, tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measured(Path(folder), Path(root), args.drivers or [*commands(Path())]))
    print(f"{'driver':<14} {'RSS, MB':>8} {'own, MB':>8}")
    for driver, (whole, own) in found.items():
        print(f"{driver:<14} {whole:>8.1f} {own:>8.1f}")


if __name__ == "__main__":
    main()
