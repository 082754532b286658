"""Validation of roles and their bindings (rbac.authorization.k8s.io)."""

from __future__ import annotations

from typing import Final

from drakkar.api import formats
from drakkar.api.faults import Faults
from drakkar.api.meta import Object
from drakkar.api.rules import ValidationContext
from drakkar.api.tree import child, children, text, texts

RBAC: Final = "rbac.authorization.k8s.io"


def _rules(faults: Faults, path: str, rules: list[Object], namespaced: bool) -> None:
    for index, rule in enumerate(rules):
        place = f"{path}[{index}]"
        if not texts(rule, "verbs"):
            faults.required(f"{place}.verbs", "verbs must contain at least one value")
        paths = texts(rule, "nonResourceURLs")
        if paths:
            if namespaced:
                faults.invalid(f"{place}.nonResourceURLs", paths, "namespaced rules cannot apply to non-resource URLs")
            if texts(rule, "apiGroups") or texts(rule, "resources") or texts(rule, "resourceNames"):
                detail = "rules cannot apply to both regular resources and non-resource URLs"
                faults.invalid(f"{place}.nonResourceURLs", paths, detail)
            continue
        if not texts(rule, "apiGroups"):
            faults.required(f"{place}.apiGroups", "resource rules must supply at least one api group")
        if not texts(rule, "resources"):
            faults.required(f"{place}.resources", "resource rules must supply at least one resource")


def validate_role(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a Role."""
    _rules(faults, "rules", children(obj, "rules"), True)


def validate_cluster_role(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a ClusterRole."""
    _rules(faults, "rules", children(obj, "rules"), False)
    if obj.get("aggregationRule") is not None and not children(obj, "aggregationRule", "clusterRoleSelectors"):
        faults.required(
            "aggregationRule.clusterRoleSelectors",
            "at least one clusterRoleSelector required if aggregationRule is non-nil",
        )


def validate_role_binding(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a RoleBinding."""
    _binding(faults, obj, old, ("ClusterRole", "Role"), namespaced=True)


def validate_cluster_role_binding(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a ClusterRoleBinding."""
    _binding(faults, obj, old, ("ClusterRole",), namespaced=False)


def _binding(faults: Faults, obj: Object, old: Object | None, kinds: tuple[str, ...], *, namespaced: bool) -> None:
    ref = child(obj, "roleRef")
    if text(ref, "apiGroup") != RBAC:
        faults.not_supported("roleRef.apiGroup", text(ref, "apiGroup"), (RBAC,))
    if text(ref, "kind") not in kinds:
        faults.not_supported("roleRef.kind", text(ref, "kind"), kinds)
    if not text(ref, "name"):
        faults.required("roleRef.name")
    else:
        faults.check("roleRef.name", text(ref, "name"), formats.path_segment)
    if old is not None and ref != child(old, "roleRef"):
        faults.invalid("roleRef", ref, "cannot change roleRef")
    for index, subject in enumerate(children(obj, "subjects")):
        path, kind, group = f"subjects[{index}]", text(subject, "kind"), text(subject, "apiGroup")
        if not text(subject, "name"):
            faults.required(f"{path}.name")
        match kind:
            case "ServiceAccount":
                if text(subject, "name"):
                    faults.check(f"{path}.name", text(subject, "name"), formats.dns_subdomain)
                if group:
                    faults.not_supported(f"{path}.apiGroup", group, ("",))
                if not text(subject, "namespace") and not namespaced:
                    faults.required(f"{path}.namespace")
            case "User" | "Group":
                if group != RBAC:
                    faults.not_supported(f"{path}.apiGroup", group, (RBAC,))
            case _:
                faults.not_supported(f"{path}.kind", kind, ("Group", "ServiceAccount", "User"))
