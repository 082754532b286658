"""Mounts of this machine: made and undone by the system's own programs, or by the kernel where a path is not enough."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import re
import shutil
import subprocess
from pathlib import Path

logger = logging.getLogger(__name__)

#: From ``linux/mount.h``.
_MS_BIND, _MNT_DETACH, _UMOUNT_NOFOLLOW = 0x1000, 0x2, 0x8
_OCTAL = re.compile(rb"\\([0-7]{3})")


class MountProblem(Exception):
    """A mount cannot be made; the words are those of the system."""


def mounted_below(folder: Path) -> list[Path]:
    """Places under a folder (or the folder) at which something is mounted, the innermost first."""
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except FileNotFoundError:
        return []
    real = os.path.realpath(folder)
    places = [os.fsdecode(_OCTAL.sub(lambda code: bytes([int(code[1], 8)]), line.split()[4])) for line in lines]
    below = {place for place in places if place == real or place.startswith(real + "/")}
    return [Path(place) for place in sorted(below, key=len, reverse=True)]


def unmount_below(folder: Path) -> None:
    """Undo all mounts under a folder; what is in use goes when it is not any more."""
    for place in mounted_below(folder):
        subprocess.run(["umount", "--lazy", str(place)], check=False, capture_output=True, stdin=subprocess.DEVNULL)


def discard(folder: Path) -> None:
    """Remove a folder, and what is mounted in it first. Nothing is removed while something is mounted still."""
    unmount_below(folder)
    if left := mounted_below(folder):
        logger.error("%s stays: %s cannot be unmounted", folder, ", ".join(map(str, left)))
        return
    shutil.rmtree(folder, ignore_errors=True)


def bind(source: Path, place: Path) -> None:
    """Mount ``source`` at ``place``, without what is mounted below it. A path in ``/proc/self/fd`` is what was opened.

    The program ``mount`` would look up the name behind the descriptor. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(os.fsencode(source), os.fsencode(place), None, ctypes.c_ulong(_MS_BIND), None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(place))


def unmount(place: Path) -> None:
    """Undo what is mounted at ``place``, once for each mount; nothing when there is none. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    while libc.umount2(os.fsencode(place), _MNT_DETACH | _UMOUNT_NOFOLLOW) == 0:
        pass
    number = ctypes.get_errno()
    if number != errno.EINVAL:
        raise OSError(number, os.strerror(number), str(place))


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
