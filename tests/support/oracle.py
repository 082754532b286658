"""The reference oracle, built once per test run from its source in the shared data."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.shared import shared_path


def oracle_binary(scratch: Path) -> Path:
    """``DRAKKAR_ORACLE``, or what ``go build`` makes of a copy in ``scratch``.

    Skips the calling test where there is neither; fails it where CI=true.
    """
    named = os.environ.get("DRAKKAR_ORACLE")
    if named:
        return Path(named)
    source = shared_path("oracle")
    if shutil.which("go") is None:
        message = "the oracle cannot be built: no go on the path (DRAKKAR_ORACLE may name a binary)"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    folder = scratch / "oracle"
    shutil.copytree(source, folder)
    subprocess.run(["go", "build", "-o", "oracle", "."], cwd=folder, check=True)
    return folder / "oracle"
