"""``drakkar allocate`` and ``drakkar cel``: cases in, answers out, one JSON line each."""

from __future__ import annotations

import argparse
import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import msgspec

from drakkar.api.errors import UsageError


def _open(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _lines(name: str) -> Iterator[bytes]:
    if name == "-":
        yield from sys.stdin.buffer
        return
    path = Path(name)
    try:
        with _open(path) as source:
            yield from source
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror or error}") from error


def allocate(args: argparse.Namespace) -> int:
    """Answer scenarios in the order they come; a line may also be a corpus line with a ``scenario`` in it."""
    from drakkar.allocator.batch import answer, check

    for number, line in enumerate(_lines(args.file), start=1):
        if not line.strip():
            continue
        try:
            scenario = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise UsageError(f"{args.file}: line {number}: not valid JSON: {error}") from error
        try:
            scenario = check(scenario.get("scenario", scenario) if isinstance(scenario, dict) else scenario)
        except UsageError as error:
            raise UsageError(f"{args.file}: line {number}: {error}") from error
        sys.stdout.buffer.write(msgspec.json.encode(answer(scenario, args.policy)) + b"\n")
    sys.stdout.buffer.flush()
    return 0


def cel(args: argparse.Namespace) -> int:
    """Evaluate case files."""
    from drakkar.cel.cases import run_file

    for name in args.files:
        if not Path(name).is_file():
            raise UsageError(f"{name}: no such file")
        for result in run_file(Path(name)):
            sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
    sys.stdout.buffer.flush()
    return 0
