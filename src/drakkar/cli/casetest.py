"""``drakkar test``: run case folders and report, one line per case, the total last."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from drakkar.api.errors import UsageError


def run(args: argparse.Namespace) -> int:
    """Run all cases below the given paths; 1 when an expectation was missed."""
    folders = [folder for path in args.paths for folder in _cases(Path(path))]
    return asyncio.run(_run(folders, args))


def _cases(path: Path) -> list[Path]:
    if (path / "expect.yaml").is_file():
        return [path]
    found = sorted(file.parent for file in path.glob("*/expect.yaml")) if path.is_dir() else []
    if not found:
        raise UsageError(f"{path}: no case here; a case is a folder with cluster.yaml, workload.yaml and expect.yaml")
    return found


async def _run(folders: list[Path], args: argparse.Namespace) -> int:
    from drakkar.cli.plane import case_plane, cluster_plane
    from drakkar.insight.cases import run_case

    factory = cluster_plane(Path(args.kubeconfig)) if args.kubeconfig else case_plane
    passed = failed = 0
    for folder in folders:
        misses: list[str] = []
        for seed in (None, *range(1, args.shuffle + 1)):
            result = await run_case(folder, shuffle_seed=seed, plane_factory=factory)
            misses += [f"{miss} (shuffle {seed})" if seed is not None else miss for miss in result.misses]
        if misses:
            failed += 1
            print(f"FAIL {folder.name}: {'; '.join(misses)}", flush=True)
        else:
            passed += 1
            print(f"ok   {folder.name}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0
