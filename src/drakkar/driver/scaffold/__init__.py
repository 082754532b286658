"""`drakkar driver new`: a working driver to begin with, its tests, manifests and rights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from drakkar.api.errors import UsageError
from drakkar.api.formats import dns_subdomain

#: Names of Services begin with a letter and have at most 63 characters (RFC 1035); the longest is ``SHORT-webhook``.
_SHORT = 63 - len("-webhook")


def scaffold(name: str, folder: Path) -> list[Path]:
    """Write the files of driver `name` into `folder`, which must not hold any; returns them.

    Raises UsageError when the name is no DNS name of a domain or the folder is not empty.
    """
    problems = dns_subdomain(name)
    if problems or "." not in name or len(name) > 63:
        why = problems[0] if problems else "it needs a dot and at most 63 characters"
        raise UsageError(f"driver name {name!r}: {why}; use one within a domain of yours, such as gpu.example.com")
    short = name.partition(".")[0]
    if not short[0].isalpha():
        short = f"driver-{short}"
    if len(short) > _SHORT:
        raise UsageError(
            f"driver name {name!r}: the Service {short}-webhook would have a name of more than 63 characters; "
            f"use a name of at most {_SHORT} characters before the first dot"
        )
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"folder {folder} is not empty; choose another one by --folder")
    values = {
        "name": name,
        "short": short,
        "class_name": "".join(part.capitalize() for part in re.split(r"[^a-z0-9]+", short)) + "Driver",
        "prefix": re.sub(r"[^A-Z0-9]", "_", short.upper()),
    }
    written: list[Path] = []
    for source, place in _walk(files(__name__) / "files", Path()):
        path = folder / place.with_suffix("")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template(source.read_text()).substitute(values))
        written.append(path)
    return sorted(written)


def _walk(folder: Traversable, place: Path) -> Iterator[tuple[Traversable, Path]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, place / entry.name)
        elif entry.name.endswith(".tmpl"):
            yield entry, place / entry.name
