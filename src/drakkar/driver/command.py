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
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from drakkar.api.errors import DrakkarError, EnvironmentProblem, UsageError
from drakkar.client import Client, Election, health, kubeconfig
from drakkar.client.clock import SystemClock
from drakkar.driver.config import Configs
from drakkar.driver.driver import Driver
from drakkar.driver.publication import Publication
from drakkar.driver.settings import NodeSettings

logger = logging.getLogger(__name__)

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
#: What a program does with its client and arguments, until it is cancelled.
Work = Callable[[Client, argparse.Namespace], Awaitable[None]]


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise ValueError
    return value


_seconds.__name__ = "number of seconds"  # What argparse calls it in its message.


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
        "--health-period", type=_seconds, default=5.0, metavar="S", help="seconds between looks at the devices (5)"
    )
    parser.add_argument(
        "--metrics-address",
        default="0",
        metavar="HOST:PORT",
        help="answer /healthz, /readyz and /metrics there, without authentication (default: 0, nowhere)",
    )
    parser.add_argument(
        "--webhook",
        metavar="HOST:PORT",
        help="serve no node, but judge parameters of claims as an admission webhook; needs --tls-cert and --tls-key",
    )
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate of the webhook, PEM")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its key, PEM")
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="serve no node, but publish the devices that belong to none; of several replicas one leads",
    )
    parser.add_argument(
        "--withdraw", action="store_true", help="remove this driver's slices when it stops: it is not coming back"
    )


def node_settings(args: argparse.Namespace) -> NodeSettings | None:
    """What the flags of :func:`add_node_arguments` say; None: no node. Raises DrakkarError without a name."""
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


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that say which API server."""
    parser.add_argument("--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, else the pod's service account")
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig")


def client_of(args: argparse.Namespace, name: str) -> Client:
    """A client for the flags of :func:`add_target_arguments`. Raises DrakkarError."""
    named = args.kubeconfig or os.environ.get("KUBECONFIG")
    config = kubeconfig.load(args.kubeconfig, args.context) if named else kubeconfig.in_cluster()
    return Client(config.transport(user_agent=name))


def run_command(parser: argparse.ArgumentParser, work: Work, argv: Sequence[str] | None) -> int:
    """Parse, log to standard error, do `work` until it ends or SIGTERM or Ctrl-C comes; returns the exit code."""
    add_target_arguments(parser)
    args = parser.parse_args(argv)
    logging.basicConfig(level=os.environ.get("DRAKKAR_LOG", "INFO").upper(), stream=sys.stderr, format=LOG_FORMAT)
    try:
        asyncio.run(_until_stopped(args, parser.prog, work))
    except (DrakkarError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


def main(driver: Driver, argv: Sequence[str] | None = None) -> int:
    """Run a driver until SIGTERM or Ctrl-C; returns the exit code."""
    parser = argparse.ArgumentParser(prog=driver.name, description=f"DRA driver {driver.name}")
    add_node_arguments(parser)
    return run_command(parser, lambda client, args: serve(driver, client, args), argv)


async def serve(driver: Driver, client: Client, args: argparse.Namespace) -> None:
    """Run a driver as the flags of :func:`add_node_arguments` say: on a node, or for devices that belong to none."""
    if args.webhook:
        await serve_webhook(driver.name, driver.configs, args)
        return
    settings = node_settings(args)
    if settings is not None:
        try:
            from drakkar.driver.service import DriverService  # grpcio is optional
        except ImportError as error:
            raise EnvironmentProblem(f"{error}; serving a node needs the extra: pip install 'drakkar[node]'") from error
        from drakkar.driver.metrics import missing, render

        service = DriverService(driver, client, SystemClock(), settings)
        address = health.address_of(args.metrics_address)
        refused = client.rights.text
        async with health.serving(address, lambda: missing(service), lambda: render(service), refused):
            await service.run()
    else:
        await lead(driver.name, client, lambda: _publish_for_cluster(driver, client), args.metrics_address)


async def lead(name: str, client: Client, work: Callable[[], Awaitable[None]], metrics_address: str = "0") -> None:
    """Do `work` in one of several replicas; all of them answer at ``metrics_address`` (HOST:PORT, 0: nowhere)."""
    election = Election(client, SystemClock(), name, f"{socket.gethostname()}-{os.getpid()}")

    def metrics() -> str:
        return "\n".join((*health.leading(election.leads.is_set()), client.rights.metrics_text()))

    # One that stands by is as ready as the one that leads: it takes over when the Lease is free.
    async with health.serving(health.address_of(metrics_address), lambda: "", metrics, client.rights.text) as url:
        if url:
            logger.info("health and metrics at %s", url)
        await election.run(work)


async def serve_webhook(name: str, configs: Configs, args: argparse.Namespace) -> None:
    """Judge parameters of claims until cancelled; needs no hardware. Raises UsageError without a certificate."""
    from drakkar.driver.webhook import serving

    address = health.address_of(args.webhook)
    if address is None or args.tls_cert is None or args.tls_key is None:
        raise UsageError("--webhook HOST:PORT needs --tls-cert and --tls-key: API servers speak only TLS to webhooks")
    async with serving(name, configs, *address, args.tls_cert, args.tls_key) as port:
        logger.info("driver %s judges parameters at https://%s:%d/", name, address[0], port)
        await asyncio.Event().wait()


async def _publish_for_cluster(driver: Driver, client: Client) -> None:
    publication = Publication(driver, client, SystemClock(), node_name="", counts=Counter())
    await publication.discover_until_it_works()
    await publication.run()


async def _until_stopped(args: argparse.Namespace, name: str, work: Work) -> None:
    client = client_of(args, name)
    task = asyncio.ensure_future(work(client, args))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        logger.info("%s stopped", name)
    except BaseExceptionGroup as group:
        raise _cause(group) from None
    finally:
        await client.close()


def _cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group that says something to a user, else the group."""
    for error in group.exceptions:
        found = _cause(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, (DrakkarError, OSError)):
            return found
    return group
