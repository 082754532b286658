"""``drakkar node run`` and ``drakkar token create``: machines become nodes."""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import secrets
import signal
import socket
import string
from pathlib import Path
from urllib.parse import urlsplit

from drakkar.api.errors import EnvironmentProblem, UsageError
from drakkar.api.formats import dns_subdomain
from drakkar.api.kinds import SECRET
from drakkar.cli.logs import configure
from drakkar.cli.target import kubeconfigs_of, targeted
from drakkar.client import kubeconfig, timestamp
from drakkar.client.clock import SystemClock

_LETTERS = string.ascii_lowercase + string.digits


def run(args: argparse.Namespace) -> int:
    """Run the node agent until SIGTERM or Ctrl-C, which end it alike: in order, and with 0."""
    configure("INFO")

    async def until_told() -> None:
        work = asyncio.ensure_future(_run(args))
        told = False

        def stop() -> None:
            nonlocal told
            told = True
            work.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        try:
            await work
        except asyncio.CancelledError:
            if not told:
                raise

    asyncio.run(until_told())
    return 0


async def _run(args: argparse.Namespace) -> None:
    from drakkar.node.agent import join, machine
    from drakkar.node.agent.agent import Agent, Settings
    from drakkar.node.agent.choice import choose_network, choose_runtime

    try:
        import grpc  # noqa: F401
    except ModuleNotFoundError:
        raise UsageError("node run: needs the package grpcio; pip install 'drakkar[node]'") from None
    root = _root(args.root)
    made = choose_runtime(args.runtime, root, args.config, os.geteuid())
    config = join.read_join(args.join) if args.join else kubeconfig.load(kubeconfigs_of(args), args.context)
    node = args.name or socket.gethostname().lower()
    if problems := dns_subdomain(node):
        raise UsageError(f"--name {node!r} cannot be the name of a Node: {problems[0]}")
    clock = SystemClock()
    try:
        address = args.address or machine.address_towards(config.server)
        (root / "pki").mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise EnvironmentProblem(f"node {node}: {error}") from None
    own = await join.identity(config, root / "pki", node, address, clock)
    server = urlsplit(config.server)
    settings = Settings(
        node=node,
        root=root,
        address=address,
        api=(server.hostname or "", server.port or 443),
        cdi_folders=_cdi_folders(args.cdi_dir, root),
        port=args.port,
        labels=_labels(args.label),
        lease_duration=args.lease_duration,
        lease_period=args.lease_period,
    )
    client = join.connect(own, clock)
    network = choose_network(args.network, made, settings, args.pod_cidr)
    agent = Agent(client, clock, settings, made, own.tls, network=network)
    print(f"node {node}: root {root}, runtime {made.name}; Ctrl-C stops the agent, containers go on", flush=True)
    keeping = asyncio.create_task(join.keep(own, root / "pki", node, address, clock, client), name="certificates")
    try:
        await agent.run()
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await client.close()


def _root(given: str | None) -> Path:
    if given:
        return Path(given).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/kubelet")
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "drakkar" / "node"


def _cdi_folders(given: list[str] | None, root: Path) -> list[Path]:
    if given:
        return [Path(folder).expanduser().absolute() for folder in given]
    if os.geteuid() == 0:
        from drakkar.plugin.cdi import DEFAULT_FOLDERS

        return [*DEFAULT_FOLDERS]
    return [Path("/etc/cdi"), root / "cdi"]


def _labels(given: list[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for entry in given:
        key, separator, value = entry.partition("=")
        if not separator or not key:
            raise UsageError(f"--label {entry}: must be KEY=VALUE")
        labels[key] = value
    return labels


def token(args: argparse.Namespace) -> int:
    """Make a bootstrap token and print how to use it."""
    asyncio.run(_token(args))
    return 0


async def _token(args: argparse.Namespace) -> None:
    from drakkar.node.agent.join import write_join

    config = kubeconfig.load(kubeconfigs_of(args), args.context)
    if config.ca is None:
        raise UsageError(
            "token create: the kubeconfig names no certificate authority, so a machine could not know the server"
        )
    server = args.server or config.server
    parts = urlsplit(server)
    if parts.scheme != "https" or not parts.hostname:
        raise UsageError(f"token create: --server {server}: write it as https://ADDRESS:PORT")
    identity, secret = ("".join(secrets.choice(_LETTERS) for _ in range(count)) for count in (6, 16))
    clock = SystemClock()
    expiration = timestamp(clock.time() + args.ttl)
    data = {
        "token-id": identity,
        "token-secret": secret,
        "expiration": expiration,
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
        "description": "made by drakkar token create",
    }
    obj = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"bootstrap-token-{identity}", "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
    }
    async with targeted(args) as client:
        await client.create(SECRET, obj)
    host = parts.hostname
    if host in ("127.0.0.1", "localhost", "::1"):
        print(f"# {server} is reached from here only; for others start `drakkar up --listen`, or give --server")
    print(f"# good until {expiration}")
    print(f"drakkar node run --join {write_join(server, config.ca, f'{identity}.{secret}')}")
