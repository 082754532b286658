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


_REVIEWS = [("authentication.k8s.io", ["tokenreviews"]), ("authorization.k8s.io", ["subjectaccessreviews"])]
_PATHS = ["/healthz", "/livez", "/readyz", "/version", "/version/"]

#: Roles of parts and of everybody, which charts bind to by name.
_SYSTEM: dict[str, list[Object]] = {
    "system:auth-delegator": [
        {"apiGroups": [group], "resources": resources, "verbs": ["create"]} for group, resources in _REVIEWS
    ],
    "system:basic-user": [
        {
            "apiGroups": ["authorization.k8s.io"],
            "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
            "verbs": ["create"],
        },
        {"apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"], "verbs": ["create"]},
    ],
    "system:discovery": [
        {"nonResourceURLs": ["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", *_PATHS], "verbs": ["get"]}
    ],
    "system:public-info-viewer": [{"nonResourceURLs": _PATHS, "verbs": ["get"]}],
    "system:service-account-issuer-discovery": [
        {"nonResourceURLs": ["/.well-known/openid-configuration", "/openid/v1/jwks"], "verbs": ["get"]}
    ],
    "system:node-bootstrapper": [
        {
            "apiGroups": ["certificates.k8s.io"],
            "resources": ["certificatesigningrequests"],
            "verbs": ["create", "get", "list", "watch"],
        }
    ],
}


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
    rights = _rules([(_RBAC, ["roles", "rolebindings"])], [*_READ, *_WRITE])
    roles = [_role("cluster-admin", everything)]
    # What the three roles for users hold stands in roles of its own, beside which charts put theirs.
    for name, rules, into in (("admin", rights, ()), ("edit", edit, ("admin",)), ("view", view, ("edit",))):
        own = _role(f"system:aggregate-to-{name}", rules)
        own["metadata"]["labels"][f"{_RBAC}/aggregate-to-{name}"] = "true"
        roles.append(own)
        whole = _role(name, [])
        whole["aggregationRule"] = {"clusterRoleSelectors": [{"matchLabels": {f"{_RBAC}/aggregate-to-{name}": "true"}}]}
        for above in into:
            whole["metadata"]["labels"][f"{_RBAC}/aggregate-to-{above}"] = "true"
        roles.append(whole)
    roles += [_role(name, rules) for name, rules in _SYSTEM.items()]
    for role in roles:
        found.append((_RBAC, "v1", "clusterroles", role))
    for name, group in (
        ("system:basic-user", "system:authenticated"),
        ("system:discovery", "system:authenticated"),
        ("system:public-info-viewer", "system:authenticated"),
        ("system:service-account-issuer-discovery", "system:serviceaccounts"),
    ):
        found.append((_RBAC, "v1", "clusterrolebindings", _binding(name, group)))
    found.append((_RBAC, "v1", "clusterrolebindings", _binding("cluster-admin", "system:masters")))
    return found


def _binding(role: str, group: str) -> Object:
    return {
        "metadata": {"name": role, "labels": dict(_DEFAULTS_LABEL)},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": _RBAC, "kind": "Group", "name": group}],
    }


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
