"""Which cluster a command addresses, and a client for it.

Order: ``--kubeconfig``/``--context``, ``$KUBECONFIG``, the service account of the pod that this is, this user's running
``drakkar up``, ``~/.kube/config``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from drakkar.api.errors import UsageError
from drakkar.cli.running import newest_kubeconfig
from drakkar.client import Client, kubeconfig


def kubeconfig_of(args: argparse.Namespace) -> Path:
    """The kubeconfig file to use, the first one where there are several. Raises UsageError when there is none."""
    return kubeconfigs_of(args)[0]


def kubeconfigs_of(args: argparse.Namespace) -> list[Path]:
    """The kubeconfig files to use; ``$KUBECONFIG`` may name several. Raises UsageError when there is none."""
    if args.kubeconfig:
        path = Path(args.kubeconfig).expanduser()
        if not path.is_file():
            raise UsageError(f"--kubeconfig {args.kubeconfig}: no such file")
        return [path]
    if os.environ.get("KUBECONFIG"):
        there = [path for path in kubeconfig.default_files() if path.is_file()]
        if not there:
            raise UsageError(f"$KUBECONFIG names no existing file ({os.environ['KUBECONFIG']}); unset it or correct it")
        return there
    running = newest_kubeconfig()
    if running is not None:
        return [running]
    fallback = Path.home() / ".kube" / "config"
    if fallback.is_file():
        return [fallback]
    raise UsageError("no cluster: start one with `drakkar up`, or name one with --kubeconfig")


@asynccontextmanager
async def connect(path: Path, context: str | None = None) -> AsyncIterator[Client]:
    """A client for the cluster of a kubeconfig; closed at the end of the block."""
    async with _open(kubeconfig.load(path, context)) as client:
        yield client


@asynccontextmanager
async def targeted(args: argparse.Namespace, role: str = "") -> AsyncIterator[Client]:
    """A client for the cluster that the command line addresses: within a pod for its own, unless told otherwise.

    ``role`` is the name of the roles that the chart has for the command, if it has any: parts of a cluster have some,
    commands that end with their answer have none.
    """
    if not args.kubeconfig and not os.environ.get("KUBECONFIG") and kubeconfig.runs_in_pod():
        config = kubeconfig.in_cluster()
    else:
        config = kubeconfig.load(kubeconfigs_of(args), args.context)
    async with _open(config, role, lasting=bool(role)) as client:
        yield client


@asynccontextmanager
async def _open(config: kubeconfig.Config, role: str = "", *, lasting: bool = True) -> AsyncIterator[Client]:
    client = Client(config.transport(), role=role, lasting=lasting)
    try:
        yield client
    finally:
        await client.close()
