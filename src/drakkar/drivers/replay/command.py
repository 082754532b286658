"""`drakkar driver run replay`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from drakkar.api.errors import UsageError
from drakkar.api.resource import v1
from drakkar.client import Client
from drakkar.driver.command import add_node_arguments, run_command, serve
from drakkar.drivers.replay.driver import ReplayDriver
from drakkar.drivers.replay.recorded import drivers_of, nodes_of, read_slices


def main(argv: Sequence[str] | None = None) -> int:
    """Stand for a driver by its recorded slices."""
    parser = argparse.ArgumentParser(
        prog="drakkar driver run replay",
        description="No hardware: stand for any driver by the ResourceSlices that it once published. "
        "Record them with kubectl get resourceslices -o yaml, or write them by hand.",
    )
    parser.add_argument(
        "--slices", type=Path, required=True, metavar="FILE", help="ResourceSlices, YAML or JSON, of any served version"
    )
    parser.add_argument(
        "--driver", default="", metavar="NAME", help="the driver to stand for, when FILE has slices of several"
    )
    add_node_arguments(parser)
    return run_command(parser, _work, argv)


async def _work(client: Client, args: argparse.Namespace) -> None:
    slices = read_slices(args.slices)
    node = "" if args.cluster else args.node_name
    await serve(_driver(args.slices, slices, args.driver, node, args.cluster), client, args)


def _driver(path: Path, slices: Sequence[v1.ResourceSlice], name: str, node: str, cluster: bool) -> ReplayDriver:
    """Raises UsageError that says what the file has instead."""
    names = drivers_of(slices)
    if (name or names[0]) not in names or (not name and len(names) > 1):
        asked = f"--driver {name}" if name else "no --driver"
        raise UsageError(f"{asked}: {path} has slices of {', '.join(names)}; choose one by --driver")
    driver = ReplayDriver(name or names[0], slices, node)
    if cluster and not driver.cluster_pools():
        raise UsageError(f"--cluster: all slices of {driver.name} in {path} belong to nodes; leave --cluster out")
    if node and not driver.pools(node) and not driver.cluster_pools():
        raise UsageError(
            f"--node-name {node}: {path} has no slices of {driver.name} for this node, but for "
            f"{', '.join(nodes_of(driver.name, slices))}; give the node one of these names"
        )
    return driver
