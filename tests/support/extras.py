"""Optional parts of the installation."""

from __future__ import annotations

import importlib.util
import os

import pytest


def needs(module: str, extra: str) -> None:
    """Skips the calling tests where the extra is not installed; fails them where CI=true."""
    if importlib.util.find_spec(module) is None:
        message = f"the extra {extra!r} is not installed ({module} is missing)"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message, allow_module_level=True)
