"""`drakkar driver run computedomain`."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from drakkar.api.errors import ApiError, UsageError
from drakkar.api.formats import label_value
from drakkar.api.kinds import NODE
from drakkar.api.meta import Object
from drakkar.client import Caches, Client
from drakkar.client.clock import SystemClock
from drakkar.client.runner import Runner
from drakkar.driver.command import add_node_arguments, lead, run_command, serve
from drakkar.driver.threads import on_loop
from drakkar.drivers.computedomain.controller import CHANNELS, CliqueController, DomainController
from drakkar.drivers.computedomain.driver import ComputeDomainDriver
from drakkar.drivers.computedomain.fabric import FakeFabric, Imex
from drakkar.drivers.computedomain.names import CLIQUE, COMPUTEDOMAIN, NAME, VERSION


def main(argv: Sequence[str] | None = None) -> int:
    """Run the controller (`--cluster`) or the part of a node."""
    parser = argparse.ArgumentParser(
        prog="drakkar driver run computedomain",
        description="Multi-node NVLink domains. Once per cluster with --cluster, and once on every node of a clique.",
    )
    parser.add_argument(
        "--clique",
        default="",
        metavar="NAME",
        help="the clique of this node, written into its label; default: what NVML says",
    )
    parser.add_argument("--channels", type=int, default=CHANNELS, metavar="N", help=f"per clique ({CHANNELS})")
    parser.add_argument(
        "--fake-fabric", type=Path, metavar="DIR", help="no hardware: a folder stands for the memory of the fabric"
    )
    parser.add_argument(
        "--fake-gpus",
        type=Path,
        metavar="DIR",
        help="with --fake-fabric: memory of this node's fake GPUs (`--fake-memory` of driver gpu), mapped in a domain",
    )
    add_node_arguments(parser)
    return run_command(parser, _work, argv)


async def _work(client: Client, args: argparse.Namespace) -> None:
    if args.cluster:
        await lead(NAME, client, lambda: control(client, args.channels), args.metrics_address)
        return
    if args.fake_gpus and not args.fake_fabric:
        raise UsageError("--fake-gpus: only with --fake-fabric DIR, the memory of the fabric")
    await label_node(client, args.node_name, args.clique or _clique_of_hardware(args))
    folder = args.kubelet_root / "plugins" / NAME
    fabric = FakeFabric(args.fake_fabric, args.fake_gpus) if args.fake_fabric else Imex(folder / "imex")
    status = DomainStatus(client, args.node_name, asyncio.get_running_loop())
    driver = ComputeDomainDriver(args.node_name, fabric, status.read, status.tell)
    await serve(driver, client, args)


async def control(client: Client, channels: int = CHANNELS) -> None:
    """Run both controllers until cancelled."""
    clock = SystemClock()
    caches = Caches(client)
    try:
        async with asyncio.TaskGroup() as group:
            for controller in (CliqueController(clock, channels=channels), DomainController(clock)):
                group.create_task(Runner(client, caches, controller, clock).run(), name=controller.name)
    finally:
        await caches.stop()


async def label_node(client: Client, node: str, clique: str) -> None:
    """Say which clique the node is on. Raises UsageError."""
    if not clique:
        raise UsageError(f"node {node} is on no clique that NVML knows; name it by --clique")
    problems = label_value(clique)
    if problems:
        raise UsageError(f"--clique {clique!r} cannot be the value of label {CLIQUE}: {problems[0]}")
    await client.patch(NODE, node, None, {"metadata": {"labels": {CLIQUE: clique}}})


class DomainStatus:
    """Reads ComputeDomains and writes this node's entry of their status, from threads of the driver."""

    def __init__(self, client: Client, node: str, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._node = node
        self._loop = loop

    def read(self, namespace: str, name: str) -> Object | None:
        """The domain; None when it does not exist."""
        return on_loop(self._loop, self._get(namespace, name))

    def tell(self, namespace: str, name: str, joined: bool) -> None:
        """Write or remove the entry; a domain that is gone needs none."""
        on_loop(self._loop, self._write(namespace, name, joined))

    async def _get(self, namespace: str, name: str) -> Object | None:
        try:
            return await self._client.get(COMPUTEDOMAIN, name, namespace)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def _write(self, namespace: str, name: str, joined: bool) -> None:
        entry: Object = {"name": self._node, "status": "Ready"}
        if joined:
            node = await self._client.get(NODE, self._node)
            addresses = (node.get("status") or {}).get("addresses") or []
            internal = next((a["address"] for a in addresses if a.get("type") == "InternalIP"), "")
            if internal:
                entry["ipAddress"] = internal
        body: Object = {
            "apiVersion": f"{NAME}/{VERSION}",
            "kind": COMPUTEDOMAIN.kind,
            "metadata": {"name": name, "namespace": namespace},
            "status": {"nodes": [entry] if joined else []},
        }
        try:
            # Applying to what does not exist would create it.
            await self._client.get(COMPUTEDOMAIN, name, namespace)
            await self._client.patch(
                COMPUTEDOMAIN,
                name,
                namespace,
                body,
                type="apply",
                subresource="status",
                field_manager=f"{NAME}-{self._node}"[:128],
                force=True,
            )
        except ApiError as error:
            if error.code != 404:
                raise


def _clique_of_hardware(args: argparse.Namespace) -> str:
    from drakkar.drivers.gpu.nvml import NvmlHardware

    gpus = NvmlHardware(Path("/"), args.kubelet_root / "plugins" / NAME).gpus()
    return next((gpu.clique for gpu in gpus if gpu.clique), "")
