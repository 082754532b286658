"""What tests of many rooms need."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder with a short path, since sockets lie in it. Who leaves more than files there cleans up before it."""
    folder = Path(tempfile.mkdtemp(prefix="dk"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
