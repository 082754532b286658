"""`drakkar driver run tpu`."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from drakkar.api.errors import UsageError
from drakkar.api.kinds import NODE
from drakkar.api.meta import Object
from drakkar.api.names import TPU_DRIVER
from drakkar.client import Caches, Client
from drakkar.client.clock import SystemClock
from drakkar.driver.command import add_node_arguments, lead, run_command, serve
from drakkar.driver.threads import on_loop
from drakkar.drivers.tpu.chips import FakeChips, LinuxChips
from drakkar.drivers.tpu.driver import BROKEN, TpuDriver
from drakkar.drivers.tpu.fabric import Fabric, FakeFabric, ProgramFabric
from drakkar.drivers.tpu.host import TpuHostDriver


def main(argv: Sequence[str] | None = None) -> int:
    """Run the central controller, or with the name of a node the part of a host."""
    parser = argparse.ArgumentParser(
        prog="drakkar driver run tpu",
        description="Multi-host TPU slices from the labels of Nodes: once per cluster; and with --node-name (or "
        "$NODE_NAME) on every host that runs containers, where it hands out the chips.",
    )
    parser.add_argument(
        "--fabric-program",
        type=Path,
        metavar="FILE",
        help="central part: program that links the hosts of a claim; pods wait for it (docs/reference/tpu-driver.md)",
    )
    parser.add_argument("--fake-fabric", type=Path, metavar="DIR", help="central part: a folder stands for the fabric")
    parser.add_argument("--fake-chips", type=int, metavar="N", help="part of a host: no hardware, N chips")
    add_node_arguments(parser)
    return run_command(parser, _work, argv)


async def _work(client: Client, args: argparse.Namespace) -> None:
    central = args.cluster or not args.node_name
    _refuse(args, ("--fake-chips",) if central else ("--fabric-program", "--fake-fabric"), central=central)
    if args.fabric_program and args.fake_fabric:
        raise UsageError("--fabric-program and --fake-fabric: there is one fabric")
    if central:
        driver = TpuDriver(client, SystemClock(), _fabric(args))
        await lead("tpu-driver", client, driver.run, args.metrics_address)
        return
    folder = args.kubelet_root / "plugins" / TPU_DRIVER / "fake"
    chips = FakeChips(folder, args.fake_chips) if args.fake_chips is not None else LinuxChips()
    caches = Caches(client)
    node = OwnNode(client, caches, args.node_name, asyncio.get_running_loop())
    await caches.start()
    try:
        await serve(TpuHostDriver(chips, node.read, node.seen, node.mark), client, args)
    finally:
        await caches.stop()


def _refuse(args: argparse.Namespace, flags: Sequence[str], *, central: bool) -> None:
    for flag in flags:
        if getattr(args, flag[2:].replace("-", "_")) is not None:
            where = "of a host; give --node-name" if central else "for the whole cluster; give --cluster"
            raise UsageError(f"{flag} is for the part {where}")


def _fabric(args: argparse.Namespace) -> Fabric | None:
    if args.fabric_program:
        return ProgramFabric(args.fabric_program)
    return FakeFabric(args.fake_fabric) if args.fake_fabric else None


class OwnNode:
    """Watches, reads and marks the Node of this host; to be asked from threads of the driver."""

    def __init__(self, client: Client, caches: Caches, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._watched = caches.of(NODE, field_selector=f"metadata.name={name}")
        self._name = name
        self._loop = loop

    def read(self) -> Object:
        """The Node. Raises ApiError, Unreachable."""
        return on_loop(self._loop, self._client.get(NODE, self._name))

    def seen(self) -> Object | None:
        """The Node as the watch told it last; None before it did."""
        return self._watched.get(None, self._name)

    def mark(self, problem: str) -> None:
        """Say what is wrong with the chips; empty: nothing."""
        annotations = {BROKEN: problem or None}
        on_loop(self._loop, self._client.patch(NODE, self._name, None, {"metadata": {"annotations": annotations}}))
