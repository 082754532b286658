"""Where the shared test data lies: ``DRAKKAR_SHARED`` (default ``../shared``)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def shared_path(relative: str) -> Path:
    """Path of shared test data; skips the calling test when it is absent, fails it where CI=true."""
    base = Path(os.environ.get("DRAKKAR_SHARED", ROOT.parent / "shared"))
    path = (base if base.is_absolute() else ROOT / base) / relative
    if not path.exists():
        message = f"shared test data {relative} not found; set DRAKKAR_SHARED"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return path
