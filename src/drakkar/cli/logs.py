"""What running parts say on standard error, and from which level on (``DRAKKAR_LOG``)."""

from __future__ import annotations

import logging
import os
import sys

from drakkar.api.errors import UsageError

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def configure(default: str) -> None:
    """Logs from ``DRAKKAR_LOG``, else ``default``, upwards; UsageError when it is no level."""
    level = os.environ.get("DRAKKAR_LOG", default).upper()
    if level not in LEVELS:
        raise UsageError(f"DRAKKAR_LOG={level}: no such level; choose one of {', '.join(LEVELS).lower()}")
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
