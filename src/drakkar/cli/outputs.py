"""Files that commands write at their end."""

from __future__ import annotations

from pathlib import Path

from drakkar.api.errors import UsageError


def check_writable(flag: str, file: str | None) -> None:
    """Raises UsageError when what the flag names cannot be written: at once, and not after a story was told."""
    if not file:
        return
    try:
        with Path(file).open("a"):
            pass
    except OSError as error:
        raise UsageError(f"{flag} {file}: cannot be written: {error.strerror or error}") from error
