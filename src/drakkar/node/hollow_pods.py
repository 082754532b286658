"""What a hollow node writes about one pod: pure, from the pod and its claims to writes.

A hollow container runs until it is stopped, or for as long as annotations of its pod say:

``drakkar.dev/run-seconds``
    seconds after which the containers end by themselves (a decimal number)
``drakkar.dev/exit-code``
    the exit code they end with, 0 by default

Asked to stop it ends at once with exit code 143, as a program does that has no handler for
SIGTERM. Everything that has to survive a restart of the hollow node stands in the pod's status.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from drakkar.api.kinds import POD
from drakkar.api.meta import Object
from drakkar.api.names import (
    CONTAINERS_READY,
    POD_INITIALIZED,
    POD_READY,
    POD_READY_TO_START_CONTAINERS,
)
from drakkar.api.objects import annotations_of, condition, is_deleting, is_sidecar, pod_claim_names, pod_is_done, uid_of
from drakkar.api.resource import v1
from drakkar.api.tree import at, child, children, text
from drakkar.client.clock import parse_timestamp, timestamp
from drakkar.client.writes import After, Delete, Patch, Write

RUN_SECONDS = "drakkar.dev/run-seconds"
EXIT_CODE = "drakkar.dev/exit-code"

#: Exit code of a program that SIGTERM ended.
TERMINATED = 143
#: First and longest pause before a container is restarted, in seconds; it doubles with every restart.
FIRST_RESTART, LONGEST_RESTART = 10.0, 300.0

#: The claim of that namespace and name, or None.
ClaimLookup = Callable[[str, str], v1.ResourceClaim | None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the pod is: addresses that its status shows."""

    host_ip: str
    pod_ip: str


def pod_step(pod: Object, place: Place, claims: ClaimLookup, now: float, started: float | None = None) -> list[Write]:
    """What has to be written about the pod at Unix time ``now``.

    ``started`` is the exact start of its containers when it is known better than the status, which
    holds whole seconds, tells. An ``After`` says when to look again.
    """
    if is_deleting(pod):
        return _stop(pod, now)
    if pod_is_done(pod):
        return []
    if text(pod, "status", "phase") != "Running":
        problem = claims_problem(pod, claims)
        if problem:
            return _wait(pod, problem)
        return [_patch(pod, running_status(pod, place, now)), *_look_again(pod, now, now)]
    if started is None:
        started = started_at(pod)
    deadline = at(pod, "spec", "activeDeadlineSeconds")
    start_time = text(pod, "status", "startTime")
    if deadline is not None and start_time and now >= parse_timestamp(start_time) + deadline:
        status = ended_status(pod, now, TERMINATED)
        message = "Pod was active on the node longer than the specified deadline"
        return [_patch(pod, {**status, "phase": "Failed", "reason": "DeadlineExceeded", "message": message})]
    restart = _restart_due(pod)
    if restart is not None:
        return [After(restart - now)] if restart > now else [_patch(pod, _restarted(pod, now))]
    end = _end(pod, started)
    if end is not None and now >= end:
        return _finish(pod, now)
    return _look_again(pod, started, now)


def ready_again(pod: Object, now: float) -> list[Write]:
    """Takes back what was said while the node was silent: that the pod is not ready, although its containers are."""
    containers = children(pod, "status", "containerStatuses")
    told = condition(pod, POD_READY)
    if told is None or told.get("status") == "True" or pod_is_done(pod) or is_deleting(pod):
        return []
    if not containers or not all(container.get("ready") for container in containers):
        return []
    over = {"reason": None, "message": None}
    conditions = _conditions(pod, timestamp(now), ready=True)
    return [_patch(pod, {"conditions": [entry | over for entry in conditions if entry["type"] == POD_READY]})]


def claims_problem(pod: Object, claims: ClaimLookup) -> str:
    """Why the pod may not start because of its claims; empty when it may."""
    namespace = text(pod, "metadata", "namespace")
    wanted = dict(pod_claim_names(pod))
    extended = text(pod, "status", "extendedResourceClaimStatus", "resourceClaimName")
    if extended:
        wanted["extended resources"] = extended
    for entry, name in wanted.items():
        if name is None:
            return f"claim {entry!r} has not been made from its template yet"
        claim = claims(namespace, name)
        if claim is None:
            return f"ResourceClaim {namespace}/{name} does not exist"
        if claim.status.allocation is None:
            return f"ResourceClaim {namespace}/{name} is not allocated"
        if not _reserved(claim, pod):
            return f"ResourceClaim {namespace}/{name} is not reserved for the pod"
    return ""


def _reserved(claim: v1.ResourceClaim, pod: Object) -> bool:
    group = text(pod, "spec", "schedulingGroup", "podGroupName")
    return any(
        (ref.resource == "pods" and ref.uid == uid_of(pod))
        or (ref.resource == "podgroups" and bool(group) and ref.name == group)
        for ref in claim.status.reservedFor or ()
    )


def started_at(pod: Object) -> float | None:
    """Unix time at which the running containers started, as the status tells; None when none runs."""
    for status in children(pod, "status", "containerStatuses"):
        started = text(status, "state", "running", "startedAt")
        if started:
            return parse_timestamp(started)
    return None


def running_status(pod: Object, place: Place, now: float) -> Object:
    """The status of a pod whose containers have just started."""
    stamp = timestamp(now)
    init = [_init_status(pod, container, stamp) for container in children(pod, "spec", "initContainers")]
    status: Object = {
        "phase": "Running",
        "hostIP": place.host_ip,
        "hostIPs": [{"ip": place.host_ip}],
        "podIP": place.pod_ip,
        "podIPs": [{"ip": place.pod_ip}],
        "startTime": text(pod, "status", "startTime") or stamp,
        "conditions": _conditions(pod, stamp, ready=True),
        "containerStatuses": [_running(pod, container, stamp) for container in children(pod, "spec", "containers")],
    }
    if init:
        status["initContainerStatuses"] = init
    return status


def ended_status(pod: Object, now: float, exit_code: int) -> Object:
    """The status of a pod whose containers have just ended, all with ``exit_code``."""
    stamp = timestamp(now)
    phase = "Succeeded" if exit_code == 0 else "Failed"
    old = {status["name"]: status for status in children(pod, "status", "containerStatuses")}
    statuses = [
        _ended(pod, container, old.get(container["name"], {}), stamp, exit_code)
        for container in children(pod, "spec", "containers")
    ]
    conditions = _conditions(pod, stamp, ready=False, reason="PodCompleted" if exit_code == 0 else "PodFailed")
    return {"phase": phase, "conditions": conditions, "containerStatuses": statuses}


def _stop(pod: Object, now: float) -> list[Write]:
    """Ends the pod, then lets go of it. A pod that a finalizer still keeps is left alone after that."""
    writes: list[Write] = []
    if not pod_is_done(pod):
        writes.append(_patch(pod, ended_status(pod, now, TERMINATED)))
    if at(pod, "metadata", "deletionGracePeriodSeconds") != 0:
        metadata = pod["metadata"]
        writes.append(Delete(POD, metadata["namespace"], metadata["name"], uid=metadata["uid"], grace=0))
    return writes


def _wait(pod: Object, problem: str) -> list[Write]:
    """Says once why the containers do not start."""
    waiting = {"reason": "ContainerCreating", "message": problem}
    current = [at(status, "state", "waiting") for status in children(pod, "status", "containerStatuses")]
    containers = children(pod, "spec", "containers")
    if current == [waiting] * len(containers):
        return []
    statuses = [_status(container, {"waiting": waiting}, ready=False, restarts=0) for container in containers]
    return [_patch(pod, {"phase": "Pending", "containerStatuses": statuses})]


def _finish(pod: Object, now: float) -> list[Write]:
    exit_code = _exit_code(pod)
    policy = text(pod, "spec", "restartPolicy") or "Always"
    if policy == "Never" or (policy == "OnFailure" and exit_code == 0):
        return [_patch(pod, ended_status(pod, now, exit_code))]
    stamp = timestamp(now)
    statuses: list[Object] = []
    for old in children(pod, "status", "containerStatuses"):
        last = {"terminated": _terminated(old, stamp, exit_code)}
        waiting = {"reason": "CrashLoopBackOff", "message": "the container ended and is going to be restarted"}
        statuses.append({**old, "ready": False, "started": False, "state": {"waiting": waiting}, "lastState": last})
    conditions = _conditions(pod, stamp, ready=False, reason="ContainersNotReady")
    pause = _pause(max((status.get("restartCount", 0) for status in statuses), default=0))
    return [_patch(pod, {"conditions": conditions, "containerStatuses": statuses}), After(pause)]


def _restart_due(pod: Object) -> float | None:
    """Unix time at which ended containers start again; None when none waits for that."""
    for status in children(pod, "status", "containerStatuses"):
        finished = text(status, "lastState", "terminated", "finishedAt")
        if finished and at(status, "state", "waiting", "reason") == "CrashLoopBackOff":
            return parse_timestamp(finished) + _pause(status.get("restartCount", 0))
    return None


def _restarted(pod: Object, now: float) -> Object:
    stamp = timestamp(now)
    statuses: list[Object] = []
    for old in children(pod, "status", "containerStatuses"):
        restarts = old.get("restartCount", 0) + 1
        state = {"running": {"startedAt": stamp}}
        container_id = _container_id(pod, old["name"], restarts)
        again = {"ready": True, "started": True, "restartCount": restarts, "containerID": container_id, "state": state}
        statuses.append({**old, **again})
    return {"conditions": _conditions(pod, stamp, ready=True), "containerStatuses": statuses}


def _pause(restarts: int) -> float:
    return min(FIRST_RESTART * 2 ** min(restarts, 10), LONGEST_RESTART)


def _look_again(pod: Object, started: float | None, now: float) -> list[Write]:
    times = [_end(pod, started)]
    deadline = at(pod, "spec", "activeDeadlineSeconds")
    start_time = text(pod, "status", "startTime")
    if deadline is not None:
        times.append((parse_timestamp(start_time) if start_time else now) + deadline)
    due = [time for time in times if time is not None]
    return [After(max(0.01, min(due) - now))] if due else []


def _end(pod: Object, started: float | None) -> float | None:
    seconds = annotations_of(pod).get(RUN_SECONDS)
    if seconds is None or started is None:
        return None
    try:
        return started + max(0.0, float(seconds))
    except ValueError:
        return None  # no number: runs until it is stopped


def _exit_code(pod: Object) -> int:
    code = annotations_of(pod).get(EXIT_CODE, "0")
    return int(code) if code.isdecimal() and int(code) < 256 else 1


def _patch(pod: Object, status: Object) -> Patch:
    metadata = pod["metadata"]
    body = {"metadata": {"uid": metadata["uid"]}, "status": status}
    return Patch(POD, metadata["namespace"], metadata["name"], body, type="strategic", subresource="status")


def _conditions(pod: Object, stamp: str, *, ready: bool, reason: str = "") -> list[Object]:
    """The conditions that the node owns; those that stay as they are keep their time."""
    states = {
        POD_READY_TO_START_CONTAINERS: ready or reason == "ContainersNotReady",
        POD_INITIALIZED: True,
        POD_READY: ready,
        CONTAINERS_READY: ready,
    }
    result: list[Object] = []
    for kind, state in states.items():
        entry: Object = {"type": kind, "status": "True" if state else "False", "lastTransitionTime": stamp}
        if not state and reason and kind in (POD_READY, CONTAINERS_READY):
            entry["reason"] = reason
        old = condition(pod, kind)
        if old is not None and old.get("status") == entry["status"] and old.get("lastTransitionTime"):
            entry["lastTransitionTime"] = old["lastTransitionTime"]
        result.append(entry)
    return result


def _running(pod: Object, container: Object, stamp: str) -> Object:
    state = {"running": {"startedAt": stamp}}
    container_id = _container_id(pod, container["name"], 0)
    return _status(container, state, ready=True, restarts=0) | {"started": True, "containerID": container_id}


def _init_status(pod: Object, container: Object, stamp: str) -> Object:
    if is_sidecar(container):
        return _running(pod, container, stamp)
    done = {"exitCode": 0, "reason": "Completed", "startedAt": stamp, "finishedAt": stamp}
    return _status(container, {"terminated": done}, ready=True, restarts=0) | {"started": False}


def _ended(pod: Object, container: Object, old: Object, stamp: str, exit_code: int) -> Object:
    state = {"terminated": _terminated(old, stamp, exit_code)}
    ended = _status(container, state, ready=False, restarts=old.get("restartCount", 0)) | {"started": False}
    for field in ("containerID", "lastState"):
        if old.get(field):
            ended[field] = old[field]
    return ended


def _terminated(old: Object, stamp: str, exit_code: int) -> Object:
    ended: dict[str, Any] = {"exitCode": exit_code, "reason": "Completed" if exit_code == 0 else "Error"}
    ended["startedAt"] = text(child(old, "state", "running"), "startedAt") or stamp
    ended["finishedAt"] = stamp
    if old.get("containerID"):
        ended["containerID"] = old["containerID"]
    return ended


def _status(container: Object, state: Object, *, ready: bool, restarts: int) -> Object:
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": ready,
        "restartCount": restarts,
        "state": state,
    }


def _container_id(pod: Object, name: str, restarts: int) -> str:
    return f"hollow://{uid_of(pod)}/{name}/{restarts}"
