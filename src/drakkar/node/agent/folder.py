"""Being told when something appears in a folder or goes away, by inotify where there is such a thing."""

from __future__ import annotations

import asyncio
import ctypes
import os
from pathlib import Path

_CREATE, _DELETE, _MOVED_FROM, _MOVED_TO = 0x100, 0x200, 0x40, 0x80
_NONBLOCK, _CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC
#: Seconds between two looks where nobody tells; also the longest time that a missed word can cost.
_PAUSE = 1.0


class FolderWatch:
    """``await changed()`` returns when the folder may have changed; look first, then wait."""

    def __init__(self, folder: Path):
        self._event = asyncio.Event()
        self._descriptor = _open(folder)
        if self._descriptor is not None:
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    def _read(self) -> None:
        assert self._descriptor is not None
        try:
            os.read(self._descriptor, 64 << 10)
        except BlockingIOError:
            return
        self._event.set()

    async def changed(self) -> None:
        """Until something happens, or a while has passed."""
        try:
            async with asyncio.timeout(_PAUSE):
                await self._event.wait()
        except TimeoutError:
            return
        self._event.clear()

    def close(self) -> None:
        """Stop listening."""
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


def _open(folder: Path) -> int | None:
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "inotify_init1"):
        return None
    descriptor = libc.inotify_init1(_NONBLOCK | _CLOEXEC)
    if descriptor < 0:
        return None
    mask = _CREATE | _DELETE | _MOVED_FROM | _MOVED_TO
    if libc.inotify_add_watch(descriptor, os.fsencode(folder), ctypes.c_uint32(mask)) < 0:
        os.close(descriptor)
        return None
    return descriptor
