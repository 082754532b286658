"""The one place where the API server asks what a kind brings along.

    defaults_for(kind, version)   -> (obj) -> None                     mutates, client's version
    strategy_for(group, kind)     -> Strategy
        .prepare_create(obj, now, features) -> None                    mutates, hub version (v1)
        .prepare_update(new, old, subresource, now, features) -> None  mutates new, hub version
        .warnings(obj, old) -> list[str]
    validator_for(group, kind)    -> (obj, old, subresource, ctx) -> list[FieldError]

Each lookup returns None for kinds that have nothing of their own. ``features`` may be left
out (everything on). The order of a write is: decode, defaults (client's version), convert
to v1 (`drakkar.api.resource.conversion`), prepare, admission, validate, store. For kinds
without a validator the server still checks metadata with `drakkar.api.metadata`.

``ctx`` is a :class:`ValidationContext`; set its ``version`` to the client's, so that paths of
errors are spelled as the client knows them.
"""

from __future__ import annotations

from drakkar.api.core import cluster, registration, workloads
from drakkar.api.core import defaults as core_defaults
from drakkar.api.core import strategy as core_strategy
from drakkar.api.core import validation as core_validation
from drakkar.api.resource import defaults as resource_defaults
from drakkar.api.resource import strategy as resource_strategy
from drakkar.api.resource import v1 as resource
from drakkar.api.resource import validation as resource_validation
from drakkar.api.rules import Defaults, Strategy, Validate, ValidationContext

__all__ = ["Defaults", "Strategy", "Validate", "ValidationContext", "defaults_for", "strategy_for", "validator_for"]

_DEFAULTS: dict[tuple[str, str], Defaults] = {
    **resource_defaults.DEFAULTS,
    **core_defaults.DEFAULTS,
    **workloads.DEFAULTS,
    **registration.DEFAULTS,
    **cluster.DEFAULTS,
}
_STRATEGIES: dict[tuple[str, str], Strategy] = {
    **{(resource.GROUP, kind): strategy for kind, strategy in resource_strategy.STRATEGIES.items()},
    **core_strategy.STRATEGIES,
    **cluster.STRATEGIES,
}
_VALIDATORS: dict[tuple[str, str], Validate] = {
    **{(resource.GROUP, kind): validate for kind, validate in resource_validation.VALIDATORS.items()},
    **core_validation.VALIDATORS,
}


def defaults_for(kind: str, version: str) -> Defaults | None:
    """The function that fills in defaults of ``kind`` in API version ``version`` (without the group)."""
    return _DEFAULTS.get((kind, version))


def strategy_for(group: str, kind: str) -> Strategy | None:
    """What is reset and carried over when an object of this kind is written."""
    return _STRATEGIES.get((group, kind))


def validator_for(group: str, kind: str) -> Validate | None:
    """The validation of this kind; it includes that of the metadata."""
    return _VALIDATORS.get((group, kind))
