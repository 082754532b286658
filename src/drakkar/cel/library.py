"""All functions by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from drakkar.cel import authorization, kubernetes, lists, network, operators, strings, timelib

FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    **authorization.FUNCTIONS,
    **operators.FUNCTIONS,
    **timelib.FUNCTIONS,
    **strings.FUNCTIONS,
    **lists.FUNCTIONS,
    **network.FUNCTIONS,
    **kubernetes.FUNCTIONS,
}
