"""The status of a Deployment: counts, and the conditions that ``kubectl rollout status`` reads."""

from __future__ import annotations

from collections.abc import Sequence

from drakkar.api.meta import Object
from drakkar.api.objects import condition, name_of
from drakkar.api.tree import at
from drakkar.client.clock import parse_timestamp, timestamp

AVAILABLE, PROGRESSING, REPLICA_FAILURE = "Available", "Progressing", "ReplicaFailure"
#: Reasons of the condition Progressing.
DONE, TIMED_OUT, PAUSED, RESUMED = (
    "NewReplicaSetAvailable",
    "ProgressDeadlineExceeded",
    "DeploymentPaused",
    "DeploymentResumed",
)


def _count(obj: Object | None, field: str) -> int:
    return at(obj, "status", field) or 0


def stated(deployment: Object, sets: Sequence[Object], new: Object | None, total: int) -> Object:
    """The numbers of the status; ``total`` is what the ReplicaSets are asked for."""
    available = sum(_count(entry, "availableReplicas") for entry in sets)
    return {
        "observedGeneration": at(deployment, "metadata", "generation"),
        "replicas": sum(_count(entry, "replicas") for entry in sets),
        "updatedReplicas": _count(new, "replicas"),
        "readyReplicas": sum(_count(entry, "readyReplicas") for entry in sets),
        "availableReplicas": available,
        "unavailableReplicas": max(0, total - available),
        "terminatingReplicas": sum(_count(entry, "terminatingReplicas") for entry in sets),
    }


def complete(deployment: Object, status: Object) -> bool:
    """Whether every replica is of the new template and available, and nothing else is left."""
    wanted = at(deployment, "spec", "replicas")
    wanted = 1 if wanted is None else wanted
    return status["updatedReplicas"] == status["replicas"] == status["availableReplicas"] == wanted


def _with(conditions: Sequence[Object], new: Object, *, renew: bool = False) -> list[Object]:
    """``new`` in the place of its type; unchanged in status and reason, the old one stays unless ``renew``."""
    old = next((entry for entry in conditions if entry["type"] == new["type"]), None)
    if old is not None and old["status"] == new["status"]:
        if old.get("reason") == new["reason"] and not renew:
            return [*conditions]
        new = {**new, "lastTransitionTime": old.get("lastTransitionTime")}
    return [*(entry for entry in conditions if entry is not old), new]


def _condition(type_: str, status: str, reason: str, message: str, now: float) -> Object:
    moment = timestamp(now)
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastUpdateTime": moment,
        "lastTransitionTime": moment,
    }


def with_progressing(
    conditions: Sequence[Object], status: str, reason: str, message: str, now: float, *, renew: bool = False
) -> list[Object]:
    """The conditions with this Progressing."""
    return _with(conditions, _condition(PROGRESSING, status, reason, message, now), renew=renew)


def paused_conditions(deployment: Object, conditions: Sequence[Object], paused: bool, now: float) -> list[Object]:
    """Notes a pause and its end, from which the deadline then counts."""
    found = condition(deployment, PROGRESSING)
    if at(deployment, "spec", "progressDeadlineSeconds") is None or (found and found.get("reason") == TIMED_OUT):
        return [*conditions]
    stands = found is not None and found.get("reason") == PAUSED
    if paused and not stands:
        return with_progressing(conditions, "Unknown", PAUSED, "Deployment is paused", now)
    if not paused and stands:
        return with_progressing(conditions, "Unknown", RESUMED, "Deployment is resumed", now)
    return [*conditions]


def progress(
    deployment: Object,
    status: Object,
    conditions: Sequence[Object],
    sets: Sequence[Object],
    new: Object | None,
    least: int,
    *,
    deadline: int | None,
    judge: bool,
    now: float,
) -> list[Object]:
    """All conditions; ``least`` replicas have to be available, Progressing moves only where ``judge``."""
    if status["availableReplicas"] >= least:
        words = "True", "MinimumReplicasAvailable", "Deployment has minimum availability."
    else:
        words = "False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability."
    result = _with(conditions, _condition(AVAILABLE, *words, now))
    if not judge:
        return result
    if deadline is None:
        result = [entry for entry in result if entry["type"] != PROGRESSING]
    else:
        result = _progressing(deployment, status, result, new, deadline, now)
    # Trouble of the new ReplicaSet comes first.
    failure = next(
        (
            found
            for entry in (*([new] if new is not None else ()), *sets)
            if (found := condition(entry, REPLICA_FAILURE)) is not None
        ),
        None,
    )
    result_without = [entry for entry in result if entry["type"] != REPLICA_FAILURE]
    if failure is None:
        return result_without
    reason, message = failure.get("reason", ""), failure.get("message", "")
    return _with(result, _condition(REPLICA_FAILURE, failure["status"], reason, message, now))


def _progressing(
    deployment: Object, status: Object, conditions: list[Object], new: Object | None, deadline: int, now: float
) -> list[Object]:
    found = next((entry for entry in conditions if entry["type"] == PROGRESSING), None)
    finished = status["replicas"] == status["updatedReplicas"]
    if finished and found is not None and found.get("reason") == DONE:
        return conditions
    subject = f'ReplicaSet "{name_of(new)}"' if new is not None else f'Deployment "{name_of(deployment)}"'
    if complete(deployment, status):
        return with_progressing(conditions, "True", DONE, f"{subject} has successfully progressed.", now)
    if _moved(deployment, status):
        return with_progressing(conditions, "True", "ReplicaSetUpdated", f"{subject} is progressing.", now, renew=True)
    if _timed_out(found, deadline, now):
        return with_progressing(conditions, "False", TIMED_OUT, f"{subject} has timed out progressing.", now)
    return conditions


def _moved(deployment: Object, status: Object) -> bool:
    """Whether the rollout went on since the last status: more new, fewer old, more ready or available ones."""
    before = {
        field: _count(deployment, field)
        for field in ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    }
    return (
        status["updatedReplicas"] > before["updatedReplicas"]
        or status["replicas"] - status["updatedReplicas"] < before["replicas"] - before["updatedReplicas"]
        or status["readyReplicas"] > before["readyReplicas"]
        or status["availableReplicas"] > before["availableReplicas"]
    )


def _timed_out(found: Object | None, deadline: int, now: float) -> bool:
    if found is None or found.get("reason") == DONE:
        return False
    if found.get("reason") == TIMED_OUT:
        return True
    since = found.get("lastUpdateTime")
    return bool(since) and parse_timestamp(str(since)) + deadline < now


def remaining(deployment: Object, status: Object, deadline: int | None, now: float) -> float | None:
    """Seconds until the deadline has to be looked at, None where none runs."""
    found = next((entry for entry in status["conditions"] if entry["type"] == PROGRESSING), None)
    if deadline is None or found is None or found.get("reason") in (DONE, TIMED_OUT):
        return None
    if complete(deployment, status) or not found.get("lastUpdateTime"):
        return None
    return max(0.0, parse_timestamp(found["lastUpdateTime"]) + deadline - now) + 1.0
