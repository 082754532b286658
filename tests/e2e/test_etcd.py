"""A plane on etcd: what was acknowledged survives kill -9 of the server and of etcd."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drakkar.api import kinds
from drakkar.api.errors import ApiError
from drakkar.cli.manifests import apply, read_objects
from drakkar.cli.target import connect
from drakkar.client import Client, Unreachable
from tests.support.etcd import Etcd, running_etcd
from tests.support.plane import FAST, Up
from tests.support.shared import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
LOST = (ApiError, Unreachable, OSError, asyncio.TimeoutError)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with running_etcd(tmp_path / "member") as member:
        yield member


def _up(folder: Path, etcd: Etcd) -> Up:
    return Up(folder / "data", "--store", etcd.url, "--no-scheduler", "--no-controllers")


async def _write_until_death(up: Up, acknowledged: dict[str, str], kill_after: int) -> None:
    """Creates and updates nodes from several tasks; kills the server with writes in flight."""
    killed = asyncio.Event()
    start = len(acknowledged)

    async def write(client: Client, lane: str) -> None:
        number = 0
        while not killed.is_set():
            name = f"{lane}-{number}"
            made = await client.create(kinds.NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
            acknowledged[name] = ""
            made["metadata"]["labels"] = {"turn": str(number)}
            await client.update(kinds.NODE, made)
            acknowledged[name] = str(number)
            number += 1

    async def lane(name: str) -> None:
        try:
            async with connect(up.kubeconfig) as client:
                await write(client, name)
        except LOST:
            assert killed.is_set(), up.output

    lanes = [asyncio.create_task(lane(f"n{start}-{at}")) for at in range(8)]
    while len(acknowledged) < start + kill_after:
        await asyncio.sleep(0.01)
        assert up.wait_dead(0) is None, up.output
    killed.set()
    up.kill()
    await asyncio.gather(*lanes)


async def _check(up: Up, acknowledged: dict[str, str]) -> None:
    async with connect(up.kubeconfig) as client:
        found = {obj["metadata"]["name"]: obj for obj in (await client.list(kinds.NODE)).items}
    lost = {name for name in acknowledged if name not in found}
    assert not lost, f"{len(lost)} of {len(acknowledged)} lost"
    for name, turn in acknowledged.items():
        assert not turn or found[name]["metadata"]["labels"].get("turn") == turn, name


def test_kill_of_the_server(tmp_path: Path, etcd: Etcd) -> None:
    acknowledged: dict[str, str] = {}
    up = _up(tmp_path, etcd)
    for round in range(3):
        up.start()
        asyncio.run(_check(up, acknowledged))
        asyncio.run(_write_until_death(up, acknowledged, 60 + 40 * round))
    with up:
        asyncio.run(_check(up, acknowledged))
    assert up.process is not None
    assert up.process.returncode == 0, up.output


def test_etcd_dies_and_comes_back(tmp_path: Path, etcd: Etcd) -> None:
    """Writes wait for etcd; none of them is lost or done twice."""

    async def write(up: Up) -> set[str]:
        names: set[str] = set()
        restarts: list[asyncio.Task[object]] = []
        async with connect(up.kubeconfig) as client:
            for number in range(60):
                if number == 20:
                    etcd.kill()
                    restarts.append(asyncio.create_task(asyncio.to_thread(lambda: (time.sleep(1), etcd.start()))))
                node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{number}"}}
                await client.create(kinds.NODE, node)
                names.add(f"node-{number}")
            await asyncio.gather(*restarts)
        return names

    with _up(tmp_path, etcd) as up:
        names = asyncio.run(write(up))
        asyncio.run(_check(up, dict.fromkeys(names, "")))
    with up:
        asyncio.run(_check(up, dict.fromkeys(names, "")))


def test_two_servers_are_peers(tmp_path: Path, etcd: Etcd) -> None:
    """One authority, one state: credentials of one server are good at the other, which shows the same objects."""

    async def run(first: Up, second: Up) -> None:
        config = tmp_path / "elsewhere"
        port = (second.data / "port").read_text()
        config.write_text(re.sub(r"(server: https://127.0.0.1:)\d+", rf"\g<1>{port}", first.kubeconfig.read_text()))
        async with connect(first.kubeconfig) as one, connect(config) as two:
            made = await one.create(kinds.NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
            assert await two.get(kinds.NODE, "n") == made
            made["metadata"]["labels"] = {"by": "two"}
            changed = await two.update(kinds.NODE, made)
            assert await one.get(kinds.NODE, "n") == changed

    with _up(tmp_path / "a", etcd) as first, _up(tmp_path / "b", etcd) as second:
        assert (first.data / "pki" / "ca.crt").read_bytes() == (second.data / "pki" / "ca.crt").read_bytes()
        asyncio.run(run(first, second))


def test_another_authority_is_refused(tmp_path: Path, etcd: Etcd) -> None:
    with Up(tmp_path / "b" / "data", "--store", "memory"):
        pass
    with _up(tmp_path / "a", etcd):
        other = _up(tmp_path / "b", etcd)
        other.spawn()
        assert other.wait_dead(60) == 2, other.output
        assert "are of another authority" in other.output


def test_one_scheduler_at_a_time(tmp_path: Path, etcd: Etcd) -> None:
    """Of two whole planes one works; when it stops, the other goes on."""

    async def holder(up: Up) -> str:
        async with connect(up.kubeconfig) as client:
            try:
                lease = await client.get(kinds.LEASE, "kube-scheduler", "kube-system")
            except ApiError:
                return ""
            return lease["spec"].get("holderIdentity") or ""

    async def wait_for(up: Up, former: str) -> str:
        async with asyncio.timeout(90):
            while (found := await holder(up)) in ("", former):
                await asyncio.sleep(0.1)
        return found

    first, second = (Up(tmp_path / name / "data", "--store", etcd.url) for name in ("a", "b"))
    with first, second:
        leader = asyncio.run(wait_for(second, ""))
        first.stop()
        # The first may not have been the leader; if it was, it stepped down.
        assert asyncio.run(wait_for(second, "" if asyncio.run(holder(second)) else leader))


def test_a_job_gets_its_slice(tmp_path: Path, etcd: Etcd) -> None:
    """Scheduler, controllers, nodes and driver on etcd; the pods are still there after kill -9."""

    async def running(up: Up, *manifests: str) -> set[str]:
        async with connect(up.kubeconfig) as client, asyncio.timeout(90):
            for manifest in manifests:
                for obj in read_objects(ROOT / "examples" / "tpu" / manifest):
                    await apply(client, obj)
            while True:
                pods = (await client.list(kinds.POD, "default")).items
                found = {pod["metadata"]["uid"] for pod in pods if pod["status"].get("phase") == "Running"}
                if len(found) == 4:
                    return found
                await asyncio.sleep(0.05)

    up = Up(tmp_path / "data", "--store", etcd.url, "--fleet", "tpu-16", *FAST)
    up.start()
    pods = asyncio.run(running(up, "deviceclass.yaml", "claim.yaml", "job.yaml"))
    up.kill()
    with up:
        assert asyncio.run(running(up)) == pods


def test_no_etcd_there(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "drakkar.cli", "up", "--data", str(tmp_path), "--store", "etcd://127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "cannot reach etcd" in done.stderr
