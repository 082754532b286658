"""The level of the log: from the environment, and never a traceback."""

from __future__ import annotations

import pytest

from drakkar.api.errors import UsageError
from drakkar.cli.logs import configure


def test_a_level_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAKKAR_LOG", "loud")
    with pytest.raises(UsageError, match="no such level; choose one of debug, info"):
        configure("INFO")
    monkeypatch.setenv("DRAKKAR_LOG", "info")
    configure("WARNING")
