"""``drakkar backup`` and ``drakkar restore``: the embedded store as one file."""

from __future__ import annotations

import argparse
from pathlib import Path

from drakkar.api.errors import EnvironmentProblem, UsageError
from drakkar.cli.target import kubeconfig_of

_STORE = "drakkar.db"


def backup(args: argparse.Namespace) -> int:
    """Copy the store of a data folder."""
    from drakkar.store import backup as copies
    from drakkar.store.problems import StoreProblem

    target = Path(args.file).expanduser().absolute()
    try:
        copied = copies.backup(_folder(args) / _STORE, target)
    except StoreProblem as problem:
        raise EnvironmentProblem(str(problem)) from None
    print(f"{target}: {copied.objects} objects, schemaVersion {copied.schema_version}")
    return 0


def restore(args: argparse.Namespace) -> int:
    """Make a data folder from a copy."""
    from drakkar.store import backup as copies
    from drakkar.store.problems import StoreProblem

    folder = Path(args.data).expanduser().absolute()
    try:
        copied = copies.restore(Path(args.file).expanduser().absolute(), folder / _STORE, force=args.force)
    except StoreProblem as problem:
        raise EnvironmentProblem(str(problem)) from None
    print(f"{folder}: {copied.objects} objects; start it with: drakkar up --data {folder}")
    return 0


def _folder(args: argparse.Namespace) -> Path:
    """The data folder: named, or the one in which the kubeconfig of an embedded plane lies."""
    if args.data:
        return Path(args.data).expanduser().absolute()
    config = kubeconfig_of(args).absolute()
    if not (config.parent / _STORE).is_file():
        raise UsageError(
            f"{config} belongs to no embedded SQLite store ({_STORE} is not beside it); name the folder with --data"
        )
    return config.parent
