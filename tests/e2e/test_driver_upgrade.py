"""A driver is replaced again and again while claims are prepared through the agent: none fails."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra node")

from drakkar.api.meta import Object
from drakkar.cli.manifests import apply
from drakkar.node.agent.claims import ClaimProblem
from drakkar.plugin.sockets import registration_socket
from tests.support.agents import NODE, Cluster, allocated, cluster
from tests.support.eventually import eventually
from tests.support.guard import guarded
from tests.support.shared import ROOT
from tests.unit.node.agent.test_plugins import DRIVER, FakeDriver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EXAMPLE = "example.drakkar.dev"
#: How often the driver is replaced, and how many claims are prepared at the same time.
ROUNDS, LANES = 4, 8

#: Runs one instance, by its number, as long as the block lasts; then it is told to end.
Instance = Callable[[Cluster, int], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def example(site: Cluster, number: int) -> AsyncIterator[None]:
    """The example driver as the pod of a DaemonSet that surges, with an account of its own."""
    uid, account = f"instance-{number}", str(await site.driver_account("example"))
    flags = ["--kubeconfig", account, "--node-name", NODE, "--kubelet-root", str(site.root)]
    flags += ["--cdi-dir", str(site.root / "cdi"), "--instance-uid", uid]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "drakkar.cli", "driver", "run", "example", *flags),
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stderr=asyncio.subprocess.DEVNULL,
    )
    guarded(process.pid)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        assert not registration_socket(site.root / "plugins_registry", EXAMPLE, uid).exists()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def plain(site: Cluster, number: int) -> AsyncIterator[None]:
    """Two sockets of its own per instance and nothing else, as upstream's helper for drivers makes them."""
    registry = site.root / "registry"
    if not registry.exists():
        registry.symlink_to(site.root / "plugins_registry")
    driver = FakeDriver(site.root, f"{DRIVER}-instance-{number}")
    await asyncio.to_thread(driver.start)
    try:
        yield
    finally:
        await asyncio.to_thread(driver.stop)


async def let_read_claims(site: Cluster) -> None:
    """A node may read claims of its pods; here there are none, lest the agent runs them."""
    head = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "reader"}}
    rule = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": f"system:node:{NODE}"}
    await apply(site.client, {**head, "kind": "ClusterRole", "rules": [rule]})
    await apply(site.client, {**head, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject]})


@pytest.mark.parametrize(("driver", "instance"), [(EXAMPLE, example), (DRIVER, plain)], ids=["example", "two sockets"])
def test_no_prepare_fails_while_a_driver_is_replaced(
    driver: str, instance: Instance, tmp_path: Path, root: Path
) -> None:
    prepared, problems = list[str](), list[str]()

    async def lane(site: Cluster, pod: Object, over: asyncio.Event) -> None:
        assert site.agent is not None
        assert site.agent.claims is not None
        while not over.is_set():
            try:
                await site.agent.claims.prepare(pod)
                prepared.append(pod["metadata"]["name"])
                await site.agent.claims.unprepare(pod["metadata"]["uid"])
            except ClaimProblem as problem:
                problems.append(str(problem))
                over.set()

    def instances(site: Cluster) -> Callable[[], Awaitable[int]]:
        assert site.agent is not None
        plugins = site.agent.plugins
        return lambda: asyncio.sleep(0, len(plugins.instances(driver)))

    async def run() -> None:
        async with cluster(tmp_path, root) as site:
            await site.start_agent()
            await site.stop("controllers")  # The pods of the claims are not there.
            await let_read_claims(site)
            pods = [await allocated(site.client, f"c{number}", driver) for number in range(LANES)]
            over = asyncio.Event()
            old = instance(site, 0)
            await old.__aenter__()
            await eventually(instances(site), lambda count: count == 1, timeout=60)
            lanes = [asyncio.create_task(lane(site, pod, over)) for pod in pods]
            for number in range(1, ROUNDS + 1):
                new = instance(site, number)
                await new.__aenter__()
                await eventually(instances(site), lambda count: count == 2, timeout=60)
                await old.__aexit__(None, None, None)
                await eventually(instances(site), lambda count: count == 1, timeout=60)
                before = len(prepared)

                def goes_on(now: int, before: int = before) -> bool:
                    """Whether claims are prepared all the time; who could not has said why."""
                    assert not problems, problems
                    ended = [task.exception() for task in lanes if task.done()]
                    assert not ended, ended
                    return now > before + 50

                await eventually(lambda: asyncio.sleep(0, len(prepared)), goes_on)
                old = new
            over.set()
            await asyncio.gather(*lanes)
            await old.__aexit__(None, None, None)

    asyncio.run(run())
    assert problems == []
