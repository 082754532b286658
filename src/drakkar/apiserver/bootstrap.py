"""What a new cluster has before anybody asks: namespaces, priority classes, the four roles for users."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from drakkar.apiserver.cache import Entry
from drakkar.apiserver.options import WriteOptions
from drakkar.apiserver.registry import Registry
from drakkar.apiserver.status import StatusError

Object = dict[str, Any]

_RBAC = "rbac.authorization.k8s.io"
_DEFAULTS_LABEL = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_READ = ["get", "list", "watch"]
_WRITE = ["create", "delete", "deletecollection", "patch", "update"]
_WORK: list[tuple[str, list[str]]] = [
    ("", ["pods", "pods/eviction", "configmaps", "services", "persistentvolumeclaims", "events", "podtemplates"]),
    ("apps", ["*"]),
    ("batch", ["*"]),
    ("autoscaling", ["*"]),
    ("networking.k8s.io", ["ingresses", "networkpolicies"]),
    ("policy", ["poddisruptionbudgets"]),
    ("resource.k8s.io", ["resourceclaims", "resourceclaimtemplates"]),
    ("scheduling.k8s.io", ["podgroups", "workloads", "compositepodgroups"]),
]


def _role(name: str, rules: list[Object]) -> Object:
    return {"metadata": {"name": name, "labels": dict(_DEFAULTS_LABEL)}, "rules": rules}


def _rules(work: list[tuple[str, list[str]]], verbs: list[str]) -> list[Object]:
    return [{"apiGroups": [group], "resources": resources, "verbs": verbs} for group, resources in work]


def _objects() -> list[tuple[str, str, str, Object]]:
    """Group, version, plural and object."""
    found: list[tuple[str, str, str, Object]] = [
        ("", "v1", "namespaces", {"metadata": {"name": name}})
        for name in ("default", "kube-system", "kube-public", "kube-node-lease")
    ]
    for name, value in (("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)):
        found.append(
            (
                "scheduling.k8s.io",
                "v1",
                "priorityclasses",
                {"metadata": {"name": name}, "value": value, "preemptionPolicy": "PreemptLowerPriority"},
            )
        )
    secrets = [("", ["secrets", "serviceaccounts", "serviceaccounts/token"])]
    everything: list[Object] = [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
        {"nonResourceURLs": ["*"], "verbs": ["*"]},
    ]
    edit = _rules(_WORK + secrets, [*_READ, *_WRITE])
    view = _rules([*_WORK, ("", ["namespaces", "serviceaccounts", "resourcequotas", "limitranges"])], _READ)
    for role in (
        _role("cluster-admin", everything),
        _role("admin", [*edit, *_rules([(_RBAC, ["roles", "rolebindings"])], [*_READ, *_WRITE])]),
        _role("edit", edit),
        _role("view", view),
    ):
        found.append((_RBAC, "v1", "clusterroles", role))
    binding: Object = {
        "metadata": {"name": "cluster-admin", "labels": dict(_DEFAULTS_LABEL)},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": _RBAC, "kind": "Group", "name": "system:masters"}],
    }
    found.append((_RBAC, "v1", "clusterrolebindings", binding))
    return found


async def create_missing(registry: Registry) -> None:
    """Creates those of the initial objects that are not there."""
    missing: list[Coroutine[Any, Any, Entry]] = []
    for group, version, plural, obj in _objects():
        served = registry.catalog.find(group, version, plural)
        if served is not None:
            view = registry.view(served)
            if obj["metadata"]["name"] not in view.table.entries:
                missing.append(registry.create(view, "", obj, WriteOptions(), []))
    # Together, so that they share one commit.
    for outcome in await asyncio.gather(*missing, return_exceptions=True):
        # Another server of the same store may have been quicker.
        if isinstance(outcome, BaseException) and not (isinstance(outcome, StatusError) and outcome.code == 409):
            raise outcome
