"""Validation of the kinds outside resource.k8s.io that our components write.

Paths and causes are those of kube-apiserver; objects are JSON that has passed the schema,
defaulted and prepared.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from drakkar.api import formats
from drakkar.api.core.validation import configuration, groups, rights, workloads
from drakkar.api.core.validation.ephemeral import validate_ephemeral_containers
from drakkar.api.core.validation.jobs import validate_job, validate_job_status
from drakkar.api.core.validation.others import (
    validate_lease,
    validate_namespace,
    validate_node,
    validate_node_status,
)
from drakkar.api.core.validation.pods import pod_spec, pod_update
from drakkar.api.core.validation.resize import validate_resize
from drakkar.api.errors import FieldError
from drakkar.api.faults import Faults
from drakkar.api.meta import Object
from drakkar.api.metadata import check_metadata, check_metadata_update
from drakkar.api.rules import Validate, ValidationContext
from drakkar.api.tree import child

Check = Callable[[Faults, Object, Object | None, ValidationContext], None]


def _pod(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    if old is None:
        pod_spec(faults, "spec", child(obj, "spec"))
        if child(obj, "spec").get("ephemeralContainers"):
            faults.forbidden("spec.ephemeralContainers", "cannot be set on create")
    else:
        pod_update(faults, obj, old)


def _node(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    validate_node(faults, obj, old, ctx)
    if old is None:
        validate_node_status(faults, obj, old, ctx)


def _nothing(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Status that only our own components write; its schema is check enough."""


def _cron_job_name(name: str) -> tuple[str, ...]:
    """A Job's name has eleven characters more."""
    return (*formats.dns_subdomain(name), *(("must be no more than 52 characters",) if len(name) > 52 else ()))


# (group, kind) → namespaced, format of names, checks of the main endpoint and of status.
_KINDS: Final[dict[tuple[str, str], tuple[bool, formats.Check, Check, Check]]] = {
    ("", "Pod"): (True, formats.dns_subdomain, _pod, _nothing),
    ("batch", "Job"): (True, formats.dns_subdomain, validate_job, validate_job_status),
    ("", "Node"): (False, formats.dns_subdomain, _node, validate_node_status),
    ("", "Namespace"): (False, formats.dns_label, validate_namespace, _nothing),
    ("coordination.k8s.io", "Lease"): (True, formats.dns_subdomain, validate_lease, _nothing),
    ("", "ConfigMap"): (True, formats.dns_subdomain, configuration.validate_config_map, _nothing),
    ("", "Secret"): (True, formats.dns_subdomain, configuration.validate_secret, _nothing),
    ("", "ResourceQuota"): (True, formats.dns_subdomain, configuration.validate_quota, _nothing),
    ("", "LimitRange"): (True, formats.dns_subdomain, configuration.validate_limit_range, _nothing),
    ("", "PersistentVolumeClaim"): (True, formats.dns_subdomain, configuration.validate_volume_claim, _nothing),
    ("", "Service"): (True, configuration.service_name, configuration.validate_service, _nothing),
    ("policy", "PodDisruptionBudget"): (True, formats.dns_subdomain, configuration.validate_budget, _nothing),
    ("apps", "Deployment"): (True, formats.dns_subdomain, workloads.validate_deployment, _nothing),
    ("apps", "ReplicaSet"): (True, formats.dns_subdomain, workloads.validate_replica_set, _nothing),
    ("apps", "DaemonSet"): (True, formats.dns_subdomain, workloads.validate_daemon_set, _nothing),
    ("apps", "StatefulSet"): (True, formats.dns_label, workloads.validate_stateful_set, _nothing),
    ("batch", "CronJob"): (True, _cron_job_name, workloads.validate_cron_job, _nothing),
    ("scheduling.k8s.io", "PriorityClass"): (False, formats.dns_subdomain, workloads.validate_priority_class, _nothing),
    ("scheduling.k8s.io", "Workload"): (True, formats.dns_subdomain, groups.validate_workload, _nothing),
    ("scheduling.k8s.io", "PodGroup"): (
        True, formats.dns_subdomain, groups.validate_pod_group, groups.validate_pod_group_status,
    ),
    ("scheduling.k8s.io", "CompositePodGroup"): (
        True, formats.dns_subdomain, groups.validate_composite_group, _nothing,
    ),
    (rights.RBAC, "Role"): (True, formats.path_segment, rights.validate_role, _nothing),
    (rights.RBAC, "ClusterRole"): (False, formats.path_segment, rights.validate_cluster_role, _nothing),
    (rights.RBAC, "RoleBinding"): (True, formats.path_segment, rights.validate_role_binding, _nothing),
    (rights.RBAC, "ClusterRoleBinding"): (
        False, formats.path_segment, rights.validate_cluster_role_binding, _nothing,
    ),
}  # fmt: skip


#: (group, kind, subresource) → its checks, where they are neither those of the object nor of its status.
_SUBRESOURCES: Final[dict[tuple[str, str, str], Check]] = {
    ("", "Pod", "ephemeralcontainers"): validate_ephemeral_containers,
    ("", "Pod", "resize"): validate_resize,
}


def _validate(
    key: tuple[str, str], obj: Object, old: Object | None, subresource: str | None, ctx: ValidationContext, /
) -> list[FieldError]:
    namespaced, name_format, main, status = _KINDS[key]
    faults = Faults()
    if old is None:
        check_metadata(faults, child(obj, "metadata"), namespaced, name_format, "metadata")
    else:
        check_metadata_update(faults, child(obj, "metadata"), child(old, "metadata"), namespaced)
    check = _SUBRESOURCES.get((*key, subresource or ""), status if subresource == "status" else main)
    check(faults, obj, old, ctx)
    return faults.found


VALIDATORS: Final[dict[tuple[str, str], Validate]] = {key: partial(_validate, key) for key in _KINDS}
"""(group, kind) → its validation, metadata included."""
