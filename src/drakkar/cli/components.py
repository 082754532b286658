"""Single components against any API server: scheduler, controllers, drivers."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable

from drakkar.api.errors import UsageError
from drakkar.cli.logs import configure
from drakkar.cli.target import targeted
from drakkar.client import Client
from drakkar.client.clock import SystemClock


def _forever(args: argparse.Namespace, what: str, start: Callable[[Client], Awaitable[None]]) -> int:
    # Alone in its terminal, a component says when it cannot reach its server.
    configure("INFO")

    async def session() -> None:
        async with targeted(args) as client:
            print(f"{what} at work; Ctrl-C stops it", flush=True)
            await start(client)

    asyncio.run(session())
    return 0


def scheduler(args: argparse.Namespace) -> int:
    """Run the scheduler for pods with one scheduler name."""
    from drakkar.scheduler import Scheduler

    return _forever(
        args,
        "scheduler",
        lambda client: Scheduler(
            client, SystemClock(), scheduler_names={args.scheduler_name}, policy=args.policy
        ).run(),
    )


def controllers(args: argparse.Namespace) -> int:
    """Run some or all controllers."""
    from drakkar.controllers import CONTROLLERS, Controllers, ControllerSettings

    only = {name.strip() for name in args.only.split(",")} if args.only else None
    unknown = (only or set()) - CONTROLLERS.keys()
    if unknown:
        raise UsageError(f"--only {', '.join(sorted(unknown))}: no such controller; there are {', '.join(CONTROLLERS)}")
    # On a cluster that is not ours a silent node is not taken for lost unless somebody says so (design.md, node loss).
    settings = ControllerSettings(node_grace=args.node_grace, loss_by_silence=only is not None and "node-loss" in only)
    return _forever(
        args, "controllers", lambda client: Controllers(client, SystemClock(), only=only, settings=settings).run()
    )

