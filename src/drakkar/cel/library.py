"""All functions by name, and what computes while compiling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from drakkar.cel import kubernetes, lists, network, operators, strings, timelib

FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    **operators.FUNCTIONS,
    **timelib.FUNCTIONS,
    **strings.FUNCTIONS,
    **lists.FUNCTIONS,
    **network.FUNCTIONS,
    **kubernetes.FUNCTIONS,
}
