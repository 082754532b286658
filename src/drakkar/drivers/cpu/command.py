"""`drakkar driver run cpu`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from drakkar.api.errors import UsageError
from drakkar.client import Client
from drakkar.driver.command import add_node_arguments, run_command, serve
from drakkar.drivers.cpu.driver import MODES, CpuDriver
from drakkar.drivers.cpu.topology import parse_cpus, read_topology


def main(argv: Sequence[str] | None = None) -> int:
    """Run the driver for processors on one node."""
    parser = argparse.ArgumentParser(
        prog="drakkar driver run cpu", description="Processors that no other claim gets, and memory of a NUMA node."
    )
    parser.add_argument(
        "--mode", choices=MODES, default="grouped", help="a device per NUMA node (default), or per processor"
    )
    parser.add_argument(
        "--reserved", default="", metavar="LIST", help="processors that are never handed out, such as 0-1,32-33"
    )
    parser.add_argument(
        "--no-node-allocatable",
        action="store_true",
        help="do not charge claims to the node's cpu and memory (needs gate DRANodeAllocatableResources)",
    )
    add_node_arguments(parser)
    return run_command(parser, _work, argv)


async def _work(client: Client, args: argparse.Namespace) -> None:
    try:
        reserved = parse_cpus(args.reserved)
    except ValueError as error:
        raise UsageError(f"--reserved {args.reserved}: {error}; write a list such as 0-1,32-33") from error
    driver = CpuDriver(
        read_topology(), mode=args.mode, reserved=reserved, node_allocatable=not args.no_node_allocatable
    )
    await serve(driver, client, args)
