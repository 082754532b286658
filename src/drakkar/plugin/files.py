"""Files that are either the old one or the new one, also after a power cut; and files that are locked."""

import contextlib
import fcntl
import os
from enum import Enum
from pathlib import Path

from drakkar.plugin.failpoints import hit


class Lasts(Enum):
    """What a power cut may undo of a write. Every step less is a wait for the disk less."""

    #: Nothing: the new content is there.
    ALWAYS = "always"
    #: The write: the content is the new one or the one before, whole.
    OLD_OR_NEW = "old or new"
    #: The content: for files that mean nothing after a new start of the machine. A killed process undoes nothing.
    THIS_BOOT = "this boot"


def write_atomically(path: Path, content: bytes, mode: int = 0o644, *, lasts: Lasts = Lasts.ALWAYS) -> None:
    """Replace `path` by `content` and return once it is as durable as `lasts` says.

    The temporary file lies in the same folder under a name that begins with a dot, so that no reader of specs or
    checkpoints takes it for one. Raises OSError; then `path` is what it was before.
    """
    temporary = _temporary(path)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            if lasts is not Lasts.THIS_BOOT:
                os.fsync(descriptor)
        hit("file-unfinished")
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if lasts is Lasts.ALWAYS:
        sync_folder(path.parent)


def remove(path: Path) -> bool:
    """Remove a file for good, and what a crash left of a write to it; False when it was not there."""
    _temporary(path).unlink(missing_ok=True)
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    sync_folder(path.parent)
    return True


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of this file (flock(2)); not where there is no such file."""
    try:
        with path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
