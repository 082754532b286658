"""Cells of the kinds that make pods."""

from __future__ import annotations

from typing import Any

from drakkar.apiserver.printers.text import age, epoch, human_duration, joined, label_selector, labels

Object = dict[str, Any]


def _containers(template: Object) -> list[str]:
    """Names and images of the containers of a pod template."""
    items = (template.get("spec") or {}).get("containers") or ()
    return [",".join(item["name"] for item in items), ",".join(item.get("image", "") for item in items)]


def _created(obj: Object, now: float) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def job(obj: Object, now: float) -> list[Any]:
    """Status, completions, duration, age; containers, images and selector when wide."""
    spec, status = obj.get("spec", {}), obj.get("status", {})
    done = status.get("succeeded", 0)
    wanted, parallel = spec.get("completions"), spec.get("parallelism", 0)
    if wanted is not None:
        completions = f"{done}/{wanted}"
    else:
        completions = f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"
    start, end = epoch(status.get("startTime")), epoch(status.get("completionTime"))
    duration = "" if start is None else human_duration((now if end is None else end) - start)
    return [
        obj["metadata"]["name"],
        _job_status(obj),
        completions,
        duration,
        _created(obj, now),
        *_containers(spec.get("template") or {}),
        label_selector(spec.get("selector")),
    ]


def _job_status(obj: Object) -> str:
    conditions = obj.get("status", {}).get("conditions") or ()
    true = {item["type"] for item in conditions if item.get("status") == "True"}
    if "Complete" in true:
        return "Complete"
    if "Failed" in true:
        return "Failed"
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    for kind in ("Suspended", "FailureTarget", "SuccessCriteriaMet"):
        if kind in true:
            return kind
    return "Running"


def cron_job(obj: Object, now: float) -> list[Any]:
    """Schedule, suspension, activity, age."""
    spec, status = obj.get("spec", {}), obj.get("status", {})
    template = ((spec.get("jobTemplate") or {}).get("spec") or {}).get("template") or {}
    selector = ((spec.get("jobTemplate") or {}).get("spec") or {}).get("selector")
    last = status.get("lastScheduleTime")
    return [
        obj["metadata"]["name"],
        spec.get("schedule", ""),
        spec.get("timeZone") or "<none>",
        bool(spec.get("suspend")),
        len(status.get("active") or ()),
        age(last, now) if last else "<none>",
        _created(obj, now),
        *_containers(template),
        label_selector(selector),
    ]


def deployment(obj: Object, now: float) -> list[Any]:
    """Ready of wanted, updated, available, age; containers, images and selector when wide."""
    spec, status = obj.get("spec", {}), obj.get("status", {})
    return [
        obj["metadata"]["name"],
        f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        _created(obj, now),
        *_containers(spec.get("template") or {}),
        label_selector(spec.get("selector")),
    ]


def replica_set(obj: Object, now: float) -> list[Any]:
    """Desired, current, ready, age; containers, images and selector when wide."""
    spec, status = obj.get("spec", {}), obj.get("status", {})
    return [
        obj["metadata"]["name"],
        spec.get("replicas", 0),
        status.get("replicas", 0),
        status.get("readyReplicas", 0),
        _created(obj, now),
        *_containers(spec.get("template") or {}),
        label_selector(spec.get("selector")),
    ]


def replication_controller(obj: Object, now: float) -> list[Any]:
    """Like a replica set; its selector is a plain map."""
    return [*replica_set({**obj, "spec": {**obj.get("spec", {}), "selector": None}}, now)[:-1], labels(
        obj.get("spec", {}).get("selector")
    )]  # fmt: skip


def daemon_set(obj: Object, now: float) -> list[Any]:
    """Desired, current, ready, up to date, available, node selector, age; the rest when wide."""
    spec, status = obj.get("spec", {}), obj.get("status", {})
    template = spec.get("template") or {}
    return [
        obj["metadata"]["name"],
        status.get("desiredNumberScheduled", 0),
        status.get("currentNumberScheduled", 0),
        status.get("numberReady", 0),
        status.get("updatedNumberScheduled", 0),
        status.get("numberAvailable", 0),
        labels((template.get("spec") or {}).get("nodeSelector")),
        _created(obj, now),
        *_containers(template),
        label_selector(spec.get("selector")),
    ]


def stateful_set(obj: Object, now: float) -> list[Any]:
    """Ready of wanted, age; containers and images when wide."""
    spec, status = obj.get("spec", {}), obj.get("status", {})
    return [
        obj["metadata"]["name"],
        f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}",
        _created(obj, now),
        *_containers(spec.get("template") or {}),
    ]


def disruption_budget(obj: Object, now: float) -> list[Any]:
    """Bounds, how many disruptions are allowed now, age."""
    spec = obj.get("spec", {})
    return [
        obj["metadata"]["name"],
        str(spec.get("minAvailable", "N/A")),
        str(spec.get("maxUnavailable", "N/A")),
        obj.get("status", {}).get("disruptionsAllowed", 0),
        _created(obj, now),
    ]


def pod_group(obj: Object, now: float) -> list[Any]:
    """Policy, workload, scheduling status, age."""
    conditions = {item["type"]: item for item in obj.get("status", {}).get("conditions") or ()}
    scheduled = conditions.get("PodGroupInitiallyScheduled") or conditions.get("PodGroupScheduled")
    if scheduled is None:
        state = "Pending"
    else:
        state = "Scheduled" if scheduled.get("status") == "True" else scheduled.get("reason") or "Pending"
    return [obj["metadata"]["name"], *_policy_and_workload(obj), state, _created(obj, now)]


def composite_pod_group(obj: Object, now: float) -> list[Any]:
    """Policy, workload, age."""
    return [obj["metadata"]["name"], *_policy_and_workload(obj), _created(obj, now)]


def _policy_and_workload(obj: Object) -> list[str]:
    spec = obj.get("spec", {})
    policies = [name.capitalize() for name in spec.get("schedulingPolicy") or ()]
    return [joined(policies), (spec.get("workloadRef") or {}).get("workloadName") or "<none>"]
