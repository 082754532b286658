"""`drakkar driver run nic`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from drakkar.api.errors import UsageError
from drakkar.client import Client
from drakkar.driver.command import add_node_arguments, run_command, serve, serve_webhook
from drakkar.drivers.nic.driver import NicDriver
from drakkar.drivers.nic.fake import FakeNetwork
from drakkar.drivers.nic.hardware import Network


def main(argv: Sequence[str] | None = None) -> int:
    """Run the NIC driver on one node."""
    parser = argparse.ArgumentParser(
        prog="drakkar driver run nic", description="SR-IOV virtual functions with a share of their port's bandwidth."
    )
    parser.add_argument("--whole-ports", action="store_true", help="offer whole ports too")
    parser.add_argument("--fake", action="store_true", help="no hardware: two ports of 100 Gbit/s, 8 functions each")
    parser.add_argument(
        "--lab",
        action="append",
        default=[],
        metavar="PORT=LINK,LINK",
        help="links that stand for a port and its functions, such as one side each of veth pairs (repeatable)",
    )
    parser.add_argument("--lab-speed", type=int, default=10_000, metavar="MBIT", help="of such ports (10000)")
    add_node_arguments(parser)
    return run_command(parser, _work, argv)


async def _work(client: Client, args: argparse.Namespace) -> None:
    if args.webhook:
        await serve_webhook(NicDriver.name, NicDriver.configs, args)
        return
    await serve(NicDriver(_network(args), whole_ports=args.whole_ports), client, args)


def _network(args: argparse.Namespace) -> Network:
    if args.fake:
        return FakeNetwork()
    from drakkar.drivers.nic.linux import LinuxNetwork

    lab: dict[str, list[str]] = {}
    for text in args.lab:
        port, equals, links = text.partition("=")
        if not equals or not port or not links:
            raise UsageError(f"--lab {text}: write PORT=LINK,LINK")
        lab[port] = links.split(",")
    return LinuxNetwork(args.kubelet_root / "plugins" / NicDriver.name, lab=lab, speed=args.lab_speed)
