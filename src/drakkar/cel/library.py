"""All functions by name, and what computes while compiling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from drakkar.cel import kubernetes, lists, network, operators, strings, timelib
from drakkar.cel.errors import no_overload
from drakkar.cel.signatures import AUTHORIZATION


def _unavailable(name: str) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        raise no_overload(name, *args)

    return call


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    **{name: _unavailable(name) for name in AUTHORIZATION},
    **operators.FUNCTIONS,
    **timelib.FUNCTIONS,
    **strings.FUNCTIONS,
    **lists.FUNCTIONS,
    **network.FUNCTIONS,
    **kubernetes.FUNCTIONS,
}
