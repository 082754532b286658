"""Servers as peers on an etcd of three members: members and servers die, clients go elsewhere.

Every acknowledgement and every event of every watch is written down. At the end: nothing
acknowledged is missing, nothing was done twice, and each watch, resumed at whichever server lived,
has seen each change exactly once and in order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from drakkar.api import kinds
from drakkar.api.errors import ApiError
from drakkar.cli.target import connect
from drakkar.client import Client, Unreachable
from tests.support.etcd import Etcd, running_cluster
from tests.support.plane import Up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
LOST = (Unreachable, OSError, asyncio.TimeoutError)
NAMESPACE = "default"
CONFIGMAP = kinds.CONFIGMAP


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[Etcd]]:
    with running_cluster(tmp_path / "etcd") as started:
        yield started


def _servers(folder: Path, members: list[Etcd], count: int) -> list[Up]:
    ends = ",".join(f"127.0.0.1:{member.port}" for member in members)
    # Each server begins with another member.
    flags = ("--store", f"etcd://{ends}", "--no-scheduler", "--no-controllers")
    return [Up(folder / f"server-{at}", *flags) for at in range(count)]


def _revision(obj: dict[str, Any]) -> int:
    return int(obj["metadata"]["resourceVersion"])


@dataclass
class Ledger:
    """What clients were told."""

    #: Name → (revision, turn) of the newest acknowledged write; turn None: deleted.
    newest: dict[str, tuple[int, str | None]] = field(default_factory=dict[str, tuple[int, str | None]])
    #: (name, revision) of every acknowledged write.
    writes: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    #: Tokens that were surely added to the common object.
    tokens: set[str] = field(default_factory=set[str])
    #: Tokens whose addition was sent, with an answer that got lost.
    doubtful: set[str] = field(default_factory=set[str])
    #: Names whose deletion was sent, with an answer that got lost.
    leaving: set[str] = field(default_factory=set[str])
    #: How often a request got lost or had to be repeated elsewhere.
    lost: int = 0

    def acknowledge(self, name: str, obj: dict[str, Any], turn: str | None) -> None:
        self.newest[name] = (_revision(obj), turn)
        self.writes.append((name, _revision(obj)))


class Load:
    """Writers and watchers over several servers."""

    def __init__(self, servers: list[Up]):
        self.servers = servers
        self.ledger = Ledger()
        self.stop = asyncio.Event()
        self.events: list[list[tuple[str, str, int]]] = []
        #: Revision up to which watchers have to get.
        self.until = 0

    @contextlib.asynccontextmanager
    async def client(self, at: int) -> AsyncIterator[Client]:
        async with connect(self.servers[at % len(self.servers)].kubeconfig) as client:
            yield client

    async def _anywhere(self, start: int, work: Any) -> None:
        """Runs ``work(client)`` at one server after the other until it ends by itself."""
        at = start
        while True:
            try:
                async with self.client(at) as client:
                    await work(client)
                return
            except LOST:
                pass
            except ApiError as error:
                if error.code not in (500, 503, 504):
                    raise
            self.ledger.lost += 1
            at += 1
            await asyncio.sleep(0.05)

    async def write(self, lane: int) -> None:
        """Creates, updates and deletes objects of its own; after a lost answer it looks what became of the write."""
        number = 0

        async def work(client: Client) -> None:
            nonlocal number
            while not self.stop.is_set():
                name = f"lane-{lane}-{number}"
                await self._one(client, name, delete=number % 3 == 2)
                number += 1

        await self._anywhere(lane, work)

    async def _one(self, client: Client, name: str, *, delete: bool) -> None:
        ledger = self.ledger
        found = await self._get(client, name)
        if found is None and name in ledger.leaving:
            ledger.newest[name] = (0, None)
            ledger.leaving.discard(name)
        if found is None and (ledger.newest.get(name) or (0, None))[1] is None:
            if name in ledger.newest:
                return  # deleted, as it should be
            obj = {"metadata": {"name": name, "namespace": NAMESPACE}, "data": {"turn": "0"}}
            found = await client.create(CONFIGMAP, obj, NAMESPACE)
            ledger.acknowledge(name, found, "0")
        assert found is not None, f"{name} was acknowledged and is gone"
        known = ledger.newest.get(name)
        assert known is None or _revision(found) >= known[0], f"{name}: a stale read"
        while int(found["data"]["turn"]) < 3:
            found["data"]["turn"] = str(int(found["data"]["turn"]) + 1)
            found = await client.update(CONFIGMAP, found)
            ledger.acknowledge(name, found, found["data"]["turn"])
        ledger.newest[name] = (_revision(found), found["data"]["turn"])
        if delete:
            ledger.leaving.add(name)
            await client.delete(CONFIGMAP, name, NAMESPACE, uid=found["metadata"]["uid"])
            ledger.leaving.discard(name)
            ledger.newest[name] = (_revision(found), None)

    async def _get(self, client: Client, name: str) -> dict[str, Any] | None:
        try:
            return await client.get(CONFIGMAP, name, NAMESPACE)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def count(self, lane: int) -> None:
        """Adds tokens to one object that all lanes and servers quarrel about, and counts them in it."""
        number = 0

        async def work(client: Client) -> None:
            nonlocal number
            while not self.stop.is_set():
                token = f"t{lane}-{number}"
                obj = await client.get(CONFIGMAP, "common", NAMESPACE)
                number += 1
                data = obj["data"]
                data["count"] = str(int(data["count"]) + 1)
                data[token] = ""
                self.ledger.doubtful.add(token)
                try:
                    written = await client.update(CONFIGMAP, obj)
                except ApiError as error:
                    if error.code == 409:
                        self.ledger.doubtful.discard(token)
                        continue
                    raise
                self.ledger.doubtful.discard(token)
                self.ledger.tokens.add(token)
                self.ledger.writes.append(("common", _revision(written)))
                await asyncio.sleep(0.02)

        await self._anywhere(lane, work)

    async def watch(self, start: int, revision: int) -> None:
        """Follows all changes from ``revision`` on, at one server after the other."""
        seen: list[tuple[str, str, int]] = []
        self.events.append(seen)
        at = start

        async def follow(client: Client) -> None:
            nonlocal revision
            async for event in client.watch(CONFIGMAP, NAMESPACE, resource_version=str(revision)):
                now = _revision(event.object)
                if event.type != "BOOKMARK":
                    assert now > revision, f"{event.type} {event.object['metadata']['name']}: {now} after {revision}"
                    seen.append((event.type, event.object["metadata"]["name"], now))
                revision = now
                if self.until and revision >= self.until:
                    return

        while not (self.until and revision >= self.until):
            try:
                async with self.client(at) as client:
                    await follow(client)
            except LOST:
                pass
            at += 1
            await asyncio.sleep(0.02)


async def _check(load: Load, before: dict[str, Any], revision: int) -> None:
    ledger = load.ledger
    lists: list[Any] = []
    for at in range(len(load.servers)):
        async with load.client(at) as client:
            lists.append(await client.list(CONFIGMAP, NAMESPACE))
    assert all(one.items == lists[0].items for one in lists)
    assert all(one.resource_version == lists[0].resource_version for one in lists)
    found = {obj["metadata"]["name"]: obj for obj in lists[0].items}
    # Nothing acknowledged is lost.
    for name, (written, turn) in ledger.newest.items():
        if name in ledger.leaving and name not in found:
            continue
        if turn is None:
            assert name not in found, f"{name} was deleted and is back"
        else:
            assert name in found, f"{name} is lost"
            assert _revision(found[name]) == written, name
            assert found[name]["data"]["turn"] == turn, name
    # Nothing was done twice.
    common = found["common"]["data"]
    tokens = set(common) - {"count"}
    assert ledger.tokens <= tokens
    assert tokens <= ledger.tokens | ledger.doubtful
    assert int(common["count"]) == len(tokens)
    # Every watch has seen everything once, in one order.
    told = [[event for event in seen if event[2] <= load.until] for seen in load.events]
    assert all(one == told[0] for one in told)
    revisions = [event[2] for event in told[0]]
    assert revisions == sorted(set(revisions))
    assert {(name, written) for name, written in ledger.writes if written > revision} <= {
        (name, now) for _, name, now in told[0]
    }
    state = {name: _revision(obj) for name, obj in before.items()}
    for type_, name, now in told[0]:
        assert (type_ == "ADDED") == (name not in state), (type_, name)
        if type_ == "DELETED":
            del state[name]
        else:
            state[name] = now
    assert state == {name: _revision(obj) for name, obj in found.items() if _revision(obj) <= load.until}


async def _reach(load: Load, writes: int) -> None:
    """Until so many more writes are acknowledged."""
    goal = len(load.ledger.writes) + writes
    async with asyncio.timeout(120):
        while len(load.ledger.writes) < goal:
            await asyncio.sleep(0.02)


async def _story(servers: list[Up], members: list[Etcd]) -> Load:
    load = Load(servers)
    async with load.client(0) as client:
        obj = {"metadata": {"name": "common", "namespace": NAMESPACE}, "data": {"count": "0"}}
        await client.create(CONFIGMAP, obj, NAMESPACE)
        first = await client.list(CONFIGMAP, NAMESPACE)
    before, revision = {obj["metadata"]["name"]: obj for obj in first.items}, int(first.resource_version)
    watchers = [asyncio.create_task(load.watch(at, revision)) for at in range(4)]
    writers = [asyncio.create_task(load.write(lane)) for lane in range(6)]
    writers += [asyncio.create_task(load.count(lane)) for lane in range(3)]
    await _reach(load, 150)
    await asyncio.to_thread(members[0].kill)
    await _reach(load, 150)
    await asyncio.to_thread(servers[0].kill)
    await _reach(load, 150)
    await asyncio.to_thread(members[0].start)
    await asyncio.to_thread(servers[0].start)
    await _reach(load, 150)
    await asyncio.to_thread(servers[1].kill)
    await _reach(load, 150)
    load.stop.set()
    await asyncio.gather(*writers)
    await asyncio.to_thread(servers[1].start)
    async with load.client(0) as client:
        for name in ("last", "after-it"):
            made = await client.create(CONFIGMAP, {"metadata": {"name": name, "namespace": NAMESPACE}}, NAMESPACE)
            # The second one wakes those who had seen the first before they knew that it is the last.
            load.until = load.until or _revision(made)
    async with asyncio.timeout(90):
        await asyncio.gather(*watchers)
    await _check(load, before, revision)
    return load


def test_a_member_and_servers_die_under_load(tmp_path: Path, members: list[Etcd]) -> None:
    servers = _servers(tmp_path, members, 2)
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.enter_context(server)
        load = asyncio.run(_story(servers, members))
    assert load.ledger.lost, "nothing was lost: the deaths went unnoticed"
