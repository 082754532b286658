"""``drakkar explain`` and ``drakkar dump``: print what `drakkar.insight` finds out."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

from drakkar.api.errors import EnvironmentProblem, UsageError
from drakkar.api.manifests import parse_objects
from drakkar.api.meta import Object
from drakkar.cli.manifests import read_objects

_KINDS = {
    "pod": "Pod",
    "pods": "Pod",
    "po": "Pod",
    "claim": "ResourceClaim",
    "resourceclaim": "ResourceClaim",
    "resourceclaims": "ResourceClaim",
}


def explain(args: argparse.Namespace) -> int:
    """Say why a pod waits or what a claim has."""
    import msgspec

    from drakkar.insight.explain import explain, lines

    kind, name = _named(args.name)
    found = [obj for path in args.dump for obj in _objects(path)] if args.dump else asyncio.run(_live(args))
    answer = explain(found, name, args.namespace, kind=kind, policy=args.policy, now=time.time(), full=args.full)
    if args.output == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode() + "\n")
    else:
        print("\n".join(lines(answer, full=args.full)))
    return 0


def _objects(path: str) -> list[Object]:
    if path == "-":
        return parse_objects(sys.stdin.read(), "standard input")
    return read_objects(Path(path))


def _named(text: str) -> tuple[str, str]:
    kind, slash, name = text.rpartition("/")
    if not slash:
        return "", name
    known = _KINDS.get(kind.lower().partition(".")[0])
    if known is None:
        raise UsageError(f"{text}: kind {kind!r} cannot be explained; say pod/{name} or claim/{name}")
    return known, name


async def _live(args: argparse.Namespace) -> list[Object]:
    from drakkar.cli.target import targeted
    from drakkar.insight.dump import DUMPED, collect

    async with targeted(args) as client:
        return await collect(client, DUMPED)


def dump(args: argparse.Namespace) -> int:
    """Write everything that explanations need into one file."""
    from drakkar.insight.dump import without_secrets

    found = [without_secrets(obj) for obj in asyncio.run(_live(args))]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": found}, indent=1) + "\n"
    if args.file == "-":
        sys.stdout.write(text)
        return 0
    try:
        path = Path(args.file)
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentProblem(f"{args.file}: cannot be written: {error.strerror}") from error
    print(f"{len(found)} objects in {args.file}")
    return 0
