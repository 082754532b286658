"""Logs of containers: lines as they stand in a file, and which of them a client asked for.

A file has the form that container runtimes write for a kubelet: ``TIME STREAM TAG TEXT``, where the tag ``P`` says that
the line goes on in the next entry and ``F`` that it is whole. Older files of a log lie beside it, as ``NAME.1`` and
so on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from drakkar.client.clock import parse_timestamp
from drakkar.node.agent.streams import LogOptions

#: Seconds between two looks at a file that is followed.
_PAUSE = 0.1
#: Bytes that go out together.
_PIECE = 64 << 10


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of a log. ``stamp`` is its time as RFC 3339; ``text`` ends with a newline when the line is whole."""

    stamp: str
    stream: str
    text: bytes


def parse(entry: bytes) -> Line | None:
    """A line of a file; None when it is none, as after a crash in the middle of a write."""
    parts = entry.rstrip(b"\n").split(b" ", 3)
    if len(parts) < 3 or parts[1] not in (b"stdout", b"stderr"):
        return None
    text = parts[3] if len(parts) == 4 else b""
    return Line(parts[0].decode("latin-1"), parts[1].decode(), text if parts[2].startswith(b"P") else text + b"\n")


def chosen(lines: Iterable[Line], options: LogOptions) -> Iterator[bytes]:
    """The lines that the options ask for, as they are sent."""
    found = (line for line in lines if _wanted(line, options))
    for line in found if options.tail is None else deque(found, options.tail):
        yield rendered(line, options)


def rendered(line: Line, options: LogOptions) -> bytes:
    """A line as it is sent."""
    return line.stamp.encode() + b" " + line.text if options.timestamps else line.text


def _wanted(line: Line, options: LogOptions) -> bool:
    if options.stream and line.stream != options.stream:
        return False
    if options.since is None:
        return True
    try:
        return parse_timestamp(line.stamp) >= options.since
    except ValueError:
        return True


async def read(path: Path, options: LogOptions, ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The log in this file and the older ones beside it; followed, until ``ended`` says that nothing more comes."""
    # Opened before the older ones are looked for: what is moved aside meanwhile is read through the open file.
    with contextlib.ExitStack() as stack:
        current: BufferedReader | None = None
        with contextlib.suppress(FileNotFoundError):
            current = stack.enter_context(path.open("rb"))
        pieces = await asyncio.to_thread(lambda: b"".join(chosen(_entries(path, current), options)))
        for at in range(0, len(pieces), _PIECE):
            yield pieces[at : at + _PIECE]
        if not options.follow:
            return
        while True:
            last_look = ended()
            if current is None:
                with contextlib.suppress(FileNotFoundError):
                    current = stack.enter_context(path.open("rb"))
            new = b"".join(rendered(line, options) for line in _new_lines(current) if _wanted(line, options))
            if new:
                yield new
            elif current is not None and _moved(path, current):
                current = stack.enter_context(path.open("rb"))
            elif last_look:
                return
            else:
                await asyncio.sleep(_PAUSE)


def _entries(path: Path, current: BufferedReader | None) -> Iterator[Line]:
    older = sorted(path.parent.glob(f"{path.name}.*"), key=_age, reverse=True)
    for file in older:
        with contextlib.suppress(FileNotFoundError), file.open("rb") as opened:
            yield from _new_lines(opened)
    yield from _new_lines(current)


def _age(path: Path) -> int:
    ending = path.suffix[1:]
    return int(ending) if ending.isascii() and ending.isdigit() else 0


def _new_lines(file: BufferedReader | None) -> Iterator[Line]:
    """Whole entries from where the file stands; half of one is left for the next time."""
    while file is not None and (entry := file.readline()):
        if not entry.endswith(b"\n"):
            file.seek(-len(entry), 1)
            return
        line = parse(entry)
        if line is not None:
            yield line


def _moved(path: Path, file: BufferedReader) -> bool:
    """Whether another file stands under this name now."""
    try:
        return path.stat().st_ino != os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False
