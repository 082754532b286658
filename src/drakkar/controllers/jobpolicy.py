"""What a failed pod means for its Job: the rules of ``podFailurePolicy`` and of ``successPolicy``. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from drakkar.api.meta import Object
from drakkar.api.objects import key_of
from drakkar.api.tree import child, children
from drakkar.controllers.common import phase_of
from drakkar.controllers.jobindexes import parse_indexes


@dataclass(frozen=True, slots=True)
class Verdict:
    """``action`` is Count, Ignore, FailJob or FailIndex; ``message`` says why for FailJob."""

    action: str = "Count"
    message: str = ""


def judge(job: Object, pod: Object) -> Verdict:
    """The action of the first rule that the failed pod matches; Count without one."""
    if phase_of(pod) != "Failed":
        return Verdict()
    for number, rule in enumerate(children(job, "spec", "podFailurePolicy", "rules")):
        found = _exit_code_match(rule, pod) if rule.get("onExitCodes") else _condition_match(rule, pod)
        if found:
            action = rule.get("action", "Count")
            return Verdict(action, f"{found} matching {action} rule at index {number}")
    return Verdict()


def _exit_code_match(rule: Object, pod: Object) -> str:
    wanted = child(rule, "onExitCodes")
    for name, code in _exit_codes(pod):
        if wanted.get("containerName") not in (None, name) or code == 0:
            continue
        if (code in wanted.get("values", ())) == (wanted.get("operator") == "In"):
            return f"Container {name} for pod {key_of(pod)} failed with exit code {code}"
    return ""


def _exit_codes(pod: Object) -> Iterator[tuple[str, int]]:
    for which in ("containerStatuses", "initContainerStatuses"):
        for status in children(pod, "status", which):
            code = child(status, "state", "terminated").get("exitCode")
            if code is not None:
                yield status.get("name", ""), code


def _condition_match(rule: Object, pod: Object) -> str:
    present = {entry["type"]: entry.get("status") for entry in children(pod, "status", "conditions")}
    for pattern in children(rule, "onPodConditions"):
        if present.get(pattern["type"]) == (pattern.get("status") or "True"):
            return f"Pod {key_of(pod)} has condition {pattern['type']}"
    return ""


def success_rule_met(job: Object, succeeded: set[int], completions: int) -> str | None:
    """The message of the condition when a rule of ``successPolicy`` is met by the completed indexes."""
    for number, rule in enumerate(children(job, "spec", "successPolicy", "rules")):
        counted = succeeded
        if rule.get("succeededIndexes") is not None:
            wanted = parse_indexes(rule["succeededIndexes"], completions)
            counted = succeeded & wanted
            if rule.get("succeededCount") is None and counted != wanted:
                continue
        if rule.get("succeededCount") is not None and len(counted) < rule["succeededCount"]:
            continue
        return f"Matched rules at index {number}"
    return None
