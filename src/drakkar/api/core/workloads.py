"""Defaults of the kinds around pods that users bring along: apps, CronJob, priorities, pod groups.

Source: answers of kube-apiserver 1.37 (spec/apiserver-traces/write.json), spec/api.md section 10.
"""

from __future__ import annotations

from typing import Any, Final

from drakkar.api.core.defaults import job_spec, pod_template
from drakkar.api.meta import Object
from drakkar.api.rules import Defaults
from drakkar.api.tree import children, text


def _fill(holder: Object, **members: Any) -> None:
    for field, value in members.items():
        if holder.get(field) is None:
            holder[field] = value


def _spec(obj: Object) -> Object:
    _fill(obj, spec={}, status={})
    _fill(obj["spec"], template={})
    pod_template(obj["spec"]["template"])
    return obj["spec"]


def _deployment(obj: Object) -> None:
    spec = _spec(obj)
    _fill(spec, replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600, strategy={})
    _fill(spec["strategy"], type="RollingUpdate")
    if spec["strategy"]["type"] == "RollingUpdate":
        _fill(spec["strategy"], rollingUpdate={})
        _fill(spec["strategy"]["rollingUpdate"], maxUnavailable="25%", maxSurge="25%")


def _replica_set(obj: Object) -> None:
    _fill(_spec(obj), replicas=1)


def _daemon_set(obj: Object) -> None:
    spec = _spec(obj)
    _fill(spec, revisionHistoryLimit=10, updateStrategy={})
    _fill(spec["updateStrategy"], type="RollingUpdate")
    if spec["updateStrategy"]["type"] == "RollingUpdate":
        _fill(spec["updateStrategy"], rollingUpdate={})
        _fill(spec["updateStrategy"]["rollingUpdate"], maxUnavailable=1, maxSurge=0)


def _stateful_set(obj: Object) -> None:
    spec = _spec(obj)
    _fill(
        spec,
        replicas=1,
        revisionHistoryLimit=10,
        podManagementPolicy="OrderedReady",
        updateStrategy={},
        persistentVolumeClaimRetentionPolicy={},
    )
    _fill(spec["updateStrategy"], type="RollingUpdate")
    if spec["updateStrategy"]["type"] == "RollingUpdate":
        _fill(spec["updateStrategy"], rollingUpdate={})
        _fill(spec["updateStrategy"]["rollingUpdate"], partition=0)
    _fill(spec["persistentVolumeClaimRetentionPolicy"], whenDeleted="Retain", whenScaled="Retain")


def _cron_job(obj: Object) -> None:
    _fill(obj, spec={}, status={})
    spec = obj["spec"]
    _fill(
        spec,
        concurrencyPolicy="Allow",
        suspend=False,
        successfulJobsHistoryLimit=3,
        failedJobsHistoryLimit=1,
        jobTemplate={},
    )
    _fill(spec["jobTemplate"], metadata={}, spec={})
    # The numbers of a Job are left open here; they are filled in when the Job is made.
    job_spec(spec["jobTemplate"]["spec"], template_only=True)


def _priority_class(obj: Object) -> None:
    if not text(obj, "preemptionPolicy"):
        obj["preemptionPolicy"] = "PreemptLowerPriority"


def _pod_group(obj: Object) -> None:
    _fill(obj, spec={}, status={})
    _fill(obj["spec"], disruptionMode={"single": {}})


def _workload(obj: Object) -> None:
    _fill(obj, spec={})
    for template in children(obj, "spec", "podGroupTemplates"):
        _fill(template, disruptionMode={"single": {}})


DEFAULTS: Final[dict[tuple[str, str], Defaults]] = {
    ("Deployment", "v1"): _deployment,
    ("ReplicaSet", "v1"): _replica_set,
    ("DaemonSet", "v1"): _daemon_set,
    ("StatefulSet", "v1"): _stateful_set,
    ("CronJob", "v1"): _cron_job,
    ("PriorityClass", "v1"): _priority_class,
    ("PodGroup", "v1beta1"): _pod_group,
    ("Workload", "v1beta1"): _workload,
}
"""(kind, version) → what fills in its defaults."""
