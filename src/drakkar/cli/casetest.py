"""``drakkar test``: run case folders and report, one line per case, the total last."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from drakkar.api.errors import UsageError
from drakkar.cli.target import connect, kubeconfig_of

if TYPE_CHECKING:
    from drakkar.insight.cases import CaseResult


def run(args: argparse.Namespace) -> int:
    """Run all cases below the given paths; 1 when an expectation was missed."""
    folders = [folder for path in args.paths for folder in _cases(Path(path))]
    return asyncio.run(_until_told(folders, args))


async def _until_told(folders: list[Path], args: argparse.Namespace) -> int:
    """The cases, cut short by SIGTERM as by Ctrl-C: what the case has created is deleted. Then it is 128 + 15."""
    work = asyncio.ensure_future(_run(folders, args))
    told = False

    def stop() -> None:
        nonlocal told
        told = True
        work.cancel()

    with contextlib.suppress(NotImplementedError):  # There is no such signal on Windows.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    try:
        return await work
    except asyncio.CancelledError:
        if not told:
            raise
        return 128 + signal.SIGTERM


def _cases(path: Path) -> list[Path]:
    if (path / "expect.yaml").is_file():
        return [path]
    found = sorted(file.parent for file in path.glob("*/expect.yaml")) if path.is_dir() else []
    if not found:
        raise UsageError(f"{path}: no case here; a case is a folder with cluster.yaml, workload.yaml and expect.yaml")
    return found


async def _run(folders: list[Path], args: argparse.Namespace) -> int:
    passed = failed = 0
    async with _plays(args) as play:
        for folder in folders:
            misses: list[str] = []
            for seed in (None, *range(1, args.shuffle + 1)):
                result = await play(folder, seed)
                misses += [f"{miss} (shuffle {seed})" if seed is not None else miss for miss in result.misses]
            if misses:
                failed += 1
                print(f"FAIL {folder.name}: {'; '.join(misses)}", flush=True)
            else:
                passed += 1
                print(f"ok   {folder.name}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


@contextlib.asynccontextmanager
async def _plays(args: argparse.Namespace) -> AsyncIterator[Callable[[Path, int | None], Awaitable[CaseResult]]]:
    """What runs a case in an order: on a plane of its own, or as a guest on the cluster that is named."""
    from drakkar.cli.plane import case_plane
    from drakkar.insight.cases import read_case, run_case
    from drakkar.insight.guest import visit

    if not args.kubeconfig:
        yield lambda folder, seed: run_case(folder, shuffle_seed=seed, plane_factory=case_plane)
        return
    async with connect(kubeconfig_of(args)) as client:
        yield lambda folder, seed: visit(client, read_case(folder, seed), scheduler_name=args.scheduler_name)
