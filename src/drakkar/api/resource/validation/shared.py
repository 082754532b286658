"""Checks that several kinds of resource.k8s.io share.

Every function takes the :class:`Faults` to fill and the path of the value, and expects JSON
that has passed the schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, cast

import msgspec

from drakkar.api import formats
from drakkar.api.errors import ParseError
from drakkar.api.faults import Faults, keyed
from drakkar.api.meta import Object
from drakkar.api.quantity import Quantity
from drakkar.api.rules import ValidationContext, same_meaning
from drakkar.api.semver import Semver
from drakkar.api.tree import children, text, texts

ATTRIBUTE_TEXT_MAX: Final = 64
EXPRESSION_MAX: Final = 10 * 1024
RAW_OBJECT_MAX: Final = 10 * 1024
SELECTORS_MAX: Final = 32
CONFIG_MAX: Final = 32
CONDITIONS_MAX: Final = 8
BINDING_CONDITIONS_MAX: Final = 4

TAINT_EFFECTS: Final = ("None", "NoSchedule", "NoExecute")
TOLERATION_OPERATORS: Final = ("Exists", "Equal")
SKIP_OPERATIONS: Final = ("NodePrepareResources", "NodeUnprepareResources", "*")

IMMUTABLE: Final = "field is immutable"
_CONDITION_REASON: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")


# Names.


def named(faults: Faults, path: str, value: str, format: formats.Check) -> bool:
    """A required name in a format."""
    if not value:
        faults.required(path)
        return False
    return faults.check(path, value, format)


def driver_name(faults: Faults, path: str, value: str) -> None:
    """A driver name; upper case is let through, as upstream does (the slice strategy warns)."""
    if not value:
        faults.required(path)
        return
    if len(value) > formats.DRIVER_NAME_MAX:
        faults.too_long(path, formats.DRIVER_NAME_MAX)
    for message in formats.dns_subdomain(value.lower()):
        faults.invalid(path, value, message)


def pool_name(faults: Faults, path: str, value: str) -> None:
    """Subdomains joined by slashes."""
    if not value:
        faults.required(path)
        return
    if len(value) > formats.POOL_NAME_MAX:
        faults.too_long(path, formats.POOL_NAME_MAX)
    for part in value.split("/"):
        faults.check(path, part, formats.dns_subdomain)


def qualified_name(faults: Faults, path: str, value: str) -> None:
    """``id`` or ``domain/id``: the name of an attribute or capacity."""
    if not value:
        faults.required(path, "name required")
        return
    domain, slash, identifier = value.rpartition("/")
    if slash:
        if not domain:
            faults.invalid(path, value, "the domain must not be empty")
        elif "/" in domain:
            faults.invalid(path, value, "must not contain more than one '/'")
            return
        else:
            driver_name(faults, path, domain)
    if not identifier:
        faults.invalid(path, value, "the name must not be empty")
        return
    if len(identifier) > formats.IDENTIFIER_MAX:
        faults.too_long(path, formats.IDENTIFIER_MAX)
    faults.check(path, identifier, formats.c_identifier)


def fully_qualified_name(faults: Faults, path: str, value: str) -> None:
    """``domain/id``."""
    if value and "/" not in value:
        faults.invalid(path, value, "must include a domain")
        return
    qualified_name(faults, path, value)


#: Longest key of an attribute or capacity map, for paths.
QUALIFIED_NAME_MAX: Final = formats.DRIVER_NAME_MAX + 1 + formats.IDENTIFIER_MAX


def short_text(faults: Faults, path: str, value: str) -> None:
    """The value of a string attribute."""
    if len(value.encode()) > ATTRIBUTE_TEXT_MAX:
        faults.too_long(path, ATTRIBUTE_TEXT_MAX)


def version(faults: Faults, path: str, value: str) -> None:
    """The value of a version attribute."""
    short_text(faults, path, value)
    if not is_version(value):
        faults.invalid(path, value, "must be a string compatible with semver.org spec 2.0.0")


@lru_cache(maxsize=4096)
def is_version(value: str) -> bool:
    """Whether a text is a semantic version. Cached with its refusals, which `Semver.parse` does not keep."""
    try:
        Semver.parse(value)
    except ParseError:
        return False
    return True


@lru_cache(maxsize=4096)
def is_quantity(value: str) -> bool:
    """Whether a text is an amount."""
    try:
        Quantity.parse(value)
    except ParseError:
        return False
    return True


def quantity(faults: Faults, path: str, value: object) -> Quantity | None:
    """An amount, zero when absent, as in upstream's types; None when the text is no quantity."""
    try:
        return Quantity.parse("0" if value is None else str(value))
    except ParseError as error:
        faults.invalid(path, value, str(error))
        return None


# Lists.


def string_set(faults: Faults, path: str, items: list[str], limit: int) -> bool:
    """At most ``limit`` different strings; False when there are too many to look at them."""
    if not faults.fits(path, items, limit):
        return False
    faults.unique(path, items)
    return True


def skip_operations(faults: Faults, path: str, items: list[str]) -> None:
    """``skipNodeOperations`` of slices and results."""
    for index, item in enumerate(items):
        if item not in SKIP_OPERATIONS:
            faults.not_supported(f"{path}[{index}]", item, SKIP_OPERATIONS)
    faults.unique(path, items)
    if "NodePrepareResources" in items and "NodeUnprepareResources" not in items and "*" not in items:
        faults.invalid(path, items, "`NodePrepareResources` needs `NodeUnprepareResources` or `*` beside it")


def binding_conditions(faults: Faults, path: str, holder: Object) -> None:
    """Conditions that a device demands before a pod is bound, and those that end the wait."""
    wanted, failures = texts(holder, "bindingConditions"), texts(holder, "bindingFailureConditions")
    for field, items in (("bindingConditions", wanted), ("bindingFailureConditions", failures)):
        if string_set(faults, f"{path}.{field}", items, BINDING_CONDITIONS_MAX):
            for index, item in enumerate(items):
                faults.check(f"{path}.{field}[{index}]", item, formats.qualified_name)
    if wanted and not failures:
        faults.invalid(
            f"{path}.bindingFailureConditions",
            failures,
            "bindingFailureConditions are required to use bindingConditions",
        )
    if failures and not wanted:
        faults.invalid(
            f"{path}.bindingConditions", wanted, "bindingConditions are required to use bindingFailureConditions"
        )
    for index, item in enumerate(failures):
        if item in wanted:
            faults.invalid(
                f"{path}.bindingFailureConditions[{index}]", item, "must not be listed in bindingConditions as well"
            )


# Taints and tolerations.


def taint(faults: Faults, path: str, value: Object, old: Object | None) -> None:
    """A device taint; an effect that a newer server stored stays valid while it is not changed."""
    faults.check(f"{path}.key", text(value, "key"), formats.qualified_name)
    if value.get("value"):
        faults.check(f"{path}.value", text(value, "value"), formats.label_value)
    effect = text(value, "effect")
    if not effect:
        faults.required(f"{path}.effect")
    elif effect not in TAINT_EFFECTS and (old is None or text(old, "effect") != effect):
        faults.not_supported(f"{path}.effect", effect, TAINT_EFFECTS)


def tolerations(faults: Faults, path: str, items: list[Object]) -> None:
    """Tolerations of a request or a result; their number is not limited, as upstream does not."""
    for index, item in enumerate(items):
        at_item = f"{path}[{index}]"
        if item.get("key"):
            faults.check(f"{at_item}.key", text(item, "key"), formats.qualified_name)
        match text(item, "operator"):
            case "Exists":
                if item.get("value"):
                    faults.invalid(f"{at_item}.value", item["value"], "must be empty for operator `Exists`")
            case "Equal":
                faults.check(f"{at_item}.value", text(item, "value"), formats.label_value)
            case "":
                faults.required(f"{at_item}.operator")
            case operator:
                faults.not_supported(f"{at_item}.operator", operator, TOLERATION_OPERATORS)
        effect = text(item, "effect")
        if effect and effect not in TAINT_EFFECTS:
            faults.not_supported(f"{at_item}.effect", effect, TAINT_EFFECTS)


# Selectors and configuration.


def expression(faults: Faults, path: str, value: str, check: Any) -> None:
    """A CEL expression, compiled by the function that the caller brings."""
    if len(value.encode()) > EXPRESSION_MAX:
        faults.too_long(path, EXPRESSION_MAX)
        return
    for error in check(value):
        inner = f".{error.field}" if error.field else ""
        faults.add(error.type, path + inner, value if error.value is None else error.value, error.detail)


def selectors(faults: Faults, path: str, items: list[Object], ctx: ValidationContext) -> None:
    """CEL selectors of a class or a request."""
    if not faults.fits(path, items, SELECTORS_MAX):
        return
    for index, item in enumerate(items):
        if item.get("cel") is None:
            faults.required(f"{path}[{index}].cel")
        else:
            expression(faults, f"{path}[{index}].cel.expression", text(item, "cel", "expression"), ctx.check_selector)


def opaque(faults: Faults, path: str, holder: Object, known: Iterable[object] = ()) -> None:
    """Driver configuration; ``known`` are parameters that were accepted before and are not measured again."""
    value = holder.get("opaque")
    if value is None:
        faults.required(f"{path}.opaque")
        return
    driver_name(faults, f"{path}.opaque.driver", text(value, "driver"))
    raw_object(faults, f"{path}.opaque.parameters", value.get("parameters"), known)


def raw_object(faults: Faults, path: str, value: object, known: Iterable[object] = ()) -> None:
    """A required JSON object of limited size."""
    if value is None:
        faults.required(path)
    elif not isinstance(value, dict):
        faults.invalid(path, value, "must be a valid JSON object")
    elif not any(value == other for other in known) and _size(cast(Object, value)) > RAW_OBJECT_MAX:
        faults.too_long(path, RAW_OBJECT_MAX)


def _size(value: Object) -> int:
    return len(msgspec.json.encode(value))


# Nodes.


def node_name(faults: Faults, path: str, value: str) -> None:
    """A node name that is present must not be empty."""
    if not value:
        faults.invalid(path, value, "must be either unset or set to a non-empty string")
    else:
        faults.check(path, value, formats.dns_subdomain)


def only_true(faults: Faults, path: str, value: object) -> None:
    """A flag that is either absent or true."""
    if value is not True:
        faults.invalid(path, value, "must be either unset or set to true")


def node_selector(faults: Faults, path: str, value: Object) -> None:
    """A core/v1 node selector."""
    terms = children(value, "nodeSelectorTerms")
    path = f"{path}.nodeSelectorTerms"
    if not terms:
        faults.required(path, "must have at least one node selector term")
    for index, term in enumerate(terms):
        node_selector_term(faults, f"{path}[{index}]", term)


def node_selector_term(faults: Faults, path: str, term: Object) -> None:
    """One term of a node selector."""
    for index, item in enumerate(children(term, "matchExpressions")):
        _node_expression(faults, f"{path}.matchExpressions[{index}]", item)
    for index, item in enumerate(children(term, "matchFields")):
        _node_field(faults, f"{path}.matchFields[{index}]", item)


def _node_expression(faults: Faults, path: str, item: Object) -> None:
    values = texts(item, "values")
    match text(item, "operator"):
        case "In" | "NotIn":
            if not values:
                faults.required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        case "Exists" | "DoesNotExist":
            if values:
                faults.forbidden(f"{path}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
        case "Gt" | "Lt":
            if len(values) != 1:
                faults.required(f"{path}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
        case operator:
            faults.invalid(f"{path}.operator", operator, "not a valid selector operator")
    faults.check(f"{path}.key", text(item, "key"), formats.qualified_name)
    for index, value in enumerate(values):
        faults.check(f"{path}.values[{index}]", value, formats.label_value)


def _node_field(faults: Faults, path: str, item: Object) -> None:
    values = texts(item, "values")
    if text(item, "operator") not in ("In", "NotIn"):
        faults.invalid(f"{path}.operator", text(item, "operator"), "not a valid selector operator")
    elif len(values) != 1:
        faults.required(
            f"{path}.values", "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        )
    if text(item, "key") != "metadata.name":
        faults.invalid(f"{path}.key", text(item, "key"), "not a valid field selector key")
        return
    for index, value in enumerate(values):
        faults.check(f"{path}.values[{index}]", value, formats.dns_subdomain)


# Conditions.


def conditions(faults: Faults, path: str, items: list[Object], limit: int = CONDITIONS_MAX) -> None:
    """Entries of type ``metav1.Condition``."""
    if not faults.fits(path, items, limit):
        return
    seen: set[str] = set()
    for index, item in enumerate(items):
        at_item, kind = f"{path}[{index}]", text(item, "type")
        if named(faults, f"{at_item}.type", kind, formats.qualified_name) and kind in seen:
            faults.duplicate(f"{at_item}.type", kind)
        seen.add(kind)
        if text(item, "status") not in ("True", "False", "Unknown"):
            faults.not_supported(f"{at_item}.status", text(item, "status"), ("True", "False", "Unknown"))
        if (item.get("observedGeneration") or 0) < 0:
            faults.invalid(
                f"{at_item}.observedGeneration", item["observedGeneration"], "must be greater than or equal to zero"
            )
        if not item.get("lastTransitionTime"):
            faults.required(f"{at_item}.lastTransitionTime", "must be set")
        reason = text(item, "reason")
        if not reason:
            faults.required(f"{at_item}.reason", "must be set")
        elif not _CONDITION_REASON.fullmatch(reason):
            faults.invalid(
                f"{at_item}.reason",
                reason,
                "a condition reason must start with alphabetic character, optionally followed by a string of "
                "alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'",
            )
        elif len(reason) > 1024:
            faults.too_long(f"{at_item}.reason", 1024)
        if len(text(item, "message").encode()) > 32 * 1024:
            faults.too_long(f"{at_item}.message", 32 * 1024)


def immutable(faults: Faults, path: str, new: object, old: object) -> bool:
    """Whether a value is what it was; reports it when not."""
    if same_meaning(new, old):
        return True
    faults.invalid(path, new if isinstance(new, str | int | bool) else None, IMMUTABLE)
    return False


def counters(faults: Faults, path: str, found: Object, limit: int) -> None:
    """A required map of counter names to amounts."""
    if not found:
        faults.required(path)
        return
    if not faults.fits(path, found, limit):
        return
    for name, counter in sorted(found.items()):
        at_counter = keyed(path, name, formats.LABEL_MAX)
        faults.check(at_counter, name, formats.dns_label)
        quantity(faults, f"{at_counter}.value", cast(Object, counter).get("value"))
