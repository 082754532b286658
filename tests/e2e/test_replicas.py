"""Two scheduler processes at one server: one works, the other takes over, and nothing is done twice."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from drakkar.api.kinds import DEVICECLASS, LEASE, NODE, POD, RESOURCECLAIM, RESOURCESLICE
from drakkar.api.objects import pod_node
from drakkar.cli.target import connect
from drakkar.client import Client
from drakkar.insight.dump import collect
from drakkar.insight.verify import verify
from tests.support.plane import Part, Up
from tests.unit.scheduler.build import claim, device_class, node_slice

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LEASE_SECONDS = 3.0
NAME = "drakkar-scheduler-drakkar"


class Replica(Part):
    """``drakkar scheduler`` as a child process."""

    def __init__(self, kubeconfig: Path, *flags: str):
        lease = ("--leader-elect-lease-duration", str(LEASE_SECONDS))
        super().__init__("scheduler", "--kubeconfig", str(kubeconfig), *lease, *flags)

    def is_ready(self) -> bool:
        return len(self.lines) >= 2 and self.ask("/readyz") == "200 ok"

    def ask(self, path: str) -> str:
        """What the replica answers at its own address; the HTTP status in front."""
        match = re.search(r"health and metrics at (\S+)", self.output)
        assert match, self.lines
        try:
            with urllib.request.urlopen(match[1] + path, timeout=30) as answer:
                return f"{answer.status} {answer.read().decode()}"
        except urllib.error.HTTPError as error:
            return f"{error.code} {error.read().decode()}"


async def until(holds: Callable[[], Awaitable[Any]], seconds: float = 120) -> Any:
    async with asyncio.timeout(seconds):
        while True:
            found = await holds()
            if found:
                return found
            await asyncio.sleep(0.02)


def bare(obj: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in obj["metadata"].items() if key not in ("uid", "resourceVersion")}
    return {**obj, "metadata": metadata}


async def one_more_pod(client: Client, name: str) -> None:
    await client.create(RESOURCECLAIM, bare(claim(name)), "default")
    spec = {
        "schedulerName": "drakkar",
        "containers": [{"name": "main", "image": "x"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
    }
    await client.create(POD, {"metadata": {"name": name, "namespace": "default"}, "spec": spec}, "default")


async def placed(client: Client, name: str) -> bool:
    return bool(pod_node(await client.get(POD, name, "default")))


async def holder(client: Client) -> str:
    lease = await client.get(LEASE, NAME, "kube-system")
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def test_a_leader_is_killed_and_another_one_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario(kubeconfig: Path, replicas: list[Replica]) -> None:
        by_pid = {str(replica.process.pid): replica for replica in replicas}
        async with connect(kubeconfig) as client:
            await client.create(NODE, {"metadata": {"name": "a", "labels": {}}})
            await client.create(DEVICECLASS, bare(device_class()))
            await client.create(RESOURCESLICE, bare(node_slice("a", 8)))
            await one_more_pod(client, "first")
            await until(lambda: placed(client, "first"))
            leader = by_pid[(await holder(client)).split("_")[1]]
            [other] = [replica for replica in replicas if replica is not leader]
            await until(lambda: asyncio.to_thread(other.is_ready))
            assert "drakkar_leading 1" in leader.ask("/metrics")
            assert "drakkar_leading 0" in other.ask("/metrics")
            # Counted when the server has answered the scheduler; we may have heard of it before.
            once = 'scheduler_schedule_attempts_total{result="scheduled"} 1'
            await until(lambda: asyncio.to_thread(lambda: once in leader.ask("/metrics")))
            assert leader.ask("/healthz") == other.ask("/healthz") == "200 ok"
            assert leader.ask("/nothing").startswith("404")

            os.kill(leader.process.pid, signal.SIGKILL)
            killed = time.monotonic()
            await one_more_pod(client, "second")
            await until(lambda: placed(client, "second"))
            after_kill = time.monotonic() - killed
            assert str(other.process.pid) in await holder(client)

            with Replica(kubeconfig) as third:
                await until(lambda: asyncio.to_thread(third.is_ready))
                os.kill(other.process.pid, signal.SIGTERM)
                asked = time.monotonic()
                await one_more_pod(client, "third")
                await until(lambda: placed(client, "third"))
                after_term = time.monotonic() - asked
                # Who is told to end may still place a pod that comes at that moment.
                assert await asyncio.to_thread(other.process.wait, 60) == 0

                async def handed_over() -> bool:
                    return str(third.process.pid) in await holder(client)

                await until(handed_over)
                await one_more_pod(client, "fourth")
                await until(lambda: placed(client, "fourth"))
            assert verify(await collect(client)) == []
            with capsys.disabled():
                print(
                    f"\nlease {LEASE_SECONDS:g} s: placed {after_kill:.2f} s after the leader was killed, "
                    f"{after_term:.2f} s after it was told to end"
                )

    with (
        Up(tmp_path / "data", "--no-scheduler", "--no-controllers") as up,
        Replica(up.kubeconfig) as one,
        Replica(up.kubeconfig) as two,
    ):
        asyncio.run(scenario(up.kubeconfig, [one, two]))
