"""Mounts of this machine: made and undone by the system's own programs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


class MountProblem(Exception):
    """A mount cannot be made; the words are those of the system."""


def mounted_below(folder: Path) -> list[Path]:
    """Places under a folder (or the folder) at which something is mounted, the innermost first."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except FileNotFoundError:
        return []
    real = os.path.realpath(folder)
    places = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    below = {place for place in places if place == real or place.startswith(real + "/")}
    return [Path(place) for place in sorted(below, key=len, reverse=True)]


def unmount_below(folder: Path) -> None:
    """Undo all mounts under a folder; what is in use goes when it is not any more."""
    for place in mounted_below(folder):
        subprocess.run(["umount", "--lazy", str(place)], check=False, capture_output=True, stdin=subprocess.DEVNULL)


def discard(folder: Path) -> None:
    """Remove a folder, and what is mounted in it first."""
    unmount_below(folder)
    shutil.rmtree(folder, ignore_errors=True)


def mount(kind: str, source: str, place: Path, options: str) -> None:
    """Raises MountProblem."""
    command = ["mount", "-t", kind, "-o", options, source, str(place)]
    done = subprocess.run(command, check=False, capture_output=True, stdin=subprocess.DEVNULL, text=True)
    if done.returncode != 0:
        raise MountProblem(f"cannot mount {kind} at {place}: {done.stderr.strip()}")


def tmpfs(place: Path, size: str) -> None:
    """Memory at a folder; ``size`` is a quantity, empty for the system's default. Raises MountProblem."""
    from drakkar.api.quantity import Quantity

    limit = f",size={Quantity.parse(size).to_int()}" if size else ""
    mount("tmpfs", "tmpfs", place, f"mode=1777,nosuid,nodev{limit}")
