"""A whole cluster in one process: API server, controllers, scheduler and real agents, one as a rule."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from drakkar.api.kinds import POD, RESOURCECLAIM, SERVICEACCOUNT
from drakkar.api.meta import Object
from drakkar.apiserver import ApiServer, Pki, Serving, open_pki, open_server, serve, write_kubeconfig
from drakkar.apiserver.streaming.agents import Agents
from drakkar.cli.manifests import apply, read_objects
from drakkar.client import Client, MemoryTransport
from drakkar.client.clock import SystemClock
from drakkar.controllers import Controllers, ControllerSettings
from drakkar.driver.driver import Driver
from drakkar.driver.service import DriverService, NodeSettings
from drakkar.node.agent import mounts, shims
from drakkar.node.agent.agent import Agent, Settings
from drakkar.node.agent.network import BridgeNetwork
from drakkar.node.agent.process_runtime import ProcessRuntime
from drakkar.node.agent.runtime import Runtime
from drakkar.scheduler import Scheduler
from tests.support.shared import ROOT
from tests.support.upstream import token_kubeconfig

NODE = "n1"
#: The controllers that pods, their claims and their drivers need.
CONTROLLERS = frozenset({"claims", "namespaces", "garbage", "serviceaccounts", "daemonsets"})


@dataclass
class Cluster:
    """What a test talks to; ``root`` is the agent's folder (short: sockets lie in it)."""

    server: ApiServer
    serving: Serving
    pki: Pki
    client: Client
    root: Path
    kubeconfig: Path
    runtime: Callable[[], Runtime]
    tasks: dict[str, asyncio.Task[Any]] = field(default_factory=dict[str, asyncio.Task[Any]])
    agent: Agent | None = None
    #: Whether pods get networks of their own.
    bridge: bool = False
    node: str = NODE
    others: list[Cluster] = field(default_factory=list["Cluster"])

    def beside(self, node: str, root: Path, runtime: Callable[[], Runtime]) -> Cluster:
        """The same cluster for a further node, which has an agent and drivers of its own on a folder of its own."""
        other = replace(self, node=node, root=root, runtime=runtime, agent=None, tasks={}, others=[])
        self.others.append(other)
        return other

    async def end(self) -> None:
        """Stop everything. Containers go on without their agent; that of a test does not come back."""
        for other in self.others:
            await other.end()
        for name in reversed(list(self.tasks)):
            await self.stop(name)
        await asyncio.to_thread(end_containers, self.root)

    def as_user(self, user: str, *groups: str) -> Client:
        """A client of this user over the memory transport."""
        return Client(MemoryTransport(self.server.handle, self.server.token(user, *groups)))

    def run(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        """Run a part until the end of the test, or until :meth:`stop`."""
        self.tasks[name] = asyncio.create_task(work, name=name)

    async def stop(self, name: str) -> None:
        """As a kill: whatever it was doing ends in the middle."""
        task = self.tasks.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def start_agent(self, **settings: Any) -> Agent:
        """Start an agent and wait until its node is ready."""
        host, port = self.serving.host, self.serving.port
        made = Settings(
            **{
                "node": self.node,
                "root": self.root,
                "address": "127.0.0.1",
                "api": (host, port),
                "cdi_folders": [self.root / "cdi"],
            }
            | settings
        )
        tls = self.pki.agent_context(f"system:node:{self.node}", ["127.0.0.1"])
        client = self.as_user(f"system:node:{self.node}", "system:nodes")
        network = BridgeNetwork(self.root / "network", made.address, made.api) if self.bridge else None
        self.agent = Agent(client, SystemClock(), made, self.runtime(), tls, network=network)
        self.run("agent", self.agent.run())
        await _either(self.agent.ready.wait(), self.tasks["agent"])
        return self.agent

    async def start_driver(self, driver: Driver, name: str = "driver", **settings: Any) -> DriverService:
        """Start a driver beside the agent and wait until it is registered and published."""
        settings.setdefault("health_period", 0.05)
        made = NodeSettings(self.node, self.root, self.root / "cdi", **settings)
        service = DriverService(driver, self.as_user(f"{name}", "drakkar:drivers"), SystemClock(), made)
        self.run(name, service.run())
        await _either(service.registered.wait(), self.tasks[name])
        await _either(service.publication.published.wait(), self.tasks[name])
        return service

    async def driver_account(self, name: str) -> Path:
        """A kubeconfig with what ``deploy/`` gives a driver of ours, by a token for this node."""
        for path in (ROOT / "deploy" / "namespace.yaml", ROOT / "deploy" / f"driver-{name}.yaml"):
            for obj in read_objects(path):
                if obj["kind"] != "DaemonSet":
                    await apply(self.client, obj)
        account, namespace = f"drakkar-driver-{name}", "drakkar-system"
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "metadata": {"name": account, "namespace": namespace},
            "spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": self.node}},
        }
        answer = await self.client.create(SERVICEACCOUNT, asked, subresource="token")
        path = self.kubeconfig.with_name(f"{account}-{self.node}.kubeconfig")
        return token_kubeconfig(self.kubeconfig, path, answer["status"]["token"])

    async def pod(self, name: str) -> Object:
        """The pod as it is now."""
        return await self.client.get(POD, name, "default")

    async def claims(self) -> list[Any]:
        """All claims."""
        return (await self.client.list(RESOURCECLAIM)).items


async def allocated(client: Client, name: str, driver: str) -> Object:
    """A pod that has a claim with a device of the driver's, both of this name; the pod is nowhere but here."""
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "x"}}]}}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": spec}
    await client.create(RESOURCECLAIM, {**body, "metadata": {"name": name, "namespace": "default"}})
    result = {"request": "r", "driver": driver, "pool": NODE, "device": name}
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": name, "uid": f"uid-{name}"}],
    }
    await client.patch(RESOURCECLAIM, name, "default", {"status": status}, subresource="status")
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return {"metadata": meta, "spec": {"resourceClaims": [{"name": "r", "resourceClaimName": name}]}}


def end_containers(root: Path) -> None:
    """Kill all containers and monitors of the agent on this root, and undo mounts and networks."""
    for path in root.glob("pods/*/containers/*/*/state.json"):
        state = json.loads(path.read_bytes())
        for pid, begun in ((state["pid"], state["pidStart"]), (state["shim"], state["shimStart"])):
            if shims.start_time(pid) == begun:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    # Both lead process groups of their own.
                    os.killpg(pid, signal.SIGKILL)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    if (root / "runc").is_dir():
        for identity in os.listdir(root / "runc"):
            command = ["runc", "--root", str(root / "runc"), "delete", "--force", identity]
            subprocess.run(command, check=False, capture_output=True)
    for path in (root / "network").glob("*.*.*.*"):
        subprocess.run(["ip", "netns", "delete", f"drakkar-{path.read_text()}"], check=False, capture_output=True)
    mounts.unmount_below(root)


async def _either(wanted: Coroutine[Any, Any, Any], running: asyncio.Task[Any]) -> None:
    waiting = asyncio.ensure_future(wanted)
    await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
    if running.done():
        running.result()
    assert waiting.done(), "nothing happened within a minute"


@contextlib.asynccontextmanager
async def cluster(
    folder: Path,
    root: Path,
    runtime: Callable[[], Runtime] = ProcessRuntime,
    *,
    only: Collection[str] | None = CONTROLLERS,
) -> AsyncIterator[Cluster]:
    """API server, controllers (`only` these; None: all of them) and scheduler; the agent is started by the test."""
    clock = SystemClock()
    server = await open_server(None, clock=clock)
    pki = open_pki(folder / "pki")
    server.agents = Agents(pki.agents_context())
    serving = await serve(server, pki=pki)
    kubeconfig = folder / "kubeconfig"
    write_kubeconfig(kubeconfig, serving.url, pki)
    client = Client(MemoryTransport(server.handle, server.token("admin", "system:masters")))
    made = Cluster(server, serving, pki, client, root, kubeconfig, runtime)
    settings = ControllerSettings(root_ca=pki.ca_certificate.decode(), pod_groups=only is None)
    controllers = Controllers(made.as_user("system:kube-controller-manager"), clock, only=only, settings=settings)
    made.run("controllers", controllers.run())
    made.run("scheduler", Scheduler(made.as_user("system:kube-scheduler"), clock).run())
    try:
        yield made
    finally:
        await made.end()
        await serving.close()
        await server.close()
