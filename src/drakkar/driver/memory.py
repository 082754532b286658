"""What a driver has to remember beyond its claims, such as hardware that is lent away: one value in one file."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

import msgspec

from drakkar.plugin.files import write_atomically

T = TypeVar("T")


class Memory(Generic[T]):
    """A value of type `type` in `file`; `nothing` as long as there is none, or none that can be read."""

    def __init__(self, file: Path, type: type[T], nothing: T) -> None:
        self._file = file
        self._type = type
        self._nothing = nothing
        self._lock = Lock()

    def read(self) -> T:
        """The value as it was last written."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=self._type)
        except (OSError, msgspec.DecodeError):
            return self._nothing

    def write(self, value: T) -> None:
        """Keep the value, durably; a file that says so already is left alone. Raises OSError."""
        content = msgspec.json.encode(value)
        with self._lock:
            if not self._file.exists() or self._file.read_bytes() != content:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._file, content)
