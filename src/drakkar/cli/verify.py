"""``drakkar verify``: print what `drakkar.insight.verify` finds."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from drakkar.api.meta import Object
from drakkar.cli.manifests import read_objects


def run(args: argparse.Namespace) -> int:
    """Audit a dump or a live cluster."""
    import msgspec

    from drakkar.insight.verify import verify

    objects = read_objects(Path(args.dump)) if args.dump else asyncio.run(_live(args))
    findings = verify(objects)
    if args.output == "json":
        sys.stdout.write(msgspec.json.encode(findings).decode() + "\n")
    else:
        for finding in findings:
            print(f"{finding.rule}: {finding.object}: {finding.message}")
        print(f"{len(objects)} objects, {len(findings)} finding{'' if len(findings) == 1 else 's'}")
    return 1 if findings else 0


async def _live(args: argparse.Namespace) -> list[Object]:
    from drakkar.cli.target import targeted
    from drakkar.insight.verify import collect

    async with targeted(args) as client:
        return await collect(client)
