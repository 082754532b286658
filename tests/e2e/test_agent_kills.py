"""The agent is killed at every named point of a pod's life; nothing leaks and pods come to their end.

The suite makes each point once. ``DRAKKAR_KILLS=200`` asks for the long run: kill after kill, the ones in the middle of
a recovery too, while pods come and go. ``DRAKKAR_KILLS_RUNTIME`` is ``process`` or ``oci``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.kinds import POD
from drakkar.api.objects import pod_is_done
from drakkar.node.agent import mounts, shims
from drakkar.node.agent.failpoints import POINTS
from tests.support.agents import Cluster, cluster, end_containers
from tests.support.eventually import eventually
from tests.support.shared import ROOT
from tests.unit.node.agent.test_thin_path import Hello, gone, pod, prepare_cluster

#: The agent that runs now; those before it were waited for.
STARTED: list[int] = []
KILLS = int(os.environ.get("DRAKKAR_KILLS", "0"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + 20 * KILLS)]


@pytest.fixture
def root(root: Path) -> Iterator[Path]:
    try:
        yield root
    finally:
        for pid in STARTED:
            # Also after a failure no agent may go on; those that have ended are no problem.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        STARTED.clear()
        end_containers(root)


class Holder(Hello):
    """A driver that sees a device given twice."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.held: dict[str, str] = {}
        self.faults: list[str] = []

    def prepare(self, claim, devices):  # type: ignore[no-untyped-def]
        for found in devices:
            owner = self.held.setdefault(found.name, claim.metadata.uid)
            if owner != claim.metadata.uid:
                self.faults.append(f"{found.name} is held by {owner} and given to {claim.metadata.uid}")
        return super().prepare(claim, devices)

    def unprepare(self, claim, devices):  # type: ignore[no-untyped-def]
        super().unprepare(claim, devices)
        self.held = {name: owner for name, owner in self.held.items() if owner != claim.uid}


async def _agent(site: Cluster, folder: Path, root: Path, runtime: str, failpoint: str) -> asyncio.subprocess.Process:
    env = {**os.environ, "DRAKKAR_NODE_FAILPOINTS": failpoint, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    command = ["-m", "tests.support.agentmain", site.serving.url, str(folder / "pki"), str(root), runtime]
    with (folder / "agent.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(sys.executable, *command, env=env, cwd=ROOT, stderr=log)
    STARTED[:] = [process.pid]
    return process


def _alive(root: Path) -> list[str]:
    """Processes of containers and their monitors that are still there."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if str(root) in words and "agentmain" not in words and shims.start_time(int(path.parent.name)):
            found.append(words.replace("\0", " "))
    return found


def _runtime() -> str:
    usual = "oci" if os.geteuid() == 0 and shutil.which("runc") else "process"
    return os.environ.get("DRAKKAR_KILLS_RUNTIME", usual)


async def _nothing_is_left(root: Path, driver: Holder) -> None:
    assert driver.faults == []
    await eventually(lambda: asyncio.sleep(0, driver.held), lambda held: not held, timeout=60)
    await eventually(lambda: asyncio.to_thread(os.listdir, root / "pods"), lambda left: not left, timeout=60)
    await eventually(lambda: asyncio.to_thread(os.listdir, root / "claims"), lambda left: not left, timeout=60)
    assert await asyncio.to_thread(mounts.mounted_below, root) == []
    await eventually(lambda: asyncio.to_thread(_alive, root), lambda found: not found, timeout=60)


@pytest.mark.skipif(not KILLS, reason="the long run: set DRAKKAR_KILLS")
def test_kills_without_end(tmp_path: Path, root: Path) -> None:
    runtime = _runtime()
    rng = random.Random(11)
    died: list[str] = []

    async def agents(site: Cluster) -> None:
        """One agent after the other, each with a point at which it dies."""
        for point in itertools.cycle(POINTS):
            process = await _agent(site, tmp_path, root, runtime, f"{point}:{rng.randint(1, 3)}")
            try:
                await asyncio.wait_for(process.wait(), 20)
                assert process.returncode == -signal.SIGKILL, (tmp_path / "agent.log").read_text()[-2000:]
                died.append(point)
            except TimeoutError:
                process.kill()  # The point was not met; a kill at any moment counts as well.
                await process.wait()
                died.append("anywhere")
            if len(died) >= KILLS:
                return

    async def pods(site: Cluster, lane: int) -> None:
        """Pods come and go for ever: some end, some are deleted, some are forgotten by force."""
        for number in itertools.count():
            name = f"p{lane}-{number}"
            body = pod(name, rng.choice(("echo $HELLO", "sleep 1000", "exit 3")))
            body["spec"]["containers"][0]["image"] = "host" if runtime == "oci" else "any"
            await site.client.create(POD, body)
            await asyncio.sleep(rng.random() * 4)
            await site.client.delete(POD, name, "default", grace=rng.choice((None, None, 0)))
            await asyncio.sleep(rng.random())

    async def run() -> None:
        async with cluster(tmp_path, root) as site:
            await prepare_cluster(site)
            (root / "plugins_registry").mkdir(exist_ok=True)
            driver = Holder(tmp_path)
            starting = asyncio.create_task(site.start_driver(driver))
            lanes = [asyncio.create_task(pods(site, lane)) for lane in range(3)]
            await agents(site)
            await starting
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)
            process = await _agent(site, tmp_path, root, runtime, "")
            for each in (await site.client.list(POD)).items:
                name = each["metadata"]["name"]
                if "deletionTimestamp" not in each["metadata"]:
                    await site.client.delete(POD, name, "default")
                await eventually(lambda n=name: gone(site, n), bool, timeout=60)
            await _nothing_is_left(root, driver)
            process.kill()
            await process.wait()
            print(f"{len(died)} kills: {dict(Counter(died))}; {len(driver.prepared)} prepares")

    asyncio.run(run())


def test_kills_at_every_point(tmp_path: Path, root: Path) -> None:
    runtime = _runtime()
    image = "host" if runtime == "oci" else "any"
    rng = random.Random(7)

    async def run() -> None:
        async with cluster(tmp_path, root) as site:
            await prepare_cluster(site)
            process = await _agent(site, tmp_path, root, runtime, "")
            driver = Holder(tmp_path)
            (root / "plugins_registry").mkdir(exist_ok=True)
            await site.start_driver(driver)
            died: list[str] = []
            for number, point in enumerate(POINTS):
                process.send_signal(signal.SIGTERM)
                await process.wait()
                process = await _agent(site, tmp_path, root, runtime, f"{point}:{rng.choice((1, 1, 2))}")
                names = [f"p{number}-{kind}" for kind in ("ends", "stays")]
                for name, script in zip(names, ("echo $HELLO", "sleep 1000"), strict=True):
                    body = pod(name, script)
                    body["spec"]["containers"][0]["image"] = image
                    await site.client.create(POD, body)
                # The second one is deleted once it runs, or at once where the agent died before.
                for _ in range(100):
                    if process.returncode is not None:
                        break
                    if (await site.pod(names[1]))["status"].get("phase") == "Running":
                        break
                    await asyncio.sleep(0.05)
                await site.client.delete(POD, names[1], "default")
                try:
                    await asyncio.wait_for(process.wait(), 6)
                    died.append(point)
                    assert process.returncode == -signal.SIGKILL, (tmp_path / "agent.log").read_text()[-2000:]
                    process = await _agent(site, tmp_path, root, runtime, "")
                except TimeoutError:
                    pass  # A second hit that did not come: nothing was killed this time.
                await eventually(lambda n=names[0]: site.pod(n), pod_is_done, timeout=30)
                await eventually(lambda n=names[1]: gone(site, n), bool, timeout=30)
                await eventually(lambda: asyncio.sleep(0, driver.held), lambda held: not held, timeout=30)
                done = await site.pod(names[0])
                assert done["status"]["phase"] in ("Succeeded", "Failed")
                await site.client.delete(POD, names[0], "default")
                await eventually(lambda n=names[0]: gone(site, n), bool, timeout=30)
                assert driver.faults == []
            await _nothing_is_left(root, driver)
            process.kill()
            await process.wait()
            assert set(died) == set(POINTS)

    asyncio.run(run())
