"""Paths within a volume (``subPath``), opened such that whoever may write to the volume cannot lead them out of it.

A container can put a link into its volume at any moment, also between a check and the mount of what was checked. So
what is mounted is a descriptor: it is what was checked, whatever stands under its name later.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

from drakkar.node.agent import mounts
from drakkar.node.agent.runtime import ContainerProblem


class SubPath:
    """A path within a volume, held open. ``real`` is where it was when it was opened."""

    def __init__(self, real: Path, descriptor: int):
        self.real = real
        self.descriptor = descriptor
        self._pin: Path | None = None

    def pin(self, place: Path) -> Path:
        """Mount what was opened at ``place``, in a folder where nobody else writes, until `close`. Raises OSError."""
        source = Path(f"/proc/self/fd/{self.descriptor}")
        _remove_pin(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            place.mkdir()
        else:
            place.touch()
        mounts.bind(source, place)
        self._pin = place
        return place

    def close(self) -> None:
        """Containers that have it mounted keep it."""
        os.close(self.descriptor)
        if self._pin is not None:
            _remove_pin(self._pin)


def _remove_pin(place: Path) -> None:
    """Undo a pin, also one that a crash has left. Never what is mounted there: removing a mount point fails."""
    if not place.exists():
        return
    mounts.unmount(place)
    if place.is_dir():
        place.rmdir()
    else:
        place.unlink()


def open_sub_path(volume: Path, inner: str) -> SubPath:
    """A path within a volume; folders that are missing are made, with the volume's mode.

    Links are followed as long as they stay within. Raises ContainerProblem for what leads out, or changes meanwhile.
    """
    base = os.path.realpath(volume)
    real = os.path.realpath(os.path.join(base, inner))
    if inner.startswith("/") or not Path(real).is_relative_to(base):
        raise _problem(f"subPath {inner!r} leads out of its volume")
    try:
        return SubPath(Path(real), _descend(base, Path(real).relative_to(base).parts))
    except OSError as error:
        # A link where none was a moment ago.
        changed = error.errno in (errno.ELOOP, errno.ENOTDIR)
        raise _problem(f"subPath {inner!r}: {'it was changed' if changed else error.strerror or error}") from None


def _descend(base: str, parts: tuple[str, ...]) -> int:
    """A descriptor of ``base``/``parts``, without following links. Raises OSError."""
    at = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    mode = stat.S_IMODE(os.fstat(at).st_mode)
    for depth, part in enumerate(parts):
        try:
            inner = _open(part, at, mode, folder=depth < len(parts) - 1)
        finally:
            os.close(at)
        at = inner
    return at


def _open(name: str, parent: int, mode: int, *, folder: bool) -> int:
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_DIRECTORY if folder else 0)
    made = False
    try:
        found = os.open(name, flags, dir_fd=parent)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=parent)
            made = True
        found = os.open(name, flags, dir_fd=parent)
    if stat.S_ISLNK(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if made:
        # What the process's umask took away.
        os.chmod(f"/proc/self/fd/{found}", mode)
    return found


def _problem(words: str) -> ContainerProblem:
    return ContainerProblem("CreateContainerConfigError", words)
