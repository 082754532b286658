"""The composition root: which parts make up a plane, and how they are wired.

All parts of one process talk to the API server over the in-memory transport, with tokens
of their own, so authentication and authorization are the same as over TLS.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from drakkar.api.errors import EnvironmentProblem

if TYPE_CHECKING:
    pass

#: Component → (user, groups): what each part may do is decided by these names.
IDENTITIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "scheduler": ("system:kube-scheduler", ()),
    "controllers": ("system:kube-controller-manager", ()),
    "hollow": ("drakkar:hollow-nodes", ("system:nodes",)),
    "driver": ("drakkar:driver", ("drakkar:drivers",)),
    "admin": ("drakkar:admin", ("system:masters",)),
}


@dataclass(frozen=True, kw_only=True)
class PlaneOptions:
    """What a plane is made of. Times are in seconds."""

    data: Path
    fleet: str | None = None
    store: str = "sqlite"
    sync: str = "full"
    port: int = 0
    scheduler: bool = True
    controllers: bool = True
    driver: bool = True
    own_process: tuple[str, ...] = ()
    lease_duration: float = 40
    lease_period: float = 10
    node_grace: float = 40

    @staticmethod
    def of(args: argparse.Namespace, data: Path, fleet: str | None) -> PlaneOptions:
        """Options from a command line; ``demo`` has only some of the arguments of ``up``."""
        sigstop = getattr(args, "fault", "") == "sigstop"
        return PlaneOptions(
            data=data,
            fleet=fleet,
            store=getattr(args, "store", "sqlite"),
            sync=args.sync,
            port=args.port,
            scheduler=not getattr(args, "no_scheduler", False),
            controllers=not getattr(args, "no_controllers", False),
            driver=not getattr(args, "no_driver", False),
            own_process=("*",) if sigstop else tuple(getattr(args, "own_process", ())),
            lease_duration=args.lease_duration,
            lease_period=args.lease_period,
            node_grace=args.node_grace,
        )


@contextlib.contextmanager
def data_folder(given: str | None) -> Iterator[Path]:
    """The given data folder, made when missing, or a temporary one that is removed at the end."""
    if given is None:
        folder = Path(tempfile.mkdtemp(prefix="drakkar-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    folder = Path(given).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise EnvironmentProblem(f"--data {given}: cannot create the folder: {error.strerror}") from error
    yield folder
