"""What a kind may bring along for the API server: the shapes of its defaults, strategy and validator.

The kinds' modules (`drakkar.api.resource`, `drakkar.api.core`) fill these in, the server
asks `drakkar.api.registry`; this module keeps both from importing each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from drakkar.api.errors import FieldError
from drakkar.api.features import Features
from drakkar.api.meta import Object

#: Fills in what the client left out, in place and in the client's version; running it again changes nothing.
Defaults = Callable[[Object], None]


def _accept(expression: str) -> list[FieldError]:
    """The checker for callers that cannot compile expressions."""
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationContext:
    """What validation has to know beside the object.

    ``check_selector`` and ``check_derived_attribute`` compile one CEL expression and return
    what is wrong with it; their errors have a ``field`` relative to the expression, normally
    empty. They are called for new and changed expressions only.
    """

    check_selector: Callable[[str], list[FieldError]] = _accept
    check_derived_attribute: Callable[[str], list[FieldError]] = _accept
    features: Features = field(default_factory=Features.drakkar)
    #: Labels of the object's namespace, for administrator access.
    namespace_labels: Mapping[str, str] = field(default_factory=dict[str, str])
    #: The version the client speaks: paths of errors are reported in it.
    version: str = "v1"


class Validate(Protocol):
    """Faults of an object; none means that it may be stored.

    ``obj`` and ``old`` are in the hub version (v1), defaulted and prepared. ``old`` is None on
    create. ``subresource`` is None, ``"status"`` or what else the kind has.
    """

    def __call__(
        self, obj: Object, old: Object | None, subresource: str | None, ctx: ValidationContext, /
    ) -> list[FieldError]: ...


class PrepareCreate(Protocol):
    """Resets what a client may not set on create, in place; ``now`` is RFC 3339 with seconds."""

    def __call__(self, obj: Object, now: str, features: Features = ..., /) -> None: ...


class PrepareUpdate(Protocol):
    """Carries over from ``old`` what this endpoint may not change, in place in ``new``."""

    def __call__(
        self, new: Object, old: Object, subresource: str | None, now: str, features: Features = ..., /
    ) -> None: ...


def no_warnings(obj: Object, old: Object | None) -> list[str]:
    """For kinds that warn of nothing."""
    return []


def nothing_dropped(new: Object, old: Object | None, subresource: str | None, features: Features) -> list[str]:
    """For kinds whose fields need no gate."""
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How a kind is written, beyond what holds for every kind."""

    prepare_create: PrepareCreate
    prepare_update: PrepareUpdate
    #: Texts for HTTP ``Warning`` headers, for accepted objects.
    warnings: Callable[[Object, Object | None], list[str]] = no_warnings
    #: What writing an object with these gates would take away from it, in words for a warning.
    dropped: Callable[[Object, Object | None, str | None, Features], list[str]] = nothing_dropped
    #: Versions in which a PUT without metadata.resourceVersion is refused.
    conditional_versions: frozenset[str] = frozenset()
    #: Whether a PUT of an absent object creates it.
    create_on_update: bool = False
    #: Top-level fields that an apply to the main endpoint and to each subresource ignores.
    reset_fields: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {"": ("status",), "status": ("metadata", "spec")}
    )


def same_meaning(left: Any, right: Any) -> bool:
    """Whether two JSON values differ only in null members and empty lists, which mean absent.

    Empty objects count: an empty selector is not an absent one.
    """
    return left == right or _tidy(left) == _tidy(right)


def _tidy(value: Any) -> Any:
    if isinstance(value, dict):
        members = cast(Object, value).items()
        return {key: _tidy(item) for key, item in members if item is not None and item != []}
    if isinstance(value, list):
        return [_tidy(item) for item in cast(list[Any], value)]
    return value
