"""``drakkar driver …``: run a driver of ours, check anybody's, begin one's own."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import shlex
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from drakkar.api.errors import UsageError
from drakkar.api.kinds import NODE
from drakkar.api.meta import Object
from drakkar.api.names import LABEL_HOSTNAME
from drakkar.cli.logs import configure
from drakkar.cli.target import kubeconfig_of
from drakkar.client import Client, kubeconfig

if TYPE_CHECKING:
    from drakkar.driver.check import Report


def run(args: argparse.Namespace) -> int:
    """Hand over to the driver's own command line."""
    if not kubeconfig.runs_in_pod() and not os.environ.get("KUBECONFIG"):
        # The pod's account, or what the user names, comes first; else what every command of ours takes.
        with contextlib.suppress(UsageError):
            os.environ["KUBECONFIG"] = str(kubeconfig_of(argparse.Namespace(kubeconfig=None)))
    return importlib.import_module(f"drakkar.drivers.{args.name}.command").main(args.arguments)


def check(args: argparse.Namespace) -> int:
    """Run the conformance kit."""
    import msgspec

    from drakkar.driver.check import CHECKS

    configure("ERROR")
    known = {found.name for found in CHECKS}
    only = [name for name in (args.only or "").split(",") if name]
    if set(only) - known:
        raise UsageError(f"--only {args.only}: no such check; there are {', '.join(found.name for found in CHECKS)}")
    args.api = os.path.abspath(os.path.expanduser(args.api)) if args.api else None  # The driver may work elsewhere.
    if not args.command and not args.socket:
        raise UsageError("nothing to check: name a running driver by --socket, or how to start one by --command")
    with tempfile.TemporaryDirectory(prefix="drakkar-") as temporary:
        # Sockets have short names only: everything of a driver that the kit starts lies in this folder.
        root = Path(args.kubelet_root or (temporary if args.command else "/var/lib/kubelet"))
        cdi = Path(args.cdi_dir or (root / "cdi" if args.command else "/var/run/cdi"))
        if args.command:
            (root / "plugins_registry").mkdir(parents=True, exist_ok=True)
            cdi.mkdir(parents=True, exist_ok=True)
            (root / "plane").mkdir(exist_ok=True)
        log = Path(args.log) if args.log else Path(temporary, "driver.log")
        report = asyncio.run(_check(args, only, root, cdi, log))
    if args.output == "json":
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        print(report.total())
    return 1 if report.failed else 0


async def _check(args: argparse.Namespace, only: list[str], root: Path, cdi: Path, log: Path) -> Report:
    from drakkar.driver.check import Subject, run_checks

    async with _api(args, root / "plane") as (client, config):
        subject = Subject(
            parameters=_parameters(args.parameters),
            refusals=None if args.api else lambda: _refusals(root / "plane" / _AUDIT),
            kubelet_root=root,
            cdi_folder=cdi,
            client=client,
            node_name=args.node_name,
            socket=Path(args.socket) if args.socket else None,
            command=shlex.split(args.command or ""),
            environment={
                "KUBECONFIG": config,
                "NODE_NAME": args.node_name,
                "KUBELET_ROOT": str(root),
                "CDI_DIR": str(cdi),
            },
            log=log,
        )
        if args.output == "json":
            return await run_checks(subject, only)
        return await run_checks(subject, only, lambda finding: print(finding.text(), flush=True))


@asynccontextmanager
async def _api(args: argparse.Namespace, data: Path) -> AsyncIterator[tuple[Client | None, str]]:
    """The API server that the driver talks to: the given one, or an embedded one for a driver that the kit starts."""
    if args.api:
        client = Client(kubeconfig.load(args.api).transport())
        try:
            yield client, args.api
        finally:
            await client.close()
    elif args.command:
        from drakkar.cli.plane import Plane, PlaneOptions

        policy = data / "policy.yaml"
        policy.write_text(_POLICY)
        options = PlaneOptions(
            data=data,
            store="memory",
            scheduler=False,
            controllers=False,
            driver=False,
            audit_log=str(data / _AUDIT),
            audit_policy=str(policy),
        )
        async with Plane(options) as plane:
            client = Client(kubeconfig.load(plane.kubeconfig).transport())
            try:
                metadata = {"name": args.node_name, "labels": {LABEL_HOSTNAME: args.node_name}}
                await client.create(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
                yield client, str(plane.kubeconfig)
            finally:
                await client.close()
    else:
        yield None, ""


#: The embedded API server's record of requests, in its data folder, and what of them it keeps: writes to slices.
_AUDIT = "audit.log"
_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create, update, patch]
  resources: [{group: resource.k8s.io, resources: [resourceslices]}]
- level: None
"""


def _refusals(log: Path) -> list[str]:
    """Why the embedded API server refused slices of the driver."""
    events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    statuses = [event.get("responseStatus") or {} for event in events]
    return [status.get("message", "") for status in statuses if status.get("code", 0) in (400, 403, 422)]


def _parameters(path: str | None) -> Object | None:
    """Parameters of the driver from a file, YAML or JSON. Raises UsageError."""
    if path is None:
        return None
    import yaml  # A driver that is run needs none of it.

    try:
        found = yaml.safe_load(Path(path).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"--parameters {path}: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"--parameters {path}: must be an object, as in opaque.parameters of a claim")
    return found


def new(args: argparse.Namespace) -> int:
    """Write a new driver."""
    from drakkar.driver.scaffold import scaffold

    folder = Path(args.folder or args.name.partition(".")[0])
    for path in scaffold(args.name, folder):
        print(path)
    python = shlex.quote(sys.executable)
    print(f"next: cd {shlex.quote(str(folder))}, then {python} -m pytest, and see README.md")
    return 0
