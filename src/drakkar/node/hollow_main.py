"""Hollow nodes as a process of their own: stopped by SIGSTOP, they are as dead as failed ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from drakkar.api.errors import UsageError
from drakkar.api.meta import Object
from drakkar.api.objects import name_of
from drakkar.client import Client, kubeconfig
from drakkar.client.clock import SystemClock
from drakkar.node.hollow import HollowFleet


def select_nodes(nodes: Sequence[Object], names: Sequence[str]) -> list[Object]:
    """The manifests with these names, all without names; raises UsageError for an unknown one."""
    if not names:
        return [*nodes]
    known = {name_of(node): node for node in nodes}
    for name in names:
        if name not in known:
            raise UsageError(f"the fleet has no node {name!r}; it has {', '.join([*known][:20])}")
    return [known[name] for name in names]


def run_hollow(
    config: Path | str | Sequence[Path] | None,
    nodes: Sequence[Object],
    names: Sequence[str] = (),
    *,
    lease_duration: float = 40.0,
    lease_period: float = 10.0,
    context: str | None = None,
) -> None:
    """Serve the nodes (Node manifests, see `drakkar.sim.fleets.Fleet.nodes`) until interrupted.

    ``config`` is a kubeconfig file, or several, None the user's own. Times are in seconds.
    """
    selected = select_nodes(nodes, names)

    async def session() -> None:
        clock = SystemClock()
        client = Client(kubeconfig.load(config, context).transport("drakkar-hollow"), clock=clock)
        fleet = HollowFleet(client, clock, selected, lease_duration=lease_duration, lease_period=lease_period)
        try:
            await fleet.run()
        finally:
            await client.close()

    asyncio.run(session())
