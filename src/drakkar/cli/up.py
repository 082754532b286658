"""``drakkar up``: the embedded plane in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import signal
import time

from drakkar.cli import process
from drakkar.cli.logs import configure
from drakkar.cli.plane import Plane, PlaneOptions, data_folder
from drakkar.cli.running import announced


def run(args: argparse.Namespace) -> int:
    """Start, print how to reach it, and run until interrupted."""
    configure("WARNING")
    return process.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    started = time.monotonic()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    with data_folder(args.data) as data:
        async with Plane(PlaneOptions.of(args, data, args.fleet)) as plane:
            with announced(plane.kubeconfig):
                print(f"drakkar is up at {plane.url} after {time.monotonic() - started:.1f} s")
                print(f"state: {data}{'' if args.data else ' (temporary; keep it with --data DIR)'}")
                for name, pid in sorted(plane.own_processes.items()):
                    print(f"hollow node {name}: process {pid}")
                print(f"\n  export KUBECONFIG={plane.kubeconfig}\n\nCtrl-C stops it.", flush=True)
                await plane.until(stop)
                print("stopping ...", flush=True)
    return 0
