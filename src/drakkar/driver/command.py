"""The command line of a driver program: `main(MyDriver())` at the end of its file is all it takes.

Flags fall back to the environment as a DaemonSet sets it: NODE_NAME, POD_UID, KUBELET_ROOT, CDI_DIR.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from drakkar.api.errors import DrakkarError
from drakkar.client import Client, Election, kubeconfig
from drakkar.client.clock import SystemClock
from drakkar.driver.driver import Driver
from drakkar.driver.publication import Publication
from drakkar.driver.service import DriverService, NodeSettings

logger = logging.getLogger(__name__)


def add_node_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that say on which node and where a driver works."""
    env = os.environ
    parser.add_argument(
        "--node-name",
        default=env.get("NODE_NAME", ""),
        metavar="NAME",
        help="the Node that this machine is (default: $NODE_NAME)",
    )
    parser.add_argument(
        "--kubelet-root",
        type=Path,
        default=Path(env.get("KUBELET_ROOT", "/var/lib/kubelet")),
        metavar="DIR",
        help="folder of the kubelet or node agent (default: $KUBELET_ROOT or /var/lib/kubelet)",
    )
    parser.add_argument(
        "--cdi-dir",
        type=Path,
        default=Path(env.get("CDI_DIR", "/var/run/cdi")),
        metavar="DIR",
        help="where CDI files go; the runtime must read it (default: $CDI_DIR or /var/run/cdi)",
    )
    parser.add_argument(
        "--instance-uid",
        default=env.get("POD_UID", ""),
        metavar="UID",
        help="UID of this instance's pod, for upgrades without a gap (default: $POD_UID)",
    )
    parser.add_argument(
        "--health-period", type=float, default=5.0, metavar="S", help="seconds between looks at the devices (5)"
    )
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="serve no node, but publish the devices that belong to none; of several replicas one leads",
    )
    parser.add_argument(
        "--withdraw", action="store_true", help="remove this driver's slices when it stops: it is not coming back"
    )


def node_settings(args: argparse.Namespace) -> NodeSettings | None:
    """What the flags of :func:`add_node_arguments` say; None: no node. Raises DrakkarError when the node has no name."""
    if args.cluster:
        return None
    if not args.node_name:
        raise DrakkarError("the node has no name: set --node-name or $NODE_NAME to the name of its Node object")
    return NodeSettings(
        node_name=args.node_name,
        kubelet_root=args.kubelet_root,
        cdi_folder=args.cdi_dir,
        instance_uid=args.instance_uid,
        health_period=args.health_period,
        withdraw=args.withdraw,
    )


def main(driver: Driver, argv: Sequence[str] | None = None) -> int:
    """Run a driver until SIGTERM or Ctrl-C; returns the exit code."""
    parser = argparse.ArgumentParser(description=f"DRA driver {driver.name}")
    add_node_arguments(parser)
    parser.add_argument("--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, else the pod's service account")
    args = parser.parse_args(argv)
    logging.basicConfig(level=os.environ.get("DRAKKAR_LOG", "INFO").upper(), stream=sys.stderr, format=LOG_FORMAT)
    try:
        settings = node_settings(args)
        file = args.kubeconfig or os.environ.get("KUBECONFIG")
        config = kubeconfig.load(file) if file else kubeconfig.in_cluster()
        asyncio.run(serve(driver, Client(config.transport(user_agent=driver.name)), settings))
    except (DrakkarError, OSError) as error:
        print(f"{driver.name}: {error}", file=sys.stderr)
        return 2
    return 0


LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


async def serve(driver: Driver, client: Client, settings: NodeSettings | None) -> None:
    """Run a driver until SIGTERM or SIGINT, on a node, or (None) for devices that belong to none; closes the client."""
    loop = asyncio.get_running_loop()
    if settings is None:
        work = asyncio.ensure_future(_publish_for_cluster(driver, client))
    else:
        work = asyncio.ensure_future(DriverService(driver, client, SystemClock(), settings).run())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        logger.info("driver %s stopped", driver.name)
    finally:
        await client.close()


async def _publish_for_cluster(driver: Driver, client: Client) -> None:
    clock = SystemClock()
    publication = Publication(driver, client, clock, node_name="", counts=Counter())

    async def lead() -> None:
        await publication.discover_until_it_works()
        await publication.run()

    identity = f"{socket.gethostname()}-{os.getpid()}"
    await Election(client, clock, driver.name, identity).run(lead)
