"""``drakkar verify``: print what `drakkar.insight.verify` finds."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sized
from pathlib import Path

from drakkar.api.errors import UsageError
from drakkar.api.meta import Object
from drakkar.cli.manifests import read_objects


def run(args: argparse.Namespace) -> int:
    """Audit a dump or a live cluster."""
    import msgspec

    from drakkar.insight.verify import verify

    objects = _dumped(Path(args.dump)) if args.dump else asyncio.run(_live(args))
    findings = verify(objects)
    if args.output == "json":
        sys.stdout.write(msgspec.json.encode(findings).decode() + "\n")
    else:
        for finding in findings:
            print(f"{finding.rule}: {finding.object}: {finding.message}")
        print(f"{_count(objects, 'object')}, {_count(findings, 'finding')}")
    return 1 if findings else 0


def _count(found: Sized, what: str) -> str:
    return f"{len(found)} {what}{'' if len(found) == 1 else 's'}"


def _dumped(path: Path) -> list[Object]:
    """What the audit reads of a dump. A dump without any of it is a mistake, not a sound cluster."""
    from drakkar.insight.dump import READ

    kinds = [kind.kind for kind in READ]
    objects = [obj for obj in read_objects(path) if obj.get("kind") in kinds]
    if not objects:
        raise UsageError(f"{path}: holds nothing to audit; a dump holds objects of {', '.join(kinds)}")
    return objects


async def _live(args: argparse.Namespace) -> list[Object]:
    from drakkar.cli.target import targeted
    from drakkar.insight.verify import collect

    async with targeted(args) as client:
        return await collect(client)
