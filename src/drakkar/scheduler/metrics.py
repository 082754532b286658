"""The scheduler's counters in Prometheus' text form, under the names of Kubernetes' scheduler where it has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from drakkar.api.exposition import family

#: Keys of ``Scheduler.metrics``; seconds are sums.
COUNTERS = (
    "decisions",
    "decision_seconds",
    "scheduled",
    "unschedulable",
    "errors",
    "gave_up",
    "lost",
    "conflict_foreign",
    "released",
    "answered_alike",
    "prepared",
    "prepare_failed",
    "prepare_seconds",
    "lifted",
    "repaired",
    "reported",
)

#: Name, type, help text, and its samples: label → key.
_FAMILIES: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    (
        "scheduler_schedule_attempts_total",
        "counter",
        "Attempts to schedule pods, by result.",
        {'result="error"': "errors", 'result="scheduled"': "scheduled", 'result="unschedulable"': "unschedulable"},
    ),
    (
        "scheduler_dra_bindingconditions_allocations_total",
        "counter",
        "Placements whose devices had to be prepared first, by what came of it.",
        {'status="failed"': "prepare_failed", 'status="ready"': "prepared"},
    ),
    ("drakkar_scheduler_lost_total", "counter", "Placements that could not be carried out.", {"": "lost"}),
    (
        "drakkar_scheduler_conflict_foreign_total",
        "counter",
        "Allocations that gave way because another claim had held a device before.",
        {"": "conflict_foreign"},
    ),
    (
        "drakkar_scheduler_released_total",
        "counter",
        "Allocations taken back because they were in the way.",
        {"": "released"},
    ),
    ("drakkar_scheduler_undecided_total", "counter", "Decisions that the search gave up on.", {"": "gave_up"}),
    ("drakkar_scheduler_gates_lifted_total", "counter", "Scheduling gates lifted after an allocation.", {"": "lifted"}),
    (
        "drakkar_scheduler_repairs_total",
        "counter",
        "Pods that could not run any more where their gate had been lifted for, by what was done.",
        {'action="deleted"': "repaired", 'action="told"': "reported"},
    ),
    (
        "drakkar_scheduler_answered_alike_total",
        "counter",
        "Refusals and places that were found for an equal pod.",
        {"": "answered_alike"},
    ),
)
#: Name, help text, key of the seconds, keys whose sum is the number of events.
_SUMMARIES: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    (
        "scheduler_scheduling_attempt_duration_seconds",
        "Time of decisions, writes not included.",
        "decision_seconds",
        ("decisions",),
    ),
    (
        "scheduler_dra_bindingconditions_prebind_duration_seconds",
        "Time until devices were prepared, or that failed.",
        "prepare_seconds",
        ("prepared", "prepare_failed"),
    ),
)


def exposition(
    counters: Mapping[str, float],
    pending: Mapping[str, int],
    judged: Mapping[str, int],
    foreign: int,
    fences: int,
) -> str:
    """All counters, the pods that wait by queue, what the guard has judged, and who else allocates."""
    return "\n".join((*_lines(counters, pending), *_others(judged, foreign, fences))) + "\n"


def _others(judged: Mapping[str, int], foreign: int, fences: int) -> Iterator[str]:
    yield from family(
        "drakkar_guard_allocations_total", "counter", "Allocations that the webhook was asked about, by its answer."
    )
    for outcome in ("allowed", "own", "refused"):
        yield f'drakkar_guard_allocations_total{{outcome="{outcome}"}} {judged.get(outcome, 0)}'
    yield from family("drakkar_allocators", "gauge", "Field managers that have allocated claims there are.")
    yield f'drakkar_allocators{{foreign="true"}} {foreign}'
    yield from family("drakkar_fences", "gauge", "DeviceTaintRules that keep other allocators away.")
    yield f"drakkar_fences {fences}"


def _lines(counters: Mapping[str, float], pending: Mapping[str, int]) -> Iterator[str]:
    for name, kind, help_text, samples in _FAMILIES:
        yield from family(name, kind, help_text)
        for label, key in samples.items():
            yield f"{name}{{{label}}} {counters[key]:g}" if label else f"{name} {counters[key]:g}"
    for name, help_text, seconds, events in _SUMMARIES:
        yield from family(name, "summary", help_text)
        yield f"{name}_sum {counters[seconds]:g}"
        yield f"{name}_count {sum(counters[key] for key in events):g}"
    yield from family("scheduler_pending_pods", "gauge", "Pods that wait, by queue.")
    for queue, count in pending.items():
        yield f'scheduler_pending_pods{{queue="{queue}"}} {count}'
