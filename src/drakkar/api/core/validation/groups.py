"""Validation of Workloads, PodGroups and CompositePodGroups (scheduling.k8s.io).

Source: spec/api.md section 10.
"""

from __future__ import annotations

from typing import Final

from drakkar.api import formats
from drakkar.api.core.validation.pods import one_of
from drakkar.api.faults import Faults
from drakkar.api.meta import Object
from drakkar.api.resource.validation import shared
from drakkar.api.rules import ValidationContext, same_meaning
from drakkar.api.tree import child, children, text

TEMPLATES_MAX: Final = 8
CLAIMS_MAX: Final = 4
TOPOLOGY_MAX: Final = 1
DEPTH_MAX: Final = 4
PRIORITY_MAX: Final = 1_000_000_000
_PREEMPTION: Final = ("Never", "PreemptLowerPriority")


def validate_workload(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a Workload."""
    spec = child(obj, "spec")
    reference = spec.get("controllerRef")
    if reference is not None:
        for field in ("kind", "name"):
            value = text(reference, field)
            if not value:
                faults.required(f"spec.controllerRef.{field}")
            else:
                faults.check(f"spec.controllerRef.{field}", value, formats.path_segment)
        if text(reference, "apiGroup"):
            faults.check("spec.controllerRef.apiGroup", text(reference, "apiGroup"), formats.dns_subdomain)
    plain, composite = children(spec, "podGroupTemplates"), children(spec, "compositePodGroupTemplates")
    if composite and "CompositePodGroup" not in ctx.features:
        faults.forbidden(
            "spec.compositePodGroupTemplates", "this field is forbidden unless feature gate CompositePodGroup is on"
        )
        return
    if not plain and not composite:
        faults.required("spec", "must specify one of: `podGroupTemplates`, `compositePodGroupTemplates`")
    elif plain and composite:
        faults.invalid("spec", None, "must specify exactly one of: `podGroupTemplates`, `compositePodGroupTemplates`")
    _templates(faults, "spec", spec, ctx, depth=1)
    if old is not None:
        _workload_update(faults, spec, child(old, "spec"))


def _templates(faults: Faults, path: str, holder: Object, ctx: ValidationContext, *, depth: int) -> None:
    for field in ("podGroupTemplates", "compositePodGroupTemplates"):
        items = children(holder, field)
        place = f"{path}.{field}"
        if not faults.fits(place, items, TEMPLATES_MAX):
            continue
        names: list[str] = []
        for index, item in enumerate(items):
            at_item, name = f"{place}[{index}]", text(item, "name")
            shared.named(faults, f"{at_item}.name", name, formats.dns_label)
            names.append(name)
            if field == "podGroupTemplates":
                _policy(faults, at_item, item, "gang", "minCount")
                _claims(faults, f"{at_item}.resourceClaims", children(item, "resourceClaims"))
            else:
                _policy(faults, at_item, item, "gang", "minGroupCount")
                if not children(item, "podGroupTemplates") and not children(item, "compositePodGroupTemplates"):
                    faults.required(at_item, "must have at least one template below it")
                if depth >= DEPTH_MAX:
                    faults.invalid(at_item, name, f"templates may not be nested deeper than {DEPTH_MAX} levels")
                else:
                    _templates(faults, at_item, item, ctx, depth=depth + 1)
            _common(faults, at_item, item, ctx)
        faults.unique(place, names, ".name")


def _common(faults: Faults, path: str, item: Object, ctx: ValidationContext) -> None:
    """What templates and groups share."""
    constraints = item.get("schedulingConstraints")
    if constraints is not None:
        topology = children(constraints, "topology")
        if faults.fits(f"{path}.schedulingConstraints.topology", topology, TOPOLOGY_MAX):
            for index, entry in enumerate(topology):
                place, key = f"{path}.schedulingConstraints.topology[{index}].key", text(entry, "key")
                if not key:
                    faults.required(place)
                else:
                    faults.check(place, key, formats.qualified_name)
    mode = item.get("disruptionMode")
    if mode is not None:
        chosen = [field for field in ("single", "all") if mode.get(field) is not None]
        detail = "must specify exactly one of: `single`, `all`"
        if not chosen:
            faults.required(f"{path}.disruptionMode", detail)
        elif len(chosen) > 1:
            faults.invalid(f"{path}.disruptionMode", chosen, detail)
    if text(item, "priorityClassName"):
        faults.check(f"{path}.priorityClassName", text(item, "priorityClassName"), formats.dns_subdomain)
    priority = item.get("priority")
    if priority is not None and priority > PRIORITY_MAX:
        faults.invalid(f"{path}.priority", priority, f"must be less than or equal to {PRIORITY_MAX}")
    if item.get("preemptionPolicy") is not None:
        if "PodGroupPreemptionPolicy" not in ctx.features:
            faults.forbidden(
                f"{path}.preemptionPolicy", "this field is forbidden unless feature gate PodGroupPreemptionPolicy is on"
            )
        else:
            one_of(faults, f"{path}.preemptionPolicy", text(item, "preemptionPolicy"), _PREEMPTION)


def _policy(faults: Faults, path: str, item: Object, gang: str, field: str) -> None:
    place, policy = f"{path}.schedulingPolicy", child(item, "schedulingPolicy")
    chosen = [name for name in ("basic", gang) if policy.get(name) is not None]
    if len(chosen) > 1:
        faults.invalid(place, chosen, f"must specify exactly one of: `basic`, `{gang}`")
    elif not chosen:
        faults.required(place, f"must specify exactly one of: `basic`, `{gang}`")
    if gang in chosen:
        count = child(policy, gang).get(field)
        if count is None:
            faults.required(f"{place}.{gang}.{field}")
        elif count < 1:
            faults.invalid(f"{place}.{gang}.{field}", count, "must be greater than or equal to 1")


def _claims(faults: Faults, path: str, items: list[Object]) -> None:
    if not faults.fits(path, items, CLAIMS_MAX):
        return
    names: list[str] = []
    for index, item in enumerate(items):
        at_item, name = f"{path}[{index}]", text(item, "name")
        shared.named(faults, f"{at_item}.name", name, formats.dns_label)
        names.append(name)
        chosen = [field for field in ("resourceClaimName", "resourceClaimTemplateName") if item.get(field) is not None]
        detail = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
        if not chosen:
            faults.required(at_item, detail)
        elif len(chosen) > 1:
            faults.invalid(at_item, item, f"at most one may be set; {detail}")
        for field in chosen:
            faults.check(f"{at_item}.{field}", text(item, field), formats.dns_subdomain)
    faults.unique(path, names, ".name")


def _workload_update(faults: Faults, spec: Object, before: Object) -> None:
    shared.immutable(faults, "spec.controllerRef", spec.get("controllerRef"), before.get("controllerRef"))
    for field in ("podGroupTemplates", "compositePodGroupTemplates"):
        if not same_meaning(_frozen(children(spec, field)), _frozen(children(before, field))):
            detail = "templates may not be added, removed or changed, except schedulingPolicy.gang.minCount"
            faults.invalid(f"spec.{field}", None, f"{shared.IMMUTABLE}: {detail}")


def _frozen(templates: list[Object]) -> list[Object]:
    """Templates without what may change in them."""
    found: list[Object] = []
    for template in templates:
        kept = {key: value for key, value in template.items() if key != "schedulingPolicy"}
        policy = child(template, "schedulingPolicy")
        kept["schedulingPolicy"] = sorted(name for name, value in policy.items() if value is not None)
        for field in ("podGroupTemplates", "compositePodGroupTemplates"):
            if field in kept:
                kept[field] = _frozen(children(template, field))
        found.append(kept)
    return found


def validate_pod_group(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a PodGroup."""
    spec = child(obj, "spec")
    parent = text(spec, "parentCompositePodGroupName")
    if parent:
        if "CompositePodGroup" not in ctx.features:
            detail = "this field is forbidden unless feature gate CompositePodGroup is on"
            faults.forbidden("spec.parentCompositePodGroupName", detail)
        faults.check("spec.parentCompositePodGroupName", parent, formats.dns_subdomain)
        if spec.get("workloadRef") is None:
            faults.required("spec.workloadRef", "must be set when `parentCompositePodGroupName` is set")
    _workload_ref(faults, spec, needed=False)
    _policy(faults, "spec", spec, "gang", "minCount")
    _common(faults, "spec", spec, ctx)
    _claims(faults, "spec.resourceClaims", children(spec, "resourceClaims"))
    if old is not None:
        _group_update(faults, spec, child(old, "spec"), "minCount")


def validate_pod_group_status(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a PodGroup's status."""
    items = children(obj, "status", "resourceClaimStatuses")
    if not faults.fits("status.resourceClaimStatuses", items, CLAIMS_MAX):
        return
    known = {text(item, "name") for item in children(obj, "spec", "resourceClaims")}
    names: list[str] = []
    for index, item in enumerate(items):
        path, name = f"status.resourceClaimStatuses[{index}]", text(item, "name")
        names.append(name)
        if shared.named(faults, f"{path}.name", name, formats.dns_label) and name not in known:
            faults.invalid(f"{path}.name", name, "must match the name of an entry in `spec.resourceClaims`")
        if text(item, "resourceClaimName"):
            faults.check(f"{path}.resourceClaimName", text(item, "resourceClaimName"), formats.dns_subdomain)
    faults.unique("status.resourceClaimStatuses", names, ".name")


def validate_composite_group(faults: Faults, obj: Object, old: Object | None, ctx: ValidationContext) -> None:
    """Faults of a CompositePodGroup."""
    spec = child(obj, "spec")
    parent = text(spec, "parentCompositePodGroupName")
    if parent:
        faults.check("spec.parentCompositePodGroupName", parent, formats.dns_subdomain)
    _workload_ref(faults, spec, needed=True)
    _policy(faults, "spec", spec, "gang", "minGroupCount")
    _common(faults, "spec", spec, ctx)
    if old is not None:
        _group_update(faults, spec, child(old, "spec"), "minGroupCount")


def _workload_ref(faults: Faults, spec: Object, *, needed: bool) -> None:
    reference = spec.get("workloadRef")
    if reference is None:
        if needed:
            faults.required("spec.workloadRef")
        return
    for field, check in (("workloadName", formats.dns_subdomain), ("templateName", formats.dns_label)):
        value = text(reference, field)
        if not value:
            faults.required(f"spec.workloadRef.{field}")
        else:
            faults.check(f"spec.workloadRef.{field}", value, check)


def _group_update(faults: Faults, spec: Object, before: Object, count: str) -> None:
    for field in (
        "parentCompositePodGroupName", "workloadRef", "schedulingConstraints", "resourceClaims", "disruptionMode",
        "priorityClassName", "priority", "preemptionPolicy",
    ):  # fmt: skip
        if not same_meaning(spec.get(field), before.get(field)):
            faults.invalid(f"spec.{field}", spec.get(field), shared.IMMUTABLE)
    new, old = child(spec, "schedulingPolicy"), child(before, "schedulingPolicy")
    for name in ("basic", "gang"):
        if (new.get(name) is None) != (old.get(name) is None):
            faults.invalid(f"spec.schedulingPolicy.{name}", new.get(name), "may not be set or unset once created")
    gang, gang_before = dict(child(new, "gang")), dict(child(old, "gang"))
    gang.pop(count, None)
    gang_before.pop(count, None)
    if not same_meaning(gang, gang_before):
        faults.invalid("spec.schedulingPolicy.gang", new.get("gang"), shared.IMMUTABLE)
