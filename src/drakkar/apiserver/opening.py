"""From a data folder to a running server, with problems said in one sentence."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

from drakkar.api.clock import Clock
from drakkar.api.errors import EnvironmentProblem, UsageError
from drakkar.api.features import Features
from drakkar.apiserver.limits import Limits
from drakkar.apiserver.server import ApiServer
from drakkar.store import Backend, MemoryBackend
from drakkar.store.failpoints import Failpoints
from drakkar.store.problems import StoreProblem


def open_store(path: str | os.PathLike[str], *, synchronous: str = "FULL") -> Backend:
    """The SQLite store in this file. Raises EnvironmentProblem, having changed nothing."""
    from drakkar.store.sqlite import SqliteBackend

    try:
        return SqliteBackend(path, synchronous=synchronous)
    except StoreProblem as problem:
        raise EnvironmentProblem(str(problem)) from None


def open_etcd(url: str) -> Backend:
    """The store in this etcd, taken over from whoever wrote to it. Raises UsageError or EnvironmentProblem."""
    try:
        from drakkar.store.etcd import EtcdBackend
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "grpc":
            raise
        raise UsageError(f"--store {url}: needs the package grpcio; pip install 'drakkar[etcd]'") from None
    try:
        return EtcdBackend(url)
    except StoreProblem as problem:
        raise EnvironmentProblem(str(problem)) from None


async def open_server(
    data: str | os.PathLike[str] | None,
    *,
    clock: Clock,
    store: str | None = None,
    synchronous: str = "FULL",
    rng: random.Random | None = None,
    features: Features | None = None,
    on_failure: Callable[[BaseException], None] | None = None,
    limits: Limits | None = None,
) -> ApiServer:
    """A started server over ``data``/drakkar.db, or over memory when ``data`` is None.

    ``store`` takes the place of both: ``etcd://host:port[,host:port…][/prefix]``.

    Failpoints are taken from the environment. Raises EnvironmentProblem or UsageError.
    """
    try:
        failpoints = Failpoints.from_environment()
    except ValueError as error:
        raise UsageError(str(error)) from None
    if store is not None:
        backend = open_etcd(store)
    elif data is None:
        backend = MemoryBackend()
    else:
        backend = open_store(Path(data) / "drakkar.db", synchronous=synchronous)
    server = ApiServer(
        backend, clock=clock, rng=rng, features=features, failpoints=failpoints, on_failure=on_failure, limits=limits
    )
    try:
        await server.start()
    except BaseException:
        await backend.close()
        raise
    return server
