"""A replica that loses its lease is a candidate that follows the server again, with a new state."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from drakkar.api.kinds import LEASE
from drakkar.cli.components import Replica
from drakkar.client import Client, MemoryTransport
from tests.unit.client.fakeserver import FakeServer
from tests.unit.client.test_cache import until

ARGS = argparse.Namespace(
    leader_elect=True,
    leader_elect_resource_name="",
    leader_elect_resource_namespace="kube-system",
    leader_elect_lease_duration=3,
)


class Follower:
    """What a scheduler is to its replica."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.works = False

    async def stand_by(self) -> None:
        self.ready.set()

    async def run(self) -> None:
        self.works = True
        try:
            await asyncio.Event().wait()
        finally:
            self.works = False

    async def close(self) -> None:
        self.ready.clear()

    def metrics_text(self) -> str:
        return ""


def test_a_replica_that_lost_its_lease_stands_by_again() -> None:
    made: list[Follower] = []

    def make(client: Client) -> Any:
        made.append(Follower())
        return made[-1]

    async def scenario() -> None:
        server = FakeServer()
        replica = Replica(ARGS, Client(MemoryTransport(server.handle)), "x", make)
        task = asyncio.create_task(replica.run())
        await until(lambda: made[0].works, 10)
        assert replica.missing() == ""
        # Somebody else has taken it, and keeps it for a while.
        lease = server.get(LEASE, "x", "kube-system")
        other = {"holderIdentity": "other", "leaseDurationSeconds": 60, "renewTime": "2026-01-01T00:00:00.000000Z"}
        server.put(LEASE, {"metadata": {"name": "x", "namespace": "kube-system"}, "spec": {**lease["spec"], **other}})
        await until(lambda: len(made) == 2 and made[1].ready.is_set(), 10)
        assert (made[0].works, made[1].works) == (False, False)
        assert (replica.part, replica.leads, replica.missing()) == (made[1], False, "")
        lease = server.get(LEASE, "x", "kube-system")
        free = {"holderIdentity": "", "leaseDurationSeconds": 1}
        server.put(LEASE, {"metadata": {"name": "x", "namespace": "kube-system"}, "spec": {**lease["spec"], **free}})
        await until(lambda: made[1].works, 10)
        assert len(made) == 2
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not made[1].works

    asyncio.run(scenario())
