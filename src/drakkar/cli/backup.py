"""``drakkar backup`` and ``drakkar restore``: the embedded store as one file."""

from __future__ import annotations

import argparse
from pathlib import Path

from drakkar.api.errors import EnvironmentProblem, UsageError
from drakkar.cli.target import kubeconfig_of

_STORE = "drakkar.db"
#: File in the data folder of a server on etcd: the URL of its store.
ETCD_NOTE = "etcd.url"


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
        folder = Path(args.data).expanduser().absolute()
        _refuse_etcd(folder)
        return folder
    config = kubeconfig_of(args).absolute()
    _refuse_etcd(config.parent)
    if not (config.parent / _STORE).is_file():
        raise UsageError(
            f"{config} belongs to no embedded SQLite store ({_STORE} is not beside it); name the folder with --data"
        )
    return config.parent


def _refuse_etcd(folder: Path) -> None:
    """UsageError for the folder of a server on etcd, naming what backs that up."""
    note = folder / ETCD_NOTE
    if note.is_file():
        url = note.read_text()
        endpoints = url.removeprefix("etcd://").partition("/")[0]
        raise UsageError(
            f"{folder} belongs to a server on {url}, whose objects are in etcd; back them up with: "
            f"etcdctl --endpoints={endpoints.rpartition(',')[2]} snapshot save FILE"
        )
