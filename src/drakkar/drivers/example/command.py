"""`drakkar driver run example`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from drakkar.client import Caches, Client
from drakkar.client.clock import SystemClock
from drakkar.client.runner import Runner
from drakkar.driver.command import add_node_arguments, lead, run_command, serve
from drakkar.drivers.example.binding import Attacher
from drakkar.drivers.example.driver import PROFILES, ExampleDriver


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example driver with one profile."""
    parser = argparse.ArgumentParser(
        prog="drakkar driver run example",
        description="A driver without hardware, one profile per way to model devices.",
    )
    parser.add_argument("--profile", choices=tuple(PROFILES), default="plain", help="what there is (default: plain)")
    parser.add_argument(
        "--faults", type=Path, metavar="DIR", help="a file there, named after a device, makes it sick: `Unhealthy why`"
    )
    add_node_arguments(parser)
    return run_command(parser, _work, argv)


async def _work(client: Client, args: argparse.Namespace) -> None:
    if args.cluster and args.profile == "binding-conditions":
        await lead(Attacher(SystemClock()).name, client, lambda: _attach(client), args.metrics_address)
    else:
        await serve(ExampleDriver(args.profile, args.faults), client, args)


async def _attach(client: Client) -> None:
    clock = SystemClock()
    caches = Caches(client)
    try:
        await Runner(client, caches, Attacher(clock), clock).run()
    finally:
        await caches.stop()
