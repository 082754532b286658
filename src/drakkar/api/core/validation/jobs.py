"""Validation of Jobs (batch/v1)."""

from __future__ import annotations

from typing import Final

from drakkar.api import formats
from drakkar.api.core.validation.pods import one_of, pod_spec, template_metadata
from drakkar.api.errors import ParseError
from drakkar.api.faults import Faults
from drakkar.api.meta import Object
from drakkar.api.resource.validation import shared
from drakkar.api.rules import ValidationContext, same_meaning
from drakkar.api.selectors import LabelSelector
from drakkar.api.tree import at, child, children, text

INDEXED_PARALLELISM_MAX: Final = 100_000
FAILURE_RULES_MAX: Final = 20
EXIT_CODES_MAX: Final = 255
CONDITION_PATTERNS_MAX: Final = 20
SUCCESS_RULES_MAX: Final = 20
MANAGED_BY_MAX: Final = 63
ACTIONS: Final = ("Count", "FailIndex", "FailJob", "Ignore")

#: Scheduling directives of the template that may change while the job is suspended and has not started.
_DIRECTIVES: Final = ("affinity", "nodeSelector", "tolerations", "schedulingGates")
_DIRECTIVE_METADATA: Final = ("labels", "annotations")


def validate_job(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a Job written through its main endpoint."""
    spec = child(obj, "spec")
    _numbers(faults, spec)
    _modes(faults, spec)
    _template(faults, obj, spec)
    if spec.get("podFailurePolicy") is not None:
        _failure_policy(faults, spec)
    if spec.get("successPolicy") is not None:
        _success_policy(faults, spec)
    if old is not None:
        _update(faults, obj, old)


def validate_job_status(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a Job's status."""
    status = child(obj, "status")
    for field in ("active", "succeeded", "failed", "ready", "terminating"):
        _not_negative(faults, f"status.{field}", status.get(field))
    if status.get("completionTime") and not status.get("startTime"):
        faults.invalid("status.completionTime", status["completionTime"], "cannot be set without startTime")
    finished = [
        entry.get("type")
        for entry in children(status, "conditions")
        if entry.get("type") in ("Complete", "Failed") and entry.get("status") == "True"
    ]
    if len(set(finished)) > 1:
        faults.invalid("status.conditions", None, "cannot set Complete=True and Failed=true conditions")
    before = child(old, "status")
    if old is not None and before.get("completionTime") and status.get("completionTime") != before["completionTime"]:
        faults.invalid("status.completionTime", status.get("completionTime"), shared.IMMUTABLE)


def _not_negative(faults: Faults, path: str, value: int | None) -> None:
    if value is not None and value < 0:
        faults.invalid(path, value, "must be greater than or equal to 0")


def _numbers(faults: Faults, spec: Object) -> None:
    for field in (
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ):
        _not_negative(faults, f"spec.{field}", spec.get(field))
    if spec.get("backoffLimitPerIndex") is None and spec.get("maxFailedIndexes") is not None:
        faults.required("spec.backoffLimitPerIndex", "when maxFailedIndexes is specified")


def _modes(faults: Faults, spec: Object) -> None:
    mode = text(spec, "completionMode")
    one_of(faults, "spec.completionMode", mode, ("Indexed", "NonIndexed"))
    if mode == "Indexed":
        if spec.get("completions") is None:
            faults.required("spec.completions", "when completion mode is Indexed")
        if (spec.get("parallelism") or 0) > INDEXED_PARALLELISM_MAX:
            faults.invalid(
                "spec.parallelism",
                spec["parallelism"],
                f"must be less than or equal to {INDEXED_PARALLELISM_MAX} when completion mode is Indexed",
            )
    else:
        for field in ("backoffLimitPerIndex", "maxFailedIndexes"):
            if spec.get(field) is not None:
                faults.invalid(f"spec.{field}", spec[field], "requires indexed completion mode")
    replacement = text(spec, "podReplacementPolicy")
    if replacement:
        one_of(faults, "spec.podReplacementPolicy", replacement, ("Failed", "TerminatingOrFailed"))
        if spec.get("podFailurePolicy") is not None and replacement != "Failed":
            faults.not_supported("spec.podReplacementPolicy", replacement, ("Failed",))
    if spec.get("managedBy") is not None:
        name = text(spec, "managedBy")
        if len(name) > MANAGED_BY_MAX:
            faults.too_long("spec.managedBy", MANAGED_BY_MAX)
        if "/" not in name:
            faults.invalid("spec.managedBy", name, 'must be a domain-prefixed path (such as "acme.io/foo")')
        else:
            faults.check("spec.managedBy", name, formats.qualified_name)


def _template(faults: Faults, obj: Object, spec: Object) -> None:
    template = child(spec, "template")
    template_metadata(faults, "spec.template", template)
    pod_spec(faults, "spec.template.spec", child(template, "spec"))
    policy = text(template, "spec", "restartPolicy")
    if policy not in ("OnFailure", "Never"):
        faults.not_supported("spec.template.spec.restartPolicy", policy, ("OnFailure", "Never"))
    if spec.get("selector") is None:
        faults.required("spec.selector")
        return
    labels = child(template, "metadata", "labels")
    try:
        matches = LabelSelector.from_object(child(spec, "selector")).matches(labels)
    except (ParseError, KeyError):
        faults.invalid("spec.selector", spec["selector"], "invalid label selector")
        return
    if not matches:
        faults.invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")


def _failure_policy(faults: Faults, spec: Object) -> None:
    path = "spec.podFailurePolicy"
    if text(spec, "template", "spec", "restartPolicy") != "Never":
        faults.invalid(
            "spec.template.spec.restartPolicy",
            text(spec, "template", "spec", "restartPolicy"),
            'only "Never" is supported when podFailurePolicy is specified',
        )
    rules = children(spec, "podFailurePolicy", "rules")
    if not faults.fits(f"{path}.rules", rules, FAILURE_RULES_MAX):
        return
    template = child(spec, "template", "spec")
    names = {
        text(container, "name") for field in ("containers", "initContainers") for container in children(template, field)
    }
    for index, rule in enumerate(rules):
        at_rule, action = f"{path}.rules[{index}]", text(rule, "action")
        one_of(faults, f"{at_rule}.action", action, ACTIONS)
        if action == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
            faults.invalid(f"{at_rule}.action", action, "requires the backoffLimitPerIndex to be set")
        codes, patterns = rule.get("onExitCodes"), children(rule, "onPodConditions")
        if codes is not None and patterns:
            faults.invalid(at_rule, None, "specifying both OnExitCodes and OnPodConditions is not supported")
        elif codes is None and not patterns:
            faults.invalid(at_rule, None, "specifying one of OnExitCodes and OnPodConditions is required")
        if codes is not None:
            _exit_codes(faults, f"{at_rule}.onExitCodes", child(rule, "onExitCodes"), names)
        if faults.fits(f"{at_rule}.onPodConditions", patterns, CONDITION_PATTERNS_MAX):
            for position, pattern in enumerate(patterns):
                at_pattern = f"{at_rule}.onPodConditions[{position}]"
                faults.check(f"{at_pattern}.type", text(pattern, "type"), formats.qualified_name)
                one_of(faults, f"{at_pattern}.status", text(pattern, "status"), ("False", "True", "Unknown"))


def _exit_codes(faults: Faults, path: str, codes: Object, names: set[str]) -> None:
    operator = text(codes, "operator")
    one_of(faults, f"{path}.operator", operator, ("In", "NotIn"))
    name = codes.get("containerName")
    if name is not None and name not in names:
        faults.invalid(
            f"{path}.containerName", name, "must be one of the container or initContainer names in the pod template"
        )
    values: list[int] = codes.get("values") or []
    if not values:
        faults.invalid(f"{path}.values", values, "at least one value is required")
    if not faults.fits(f"{path}.values", values, EXIT_CODES_MAX):
        return
    for index, value in enumerate(values):
        if value in values[:index]:
            faults.duplicate(f"{path}.values[{index}]", value)
        if value == 0 and operator == "In":
            faults.invalid(f"{path}.values[{index}]", value, "must not be 0 for the In operator")
    if values != sorted(values):
        faults.invalid(f"{path}.values", values, "must be ordered")


def _success_policy(faults: Faults, spec: Object) -> None:
    path = "spec.successPolicy.rules"
    if text(spec, "completionMode") != "Indexed":
        faults.invalid("spec.successPolicy", None, "requires indexed completion mode")
        return
    rules = children(spec, "successPolicy", "rules")
    if not rules:
        faults.required(path, "at least one rules must be specified when the successPolicy is specified")
    if not faults.fits(path, rules, SUCCESS_RULES_MAX):
        return
    for index, rule in enumerate(rules):
        at_rule, count, indexes = f"{path}[{index}]", rule.get("succeededCount"), rule.get("succeededIndexes")
        if count is None and indexes is None:
            faults.required(at_rule, "at least one of succeededCount or succeededIndexes must be specified")
        total: int | None = spec.get("completions")
        if indexes is not None:
            total = _count_indexes(indexes, spec.get("completions") or 0)
            if total is None:
                faults.invalid(f"{at_rule}.succeededIndexes", indexes, "error parsing succeededIndexes")
        if count is not None:
            if count < 1:
                faults.invalid(f"{at_rule}.succeededCount", count, "must be greater than or equal to 1")
            elif total is not None and count > total:
                faults.invalid(f"{at_rule}.succeededCount", count, f"must be less than or equal to {total}")


def _count_indexes(spelled: str, completions: int) -> int | None:
    """How many indexes ``0,2-4`` names; None when it is not ascending or out of range."""
    count, last = 0, -1
    for part in spelled.split(","):
        first, _, end = part.partition("-")
        if not first.isdigit() or (end and not end.isdigit()):
            return None
        low, high = int(first), int(end or first)
        if low <= last or high < low or high >= completions or (end and high == low):
            return None
        count += high - low + 1
        last = high
    return count


def _update(faults: Faults, obj: Object, old: Object) -> None:
    spec, before = child(obj, "spec"), child(old, "spec")
    # An indexed job may be resized as long as both numbers go together.
    elastic = (
        text(spec, "completionMode") == "Indexed"
        and spec.get("completions") is not None
        and spec.get("completions") == spec.get("parallelism")
    )
    if not elastic:
        shared.immutable(faults, "spec.completions", spec.get("completions"), before.get("completions"))
    for field in (
        "selector",
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
        "managedBy",
        "successPolicy",
        "manualSelector",
    ):
        shared.immutable(faults, f"spec.{field}", spec.get(field), before.get(field))
    template, template_before = child(spec, "template"), child(before, "template")
    not_started = before.get("suspend") is True and not at(old, "status", "startTime")
    if not_started:
        template, template_before = _without_directives(template), _without_directives(template_before)
    if not same_meaning(template, template_before):
        faults.invalid("spec.template", None, shared.IMMUTABLE)


def _without_directives(template: Object) -> Object:
    spec = {key: value for key, value in child(template, "spec").items() if key not in _DIRECTIVES}
    metadata = {key: value for key, value in child(template, "metadata").items() if key not in _DIRECTIVE_METADATA}
    return {**template, "spec": spec, "metadata": metadata}
