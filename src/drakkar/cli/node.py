"""``drakkar node …``: faults of hollow nodes, and hollow nodes in a process of their own."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading

from drakkar.api import kinds, names
from drakkar.api.errors import ApiError, UsageError
from drakkar.cli.logs import configure
from drakkar.cli.target import kubeconfigs_of, targeted


def fail(args: argparse.Namespace) -> int:
    """Silence hollow nodes."""
    return asyncio.run(_mark(args, "failed", "failed: it falls silent now"))


def recover(args: argparse.Namespace) -> int:
    """Revive hollow nodes."""
    return asyncio.run(_mark(args, None, "recovering"))


async def _mark(args: argparse.Namespace, value: str | None, text: str) -> int:
    async with targeted(args) as client:
        for name in args.names:
            try:
                await client.patch(
                    kinds.NODE,
                    name,
                    None,
                    {"metadata": {"annotations": {names.HOLLOW: value}}},
                    type="merge",
                )
            except ApiError as error:
                if error.code == 404:
                    raise UsageError(f"node {name} does not exist; `kubectl get nodes` lists them") from error
                raise
            print(f"node/{name} {text}")
    return 0


def hollow(args: argparse.Namespace) -> int:
    """Run hollow nodes until interrupted."""
    from drakkar.node.hollow_main import run_hollow
    from drakkar.sim.fleets import load_fleet

    # The plane that started this process has a terminal of its own to keep clean.
    configure("WARNING" if args.end_with_parent else "INFO")
    if args.end_with_parent:
        threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    run_hollow(
        kubeconfigs_of(args),
        load_fleet(args.fleet).nodes(),
        args.names,
        lease_duration=args.lease_duration,
        lease_period=args.lease_period,
        context=args.context,
    )
    return 0


def _end_with_parent() -> None:
    """End this process when its standard input closes, that is, when its parent is gone, however it went."""
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)
