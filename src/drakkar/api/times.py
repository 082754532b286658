"""The API's way of writing a point in time."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(seconds: float, *, micro: bool = False) -> str:
    """Unix seconds as ``metav1.Time`` (whole seconds) or, with ``micro``, as ``metav1.MicroTime``."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> float:
    """Unix seconds of a time as the API writes it; raises ValueError for other texts."""
    return datetime.fromisoformat(text).timestamp()
