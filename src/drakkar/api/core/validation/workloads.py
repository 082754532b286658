"""Validation of Deployments, ReplicaSets, DaemonSets, StatefulSets, CronJobs and PriorityClasses."""

from __future__ import annotations

import re
from typing import Any, Final

from drakkar.api.core.validation.configuration import count_or_share
from drakkar.api.core.validation.pods import one_of, pod_spec, template_metadata
from drakkar.api.errors import ParseError
from drakkar.api.faults import Faults
from drakkar.api.meta import Object
from drakkar.api.names import SYSTEM_PRIORITIES
from drakkar.api.resource.validation import shared
from drakkar.api.rules import ValidationContext, same_meaning
from drakkar.api.selectors import LabelSelector
from drakkar.api.tree import child, text

_FIXED_SET: Final = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
    "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
)
_FREE_SET: Final = (
    "replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy", "minReadySeconds",
)  # fmt: skip
#: Highest value of a class that users make.
PRIORITY_MAX: Final = 1_000_000_000


def _not_negative(faults: Faults, spec: Object, *fields: str) -> None:
    for field in fields:
        value = spec.get(field)
        if value is not None and value < 0:
            faults.invalid(f"spec.{field}", value, "must be greater than or equal to 0")


def _template(faults: Faults, spec: Object, old: Object | None) -> None:
    """Selector and template of a workload that keeps pods running."""
    selector, template = spec.get("selector"), child(spec, "template")
    if not selector:
        faults.required("spec.selector")
    elif not selector.get("matchLabels") and not selector.get("matchExpressions"):
        faults.invalid("spec.selector", selector, "empty selector is invalid for deployment")
    else:
        labels = child(template, "metadata", "labels")
        try:
            if not LabelSelector.from_object(selector).matches(labels):
                faults.invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
        except (ParseError, KeyError) as error:
            faults.invalid("spec.selector", selector, f"invalid label selector: {error}")
    if old is not None and not same_meaning(selector, child(old, "spec").get("selector")):
        faults.invalid("spec.selector", selector, shared.IMMUTABLE)
    template_metadata(faults, "spec.template", template)
    pod_spec(faults, "spec.template.spec", child(template, "spec"))
    policy = text(template, "spec", "restartPolicy")
    if policy and policy != "Always":
        faults.not_supported("spec.template.spec.restartPolicy", policy, ("Always",))
    if child(template, "spec").get("activeDeadlineSeconds") is not None:
        faults.forbidden(
            "spec.template.spec.activeDeadlineSeconds", "activeDeadlineSeconds in ReplicaSet is not Supported"
        )


def _is_zero(value: Any) -> bool:
    return value in (0, "0%")


def validate_deployment(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a Deployment."""
    spec = child(obj, "spec")
    _not_negative(faults, spec, "replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds")
    _template(faults, spec, old)
    strategy = child(spec, "strategy")
    one_of(faults, "spec.strategy.type", text(strategy, "type"), ("Recreate", "RollingUpdate"))
    rolling = strategy.get("rollingUpdate")
    if text(strategy, "type") == "Recreate" and rolling is not None:
        detail = "may not be specified when strategy `type` is 'Recreate'"
        faults.forbidden("spec.strategy.rollingUpdate", detail)
    elif rolling is not None:
        path = "spec.strategy.rollingUpdate"
        for field in ("maxUnavailable", "maxSurge"):
            if rolling.get(field) is not None:
                count_or_share(faults, f"{path}.{field}", rolling[field])
        if _is_zero(rolling.get("maxUnavailable")) and _is_zero(rolling.get("maxSurge")):
            faults.invalid(f"{path}.maxUnavailable", rolling["maxUnavailable"], "may not be 0 when `maxSurge` is 0")
    deadline, ready = spec.get("progressDeadlineSeconds"), spec.get("minReadySeconds") or 0
    if deadline is not None and 0 <= deadline <= ready:
        faults.invalid("spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds")


def validate_replica_set(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a ReplicaSet."""
    spec = child(obj, "spec")
    _not_negative(faults, spec, "replicas", "minReadySeconds")
    _template(faults, spec, old)


def validate_daemon_set(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a DaemonSet."""
    spec = child(obj, "spec")
    _not_negative(faults, spec, "minReadySeconds", "revisionHistoryLimit")
    _template(faults, spec, old)
    strategy = child(spec, "updateStrategy")
    one_of(faults, "spec.updateStrategy.type", text(strategy, "type"), ("OnDelete", "RollingUpdate"))
    rolling = child(strategy, "rollingUpdate")
    if text(strategy, "type") == "RollingUpdate" and rolling:
        path = "spec.updateStrategy.rollingUpdate"
        for field in ("maxUnavailable", "maxSurge"):
            if rolling.get(field) is not None:
                count_or_share(faults, f"{path}.{field}", rolling[field])
        if _is_zero(rolling.get("maxUnavailable")) and _is_zero(rolling.get("maxSurge")):
            faults.required(f"{path}.maxUnavailable", "cannot be 0 when maxSurge is 0")
        elif not _is_zero(rolling.get("maxUnavailable", 1)) and not _is_zero(rolling.get("maxSurge", 0)):
            faults.invalid(f"{path}.maxSurge", rolling["maxSurge"], "may not be set when maxUnavailable is non-zero")


def validate_stateful_set(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a StatefulSet."""
    spec = child(obj, "spec")
    _not_negative(faults, spec, "replicas", "minReadySeconds", "revisionHistoryLimit")
    if old is None:
        _template(faults, spec, None)
    else:
        before = child(old, "spec")
        if not same_meaning(_without(spec, _FREE_SET), _without(before, _FREE_SET)):
            faults.forbidden("spec", _FIXED_SET)
        else:
            _template(faults, spec, None)
    one_of(faults, "spec.podManagementPolicy", text(spec, "podManagementPolicy"), ("OrderedReady", "Parallel"))
    strategy = child(spec, "updateStrategy")
    one_of(faults, "spec.updateStrategy.type", text(strategy, "type"), ("OnDelete", "RollingUpdate"))
    partition = child(strategy, "rollingUpdate").get("partition")
    if partition is not None and partition < 0:
        faults.invalid("spec.updateStrategy.rollingUpdate.partition", partition, "must be greater than or equal to 0")
    start = child(spec, "ordinals").get("start")
    if start is not None and start < 0:
        faults.invalid("spec.ordinals.start", start, "must be greater than or equal to 0")


def _without(spec: Object, fields: tuple[str, ...]) -> Object:
    return {field: value for field, value in spec.items() if field not in fields}


# CronJobs.

_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
#: Words for numbers, by the position of the field.
_NAMES: Final = {
    3: {name: number for number, name in enumerate(_MONTHS, 1)},
    4: {name: number for number, name in enumerate(_DAYS)},
}
_BOUNDS: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_WORDS: Final = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")


def schedule_fault(schedule: str) -> str:
    """What is wrong with a schedule in cron's form; empty when nothing is."""
    if schedule in _WORDS or re.fullmatch(r"@every ([0-9.]+(h|m|s|ms))+", schedule):
        return ""
    fields = schedule.split()
    if len(fields) != 5:
        return f"expected exactly 5 fields, found {len(fields)}: [{' '.join(fields)}]"
    for index, field in enumerate(fields):
        for part in field.split(","):
            fault = _part_fault(part.lower(), index)
            if fault:
                return fault
    return ""


def _part_fault(part: str, index: int) -> str:
    spread, slash, step = part.partition("/")
    if slash and (not step.isdigit() or int(step) == 0):
        return f"step of range should be a positive number: {part}"
    if spread in ("*", "?"):
        return ""
    low, dash, high = spread.partition("-")
    numbers: list[int] = []
    for word in (low, high) if dash else (low,):
        number = _NAMES.get(index, {}).get(word)
        if number is None:
            if not word.isdigit():
                return f"failed to parse int from {word}"
            number = int(word)
        least, most = _BOUNDS[index]
        if not least <= number <= most:
            return f"value {number} out of range ({least} - {most}): {part}"
        numbers.append(number)
    return f"beginning of range beyond end of range: {part}" if len(numbers) == 2 and numbers[0] > numbers[1] else ""


def validate_cron_job(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a CronJob."""
    spec = child(obj, "spec")
    schedule = text(spec, "schedule")
    if not schedule:
        faults.required("spec.schedule")
    elif "TZ" in schedule:
        faults.invalid("spec.schedule", schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead")
    else:
        fault = schedule_fault(schedule)
        if fault:
            faults.invalid("spec.schedule", schedule, fault)
    one_of(faults, "spec.concurrencyPolicy", text(spec, "concurrencyPolicy"), ("Allow", "Forbid", "Replace"))
    _not_negative(faults, spec, "startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit")
    zone = spec.get("timeZone")
    if zone is not None and (not zone or zone == "Local" or not re.fullmatch(r"[A-Za-z0-9_+\-/.]+", zone)):
        faults.invalid("spec.timeZone", zone, "must be the name of a time zone, such as Etc/UTC")
    template = child(spec, "jobTemplate", "spec", "template")
    pod_spec(faults, "spec.jobTemplate.spec.template.spec", child(template, "spec"))
    policy = text(template, "spec", "restartPolicy")
    if policy not in ("OnFailure", "Never"):
        faults.not_supported("spec.jobTemplate.spec.template.spec.restartPolicy", policy, ("Never", "OnFailure"))


def validate_priority_class(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a PriorityClass."""
    name, value = text(obj, "metadata", "name"), obj.get("value") or 0
    if old is not None:
        if value != (old.get("value") or 0):
            faults.forbidden("value", "may not be changed in an update.")
        if text(obj, "preemptionPolicy") != text(old, "preemptionPolicy"):
            faults.invalid("preemptionPolicy", obj.get("preemptionPolicy"), shared.IMMUTABLE)
        return
    if name.startswith("system-"):
        if SYSTEM_PRIORITIES.get(name) != value:
            faults.forbidden(
                "metadata.name", "priority class names with 'system-' prefix are reserved for system use only"
            )
    elif value > PRIORITY_MAX:
        detail = f"maximum allowed value of a user defined priority is {PRIORITY_MAX}"
        faults.forbidden("value", detail)
    one_of(faults, "preemptionPolicy", text(obj, "preemptionPolicy"), ("Never", "PreemptLowerPriority"))
